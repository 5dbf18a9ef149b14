# SPDX-License-Identifier: Apache-2.0
"""Several simulated hosts on one machine, for tests and benchmarks of jobs over a network.

    with Bed(2, rate="1gbit") as bed:
        environment = {**os.environ, **bed.environment}
        subprocess.run([*bed.mpirun([0, 0, 1, 1], os.environ), "-np", "4", "hostname"], env=environment)
        bed.cut(1)

A host is an idle process with a network, a name, System V memory and a /dev/shm of its own. Programs on the host enter
these namespaces. Hosts share only the processors, the files and the clock. With equal names or one /dev/shm MPI would
take them for one host. A switch in a namespace of its own joins them. So no interface of the machine is touched, and
several beds may exist at once.

All hosts are in one PID namespace. The first process of this namespace dies with the process that made the bed. Then
the kernel kills all processes on the hosts. The namespaces, lines and shared memory go with the last process. Only a
folder may stay, which the next bed removes.

Needs root, Linux, iproute2 and util-linux. For Open MPI.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO, Optional

NETWORK = "10.99.77"
BURST = 32 << 10  # bytes that may pass at once: about 250 us of 1 Gbit/s
QUEUE = 1 << 20  # bytes that a port holds back
# The most bytes of one connection in its host's queue. tbf drops packets when its queue is full, and TCP takes that for
# congestion. So no connection may fill the queue.
CONNECTION = 128 << 10
FRAME = 14 + 20 + 32  # bytes of Ethernet, IP and TCP with time stamps in each packet that the counters count
PREFIX = "hvdata-bed-"  # of the folders
START_SECONDS = 20

# Arguments: DIRECTORY, then the hosts' names. Prints each process's number outside of the bed. Hosts see the /proc of
# the bed. The machine's /proc stays reachable for programs that look up their number outside. The first process reaps
# processes without a parent.
INIT = """
mount --bind /proc "$0/proc" && mount -t proc proc /proc &&
ip link set lo up && ip link add bridge up type bridge forward_delay 0 || exit
read -r pid _ <"$0/proc/self/stat"
echo "$pid"
for name; do
  unshare --net --uts --ipc --mount sh -c '
    hostname "$1" && mount -t tmpfs shm /dev/shm && mount --bind "$0/etc_hosts" /etc/hosts && ip link set lo up || exit
    echo $$ >"$0/pids/$1"
    read -r pid _ <"$0/proc/self/stat"
    echo "$pid"
    exec sleep infinity' "$0" "$name" &
  until [ -s "$0/pids/$name" ]; do sleep 0.01; done
done
exec env --ignore-signal=CHLD sleep infinity
"""

# Like a real ssh, it runs the command in a shell, without the caller's environment. It joins the words after the host
# to one line. It does not use the network, so it also reaches hosts that are cut off.
SSH = """#!/bin/sh
# ssh [OPTION]... HOST [OPTION]... COMMAND...
host=
while [ $# -gt 0 ]; do
  case $1 in
    -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) [ -z "$host" ] || break; host=${1##*@}; shift ;;
  esac
done
read -r pid 2>/dev/null <"@DIRECTORY@/pids/$host" || { echo "ssh: no host $host in this bed" >&2; exit 255; }
exec nsenter --target "$pid" --net --uts --ipc --mount -- env -i HOME="$HOME" USER=root LOGNAME=root SHELL=/bin/sh \\
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "$*"
"""

# From the machine. Ends, with SIGTERM, when this does: nsenter only waits for it.
ON = """#!/bin/sh
# on PID COMMAND [ARGUMENT]...
pid=$1; shift
exec nsenter --target "$pid" --net --uts --ipc --mount --pid -- \\
  setpriv --pdeathsig TERM sh -c 'cd "$0" && exec "$@"' "$(pwd)" "$@"
"""


@dataclass(frozen=True)
class Counters:
    """The traffic on a host's line, in bytes and packets, seen from the host."""

    sent: int = 0
    received: int = 0
    packets_sent: int = 0
    packets_received: int = 0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(mine - its for mine, its in zip(astuple(self), astuple(other))))

    @property
    def payload_sent(self) -> int:
        """The bytes that were sent, without the packets' frames.

        ARP's packets have smaller frames than assumed, so each counts as a few bytes less than 0.
        """
        return self.sent - FRAME * self.packets_sent

    @property
    def payload_received(self) -> int:
        return self.received - FRAME * self.packets_received


