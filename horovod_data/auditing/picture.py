# SPDX-License-Identifier: Apache-2.0
"""Draws rows over ranks: which part of the rows each rank saw, and how often. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .counting import Axis

Array = Any

_SHADES = " ░▒▓█"
_ORDER = {
    "number": "rows by their keys, {first} to {last}",
    "reference": "rows in the order of the reference",
    "hash": "rows by the hash of their keys, so in no meaningful order",
}


@dataclasses.dataclass(frozen=True)
class Raster:
    """The numbers of a picture.

    `deliveries`: int64 [lines, buckets], of `ranks` ranks. If there are more ranks than lines, several ranks share a
    line. `rows`: int64 [buckets], the different rows that are known. `seen`: the different known rows that any rank
    saw. `axis`: the meaning of a bucket.
    """

    ranks: int
    deliveries: Array
    rows: Array
    seen: Array
    axis: Axis

    def label(self, line: int) -> str:
        lines = len(self.deliveries)
        first, end = -(-line * self.ranks // lines), -(-(line + 1) * self.ranks // lines)
        return f"rank {first}" if end - first == 1 else f"ranks {first}-{end - 1}"


def text(raster: Raster) -> str:
    """A line for each rank. A blank: no row was seen. A full block: every row once. A digit n: every row n times.

    The last line is for all ranks together. It is full only where every row was seen.
    """
    rows, seen, lines = raster.rows, raster.seen, [*raster.deliveries]
    labels = [*map(raster.label, range(len(lines))), "all"]
    width = max(map(len, labels))
    lines.append(np.where(seen < rows, seen, np.sum(lines, axis=0)))
    drawn = [f"{label:<{width}} |{''.join(map(_letter, line, rows))}|" for label, line in zip(labels, lines)]
    order = _ORDER[raster.axis.kind].format(first=raster.axis.first, last=raster.axis.last)
    return "\n".join([*drawn, f"{'':<{width}}  {order}; █ all of them once, ░ few, 2 twice, blank never"])


def _letter(deliveries: float, rows: float) -> str:
    if not deliveries:
        return " "
    times = deliveries / max(rows, 1)
    if times >= 1.5:
        return str(int(times + 0.5)) if times < 9.5 else "+"
    return _SHADES[4] if times >= 0.995 else _SHADES[1 + int(times * 3)]
