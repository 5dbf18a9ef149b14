# SPDX-License-Identifier: Apache-2.0
"""The runner of tests/mpi reports what happens on the ranks, also what would make a plain pytest hang."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import launch

TESTS = Path(__file__).parent.parent

pytestmark = pytest.mark.limit(180)  # seconds; each of these starts a pytest that starts pytests

PRELUDE = """
import os, signal, sys, time
import pytest
from ranks import launch
RANK = int(os.environ["HVDATA_TEST_RANK"]) if "HVDATA_TEST_RANK" in os.environ else None
"""


MARKS = ["ranks(*n)", "readers(*n)", "limit(s)", "alone(**e)", "own_job", "world(**k)", "slow"]


@pytest.fixture
def outer(tmp_path):
    """Runs the text as tests/mpi/test_it.py of an empty project. Returns what pytest printed, and its status."""

    def run(text: str, *arguments: str) -> tuple[str, int]:
        (tmp_path / "mpi").mkdir(exist_ok=True)
        (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
        (tmp_path / "mpi" / "test_it.py").write_text(PRELUDE + text)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n" + "".join(f"  {mark}: .\n" for mark in MARKS))
        env = {**os.environ, "PYTHONPATH": str(TESTS), "HVDATA_TEST_LIMIT": ""}
        options = ["-rA", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base"), *arguments]
        command = [sys.executable, "-m", "pytest", *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170)
        return done.stdout + done.stderr, done.returncode

    return run


def outcomes(text: str) -> dict[str, str]:
    """{test: outcome} of pytest's short summary."""
    return {name: outcome for outcome, name in re.findall(r"^([A-Z]+) \S*::(\S+)", text, re.M)}


WORLDS = """
@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("x", [5])
def test_world(world, x, shared_path):
    (shared_path / str(RANK)).touch()
    while len(list(shared_path.iterdir())) < world.np:  # the same folder on all ranks, which run at the same time
        time.sleep(0.01)
    assert int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ["PMI_SIZE"]) == world.np

@pytest.mark.ranks(2)
def test_one_rank_fails():
    print("this is rank", RANK)
    assert RANK != 1

@pytest.mark.ranks(1)
@pytest.mark.readers(1)
def test_readers():
    assert os.environ["HOROVOD_DATA_READERS"] == "1"

@pytest.mark.ranks(2)
@pytest.mark.alone(HVDATA_TEST_FLAVOUR="sweet")
def test_alone():
    assert os.environ["HVDATA_TEST_FLAVOUR"] == "sweet"

@pytest.mark.ranks(2)
def test_skipped():
    pytest.skip("no need")

@pytest.mark.ranks(2)
def test_skipped_on_one_rank():
    if RANK:
        pytest.skip("no need")
"""


@pytest.mark.slow
def test_every_world_is_one_item_and_failures_name_their_ranks(outer):
    text, status = outer(WORLDS)
    passed = ["world[np=1-5]", "world[np=2-5]", "readers[np=1,readers=1]", "alone[np=2]", "skipped_on_one_rank[np=2]"]
    found = {**{f"test_{name}": "PASSED" for name in passed}, "test_one_rank_fails[np=2]": "FAILED"}
    assert outcomes(text) == found, text
    assert "1 failed, 5 passed, 1 skipped" in text and status == 1
    assert "rank 1 of np=2 failed" in text and "not failed: rank 0" in text
    assert "this is rank 0" in text and "this is rank 1" in text


HANG = """
@pytest.mark.limit(3)
def test_hang():
    def sleeps_for_ever():
        while True:
            time.sleep(1)
    if RANK == 1:
        sleeps_for_ever()

def test_after():
    pass
"""
CRASH = """
def test_crash():
    if RANK == 1:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(20)

def test_after():
    pass
"""
ONE_RANK_FAILS = """
@pytest.mark.limit(100)
def test_waits():
    assert RANK == 0
    time.sleep(90)
"""
BAD_END = """
def test_fine():
    import atexit
    atexit.register(os._exit, 9)
"""
NO_START = """
if RANK is not None:
    sys.exit("not on this rank")

def test_one():
    pass

def test_two():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("program, found, says", [
    (HANG, {"test_hang": "FAILED", "test_after": "PASSED"}, [
        r"time limit of [\d.]+ s: rank 1 was not done with this test", "rank 0, done with the test: stacks",
        "rank 1, in the test: stacks", "in sleeps_for_ever", "wait_until_allowed"]),
    (CRASH, {"test_crash": "FAILED", "test_after": "PASSED"}, [
        "the job ended with status", "not done with this test", "last words", "Segmentation fault"]),
    (ONE_RANK_FAILS, {"test_waits": "FAILED"}, ["after a rank failed, rank 0 was still in this test", "assert 1 == 0"]),
    (BAD_END, {"test_fine": "ERROR"}, ["1 passed, 1 error", "the job ended with status 9 after its last test"]),
    (NO_START, {"test_one": "FAILED", "test_two": "FAILED"}, ["not on this rank", "not run: see the first failure"]),
], ids=["hang", "crash", "one rank fails", "bad end", "no start"])  # fmt: skip
def test_what_goes_wrong_is_told(outer, program, found, says):
    """A wrong test fails alone, and the other tests run."""
    text, status = outer(f"pytestmark = pytest.mark.ranks(2)\n{program}")
    assert outcomes(text) == {f"{name}[np=2]": outcome for name, outcome in found.items()}, text
    for part in says:
        assert re.search(part, text), text
    assert status == 1


def test_files_share_a_job_unless_one_wants_its_own(outer, tmp_path):
    says = "import os, pathlib, pytest\n{}\ndef test(): pathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))\n"
    (tmp_path / "mpi").mkdir()
    (tmp_path / "mpi" / "test_a.py").write_text(says.format(""))
    (tmp_path / "mpi" / "test_b.py").write_text(says.format("pytestmark = pytest.mark.own_job"))
    text, status = outer(says.format(""), "--np", "1")
    assert status == 0 and "3 passed" in text, text
    a, b, it = ((tmp_path / "mpi" / f"test_{name}.pid").read_text() for name in ("a", "b", "it"))
    assert a == it != b
    assert len(list((tmp_path / "base").glob("job[0-9]"))) == 2


def test_a_run_without_a_passed_test_is_no_success(outer):
    _, status = outer("@pytest.mark.ranks(1)\ndef test_skip(): pytest.skip('all of it')")
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_job_has_a_garbage_collector_once_tensorflow_is_imported(tmp_path):
    code = "import tensorflow, gc; print(gc.isenabled(), gc.get_freeze_count() > 100_000, tensorflow.__spec__.loader)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=launch.environment(tmp_path, 0, {}), capture_output=True, text=True
    )
    assert re.fullmatch(r"True True <\S+SourceFileLoader object at \S+>\n", done.stdout), done.stdout + done.stderr


def test_a_test_without_a_world_is_in_no_tier(outer):
    text, status = outer("def test_one(): pass", "--commit")
    assert status == pytest.ExitCode.USAGE_ERROR and "test_one[np=1]: no mark `world`" in text, text
