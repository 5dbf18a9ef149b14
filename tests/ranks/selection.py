# SPDX-License-Identifier: Apache-2.0
"""The two tiers. Without an option pytest runs everything: all tests, in all of their worlds.

With `--commit` it runs the commit tier:

- a test of tests/mpi in the world that its mark `world` names (the function's, else the module's);
- of a function of tests/mpi with many cases as many as show each value of each parameter;
- of tests of whole jobs (in folders of their own) those that are marked `commit`, because each takes seconds to start;
- all other tests;
- none that is marked `slow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from ranks.worlds import World, is_ranked, world_of

WHOLE_JOBS = ("cluster", "examples", "faults", "slurm", "soak")  # folders


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--commit", action="store_true", help="the commit tier (`make test`); without it: everything")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("commit"):
        chosen = set(commit_tier(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


def commit_tier(items: Iterable[pytest.Item]) -> Iterable[pytest.Item]:
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        if is_ranked(cases[0].path):
            if not worlds_named(cases[0]):
                raise pytest.UsageError(f"{cases[0].nodeid}: no mark `world`, and none of the module, for --commit")
            yield from with_all_values([case for case in cases if is_in_its_world(case)])
        elif cases[0].path.parent.name in WHOLE_JOBS:
            yield from (case for case in cases if is_marked_commit(case))
        else:
            yield from cases


def is_marked_commit(item: pytest.Item) -> bool:
    """`commit` stands for all cases, `commit("a", "b")` for the cases with these ids."""
    mark = item.get_closest_marker("commit")
    case = item.nodeid.partition("[")[2].removesuffix("]")
    return mark is not None and (not mark.args or case in mark.args)


def is_in_its_world(item: pytest.Item) -> bool:
    world = world_of(item)
    return any(fits(world, wanted) for wanted in worlds_named(item))


def worlds_named(item: pytest.Item) -> list[dict[str, object]]:
    """The arguments of the marks `world` of the function, or of its module if the function has none."""
    marks = list(item.iter_markers_with_node("world"))
    return [mark.kwargs for node, mark in marks if node is marks[0][0]]


def fits(world: World, wanted: dict[str, object]) -> bool:
    return all(getattr(world, name) == value for name, value in wanted.items())


def with_all_values(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Cases that show each value of each parameter. Repeatedly takes the first case with the most values that no chosen
    case has."""

    def values(case: pytest.Item) -> set[tuple[str, int]]:
        callspec = getattr(case, "callspec", None)
        return {(name, id(value)) for name, value in callspec.params.items() if name != "world"} if callspec else set()

    chosen = [*cases[:1]]
    seen = {value for case in chosen for value in values(case)}
    while (best := max(cases, key=lambda case: len(values(case) - seen), default=None)) and values(best) - seen:
        chosen.append(best)
        seen |= values(best)
    return sorted(chosen, key=cases.index)
