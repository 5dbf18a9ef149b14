# SPDX-License-Identifier: Apache-2.0
"""gather: joins the rows of all ranks, in rank order, on one rank. The counterpart of scatter."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from ..errors import explained
from . import exchange


def gather(x: Any, root: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Gives the root the rows of every rank's tensor, joined in rank order. It is Horovod's allgather for one rank
    only.

    Collective among trainers: every rank calls it with the same root and name. It works eagerly, in tf.function and in
    TF1 graphs. Each rank may give any number of rows, also 0. A call returns when the root has all parts and they fit
    together. Calls without a name are matched in the order of the program, as in scatter(). Calls with a name are
    matched by name.

    The gradient is a scatter from the root, so every rank takes part in the backward pass. Every other rank must
    differentiate its result, too. Add the result's sum, which is 0, to the loss.

    Args:
      x: this rank's rows: a tensor of any dtype, strings included, with at least one axis. All ranks have the same
        dtype, and the same shape except for axis 0.
      root: the rank that gets the rows.
      name: calls with this name belong together: the first on each rank, the second on each rank, and so on.

    Returns:
      On the root: a tensor of shape [rows of all ranks, ...] with the dtype of x. On other ranks: a tensor of shape [0,
        ...].

    Raises:
      As scatter(): if the arguments of one rank are wrong, all other ranks get its error.
      tf.errors.InvalidArgumentError: the ranks' tensors don't fit together, or ranks disagree about root.
    """

    def inputs(_: int) -> list[tf.Tensor]:
        value = exchange.tensor_of(x, None, "gather")
        if value.shape.rank == 0:
            to_do = "Give it an axis 0, as in x[tf.newaxis]"
            raise explained(ValueError, "x is a scalar, which has no rows to gather", to_do)
        return [value]

    _, _, (gathered, _, _) = exchange.call("gather", root, name, inputs)
    return gathered
