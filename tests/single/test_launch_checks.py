# SPDX-License-Identifier: Apache-2.0
"""Errors of a job that was started in a way that can't work, and settings of the environment."""

import dataclasses
import time

import numpy as np
import pytest

from horovod_data.job import handshake, launch_checks, settings

OPEN_MPI, MPICH = "Open MPI v4.1.4", "MPICH 4.0.2"
GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_RANK": "0"}


def text_of(check, *arguments) -> str:
    with pytest.raises(RuntimeError) as error:
        check(*arguments)
    return str(error.value)


@pytest.mark.parametrize("text, name", [
    ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022", OPEN_MPI),
    ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7\n", MPICH),
    ("Intel(R) MPI Library 2021.6 for Linux* OS\n", "Intel(R) MPI Library 2021.6 for Linux* OS"),
    ("", "an unknown MPI"),
])  # fmt: skip
def test_names_of_mpi(text, name):
    assert launch_checks.mpi_name(text) == name


@pytest.mark.parametrize("environ, name, size", [
    ({}, None, None),
    ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI's mpirun", 4),
    ({"PMI_SIZE": "3"}, "a PMI launcher", 3),
    ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"}, "Slurm's srun", 2),
    ({"SLURM_NTASKS": "8"}, None, None),  # the shell of an allocation
    ({"SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI's mpirun", 4),  # srun started its daemons
    ({"PMIX_RANK": "2"}, "a PMIx launcher", 3),
    ({**GLOO, "HOROVOD_SIZE": "5"}, "horovodrun with Gloo", 5),
    ({"OMPI_COMM_WORLD_SIZE": "many"}, None, None),
])  # fmt: skip
def test_launchers(environ, name, size):
    found = launch_checks.find_launcher(environ)
    if name is None:
        assert found is None
    else:
        assert found.name.startswith(name) and found.size == size


@pytest.mark.parametrize("environ", [
    {},
    {"HOROVOD_CONTROLLER": "mpi", "OMPI_COMM_WORLD_SIZE": "4"},
    {**GLOO, "HOROVOD_SIZE": "1"},  # a job of one needs no MPI between its processes
    {"HOROVOD_MPI_THREADS_DISABLE": "0"},
])  # fmt: skip
def test_nothing_to_complain_about(environ):
    launch_checks.check_before_mpi(environ, OPEN_MPI)


@pytest.mark.parametrize("missing", ["HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_ADDR", ""])
def test_gloo(missing):
    environ = {name: value for name, value in {**GLOO, "HOROVOD_SIZE": "4"}.items() if name != missing}
    text = text_of(launch_checks.check_before_mpi, environ, OPEN_MPI)
    assert "This job of 4 processes was started by horovodrun with Gloo" in text and OPEN_MPI in text
    assert "`horovodrun --mpi -np 4 python train.py` or `mpirun -np 4 python train.py`" in text


def test_no_threads():
    text = text_of(launch_checks.check_before_mpi, {"HOROVOD_MPI_THREADS_DISABLE": "1"}, OPEN_MPI)
    assert "Unset HOROVOD_MPI_THREADS_DISABLE" in text
    for level, name in enumerate(["SINGLE", "FUNNELED", "SERIALIZED"]):
        text = text_of(launch_checks.check_thread_level, level, False, OPEN_MPI)
        assert f"MPI_THREAD_{name}, but horovod_data needs MPI_THREAD_MULTIPLE" in text
        assert "call horovod_data.init() first" in text and "mpi4py.rc.thread_level = 'multiple'" in text
    assert f"all that {MPICH} gives" in text_of(launch_checks.check_thread_level, 1, True, MPICH)
    launch_checks.check_thread_level(3, True, MPICH)


@pytest.mark.parametrize("environ, mpi, horovod, texts", [
    ({"PMI_SIZE": "4"}, OPEN_MPI, None, ["PMI_SIZE=4", OPEN_MPI, "`mpirun -np 4 python train.py`"]),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, MPICH, None,
     ["Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE=2", "`mpirun -np 2 python train.py`, with the mpirun of MPICH 4.0.2"]),
    ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "1"}, OPEN_MPI, None,
     ["SLURM_STEP_NUM_TASKS=8", "`srun --mpi=pmix -n 8 python train.py`"]),
    ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "1"}, MPICH, None, ["`srun --mpi=pmi2 -n 8 python train.py`"]),
    ({}, OPEN_MPI, 3, ["hvd.size() is 3", "`mpirun -np 3 python train.py`"]),
])  # fmt: skip
def test_mpi_sees_one_process_of_many(environ, mpi, horovod, texts):
    said = text_of(launch_checks.check_world, environ, 1, mpi, horovod)
    assert said.startswith("MPI sees this process alone") and all(text in said for text in texts), said


