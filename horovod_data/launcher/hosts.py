# SPDX-License-Identifier: Apache-2.0
"""Parses hosts and their slots. Pure. A slot is room for one trainer."""

from __future__ import annotations

import dataclasses
import re
from typing import Iterable, Optional

from ..errors import explained
from . import LaunchError

_NAME = r"[A-Za-z0-9_][\w.-]*"
_HOST = re.compile(rf"({_NAME})(?::(\d+))?")
# Forms: host slots=4 max_slots=8 (Open MPI, Horovod); host:4 (MPICH); host (one line for each slot, in PBS and LSF).
_LINE = re.compile(rf"({_NAME})(?::(\d+))?((?:\s+[\w-]+\s*=\s*\S+)*)")
_SETTING = re.compile(r"([\w-]+)\s*=\s*(\S+)")
_SLOTS = ("slots", "cpu", "count")  # Open MPI treats these names as the same
# Settings that are ignored: Open MPI's upper limits, and Hydra's binding, for which --mpi-args has an option.
_WITHOUT_EFFECT = re.compile(r"(slots|cpu|count)[-_]max|max[-_](slots|cpu|count)|binding")
_USER = re.compile(r"user([-_]?name)?")


@dataclasses.dataclass(frozen=True)
class Host:
    """A host, and its number of slots."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(text: str, option: str = "-H") -> tuple[Host, ...]:
    """Parses `host1:4,host2:4`. A host without a number has one slot. If a host comes twice, its slots are added up.

    Raises:
      LaunchError: `text` does not have this form, or names no host. The error text names `option`.
    """
    if not text.strip():
        raise explained(
            LaunchError, f"{option} {text!r} names no host", f"Name at least one, as in {option} host1:4,host2:4"
        )
    found = []
    for part in text.split(","):
        match = _HOST.fullmatch(part.strip())
        if match is None:
            raise explained(
                LaunchError,
                f"{option} {text}: {part.strip()!r} is not a host with its slots",
                f"Write it as {option} host1:4,host2:4",
            )
        found.append((match[1], _slots(match[2], f"{option} {text}")))
    return together(found)


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """Parses `cpu1,cpu2`.

    Raises:
      LaunchError: `text` does not have this form, or has no name.
    """
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise explained(LaunchError, f"{option} names no host", f"Name at least one, as in {option} cpu1,cpu2")
    for name in names:
        if re.fullmatch(_NAME, name) is None:
            raise explained(
                LaunchError,
                f"{option} {text}: {name!r} is not the name of a host",
                f"Write names alone, as in {option} cpu1,cpu2",
            )
    return tuple(dict.fromkeys(names))


def parse_hostfile(text: str, path: str) -> tuple[Host, ...]:
    """Parses the lines of a host file: `host slots=4`, `host:4`, or `host` for each slot. `#` begins a comment.

    Raises:
      LaunchError: a line has another form, or no line names a host. The error text names `path` and the line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        where = f"{path}, line {number}"
        match = _LINE.fullmatch(line)
        name, count, rest = match.groups() if match else ("", None, "")
        settings = _SETTING.findall(rest)
        for key, _ in settings:
            _check_key(key, f"{where}: {line!r}")
        slots = [value for key, value in settings if key in _SLOTS] + ([count] if count else [])
        if match is None or len(slots) > 1 or not all(one.isdecimal() for one in slots):
            raise explained(
                LaunchError,
                f"{where}: {line!r} is not a host with its slots",
                "Write each line as `host slots=4`, `host:4`, or `host` once for each slot",
            )
        found.append((name, _slots(slots[0] if slots else None, where)))
    if not found:
        raise explained(LaunchError, f"{path} names no host", "Write each line as `host slots=4`")
    return together(found)


def parse_pairs(text: str, variable: str) -> tuple[Host, ...]:
    """Parses `host1 4 host2 4`, as in LSF's LSB_MCPU_HOSTS.

    Raises:
      LaunchError: `text` does not have this form. The error text names `variable`.
    """
    words = text.split()
    if not words or len(words) % 2 or not all(count.isdecimal() for count in words[1::2]):
        raise explained(
            LaunchError,
            f"{variable}={text!r} is not a list of hosts, each with its slots",
            "Say where to run with -H host1:4,host2:4",
        )
    return together((name, _slots(count, variable)) for name, count in zip(words[::2], words[1::2]))


def _check_key(key: str, where: str) -> None:
    if key in _SLOTS or _WITHOUT_EFFECT.fullmatch(key):
        return
    raise explained(
        LaunchError,
        f"{where} says {key}=, which horovod-data-run does not know",
        "Put the user for ssh into ~/.ssh/config, and leave it out here"
        if _USER.fullmatch(key)
        else "Write slots as `host slots=4`, and leave out the rest",
    )


def _slots(text: Optional[str], where: str) -> int:
    slots = 1 if text is None else int(text)
    if slots < 1:
        raise explained(LaunchError, f"{where}: a host with 0 slots", "Give it slots, or leave it out")
    return slots


def together(found: Iterable[tuple[str, int]]) -> tuple[Host, ...]:
    """The hosts, each once, with the sum of its slots."""
    slots: dict[str, int] = {}
    for name, count in found:
        slots[name] = slots.get(name, 0) + count
    return tuple(Host(name, count) for name, count in slots.items())
