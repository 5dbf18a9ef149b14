# SPDX-License-Identifier: Apache-2.0
"""scatter: gives each rank its own part of one rank's tensor, row by row."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from ..errors import explained
from ..job import roles
from . import exchange


def scatter(x: Any, splits: Any = None, root: int = 0, name: Optional[str] = None, dtype: Any = None) -> tf.Tensor:
    """Gives every rank only its own rows of the root's tensor.

    Collective among trainers: every rank calls it with the same root and name. It works eagerly, in tf.function and in
    TF1 graphs. The root waits until all ranks have made the call.

    Calls without a name are matched in the order of the program, also inside tf.function, however often a rank traces
    it. Calls with a name are matched by name. So a TF1 graph, or several threads, may have several calls at once, in
    another order on each rank. (A tf.function makes its calls in order.) An eager call blocks. If two ranks make two
    calls in opposite orders, they wait for each other. A log line then names both calls, and the time limit ends the
    wait.

    The gradient is a gather to the root, so every rank takes part in the backward pass. Ranks other than the root must
    also pass a tensor and differentiate by it. Their gradients are zeros.

    Args:
      x: on the root, a tensor of any dtype with at least one axis. On other ranks its value is ignored: pass None and
        dtype, or a tensor of the same dtype.
      splits: on the root, the rows that each rank gets: `size()` whole numbers whose sum is the number of rows of x.
        None: all ranks get the same number, and the first ranks one more if needed. Ignored on other ranks.
      root: the rank whose tensor is scattered.
      name: on every rank, the k-th scatter with this name belongs to the same call.
      dtype: the dtype of x, if x is None.

    Returns:
      This rank's rows: a tensor of shape [rows, ...] with the dtype of x.

    Raises:
      RuntimeError: before init(), after shutdown(), or on a dedicated reader.
      TypeError, ValueError: wrong arguments. In eager mode the call counts as made. If the root's arguments are wrong,
        all other ranks raise an InvalidArgumentError with the same text. A wrong root counts as 0. Ranks with another
        root then raise that the ranks disagree. A call with a wrong name does not count on any rank.
      tf.errors.InvalidArgumentError: splits don't fit, or ranks disagree about root or dtype.
      tf.errors.UnavailableError: a rank has departed. Inside tf.function TensorFlow changes it to an InternalError with
        the same text.
      tf.errors.DeadlineExceededError: a rank has not made the call within HOROVOD_DATA_TIMEOUT seconds.
      KeyboardInterrupt: after the wait for the other ranks. Ctrl-C does not end the wait.
    """
    rank, (value, _), (part, _) = exchange.call("scatter", root, name, lambda rank: _inputs(x, splits, rank, dtype))
    if not tf.executing_eagerly() and roles.rank() == rank and value.shape.rank:
        part.set_shape(tf.TensorShape([None]).concatenate(value.shape[1:]))
    return part


def _inputs(x: Any, splits: Any, root: int, dtype: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The tensor, and the number of rows of each rank.

    On ranks other than the root: their tensor or an empty one, and no numbers.
    """
    is_root = roles.rank() == root
    if dtype is not None:
        try:
            dtype = tf.as_dtype(dtype)
        except TypeError:
            to_do = "Pass one, as in dtype=tf.float32"
            raise explained(TypeError, f"dtype={dtype!r} is no dtype of TensorFlow", to_do) from None
        exchange.check_sendable(f"x would be a tensor of {dtype.name}", dtype)
    if x is None:
        if is_root:
            to_do = "Pass a tensor there; None is for the other ranks"
            raise explained(ValueError, "x is None on the root, whose tensor is to be scattered", to_do)
        if dtype is None:
            raise explained(ValueError, "x is None, so dtype must be given", "Pass the dtype of the root's tensor")
        value = tf.zeros([0], dtype)
    else:
        value = exchange.tensor_of(x, dtype, "scatter")
    if splits is None or not is_root:
        return value, tf.constant(0, tf.int64)  # the scalar means that no splits were given
    try:
        counts = tf.convert_to_tensor(splits, dtype_hint=tf.int64)
    except Exception:
        counts = None
    # A cast would change 1.9 rows to 1.
    if counts is None or not counts.dtype.is_integer or counts.shape.rank not in (0, 1, None):
        to_do = f"Pass the number of rows that each of the {roles.size()} ranks gets, as integers"
        raise explained(TypeError, f"splits={splits!r} are not whole numbers, one for each rank", to_do)
    return value, tf.reshape(tf.cast(counts, tf.int64), [-1])
