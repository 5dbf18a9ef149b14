# SPDX-License-Identifier: Apache-2.0
"""What horovod-data-run knows of an attempt: texts of mpirun, notes and signs of the ranks. How it supervises mpirun."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
from ranks.launch import until

from horovod_data.launcher import alive, hydra, notes, open_mpi, processes, supervisor
from horovod_data.launcher.command import Command
from horovod_data.launcher.hosts import Host
from horovod_data.launcher.restarts import Lost, Policy
from horovod_data.launcher.supervisor import Job, supervise

# ---- Texts of mpirun.


def test_what_mpirun_says_of_a_loss():
    assert open_mpi.lost("nothing") is None and hydra.lost("nothing") is None
    killed = "mpirun noticed that process rank 2 with PID 75 on node host1-a exited on signal 9 (Killed)."
    assert open_mpi.lost(killed) == Lost("rank 2 on host1-a was killed by signal 9", "host1-a")
    of_5 = killed.replace("mpirun", "prterun").replace("on signal", "on\nsignal")
    assert open_mpi.lost(of_5) == open_mpi.lost(killed)
    gone = "  HNP daemon   : [[40608,0],0] on node host0\n  Remote daemon: [[40608,0],2] on node host2\n"
    assert open_mpi.lost(gone) == Lost("the host host2 was lost", "host2", whole_host=True)


HYDRA = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 46 RUNNING AT node3
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
"""


def test_what_hydra_says_of_a_loss():
    """The texts are those of MPICH 4.0.2. Other versions write the first part after an exit with a status, too."""
    killed = HYDRA + "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\nThis typically refers to\n"
    assert hydra.lost(killed) == Lost("process 46 on node3 was killed by signal 9", "node3")
    assert hydra.lost(HYDRA) is None


# ---- Notes of the ranks.


@pytest.fixture
def folder(tmp_path):
    """Of the notes of attempt 1."""
    os.makedirs(made := notes.folder_of(str(tmp_path), 1))
    return made


def environ(folder, rank=1, attempt="1"):
    return {"HOROVOD_DATA_STATE": str(folder), "HOROVOD_DATA_ATTEMPT": attempt, "OMPI_COMM_WORLD_RANK": str(rank)}


def test_notes(tmp_path, folder):
    writers = [notes.Writer(environ(tmp_path, rank)) for rank in range(4)]
    for writer in writers:
        writer.begin()
    assert notes.read(folder) == (4, [])
    writers[2].fail(1, ValueError("no\nsuch file " + "x" * 1000))
    writers[2].fail(7)  # the first failure counts
    os.utime(next(os.path.join(folder, name) for name in os.listdir(folder) if "rank 2" in name), (0, 0))
    writers[0].fail(7, SystemExit(7))
    begun, (first, second) = notes.read(folder)
    assert begun == 4 and first.who.startswith("rank 2 on ") and first.text.startswith("ValueError: no such file xxx")
    assert (len(first.text), first.status, second.text, second.status) == (300, 1, "exit status 7", 7)


LIMIT = (
    "{{function_node __wrapped__Gather}} gather "
    + "x" * 300
    + "; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)"
)


