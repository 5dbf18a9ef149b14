# SPDX-License-Identifier: Apache-2.0
"""The tests that run in one world. They share a job; after a failure that may have left the ranks out of step a fresh
one starts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from ranks.exchange import Outcome, Records, allow, records_path
from ranks.launch import RunningJob
from ranks.slowness import slowness
from ranks.worlds import World, environment_of, limit_of

LAUNCH_SECONDS = 180.0 * slowness()  # to import TensorFlow on every rank at once, on a machine with few cores
GRACE_SECONDS = 10.0 * slowness()  # for the other ranks once one has failed; they may wait for it in MPI for ever
# For the ranks to shut down and finalize MPI, also on slow machines.
END_SECONDS = 2 * slowness() * max(60.0, float(os.environ.get("HVDATA_TEST_LIMIT") or 0))
TAIL = 6000  # characters of output that a report shows

RUN = Path(__file__).with_name("run.py")


@dataclass
class Verdict(Outcome):
    """The outcome of a test over all ranks."""

    sections: list[tuple[str, str]] = field(default_factory=list)
    ending: str = ""  # the error of a job that ended badly after its last test


class Group:
    def __init__(
        self, config: pytest.Config, world: World, items: list[pytest.Item], folder: Callable[[], Path]
    ) -> None:
        self._config = config
        self._world = world
        self._items = items
        self._folder = folder
        self._job: RunningJob | None = None
        self._first = 0  # index in _items of the job's first test
        self._records: list[Records] = []
        self._dead = ""  # why no job of this group can run

    def run(self, item: pytest.Item) -> Verdict:
        index = self._items.index(item)
        if self._dead:
            return Verdict("failed", f"not run: see the first failure with {self._world}.\n{self._dead}")
        if self._job is None:
            self._launch(index)
        elif index > self._first:
            allow(self._job.directory, index - self._first)
        verdict = self._wait(item, index - self._first)
        if self._job is not None and index + 1 == len(self._items):
            verdict.ending = self._finish()
        return verdict

    def end(self) -> None:
        if self._job is not None:
            self._job.kill()
            self._job = None

    def _launch(self, index: int) -> None:
        self._first = index
        directory = self._folder()
        left = self._items[index:]
        tests, files = [item.nodeid for item in left], dict.fromkeys(str(item.path) for item in left)
        (directory / "plan.json").write_text(json.dumps({"world": asdict(self._world), "tests": tests}))
        command = [
            sys.executable, str(RUN), *files, "-q", "-s", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers",
            "--rootdir", str(self._config.rootpath), *(["-c", str(self._config.inipath)] if self._config.inipath else []),
        ]  # fmt: skip
        env: dict[str, str | None] = {"HVDATA_TEST_JOB": "1", "HVDATA_TEST_PROCESSES": str(self._world.processes),
                                      **self._world.environment, **dict(environment_of(self._items[index]) or ())}  # fmt: skip
        self._job = RunningJob(command, self._world.processes, directory, readers=self._world.readers, env=env)
        self._records = [Records(records_path(directory, rank)) for rank in range(self._world.processes)]

    def _wait(self, item: pytest.Item, test: int) -> Verdict:
        """Waits until every rank is done with test number `test` of the job, or one of them never will be."""
        job = self._job
        assert job is not None
        launched = time.monotonic()
        begun = failed = None
        while True:
            ended = job.poll()  # before the records: a job that has ended writes no more
            for records in self._records:
                records.refresh()
            outcomes = {rank: records.done[test] for rank, records in enumerate(self._records) if test in records.done}
            if len(outcomes) == len(self._records):
                return self._judge(test, outcomes)
            now = time.monotonic()
            if begun is None and any(test in records.begun for records in self._records):
                begun = now
            if failed is None and any(outcome.outcome == "failed" for outcome in outcomes.values()):
                failed = now
            trouble = ""
            if ended is not None:
                trouble = f"the job ended with status {ended} while {self._missing(outcomes)} not done with this test"
            elif failed is not None and now - failed > GRACE_SECONDS:
                trouble = f"{GRACE_SECONDS:g} s after a rank failed, {self._missing(outcomes)} still in this test"
            elif begun is not None and now - begun > limit_of(item):
                trouble = f"time limit of {limit_of(item):g} s: {self._missing(outcomes)} not done with this test"
            elif begun is None and now - launched > LAUNCH_SECONDS:
                trouble = f"no rank has begun the test {LAUNCH_SECONDS:g} s after the job's launch"
            if trouble:
                return self._give_up(test, trouble, outcomes, begun is None and test == 0)
            time.sleep(0.005)

    def _missing(self, outcomes: dict[int, Outcome]) -> str:
        ranks = [str(rank) for rank in range(self._world.processes) if rank not in outcomes]
        return f"rank {ranks[0]} was" if len(ranks) == 1 else f"ranks {', '.join(ranks)} were"

    def _judge(self, test: int, outcomes: dict[int, Outcome]) -> Verdict:
        kinds = {outcome.outcome for outcome in outcomes.values()}
        some = next(iter(outcomes.values()))
        seconds = max(outcome.seconds for outcome in outcomes.values())
        if "failed" in kinds:
            verdict = Verdict("failed", self._failures(outcomes), seconds=seconds, sections=self._output(test))
            if len(kinds) > 1:
                self.end()  # some ranks went further than others, and the next test would meet the rest of this one
            return verdict
        if kinds == {"skipped"}:
            return Verdict("skipped", skip=some.skip, seconds=seconds)
        return Verdict("passed", seconds=seconds)

    def _failures(self, outcomes: dict[int, Outcome]) -> str:
        """The text of every failed rank. Equal texts are shown once."""
        texts: dict[str, list[str]] = {}
        for rank, outcome in sorted(outcomes.items()):
            if outcome.outcome == "failed":
                texts.setdefault(outcome.text, []).append(str(rank))
        well = [str(rank) for rank, outcome in sorted(outcomes.items()) if outcome.outcome != "failed"]
        parts = [
            f"===== rank {', '.join(ranks)} of {self._world} failed =====\n{text}" for text, ranks in texts.items()
        ]
        return "\n\n".join(parts + ([f"(not failed: rank {', '.join(well)})"] if well else []))

    def _give_up(self, test: int, trouble: str, outcomes: dict[int, Outcome], unbegun: bool) -> Verdict:
        job = self._job
        assert job is not None
        stacks = job.stacks() if job.poll() is None else {}
        sections = self._output(test, unbegun)
        self.end()
        parts = [f"{self._world}: {trouble}", self._failures(outcomes)]
        for rank, text in stacks.items():
            state = "done with the test" if rank in outcomes else "in the test"
            parts.append(f"===== rank {rank}, {state}: stacks =====\n{text}")
        parts.append(job.findings()[:TAIL])
        if not stacks:
            parts.append(f"===== the launcher's output =====\n{job.log()[-TAIL:]}")
        text = "\n\n".join(filter(None, parts))
        if unbegun:
            self._dead = trouble
        return Verdict("failed", text, sections=sections)

    def _output(self, test: int, whole: bool = False) -> list[tuple[str, str]]:
        """The output of each rank since the test began."""
        job = self._job
        assert job is not None
        sections = []
        for rank, records in enumerate(self._records):
            begun = records.begun.get(test)
            for kind in ("out", "err"):
                if begun or whole:
                    text = job.read(kind, rank, getattr(begun, kind) if begun else 0).strip(". \n")
                    if text:
                        sections.append((f"std{kind} of rank {rank}", text[-TAIL:]))
        return sections

    def _finish(self) -> str:
        """After the last test the job must end by itself, with status 0."""
        job = self._job
        assert job is not None
        status = job.wait(END_SECONDS)
        findings = job.findings()
        trouble = ""
        if status is None:
            stacks = job.stacks()
            trouble = f"{self._world}: the job had not ended {END_SECONDS:g} s after its last test"
            trouble += "".join(f"\n\n===== rank {rank}: stacks =====\n{text}" for rank, text in stacks.items())
        elif status:
            trouble = f"{self._world}: the job ended with status {status} after its last test\n{job.log()[-TAIL:]}"
            trouble += "".join(
                f"\n===== std{kind} of rank {rank} =====\n{job.read(kind, rank)[-TAIL:]}"
                for rank in range(self._world.processes)
                for kind in ("out", "err")
            )
        elif findings:
            trouble = f"{self._world}: sanitizers found errors in this job, perhaps in a test before this one"
        self.end()
        return "\n\n".join(filter(None, [trouble, findings[:TAIL]]))
