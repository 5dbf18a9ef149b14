# SPDX-License-Identifier: Apache-2.0
"""Ragged and sparse tensors on ranks without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from ..errors import explained


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """A ragged tensor, in the form of tf.RaggedTensor.from_nested_row_splits.

    Attributes:
      values: an array (or torch tensor) of the values of all rows, one after the other. Its axis 0 is the innermost
        ragged axis.
      row_splits: one vector of int64 or int32 for each ragged axis, the outermost first. Row i of the innermost axis is
        `values[row_splits[-1][i] : row_splits[-1][i + 1]]`.
    """

    values: Any
    row_splits: Sequence[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.row_splits, (tuple, list)) or not self.row_splits:
            what = f"row_splits of hvdata.Ragged is {type(self.row_splits).__name__}, not a tuple of vectors"
            raise explained(TypeError, what, "Pass one vector for each ragged axis, the outermost first")
        object.__setattr__(self, "row_splits", tuple(self.row_splits))

    def __len__(self) -> int:
        return len(self.row_splits[0]) - 1

    def rows(self) -> list[Any]:
        """The rows along axis 0: slices of `values`, or for several ragged axes lists of them. Nothing is copied."""
        parts: Any = self.values
        for splits in reversed(self.row_splits):
            bounds = splits.tolist()
            parts = [parts[begin:end] for begin, end in zip(bounds, bounds[1:])]
        return list(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse:
    """A sparse tensor, in the form of tf.sparse.SparseTensor.

    Attributes:
      indices: int64, of shape [entries, axes], in the order of the rows.
      values: of shape [entries].
      dense_shape: int64, of shape [axes].
    """

    indices: Any
    values: Any
    dense_shape: Any

    def __len__(self) -> int:
        return int(self.dense_shape[0])
