#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Runs the library with other versions of TensorFlow, MPI and Python, and writes docs/matrix.json and docs/matrix.md.

    python scripts/matrix.py                        all cells
    python scripts/matrix.py CELL...                these cells; all other cells keep their results

A cell gets its own environment in build/matrix, which is removed after its run. CELL.log stays. Nothing is installed
elsewhere. If a Python or an MPI is missing, the cell's result says so. Pythons are found in PATH, in pyenv, or by the
option --python 3.12=/path/to/python.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "docs" / "matrix.json", ROOT / "docs" / "matrix.md"
HOROVOD = "0.28.1"
# scripts/setup.sh puts wheels there.
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "horovod_data" / "wheels"

# By the name in a cell's name: the MPI's name and major version, and the package that has it. None: the system has it.
MPIS = {
    "openmpi4": ("Open MPI", "4", None),
    "openmpi5": ("Open MPI", "5", "openmpi==5.*"),
    "mpich4": ("MPICH", "4", None),
    "mpich5": ("MPICH", "5", "mpich==5.*"),
}

DELIVERY = [f"tests/mpi/test_{name}.py" for name in
            ("modes", "elements", "none", "checkpoint", "scatter", "gather", "predict", "shard_auto")]  # fmt: skip


class Cell(NamedTuple):
    tensorflow: str
    python: str
    mpi: str

    @property
    def name(self) -> str:
        return f"tf{self.tensorflow}-py{self.python}-{self.mpi}"


CELLS = [
    *(Cell("2.15.1", python, "openmpi4") for python in ("3.10", "3.11")),
    Cell("2.15.1", "3.11", "mpich4"),
    *(Cell("2.18.1", python, "openmpi4") for python in ("3.11", "3.12")),
    *(Cell("2.21.0", python, "openmpi4") for python in ("3.10", "3.11", "3.12", "3.13")),
    *(Cell("2.21.0", "3.11", mpi) for mpi in ("openmpi5", "mpich4", "mpich5")),
    Cell("2.21.0", "3.12", "openmpi5"),
]


class Failure(Exception):
    """A cell could not be run, or did not pass. The text says why in a few words."""


# ---- One cell.


def mpi_version(text: str) -> tuple[str, str]:
    """The MPI's name and version, from the output of `mpirun --version`. setup.sh's mpi_id does the same."""
    name = "Open MPI" if "Open MPI" in text else "MPICH" if "HYDRA" in text else "another MPI"
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return name, found[0] if found else "?"


def runs_as(python: str, version: str) -> bool:
    """Says whether `python` runs as this version. A shim of a version manager may exist and lead to no Python."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return done.stdout.strip() == version


def find_python(version: str, given: Mapping[str, str]) -> str:
    if version in given:
        candidates = [given[version]]
    else:
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        # The distribution's Python comes first, as in setup.sh.
        candidates = [
            f"/usr/bin/python{version}",
            f"python{version}",
            *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python"))),
        ]
    for candidate in candidates:
        path = shutil.which(candidate)
        if path and runs_as(path, version):
            return path
    raise Failure(f"not run: no Python {version} here")


class Run:
    """The steps of a cell, in its folder. The folder is like a checkout with an environment in .venv."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.folder = ROOT / "build" / "matrix" / cell.name
        self.log = self.folder.parent / f"{cell.name}.log"
        self.commands: list[str] = []
        venv = self.folder / ".venv" / "bin"
        self.environment = {
            **os.environ,
            "PATH": f"{venv}{os.pathsep}{os.environ['PATH']}",
            # Cells of one Python and one TensorFlow differ only in the files that include mpi.h.
            "CCACHE_BASEDIR": str(self.folder),
            "CCACHE_NOHASHDIR": "1",
        }
        for name in ("PYTHONPATH", "MPICC", "MPI_HOME", "VIRTUAL_ENV"):
            self.environment.pop(name, None)
        if MPIS[cell.mpi][0] == "MPICH":  # its waiting ranks spin, and take the cores from working ranks
            self.environment.setdefault("HVDATA_TEST_LIMIT", "240")

    def check_out(self) -> None:
        """Copies the files that git would commit, without anything that was built."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.log.write_text("")
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)

    def step(self, *commands: str) -> str:
        """Runs the commands one after another in one shell. Returns their output."""
        self.commands += commands
        script = "set -ex\n" + "\n".join(commands)
        with open(self.log, "a+") as log:
            log.write(f"\n==== {datetime.datetime.now():%H:%M:%S}\n{script}\n")
            log.flush()
            begin = log.tell()
            status = subprocess.run(["bash", "-c", script], cwd=self.folder, env=self.environment,
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode  # fmt: skip
            log.seek(begin)
            output = log.read()
        if status:
            raise Failure(reason(output.replace(str(self.folder), ".")))
        return output

    def use_mpi(self) -> tuple[str, str]:
        """Makes the MPI's mpicc and mpirun the first in PATH. Returns its name and version."""
        name, major, _ = MPIS[self.cell.mpi]
        if self.cell.mpi == "mpich4" and shutil.which("mpicc.mpich"):  # Debian's, beside Open MPI; as setup.sh
            for tool in ("mpicc", "mpicxx", "mpirun", "mpiexec"):
                path = self.folder / ".venv" / "bin" / tool
                path.write_text(f'#!/bin/sh\nexec {shutil.which(f"{tool}.mpich")} "$@"\n')
                path.chmod(0o755)
        mpirun = shutil.which("mpirun", path=self.environment["PATH"])
        text = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout if mpirun else "none"
        found = mpi_version(text)
        if found[0] != name or not found[1].startswith(f"{major}."):
            raise Failure(f"not run: no {name} {major} here")
        return found


