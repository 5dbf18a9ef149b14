# SPDX-License-Identifier: Apache-2.0
"""The two libraries: their symbols and the libraries that they need.

_tf.so uses the C++ symbols of _core.so. A variable of ours that both libraries define would exist twice in a process.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import horovod_data

PACKAGE = Path(horovod_data.__file__).parent
CORE, OPS = PACKAGE / "_core.so", PACKAGE / "_tf.so"
pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")


def lines(*command) -> list[str]:
    return subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def exported(library: Path) -> set[str]:
    """The names that other libraries see, without those that AddressSanitizer adds."""
    names = {line.split(maxsplit=2)[2] for line in lines("nm", "-DC", "--defined-only", library)}
    return {name for name in names if not name.startswith("__odr_asan")}


def test_only_our_names_are_exported():
    ours = re.compile(r"hvdata_\w+|(.* )?hvdata::.*")
    assert not [name for name in exported(CORE) if not ours.fullmatch(name)]
    assert exported(OPS) == {"hvdata_ops_built", "hvdata_ops_counters", "hvdata_ops_session"}


def test_no_variable_of_ours_exists_twice():
    """A static variable of an inline function is an example. Constants may exist twice.

    Each file has an anonymous namespace of its own.
    """

    def variables(library: Path, anonymous: bool = False) -> set[str]:
        found = set()
        for line in lines("objdump", "-tC", library):
            parts = re.fullmatch(r"\S+ .{7} \.(?:bss|data|tbss|tdata)\t\S+ +(?:\.hidden )?(.*)", line)
            if parts and "hvdata::" in parts[1] and ("(anonymous namespace)" in parts[1]) == anonymous:
                found.add(parts[1])
        return found

    core, ops = variables(CORE), variables(OPS)
    assert "hvdata::counters" in core and not core & ops
    assert any("Allocator" in name for name in variables(OPS, anonymous=True))  # its table of symbols is there


def test_no_class_of_ours_has_two_tables():
    """One in each library would make UndefinedBehaviorSanitizer see two classes."""

    def tables(library: Path) -> set[str]:
        names = {line[19:] for line in lines("nm", "-C", "--defined-only", library)}
        return {name for name in names if re.match(r"(vtable|typeinfo) for hvdata::(?!\(anonymous)", name)}

    assert tables(CORE) and tables(OPS) and not tables(CORE) & tables(OPS)


def test_what_they_need():
    def needed(library: Path) -> str:
        return " ".join(re.findall(r"\((?:NEEDED|SONAME)\).*\[(.*)\]", "\n".join(lines("readelf", "-d", library))))

    assert "libhorovod_data_core.so" in needed(CORE) and "mpi" in needed(CORE)
    assert "tensorflow" not in needed(CORE) and "python" not in needed(CORE)
    assert "libhorovod_data_core.so" in needed(OPS) and "libtensorflow_framework" in needed(OPS)
