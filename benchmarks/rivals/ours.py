# SPDX-License-Identifier: Apache-2.0
"""Our own ways. Each object has the names that other ways have in a file of their own."""

import horovod_data as hvdata

SMALL = 64 << 10


def ahead(batch):
    return 64 if batch.bytes <= SMALL else 16


def most_ahead(batch):
    """The most steps on their way with default settings. They are excluded, because buffered steps must not count."""
    return max(2, min(64, (64 << 20) // batch.bytes))


class Ours:
    """`prefetch`: its text for tables; None: default settings. `window`: the steps for a batch."""

    KIND, MOVES = "ours", True

    def __init__(self, key, batch, prefetch, also, window, largest=1e300):
        self.__name__ = f"rivals.{key}"
        self.CUTS, self.LARGEST, self.ahead = batch == "global", largest, window
        self.NAME = f"horovod_data, {batch}{f', prefetch={prefetch}' if prefetch else ''}"
        arguments = f'batch="{batch}"{f", prefetch={prefetch}" if prefetch else ""}'.partition(" or")[0]
        self.ABOUT = f"`distribute_dataset(..., {arguments})`, {also}"
        self._window = (lambda batch: {"prefetch": window(batch)}) if prefetch else lambda _: {}

    def steps(self, job, batch):
        source, how = (lambda: batch.whole(job.size), "global") if self.CUTS else (batch.own, "per_rank")
        yield from hvdata.distribute_dataset(source, batch=how, **self._window(batch))


ours_per_rank = Ours("ours_per_rank", "per_rank", None, "default settings", most_ahead)
ours_global = Ours("ours_global", "global", None, "default settings", most_ahead)
ours_2 = Ours("ours_2", "per_rank", "2", "for all sizes", lambda _: 2)
ours_16 = Ours("ours_16", "per_rank", "16", "for all sizes", lambda _: 16)
# With larger batches the window alone would take gigabytes.
ours_64 = Ours("ours_64", "per_rank", "64", "up to 1 MiB", lambda _: 64, largest=1 << 20)
ours_ahead = Ours("ours_ahead", "per_rank", "16 or 64", "or 64 if a rank's batch has up to 64 KiB", ahead)