def reason(output: str) -> str:
    """Says in a few words why a step failed."""
    lines = output.splitlines()
    for line in reversed(lines):
        if re.search(r"\d+ (failed|errors?)\b.* in \d", line):
            return f"fails: {summary(line)}"
    # first a compiler's error, because pip's own last lines have little information
    for pattern in r"\berror: (?!subprocess)", r"(?i)error":
        for line in lines:
            if re.search(pattern, line):
                return f"fails: {line.strip()[:150]}"
    return "fails: " + [*lines, "no output"][0][:150]


def summary(output: str) -> str:
    """The numbers in pytest's last lines, for example `258 passed, 1 skipped`. Adds up several runs of pytest."""
    counts: dict[str, int] = {}
    for line in output.splitlines():
        if re.search(r"\b\d+ (passed|failed|error|errors)\b.* in \d", line):
            for number, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", line):
                counts[what] = counts.get(what, 0) + int(number)
    return ", ".join(f"{number} {what}" for what, number in counts.items())


def run(cell: Cell, given: Mapping[str, str]) -> dict:
    """Runs a cell. Returns its entry in the record."""
    of = Run(cell)
    entry = {"date": f"{datetime.date.today():%Y-%m-%d}", "mpi": "", "delivery": "", "horovod": ""}
    python = ""
    try:
        python = find_python(cell.python, given)
        of.check_out()
        package = MPIS[cell.mpi][2]
        system = "tensorflow-cpu" if os.uname().machine == "x86_64" else "tensorflow"
        own_mpi4py = cell.mpi == "mpich4"  # its wheel does not find Debian's MPICH
        packages = [f"{system}=={cell.tensorflow}", *([package] if package else []), *([] if own_mpi4py else ["mpi4py"]),
                    "setuptools<70", "wheel", "cmake<4", "ninja", "pytest", "hypothesis", "psutil"]  # fmt: skip
        pip = "python -m pip --disable-pip-version-check --quiet install"
        of.step(f"{shlex.quote(python)} -m venv .venv", f"{pip} {shlex.join(packages)}")
        entry["mpi"] = " ".join(of.use_mpi())
        mpi4py = [f"MPICC=mpicc CFLAGS=-O1 {pip} --no-binary mpi4py --no-cache-dir mpi4py"] if own_mpi4py else []
        output = of.step(*mpi4py, f"{pip} --no-build-isolation --no-deps .", "rm -rf horovod_data build",
                         f"pytest {' '.join(DELIVERY)} --np 2 -m 'not horovod' -q")  # fmt: skip
        entry["delivery"] = summary(output)
        entry["horovod"] = with_horovod(of, entry["mpi"], pip)
    except Failure as failure:
        entry["delivery" if not entry["delivery"] else "horovod"] = str(failure)
    finally:
        entry["commands"] = [command.replace(python, f"python{cell.python}") for command in of.commands]
        shutil.rmtree(of.folder, ignore_errors=True)
    return entry


def folder_of_wheel(cell: Cell, mpi: str) -> Path:
    """The folder in which scripts/setup.sh keeps the wheel of Horovod for this cell."""
    name, _, version = mpi.rpartition(" ")
    patched = ""
    if not cell.tensorflow.startswith("2.15."):
        patches = b"".join(path.read_bytes() for path in sorted((ROOT / "packaging" / "horovod").glob("[1-9]*.patch")))
        said = subprocess.run(["cksum"], input=patches, capture_output=True, check=True).stdout
        patched = f"-patched{said.split()[0].decode()}"
    python = cell.python.replace(".", "")
    return WHEELS / f"{name.replace(' ', '').lower()}-{version}-py{python}-tf{cell.tensorflow}{patched}"


