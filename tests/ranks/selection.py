# SPDX-License-Identifier: Apache-2.0
"""`--quick`: a part of the tests that answers in minutes and leaves out no feature; `--rest`: what of `--once` it leaves out;
`--once`: each test of tests/mpi in one of its worlds, and of the tests of whole jobs enough cases. Without any of them all
tests run, in all worlds. By rule:

- with `--once` a test of tests/mpi runs in one of its worlds, the next one in another; of a function of whole jobs that has
  more than FEW cases so many run that each value of each of its parameters is among them;
- of a function of tests/mpi with many cases so many run that each value of each of its parameters is among them, FEW at least;
- a test of tests/mpi runs in one of its worlds of several processes, MOST at most, and one in five also in that of one
  process. Its name says in which, so that each world gets its part, the smallest two, and other tests have no say in it. Where a
  file has a job of its own, the file's name says it for all of its tests;
- with `--quick` a test in whose world there are fewer than LEAST runs in that of its worlds where there are most: a job takes
  longer to start than they do;
- of tests of whole jobs (folders, and what is marked so), which take seconds to start, the first function of each file runs;
  of it, or of one that has a job of its own, one case: that in the middle, for the first is often a job of one rank, and the last
  an odd one.
"""

from __future__ import annotations

import collections
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ranks.worlds import World, environment_of, is_ranked, world_of

MOST = 5  # more take longer to start than most tests take
FEW = 2
LEAST = 5
WHOLE_JOBS = ("cluster", "examples", "faults", "slurm", "soak")  # folders


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a part of the tests that covers every feature, in minutes")
    parser.addoption(
        "--once",
        action="store_true",
        help="each test of tests/mpi in one world, all values of the parameters of whole jobs",
    )
    parser.addoption("--rest", action="store_true", help="what of --once is not in --quick")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    parts = [name for name in ("quick", "rest", "once") if config.getoption(name)]
    if len(parts) > 1:
        raise pytest.UsageError(
            "--quick, --rest and --once are parts of the tests: give one of them, or none for all tests in all worlds"
        )
    if parts:
        quick = set(quick_ones(items))
        once = quick | set(each_once(items))
        wanted = {"quick": quick, "rest": once - quick, "once": once}[parts[0]]
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]


def each_once(items: Iterable[pytest.Item]) -> Iterable[pytest.Item]:
    """Those of --once, but for some that are quick."""
    for function, tests in by_function(items).items():
        if is_ranked(tests[0].path):
            for name, same in by_case(function, tests).items():
                worlds = worlds_chosen(name_for_worlds(name, same), [world_of(test) for test in same])
                yield from (test for test in same if world_of(test) in worlds)
        elif is_whole_job(tests[0]):
            yield from (same[0] for _, same in with_all_values([(test.nodeid, [test]) for test in tests]))
        else:
            yield from tests


def is_whole_job(test: pytest.Item) -> bool:
    return test.path.parent.name in WHOLE_JOBS or test.get_closest_marker("whole_job") is not None


def by_function(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return found


def by_case(function: str, tests: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The same case in its worlds: test_x[np=1-case], test_x[np=2,message-case]."""
    found: dict[str, list[pytest.Item]] = {}
    for test in tests:
        found.setdefault(f"{function}[{test.nodeid.partition(f'[{world_of(test)}')[2]}", []).append(test)
    return found


def quick_ones(items: Iterable[pytest.Item]) -> Iterable[pytest.Item]:
    ranked = []
    files = set()  # of whole jobs, that have a test already
    for function, cases in by_function(items).items():
        tests = [case for case in cases if not case.get_closest_marker("slow")]
        if tests and is_ranked(tests[0].path):
            named = list(by_case(function, tests).items())
            alone = environment_of(tests[0]) is not None
            for name, same in one_in_the_middle(named) if alone else with_all_values(named):
                ranked.append((same, worlds_chosen(name_for_worlds(name, same), [world_of(test) for test in same])))
        else:
            if not tests or not is_whole_job(tests[0]):
                yield from tests
            elif tests[0].path not in files:
                files.add(tests[0].path)
                yield from one_in_the_middle(tests)
    for same, worlds in in_larger_worlds(ranked):
        yield from (test for test in same if world_of(test) in worlds)


def in_larger_worlds(
    chosen: list[tuple[list[pytest.Item], set[World]]],
) -> Iterable[tuple[list[pytest.Item], set[World]]]:
    def joins(test: pytest.Item) -> bool:
        return environment_of(test) is None and test.get_closest_marker("own_job") is None

    sizes = collections.Counter(world for same, worlds in chosen if joins(same[0]) for world in worlds)

    for same, worlds in chosen:
        several = [world for world in map(world_of, same) if 1 < world.processes <= MOST]
        small = {
            world for world in worlds if joins(same[0]) and 1 < world.processes and sizes[world] < LEAST and several
        }
        largest = max(several, key=lambda world: (sizes[world], -world.processes, world.np), default=None)
        yield same, worlds - small | {largest} if small else worlds


def with_all_values(cases: list[tuple[str, list[pytest.Item]]]) -> list[tuple[str, list[pytest.Item]]]:
    """Each value of each parameter is that of one of these. Which ones: by name, for every other would leave out a value of two."""
    seen: set[tuple[str, int]] = set()
    chosen = []
    for name, same in sorted(cases, key=lambda case: zlib.crc32(case[0].encode())):
        callspec = getattr(same[0], "callspec", None)
        values = {(key, id(value)) for key, value in callspec.params.items() if key != "world"} if callspec else set()
        if len(chosen) < FEW or not values <= seen:
            seen |= values
            chosen.append((name, same))
    return chosen


def one_in_the_middle(cases: list[Any]) -> list[Any]:
    return cases[len(cases) // 2 :][:1]


def name_for_worlds(name: str, same: Sequence[pytest.Item]) -> str:
    return name.partition("::")[0] if same[0].get_closest_marker("own_job") else name


def worlds_chosen(name: str, worlds: Sequence[World]) -> set[World]:
    """Those in which the test of this name is quick."""
    several = sorted((world for world in worlds if world.processes > 1), key=lambda world: world.processes)
    several = [world for world in several if world.processes <= MOST] or several
    one = [world for world in worlds if world.processes == 1]
    number = zlib.crc32(name.encode())
    return {several[number % (len(several) + 1) % len(several)], *one[: number // 64 % 5 == 0]} if several else set(one)
