# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run with the real mpirun: who runs, with which environment, and how a job ends in good and bad days."""

import functools
import signal
import subprocess
import sys

import launched
import pytest
from launched import start_launcher
from ranks.launch import open_mpi

run_launcher = functools.partial(launched.run_launcher, timeout=120)  # for a machine under load: most take 5 s
pytestmark = pytest.mark.limit(150)

RANK = """
import os, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK"))
def say(*words):  # in one piece: print writes the end of the line apart
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


@pytest.fixture
def script(tmp_path):
    """Writes a program, whose `rank` is the process's, and returns the words that start it."""

    def write(text: str) -> list[str]:
        path = tmp_path / "train.py"
        path.write_text(RANK + text)
        return [sys.executable, str(path)]

    return write


WHO = """
import horovod_data as hvdata
hvdata.init()
say("WHO", rank, "reader" if hvdata.is_reader() else "", "trainer" if hvdata.is_trainer() else "",
      hvdata.rank(), hvdata.size(), "devices:", os.environ.get("CUDA_VISIBLE_DEVICES"), sys.argv[1:])
hvdata.serve()
"""


@pytest.mark.commit
def test_rank_0_reads(script):
    job = run_launcher("-np", "2", *script(WHO), "--readers", "5", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert job.returncode == 0, job.output
    assert job.lines("WHO") == [
        "0 reader trainer 0 2 devices: 0,1 ['--readers', '5']",
        "1  trainer 1 2 devices: 0,1 ['--readers', '5']",
    ], job.output


def test_a_dedicated_reader_has_no_devices(script):
    job = run_launcher("-np", "2", "--readers", "1", "--", *script(WHO), env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert job.returncode == 0, job.output
    assert job.lines("WHO") == [
        "0  trainer 0 2 devices: 0,1 []",
        "1  trainer 1 2 devices: 0,1 []",
        "2 reader  None None devices:  []",
    ], job.output


def test_the_environment_says_who_reads_where_no_option_does(script):
    show = 'say("SEES", rank, os.environ.get("HOROVOD_DATA_READERS"))'
    env = {"HOROVOD_DATA_READERS": "1"}
    assert run_launcher("-np", "1", *script(show), env=env).lines("SEES") == ["0 1", "1 1"]
    assert run_launcher("-np", "1", "--readers", "0", *script(show), env=env).lines("SEES") == ["0 0"]


@pytest.mark.commit
def test_variables_reach_every_rank(script):
    show = 'say("SEES", rank, os.environ["A"], os.environ["B"], os.environ.get("HOROVOD_CYCLE_TIME"))'
    job = run_launcher(
        "-np", "1", "--readers", "1", "-x", "A", "-x", "B=with space", *script(show), env={"A": "from here"}
    )
    assert [line.rpartition(" ")[0] for line in job.lines("SEES")] == [
        "0 from here with space",
        "1 from here with space",
    ]


@pytest.mark.horovod
def test_horovodruns_options(script, tmp_path):
    (tmp_path / "config.yaml").write_text("params:\n  fusion_threshold_mb: 16\n")
    show = 'say("SEES", os.environ["HOROVOD_FUSION_THRESHOLD"], os.environ["HOROVOD_CYCLE_TIME"])'
    job = run_launcher(
        "-np", "1", "--cycle-time-ms", "3.5", "--config-file", str(tmp_path / "config.yaml"), *script(show)
    )
    assert job.lines("SEES") == [f"{16 << 20} 3.5"], job.output


def test_without_stdout_or_stderr(script, tmp_path):
    """As a daemon starts it: the job runs all the same."""
    words = [*launched.LAUNCHER, "-np", "2", "--progress", *script(f"open({str(tmp_path)!r} + f'/ran{{rank}}', 'w')")]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words], env=launched.environment({}), timeout=100)
    assert done.returncode == 0 and {path.name for path in tmp_path.glob("ran*")} == {"ran0", "ran1"}


