# SPDX-License-Identifier: Apache-2.0
"""The runner of tests/mpi reports what happens on the ranks: in particular what a plain pytest would hang on or lose."""

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


@pytest.fixture
def outer(tmp_path):
    """Runs the text of a test file as tests/mpi/test_it.py of an empty project; what pytest printed, and its status."""

    def run(text: str, *arguments: str) -> tuple[str, int]:
        (tmp_path / "mpi").mkdir(exist_ok=True)
        (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
        (tmp_path / "mpi" / "test_it.py").write_text(PRELUDE + text)
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\nmarkers =\n  ranks(*n): .\n  readers(*n): .\n  limit(s): .\n  alone(**e): .\n  own_job: .\n  world(**k): .\n  slow: .\n"
        )
        env = {**os.environ, "PYTHONPATH": str(TESTS), "HVDATA_TEST_LIMIT": ""}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            str(tmp_path / "base"),
        ]
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170
        )
        return done.stdout + done.stderr, done.returncode

    return run


def outcomes(text: str) -> dict[str, str]:
    """{test: outcome} of pytest's short summary."""
    return {name: outcome for outcome, name in re.findall(r"^([A-Z]+) \S*::(\S+)", text, re.M)}


@pytest.mark.slow
def test_every_world_is_one_item_and_failures_name_their_ranks(outer):
    text, status = outer(
        """
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

@pytest.mark.ranks(2)
def test_after():
    pass

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
    )
    assert outcomes(text) == {
        "test_world[np=1-5]": "PASSED",
        "test_world[np=2-5]": "PASSED",
        "test_one_rank_fails[np=2]": "FAILED",
        "test_after[np=2]": "PASSED",
        "test_readers[np=1,readers=1]": "PASSED",
        "test_alone[np=2]": "PASSED",
        "test_skipped_on_one_rank[np=2]": "PASSED",
    }, text
    assert "1 failed, 6 passed, 1 skipped" in text
    assert "rank 1 of np=2 failed" in text and "not failed: rank 0" in text
    assert "this is rank 0" in text and "this is rank 1" in text
    assert status == 1


@pytest.mark.slow
def test_hang_shows_every_ranks_stacks_and_the_rest_still_runs(outer):
    text, _ = outer(
        """
pytestmark = [pytest.mark.ranks(2), pytest.mark.limit(3)]

def sleeps_for_ever():
    while True:
        time.sleep(1)

def test_before():
    pass

def test_hang():
    if RANK == 1:
        sleeps_for_ever()

def test_after():
    pass
"""
    )
    assert outcomes(text) == {
        "test_before[np=2]": "PASSED",
        "test_hang[np=2]": "FAILED",
        "test_after[np=2]": "PASSED",
    }, text
    assert re.search(r"time limit of [\d.]+ s: rank 1 was not done with this test", text), text
    assert "rank 0, done with the test: stacks" in text and "rank 1, in the test: stacks" in text
    assert "in sleeps_for_ever" in text and "wait_until_allowed" in text


@pytest.mark.slow
def test_crash_is_the_failure_of_its_test_alone(outer):
    text, _ = outer(
        """
pytestmark = pytest.mark.ranks(2)

def test_crash():
    if RANK == 1:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(20)

def test_after():
    pass
"""
    )
    assert outcomes(text) == {"test_crash[np=2]": "FAILED", "test_after[np=2]": "PASSED"}, text
    assert "the job ended with status" in text and "not done with this test" in text
    assert "last words" in text and "Segmentation fault" in text


@pytest.mark.slow
def test_a_failed_rank_does_not_keep_the_others_waiting(outer):
    text, _ = outer(
        """
@pytest.mark.ranks(2)
@pytest.mark.limit(100)
def test_waits():
    assert RANK == 0
    time.sleep(90)
"""
    )
    assert outcomes(text) == {"test_waits[np=2]": "FAILED"}, text
    assert "after a rank failed, rank 0 was still in this test" in text
    assert "assert 1 == 0" in text


@pytest.mark.slow
def test_bad_end_of_the_job_is_an_error(outer):
    text, status = outer(
        """
import atexit

@pytest.mark.ranks(1)
def test_fine():
    atexit.register(os._exit, 9)
"""
    )
    assert "1 passed, 1 error" in text and "the job ended with status 9 after its last test" in text
    assert status == 1


@pytest.mark.slow
def test_job_that_cannot_start_fails_all_its_tests_once(outer):
    text, _ = outer(
        """
if RANK is not None:
    sys.exit("not on this rank")

pytestmark = pytest.mark.ranks(2)

def test_one():
    pass

def test_two():
    pass
"""
    )
    assert outcomes(text) == {"test_one[np=2]": "FAILED", "test_two[np=2]": "FAILED"}, text
    assert "not on this rank" in text and "not run: see the first failure" in text


@pytest.mark.slow
def test_only_what_is_selected_is_launched(outer, tmp_path):
    text, status = outer(
        """
def test_one():
    pass

def test_two():
    pass
""",
        "--np", "2", "-k", "two",
    )  # fmt: skip
    assert outcomes(text) == {"test_two[np=2]": "PASSED"}, text
    assert len(list((tmp_path / "base").glob("job[0-9]"))) == 1
    assert status == 0


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


def test_the_commit_tier_has_each_test_in_the_world_that_it_names(outer):
    text, status = outer("""
pytestmark = pytest.mark.world(np=2)

def test_one(): pass

@pytest.mark.world(np=1)
@pytest.mark.parametrize("a", "xy")
@pytest.mark.parametrize("b", "xy")
def test_two(a, b): pass

@pytest.mark.slow
def test_three(): pass
""", "--commit")  # fmt: skip
    assert status == 0, text
    assert outcomes(text) == {
        "test_one[np=2]": "PASSED",
        "test_two[np=1-x-x]": "PASSED",
        "test_two[np=1-y-y]": "PASSED",
    }


def test_a_test_without_a_world_is_in_no_tier(outer):
    text, status = outer("def test_one(): pass", "--commit")
    assert status == pytest.ExitCode.USAGE_ERROR and "test_one[np=1]: no mark `world`" in text, text
