# SPDX-License-Identifier: Apache-2.0
"""`--quick` and `--rest` leave nothing out between them but more of the same, and so does `--quick`; both are `--once`."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks.selection import MOST, WHOLE_JOBS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TOLD = re.compile(r"^TEST (\S*) (slow|fast) (\d+) (.*)$", re.MULTILINE)

# Has the tests chosen with each option, and tells of each test whether it is slow, and its name.
PLUGIN = """
from types import SimpleNamespace
import pytest
@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    from ranks import selection
    from ranks.worlds import world_of
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    for option in ("", "--quick", "--rest", "--once"):
        items = list(session.items)
        selection.select(SimpleNamespace(getoption=lambda name: name == option.strip("-"), hook=hook), items)
        for item in items:
            print(f"TEST {option} {'slow' if item.get_closest_marker('slow') else 'fast'} {world_of(item).processes} {item.nodeid}")
"""


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """{option: {name: (whether slow, processes)}}"""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "tells.py").write_text(PLUGIN)
    run = f"import sys; sys.path.insert(0, {str(folder)!r}); import pytest; sys.exit(pytest.main())"
    command = [
        sys.executable,
        "-c",
        run,
        str(ROOT / "tests"),
        "--collect-only",
        "-qq",
        "-p",
        "tells",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
    ]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done
    told = TOLD.findall(done.stdout)
    return {
        option: {name: (slow == "slow", int(processes)) for of, slow, processes, name in told if of == option}
        for option in ("", "--quick", "--rest", "--once")
    }


def function_of(name: str) -> str:
    return name.partition("[")[0]


@pytest.mark.limit(300)
def test_both_together_have_every_case(chosen):
    """Those of tests/mpi not in each of their worlds; but a file that has more than a few has some in each. Of whole jobs every test."""
    every, quick, rest, once = (set(chosen[option]) for option in ("", "--quick", "--rest", "--once"))
    assert len(every) > 2000
    assert quick | rest == once <= every and not quick & rest

    def cases(names):
        return {
            re.sub(r"np=[^]-]*", "", name)
            if "[np=" in name
            else function_of(name)
            if name.split("/")[1] in WHOLE_JOBS
            else name
            for name in names
        }

    def worlds(names):
        return {(name.partition("::")[0], re.search(r"np=[^]-]*", name)[0]) for name in names if "[np=" in name}

    assert cases(once) == cases(every)
    lacking = worlds(every) - worlds(once)  # small files have not one test in each
    assert len(lacking) <= len(worlds(every)) / 5, lacking


def test_no_function_is_left_out_that_is_not_slow(chosen):
    """But some of whole jobs, of which each file has one."""

    def functions(option: str) -> tuple[set[str], set[str]]:
        fast = {function_of(name) for name, (slow, _) in chosen[option].items() if not slow}
        jobs = {name for name in fast if name.split("/")[1] in WHOLE_JOBS}
        return fast - jobs, jobs

    (others, jobs), (quick_others, quick_jobs) = functions(""), functions("--quick")
    assert quick_others == others
    files = [name.partition("::")[0] for name in quick_jobs]
    assert len(files) == len(set(files)) and set(files) == {name.partition("::")[0] for name in jobs}


def test_every_function_that_runs_on_several_ranks_quickly_does(chosen):
    def several(option: str) -> set[str]:
        return {function_of(name) for name, (slow, processes) in chosen[option].items() if processes > 1 and not slow}

    assert several("--quick") == several("")


def test_every_world_has_its_part(chosen):
    """But those of so many processes that they take long to start."""

    def worlds(option: str) -> collections.Counter:
        return collections.Counter(
            re.match(r"np=[^]-]*", name.partition("[")[2])[0]
            for name, (_, processes) in chosen[option].items()
            if 0 < processes <= MOST
        )

    quick = worlds("--quick")
    assert len(quick) > 8
    for world, number in worlds("").items():
        assert quick[world] >= number // 8, (world, number, quick)


@pytest.mark.parametrize("option", ["--quick", "--rest"])
def test_the_options_choose(chosen, option):
    """pytest itself collects what is chosen of this file; all of it is slow."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", option, "--collect-only", "-qq", __file__],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    here = [name for name in chosen[option] if Path(name.partition("::")[0]).name == Path(__file__).name]
    assert len(here) == (0 if option == "--quick" else 7)
    assert done.stdout.count("test_selection.py: 7") == (1 if here else 0), done


def test_only_one_of_the_two():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--quick", "--rest", "--collect-only", __file__],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and "give one of them, or none for all" in done.stderr, done
