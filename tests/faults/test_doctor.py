# SPDX-License-Identifier: Apache-2.0
"""The real doctor, on a machine without problems and with some: exit status, findings and advice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import launch

import horovod_data
from horovod_data.doctor import children, libraries

# Nearly all of the time goes into processes that import TensorFlow: two for each run. So a run checks several things at
# once.
pytestmark = pytest.mark.limit(300)
PACKAGE = Path(horovod_data.__file__).parent
OPEN_MPI = launch.open_mpi()


def doctor(tmp_path, *options, launcher=(), limit=300, **env) -> tuple[int, str, str]:
    """(status, stdout, stderr) of the command."""
    ran = subprocess.run([*launcher, sys.executable, "-m", "horovod_data.doctor", *options], cwd=tmp_path, text=True,
                         capture_output=True, timeout=limit, stdin=subprocess.DEVNULL,
                         env=launch.environment(tmp_path, 0, {"COLUMNS": "120", **env}))  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr


def findings(tmp_path, *options, status, **more) -> dict[str, dict]:
    """The findings of a run with --json that must end with `status`, by name."""
    ended, out, err = doctor(tmp_path, "--json", *options, **more)
    assert ended == status, out + err
    report = json.loads(out)
    assert report["status"] == status or more.get("launcher")  # a launcher has a status of its own
    assert all(one["advice"] for one in report["findings"] if one["level"] != "ok")
    return {one["name"]: one for one in report["findings"]}


def assert_delivered(found, ways, job="self-test, {}"):
    """In the jobs of the self-test, or in this job, each rank got its own rows."""
    for payload, way in zip(("arena", "message"), ways):
        assert "every rank got its own" in found[f"{job.format(payload)}.delivery"]["value"]
        assert found[f"{job.format(payload)}.together"]["value"].endswith(way)


@pytest.mark.slow
def test_all_is_well(tmp_path):
    found = findings(tmp_path, "--np", "2", "--seconds", "0.8", status=0)
    assert not [one for one in found.values() if one["level"] == "error"]
    for name in ("machine.cores", "machine.memory", "shared memory./dev/shm", "software.TensorFlow",
                 "software.horovod_data", "MPI.library", "environment.mpirun"):  # fmt: skip
        assert name in found
    assert found["MPI.thread level"]["value"] == "MPI_THREAD_MULTIPLE"
    assert_delivered(found, ("(arena)", "(message)"))
    assert found["self-test, arena.start"]["value"].startswith("2 ranks on 1 host")
    assert "steps/s with 4 KiB per rank" in found["self-test, arena.together"]["value"]


def test_a_self_test_of_one_rank(tmp_path):
    found = findings(tmp_path, "--np", "1", "--seconds", "0.4", status=0)
    assert_delivered(found, ("(no other rank)", "(no other rank)"))


def test_ranks_without_tensorflow(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules.update(tensorflow=None, horovod=None)")
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    found = findings(tmp_path, "--np", "2", "--seconds", "0.4", status=0, PYTHONPATH=path)
    assert found["software.TensorFlow"]["value"].startswith("not installed: loader() works without it")
    assert found["software.Horovod"]["value"].startswith("not installed")
    assert_delivered(found, ("(arena)", "(message)"))


def test_the_text_for_people(tmp_path):
    """Also: settings that make no sense, and a launcher that starts nothing."""
    status, out, err = doctor(tmp_path, "--launcher", f"{launch.launcher()[0]} --no-such-option",
                              HOROVOD_DATA_PAYLOAD="nonsense", HOROVOD_DATA_REEDERS="1")  # fmt: skip
    assert status == 1, out + err
    assert "X variables of horovod_data HOROVOD_DATA_PAYLOAD='nonsense' is no way for batches to travel" in out
    assert "-> Set HOROVOD_DATA_PAYLOAD to auto, message or arena, or unset it" in out
    assert "! unknown              HOROVOD_DATA_REEDERS=1" in out and "is HOROVOD_DATA_READERS meant?" in out
    assert "\nself-test, arena\nX start                the job ended with status " in out and "no-such-option" in out
    assert "self-test, message" not in out  # which would not start either
    assert out.rstrip().endswith("Found: 2 errors, 1 warning.")
    assert "\n  horovod_data         " in out  # which is in order


def test_a_broken_tensorflow_and_no_launcher(tmp_path):
    """The doctor checks the rest all the same. (test_doctor_selftest.py: what it says of the self-test then.)"""
    (tmp_path / "bin").mkdir()
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken')\n")
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    found = findings(tmp_path, status=1, PATH=str(tmp_path / "bin"), PYTHONPATH=path)
    assert found["environment.mpirun"]["level"] == "error"
    assert "neither mpirun nor srun is in PATH" in found["environment.mpirun"]["value"]
    assert found["software.TensorFlow"]["value"] == "can't be imported: ImportError: broken"
    assert found["software.horovod_data"]["level"] == "ok"
    assert "Put MPI's mpirun into PATH" in found["self-test.skipped"]["advice"]
    assert found["shared memory./dev/shm"]["level"] == "ok"


CRASHES = "__attribute__((constructor)) static void f(void) { *(volatile int*)0 = 1; }"


@pytest.mark.parametrize("content, value, advice", [
    (None, "cannot open shared object file", "pip install --force-reinstall"),
    (b"no library", "can't be loaded", "pip install --force-reinstall"),
    pytest.param(CRASHES, "SIGSEGV", "Rebuild it", marks=pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")),
])  # fmt: skip
def test_a_core_that_is_missing_or_broken(tmp_path, monkeypatch, content, value, advice):
    """The test breaks a copy of the package."""
    home = tmp_path / "copy"
    shutil.copytree(PACKAGE, home / "horovod_data", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    core = home / "horovod_data" / "_core.so"
    if content == CRASHES:
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", core, "-"], input=CRASHES, text=True, check=True)
    elif content:
        core.write_bytes(content)
    env = launch.environment(tmp_path, 0, {"PYTHONPATH": str(home)})
    monkeypatch.chdir(tmp_path)  # for `python -m`, the current folder comes first
    found = libraries.ours(children.run([sys.executable, "-m", "horovod_data.doctor.inside", "core"], 100, env))
    assert found.level == "error" and value in found.value and advice in found.advice


@pytest.mark.commit
def test_inside_a_job(tmp_path):
    """Files of the training stay."""
    ranks = 3
    files = {name: tmp_path / name for name in ("HOROVOD_DATA_TIMELINE", "HOROVOD_DATA_CERTIFICATE")}
    for file in files.values():
        file.write_text("of the training")
    found = findings(tmp_path, "--seconds", "0.4", status=0,
                     launcher=[*launch.launcher(), "-np", str(ranks)], HOROVOD_DATA_VERIFY="1",
                     **{name: str(file) for name, file in files.items()})  # fmt: skip
    assert [file.read_text() for file in files.values()] == ["of the training"] * 2
    assert found["this job.start"]["value"].startswith(f"{ranks} ranks on 1 host")
    assert_delivered(found, ["for all ranks (arena)"], "this job")
    assert f"={ranks})" in found["environment.started by"]["value"]
    assert "self-test, arena.start" not in found
    assert not [one for one in found.values() if one["level"] == "error"]


@pytest.mark.parametrize("ranks, roles", [
    (4, {"HOROVOD_DATA_READERS": "2"}),
    (3, {"HOROVOD_DATA_READERS_PER_NODE": "1"}),
])  # fmt: skip
def test_inside_a_job_the_readers_read(tmp_path, ranks, roles):
    found = findings(tmp_path, "--seconds", "0.4", status=0, launcher=[*launch.launcher(), "-np", str(ranks)], **roles)
    assert_delivered(found, ["for all ranks (arena)"], "this job")


@pytest.mark.parametrize("script, why", [
    ("HOROVOD_DATA_READERS=2 exec", "which leaves none to train"),
    ('HOROVOD_DATA_READERS=$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} == 1)) exec', "The ranks disagree about readers: "),
])  # fmt: skip
def test_inside_a_job_an_error_of_init_is_raised(tmp_path, script, why):
    status, out, err = doctor(tmp_path, launcher=[*launch.launcher(), "-np", "2", "sh", "-c", f'{script} "$@"', "sh"])
    assert status != 0 and why in " ".join(err.split()), out + err


@pytest.mark.parametrize("options", [["--np", "0"], ["--seconds", "-1"], ["--nonsense"], ["--launcher", ""], ["--launcher", " "],
                                     ["--launcher", "'"]])  # fmt: skip
def test_wrong_arguments(tmp_path, options):
    status, out, err = doctor(tmp_path, *options)
    assert status == 2 and "usage: python -m horovod_data.doctor" in err and "Traceback" not in err and not out
    assert options[0] in err or options[0] == "--nonsense"
