# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks: each problem has its level and an advice that helps."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from launched import executable
from ranks.launch import until

from horovod_data.doctor import children, environment, findings, libraries, machine
from horovod_data.doctor.children import Output
from horovod_data.doctor.findings import Finding
from horovod_data.job import cgroups

ROOT = Path(__file__).parents[2]
OPEN_MPI = "Open MPI v4.1.4"


def the(found, name) -> Finding:
    (finding,) = [one for one in found if one.name == name]
    return finding


# ---- The report.


def test_the_status_counts_errors_alone():
    fine, slow, bad = findings.ok("a.b", 1), findings.warning("a.c", 2, "Do"), findings.error("a.d", 3, "Do")
    assert [findings.status(found) for found in ([], [fine], [fine, slow], [slow, bad])] == [0, 0, 0, 1]


def test_the_text_has_sections_marks_and_advice():
    warned = findings.warning("a.three", "word " * 40, "Wait")
    found = [findings.ok("a.one", "fine"), findings.error("b.two", "broken", "Fix it"), warned]
    lines = findings.as_text(found).splitlines()
    assert lines.index("a") < lines.index("b") and lines.count("a") == 1
    assert any(line.startswith("X two") and line.endswith(" broken") for line in lines)
    assert any(line.startswith("! three") for line in lines) and any(line.strip() == "-> Fix it" for line in lines)
    assert max(map(len, lines)) <= 120 and lines[-1] == "Found: 1 error, 1 warning."
    assert findings.as_text([findings.ok("a.one", "fine")]).endswith("All is well.")
    finding = {"name": "b.two", "value": "broken", "level": "error", "advice": "Fix it"}
    told = json.loads(findings.as_json(found[1:2]))
    assert (told["status"], told["findings"]) == (1, [finding])


def test_our_error_texts_come_apart():
    parts = "MPI v4.1.4 is gone, with x=1", "Start it with `a`. Or don't"
    assert findings.sentences(f"{parts[0]}. {parts[1]}.") == parts
    assert findings.sentences("No advice.") == ("No advice", "")


# ---- The machine.


@pytest.mark.parametrize("usable, present, quota, level, advice", [
    (8, 8, None, "ok", ""), (8, 8, 8.0, "ok", ""),
    (8, 8, 1.5, "warning", "gets the processor time of 1.5 cores, but TensorFlow starts threads for 8"),
    (1, 8, None, "warning", "--bind-to none"), (1, 1, None, "ok", ""),
])  # fmt: skip
def test_cores(usable, present, quota, level, advice):
    found = machine.cores(usable, present, quota)
    assert found.level == level and advice in found.advice


@pytest.fixture
def groups(tmp_path):
    """Writes files of control groups, {path: content}, and returns the arguments that cgroups.py takes."""
    own = tmp_path / "own"

    def write(files, cgroup="0::/\n"):
        own.write_text(cgroup)
        for name, content in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return {"root": tmp_path / "groups", "own": own}

    return write


@pytest.mark.parametrize("files, cgroup, cores", [
    ({}, "0::/", None),
    ({"cpu.max": "max 100000"}, "0::/", None),
    ({"cpu.max": "150000 100000"}, "0::/", 1.5),
    ({"cpu.max": "150000 100000"}, "0::/../other", 1.5),
    ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000", "c/cpu.max": "100000 100000"}, "0::/a/b", 4.0),
    ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
    ({"cpu.max": "150000 100000"}, "5:memory:/slurm/job_7\n0::/", 1.5),  # version 1 beside it
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
    ({"memory.max": 3 << 30, "memory.current": 3 << 30, "memory.stat": f"anon 7\ninactive_file {1 << 30}"}, "0::/", 3 << 30, 1 << 30),
])  # fmt: skip
def test_memory_of_nested_groups(groups, tmp_path, files, cgroup, total, available):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n")
    assert cgroups.memory_bytes(meminfo, **groups(files, cgroup)) == (total, available)


