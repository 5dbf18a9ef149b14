# SPDX-License-Identifier: Apache-2.0
"""The real doctor, where all is well and where it is not: exit status, findings and advice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import launch

import horovod_data
from horovod_data import core

pytestmark = pytest.mark.limit(400)  # it starts up to five processes that import TensorFlow, several times
PACKAGE = Path(horovod_data.__file__).parent
OPEN_MPI = core.build_info()["mpi"].startswith("Open MPI")


def doctor(tmp_path, *options, launcher=(), limit=300, **env) -> tuple[int, str, str]:
    """(status, stdout, stderr) of the command."""
    ran = subprocess.run([*launcher, sys.executable, "-m", "horovod_data.doctor", *options], cwd=tmp_path, text=True,
                         capture_output=True, timeout=limit, stdin=subprocess.DEVNULL,
                         env=launch.environment(tmp_path, 0, env))  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr


def findings(tmp_path, *options, status, **more) -> dict[str, dict]:
    """The findings of a run with --json that must end with `status`, by name."""
    ended, out, err = doctor(tmp_path, "--json", *options, **more)
    assert ended == status, out + err
    told = json.loads(out)
    assert told["status"] == status or more.get("launcher")  # a launcher has a status of its own
    assert all(one["advice"] for one in told["findings"] if one["level"] != "ok")
    return {one["name"]: one for one in told["findings"]}


def broken_package(tmp_path) -> Path:
    """A copy of the package that may be broken further: the folder for PYTHONPATH."""
    shutil.copytree(PACKAGE, tmp_path / "copy" / "horovod_data", ignore=shutil.ignore_patterns("__pycache__", "_core.so"))
    return tmp_path / "copy"


def test_all_is_well(tmp_path):
    found = findings(tmp_path, "--np", "2", "--seconds", "2", status=0)
    assert not [one for one in found.values() if one["level"] == "error"]
    for name in ("machine.cores", "machine.memory", "shared memory.arena", "shared memory.CMA", "shared memory./dev/shm",
                 "software.TensorFlow", "software.horovod_data", "MPI.library", "environment.mpirun"):
        assert name in found
    assert found["MPI.thread level"]["value"] == "MPI_THREAD_MULTIPLE"
    for payload in ("arena", "message"):
        section = f"self-test, {payload}"
        assert found[f"{section}.start"]["value"].startswith("2 ranks on 1 host")
        assert "every rank got its own" in found[f"{section}.delivery"]["value"]
        assert f"GB/s ({payload})" in found[f"{section}.lanes"]["value"]
        assert "steps/s with 4 KiB per rank" in found[f"{section}.together"]["value"]
    way = found["transports.from rank 0"]["value"]
    assert "Open MPI's ob1: vader to 1 on" in way or not OPEN_MPI or "sm to 1 on" in way or "UCX" in way


def test_the_text_for_people_and_settings_that_make_no_sense(tmp_path):
    status, out, err = doctor(tmp_path, "--no-self-test", HOROVOD_DATA_PAYLOAD="nonsense", HOROVOD_DATA_REEDERS="1")
    assert status == 1, out + err
    assert "X horovod_data's       HOROVOD_DATA_PAYLOAD='nonsense' is no way for batches to travel" in out
    assert "-> Set HOROVOD_DATA_PAYLOAD to auto, message or arena, or unset it" in out
    assert "! unknown              HOROVOD_DATA_REEDERS=1" in out and "is HOROVOD_DATA_READERS meant?" in out
    assert out.rstrip().endswith("Found: 1 error, 1 warning.")


def test_no_launcher_in_path(tmp_path):
    (tmp_path / "bin").mkdir()
    found = findings(tmp_path, status=1, PATH=str(tmp_path / "bin"))
    assert "neither mpirun nor srun is in PATH" in found["environment.mpirun"]["value"]
    assert found["self-test.skipped"]["level"] == "error"
    assert found["software.horovod_data"]["level"] == "ok"


def test_no_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    found = findings(tmp_path, status=1, PYTHONPATH=path)
    assert found["software.TensorFlow"]["value"] == "can't be imported: ImportError: not installed"
    assert found["software.horovod_data"]["advice"] == "Mend TensorFlow first"
    assert "Mend the errors above" in found["self-test.skipped"]["advice"]
    assert found["shared memory.arena"]["level"] == "ok"  # the rest is looked at all the same


@pytest.mark.parametrize("content, value", [
    (None, "installed without its C++ core"), (b"no library", "can't be loaded"),
])  # fmt: skip
def test_a_core_that_is_missing_or_broken(tmp_path, content, value):
    home = broken_package(tmp_path)
    if content:
        (home / "horovod_data" / "_core.so").write_bytes(content)
    found = findings(tmp_path, status=1, PYTHONPATH=str(home))
    assert found["software.horovod_data"]["level"] == "error" and value in found["software.horovod_data"]["value"]
    assert "pip install --force-reinstall" in found["software.horovod_data"]["advice"]
    assert "environment.mpirun" in found


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_core_that_crashes(tmp_path):
    home = broken_package(tmp_path)
    (tmp_path / "crash.c").write_text("__attribute__((constructor)) static void f(void) { *(volatile int*)0 = 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", home / "horovod_data" / "_core.so", tmp_path / "crash.c"], check=True)
    found = findings(tmp_path, status=1, PYTHONPATH=str(home))["software.horovod_data"]
    assert "SIGSEGV" in found["value"] and "Rebuild it" in found["advice"]


def test_inside_a_job(tmp_path):
    found = findings(tmp_path, "--seconds", "1", status=0, launcher=[*launch.launcher(), "-np", "3"])
    assert found["this job.start"]["value"].startswith("3 ranks on 1 host")
    assert "every rank got its own" in found["this job.delivery"]["value"]
    assert found["this job.lanes"]["value"].count("GB/s (arena)") == 2
    assert "=3)" in found["environment.started by"]["value"]
    assert "self-test, arena.start" not in found


@pytest.mark.skipif(not OPEN_MPI, reason="its settings are Open MPI's")
def test_inside_a_job_that_is_slower_than_need_be(tmp_path):
    settings = ["--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "mpi_yield_when_idle", "0"]
    ranks = (os.cpu_count() or 1) + 1
    if ranks > 9:
        pytest.skip("takes more ranks than cores")
    found = findings(tmp_path, "--seconds", "1", status=0, OMPI_MCA_mpi_yield_when_idle=None,
                     launcher=[*launch.launcher(), "-np", str(ranks), *settings])  # fmt: skip
    assert found["transports.single copy"]["level"] == "warning" and found["transports.single copy"]["value"] == "none"
    assert found["this job.waiting"]["level"] == "warning"
    found = findings(tmp_path, "--seconds", "1", status=0,
                     launcher=[*launch.launcher(), "-np", "2", "--mca", "btl", "tcp,self"])  # fmt: skip
    assert "tcp to 1 on" in found["transports.from rank 0"]["value"]
    assert found["transports.from rank 0"]["level"] == "warning"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for host names")
def test_inside_a_job_on_two_hosts(tmp_path):
    job = launch.RunningJob([sys.executable, "-m", "horovod_data.doctor", "--json", "--seconds", "1"], 3, tmp_path,
                            env={"HVDATA_TEST_HOSTS": "2"}, cwd=tmp_path)  # fmt: skip
    try:
        assert job.wait(200) == 0, job.log() + "".join(job.read("err", rank) for rank in range(3))
    finally:
        job.kill()
    found = {one["name"]: one for one in json.loads(job.read("out", 0))["findings"]}
    assert found["this job.start"]["value"].startswith("3 ranks on 2 hosts (host0, host1)")
    lanes = found["this job.lanes"]["value"]
    assert "GB/s (message), to 2 " in lanes and lanes.endswith("GB/s (arena)")
    assert [job.read("out", rank) for rank in (1, 2)] == ["", ""]  # rank 0 reports for all


def test_the_launcher_of_another_mpi(tmp_path):
    other = shutil.which("mpirun.mpich" if OPEN_MPI else "mpirun.openmpi")
    if other is None:
        pytest.skip("needs the mpirun of another MPI")
    found = findings(tmp_path, "--launcher", other, "--np", "2", status=1)
    start = found["self-test, arena.start"]
    assert "MPI sees this process alone" in start["value"] and "Start the job with" in start["advice"]
    status, out, err = doctor(tmp_path, launcher=[other, "-np", "2"])
    assert status != 0 and out.count("MPI sees this process alone") == 2, out + err
    assert out.count("\nsoftware\n") == 1  # one of them reports it all


@pytest.mark.horovod
def test_horovodrun_with_gloo(tmp_path):
    horovodrun = shutil.which("horovodrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if horovodrun is None:
        pytest.skip("needs Horovod")
    status, out, err = doctor(tmp_path, launcher=[horovodrun, "--gloo", "-np", "2"])
    assert status != 0, out + err
    assert "started by horovodrun with Gloo" in out and "horovodrun --mpi -np 2" in out


@pytest.mark.parametrize("options", [["--np", "0"], ["--seconds", "-1"], ["--launcher", ""], ["--nonsense"]])
def test_wrong_arguments(tmp_path, options):
    status, out, err = doctor(tmp_path, *options)
    assert status == 2 and "usage: python -m horovod_data.doctor" in err and not out
