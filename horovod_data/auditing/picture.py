# SPDX-License-Identifier: Apache-2.0
"""Draws rows over ranks: which part of the rows each rank saw, and how often. Text is pure. A PNG needs TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .counting import Axis

Array = Any

_COLUMNS = 64
_SHADES = " ░▒▓█"
_ORDER = {
    "number": "rows by their keys, {first} to {last}",
    "reference": "rows in the order of the reference",
    "hash": "rows by the hash of their keys, so in no meaningful order",
}
# Colours (red, green, blue) by how often a row was seen. Numbers in between get colours in between.
_SEEN = ((0.0, (255, 255, 255)), (1.0, (33, 102, 172)), (2.0, (244, 165, 30)), (4.0, (178, 24, 43)))
_CELL = (4, 12)  # pixels


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
    buckets = len(raster.rows)
    columns = min(_COLUMNS, buckets)
    narrow = np.arange(buckets) * columns // buckets
    rows, seen, *lines = (
        np.bincount(narrow, weights=each, minlength=columns) for each in (raster.rows, raster.seen, *raster.deliveries)
    )
    labels = [*map(raster.label, range(len(lines))), "all"]
    width = max(map(len, labels))
    lines.append(np.where(seen < rows, seen, np.sum(lines, axis=0)))
    drawn = [f"{label:<{width}} |{''.join(map(_letter, line, rows))}|" for label, line in zip(labels, lines)]
    order = _ORDER[raster.axis.kind].format(first=raster.axis.first, last=raster.axis.last)
    return "\n".join([*drawn, f"{'':<{width}}  {order}; █ all of them once, ░ few, 2 twice, blank never"])


def save_png(raster: Raster, path: Any) -> None:
    """Draws a band for each rank, and a thicker band for all. White is never, blue once, orange twice, red 4 times or
    more.

    The last band is the darker, down to black, the more rows were not seen.
    """
    import tensorflow as tf

    across, down = max(1, _CELL[0] * 256 // len(raster.rows)), _CELL[1]
    everybody = _coloured(raster.deliveries.sum(axis=0) / np.maximum(raster.seen, 1))
    everybody *= np.where(raster.rows, raster.seen / np.maximum(raster.rows, 1), 1)[:, None]
    bands = [
        np.repeat(_coloured(raster.deliveries / np.maximum(raster.rows, 1)), down, axis=0),
        np.full((4, len(raster.rows), 3), 128.0),
        np.repeat(everybody[None], 2 * down, axis=0),
    ]
    encoded = tf.io.encode_png(np.repeat(np.concatenate(bands), across, axis=1).round().astype(np.uint8))
    with open(path, "wb") as file:
        file.write(encoded.numpy())


def _coloured(times: Array) -> Array:
    at, colours = [one for one, _ in _SEEN], zip(*(colour for _, colour in _SEEN))
    return np.stack([np.interp(times, at, shade) for shade in colours], axis=-1)


def _letter(deliveries: float, rows: float) -> str:
    if not deliveries:
        return " "
    times = deliveries / max(rows, 1)
    if times >= 1.5:
        return str(int(times + 0.5)) if times < 9.5 else "+"
    return _SHADES[4] if times >= 0.995 else _SHADES[1 + int(times * 3)]
