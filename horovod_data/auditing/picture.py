# SPDX-License-Identifier: Apache-2.0
"""Rows over ranks: which part of the rows each rank saw, and how often. Text is pure; for a PNG TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = Any

_COLUMNS = 64
_SHADES = " ░▒▓█"
_ORDER = {
    "number": "rows by their keys, {first} to {last}",
    "reference": "rows in the order of the reference",
    "hash": "rows by the hash of their keys, in no order of their own",
}
# Colours (red, green, blue) by how often a row was seen, between which there is everything: never, once, twice, 4 times.
_SEEN = ((0.0, (255, 255, 255)), (1.0, (33, 102, 172)), (2.0, (244, 165, 30)), (4.0, (178, 24, 43)))
_CELL = (4, 12)  # pixels


@dataclasses.dataclass(frozen=True)
class Raster:
    """`deliveries`: int64 [lines, buckets], of `ranks` ranks; more ranks than lines share them. `rows`: int64 [buckets], the
    different rows there are, as far as they are known; `seen`: those of them that any rank saw. `order`: what a bucket is:
    number, reference or hash."""

    ranks: int
    deliveries: Array
    rows: Array
    seen: Array
    order: str
    first: int = 0
    last: int = 0

    def times(self) -> Array:
        """float [lines, buckets]: how often each rank, or the ranks of a line together, saw a row of the bucket; in the
        mean."""
        return self.deliveries / np.maximum(self.rows, 1)

    def label(self, line: int) -> str:
        lines = len(self.deliveries)
        first, end = -(-line * self.ranks // lines), -(-(line + 1) * self.ranks // lines)
        return f"rank {first}" if end - first == 1 else f"ranks {first}-{end - 1}"


def text(raster: Raster) -> str:
    """A line for each rank: blank is nothing, a full block is every row once, a digit so many times. And one for all, which
    is full only where every row was seen."""
    buckets = len(raster.rows)
    columns = min(_COLUMNS, buckets)
    narrow = np.arange(buckets) * columns // buckets
    rows, seen = (np.bincount(narrow, weights=each, minlength=columns) for each in (raster.rows, raster.seen))
    summed = [np.bincount(narrow, weights=line, minlength=columns) for line in raster.deliveries]
    labels = [raster.label(line) for line in range(len(summed))] + ["all"]
    width = max(map(len, labels))
    everybody = np.where(seen < rows, seen, np.sum(summed, axis=0))
    lines = [
        f"{label:<{width}} |{''.join(map(_letter, line, rows))}|" for label, line in zip(labels, [*summed, everybody])
    ]
    order = _ORDER[raster.order].format(first=raster.first, last=raster.last)
    return "\n".join([*lines, f"{'':<{width}}  {order}; █ all of them once, ░ few, 2 twice, blank never"])


def save_png(raster: Raster, path: Any) -> None:
    """A band for each rank, a thicker one for all. Blue is once, white never, orange twice, red 4 times or more; the last
    band is the darker, down to black, the more of the rows nobody saw."""
    import tensorflow as tf

    times = raster.times()
    bands = [_coloured(line, _SEEN) for line in times]
    everybody = _coloured(raster.deliveries.sum(axis=0) / np.maximum(raster.seen, 1), _SEEN)
    everybody *= np.where(raster.rows, raster.seen / np.maximum(raster.rows, 1), 1)[:, None]
    across, down = max(1, _CELL[0] * 256 // len(raster.rows)), _CELL[1]
    image = np.concatenate(
        [
            np.repeat(np.stack(bands), down, axis=0),
            np.full((4, len(raster.rows), 3), 128.0),
            np.repeat(everybody[None], 2 * down, axis=0),
        ]
    )
    encoded = tf.io.encode_png(np.repeat(image, across, axis=1).round().astype(np.uint8))
    with open(path, "wb") as file:
        file.write(encoded.numpy())


def _coloured(times: Array, scale: Any) -> Array:
    at = [one for one, _ in scale]
    return np.stack([np.interp(times, at, [colour[i] for _, colour in scale]) for i in range(3)], axis=-1)


def _letter(deliveries: float, rows: float) -> str:
    if not deliveries:
        return " "
    times = deliveries / max(rows, 1)
    if times >= 1.5:
        return str(int(times + 0.5)) if times < 9.5 else "+"
    return _SHADES[4] if times >= 0.995 else _SHADES[1 + int(times * 3)]
