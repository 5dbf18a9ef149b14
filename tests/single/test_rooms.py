# SPDX-License-Identifier: Apache-2.0
"""The rooms of csrc/, and which may include which. docs/maps.md draws them."""

import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
# The rooms that each room may include, besides itself.
BELOW = {
    "base": set(),
    "wire": {"base"},
    "plan": {"wire"},
    "arena": {"base"},
    "proof": {"plan", "wire"},
    "mail": {"base", "wire", "arena"},
    "transport": {"base", "wire", "mail"},
    "timeline": {"base", "wire", "mail"},
    "channel": {"base", "plan", "wire", "proof", "mail", "timeline"},
    "meeting": {"base", "wire", "mail"},
    "rows": {"base", "plan", "wire", "arena", "proof", "mail", "channel"},
    "deal": {"base", "plan", "wire", "proof", "mail", "channel", "rows"},
    "cache": {"base", "plan", "wire", "proof", "mail", "channel", "rows"},
    "engine": {"base", "wire", "arena", "mail", "timeline", "channel", "meeting", "rows", "deal", "cache", "transport"},
    "ops": {"base", "plan", "wire", "arena", "proof", "mail", "channel", "meeting", "rows", "deal", "engine"},
}
AROUND = {"tests", "fuzz"}  # use any of them


def included(room: str) -> dict[str, set[str]]:
    """What the files of a room include of ours and of others, by the first folder of the path."""
    found: dict[str, set[str]] = {}
    for path in sorted((CSRC / room).glob("*.[ch]*")):
        found[path.name] = set(re.findall(r'^#include ["<](\w+)[/.]', path.read_text(), re.MULTILINE))
    return found


def test_all_rooms_are_known():
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} == set(BELOW) | AROUND


def test_arrows_point_down():
    for room, below in BELOW.items():
        for name, folders in included(room).items():
            upwards = folders & set(BELOW) - below - {room}
            assert not upwards, f"csrc/{room}/{name} includes files of {', '.join(sorted(upwards))}"


def test_no_circle():
    done: set[str] = set()
    while ready := {room for room, below in BELOW.items() if room not in done and below <= done}:
        done |= ready
    assert done == set(BELOW)


def test_which_rooms_know_mpi_and_tensorflow():
    for room in BELOW:
        everything = set().union(*included(room).values())
        assert room in ("transport", "engine", "ops") or "mpi" not in everything, room
        assert room == "ops" or "tensorflow" not in everything, room


def rooms_in(path: str, before: str) -> set[str]:
    """The rooms that stand behind `before`, in the longest such list."""
    lists = re.findall(rf"^\s*{re.escape(before)}([\w, ]+)\)?$", (CSRC.parent / path).read_text(), re.MULTILINE)
    return max((set(re.split(r"[, ]+", words.strip())) for words in lists), key=len)


def test_no_list_lacks_a_room():
    """Every room that can be is built, tested, fuzzed and linted."""
    without_tensorflow = set(BELOW) - {"ops"}
    assert rooms_in("CMakeLists.txt", "hvdata_sources(sources ") == without_tensorflow
    assert "hvdata_sources(sources ops)" in (CSRC.parent / "CMakeLists.txt").read_text()
    assert rooms_in("csrc/tests/CMakeLists.txt", "set(HVDATA_ROOMS ") == without_tensorflow - {"engine", "transport"}
    assert rooms_in("csrc/tests/CMakeLists.txt", "hvdata_rooms(rooms_mpi ") == {"engine", "transport"}
    assert rooms_in("Makefile", "ROOMS := ") == without_tensorflow - {"engine"}  # which make lint names beside them
    # Fuzz targets need what other processes may have written, and no waits for several processes.
    waiting = {"engine", "transport", "meeting", "timeline"}
    assert rooms_in("csrc/fuzz/CMakeLists.txt", "hvdata_sources(sources ") == without_tensorflow - waiting
