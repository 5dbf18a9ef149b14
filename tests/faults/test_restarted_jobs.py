# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run --state: jobs that go on after a loss, and jobs that are asked to save and leave."""

import re
import signal
import sys

import pytest
import restarted
from launched import WITHOUT_LIBRARY, run_launcher, start_launcher
from ranks.launch import open_mpi

pytestmark = pytest.mark.limit(240)

AGAIN = re.compile(r"^horovod-data-run: (.*)\. Attempt (\d) starts (.*?): ", re.MULTILINE)


def test_killed_ranks_in_mid_epoch(tmp_path):
    """The job goes on from the last set. All rows are trained, in the order of an undisturbed job."""
    words = restarted.write(tmp_path)
    state = ["-np", "3", "--state", str(tmp_path / "state"), "--max-restarts", "3"]
    job = run_launcher(*state, sys.executable, *words, "1:2:6:SIGKILL,2:0:17:SIGKILL", "0", timeout=150)
    assert job.output.count("in attempt 3") == 3, job.output
    lost, attempts, starts = zip(*AGAIN.findall(job.output))
    # Hydra names the process alone.
    wanted = [f"rank {rank} on .* was" if open_mpi() else r"process \d+ on .* was" for rank in (2, 0)]
    assert all(re.fullmatch(f"{one} killed by signal 9", what) for one, what in zip(wanted, lost)), lost
    assert attempts == ("2", "3") and starts[0].startswith("from epoch 0, step 4 (set-0000"), starts
    restarted.check(tmp_path, {1: 0, 2: 4, 3: 16})
    assert not (tmp_path / "state").exists()


def test_a_rank_that_is_killed_after_the_training(tmp_path):
    """The next attempt makes no step. The launcher removes the sets at the end of the job."""
    words = restarted.write(tmp_path)
    state = ["-np", "2", "--state", str(tmp_path / "state"), "--max-restarts", "3"]
    job = run_launcher(*state, sys.executable, *words, "1:1:end:SIGKILL", "0", timeout=150)
    assert job.output.count("in attempt 2") == 2, job.output
    assert [start[:27] for _, _, start in AGAIN.findall(job.output)] == ["from epoch 2, step 0 (set-0"], job.output
    restarted.check(tmp_path, {1: 0})
    assert not (tmp_path / "state").exists()


def test_a_signal_saves_and_the_next_launcher_goes_on(tmp_path):
    """The job has a dedicated reader."""
    words = restarted.write(tmp_path)
    options = ["-np", "2", "--readers", "1", "--state", str(tmp_path / "state"), "--max-restarts", "3", sys.executable]
    with start_launcher(*options, *words, "", "0.2") as job:
        job.wait_until(lambda: 5 in restarted.trained(tmp_path).get(1, {}), "no rank has made step 5")
        job.send(signal.SIGTERM)
        assert job.finish(60) == 75, job.output
    first = max(restarted.trained(tmp_path)[1]) + 1
    job = run_launcher(*options, *words, "", "0", timeout=150)
    assert job.output.count("in attempt 2") == 2, job.output
    restarted.check(tmp_path, {1: 0, 2: first})
    assert not (tmp_path / "state").exists()


def test_a_rank_that_is_stopped_for_good(tmp_path):
    """The other rank waits for the stopped rank in a collective of MPI, without a limit. The launcher has a limit.

    Open MPI lets the rank go on before it ends it, so the ranks may make some more steps, and save a set.
    """
    words = restarted.write(tmp_path)
    state = ["-np", "2", "--state", str(tmp_path / "state"), "--max-restarts", "1"]
    env = {"HOROVOD_DATA_TIMEOUT": "20"}
    job = run_launcher(*state, sys.executable, *words, "1:1:6:SIGSTOP", "0.2", env=env, timeout=180)
    assert job.output.count("in attempt 2") == 2, job.output
    ((lost, _, start),) = AGAIN.findall(job.output)
    assert re.fullmatch("rank 1 on .* has given no sign of life for 20 s", lost), lost
    assert "set-" in start, start
    restarted.check(tmp_path, {1: 0, 2: max(4, min(restarted.trained(tmp_path)[2]))})


# ---- Without the library, so that a job takes a second.

PLAIN = """
import signal
state, attempt = os.environ["HOROVOD_DATA_STATE"], int(os.environ["HOROVOD_DATA_ATTEMPT"])
def save(number, step):  # a set, as the library makes it
    os.makedirs(f"{state}/set-{number:08}/part-0", exist_ok=True)
    with open(f"{state}/set-{number:08}/set.json", "w") as file:
        file.write('{"format": 1, "parts": [{}], "about": {"epoch": 0, "step": %d}}' % step)
"""


@pytest.fixture
def words(tmp_path):
    """Writes a program, and returns the words behind the launcher's options."""

    def write(text, restarts=3, np=2):
        (tmp_path / "plain.py").write_text(WITHOUT_LIBRARY + PLAIN + text)
        options = ["-np", str(np), "--state", str(tmp_path / "state"), "--max-restarts", str(restarts)]
        return [*options, sys.executable, str(tmp_path / "plain.py")]

    return write


@pytest.mark.parametrize("end, status, said", [
    ("raise ValueError('no such file')", 1, "rank 1 on .* failed .ValueError: no such file.. .* no set was saved: no restart"),
    ("sys.exit(7)", 7, "rank 1 on .* failed .exit status 7.. This is the program's own error"),
    ("sys.exit(75)", 75, "rank 1 on .* failed .exit status 75.. This is the program's own error"),
    ("os._exit(8)", 8, "rank 1 on .* failed .exit status 8."),
])  # fmt: skip
def test_a_programs_error_without_a_set(words, end, status, said):
    job = run_launcher(*words(f"say('UP')\nif rank == 1:\n    {end}\ntime.sleep(100)"), status=status)
    assert job.output.count("UP") <= 2 and re.search(said, job.output), job.output