def test_this_machine(tmp_path):
    found = machine.check()
    assert [one.name for one in found] == ["machine.host", "machine.cores", "machine.memory", "shared memory./dev/shm"]
    assert f"of {os.cpu_count()}" in the(found, "machine.cores").value
    assert "container's limit" in machine.memory(2 << 30, 1 << 29).advice
    assert machine.memory(8 << 30, 4 << 30).level == "ok"
    assert "mount a tmpfs" in machine.dev_shm(str(tmp_path / "none"), 4).advice
    assert "--shm-size=1g" in machine.dev_shm(str(tmp_path), 1 << 40).advice
    assert machine.dev_shm(str(tmp_path), 0).level == "ok"


# ---- The environment.


def test_all_our_variables_are_known():
    sources = [*(ROOT / "horovod_data").rglob("*.py"), *(ROOT / "csrc").glob("*/*.cc"), *(ROOT / "csrc").glob("*/*.h")]
    text = "".join(source.read_text() for source in sources if source.parent.name not in ("doctor", "tests"))
    assert set(environment.KNOWN) == set(re.findall(r'"(HOROVOD_DATA_[A-Z_]+)"', text))


OURS = "environment.variables of horovod_data"


@pytest.mark.parametrize("environ, name, level, value, advice", [
    ({}, OURS, "ok", "rank 0 reads", ""),
    ({"HOROVOD_DATA_READERS": "1"}, OURS, "ok", "HOROVOD_DATA_READERS=1: dedicated readers: 1, payload auto", ""),
    ({"HOROVOD_DATA_VERIFY": "1"}, OURS, "ok", "every channel verified", ""),
    ({"HOROVOD_DATA_PAYLOAD": "nonsense"}, OURS, "error", "HOROVOD_DATA_PAYLOAD='nonsense' is no way",
     "auto, message or arena, or unset it"),
    ({"HOROVOD_DATA_VERIFY": "maybe"}, OURS, "error", "HOROVOD_DATA_VERIFY='maybe' is neither 0 nor 1", ""),
    ({"HOROVOD_DATA_REEDERS": "1"}, "environment.unknown", "warning", "", "is HOROVOD_DATA_READERS meant?"),
    ({"HOROVOD_DATA_XYZ": "1"}, "environment.unknown", "warning", "", "unset it"),
])  # fmt: skip
def test_our_variables(environ, name, level, value, advice):
    found = the(environment.ours(environ), name)
    assert found.level == level and value in found.value and advice in found.advice
    assert ("verified" in found.value) == (value == "every channel verified")