@pytest.mark.parametrize("environ, size, horovod", [
    ({}, 1, None), ({}, 1, 1), ({"OMPI_COMM_WORLD_SIZE": "1"}, 1, None), ({"PMI_SIZE": "4"}, 4, 4),
    ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, 1, None), ({"PMIX_RANK": "0"}, 1, None),
])  # fmt: skip
def test_mpi_sees_all_processes(environ, size, horovod):
    launch_checks.check_world(environ, size, OPEN_MPI, horovod)


def test_two_mpi_libraries():
    text = text_of(launch_checks.check_one_mpi, ["/a/libmpi.so.40", "/b/libmpich.so.12"], OPEN_MPI)
    assert "2 MPI libraries: /a/libmpi.so.40, /b/libmpich.so.12" in text and f"built with {OPEN_MPI}" in text
    for one in ["/a/libmpi.so.40"], []:
        launch_checks.check_one_mpi(one, OPEN_MPI)


# ---- Settings.

BY_NODE = {"HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"}


def test_defaults_and_what_the_launcher_sets():
    read = settings.read_settings({})
    assert dataclasses.replace(read, arena_bytes=0) == settings.Settings(0, None, 30.0, 1800.0, "auto", 0)
    assert 64 << 20 < read.arena_bytes <= 4 << 30
    environ = {"HOROVOD_DATA_READERS": "1", "HOROVOD_DATA_STALL_SECONDS": "2.5", "HOROVOD_DATA_TIMEOUT": "0"}
    environ |= {"HOROVOD_DATA_PAYLOAD": "message", "HOROVOD_DATA_ARENA_MB": "0.5"}
    assert settings.read_settings(environ) == settings.Settings(1, None, 2.5, 0.0, "message", 1 << 19)


@pytest.mark.parametrize("environ, arguments, roles", [
    ({"HOROVOD_DATA_READERS": "3"}, {}, (3, None, False)),
    ({"HOROVOD_DATA_READERS": "1"}, {"readers": 0}, (0, None, False)),
    ({"HOROVOD_DATA_READERS": "2"}, {"readers_per_node": 0}, (2, None, False)),
    (BY_NODE, {}, (0, 1, True)),
    (BY_NODE, {"readers_per_node": 0}, (0, 1, True)),  # as None
    (BY_NODE, {"readers_per_node": 1, "embedded": False}, (0, 1, False)),
    (BY_NODE, {"readers": 2}, (2, None, False)),  # an argument wins over both
    (BY_NODE, {"readers": 0, "readers_per_node": 0}, (0, None, False)),
    ({"HOROVOD_DATA_EMBEDDED": "1"}, {"readers": 0}, (0, None, False)),
    ({"HOROVOD_DATA_EMBEDDED": "1"}, {"readers_per_node": 1}, (0, 1, True)),
    ({"HOROVOD_DATA_READERS_PER_NODE": "0"}, {}, (0, None, False)),
])  # fmt: skip
def test_roles(environ, arguments, roles):
    read = settings.read_settings(environ, **arguments)
    assert (read.readers, read.readers_per_node, read.embedded) == roles


