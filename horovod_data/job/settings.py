# SPDX-License-Identifier: Apache-2.0
"""What a job is asked to be: the arguments of init(), and HOROVOD_DATA_* variables where they are None."""

from __future__ import annotations

import dataclasses
import math
from typing import Mapping, NamedTuple, Optional

from ..errors import explain, whole
from .cgroups import memory_bytes

# How batches travel between processes of one host: the cheapest way; as MPI messages; through shared memory.
PAYLOADS = ("auto", "message", "arena")
# How far an epoch is: not shown; a line that is rewritten on a terminal, lines elsewhere; rewritten in any case.
PROGRESS = ("0", "1", "bar")
_DEFAULT_ARENA = 4 << 30
LEAST_MB, _MOST_MB = 0.01, float(1 << 20)  # MiB; who asks for more than a TiB means that there is no bound
_MOST_SECONDS = 1e8  # three years: what is longer means never, and clocks that count nanoseconds overflow at 292 years


@dataclasses.dataclass(frozen=True)
class Settings:
    """Validated settings of one process. `readers_per_node` None: readers are counted over the whole job."""

    readers: int
    readers_per_node: Optional[int]
    stall_seconds: float
    timeout_seconds: float
    payload: str = "auto"  # one of PAYLOADS
    arena_bytes: int = 1 << 30
    embedded: bool = False  # the readers of the nodes train as well
    audit: bool = False  # what goes into Model.fit
    report: bool = False  # where the time went, at the end
    progress: str = "0"  # one of PROGRESS
    progress_seconds: float = 10.0  # from line to line
    timeline: str = ""  # the file for who has done what when; empty: none is wanted
    timeline_bytes: int = 1 << 30
    prefetch_bytes: int = 64 << 20  # on their way to all ranks of a channel, with prefetch="auto"
    verify: bool = False  # every channel; those to come ask verify_in() again


class Roles(NamedTuple):
    """Who reads: as in Settings."""

    readers: int
    readers_per_node: Optional[int]
    embedded: bool


def read_settings(
    environ: Mapping[str, str],
    readers: Optional[int] = None,
    readers_per_node: Optional[int] = None,
    embedded: Optional[bool] = None,
) -> Settings:
    """The settings of this process: arguments first, then the environment, then the defaults.

    Raises:
      TypeError: an argument is not an integer, or not a bool.
      ValueError: a value that makes no sense, or that this version does not support; names the argument or variable.
    """
    roles = read_roles(environ, readers, readers_per_node, embedded)
    for flag in ("HOROVOD_DATA_CHECK_REPLAY", "HOROVOD_DATA_DEBUG"):  # which the core reads
        _flag_in(environ, flag)
    return Settings(
        readers=roles.readers,
        readers_per_node=roles.readers_per_node,
        embedded=roles.embedded,
        stall_seconds=_seconds_in(environ, "HOROVOD_DATA_STALL_SECONDS", 30.0, least=0.1),
        timeout_seconds=_seconds_in(environ, "HOROVOD_DATA_TIMEOUT", 1800.0, least=0.0),
        payload=_payload_in(environ),
        arena_bytes=_arena_bytes_in(environ),
        audit=_flag_in(environ, "HOROVOD_DATA_AUDIT"),
        report=_flag_in(environ, "HOROVOD_DATA_REPORT"),
        progress=_progress_in(environ),
        progress_seconds=_seconds_in(environ, "HOROVOD_DATA_PROGRESS_SECONDS", 10.0, least=0.1),
        timeline=environ.get("HOROVOD_DATA_TIMELINE", "").strip(),
        timeline_bytes=_size_in(environ, "HOROVOD_DATA_TIMELINE_MB", 1 << 30),
        prefetch_bytes=_size_in(environ, "HOROVOD_DATA_PREFETCH_MB", 64 << 20),
        verify=verify_in(environ),
    )


