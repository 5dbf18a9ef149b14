# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, for Open MPI: network namespaces joined by a switch, each line with a rate of its own.

Needs root, iproute2 and util-linux. A process that is started on a host has that host's network and name, and shares no
memory with those of other hosts. What hosts have in common is the line, the files and the processors.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

NETWORK = "10.99.77"
BURST = 32 << 10  # bytes that may pass at once: about 250 us of 1 Gbit/s
QUEUE = 1 << 20  # bytes that a port holds back
# A card that is full tells TCP to wait; tbf drops, which TCP takes for congestion. So no connection may fill the queue.
CONNECTION = 128 << 10  # bytes that one may have in its host's queue

ENTER = """#!/bin/sh
# HOST COMMAND [ARGUMENT]...
host=$1; shift
exec nsenter --net=/run/netns/$host -- unshare --mount --uts --ipc -- sh -c '
  hostname "$0" && mount -t tmpfs shm /dev/shm && mount --bind @HOSTS@ /etc/hosts && exec "$@"' "$host" "$@"
"""

# What mpirun takes for ssh: the words behind the host are one line for a shell.
AGENT = """#!/bin/sh
host=$1; shift
exec @ENTER@ "$host" sh -c "$*"
"""


def _run(*command: object) -> None:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {ran.stderr.strip()}")


def _shape(namespace: str, device: str, rate: str) -> None:
    # tbf cuts up packets that are larger than its bucket, so let none be.
    _run("ip", "-n", namespace, "link", "set", device, "gso_max_size", BURST // 2)
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", BURST,
         "limit", QUEUE)


@contextlib.contextmanager
def hosts(count: int, rate: str, per_host: int = 1) -> Iterator[Sequence[str]]:
    """`count` hosts while the context lasts. Yields the mpirun that starts `per_host` ranks on each."""
    prefix = f"hvb{os.getpid()}"
    names = [f"{prefix}-{number}" for number in range(count)]
    switch = f"{prefix}-switch"
    made = []
    with tempfile.TemporaryDirectory(prefix="hvdata-hosts-") as directory:
        try:
            for name in [switch, *names]:
                _run("ip", "netns", "add", name)
                made.append(name)
                _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", switch, "link", "add", "bridge", "up", "type", "bridge", "forward_delay", 0)
            for number, name in enumerate(names):
                port = f"port{number}"
                _run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
                _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
                _run("ip", "-n", name, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
                _run("ip", "-n", name, "link", "set", "eth0", "up")
                _run("ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.tcp_limit_output_bytes={CONNECTION}")
                # Linux's default, whatever this machine uses: a host's own setting takes none that the machine forbids.
                _run("ip", "-n", name, "route", "change", f"{NETWORK}.0/24", "dev", "eth0", "congctl", "cubic")
                _shape(name, "eth0", rate)
                _shape(switch, port, rate)
            yield _mpirun(Path(directory), names, per_host)
        finally:
            for name in made[::-1]:
                subprocess.run(["ip", "netns", "del", name], check=False)  # takes the lines' ends along
                shutil.rmtree(f"/tmp/ompi.{name}.{os.getuid()}", ignore_errors=True)  # Open MPI's, after a hard end


def _mpirun(directory: Path, names: Sequence[str], per_host: int) -> list[str]:
    table, enter, agent, listed = (directory / name for name in ("hosts", "enter", "agent", "hostfile"))
    table.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{i + 1} {name}\n" for i, name in enumerate(names)))
    enter.write_text(ENTER.replace("@HOSTS@", str(table)))
    agent.write_text(AGENT.replace("@ENTER@", str(enter)))
    enter.chmod(0o755)
    agent.chmod(0o755)
    listed.write_text("".join(f"{name} slots={per_host}\n" for name in names))
    settings = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": 1, "pml": "ob1", "btl": "self,vader,tcp",
                "btl_tcp_if_include": f"{NETWORK}.0/24", "oob_tcp_if_include": f"{NETWORK}.0/24"}
    command = [enter, names[0], "mpirun", "--hostfile", listed, "--map-by", f"ppr:{per_host}:node"]
    for key, value in settings.items():
        command += ["--mca", key, value]
    return [str(word) for word in command]