@pytest.mark.parametrize("environ, arguments, error, text", [
    ({}, {"readers": -1}, ValueError, "readers must be 0 or more, not -1"),
    ({}, {"readers": "1"}, TypeError, "readers must be an integer, not '1'"),
    ({}, {"readers": True}, TypeError, "readers must be an integer, not True"),
    ({}, {"readers": np.True_}, TypeError, f"readers must be an integer, not {np.True_!r}"),
    ({}, {"readers_per_node": np.True_}, TypeError, f"readers_per_node must be an integer, not {np.True_!r}"),
    ({}, {"readers_per_node": 2}, ValueError, "readers_per_node=2: a host can have one reader of its own. Use readers_per_node=1"),
    ({}, {"embedded": True}, ValueError, "no readers per node were asked for. Use HOROVOD_DATA_READERS_PER_NODE=1 with it"),
    ({}, {"readers": 1, "embedded": True}, ValueError, "embedded=True says that each host's first trainer reads for its host, "
                                                       "but no readers per node were asked for. Use readers_per_node=1 with it"),
    ({"HOROVOD_DATA_EMBEDDED": "1"}, {}, ValueError, "HOROVOD_DATA_EMBEDDED=1 says that each host's first trainer reads"),
    ({"HOROVOD_DATA_EMBEDDED": "1", "HOROVOD_DATA_READERS": "1"}, {}, ValueError, "HOROVOD_DATA_EMBEDDED=1 says that each host's"),
    ({}, {"readers_per_node": 1, "embedded": 1}, TypeError, "embedded must be True or False, not 1"),
    ({"HOROVOD_DATA_EMBEDDED": "yes"}, {"readers_per_node": 1}, ValueError, "HOROVOD_DATA_EMBEDDED='yes' is neither 0 nor 1"),
    ({}, {"readers": 1, "readers_per_node": 1}, ValueError, "readers=1 and readers_per_node=1 contradict each other"),
    ({"HOROVOD_DATA_READERS": "two"}, {}, ValueError, "HOROVOD_DATA_READERS='two' is not a number of readers"),
    ({"HOROVOD_DATA_READERS_PER_NODE": "4"}, {}, ValueError, "HOROVOD_DATA_READERS_PER_NODE=4: a host can have one reader"),
    ({"HOROVOD_DATA_PAYLOAD": "pigeon"}, {}, ValueError, "Set HOROVOD_DATA_PAYLOAD to auto, message or arena, or unset it"),
    ({"HOROVOD_DATA_ARENA_MB": "1e-9"}, {}, ValueError, "HOROVOD_DATA_ARENA_MB='1e-9' is not a size in MiB of 0.01 or more"),
    ({"HOROVOD_DATA_ARENA_MB": "inf"}, {}, ValueError, "HOROVOD_DATA_ARENA_MB='inf' is not a size in MiB of 0.01 or more"),
    ({"HOROVOD_DATA_ARENA_MB": "1G"}, {}, ValueError, "HOROVOD_DATA_PAYLOAD=message does without shared memory"),
    ({"HOROVOD_DATA_TIMELINE_MB": "0"}, {}, ValueError, "HOROVOD_DATA_TIMELINE_MB='0' is not a size in MiB of 0.01 or more. Set "
                                                        "HOROVOD_DATA_TIMELINE_MB to a number such as 1024, or unset it."),
    ({"HOROVOD_DATA_PREFETCH_MB": "auto"}, {}, ValueError, "HOROVOD_DATA_PREFETCH_MB='auto' is not a size in MiB of 0.01 or more"),
    ({"HOROVOD_DATA_TIMEOUT": "soon"}, {}, ValueError, "HOROVOD_DATA_TIMEOUT='soon' is not a time in seconds"),
    ({"HOROVOD_DATA_TIMEOUT": "-1"}, {}, ValueError, "HOROVOD_DATA_TIMEOUT='-1'"),
    ({"HOROVOD_DATA_TIMEOUT": "nan"}, {}, ValueError, "HOROVOD_DATA_TIMEOUT='nan' is not a time in seconds of 0 or more"),
    ({"HOROVOD_DATA_STALL_SECONDS": "0"}, {}, ValueError, "_SECONDS='0' is not a time in seconds of 0.1"),
    ({"HOROVOD_DATA_STALL_SECONDS": "inf"}, {}, ValueError, "HOROVOD_DATA_STALL_SECONDS='inf' is not a time in seconds of 0.1 or more, and finite. Set "),
    ({"HOROVOD_DATA_PROGRESS": "bar"}, {}, ValueError, "HOROVOD_DATA_PROGRESS='bar' is neither 0 nor 1"),
    ({"HOROVOD_DATA_PROGRESS_SECONDS": "often"}, {}, ValueError, "_SECONDS='often' is not a time in seconds of 0.1 or more"),
    ({"HOROVOD_DATA_CHECK_REPLAY": "2"}, {}, ValueError, "HOROVOD_DATA_CHECK_REPLAY='2' is neither 0 nor 1"),
    ({"HOROVOD_DATA_ATTEMPT": "second"}, {}, ValueError, "HOROVOD_DATA_ATTEMPT='second' is not a number of attempts"),
    ({"HOROVOD_DATA_LEAVE_STATUS": "256"}, {}, ValueError, "HOROVOD_DATA_LEAVE_STATUS='256' is not an exit status. "
                                                           "Set HOROVOD_DATA_LEAVE_STATUS to a number from 1 to 125"),
])  # fmt: skip
def test_bad_settings(environ, arguments, error, text):
    with pytest.raises(error) as raised:
        settings.read_settings(environ, **arguments)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    "text, size", [("0.01", 10485), ("0.5", 1 << 19), ("17592186044416.1", 1 << 40), ("1e308", 1 << 40)]
)
def test_sizes_of_the_arena(text, size):
    assert settings.read_settings({"HOROVOD_DATA_ARENA_MB": text}).arena_bytes == size


