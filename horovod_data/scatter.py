# SPDX-License-Identifier: Apache-2.0
"""scatter: the rows of one rank's tensor, disjoint, to every rank. The op that Horovod issue #2007 asks for."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import tensorflow as tf

from . import loader, roles
from .errors import explain

# In eager mode calls without a name are matched in the order in which they are made. In a graph they may run in any order,
# so each gets a name of its own; all ranks build the same program, so they come to the same names.
_graph_names = (f"scatter{i}" for i in itertools.count())


def scatter(x: Any, splits: Any = None, root: int = 0, name: Optional[str] = None, dtype: Any = None) -> tf.Tensor:
    """Gives every rank its rows of the root's tensor, and no others.

    Collective among trainers: every rank calls it with the same root and name. Works eagerly, in tf.function and in TF1
    graphs; several may be in flight, in any order if they have names. The gradient is a gather to the root: then every
    rank takes part in the backward pass, so that ranks other than the root must pass a tensor and differentiate by it
    too (they get zeros).

    Args:
      x: on the root, a tensor of any dtype with at least one axis. On other ranks its value is ignored: pass None and
        dtype, or a tensor of the same dtype.
      splits: on the root, the rows that each rank gets: `size()` whole numbers that add up to the rows of x. None: as
        even as can be, the first ranks get one more. Ignored elsewhere.
      root: the rank whose tensor it is.
      name: the k-th scatter of a name goes with the k-th of that name on every other rank.
      dtype: of x, where x is None.

    Returns:
      This rank's rows: a tensor of shape [rows, ...] with the dtype of x.

    Raises:
      RuntimeError: before init(), after shutdown(), or on a dedicated reader.
      TypeError, ValueError: wrong arguments.
      tf.errors.InvalidArgumentError: splits don't fit, or ranks disagree about root or dtype.
      tf.errors.UnavailableError, DeadlineExceededError: a rank has left, or does not come.
    """
    job = roles.current("scatter()")
    if job.trainer is None:
        raise RuntimeError(explain("scatter() was called on a dedicated reader, which is no rank", where=job.where))
    size = len(job.layout.trainers)
    if isinstance(root, bool) or not isinstance(root, int):
        raise TypeError(explain(f"root={root!r} is not a rank", where=job.where))
    if not 0 <= root < size:
        raise ValueError(explain(f"root={root} is not one of the {size} ranks", f"Use 0 to {size - 1}", job.where))
    if name is not None and not isinstance(name, str):
        raise TypeError(explain(f"name={name!r} is not a string", where=job.where))
    if x is None:
        if job.trainer == root:
            raise ValueError(explain("x is None on the root, whose tensor is to be scattered", where=job.where))
        if dtype is None:
            raise ValueError(explain("x is None, so dtype must be given", "Pass the dtype of the root's tensor", job.where))
        value = tf.zeros([0], dtype) if tf.as_dtype(dtype) != tf.string else tf.constant([], tf.string)
    else:
        value = tf.convert_to_tensor(x, dtype=dtype)
    eager = tf.executing_eagerly()
    label = name if name is not None else ("scatter" if eager else next(_graph_names))
    if splits is None or job.trainer != root:
        rows = tf.constant(0, tf.int64)  # a scalar: none given
    else:
        rows = tf.reshape(tf.cast(tf.convert_to_tensor(splits), tf.int64), [-1])
    with tf.device("/CPU:0"):
        part = loader.load().ops.horovod_data_scatter(value, rows, root=root, scatter_name=label)
    if not eager and job.trainer == root and value.shape.rank:
        part.set_shape(tf.TensorShape([None]).concatenate(value.shape[1:]))
    return part


@tf.RegisterGradient("HorovodDataScatter")
def _scatter_gradient(op: Any, gradient: tf.Tensor) -> list[Optional[tf.Tensor]]:
    root = op.get_attr("root")
    name = op.get_attr("scatter_name")
    with tf.device("/CPU:0"):
        gathered = loader.load().ops.horovod_data_gather(
            tf.convert_to_tensor(gradient), root=root, gather_name=name.decode() if isinstance(name, bytes) else name)
    if roles.rank() == root:
        gathered.set_shape(op.inputs[0].shape)
        return [gathered, None]
    with tf.control_dependencies([gathered]):  # in a graph nothing else would make it run
        return [tf.zeros_like(op.inputs[0]), None]
