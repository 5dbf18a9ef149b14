# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run with the real mpirun: which processes run, with which environment, and how a job ends."""

import re
import signal
import subprocess
import sys

import pytest
from launched import LAUNCHER, WITHOUT_LIBRARY, environment, run_launcher, start_launcher
from ranks.launch import open_mpi
from table import PROGRAMS

pytestmark = pytest.mark.limit(150)


@pytest.fixture
def script(tmp_path):
    """Writes a program, which knows its `rank`, and returns the words that start it."""

    def write(text: str) -> list[str]:
        path = tmp_path / "train.py"
        path.write_text(WITHOUT_LIBRARY + text)
        return [sys.executable, str(path)]

    return write


@pytest.mark.commit("rank 0 reads")
@pytest.mark.parametrize("options, arguments, who", [
    pytest.param([], ["--readers", "5"], ["0 reader trainer 0 2 devices: 0,1 ['--readers', '5']",
                                          "1  trainer 1 2 devices: 0,1 ['--readers', '5']"], id="rank 0 reads"),
    pytest.param(["--readers", "1", "--"], [], ["0  trainer 0 2 devices: 0,1 []", "1  trainer 1 2 devices: 0,1 []",
                                                "2 reader  None None devices:  []"], id="dedicated"),
])  # fmt: skip
def test_who_reads(script, options, arguments, who):
    """A dedicated reader has no devices. Arguments of the program are not the launcher's."""
    words = script("""
import horovod_data as hvdata
hvdata.init()
say("WHO", rank, "reader" if hvdata.is_reader() else "", "trainer" if hvdata.is_trainer() else "",
      hvdata.rank(), hvdata.size(), "devices:", os.environ.get("CUDA_VISIBLE_DEVICES"), sys.argv[1:])
hvdata.serve()
""")
    job = run_launcher("-np", "2", *options, *words, *arguments, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert job.lines("WHO") == who, job.output


@pytest.mark.commit("variables")
@pytest.mark.parametrize("options, env, shown, sees", [
    pytest.param([], {"HOROVOD_DATA_READERS": "1"}, ["HOROVOD_DATA_READERS"], ["1", "1"], id="readers of the environment"),
    pytest.param(["--readers", "0"], {"HOROVOD_DATA_READERS": "1"}, ["HOROVOD_DATA_READERS"], ["0"], id="an option wins"),
    pytest.param(["--readers", "1", "-x", "A", "-x", "B=with space"], {"A": "from here"}, ["A", "B"],
                 ["from here with space"] * 2, id="variables"),
    pytest.param(["--cycle-time-ms", "3.5", "--config-file", "config.yaml"], {},
                 ["HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"], [f"{16 << 20} 3.5"], id="horovodrun's options",
                 marks=pytest.mark.horovod),
])  # fmt: skip
def test_what_a_rank_sees_of_the_environment(script, tmp_path, options, env, shown, sees):
    (tmp_path / "config.yaml").write_text("params:\n  fusion_threshold_mb: 16\n")
    words = script(f"say('SEES', *[os.environ[name] for name in {shown}])")
    job = run_launcher("-np", "1", *options, *words, env=env, cwd=tmp_path)
    assert job.lines("SEES") == sees, job.output


def test_without_stdout_or_stderr(script, tmp_path):
    """The job runs even if the launcher has no stdout or stderr, for example under a daemon."""
    words = [*LAUNCHER, "-np", "2", "--progress", *script(f"open({str(tmp_path)!r} + f'/ran{{rank}}', 'w')")]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words], env=environment({}), timeout=100)
    assert done.returncode == 0 and {path.name for path in tmp_path.glob("ran*")} == {"ran0", "ran1"}


def test_any_command_can_be_started_and_its_output_tagged(tmp_path):
    job = run_launcher("-np", "2", "--tag-output", "sh", "-c", 'echo "SAYS $0"', "hello")
    for rank in (0, 1):
        assert re.search(rf"^\[.*{rank}\].*SAYS hello$", job.output, re.MULTILINE), job.output


