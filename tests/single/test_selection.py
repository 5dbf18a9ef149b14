# SPDX-License-Identifier: Apache-2.0
"""The two tiers of tests/ranks/selection.py: "commit" and "everything". The commit tier covers every feature."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ranks.selection import WHOLE_JOBS
from ranks.worlds import CAN_NAME_HOSTS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.limit(150)  # to collect all tests

# Prints a line with the facts of each test.
PLUGIN = """
import json
import pytest
@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    from dataclasses import asdict
    from ranks import selection, worlds
    from ranks.outer import job_of
    commit = set(selection.commit_tier(session.items))
    for item in session.items:
        mark, params = item.get_closest_marker("commit"), getattr(item, "callspec", None)
        print("TEST", json.dumps({
            "name": item.nodeid, "commit": item in commit, "slow": item.get_closest_marker("slow") is not None,
            "world": asdict(worlds.world_of(item)) if worlds.is_ranked(item.path) else None, "job": str(job_of(item)),
            "wanted": [selection.fits(worlds.world_of(item), wanted) for wanted in selection.worlds_named(item)],
            "cases": list(mark.args) if mark else [],
            "values": [[key, id(value)] for key, value in params.params.items() if key != "world"] if params else [],
        }))
"""


class Test(NamedTuple):
    __test__ = False
    name: str
    commit: bool
    slow: bool
    world: dict[str, Any] | None  # of tests/mpi
    job: str
    wanted: list[bool]  # whether this case's world is that of the mark, for each mark
    cases: list[str]  # the cases that the mark `commit` names
    values: list[list[Any]]

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]


def collect(folder: Path, *options: str) -> str:
    (folder / "tells.py").write_text(PLUGIN)
    run = f"import sys; sys.path.insert(0, {str(folder)!r}); import pytest; sys.exit(pytest.main())"
    arguments = [*options, "--collect-only", "-qq", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    command = [sys.executable, "-c", run, *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=140)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def tests(tmp_path_factory) -> list[Test]:
    said = collect(tmp_path_factory.mktemp("plugin"), str(ROOT / "tests"), "-p", "tells").splitlines()
    found = [Test(**json.loads(line.partition(" ")[2])) for line in said if line.startswith("TEST ")]
    assert len(found) > 1000
    return found


def ranked(tests: list[Test]) -> list[Test]:
    return [test for test in tests if test.world is not None and test.world["np"]]


def test_each_test_of_several_ranks_names_one_of_its_worlds(tests):
    """Worlds of several hosts exist only where a test may set host names."""
    for test in ranked(tests):
        assert test.wanted, f"{test.function} has no mark `world`, and neither has its module"
    if CAN_NAME_HOSTS:
        functions = {test.function for test in ranked(tests)}
        assert {test.function for test in ranked(tests) if any(test.wanted)} == functions


def test_only_slow_functions_are_left_out(tests):
    """Of tests with whole jobs, each file has one test in the commit tier, unless all tests of the file are slow."""
    chosen = {test.function for test in tests if test.commit}
    jobs = {test.function for test in tests if test.name.split("/")[1] in WHOLE_JOBS}
    fast = {test.function for test in tests if not test.slow}
    assert not [test.name for test in tests if test.slow and test.commit]
    if CAN_NAME_HOSTS:
        assert not fast - jobs - chosen
    assert {name.partition("::")[0] for name in fast & jobs} == {name.partition("::")[0] for name in chosen & jobs}


def test_every_value_of_a_parameter_occurs(tests):
    def values(some: list[Test]) -> set[tuple[str, str, int]]:
        return {(test.function, key, value) for test in some if any(test.wanted) for key, value in test.values}

    fast = [test for test in ranked(tests) if not test.slow]
    assert values([test for test in fast if test.commit]) == values(fast)


def test_a_named_case_is_there(tests):
    names = {test.name for test in tests}
    for test in tests:
        for case in test.cases:
            assert f"{test.function}[{case}]" in names, (test.function, case)


@pytest.mark.skipif(not CAN_NAME_HOSTS, reason="needs root, for host names of its own")
def test_all_numbers_of_ranks_ways_and_kinds_of_readers_occur(tests):
    """Dedicated readers of two hosts are in tests/cluster, as a job of horovod-data-run."""
    worlds = [test.world for test in ranked(tests) if test.commit]
    assert {world["np"] for world in worlds} == {1, 2, 3, 4}
    assert {world["way"] for world in worlds} == {"auto", "message", "arena", "two hosts"}
    assert {world["readers"] for world in worlds} >= {0, 2}
    assert {world["per_node"] for world in worlds} == {"", "embedded"}


def test_there_are_few_jobs(tests):
    """To start a job takes longer than most tests. So no world of the commit tier has few tests."""
    jobs = {(str(test.world), test.job) for test in ranked(tests) if test.commit}
    assert len(jobs) <= 13, sorted(jobs)


def test_the_option_chooses(tmp_path, tests):
    said = collect(tmp_path, "--commit", str(ROOT / "tests" / "mpi" / "test_modes.py"))
    chosen = [test for test in tests if test.commit and "/test_modes.py" in test.name]
    assert chosen and f"test_modes.py: {len(chosen)}" in said
