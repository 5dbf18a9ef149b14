# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs with --quick, and its page has all the parts of the published one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks.launch import environment, launcher, open_mpi

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "cluster"))
from bed import why_not  # noqa: E402

BENCHMARKS = sorted(path.stem.removeprefix("benchmark_") for path in (ROOT / "docs").glob("benchmark_*.md"))
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "launch.parsed(" in path.read_text())
ON_HOSTS = {"epoch_cache", "hosts", "scaling"}
FIGURE = re.compile(r"[+-]?[\d.,]+( ([KMG]iB|ms))?|yes|no|-+:?|")


def parts(page: str) -> set[str]:
    """Returns the headings of a page, and the rivals, columns, pipelines and modes of its tables.

    Figures, sizes, and numbers of ranks or hosts are left out.
    """
    found = set(re.findall(r"^## .*$", page, re.MULTILINE))
    for line in re.findall(r"^\| (.*) \|$", page, re.MULTILINE):
        found |= {cell.strip() for cell in line.split("|")}
    found = {
        re.sub(
            r"^\d+ ranks, ((a core each|not pinned): )?|, \d+ [KM]iB$|: (\d+ of )?at most \d+$|, (cycle [\d.]+ ms|without Horovod)$",
            "",
            part,
        )
        for part in found
    }
    return {part for part in found if not FIGURE.fullmatch(re.sub(r" ?\([\d.,-]+\)|[%x]", "", part))}


def ran(folder, *command, **environ) -> str:
    """What the command prints."""
    env = environment(folder, 0, environ)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(name: str) -> list[str]:
    return [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]


@pytest.mark.slow
@pytest.mark.limit(200)
def test_versions_run_in_turns(tmp_path):
    runs = [f"one={ROOT}", f"other={ROOT},HOROVOD_DATA_VERIFY=1"]
    said = ran(tmp_path, *program("versions"), "--mpirun", " ".join(launcher()), *runs)
    assert "| microseconds | one | other | other - one |" in said, said
    steps = r"^\| 4 KiB, 1 rank, prefetch=64: a step \| [\d.]+ \| [\d.]+ \| [+-][\d.]+ \|$"
    assert len(re.findall(steps, said, re.MULTILINE)) == 1, said


def test_every_benchmark_has_a_page():
    assert set(BENCHMARKS) == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.limit(300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_all_parts_of_a_benchmark_run(name, tmp_path):
    if name in ON_HOSTS and (reason := why_not() if open_mpi() else "the simulated hosts are for Open MPI"):
        pytest.skip(reason)
    command = [*program(name), "--out", str(tmp_path)]
    if name not in ON_HOSTS:
        command += ["--mpirun", " ".join(launcher())]
    built = ROOT / "build" / "cpp" / "csrc" / "tests" / "scale_job"
    if name == "scale" and built.exists():
        command += ["--program", str(built)]
    ran(tmp_path, *command, HOROVOD_CYCLE_TIME=None)
    page = (tmp_path / f"{name}.md").read_text()
    assert "failed" not in page, page
    missing = parts((ROOT / "docs" / f"benchmark_{name}.md").read_text()) - parts(page)
    assert not missing, f"{missing} not in\n{page}"