def test_any_command_can_be_started(tmp_path):
    job = run_launcher("-np", "2", "sh", "-c", 'echo "SAYS $0"', "hello")
    assert job.returncode == 0 and job.lines("SAYS") == ["hello", "hello"], job.output


@pytest.mark.parametrize("option", ["--binding-args=--bind-to none", "--mpi-args=--map-by node"])
def test_a_reader_needs_no_slot_where_the_user_maps(tmp_path, option):
    """As in Kubernetes and under Slurm: Open MPI counts the slots itself."""
    if not open_mpi():
        pytest.skip("these are options of Open MPI's")
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    env = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts")}
    job = run_launcher("--readers", "1", option, "sh", "-c", "echo RUNS", env=env)
    assert job.returncode == 0 and job.lines("RUNS") == ["", ""], job.output


@pytest.mark.commit
def test_output_in_files(script, tmp_path):
    job = run_launcher("-np", "2", "--output-filename", str(tmp_path / "out"), *script('say("rank", rank)'))
    assert job.returncode == 0, job.output
    texts = [path.read_text() for path in sorted((tmp_path / "out").rglob("*stdout*")) if path.is_file()]
    assert texts == ["rank 0\n", "rank 1\n"]


def test_tagged_output(script):
    job = run_launcher("-np", "2", "--tag-output", *script('say("says", rank)'))
    assert all(
        any(
            line.startswith("[") and f"{rank}]" in line and line.endswith(f"says {rank}")
            for line in job.output.splitlines()
        )
        for rank in (0, 1)
    ), job.output


# ---- A rank that fails. What stands before it has started MPI or not; the others wait for ever.

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


@pytest.mark.horovod
@pytest.mark.parametrize("before, end, status, said", [
    ("", "sys.exit(3)", 3, ""),
    ("", "raise ValueError('no such file')", 1, "ValueError: no such file"),
    (MPI4PY, "sys.exit(3)", 3, ""),
    (MPI4PY, "raise ValueError('no such file')", 1, "ValueError: no such file"),
    (MPI4PY, "os._exit(7)", 7, ""),
    (HVD, "raise SystemExit(6)", 6, ""),
    (HVDATA, "sys.exit(3)", 3, ""),
    (HVDATA, "raise ValueError('no such file')", 1, "ValueError: no such file"),
])  # fmt: skip
def test_one_rank_fails(script, before, end, status, said):
    job = run_launcher("-np", "3", *script(FAILS.format(before=before, end=end, others="")))
    assert job.returncode == status and said in job.output, job.output
    assert job.seconds < 60


@pytest.mark.parametrize("end, status", [("sys.exit(3)", 3), ("1 / 0", 1)])
def test_one_rank_fails_while_the_others_wait_in_init(script, end, status):
    job = run_launcher("-np", "3", *script(FAILS.format(before="", end=end, others=HVDATA)))
    assert job.returncode == status and job.seconds < 60, job.output


def test_a_shell_script_may_have_its_program_run_by_ours(script):
    words = script(FAILS.format(before=MPI4PY, end="sys.exit(3)", others=""))
    job = run_launcher("-np", "2", "sh", "-c", 'exec "$0" -m horovod_data.launcher.rank "$1"', *words)
    assert job.returncode == 3 and job.seconds < 60, job.output


@pytest.mark.commit("SIGKILL-statuses0")
@pytest.mark.parametrize("signal_name, statuses", [("SIGKILL", (137, 9)), ("SIGSEGV", (139, 11))])
def test_one_rank_is_killed(script, signal_name, statuses):
    end = f"import signal; os.kill(os.getpid(), signal.{signal_name})"
    job = run_launcher("-np", "2", *script(FAILS.format(before=HVDATA, end=end, others="")))
    assert job.returncode in statuses, job.output


