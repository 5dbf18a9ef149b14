# SPDX-License-Identifier: Apache-2.0
"""cache="job": the processes that keep the rows, and the second channel, in which these processes are the sources.

A cached channel is two channels of the core. Readers send the rows to the keepers on the first, `<name> (load)`. Its
number is that of the first agreement. Keepers send the shares to the trainers on the second one, which the program sees.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional

from ..errors import explained
from ..job import cgroups, state
from ..job.settings import cache_folder_in
from ..native import bindings
from . import reader_thread
from .agreement import Said
from .options import Options
from .reading import UNKNOWN, Reading

LOAD, KEPT = 1, 2  # View in csrc/base/world.h
_HALF = 1 << 32


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
        """Both channels have been made."""
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
    limit = job.settings.cache_bytes
    if limit is None:
        limit = cgroups.memory_bytes()[1] // 2
    return {"limit": limit, "folder": cache_folder_in(os.environ), "arena": job.settings.arena_bytes}


def of_keepers(job: state.Job, said: Said, what: str) -> list[Any]:
    """The values of the keepers that contribution() calls `what`."""
    keepers = job.layout.keepers(job.hosts)
    return [words[what] for ranks, words in said if what in words for rank in ranks if rank in keepers]


def load_fields(options: Options) -> dict[str, Any]:
    """The options of the first channel that differ from those of any channel. An element is a step of it."""
    return {
        "view": LOAD,
        "batch": 0,
        "whole_elements": options.batch == "per_rank",
        "weighed": False,
        "add_weight": False,
    }


def kept_fields(options: Options, limit: Optional[int], elements: int) -> dict[str, Any]:
    """The options of the second channel that differ from those of any channel.

    `limit`: the bytes that this process may keep in memory. None: it is no keeper. `elements`: of all readers.
    """
    return {
        "view": KEPT,
        "whole_elements": options.batch == "per_rank",
        "divided": False,
        "is_source": limit is not None,
        "elements": elements,
        "shuffle": options.shuffle,
        "seed_low": options.seed % _HALF,
        "seed_high": options.seed // _HALF,
        "cache_bytes": limit or 0,
    }
