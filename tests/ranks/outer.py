# SPDX-License-Identifier: Apache-2.0
"""The plugin of the pytest that the user starts. Every test has a time limit.

Tests in a folder named mpi/ run in jobs of several ranks. All other tests run in this process.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ranks import selection
from ranks.group import Group, Verdict
from ranks.worlds import World, environment_of, is_ranked, limit_of, parametrize, world_of, worlds_of

GROUP = pytest.StashKey[Group]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ways", "how batches travel, by number of ranks (tests/mpi)", type="linelist", default=[])
    parser.addoption("--np", action="append", type=int, default=[], help="only these numbers of ranks (tests/mpi)")
    parser.addoption(
        "--way", action="append", default=[], help='at each number of ranks: message, arena, "two hosts", auto'
    )
    selection.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if is_ranked(metafunc.definition.path):
        parametrize(metafunc, worlds_of(metafunc, metafunc.config.getoption("np"), metafunc.config.getoption("way")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Brings the tests of a job together."""
    selection.select(config, items)
    files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    ranked = min((files[item.path] for item in items if is_ranked(item.path)), default=0)

    def order(item: pytest.Item) -> tuple[int, World, bool, int]:
        if not is_ranked(item.path):
            return files[item.path], World(0), False, 0
        return ranked, world_of(item), job_of(item) is not None, files[item.path]

    items.sort(key=order)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Called by pytest-xdist if it has the option -n."""
    from ranks.workers import Shares

    return Shares(config, log)


def job_of(item: pytest.Item) -> str | Path | None:
    """Names the item's job if it isn't that of its world."""
    if environment_of(item) is not None:
        return item.nodeid
    return item.path if item.get_closest_marker("own_job") else None


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    base: Callable[[], Path] = lambda: session.config._tmp_path_factory.mktemp("job")  # type: ignore[attr-defined]

    def key(item: pytest.Item) -> tuple[World, str | Path | None]:
        return world_of(item), job_of(item)

    # The world is 0 where --np or an empty parameter list left nothing to run.
    ranked = [item for item in session.items if is_ranked(item.path) and world_of(item).np]
    for (world, _), members in itertools.groupby(ranked, key):
        tests = list(members)
        group = Group(session.config, world, tests, base)
        for item in tests:
            item.stash[GROUP] = group


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    group = item.stash.get(GROUP, None)
    if group is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    started = time.time()
    for report in reports(item, group.run(item), started):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if item.session.shouldfail or item.session.shouldstop:
        group.end()
    return True


def reports(item: pytest.Item, verdict: Verdict, started: float) -> list[pytest.TestReport]:
    def report(when: str, outcome: str, longrepr: Any, sections: list[tuple[str, str]]) -> pytest.TestReport:
        return pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, when,  # type: ignore[arg-type]
            sections, verdict.seconds if when == "call" else 0.0, started, time.time(),
        )  # fmt: skip

    longrepr: Any = verdict.text if verdict.outcome == "failed" else None
    if verdict.outcome == "skipped" and verdict.skip:
        longrepr = tuple(verdict.skip)
    made = [
        report("setup", "passed", None, []),
        report("call", verdict.outcome, longrepr, verdict.sections),
        report("teardown", "passed", None, []),
    ]
    if verdict.ending:
        made[-1] = report("teardown", "failed", verdict.ending, [])
    return made


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """The time limit of a test that runs here. It is raised in the main thread, where Python code can be stopped."""

    def late(number: int, frame: Any) -> None:
        pytest.fail(f"the test took longer than its limit of {limit_of(item):g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_of(item))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    for item in getattr(session, "items", ()):  # none in the process that only distributes tests to workers
        group = item.stash.get(GROUP, None)
        if group is not None:
            group.end()
    # A run that skipped every test proves nothing.
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal and session.exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly:
        if not terminal.stats.get("passed"):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
