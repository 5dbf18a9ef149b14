# SPDX-License-Identifier: Apache-2.0
"""scatter: the rows of one rank's tensor, disjoint, to every rank. The op that Horovod issue #2007 asks for."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from ..errors import explain, text_of
from ..job import roles, state
from ..native import loader
from . import call_order


def scatter(x: Any, splits: Any = None, root: int = 0, name: Optional[str] = None, dtype: Any = None) -> tf.Tensor:
    """Gives every rank its rows of the root's tensor, and no others.

    Collective among trainers: every rank calls it with the same root and name. Works eagerly, in tf.function and in TF1
    graphs. The root waits until all ranks have made the call. Without a name calls go together in the order of the program,
    also inside tf.function, however often a rank traces it. With names several may be in flight inside a TF1 graph or on several
    threads, in another order on each rank (a tf.function makes its calls one after another); eager calls block, so two ranks whose calls cross wait for each other: a line names both, and
    the time limit ends it. The gradient is a gather to the root: then every rank takes part in the backward pass, so that
    ranks other than the root must pass a tensor and differentiate by it too (they get zeros).

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
      TypeError, ValueError: wrong arguments. Eagerly the call counts as made: those of the root are an InvalidArgumentError
        with the same text on all other ranks. A wrong root counts as 0; ranks that have another hear that they disagree. With a
        wrong name there is no call that it could go with: it counts on no rank.
      tf.errors.InvalidArgumentError: splits don't fit, or ranks disagree about root or dtype.
      tf.errors.UnavailableError, DeadlineExceededError: a rank has left, or does not come. Inside tf.function TensorFlow
        makes an InternalError of the first, with the same text.
      KeyboardInterrupt: when the wait for the others is over, as Ctrl-C does not end that.
    """
    job, at = call_order.checked("scatter", 0, name)
    try:
        _, at = call_order.checked(
            "scatter", root, name
        )  # behind the name, by which a call with a wrong root counts, too
        value, rows = _inputs(x, splits, at, dtype, job)
    except (TypeError, ValueError) as error:
        if tf.executing_eagerly():
            _take_no_part(name, at, error)
        raise
    label, order = call_order.label(call_order.SCATTER, name)
    with tf.device("/CPU:0"):
        part, _ = loader.load().ops.horovod_data_scatter(value, rows, order, root=at, scatter_name=label)
    if not tf.executing_eagerly() and job.trainer == at and value.shape.rank:
        part.set_shape(tf.TensorShape([None]).concatenate(value.shape[1:]))
    return part


def _inputs(x: Any, splits: Any, root: int, dtype: Any, job: state.Job) -> tuple[tf.Tensor, tf.Tensor]:
    """The tensor and the rows of each rank; of ranks that are not the root an empty tensor or their own, and no rows."""
    if dtype is not None:
        try:
            dtype = tf.as_dtype(dtype)
        except TypeError:
            raise TypeError(
                explain(f"dtype={dtype!r} is none of TensorFlow's", "Pass one, as in dtype=tf.float32", job.where)
            ) from None
        _check_sendable(f"x would be a tensor of {dtype.name}", dtype, job)
    if x is None:
        if job.trainer == root:
            raise ValueError(
                explain(
                    "x is None on the root, whose tensor is to be scattered",
                    "Pass a tensor there; None is for the other ranks",
                    job.where,
                )
            )
        if dtype is None:
            raise ValueError(
                explain("x is None, so dtype must be given", "Pass the dtype of the root's tensor", job.where)
            )
        value = tf.zeros([0], dtype) if dtype != tf.string else tf.constant([], tf.string)
    else:
        try:
            value = tf.convert_to_tensor(x, dtype=dtype)
        except (
            Exception
        ) as error:  # whatever its class raises, as PyTorch does for tensors with a gradient: the call counts
            kind = TypeError if isinstance(error, TypeError) else ValueError  # others may want more than a text
            raise kind(
                explain(
                    f"x can't be made a tensor{f' of {dtype.name}' if dtype else ''}: {text_of(error)}",
                    "Pass a tensor; of a ragged or sparse one scatter the tensors that it is made of",
                    job.where,
                )
            ) from None
        _check_sendable(f"x is a tensor of {value.dtype.name}", value.dtype, job)
    if splits is None or job.trainer != root:
        return value, tf.constant(0, tf.int64)  # a scalar: none given
    try:
        counts = tf.convert_to_tensor(splits, dtype_hint=tf.int64)
    except Exception:
        counts = None
    # A cast would cut 1.9 rows down to 1.
    if counts is None or not counts.dtype.is_integer or counts.shape.rank not in (0, 1, None):
        raise TypeError(
            explain(
                f"splits={splits!r} are not whole numbers, one for each rank",
                f"Pass the number of rows that each of the {len(job.layout.trainers)} ranks gets, as integers",
                job.where,
            )
        )
    return value, tf.reshape(tf.cast(counts, tf.int64), [-1])


def _check_sendable(what: str, dtype: tf.DType, job: state.Job) -> None:
    if dtype in (tf.resource, tf.variant):
        raise TypeError(
            explain(
                f"{what}, which can't be sent to another rank", "Pass a tensor of numbers, bools or strings", job.where
            )
        )


def _take_no_part(name: Optional[str], root: int, error: Exception) -> None:
    """Counts the call all the same, as every other rank does. Where this is the root, the others get the error."""
    label, order = call_order.label(call_order.SCATTER, name)
    try:
        with tf.device("/CPU:0"):
            loader.load().ops.horovod_data_scatter(
                tf.zeros([0]), tf.constant(0, tf.int64), order, root=root, scatter_name=label, refused=str(error)
            )
    except tf.errors.OpError:
        pass


@tf.RegisterGradient("HorovodDataScatterGradient")
def _no_second_gradient(*_: Any) -> None:
    raise LookupError(
        explain(
            "scatter() has no second gradient: a gradient of its gradient was asked for",
            "Compute what needs it (a penalty on gradients, say) from the tensor that scatter() returned",
        )
    )


@tf.RegisterGradient("HorovodDataScatter")
def _scatter_gradient(op: Any, gradient: tf.Tensor, _: Any) -> list[Optional[tf.Tensor]]:
    root = op.get_attr("root")
    with tf.device("/CPU:0"):
        gathered = loader.load().ops.horovod_data_scatter_gradient(
            tf.convert_to_tensor(gradient),
            op.outputs[1],
            tf.shape(op.outputs[0], tf.int64),
            root=root,
            scatter_name=call_order.label_of(op, "scatter_name"),
        )
    others: list[Optional[tf.Tensor]] = [None] * (len(op.inputs) - 1)
    if roles.rank() == root:
        gathered.set_shape(op.inputs[0].shape)
        return [gathered, *others]
    with tf.control_dependencies([gathered]):  # in a graph nothing else would make it run
        return [tf.zeros_like(op.inputs[0]), *others]