def test_two_ranks_fail_and_the_first_one_counts(script):
    job = run_launcher("-np", "3", *script("time.sleep(8 * rank)\nsys.exit(3 + rank)"))
    assert job.returncode == 3, job.output


@pytest.mark.parametrize("before", [MPI4PY, HVDATA], ids=["mpi4py", "horovod_data"])
def test_leaving_by_os_exit_without_finalize_is_an_error(script, before):
    """Hydra would end the other ranks and say 0."""
    job = run_launcher("-np", "2", *script(FAILS.format(before=before, end="os._exit(0)", others="")))
    assert job.returncode == 1 and job.seconds < 60, job.output
    if not open_mpi():
        assert "a rank left by os._exit(0) without MPI_Finalize: that is an error" in job.output


def test_leaving_by_os_exit_after_finalize_is_none(script):
    job = run_launcher("-np", "2", *script("from mpi4py import MPI\nMPI.Finalize()\nos._exit(0)"))
    assert job.returncode == 0, job.output


@pytest.mark.parametrize(
    "before", ["", "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"], ids=["no MPI", "MPI loaded"]
)
def test_leaving_by_os_exit_without_ever_starting_mpi_is_none(script, before):
    job = run_launcher(
        "-np", "2", *script(f"{before}\nif rank == 0:\n    os._exit(0)\ntime.sleep(3)\nsay('WENT ON', rank)")
    )
    assert job.returncode == 0 and job.lines("WENT ON") == ["1"], job.output
    assert "MPI_Finalize" not in job.output


@pytest.mark.parametrize("end, status", [("os._exit(0)", 0), ("sys.exit(3)", 3), ("raise ValueError('of a child')", 1)])
def test_a_forked_child_leaves_as_it_likes(script, end, status):
    job = run_launcher(
        "-np",
        "2",
        *script(f"""
from mpi4py import MPI
child = os.fork()
if child == 0:
    {end}
ended = os.waitpid(child, 0)[1]
time.sleep(2)  # nobody ends the job for it
say("CHILD", os.waitstatus_to_exitcode(ended))
"""),
    )
    assert job.returncode == 0 and job.lines("CHILD") == [str(status)] * 2, job.output


@pytest.mark.parametrize("everybody", [False, True], ids=["to the launcher", "from the terminal"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", ["", HVDATA], ids=["no MPI", "horovod_data"])
def test_signals_end_every_rank(script, before, number, everybody):
    with start_launcher("-np", "2", "--readers", "1", *script(f"{before}\nsay('UP')\ntime.sleep(1000)")) as job:
        job.wait_for("UP", times=3, timeout=100)
        job.signal(number, everybody)
        assert job.finish(30) != 0, job.output
        assert job.gone(), job.members()


@pytest.mark.commit
def test_a_killed_launcher_leaves_nobody(script):
    with start_launcher("-np", "2", *script(f"{HVDATA}\nsay('UP')\ntime.sleep(1000)")) as job:
        job.wait_for("UP", times=2, timeout=100)
        job.signal(signal.SIGKILL)
        assert job.finish(30) != 0
        assert job.gone(30), job.members()


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
    assert job.returncode == 0 and job.lines("RUNS") == [plain.removeprefix("RUNS").strip()], job.output


@pytest.mark.parametrize("words", [[], ["-m"], ["-c"]], ids=repr)
def test_no_program(words):
    ran = subprocess.run(
        [sys.executable, "-m", "horovod_data.launcher.rank", *words], capture_output=True, text=True, timeout=170
    )
    assert ran.returncode == 2 and ran.stderr == (
        "usage: python -m horovod_data.launcher.rank FILE | -m MODULE | -c CODE [ARGUMENTS...]\n"
    ), ran.stderr


def test_spawned_processes_and_exit_handlers(script):
    job = run_launcher(
        "-np",
        "1",
        *script("""
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
"""),
    )
    assert job.returncode == 0 and job.lines("RUNS") == ["[1, 4]", "last 9"], job.output
