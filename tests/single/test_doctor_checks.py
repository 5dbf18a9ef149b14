# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks: each problem gets its level and an advice that helps. What can be tried for real is."""

import json
import os
import re
import stat
import sys
import time
from pathlib import Path

import pytest

from horovod_data.doctor import children, environment, findings, libraries, machine
from horovod_data.doctor.children import Told
from horovod_data.doctor.findings import Finding
from horovod_data.job import cgroups

ROOT = Path(__file__).parents[2]
OPEN_MPI, MPICH = "Open MPI v4.1.4", "MPICH 4.0.2"


def the(found, name) -> Finding:
    (finding,) = [one for one in found if one.name == name]
    return finding


# ---- The report.


def test_a_problem_has_an_advice():
    with pytest.raises(ValueError, match="a problem needs its advice"):
        Finding("x.y", "bad", "error")
    with pytest.raises(ValueError):
        Finding("x.y", "bad", "terrible", "run")


def test_the_status_counts_errors_alone():
    fine, slow, bad = findings.ok("a.b", 1), findings.warning("a.c", 2, "Do"), findings.error("a.d", 3, "Do")
    assert [findings.status(found) for found in ([], [fine], [fine, slow], [slow, bad])] == [0, 0, 0, 1]


def test_the_text_has_sections_marks_and_advice():
    text = findings.as_text(
        [
            findings.ok("a.one", "fine"),
            findings.error("b.two", "broken", "Mend it"),
            findings.warning("a.three", "word " * 40, "Wait"),
        ]
    )
    lines = text.splitlines()
    assert lines.index("a") < lines.index("b") and lines.count("a") == 1
    assert any(line.startswith("X two") and line.endswith(" broken") for line in lines)
    assert any(line.startswith("! three") for line in lines) and any(line.strip() == "-> Mend it" for line in lines)
    assert max(map(len, lines)) <= 120 and lines[-1] == "Found: 1 error, 1 warning."
    assert findings.as_text([findings.ok("a.one", "fine")]).endswith("All is well.")


def test_the_json_has_everything():
    told = json.loads(findings.as_json([findings.error("b.two", "broken", "Mend it")]))
    assert told["status"] == 1
    assert told["findings"] == [{"name": "b.two", "value": "broken", "level": "error", "advice": "Mend it"}]


def test_our_error_texts_come_apart():
    assert findings.sentences("MPI v4.1.4 is gone, with x=1. Start it with `a`. Or don't.") == (
        "MPI v4.1.4 is gone, with x=1",
        "Start it with `a`. Or don't",
    )
    assert findings.sentences("No advice.") == ("No advice", "")


# ---- The machine.


@pytest.mark.parametrize("usable, present, quota, level, advice", [
    (8, 8, None, "ok", ""), (8, 8, 8.0, "ok", ""),
    (8, 8, 1.5, "warning", "may use 1.5 cores' time, but TensorFlow starts threads for 8"),
    (1, 8, None, "warning", "--bind-to none"), (1, 1, None, "ok", ""),
])  # fmt: skip
def test_cores(usable, present, quota, level, advice):
    found = machine.cores(usable, present, quota)
    assert found.level == level and advice in found.advice


@pytest.fixture
def groups(tmp_path):
    """Writes files of control groups: {path: content}. Gives what limits.py takes."""
    own = tmp_path / "own"

    def write(files, cgroup="0::/\n"):
        own.write_text(cgroup)
        for name, content in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return {"root": tmp_path / "groups", "own": own}

    return write


V1 = "5:memory:/slurm/job_7\n4:cpu,cpuacct:/slurm/job_7\n0::/\n"


