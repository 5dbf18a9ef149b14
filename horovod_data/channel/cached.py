# SPDX-License-Identifier: Apache-2.0
"""cache="job": the processes that keep the rows, and the second channel, in which these processes are the sources.

A cached channel is two channels of the core. Readers send the rows to the keepers on the first, `<name> (load)`.
Keepers send the shares to the trainers on the second one, which the program sees. The ranks agree on each of the two,
and each has the number of its agreement.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple, Optional

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


def check_size(spec: Any, elements: int, said: Said) -> None:
    """Raises ResourceExhaustedError if it is already known that the data don't fit in the memory of all hosts.

    If only one host has too little memory for its part, the first epoch raises the error.
    `elements`: of all readers. `said`: the contributions of all processes.
    """
    size = specs.bytes_of(spec)
    keepers = [words for ranks, words in said if words for _ in ranks]
    if size is None or elements < 0 or any(words["folder"] for words in keepers):
        return
    limit = sum(words["limit"] for words in keepers)
    if size * elements > limit:
        what = f'cache="job" would keep {size * elements / _GIB:.2f} GiB, and all hosts together may keep {limit / _GIB:.2f} GiB'
        cures = "Raise HOROVOD_DATA_CACHE_GB, set HOROVOD_DATA_CACHE_DIR to a folder on a local disk, or use more hosts"
        raise raised(here(), "ResourceExhaustedError", f"{what}. {cures}.")