@pytest.mark.parametrize("error, follows", [
    (RuntimeError("rank 2 on a (process 7) has died at step 3"), True),
    (TimeoutError(LIMIT), True),
    (RuntimeError("serve(): a process of the job was lost while this reader served."), True),
    (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
    (RuntimeError("Mismatched allreduce tensor shapes"), False),
])  # fmt: skip
def test_errors_that_follow_a_loss(tmp_path, folder, error, follows):
    notes.Writer(environ(tmp_path)).fail(1, error)
    _, (failure,) = notes.read(folder)
    assert failure.follows == follows and not failure.text.startswith("TimeoutError: {{")


def test_a_note_that_can_not_be_written_or_read(tmp_path, folder):
    """The directory of --state is not there, or a rank was killed while it wrote."""
    notes.Writer(environ(tmp_path / "none")).begin()
    notes.Writer({}).fail(1)
    assert not (tmp_path / "none").exists() and notes.read(str(tmp_path / "none")) == notes.read(folder) == (0, [])
    for name, text in (("rank 1 on a.json", "{"), ("rank 2 on a.json.new", json.dumps({"who": "rank 2 on a"}))):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    assert notes.read(folder) == (0, [])


def test_attempts_are_counted_over_launchers(tmp_path):
    assert notes.last_attempt(str(tmp_path / "none")) == 0
    for attempt in (1, 9, 10):
        os.makedirs(notes.folder_of(str(tmp_path / "state"), attempt))
    assert notes.last_attempt(str(tmp_path / "state")) == 10
    notes.remove_all(str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


RANK = [sys.executable, "-m", "horovod_data.launcher.rank", "-c"]
AGREES = "from horovod_data.ending import exit_status\nexit_status.end_together(75)\n"


@pytest.mark.parametrize("program, statuses", [("", [75]), (AGREES, [])], ids=["alone", "together"])
def test_the_note_of_a_rank_that_leaves(tmp_path, folder, program, statuses):
    """A rank that leaves together with all others has not failed."""
    env = {**os.environ, **environ(tmp_path)}
    done = subprocess.run([*RANK, f"{program}raise SystemExit(75)"], env=env, check=False)
    begun, failures = notes.read(folder)
    assert (done.returncode, begun, [failure.status for failure in failures]) == (75, 1, statuses)


# ---- The supervisor, with a shell script instead of mpirun.


def supervised(state, script, lost=lambda text: None, restarts=3, names_on_stdout=False, limit=0.0):
    words = ["bash", "-c", script, "bash", str(state)]
    here = (Host("localhost", 1),)
    command, probe = (lambda *_: (Command(words), "")), (lambda _: Command([]))
    job = Job(str(state), here, frozenset(["localhost"]), 60.0, command, probe, lost, names_on_stdout, limit)
    return supervise(job, Policy(1, 1, restarts, 100.0, 75))


def saves(number, **about):
    manifest = json.dumps({"format": 1, "parts": [{}], "about": about})
    return f"mkdir -p $1/set-0000000{number}/part-0; echo '{manifest}' >$1/set-0000000{number}/set.json; "


def test_a_job_that_has_ended_leaves_nothing(tmp_path):
    """A loss after the last step finds the sets. After status 0 the launcher removes them, if the training is over."""
    state = tmp_path / "state"
    assert supervised(state, saves(1, step=5)) == 0 and os.listdir(state) == ["set-00000001"]
    assert supervised(state, saves(2, over=True) + "exit 1", restarts=0) == 1
    assert sorted(os.listdir(state)) == [".run", "set-00000001", "set-00000002"]
    assert supervised(state, "exit 0") == 0 and not state.exists()


def test_a_lost_host_after_which_mpirun_ends_with_status_0(tmp_path, capfd):
    """Open MPI 5 does. The sets of the attempt stay."""
    gone = "PRTE has lost communication with a remote daemon.\n  Remote daemon: [prterun-a-21@0,1] on node b"
    script = saves(1, over=True) + f"echo '{gone}' >&2; exit 0"
    assert supervised(tmp_path, script, open_mpi.lost, restarts=1) == 1
    assert "horovod-data-run: the host b was lost. Attempt 2 starts from set-00000001: " in capfd.readouterr().err
    assert (tmp_path / "set-00000001").exists()


def test_an_error_while_the_ranks_leave_is_named(tmp_path, capfd):
    """mpirun's process asks the launcher, and then fails as a rank does whose disk is full."""
    note = json.dumps({"who": "rank 1 on a", "status": 1, "text": "OSError: disk full", "follows": False})
    script = f"trap : USR1; kill -USR1 $PPID; sleep 0.5; echo '{note}' >\"$1/.run/attempt-1/rank 1 on a.json\"; exit 1"
    assert supervised(tmp_path, script) == 1
    assert "horovod-data-run: rank 1 on a failed (OSError: disk full). " in capfd.readouterr().err


def test_a_rank_that_gives_no_sign_of_life(tmp_path, capfd):
    """The rank counts as a lost process and is restarted, whatever mpirun's status is after SIGTERM."""
    touched = '"$1/.run/attempt-$(ls $1/.run | grep -c attempt)/rank 1 on a.alive"'
    script = f"trap 'exit 75' TERM; for i in 1 2 3 4; do touch {touched}; sleep 0.3; done; sleep 100 & wait"
    assert supervised(tmp_path, script, restarts=1, limit=1.0) == 1
    text = capfd.readouterr().err
    assert text.count("rank 1 on a has given no sign of life for 1 s. Attempt 2 starts") == 1, text


def test_signs_of_life(tmp_path, folder):
    """The signs of life end when the rank is stopped, or when another program replaces its program."""
    signs = lambda: any(name.endswith(".alive") for name in os.listdir(folder))
    program = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.1)\nos.execvp('sleep', ['sleep', '60'])"
    env = {**os.environ, **environ(tmp_path), "HOROVOD_DATA_TIMEOUT": "2"}
    with subprocess.Popen([*RANK, program], env=env) as rank:
        try:
            watch = alive.Watch(folder, 2.0)
            assert until(signs, 30)
            end = time.monotonic() + 4
            while time.monotonic() < end:
                assert watch.silent() is None
                time.sleep(0.1)
            rank.send_signal(signal.SIGSTOP)
            found = []
            assert until(lambda: found.append(watch.silent()) or any(found), 30)
            assert any((one or "").startswith("rank 1 on ") for one in found)
            rank.send_signal(signal.SIGCONT)
            (tmp_path / "go").touch()
            assert until(lambda: not signs(), 30)
        finally:
            rank.kill()


def test_a_job_that_was_suspended_goes_on(tmp_path, monkeypatch):
    """Slurm may stop the launcher and all ranks for a long time. The launcher may run again before the ranks do."""
    clock = [0.0]
    monkeypatch.setattr(alive, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    (tmp_path / "rank 1 on a.alive").touch()
    watch = alive.Watch(str(tmp_path), 10.0)
    assert watch.silent() is None
    clock[0] += 1000.0
    assert watch.silent() is None
    found = []
    while not any(found) and len(found) < 20:
        clock[0] += 1.0
        found.append(watch.silent())
    assert found == [None] * 11 + ["rank 1 on a"]


def test_a_rank_without_a_thread_for_its_signs(tmp_path, monkeypatch):
    """The rank's program runs, and the launcher does not watch it."""

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    alive.Sign(str(tmp_path), "rank 1 on a", 10.0)
    assert os.listdir(tmp_path) == []


def of_three_hosts(folder):
    """A supervisor that runs on the host a. A probe is the names of its hosts."""
    hosts = (Host("a", 2), Host("b", 2), Host("c", 2))
    probe = lambda chosen: [host.name for host in chosen]
    job = Job(str(folder), hosts, frozenset(["a"]), 60.0, lambda *_: None, probe, lambda text: None, False, 0.0)
    return supervisor._Supervisor(job, Policy(4, 4, 3, 100.0, 75), -1, -1)


@pytest.mark.parametrize("seconds, late, found, took", [
    ({"b": 0.5, "c": 3.5}, "c", "bc", 3.5), ({"b": 0.5, "c": 4.5}, "c", "b", 4.0), ({"b": 6.0, "c": 99.0}, "c", "b", 6.0),
    ({"b": 6.0, "c": 9.0}, "", "bc", 9.0), ({"b": 99.0, "c": 99.0}, "c", "", 10.0), ({"b": 9.5, "c": 99.0}, "c", "b", 9.5),
])  # fmt: skip
def test_how_long_a_host_may_take_to_answer(tmp_path, monkeypatch, seconds, late, found, took):
    """A host that was just lost gets 4 seconds, or the time of the others. All others get 10 seconds."""
    each, clock, step = of_three_hosts(tmp_path), [0.0], 0.25

    class Probe:
        def __init__(self, names, _):
            self.pid, self._end = 0, max(seconds[name] for name in names)

        def poll(self):
            return 0 if clock[0] >= self._end else None

        returncode = property(poll)
        wait = poll

    monkeypatch.setattr(supervisor.processes, "start", Probe)
    monkeypatch.setattr(supervisor.os, "killpg", lambda *_: None)
    monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(each, "_listen", lambda left: clock.append(clock.pop() + min(step, left)))
    assert each._probe([[Host("c", 2)], [Host("b", 2)]], late) == set(found) and clock == [took]


def test_a_host_that_is_left_out_does_not_hurry_others(tmp_path, monkeypatch):
    """The slots of the host that is left out don't count. So the job may need the host that answers late."""
    each, asked = of_three_hosts(tmp_path), []
    each._suspects = {"c"}
    monkeypatch.setattr(each, "_probe", lambda groups, late=(): asked.append(set(late)) or {"b", "c"})
    each._answering(frozenset())
    each._suspects = {"c"}
    each._answering(frozenset(["b"]))
    assert asked == [{"c"}, set()]


def test_a_signal_does_not_delay_the_end_of_a_silent_attempt(tmp_path, capfd, monkeypatch):
    """mpirun outlasts SIGTERM. SIGKILL ends it, although the grace time is a minute."""
    monkeypatch.setattr(supervisor, "_END_SECONDS", 2.0)
    touched = '"$1/.run/attempt-1/rank 1 on a.alive"'
    script = f"trap 'kill -USR1 $PPID' TERM; touch {touched}; while :; do sleep 0.1; done"
    begin = time.monotonic()
    assert supervised(tmp_path, script, restarts=0, limit=1.0) == 1
    assert time.monotonic() - begin < 30 and "SIGUSR1: the ranks are to save and leave" in capfd.readouterr().err


def test_what_hydra_writes_to_stdout(tmp_path, capfd):
    """The launcher passes Hydra's text on, and finds the lost process in it."""
    script = f"echo AN ERROR >&2; cat <<'END'\nSAID{HYDRA}THE EXIT STRING: Killed (signal 9)\nEND\nexit 9"
    assert supervised(tmp_path, script, hydra.lost, restarts=1, names_on_stdout=True) == 9
    out, err = capfd.readouterr()
    assert out == f"SAID{HYDRA}THE EXIT STRING: Killed (signal 9)\n" * 2 and err.count("AN ERROR\n") == 2
    assert "horovod-data-run: process 46 on node3 was killed by signal 9. Attempt 2 starts" in err


def test_output_that_nobody_reads_does_not_hold_up_a_signal(tmp_path):
    """The ranks have filled the pipe of stderr. The signal still reaches mpirun."""
    program = "import test_launcher_supervisor as tests, sys; sys.exit(tests.supervised(sys.argv[1], sys.argv[2]))"
    script = 'trap "touch $1/came; exit 75" USR1; touch "$1/up"; yes >&2 & wait'
    words = [sys.executable, "-c", program, tmp_path, script]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=env) as launcher:
        assert until(lambda: (tmp_path / "up").exists(), 30)
        time.sleep(0.5)  # the pipe is full
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.wait(30) == 75 and (tmp_path / "came").exists()


def test_the_lock_outlasts_a_killed_launcher(tmp_path):
    """mpirun holds it until it has ended the ranks."""
    with notes.locked(str(tmp_path)) as lock:
        mpirun = processes.start(Command(["sleep", "1"]), subprocess.DEVNULL, kept=[lock])
    assert mpirun.poll() is None
    with notes.locked(str(tmp_path)):
        assert mpirun.wait(1) == 0