@pytest.mark.parametrize("text, seconds", [("1e10", 1e8), ("1e300", 1e8), (" 2 ", 2)])
def test_times(text, seconds):
    names = ["HOROVOD_DATA_STALL_SECONDS", "HOROVOD_DATA_TIMEOUT", "HOROVOD_DATA_PROGRESS_SECONDS"]
    read = settings.read_settings(dict.fromkeys(names, text))
    assert (read.stall_seconds, read.timeout_seconds, read.progress_seconds) == (seconds, seconds, seconds)


@pytest.mark.parametrize("attempt, timeline", [("", "a/t.json"), ("1", "a/t.json"), ("3", "a/t.attempt3.json")])
def test_an_attempt_has_its_own_timeline(attempt, timeline):
    read = settings.read_settings({"HOROVOD_DATA_ATTEMPT": attempt, "HOROVOD_DATA_TIMELINE": "a/t.json"})
    assert (read.attempt, read.timeline, read.leave_status) == (int(attempt or 1), timeline, 75)
    assert settings.read_settings({"HOROVOD_DATA_ATTEMPT": attempt}).timeline == ""


def test_a_time_limit_may_be_short():
    assert settings.read_settings({"HOROVOD_DATA_TIMEOUT": "1e-9"}).timeout_seconds == 1e-9


# ---- A wait in init().


def test_a_process_that_was_delayed_reports_first_that_it_waits(capsys):
    """Both the stall time and the limit are over at its first look."""
    short = settings.read_settings({"HOROVOD_DATA_STALL_SECONDS": "0.1", "HOROVOD_DATA_TIMEOUT": "0.1"})
    wait = handshake.Wait("rank 0 on node0", 2, short)
    time.sleep(0.2)
    with pytest.raises(TimeoutError, match=r"\[rank 0 on node0\] After 0 s not all of the 2 processes have called"):
        wait.look()
    assert "[rank 0 on node0] waiting in init() for 0 s: not all of the 2 processes" in capsys.readouterr().err
