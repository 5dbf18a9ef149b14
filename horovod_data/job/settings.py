# SPDX-License-Identifier: Apache-2.0
"""The settings of a job: the arguments of init(), or HOROVOD_DATA_* variables for arguments that are None."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any, Mapping, NamedTuple, Optional

from ..errors import explained, whole
from .cgroups import memory_bytes

# How batches travel between processes of one host. "auto": the cheapest way; "message": by MPI; "arena": in shared
# memory.
PAYLOADS = ("auto", "message", "arena")
_DEFAULT_ARENA = 4 << 30
LEAST_MB, _MOST_MB = 0.01, float(1 << 20)  # MiB; a value above a TiB means no limit
_LEAST_GB = 0.001  # GiB
_MOST_SECONDS = 1e8  # three years; a longer time means no limit, and a clock in nanoseconds overflows at 292 years


@dataclasses.dataclass(frozen=True)
class Settings:
    """Validated settings of one process. `readers_per_node` None: readers are counted over the whole job."""

    readers: int
    readers_per_node: Optional[int]
    stall_seconds: float
    timeout_seconds: float
    payload: str = "auto"  # one of PAYLOADS
    arena_bytes: int = 1 << 30
    embedded: bool = False  # with readers_per_node: the readers train as well
    audit: bool = False  # audit the data that Model.fit gets
    report: bool = False  # print report() at the end of the job
    progress: bool = False  # show how far the epochs are
    progress_seconds: float = 10.0  # seconds from line to line
    timeline: str = ""  # the path of the timeline's file; empty: no timeline
    timeline_bytes: int = 1 << 30
    certificate: str = ""  # the path of the file of certificates; empty: there is none
    prefetch_bytes: int = 64 << 20  # bytes sent ahead to all ranks of a channel, with prefetch="auto"
    verify: bool = False  # verify every channel; channels made later read verify_in() again
    attempt: int = 1  # the number of this start of the job
    leave_status: int = 75  # of all ranks, after they have saved because of a signal


_ARGUMENTS = {"readers": "readers", "readers_per_node": "readers_per_node", "embedded": "embedded=True"}


class Roles(NamedTuple):
    """Says which processes read, with the fields of Settings."""

    readers: int
    readers_per_node: Optional[int]
    embedded: bool


def read_settings(environ: Mapping[str, str], **arguments: Any) -> Settings:
    """The settings of this process. An argument (as of read_roles()) comes first, then the environment, then the default.

    Raises:
      TypeError: an argument is not an integer, or not a bool.
      ValueError: a value is invalid, or this version does not support it. The text names the argument or variable.
    """
    roles = read_roles(environ, **arguments)
    attempt = max(1, _count_in(environ, "HOROVOD_DATA_ATTEMPT", "attempts") or 1)
    _flag_in(environ, "HOROVOD_DATA_CHECK_REPLAY")  # the core reads it
    cache_bytes_in(environ)  # each call reads it again
    return Settings(
        **roles._asdict(),
        stall_seconds=_seconds_in(environ, "HOROVOD_DATA_STALL_SECONDS", 30.0, least=0.1),
        timeout_seconds=timeout_in(environ),
        payload=_payload_in(environ),
        arena_bytes=_size_in(
            environ,
            "HOROVOD_DATA_ARENA_MB",
            min(_DEFAULT_ARENA, memory_bytes()[0] // 4),
            "; HOROVOD_DATA_PAYLOAD=message does without shared memory",
        ),
        audit=_flag_in(environ, "HOROVOD_DATA_AUDIT"),
        report=_flag_in(environ, "HOROVOD_DATA_REPORT"),
        progress=_flag_in(environ, "HOROVOD_DATA_PROGRESS"),
        progress_seconds=_seconds_in(environ, "HOROVOD_DATA_PROGRESS_SECONDS", 10.0, least=0.1),
        timeline=_of_attempt(environ.get("HOROVOD_DATA_TIMELINE", "").strip(), attempt),
        timeline_bytes=_size_in(environ, "HOROVOD_DATA_TIMELINE_MB", 1 << 30),
        certificate=environ.get("HOROVOD_DATA_CERTIFICATE", "").strip(),
        prefetch_bytes=_size_in(environ, "HOROVOD_DATA_PREFETCH_MB", 64 << 20),
        verify=verify_in(environ),
        attempt=attempt,
        leave_status=_whole_in(environ, "HOROVOD_DATA_LEAVE_STATUS", "an exit status", "a number from 1 to 125", 1, 125)
        or 75,
    )


def timeout_in(environ: Mapping[str, str]) -> float:
    """HOROVOD_DATA_TIMEOUT, in seconds. The launcher also uses it. Raises ValueError."""
    return _seconds_in(environ, "HOROVOD_DATA_TIMEOUT", 1800.0, least=0.0)


def read_roles(
    environ: Mapping[str, str],
    readers: Optional[int] = None,
    readers_per_node: Optional[int] = None,
    embedded: Optional[bool] = None,
    names: Optional[Mapping[str, str]] = None,
) -> Roles:
    """The part of read_settings() that says which processes read. The launcher also uses it. Raises the same errors.

    `names` has the names of the three arguments in error texts, if they differ.
    """
    given_by = {**_ARGUMENTS, **(names or {})}
    if readers is not None:
        readers = _count(readers, given_by["readers"])
    if readers_per_node is not None:
        readers_per_node = _count(readers_per_node, given_by["readers_per_node"]) or None
    if embedded is not None and not isinstance(embedded, bool):
        raise explained(TypeError, f"embedded must be True or False, not {embedded!r}")
    if readers is None and readers_per_node is None:
        given_by |= {"readers": "HOROVOD_DATA_READERS", "readers_per_node": "HOROVOD_DATA_READERS_PER_NODE"}
        readers = _count_in(environ, "HOROVOD_DATA_READERS")
        readers_per_node = _count_in(environ, "HOROVOD_DATA_READERS_PER_NODE")
    elif not readers_per_node:
        embedded = embedded or False  # an argument says which processes read, so the variables are ignored
    if embedded is None:
        embedded = _flag_in(environ, "HOROVOD_DATA_EMBEDDED")
        given_by["embedded"] = "HOROVOD_DATA_EMBEDDED=1"
    readers_per_node = readers_per_node or None
    of_job, of_host = given_by["readers"], given_by["readers_per_node"]
    if readers is not None and readers_per_node is not None:
        both = f"{of_job}={readers} and {of_host}={readers_per_node}"
        raise explained(ValueError, f"{both} contradict each other", "Give one of them")
    if readers_per_node is not None and readers_per_node > 1:
        raise too_many_per_node(f"{of_host}={readers_per_node}", f"{of_host}=1", f"{of_job}=R")
    if embedded and readers_per_node is None:
        raise explained(
            ValueError,
            f"{given_by['embedded']} says that each host's first trainer reads for its host, but no readers per node were "
            "asked for",
            f"Use {of_host}=1 with it; without both, rank 0 reads and trains for the whole job",
        )
    return Roles(readers or 0, readers_per_node, embedded)


def too_many_per_node(given: str, one: str, of_the_job: str) -> ValueError:
    """The error for several readers on a host: the wrong setting, and the two right ways to write it."""
    return explained(
        ValueError,
        f"{given}: a host can have one reader of its own",
        f"Use {one}, or {of_the_job} for R readers that deal to the trainers of all hosts",
    )


def _count(value: object, name: str) -> int:
    if (count := whole(value)) is None:
        raise explained(TypeError, f"{name} must be an integer, not {value!r}")
    if count < 0:
        raise explained(ValueError, f"{name} must be 0 or more, not {count}")
    return count


def _whole_in(
    environ: Mapping[str, str], name: str, what: str, allowed: str, least: int = 0, most: float = math.inf
) -> Optional[int]:
    """The value of a variable. None: it is not set. `what` and `allowed` go into the error text."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not least <= int(text) <= most:
        raise explained(ValueError, f"{name}={text!r} is not {what}", f"Set {name} to {allowed}, or unset it")
    return int(text)


