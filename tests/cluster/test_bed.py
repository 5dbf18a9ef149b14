# SPDX-License-Identifier: Apache-2.0
"""The simulated hosts themselves: apart from each other, on lines that can be cut and slowed, and gone at the end."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from bed import PREFIX, Bed
from ranks.launch import command_of

SEND = "import socket, sys; s = socket.create_connection((sys.argv[1], 5000)); [s.sendall(bytes(1 << 20)) for _ in range(4)]"
RECEIVE = """
import socket, sys
s = socket.create_server(("", 5000))
print("listening", flush=True)
c, _ = s.accept()
total = 0
while part := c.recv(1 << 20):
    total += len(part)
print(total)
"""


def on(bed, host, *command, **options):
    return subprocess.run(
        [*bed.enter(host), *command], capture_output=True, text=True, timeout=20, check=True, **options
    ).stdout


class Transfer:
    """4 MiB from host 0 to host 1, under way."""

    def __init__(self, bed):
        self._receiver = subprocess.Popen(
            [*bed.enter(1), sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True
        )
        assert self._receiver.stdout.readline() == "listening\n"
        self._began = time.monotonic()
        self._sender = subprocess.Popen([*bed.enter(0), sys.executable, "-c", SEND, bed.address(1)])

    def seconds(self):
        told, _ = self._receiver.communicate(timeout=30)
        assert self._sender.wait(10) == 0 and int(told) == 4 << 20
        return time.monotonic() - self._began


def until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """Another worker of pytest may make beds, too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def folders():
    return set(Path(tempfile.gettempdir()).glob(PREFIX + "*"))


@pytest.mark.commit
def test_hosts_have_little_in_common(tmp_path):
    with Bed(2) as bed:
        for host in 0, 1:
            assert on(bed, host, "hostname").strip() == bed.names[host]
            assert on(bed, host, "getent", "hosts", bed.names[1 - host]).split()[0] == bed.address(1 - host)
            on(bed, host, "touch", f"/dev/shm/of{host}")
            assert on(bed, host, "ls", "/dev/shm").split() == [f"of{host}"]
            assert "0x" not in on(bed, host, "ipcs", "--shmems")
            on(bed, host, "ipcmk", "--shmem", "4096")
        assert on(bed, 1, "sh", "-c", "echo here >common; pwd", cwd=tmp_path).strip() == str(tmp_path)
        assert on(bed, 0, "cat", "common", cwd=tmp_path) == "here\n"


def test_lines_have_a_rate_and_count():
    with Bed(3, rate="80mbit") as bed:
        before = [bed.counters(host) for host in range(3)]
        assert Transfer(bed).seconds() > 0.9 * (4 << 23) / 80e6
        source, target, other = (bed.counters(host) - before[host] for host in range(3))
        for payload in source.payload_sent, target.payload_received:
            assert 0.9999 < payload / (4 << 20) < 1.03  # ARP's packets are shorter than a TCP frame without a payload
        assert other.sent < 20_000 and other.received < 20_000
        bed.set_rate(1, "20mbit")
        assert Transfer(bed).seconds() > 0.9 * (4 << 23) / 20e6


def test_a_line_that_is_cut_and_comes_back():
    with Bed(2, rate="10mbit") as bed:  # seconds are left when it is cut
        transfer = Transfer(bed)
        until(lambda: bed.counters(1).received > 1 << 20)
        bed.cut(1)
        cut = bed.counters(1).received
        time.sleep(1)
        assert bed.counters(1).received < cut + 10_000 < 4 << 20  # the switch's own packets may come through
        bed.reconnect(1)
        assert transfer.seconds() > 1


@pytest.mark.usefixtures("own_folder")
def test_two_beds_at_once_and_nothing_is_left_of_them():
    before = folders()
    with Bed(2) as one, Bed(2) as other:
        assert not set(one.names) & set(other.names)
        assert Transfer(one).seconds() < 20 and Transfer(other).seconds() < 20
        assert other.counters(1).received > 4 << 20
        sleeper = subprocess.Popen([*one.enter(1), "setsid", "sleep", "1000"])
        until(lambda: [command_of(pid) for pid in one.processes(1)] == ["sleep 1000 "])
        pid = one.named("sleep", host=1)
        assert folders() > before
    assert sleeper.wait(10) != 0
    assert not Path(f"/proc/{pid}").exists() and folders() == before


@pytest.mark.usefixtures("own_folder")
def test_nothing_is_left_when_the_maker_is_killed():
    """All processes on the hosts end at once, and the next bed removes the folder."""
    make = (
        "import subprocess, time; from bed import Bed, _command; bed = Bed(2); bed.__enter__(); "
        "subprocess.Popen([*bed.enter(1), 'setsid', 'sleep', '1000'])\n"
        "while [_command(pid).split('/')[-1] for pid in bed.processes(1)] != ['sleep']: time.sleep(0.01)\n"
        "print(bed.names[0], *bed.processes(), *bed._pids, flush=True); time.sleep(1000)"
    )
    before = folders()
    maker = subprocess.Popen([sys.executable, "-c", make], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    _, *pids = maker.stdout.readline().split()
    assert len(pids) >= 3 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    maker.kill()
    maker.wait(10)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with Bed(1):
        assert len(folders() - before) == 1  # its own