def with_horovod(of: Run, mpi: str, pip: str) -> str:
    """Runs the same tests, and Keras', with Horovod. It needs an existing wheel, because a build takes minutes."""
    wheels = sorted(folder_of_wheel(of.cell, mpi).glob(f"horovod-{HOROVOD}-*.whl"))
    if not wheels:
        return "not run: none is built for it here"
    wheel = f"{wheels[0].parent.name}/{wheels[0].name}"
    of.environment["WHEELS"] = str(WHEELS)
    output = of.step(
        f"{pip} cloudpickle pyyaml packaging cffi scikit-learn && {pip} --no-deps $WHEELS/{wheel}",
        "pytest tests/mpi/test_modes.py tests/mpi/test_keras.py --np 2 -q",
        "pytest tests/examples -k 'keras3 or custom_loop' -q",
    )
    return f"{HOROVOD}: {summary(output)}"


# ---- The record, and the page.


def page(record: Mapping[str, dict]) -> str:
    """The text of docs/matrix.md. `record`: for each cell that was run, the result of run()."""
    columns = [mpi for mpi in MPIS if any(cell.mpi == mpi for cell in CELLS)]
    lines = [
        "# What was run, with which versions",
        "",
        "`make matrix` writes this page from real runs. Each cell is an environment of its own: TensorFlow's wheel, an MPI, and our library",
        "built with both. It runs the delivery checks on 2 ranks without Horovod: cutting, dealing, kinds of elements, checkpoints,",
        "`scatter`, `gather`, `predict`, several readers. If a Horovod was built for this TensorFlow and MPI, the same checks",
        "and Keras run with it, too. Open MPI 4 and MPICH 4 are the distribution's, Open MPI 5 and MPICH 5 are wheels.",
        "",
        "| TensorFlow | Python | " + " | ".join(" ".join(MPIS[mpi][:2]) for mpi in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for tensorflow, python in dict.fromkeys((cell.tensorflow, cell.python) for cell in CELLS):
        cells = [Cell(tensorflow, python, mpi) for mpi in columns]
        marks = [mark(record.get(cell.name)) if cell in CELLS else "" for cell in cells]
        lines.append(f"| {tensorflow} | {python} | " + " | ".join(marks) + " |")
    lines += [
        "",
        "## The last run of each",
        "",
        "| Cell | Date | MPI | Delivery checks | With Horovod | Command |",
        "|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        entry = record.get(cell.name, {"date": "never"})
        told = [entry.get(key) or "-" for key in ("date", "mpi", "delivery", "horovod")]
        cells = [cell.name, *(text.replace("|", "\\|") for text in told), f"`make matrix CELLS={cell.name}`"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The commands behind each are in [matrix.json](matrix.json). All of them:",
        "",
        "```bash",
        "make matrix",
        "```",
    ]
    return "\n".join(lines) + "\n"


def mark(entry: Mapping[str, str] | None) -> str:
    if entry is None or entry["delivery"].startswith("not run"):
        return "not run"
    return "fails" if re.search(r"fail|error", entry["delivery"] + entry["horovod"]) else "passes"


def keep(name: str, entry: dict) -> None:
    """Writes the entry into the record, and the page."""
    record = read()
    if entry["delivery"].startswith("not run") and name in record:
        return  # a cell that could not be run keeps its earlier result
    before = record[name]["horovod"] if name in record else ""
    if entry["horovod"].startswith("not run") and before and not before.startswith("not run"):
        if not re.search(r" \(on \d{4}-\d\d-\d\d\)$", before):  # not of this entry's date
            before += f" (on {record[name]['date']})"
        entry = entry | {"horovod": before}
    record[name] = entry
    order = [cell.name for cell in CELLS]
    record = {name: record[name] for name in order if name in record}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(record))


def read() -> dict[str, dict]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--page", action="store_true", help="only write the page anew from the record")
    parser.add_argument("--python", action="append", default=[], metavar="X.Y=PATH", help="this Python for X.Y")
    options = parser.parse_args(arguments)
    known = {cell.name: cell for cell in CELLS}
    unknown = sorted(set(options.cells) - set(known))
    if unknown:
        parser.error(f"no such cell: {', '.join(unknown)}; there are: {', '.join(known)}")
    if options.page:
        PAGE.write_text(page(read()))
        return 0
    given = dict(text.partition("=")[::2] for text in options.python)
    failed = False
    for name in options.cells or known:
        print(f"[matrix] {name}: build/matrix/{name}.log", flush=True)
        entry = run(known[name], given)
        keep(name, entry)
        failed |= mark(entry) == "fails"
        print(f"[matrix] {name}: {entry['delivery']}; Horovod: {entry['horovod'] or '-'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
