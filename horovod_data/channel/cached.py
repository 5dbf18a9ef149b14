# SPDX-License-Identifier: Apache-2.0
"""cache="job": the processes that keep the rows, and the second channel, in which these processes are the sources.

A cached channel is two channels of the core. Readers send the rows to the keepers on the first, `<name> (load)`. Keepers
send the shares to the trainers on the second one, which the program sees. The ranks agree on each of the two, and each
has the number of its agreement.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple, Optional, Sequence

from ..elements import specs
from ..errors import explained, here
from ..job import state
from ..job.settings import cache_bytes_in, cache_folder_in
from ..native import bindings
from . import reader_thread
from .agreement import Said, raised
from .options import Options
from .reading import UNKNOWN, Reading

LOAD, KEPT = 1, 2  # View in csrc/base/world.h
_GIB = 1 << 30
HALF = 1 << 32  # numbers for the core are doubles, so a seed is given in two halves


class Part(NamedTuple):
    """What a channel of the core is in a cached channel. The default: the channel is not cached."""

    view: int = 0  # LOAD or KEPT
    elements: int = UNKNOWN  # KEPT: of all readers
    limit: Optional[int] = None  # KEPT: the bytes that this process may keep in memory. None: it is no keeper
    folder: str = ""  # KEPT: for rows beyond the limit


def check_layout(job: state.Job, options: Options) -> None:
    """Raises ValueError if each of several hosts has a reader of its own."""
    if options.cached and len(set(job.layout.group)) > 1:
        what = 'cache="job" keeps one pipeline in the memory of all hosts, but here each host has a reader of its own'
        to_do = "Use readers=R instead of readers_per_node, or put Dataset.cache() into the dataset function"
        raise explained(ValueError, what, to_do)


@dataclasses.dataclass
class Keeper:
    """This process as a keeper of a channel.

    The thread of `dealer` deals the kept channel's epochs. It starts before the ranks agree, like a reader's thread.
    """

    load: int  # the number of the channel that fills the memory
    dealer: reader_thread.Dealer = dataclasses.field(init=False)
    _kept: Optional[int] = None

    def __post_init__(self) -> None:
        reading = Reading(None, UNKNOWN, None, None, None, self._deal, self._close)
        self.dealer = reader_thread.Dealer(reading)

    def begin(self, kept: int, label: str) -> None:
        """Starts the thread's work. Call it when both channels have been made."""
        self._kept = kept
        self.dealer.begin(kept, label)

    def _deal(self, channel: int, epoch: int, number: int) -> None:
        bindings.keep(channel, self.load, epoch, number)

    def _close(self) -> None:
        if self._kept is not None:
            bindings.keep_end(self._kept)
            bindings.channel_unuse(self.load)


def contribution(job: state.Job) -> dict[str, Any]:
    """What this keeper contributes to the second agreement: the bytes that it may keep in memory, its folder for more,
    and the size of its arena."""
    return {
        "limit": cache_bytes_in(os.environ),
        "folder": cache_folder_in(os.environ),
        "arena": job.settings.arena_bytes,
    }


def parts(trainers: Sequence[str], keepers: Sequence[str], rows: int, remainder: str) -> list[float]:
    """The part of an element's rows that each keeper keeps, by the rule of csrc/plan/holding.cc.

    `trainers`, `keepers`: their hosts.
    """
    even, extra = divmod(rows, len(trainers))
    sizes = [even + (t < extra) for t in range(len(trainers))]
    if remainder == "drop":
        sizes = [even] * (len(trainers) - 1) + [even + extra]
    elif remainder in ("pad", "repeat"):
        most = even + (extra > 0)
        sizes = [max(0, min(most, rows - t * most)) for t in range(len(trainers))]
    without = [host for host in keepers if host not in trainers]
    spared = [size * len(without) // len(keepers) for size in sizes]
    held = {host: sum(spared) / len(without) for host in without}
    for host, size, less in zip(trainers, sizes, spared):
        held[host] = held.get(host, 0) + size - less
    return [held[host] / max(1, rows) for host in keepers]


def check_size(job: state.Job, options: Options, spec: Any, elements: int, said: Said) -> None:
    """Raises ResourceExhaustedError if it is already known that the data don't fit in the memory of the hosts.

    `elements`: of all readers. `said`: the contributions of all processes.
    """
    size = specs.bytes_of(spec)
    if size is None or elements < 0:
        return
    of_rank = {rank: words for ranks, words in said for rank in ranks}
    trainers = [job.hosts[rank] for rank in job.layout.trainers]
    keepers = job.layout.keepers(job.hosts)
    if options.batch == "global":
        (rows, *_) = specs.components(spec)[0].shape or (0,)
    else:
        rows = len(trainers) * len(keepers)  # whole elements are divided evenly, as this number of rows is
    for keeper, held in zip(
        keepers, parts(trainers, [job.hosts[rank] for rank in keepers], rows or 0, options.remainder)
    ):
        part, limit = size * elements * held, of_rank[keeper]["limit"]
        if part > limit and not of_rank[keeper]["folder"]:
            what = (
                f'cache="job" would keep {part / _GIB:.2f} GiB on host {job.hosts[keeper]}, '
                f"which may keep {limit / _GIB:.2f} GiB"
            )
            cures = (
                "Raise HOROVOD_DATA_CACHE_GB, set HOROVOD_DATA_CACHE_DIR to a folder on a local disk, or use more hosts"
            )
            raise raised(here(), "ResourceExhaustedError", f"{what}. {cures}.")