@pytest.mark.parametrize("files, cgroup, cores", [
    ({}, "0::/", None),
    ({"cpu.max": "max 100000"}, "0::/", None),
    ({"cpu.max": "150000 100000"}, "0::/", 1.5),
    ({"cpu.max": "150000 100000"}, "0::/../other", 1.5),
    ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000", "c/cpu.max": "100000 100000"}, "0::/a/b", 4.0),
    ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
    ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, V1, 2.5),
    ({"cpu/slurm/job_7/cpu.cfs_quota_us": "250000", "cpu/slurm/job_7/cpu.cfs_period_us": "100000",
      "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, V1, 2.5),
    ({"cpu.max": "150000 100000"}, "", 1.5),
])  # fmt: skip
def test_cores_of_nested_groups(groups, files, cgroup, cores):
    assert cgroups.quota(**groups(files, cgroup)) == cores


@pytest.mark.parametrize("files, cgroup, total, available", [
    ({}, "0::/", 8 << 30, 4 << 30),
    ({"memory.max": "max", "memory.current": 5}, "0::/", 8 << 30, 4 << 30),
    ({"memory.max": 2 << 30, "memory.current": 3 << 29}, "0::/", 2 << 30, 1 << 29),
    ({"a/memory.max": 6 << 30, "a/memory.current": 5 << 30, "a/b/memory.max": 7 << 30, "a/b/memory.current": 1}, "0::/a/b",
     6 << 30, 1 << 30),
    ({"memory/slurm/job_7/memory.limit_in_bytes": 3 << 30, "memory/slurm/job_7/memory.usage_in_bytes": 1 << 30}, V1,
     3 << 30, 2 << 30),
    ({"memory.max": 3 << 30, "memory.current": 3 << 30, "memory.stat": f"anon 7\ninactive_file {1 << 30}"}, "0::/", 3 << 30, 1 << 30),
    ({"memory/memory.limit_in_bytes": 2 << 30, "memory/memory.usage_in_bytes": 2 << 30,
      "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {3 << 29}"}, V1, 2 << 30, 3 << 29),
    ({"memory/memory.limit_in_bytes": (1 << 63) - 4096, "memory/memory.usage_in_bytes": 1 << 30}, V1, 8 << 30, 4 << 30),
])  # fmt: skip
def test_memory_of_nested_groups(groups, tmp_path, files, cgroup, total, available):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n")
    assert cgroups.memory_bytes(meminfo, **groups(files, cgroup)) == (total, available)


def test_little_memory():
    assert "container's limit" in machine.memory(2 << 30, 1 << 29).advice
    assert machine.memory(8 << 30, 4 << 30).level == "ok"


def test_this_machine():
    found = machine.check()
    assert [one.name for one in found] == ["machine.host", "machine.cores", "machine.memory", "shared memory./dev/shm"]
    assert f"of {os.cpu_count()}" in the(found, "machine.cores").value


# ---- What processes may share.


def test_dev_shm(tmp_path):
    missing = machine.dev_shm(str(tmp_path / "none"), 4)
    assert missing.level == "warning" and "mount a tmpfs" in missing.advice
    small = machine.dev_shm(str(tmp_path), 1 << 40)
    assert small.level == "warning" and "--shm-size=1g" in small.advice
    assert machine.dev_shm(str(tmp_path), 0).level == "ok"


# ---- The environment.


def test_all_our_variables_are_known():
    """Also those that were added since."""
    package, csrc = (
        (ROOT / "horovod_data").rglob("*.py"),
        [*(ROOT / "csrc").glob("*/*.cc"), *(ROOT / "csrc").glob("*/*.h")],
    )
    sources = [*(path for path in package if path.parent.name != "doctor"), *csrc]
    text = "".join(source.read_text() for source in sources if source.parent.name != "tests")
    assert set(environment.KNOWN) == set(re.findall(r'"(HOROVOD_DATA_[A-Z_]+)"', text))


def test_our_settings():
    found = the(environment.ours({"HOROVOD_DATA_READERS": "1"}), "environment.horovod_data's")
    assert found.level == "ok" and "HOROVOD_DATA_READERS=1: dedicated readers: 1, payload auto" in found.value
    assert "rank 0 reads" in the(environment.ours({}), "environment.horovod_data's").value
    assert "verified" not in found.value
    assert (
        "every channel verified"
        in the(environment.ours({"HOROVOD_DATA_VERIFY": "1"}), "environment.horovod_data's").value
    )


def test_settings_that_make_no_sense():
    found = the(environment.ours({"HOROVOD_DATA_PAYLOAD": "nonsense"}), "environment.horovod_data's")
    assert found.level == "error" and "HOROVOD_DATA_PAYLOAD='nonsense' is no way" in found.value
    assert "auto, message or arena, or unset it" in found.advice
    found = the(environment.ours({"HOROVOD_DATA_VERIFY": "maybe"}), "environment.horovod_data's")
    assert found.level == "error" and "HOROVOD_DATA_VERIFY='maybe' is neither 0 nor 1" in found.value


def test_a_misspelt_variable():
    found = the(environment.ours({"HOROVOD_DATA_REEDERS": "1"}), "environment.unknown")
    assert found.level == "warning" and "is HOROVOD_DATA_READERS meant?" in found.advice
    assert "unset it" in the(environment.ours({"HOROVOD_DATA_XYZ": "1"}), "environment.unknown").advice


def test_launchers_and_what_they_set():
    assert "a plain process" in the(environment.launched({}, OPEN_MPI), "environment.started by").value
    environ = {
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_orte_x": "1",
    }
    found = environment.launched(environ, OPEN_MPI)
    assert "Open MPI's mpirun" in the(found, "environment.started by").value
    assert the(found, "environment.job").value == "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4"
    assert the(found, "environment.MPI settings").value == "OMPI_MCA_btl=tcp,self"  # not what is the launcher's own


def test_horovods_variables():
    environ = {"HOROVOD_CYCLE_TIME": "1", "HOROVOD_DATA_READERS": "1"}
    found = the(environment.launched(environ, OPEN_MPI), "environment.Horovod's")
    assert (found.level, found.value) == ("ok", "HOROVOD_CYCLE_TIME=1")
    found = the(environment.launched({"HOROVOD_MPI_THREADS_DISABLE": "1"}, OPEN_MPI), "environment.Horovod's")
    assert found.level == "error" and found.advice == "Unset HOROVOD_MPI_THREADS_DISABLE on all ranks"
    gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_SIZE": "2"}
    found = the(environment.launched(gloo, OPEN_MPI), "environment.Horovod's")
    assert found.level == "error" and "horovodrun --mpi -np 2" in found.advice


@pytest.mark.parametrize("version_text, mpi, level, text", [
    ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", OPEN_MPI, "ok", "Open MPI 4.1.4"),
    ("HYDRA build details:\n    Version:  4.0.2\n", MPICH, "ok", "MPICH 4.0.2"),
    ("HYDRA build details:\n    Version:  4.0.2\n", OPEN_MPI, "error", "put the mpirun of that one first in PATH"),
    ("mpirun (Open MPI) 4.1.4\n", MPICH, "error", f"built with {MPICH}"),
    ("mpirun (Open MPI) 5.0.1\n", OPEN_MPI, "warning", "another version's mpirun"),
    ("Intel(R) MPI Library for Linux* OS, Version 2021.6\n", MPICH, "ok", "Intel 2021.6"),
    ("something else 1.2", OPEN_MPI, "ok", "unknown MPI"),
    ("mpirun (Open MPI) 4.1.4\n", None, "ok", "Open MPI 4.1.4"),
])  # fmt: skip
def test_whether_the_launcher_is_that_of_our_mpi(version_text, mpi, level, text):
    found = environment.match("/x/mpirun", version_text, mpi)
    assert found.level == level and text in f"{found.value} {found.advice}"


def program(path, text) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path.parent)