def _count_in(environ: Mapping[str, str], name: str, what: str = "readers") -> Optional[int]:
    return _whole_in(environ, name, f"a number of {what}", "0, 1 or more")


def _flag_in(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise explained(ValueError, f"{name}={text!r} is neither 0 nor 1", f"Set {name} to 0 or 1, or unset it")
    return text == "1"


def _of_attempt(path: str, attempt: int) -> str:
    """The file of a job that was started again: trace.attempt2.json."""
    stem, extension = os.path.splitext(path)
    return f"{stem}.attempt{attempt}{extension}" if path and attempt > 1 else path


def cache_bytes_in(environ: Mapping[str, str]) -> int:
    """The most bytes of memory that a host keeps of a channel with cache="job"."""
    half = memory_bytes()[1] / 2 / (1 << 30)
    size = _number_in(environ, "HOROVOD_DATA_CACHE_GB", half, _LEAST_GB, "a size in GiB", "64")
    return int(min(size, _MOST_MB) * (1 << 30))


def cache_folder_in(environ: Mapping[str, str]) -> str:
    """The folder for rows that cache="job" can't keep in memory. Empty: there is none.

    Raises:
      ValueError: this process can't make files in it.
    """
    name = "HOROVOD_DATA_CACHE_DIR"
    if not (folder := environ.get(name, "").strip()):
        return ""
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        what = f"{name}={folder!r} is no folder in which this process can make files"
        raise explained(ValueError, what, f"Make it on every host, set {name} to another folder, or unset it")
    return os.path.abspath(folder)


def verify_in(environ: Mapping[str, str]) -> bool:
    """Says whether all channels are verified, also channels with verify=False."""
    return _flag_in(environ, "HOROVOD_DATA_VERIFY")


def _payload_in(environ: Mapping[str, str]) -> str:
    name = "HOROVOD_DATA_PAYLOAD"
    value = environ.get(name, "").strip() or PAYLOADS[0]
    if value not in PAYLOADS:
        what, to_do = f"{name}={value!r} is no way for batches to travel", "to auto, message or arena, or unset it"
        raise explained(ValueError, what, f"Set {name} {to_do}")
    return value


def _number_in(
    environ: Mapping[str, str], name: str, default: float, least: float, what: str, example: str, otherwise: str = ""
) -> float:
    """The value of a variable. `what` and `example` go into the error text: "a time in seconds", "30"."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < least:
        finite = ", and finite" if math.isinf(number) else ""
        to_do = f"Set {name} to a number such as {example}, or unset it{otherwise}"
        raise explained(ValueError, f"{name}={text!r} is not {what} of {least:g} or more{finite}", to_do)
    return number


def _size_in(environ: Mapping[str, str], name: str, default: int, otherwise: str = "") -> int:
    """The bytes of a variable whose unit is MiB."""
    size = _number_in(environ, name, default / (1 << 20), LEAST_MB, "a size in MiB", "1024", otherwise)
    return int(min(size, _MOST_MB) * (1 << 20))


def _seconds_in(environ: Mapping[str, str], name: str, default: float, least: float) -> float:
    return min(_number_in(environ, name, default, least, "a time in seconds", f"{default:g}"), _MOST_SECONDS)