def why_not() -> str:
    """Why there can be no bed here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [name for name in ("ip", "tc", "bridge", "nsenter", "unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"needs iproute2 and util-linux: no {', '.join(missing)}"
    try:
        with Bed(1, rate="1gbit"):
            return ""
    except RuntimeError as error:
        return f"this machine allows no simulated hosts: {error}"


class Bed:
    """`count` hosts; `rate` of each host's line, both ways, as tc spells it; None: as fast as the machine."""

    def __init__(self, count: int, rate: Optional[str] = None) -> None:
        self.names: Sequence[str] = []
        self._count = count
        self._rate = rate
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Bed:
        with self._ends:  # if something fails, this removes what was made until then
            self._begin()
            self._ends = self._ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _begin(self) -> None:
        _remove_leftovers()
        made = Path(tempfile.mkdtemp(prefix="hvdata-made-"))
        self._directory = made.with_name(made.name.replace("made", "bed").replace("_", "x"))
        self._ends.callback(shutil.rmtree, self._directory, ignore_errors=True)
        (made / "lock").touch()
        self._ends.enter_context(_locked(made))
        made.rename(self._directory)  # when it is locked, so that no other bed takes it for a leftover
        unique = self._directory.name[len(PREFIX) :]
        self.names = [f"host{number}-{unique}" for number in range(self._count)]
        for folder in ("bin", "pids", "proc", "tmp"):
            (self._directory / folder).mkdir()
        (self._directory / "etc_hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{self.address(host)} {name}\n" for host, name in enumerate(self.names))
        )
        for name, text in (("ssh", SSH.replace("@DIRECTORY@", str(self._directory))), ("on", ON)):
            (self._directory / "bin" / name).write_text(text)
            (self._directory / "bin" / name).chmod(0o755)
        self._switch, *self._pids = self._populate()
        for host in range(self._count):
            self._connect(host)

    def _populate(self) -> list[int]:
        """Starts the processes that hold the switch's and the hosts' namespaces; returns their numbers."""
        command = "setpriv --pdeathsig KILL unshare --pid --net --mount --fork --kill-child sh -c".split()
        first = subprocess.Popen(
            [*command, INIT, str(self._directory), *self.names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ends.callback(_end, first)
        assert first.stdout is not None and first.stderr is not None
        told = [first.stdout.readline() for _ in range(1 + self._count)]
        if not all(told):
            first.kill()
            raise RuntimeError(f"the hosts could not be made: {first.stderr.read().strip()}")
        return [int(pid) for pid in told]

    def _connect(self, host: int) -> None:
        port = f"port{host}"
        self._in(
            self._switch,
            f"link add {port} type veth peer name eth0 netns {self._pids[host]}",
            f"link set {port} master bridge up",
        )
        # Linux's default, whatever this machine uses. A host's own setting could only name what the machine allows.
        self._in(
            self._pids[host],
            f"addr add {self.address(host)}/24 dev eth0",
            "link set eth0 up",
            f"route change {NETWORK}.0/24 dev eth0 congctl cubic",
        )
        _run(*_network(self._pids[host]), "sysctl", "-qw", f"net.ipv4.tcp_limit_output_bytes={CONNECTION}")
        if self._rate:
            self.set_rate(host, self._rate)

    def _in(self, pid: int, *commands: str) -> None:
        _run(*_network(pid), "ip", "-batch", "-", text="\n".join(commands) + "\n")

    # ---- What runs on the hosts.

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    @property
    def environment(self) -> dict[str, str]:
        """For launchers: theirs is the bed's ssh, and what Open MPI leaves behind goes with the bed."""
        return {
            "PATH": f"{self._directory / 'bin'}:{os.environ['PATH']}",
            "OMPI_MCA_plm": "rsh",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,vader,tcp",
            "OMPI_MCA_orte_tmpdir_base": str(self._directory / "tmp"),
        }

    @property
    def proc(self) -> Path:
        """The machine's own /proc, on the hosts. A process finds there its number outside."""
        return self._directory / "proc"

    def enter(self, host: int = 0) -> list[str]:
        """The words before a command that run it on this host."""
        return [str(self._directory / "bin" / "on"), str(self._pids[host])]

    def mpirun(self, places: Sequence[int], env: Mapping[str, str]) -> list[str]:
        """The words before `-np` and a command: rank r runs on host places[r], and gets these environment variables."""
        listed = self._directory / "places"
        listed.write_text("".join(f"{self.names[host]}\n" for host in places))
        forwarded = [word for name in env if re.fullmatch(r"\w+", name) for word in ("-x", name)]
        return [*self.enter(), "mpirun", "--hostfile", str(listed), "--map-by", "seq", *forwarded]

    def processes(self, host: Optional[int] = None) -> list[int]:
        """The numbers here of the processes on the hosts, or on one host."""
        wanted = {"pid": self._switch, **({} if host is None else {"net": self._pids[host]})}
        found = []
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            with contextlib.suppress(OSError):
                if all(
                    os.path.samefile(f"/proc/{pid}/ns/{kind}", f"/proc/{like}/ns/{kind}")
                    for kind, like in wanted.items()
                ):
                    found.append(pid)
        return [pid for pid in found if pid not in (self._switch, *self._pids) and _runs(pid)]

    def named(self, name: str, host: int) -> int:
        """The one process of this program's name on the host."""
        (pid,) = (pid for pid in self.processes(host) if os.path.basename(_command(pid)) == name)
        return pid

    def root(self, host: int) -> Path:
        """The files of the host, as seen from here."""
        return Path(f"/proc/{self._pids[host]}/root")

    # ---- Lines.

    def cut(self, host: int) -> None:
        """Packets vanish silently, as behind a switch that has lost its power."""
        self._set_port(host, 0)

    def reconnect(self, host: int) -> None:
        self._set_port(host, 3)

    def _set_port(self, host: int, state: int) -> None:
        _run(*_network(self._switch), "bridge", "link", "set", "dev", f"port{host}", "state", state)

    def set_rate(self, host: int, rate: str) -> None:
        for pid, device in ((self._pids[host], "eth0"), (self._switch, f"port{host}")):
            # tbf cuts up packets that are larger than its bucket, so none may be.
            self._in(pid, f"link set {device} gso_max_size {BURST // 2}")
            tbf = f"tc qdisc replace dev {device} root tbf rate {rate} burst {BURST} limit {QUEUE}"
            _run(*_network(pid), *tbf.split())

    def counters(self, host: int) -> Counters:
        text = Path(f"/proc/{self._pids[host]}/net/dev").read_text()
        received, packets_received, *_ = words = text.partition("eth0:")[2].split()
        return Counters(int(words[8]), int(received), int(words[9]), int(packets_received))


def _run(*command: object, text: str = "") -> None:
    ran = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {ran.stderr.strip()}")


def _network(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net", "--"]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _command(pid: int) -> str:
    """The program's name or path; empty if it has just ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    return ""


def _end(first: subprocess.Popen[str]) -> None:
    """The bed's first process, and so all of them."""
    first.kill()
    first.wait()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[IO[str]]:
    """Locks the bed as long as this process lives. Its children do not hold the lock.

    Raises:
      OSError: there is no such bed, or another process has locked it.
    """
    with open(directory / "lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock


def _remove_leftovers() -> None:
    """Folders of beds whose makers were killed."""
    for directory in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError), _locked(directory):
            shutil.rmtree(directory, ignore_errors=True)