def test_launchers_in_path(tmp_path):
    found = environment.launcher_in_path({"PATH": str(tmp_path)}, OPEN_MPI)
    assert found.level == "error" and "put the bin folder of the MPI" in found.advice and OPEN_MPI in found.advice
    found = environment.launcher_in_path({"PATH": program(tmp_path / "srun", "")}, OPEN_MPI)
    assert found.level == "ok" and "srun is there" in found.value
    program(tmp_path / "mpirun", "echo 'HYDRA build details: Version: 4.0.2'")
    found = environment.launcher_in_path({"PATH": str(tmp_path)}, OPEN_MPI)
    assert found.level == "error" and f"{tmp_path}/mpirun (MPICH 4.0.2)" in found.value


def test_environments_for_jobs():
    inside = {"OMPI_COMM_WORLD_RANK": "0", "PMI_FD": "3", "SLURM_JOB_ID": "1", "PMIX_RANK": "0"}
    assert environment.without_launcher({**inside, "PATH": "/bin", "OMPI_MCA_btl": "x"}) == {
        "PATH": "/bin", "OMPI_MCA_btl": "x"}  # fmt: skip
    given = environment.for_job({"HOROVOD_DATA_READERS": "1", "OMPI_MCA_mpi_yield_when_idle": "0",
                                 "HOROVOD_MPI_THREADS_DISABLE": "1"})  # fmt: skip
    assert given["OMPI_MCA_mpi_yield_when_idle"] == "0"
    assert not {"HOROVOD_MPI_THREADS_DISABLE", "HOROVOD_DATA_READERS"} & set(given)


