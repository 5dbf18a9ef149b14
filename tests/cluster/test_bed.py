# SPDX-License-Identifier: Apache-2.0
"""The simulated hosts themselves: apart from each other, and gone at the end.

test_faults.py cuts and slows their lines, and test_layouts.py compares the counters of the lines."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from bed import PREFIX, Bed
from ranks.launch import until


def on(bed, host, *command, **options):
    return subprocess.run(
        [*bed.enter(host), *command], capture_output=True, text=True, timeout=20, check=True, **options
    ).stdout


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
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)
    with Bed(1):
        assert len(folders() - before) == 1  # its own