def read_roles(
    environ: Mapping[str, str],
    readers: Optional[int] = None,
    readers_per_node: Optional[int] = None,
    embedded: Optional[bool] = None,
) -> Roles:
    """The part of read_settings() that says who reads: the launcher must understand it in the same way. Raises the same."""
    given_by = {"readers": "readers", "readers_per_node": "readers_per_node", "embedded": "embedded=True"}
    if readers is not None:
        readers = _count(readers, "readers")
    if readers_per_node is not None:
        readers_per_node = _count(readers_per_node, "readers_per_node") or None
    if embedded is not None and not isinstance(embedded, bool):
        raise TypeError(explain(f"embedded must be True or False, not {embedded!r}"))
    if readers is None and readers_per_node is None:
        given_by |= {"readers": "HOROVOD_DATA_READERS", "readers_per_node": "HOROVOD_DATA_READERS_PER_NODE"}
        readers = _count_in(environ, "HOROVOD_DATA_READERS")
        readers_per_node = _count_in(environ, "HOROVOD_DATA_READERS_PER_NODE")
    elif not readers_per_node:
        embedded = embedded or False  # an argument says who reads, so the variables don't
    if embedded is None:
        embedded = _flag_in(environ, "HOROVOD_DATA_EMBEDDED")
        given_by["embedded"] = "HOROVOD_DATA_EMBEDDED=1"
    readers_per_node = readers_per_node or None
    if readers is not None and readers_per_node is not None:
        raise ValueError(
            explain(
                f"{given_by['readers']}={readers} and {given_by['readers_per_node']}={readers_per_node} contradict each "
                "other",
                "Give one of them",
            )
        )
    if readers_per_node is not None and readers_per_node > 1:
        raise ValueError(
            too_many_per_node(
                f"{given_by['readers_per_node']}={readers_per_node}",
                f"{given_by['readers_per_node']}=1",
                f"{given_by['readers']}=R",
            )
        )
    if embedded and readers_per_node is None:
        raise ValueError(
            explain(
                f"{given_by['embedded']} says that each host's first trainer reads for its host, but no readers per node were "
                "asked for",
                f"Use {given_by['readers_per_node']}=1 with it; without both, rank 0 reads and trains for the whole "
                "job",
            )
        )
    return Roles(readers or 0, readers_per_node, embedded)


def too_many_per_node(given: str, one: str, of_the_job: str) -> str:
    """The text for more readers on a host than one: what was given, what to give, what to give for R readers of the job."""
    return explain(
        f"{given}: a host can have one reader of its own",
        f"Use {one}, or {of_the_job} for R readers that deal to the trainers of all hosts",
    )


def _count(value: object, name: str) -> int:
    if (count := whole(value)) is None:
        raise TypeError(explain(f"{name} must be an integer, not {value!r}"))
    if count < 0:
        raise ValueError(explain(f"{name} must be 0 or more, not {count}"))
    return count


def _count_in(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        count = int(text)
    except ValueError:
        count = -1
    if count < 0:
        raise ValueError(
            explain(f"{name}={text!r} is not a number of readers", f"Set {name} to 0, 1 or more, or unset it")
        )
    return count


def _flag_in(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(explain(f"{name}={text!r} is neither 0 nor 1", f"Set {name} to 0 or 1, or unset it"))
    return text == "1"


def verify_in(environ: Mapping[str, str]) -> bool:
    """Says whether every channel is to be verified, whatever it was made with. Raises ValueError as read_settings() does."""
    return _flag_in(environ, "HOROVOD_DATA_VERIFY")


def _payload_in(environ: Mapping[str, str]) -> str:
    payload = environ.get("HOROVOD_DATA_PAYLOAD", "").strip() or "auto"
    if payload not in PAYLOADS:
        raise ValueError(
            explain(
                f"HOROVOD_DATA_PAYLOAD={payload!r} is no way for batches to travel",
                f"Set HOROVOD_DATA_PAYLOAD to {', '.join(PAYLOADS[:-1])} or {PAYLOADS[-1]}, or unset it",
            )
        )
    return payload


def _progress_in(environ: Mapping[str, str]) -> str:
    progress = environ.get("HOROVOD_DATA_PROGRESS", "").strip() or "0"
    if progress not in PROGRESS:
        raise ValueError(
            explain(
                f"HOROVOD_DATA_PROGRESS={progress!r} is no way to show progress",
                f"Set HOROVOD_DATA_PROGRESS to {', '.join(PROGRESS[:-1])} or {PROGRESS[-1]}, or unset it",
            )
        )
    return progress


def _arena_bytes_in(environ: Mapping[str, str]) -> int:
    return _size_in(
        environ,
        "HOROVOD_DATA_ARENA_MB",
        min(_DEFAULT_ARENA, memory_bytes()[0] // 4),
        "; HOROVOD_DATA_PAYLOAD=message does without shared memory",
    )


def _size_in(environ: Mapping[str, str], name: str, default: int, otherwise: str = "") -> int:
    """Bytes, of a variable that says MiB."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = math.nan
    if not math.isfinite(megabytes) or megabytes < LEAST_MB:
        raise ValueError(
            explain(
                f"{name}={text!r} is not a size in MiB of {LEAST_MB:g} or more{_finite(megabytes)}",
                f"Set {name} to a number such as 1024, or unset it{otherwise}",
            )
        )
    return int(min(megabytes, _MOST_MB) * (1 << 20))


def _finite(number: float) -> str:
    return ", and finite" if math.isinf(number) else ""


def _seconds_in(environ: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < least:
        raise ValueError(
            explain(
                f"{name}={text!r} is not a time in seconds of {least:g} or more{_finite(seconds)}",
                f"Set {name} to a number such as {default:g}, or unset it",
            )
        )
    return min(seconds, _MOST_SECONDS)