# ---- Processes that may crash.


def python(text, limit=20.0) -> Told:
    return children.run([sys.executable, "-c", f"from horovod_data.doctor.children import say\n{text}"], limit,
                        {**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip


def bare(text, limit=20.0) -> Told:
    """Without our package, whose import takes seconds."""
    said = (
        "def say(**r):\n import json, os; os.write(1, ('\\n@horovod_data.doctor ' + json.dumps(r) + '\\n').encode())\n"
    )
    return children.run([sys.executable, "-c", said + text], limit)


def test_what_a_process_says_before_it_crashes():
    told = bare("say(a=1); print('noise'); say(b=2, a=3)\nimport os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (told.get("a"), told.get("b"), told.get("c"), told.ended) == (3, 2, None, "by signal 11 (SIGSEGV)")


def test_a_process_that_fails():
    told = bare("import sys; print('because\\n--------\\n', file=sys.stderr); sys.exit(3)")
    assert (told.ended, told.last_words()) == ("with status 3", "because")
    assert children.run(["/no/such/program"], 5).ended.startswith("before it began")


def test_a_process_that_hangs_and_its_children_are_ended():
    told = bare("import os, time\npid = os.fork()\nif pid: say(child=pid)\nelse: os.setpgid(0, 0)\ntime.sleep(60)", 2)
    assert told.ended == "not within 2 s"
    child = Path(f"/proc/{told.get('child')}/cmdline")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text():  # SIGKILL takes its time
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_say_is_what_run_reads():
    assert python("say(x=[1, 'two'])", limit=50).records == [{"x": [1, "two"]}]


# ---- Libraries.

GOOD = Told([{"tensorflow": "2.15.1", "tensorflow_abi": 1, "tensorflow_path": "/t"},
             {"core": {"tensorflow": "2.15.1", "cxx11_abi": 1, "mpi": OPEN_MPI}, "core_path": "/c",
              "libraries": ["/a/libmpi.so.40"]},
             {"thread_level": "MULTIPLE"}], "", "")  # fmt: skip


def changed(**records) -> Told:
    return Told([*GOOD.records, records], "", "")


def test_all_is_well_with_the_libraries():
    looks = {
        "core": GOOD,
        "horovod": Told([{"installed": False}], "", ""),
        "mpi4py": Told([{"installed": False}], "", ""),
    }
    found = libraries.check(looks)
    assert {one.level for one in found} == {"ok"}
    assert the(found, "MPI.thread level").value == "MPI_THREAD_MULTIPLE"
    assert "works without it" in the(found, "software.Horovod").value


def test_tensorflow_that_crashes():
    crashed, horovod = (
        Told([{"step": "x"}], "by signal 4 (SIGILL)", ""),
        Told([{"installed": True, "version": "1"}], "", ""),
    )
    found = the([libraries.tensorflow(crashed)], "software.TensorFlow")
    assert found.level == "error" and "SIGILL" in found.value and "newer processor" in found.advice
    assert the([libraries.ours(crashed)], "software.horovod_data").advice == "Mend TensorFlow first"
    assert libraries.horovod(horovod, crashed).advice == "Mend TensorFlow first"


def test_a_core_that_crashes_or_has_another_abi():
    crashed = Told(GOOD.records[:1], "by signal 11 (SIGSEGV)", "")
    assert the([libraries.ours(crashed)], "software.horovod_data").advice.startswith(
        "Rebuild it against this TensorFlow"
    )
    found = the([libraries.ours(changed(tensorflow_abi=0))], "software.horovod_data")
    assert found.level == "error" and "ABIs differ" in found.advice


def test_thread_levels_and_an_mpi_that_does_not_start():
    found = the(libraries.mpi(changed(thread_level="FUNNELED")), "MPI.thread level")
    assert found.level == "error" and "MPI_THREAD_FUNNELED" in found.value and "thread support" in found.advice
    dead = Told(GOOD.records[:2], "not within 120 s", "")
    found = the(libraries.mpi(dead), "MPI.start")
    assert found.level == "error" and "not within 120 s" in found.value and "orted" in found.advice
    found = the(libraries.mpi(dead, only_srun=True), "MPI.start")
    assert found.level == "warning" and "start the doctor by srun" in found.advice


def test_horovod_without_mpi_or_broken():
    built = {"installed": True, "version": "0.28.1", "built": {"mpi": False, "gloo": True}}
    found = libraries.horovod(Told([built], "", ""), GOOD)
    assert found.level == "error" and "HOROVOD_WITH_MPI=1" in found.advice and "built with gloo" in found.value
    found = libraries.horovod(Told([{"installed": True, "version": "0.28.1", "error": "ImportError: x"}], "", ""), GOOD)
    assert found.level == "error" and "ImportError: x" in found.value
    found = libraries.horovod(Told([], "by signal 11 (SIGSEGV)", ""), GOOD)
    assert found.level == "error" and "SIGSEGV" in found.value


def test_mpi4py_that_can_not_be_imported():
    told = Told([{"installed": True, "version": "4"}, {"error": "RuntimeError: cannot load MPI library"}], "", "")
    found = libraries.mpi4py(told)
    assert found.level == "warning" and "--no-binary mpi4py" in found.advice


def test_two_mpi_libraries():
    def uses(path) -> Told:
        return Told([{"libraries": [path]}], "", "")

    same, other = uses("/a/libmpi.so.40"), uses("/b/libmpich.so.12")
    assert libraries.one_mpi({"core": GOOD, "horovod": same, "mpi4py": same})[0].level == "ok"
    (found,) = libraries.one_mpi({"core": GOOD, "horovod": other, "mpi4py": same})
    assert found.level == "error" and "Horovod: libmpich.so.12" in found.value
    assert "Install Horovod and mpi4py" in found.advice
    (found,) = libraries.one_mpi({"core": GOOD, "horovod": same, "mpi4py": other})
    assert found.level == "warning" and "imports mpi4py.MPI fails in init()" in found.advice


@pytest.mark.slow
@pytest.mark.limit(150)
def test_the_real_libraries():
    """Here all of them are there and fit: without that no other test would run."""
    looks = libraries.look(os.environ)
    found = libraries.check(looks)
    assert {one.level for one in found} == {"ok"}, findings.as_text(found)
    assert re.match(r"Open MPI v\d|MPICH \d|Intel|MVAPICH", libraries.mpi_of(looks["core"]))