@pytest.mark.parametrize("option", ["--binding-args=--bind-to none", "--mpi-args=--map-by node"])
def test_a_reader_needs_no_slot_where_the_user_maps(tmp_path, option):
    """In Kubernetes and under Slurm, Open MPI counts the slots itself, so the launcher must leave them alone."""
    if not open_mpi():
        pytest.skip("these are options of Open MPI's")
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    env = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts")}
    job = run_launcher("--readers", "1", option, "sh", "-c", "echo RUNS", env=env)
    assert job.lines("RUNS") == ["", ""], job.output


@pytest.mark.commit
def test_output_in_files(script, tmp_path):
    run_launcher("-np", "2", "--output-filename", str(tmp_path / "out"), *script('say("rank", rank)'))
    texts = [path.read_text() for path in sorted((tmp_path / "out").rglob("*stdout*")) if path.is_file()]
    assert texts == ["rank 0\n", "rank 1\n"]


# ---- A rank that fails. MPI is started before it or not. The others wait for ever.

FAILS = """
{before}
if rank == 1:
    time.sleep(1)
    {end}
{others}
time.sleep(1000)
"""
MPI4PY = "from mpi4py import MPI"
HVD = "import horovod.tensorflow as hvd; hvd.init()"
HVDATA = "import horovod_data as hvdata; hvdata.init()"


@pytest.mark.commit("SIGKILL")
@pytest.mark.horovod
@pytest.mark.parametrize("before, end, statuses, said, others", [
    ("", "sys.exit(3)", {3}, "", ""),
    ("", "raise ValueError('no such file')", {1}, "ValueError: no such file", ""),
    ("", "sys.exit(3)", {3}, "", HVDATA),  # the others wait in init()
    ("", "1 / 0", {1}, "", HVDATA),
    (MPI4PY, "sys.exit(3)", {3}, "", ""),
    (MPI4PY, "raise ValueError('no such file')", {1}, "ValueError: no such file", ""),
    (MPI4PY, "os._exit(7)", {7}, "", ""),
    (HVD, "raise SystemExit(6)", {6}, "", ""),
    (HVDATA, "raise ValueError('no such file')", {1}, "ValueError: no such file", ""),
    pytest.param(HVDATA, "os.kill(os.getpid(), 9)", {137, 9}, "", "", id="SIGKILL"),
    (HVDATA, "os.kill(os.getpid(), 11)", {139, 11}, "", ""),
    # Hydra would end the other ranks with status 0.
    (MPI4PY, "os._exit(0)", {1}, "" if open_mpi() else "a rank left by os._exit(0) without MPI_Finalize: that is an error", ""),
    (HVDATA, "os._exit(0)", {1}, "", ""),
])  # fmt: skip
def test_one_rank_fails(script, before, end, statuses, said, others):
    job = run_launcher("-np", "3", *script(FAILS.format(before=before, end=end, others=others)), status=None)
    assert job.returncode in statuses and said in job.output and job.seconds < 60, job.output


def test_a_shell_script_may_have_its_program_run_by_ours(script):
    words = script(FAILS.format(before=MPI4PY, end="sys.exit(3)", others=""))
    job = run_launcher("-np", "2", "sh", "-c", 'exec "$0" -m horovod_data.launcher.rank "$1"', *words, status=3)
    assert job.seconds < 60, job.output


def test_two_ranks_fail_and_the_first_one_counts(script):
    run_launcher("-np", "3", *script("time.sleep(8 * rank)\nsys.exit(3 + rank)"), status=3)


@pytest.mark.parametrize("before", [
    "from mpi4py import MPI; MPI.Finalize()", "", "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI",
], ids=["after MPI", "without MPI", "MPI loaded"])  # fmt: skip
def test_leaving_by_os_exit_is_no_error_outside_of_mpi(script, before):
    words = script(f"{before}\nif rank == 0:\n    os._exit(0)\ntime.sleep(3)\nsay('WENT ON', rank)")
    job = run_launcher("-np", "2", *words)
    assert job.lines("WENT ON") == ["1"], job.output
    assert "MPI_Finalize" not in job.output