def test_a_programs_error_is_restarted_once_at_the_same_step(words):
    program = "say('UP')\nif rank == 1:\n    save(1, 5)\n    1 / 0\ntime.sleep(100)"
    job = run_launcher(*words(program), status=1)
    assert len(AGAIN.findall(job.output)) == 1, job.output
    assert "The program has failed twice after epoch 0, step 5 (set-00000001): no restart" in job.output, job.output


SAVES = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(int(os.environ['HOROVOD_DATA_LEAVE_STATUS'])))"


@pytest.mark.commit("SIGTERM")
@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGTERM, id="SIGTERM"), pytest.param(signal.SIGUSR1, id="SIGUSR1")
])  # fmt: skip
def test_a_signal_asks_the_ranks_to_leave(words, number):
    with start_launcher(*words(f"{SAVES}\nsay('UP')\ntime.sleep(100)")) as job:
        job.wait_for("UP", times=2)
        job.send(number)
        assert job.finish(30) == 75, job.output
    assert f"horovod-data-run: {number.name}: the ranks are to save and leave" in job.output
    assert not AGAIN.search(job.output)


def test_ranks_that_do_not_leave_are_ended(words):
    with start_launcher("--grace-seconds", "2", *words("say('UP')\ntime.sleep(100)")) as job:
        job.wait_for("UP", times=2)
        job.send(signal.SIGTERM)
        assert job.finish(30) not in (0, 75), job.output


def test_ctrl_c_is_the_end(words):
    with start_launcher(*words("say('UP')\ntime.sleep(100)")) as job:
        job.wait_for("UP", times=2)
        job.send(signal.SIGINT, everybody=True)
        assert job.finish(30) not in (0, 75) and not AGAIN.search(job.output), job.output


def test_a_signal_between_two_attempts(words):
    """No rank runs. If there is a set, the next job goes on from it."""
    program = "save(1, 5)\nif rank == 1:\n    os.kill(os.getpid(), 9)\ntime.sleep(100)"
    with start_launcher(*words(program, restarts=100)) as job:
        job.wait_for("Attempt 3 starts")
        job.wait_for("noticed that process rank" if open_mpi() else "BAD TERMINATION", times=3)
        job.send(signal.SIGUSR1)  # in the pause of 4 seconds, or just before
        assert job.finish(30) == 75, job.output


def test_a_killed_launcher_leaves_nobody(words):
    with start_launcher(*words("say('UP')\ntime.sleep(1000)"), left=30) as job:
        job.wait_for("UP", times=2)
        job.send(signal.SIGKILL)
        assert job.finish(30) != 0


def test_a_launcher_that_follows_a_killed_one_at_once(words):
    """The ranks of the second launcher begin after those of the killed launcher have ended.

    The killed launcher's ranks outlast SIGTERM for a second. Hydra does not kill ranks that ignore SIGTERM. Then the
    second launcher refuses.
    """
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if attempt == 1:
    with open(f"{state}/pid-{rank}", "w") as file:
        file.write(str(os.getpid()))
    say("UP")
    time.sleep(1000)
for of in 0, 1:
    with open(f"{state}/pid-{of}") as file:
        status = f"/proc/{file.read()}/status"
    say("THERE" if os.path.exists(status) and "State:\\tZ" not in open(status).read() else "GONE")
"""
    with start_launcher(*words(program)) as job:
        job.wait_for("UP", times=2)
        job.send(signal.SIGKILL)
        other = run_launcher(*words(program), status=None)
    if open_mpi():
        assert other.returncode == 0 and other.output.count("GONE") == 4, other.output
    else:
        assert other.returncode == 2 and "another horovod-data-run uses this directory" in other.output, other.output


def test_two_launchers_and_one_directory(words):
    program = words("say('UP')\ntime.sleep(100)")
    with start_launcher(*program) as job:
        job.wait_for("UP", times=2)
        other = run_launcher(*program, status=2)
        assert "another horovod-data-run uses this directory" in other.output, other.output


def test_a_directory_that_the_ranks_do_not_share(tmp_path):
    """The ranks find this out. The launcher does not try again."""
    program = tmp_path / "unshared.py"
    program.write_text(
        "import os, runpy, sys\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ.get('PMI_RANK')\n"
        "if rank == '1':\n    os.environ['HOROVOD_DATA_STATE'] += '-of-1'\n"
        "sys.argv[:] = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    words = restarted.write(tmp_path)
    state = ["-np", "2", "--state", str(tmp_path / "state"), "--max-restarts", "3"]
    job = run_launcher(*state, sys.executable, str(program), *words, "", "0", timeout=150, status=1)
    assert not AGAIN.search(job.output), job.output
    assert "rank 1 does not see the directory" in job.output and "no set was saved: no restart" in job.output, (
        job.output
    )


def test_output_in_files_has_a_folder_for_each_attempt(words, tmp_path):
    program = "say('SAID', attempt)\nif rank == 1 and attempt == 1:\n    time.sleep(1)\n    os.kill(os.getpid(), 9)"
    run_launcher("--output-filename", str(tmp_path / "out"), *words(program))
    for attempt, folder in ((1, tmp_path / "out"), (2, tmp_path / "out" / "attempt-2")):
        texts = [path.read_text() for path in folder.rglob("*stdout*") if path.is_file()]
        assert f"SAID {attempt}\n" in texts, (folder, texts)
