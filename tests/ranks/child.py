# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin on every rank. It runs the planned tests one at a time and records their outcomes.

A test begins when every rank is done with the one before. The outer side keeps the time limits and judges.
"""

from __future__ import annotations

import faulthandler
import json
import os
from pathlib import Path

import pytest

from ranks.exchange import Begun, Outcome, wait_for_all, wait_until_allowed, write_record
from ranks.worlds import World, limit_of, parametrize

# Beyond a test's own limit. The outer side has ended the job long before, unless it is dead.
ORPHAN_SECONDS = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ways", "for the outer side", type="linelist", default=[])


class Child:
    def __init__(self) -> None:
        self.directory = Path(os.environ["HVDATA_TEST_DIR"])
        self.rank = int(os.environ["HVDATA_TEST_RANK"])
        plan = json.loads((self.directory / "plan.json").read_text())
        self.world = World(**plan["world"])
        self.tests: list[str] = plan["tests"]
        self.outcome = Outcome("passed")

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.basetemp = str(self.directory / f"tmp.{self.rank}")  # its own, because pytest removes old folders

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        parametrize(metafunc, [self.world])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        missing = [test for test in self.tests if test not in found]
        if missing:
            raise pytest.UsageError(f"not collected on rank {self.rank}, which has {sorted(found)}: {missing}")
        items[:] = [found[test] for test in self.tests]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        index = self.tests.index(item.nodeid)
        if index == 0:
            wait_for_all(self.directory, self.rank, self.world.processes, ORPHAN_SECONDS)
        elif not wait_until_allowed(self.directory, index, limit_of(item.session.items[index - 1]) + ORPHAN_SECONDS):
            os._exit(75)
        faulthandler.dump_traceback_later(limit_of(item) + ORPHAN_SECONDS, exit=True)
        self.outcome = Outcome("passed")
        begun = Begun(os.fstat(1).st_size, os.fstat(2).st_size)
        write_record(self.directory, self.rank, index, begun=begun)
        yield
        faulthandler.cancel_dump_traceback_later()
        write_record(self.directory, self.rank, index, done=self.outcome)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self.outcome
        outcome.seconds += report.duration
        if report.failed:
            where = "" if report.when == "call" else f"in {report.when}:\n"
            outcome.text = "\n".join(filter(None, [outcome.text, where + report.longreprtext]))
            outcome.outcome = "failed"
        elif report.skipped and outcome.outcome == "passed":
            outcome.outcome = "skipped"
            if isinstance(report.longrepr, tuple):
                outcome.skip = [str(report.longrepr[0]), *report.longrepr[1:]]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # The records have the failed test. With a status other than 0 the launcher would end the other ranks.
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.fixture
    def shared_path(self, request: pytest.FixtureRequest) -> Path:
        """A folder for this test, the same on every rank. (Each rank has a tmp_path of its own.)"""
        path = self.directory / f"shared.{self.tests.index(request.node.nodeid)}"
        path.mkdir(exist_ok=True)
        return path


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Child(), "ranks-child")