def test_a_program_that_is_asked_for_help_needs_no_init():
    job = run_launcher("-np", "2", sys.executable, str(PROGRAMS / "before_init.py"), "--help")
    assert "usage: before_init.py" in job.output and "horovod_data: " not in job.output, job.output


@pytest.mark.parametrize("end, status", [("os._exit(0)", 0), ("sys.exit(3)", 3), ("raise ValueError('of a child')", 1)])
def test_a_forked_child_leaves_as_it_likes(script, end, status):
    words = script(f"""
from mpi4py import MPI
child = os.fork()
if child == 0:
    {end}
ended = os.waitpid(child, 0)[1]
time.sleep(2)  # the child does not end the job
say("CHILD", os.waitstatus_to_exitcode(ended))
""")
    job = run_launcher("-np", "2", *words)
    assert job.lines("CHILD") == [str(status)] * 2, job.output


@pytest.mark.parametrize("before, number, everybody", [
    ("", signal.SIGINT, True), ("", signal.SIGTERM, False), (HVDATA, signal.SIGINT, False), (HVDATA, signal.SIGINT, True),
    (HVDATA, signal.SIGTERM, False),
])  # fmt: skip
def test_signals_end_every_rank(script, before, number, everybody):
    """Signals to the launcher, or to all its processes, as a terminal sends them."""
    with start_launcher("-np", "2", "--readers", "1", *script(f"{before}\nsay('UP')\ntime.sleep(1000)")) as job:
        job.wait_for("UP", times=3, timeout=100)
        job.send(number, everybody)
        assert job.finish(30) != 0, job.output


@pytest.mark.commit
def test_a_killed_launcher_leaves_nobody(script):
    with start_launcher("-np", "2", *script(f"{HVDATA}\nsay('UP')\ntime.sleep(1000)"), left=30) as job:
        job.wait_for("UP", times=2, timeout=100)
        job.send(signal.SIGKILL)
        assert job.finish(30) != 0


# ---- The program runs as plain Python would run it.

PROGRAM = """
import __main__, json, os, sys
def here(number: int): pass
first = os.path.realpath(sys.path[0] or os.getcwd())
print("RUNS", json.dumps([__name__, __main__.here is here, here.__module__, globals().get("__file__"), sys.argv, first,
                          repr(here.__annotations__)]))
"""


@pytest.mark.parametrize("words", [
    ["train.py", "--lr", "1"], ["-u", "package/train.py"], ["-m", "package.train", "a"], ["package", "a"], ["-c", PROGRAM, "a"],
    ["-umpackage.train", "a"], ["-I", "train.py"], ["-Ic" + PROGRAM],
], ids=["file", "folder/file", "module", "folder", "code", "glued module", "isolated file", "isolated code"])  # fmt: skip
def test_the_program_sees_what_plain_python_shows(tmp_path, words):
    (tmp_path / "package").mkdir()
    for name in "train.py", "package/__init__.py", "package/train.py", "package/__main__.py":
        (tmp_path / name).write_text(PROGRAM if name != "package/__init__.py" else "")
    plain = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    job = run_launcher("-np", "1", sys.executable, *words, cwd=tmp_path)
    assert job.lines("RUNS") == [plain.removeprefix("RUNS").strip()], job.output


@pytest.mark.parametrize("words", [[], ["-m"], ["-c"]], ids=repr)
def test_no_program(words):
    command = [sys.executable, "-m", "horovod_data.launcher.rank", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=170)
    usage = "usage: python -m horovod_data.launcher.rank FILE | -m MODULE | -c CODE [ARGUMENTS...]\n"
    assert ran.returncode == 2 and ran.stderr == usage, ran.stderr


def test_spawned_processes_and_exit_handlers(script):
    words = script("""
import atexit, multiprocessing

def square(x):
    return x * x

def last():
    import __main__
    print("RUNS last", __main__.square(3))

if __name__ == "__main__":
    atexit.register(last)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("RUNS", pool.map(square, [1, 2]))
""")
    job = run_launcher("-np", "1", *words)
    assert job.lines("RUNS") == ["[1, 4]", "last 9"], job.output