def test_launchers_and_what_they_set():
    assert "a plain process" in the(environment.launched({}, OPEN_MPI), "environment.started by").value
    environ = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
    environ |= {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_orte_x": "1"}
    found = environment.launched(environ, OPEN_MPI)
    assert "Open MPI's mpirun" in the(found, "environment.started by").value
    assert the(found, "environment.MPI settings").value == "OMPI_MCA_btl=tcp,self"  # without the launcher's own


@pytest.mark.parametrize("environ, level, text", [
    ({"HOROVOD_CYCLE_TIME": "1", "HOROVOD_DATA_READERS": "1"}, "ok", "HOROVOD_CYCLE_TIME=1"),
    ({"HOROVOD_MPI_THREADS_DISABLE": "1"}, "error", "Unset HOROVOD_MPI_THREADS_DISABLE on all ranks"),
    ({"HOROVOD_CONTROLLER": "gloo", "HOROVOD_SIZE": "2"}, "error", "horovodrun --mpi -np 2"),
])  # fmt: skip
def test_horovods_variables(environ, level, text):
    found = the(environment.launched(environ, OPEN_MPI), "environment.variables of Horovod")
    assert found.level == level and text in (found.advice or found.value) and "READERS" not in found.value


def test_launchers_in_path(tmp_path):
    def found():
        return environment.launcher_in_path({"PATH": str(tmp_path)}, OPEN_MPI)

    none = found()
    assert none.level == "error" and "put the bin folder of the MPI" in none.advice and OPEN_MPI in none.advice
    executable(tmp_path / "srun", "")
    assert found().level == "ok" and "srun is there" in found().value
    executable(tmp_path / "mpirun", "")
    assert found().value == f"{tmp_path}/mpirun"


def test_environments_for_jobs():
    inside = {"OMPI_COMM_WORLD_RANK": "0", "PMI_FD": "3", "SLURM_JOB_ID": "1", "PMIX_RANK": "0"}
    outside = {"PATH": "/bin", "OMPI_MCA_btl": "x"}
    assert environment.without_launcher({**inside, **outside}) == outside
    ours = {"HOROVOD_DATA_READERS": "1", "HOROVOD_MPI_THREADS_DISABLE": "1"}
    given = environment.for_job({**ours, "OMPI_MCA_mpi_yield_when_idle": "0"})
    assert given["OMPI_MCA_mpi_yield_when_idle"] == "0" and not set(ours) & set(given)


# ---- Processes that may crash.


def bare(text) -> Output:
    """A process without our package, whose import takes seconds."""
    send = (
        "def send(**r):\n import json, os; os.write(1, ('\\n@horovod_data.doctor ' + json.dumps(r) + '\\n').encode())\n"
    )
    return children.run([sys.executable, "-c", send + text], 20.0, os.environ)


def test_what_a_process_sends_before_it_crashes():
    output = bare("send(a=1); print('noise'); send(b=2, a=3)\nimport os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert [output.get(key) for key in "abc"] == [3, 2, None] and output.ended == "by signal 11 (SIGSEGV)"


def test_a_process_that_fails():
    output = bare("import sys; print('because\\n--------\\n', file=sys.stderr); sys.exit(3)")
    assert (output.ended, output.reason()) == ("with status 3", "because")
    assert children.run(["/no/such/program"], 5, {}).ended.startswith("before it began")


def test_a_process_that_hangs_and_its_children_are_ended():
    imports = "import os, subprocess, sys, time; from horovod_data.doctor import children; "
    child = f"{imports}children.end_with_parent(); children.send(child=os.getpid()); time.sleep(60)"
    parent = f"{imports}subprocess.run([sys.executable, '-c', {child!r}])"
    output = children.run([sys.executable, "-c", parent], 8, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert output.ended == "not within 8 s"
    child = Path(f"/proc/{output.get('child')}/cmdline")
    assert until(lambda: not child.exists() or not child.read_text(), 10)  # SIGKILL takes its time


# ---- Libraries.

BUILT = {"tensorflow": "2.15.1", "cxx11_abi": 1, "mpi": OPEN_MPI}
GOOD = Output(
    [{"core": BUILT, "core_path": "/c", "libraries": ["/a/libmpi.so.40"]}, {"thread_level": "MULTIPLE"}], "", ""
)
TENSORFLOW = Output([{"version": "2.15.1"}, {"abi": 1, "path": "/t"}], "", "")
NONE = Output([{"installed": False}], "", "")


def output(*records, ended="") -> Output:
    return Output(list(records), ended, "")


def changed(**records) -> Output:
    return output(*GOOD.records, records)


def test_all_is_well_with_the_libraries():
    found = libraries.check({"core": GOOD, "tensorflow": TENSORFLOW, "horovod": NONE})
    assert {one.level for one in found} == {"ok"}
    assert the(found, "MPI.thread level").value == "MPI_THREAD_MULTIPLE"
    assert "works without it" in the(found, "software.Horovod").value


def test_all_is_well_without_tensorflow():
    looks = {"core": output({**GOOD.records[0], "core": {**BUILT, "tensorflow": None}}), "tensorflow": NONE,
             "horovod": output({"version": "0.28.1", "framework": ""})}  # fmt: skip
    found = libraries.check(looks)
    assert {one.level for one in found} == {"ok"}
    assert the(found, "software.TensorFlow").value.startswith("not installed: loader() works without it")
    assert the(found, "software.horovod_data").value.startswith("/c, built without TensorFlow")
    assert "neither TensorFlow nor PyTorch is installed" in the(found, "software.Horovod").value


SIGSEGV = "by signal 11 (SIGSEGV)"
CRASHED = output(ended="by signal 4 (SIGILL)")
NO_MPI = output(*GOOD.records[:1], ended="not within 120 s")
WITHOUT = changed(core={**BUILT, "tensorflow": None})
NO_OPS = output(*TENSORFLOW.records, {"ops_error": "/_tf.so is missing. Build it"})
HOROVOD = {"version": "0.28.1", "framework": "tensorflow"}
TORCH = {**HOROVOD, "framework": "torch"}


@pytest.mark.parametrize("check, given, level, value, advice", [
    (libraries.tensorflow, [CRASHED, GOOD], "error", "SIGILL", "newer processor"),
    (libraries.tensorflow, [output({"error": "ImportError: x"}), GOOD], "error", "can't be imported: ImportError: x", "Reinstall"),
    (libraries.tensorflow, [NO_OPS, WITHOUT], "warning", "_tf.so is missing", "distribute_dataset() needs this library, and loader() does not. Build it"),
    (libraries.tensorflow, [NO_OPS, GOOD], "error", "_tf.so is missing", "Build it"),
    (libraries.tensorflow, [NO_OPS, CRASHED], "ok", "", ""),  # ours() has the error
    (libraries.tensorflow, [output(*TENSORFLOW.records, ended=SIGSEGV), GOOD], "error", "loading our ops ended by signal 11", "Rebuild"),
    (libraries.ours, [CRASHED], "error", "SIGILL", "Rebuild it with this MPI"),
    (libraries.horovod, [output(HOROVOD), CRASHED, GOOD], "warning", "", "Fix TensorFlow first"),
    (libraries.mpi, [changed(thread_level="FUNNELED")], "error", "MPI_THREAD_FUNNELED", "thread support"),
    (libraries.mpi, [NO_MPI], "error", "not within 120 s", "orted"),
    (libraries.mpi, [NO_MPI, True], "warning", "", "start the doctor by srun"),
    (libraries.horovod, [output({**HOROVOD, "built": {"mpi": False, "gloo": True}}), TENSORFLOW, GOOD], "error", "built with gloo",
     "HOROVOD_WITH_MPI=1"),
    (libraries.horovod, [output({**HOROVOD, "error": "ImportError: x"}), TENSORFLOW, GOOD], "error", "ImportError: x",
     "HOROVOD_WITH_TENSORFLOW=1"),
    (libraries.horovod, [output({**TORCH, "error": "ImportError: x"}), NONE, GOOD], "warning", "horovod.torch can't be imported",
     "HOROVOD_WITH_PYTORCH=1"),
    (libraries.horovod, [output({**TORCH, "built": {"mpi": True}}), NONE, GOOD], "ok", "built with mpi", ""),
    (libraries.horovod, [output(ended=SIGSEGV), TENSORFLOW, GOOD], "error", "SIGSEGV", ""),
])  # fmt: skip
def test_libraries_that_do_not_work(check, given, level, value, advice):
    found = check(*given)
    found = found[-1] if isinstance(found, list) else found
    assert found.level == level and value in found.value and advice in found.advice, found


@pytest.mark.parametrize("horovod, level, text", [
    ("/a/libmpi.so.40", "ok", ""),
    ("/b/libmpich.so.12", "error", "horovod_data: /a/libmpi.so.40; Horovod: /b/libmpich.so.12 init() fails"),
])  # fmt: skip
def test_two_mpi_libraries(horovod, level, text):
    (found,) = libraries.one_mpi(GOOD, output({"libraries": [horovod]}))
    assert found.level == level and text in f"{found.value} {found.advice}", found


@pytest.mark.slow
@pytest.mark.limit(150)
def test_the_real_libraries():
    """All of them are installed here and fit. Otherwise no other test would run."""
    looks = libraries.look(os.environ)
    found = libraries.check(looks)
    assert {one.level for one in found} == {"ok"}, findings.as_text(found)
    assert re.match(r"Open MPI v\d|MPICH \d|Intel|MVAPICH", libraries.mpi_of(looks["core"]))
