# SPDX-License-Identifier: Apache-2.0
"""gather: the rows of all ranks, in rank order, on one. The counterpart of scatter."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from ..errors import explain, text_of
from ..job import state
from ..native import loader
from . import call_order


def gather(x: Any, root: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Gives the root the rows of every rank's tensor, joined in rank order: Horovod's allgather for one rank alone.

    Collective among trainers: every rank calls it with the same root and name. Works eagerly, in tf.function and in TF1
    graphs. Ranks may give different numbers of rows, none too, and strings. No rank's call ends before the root has all parts
    and has found that they fit. Without a name calls go together in the order of the program, as those of scatter() do, and
    with a name by it. The gradient is a scatter from the root: then every rank takes part in the backward pass, so that ranks
    other than the root must differentiate too: by what gather() returned them, which has no rows (of a sum it is 0).

    Args:
      x: this rank's rows: a tensor of any dtype with at least one axis. Dtype, and shape but for axis 0, are the same on all ranks.
      root: the rank that gets the rows.
      name: the k-th gather of a name goes with the k-th of that name on every other rank.

    Returns:
      On the root a tensor of shape [rows of all ranks, ...] with the dtype of x; elsewhere one of shape [0, ...].

    Raises:
      RuntimeError: before init(), after shutdown(), or on a dedicated reader.
      TypeError, ValueError: wrong arguments. Eagerly the call counts as made: it is an InvalidArgumentError on all other ranks,
        with the same text. A wrong root counts as 0; ranks that have another hear that they disagree. With a wrong name there is no
        call that it could go with: it counts on no rank.
      tf.errors.InvalidArgumentError: the ranks' tensors don't fit together, or ranks disagree about root.
      tf.errors.UnavailableError, DeadlineExceededError: a rank has left, or does not come. Inside tf.function TensorFlow
        makes an InternalError of the first, with the same text.
      KeyboardInterrupt: when the wait for the others is over, as Ctrl-C does not end that.
    """
    job, at = call_order.checked("gather", 0, name)
    try:
        _, at = call_order.checked(
            "gather", root, name
        )  # behind the name, by which a call with a wrong root counts, too
        value = _tensor(x, job)
    except (TypeError, ValueError) as error:
        if tf.executing_eagerly():
            _take_no_part(name, at, error)
        raise
    label, order = call_order.label(call_order.GATHER, name)
    with tf.device("/CPU:0"):
        gathered, _, _ = loader.load().ops.horovod_data_gather(value, order, root=at, gather_name=label)
    return gathered


def _tensor(x: Any, job: state.Job) -> tf.Tensor:
    try:
        value = tf.convert_to_tensor(x)
    except (
        Exception
    ) as error:  # whatever its class raises, as PyTorch does for tensors with a gradient: the call counts
        kind = TypeError if isinstance(error, TypeError) else ValueError  # others may want more than a text
        raise kind(
            explain(
                f"x can't be made a tensor: {text_of(error)}",
                "Pass a tensor; of a ragged or sparse one gather the tensors that it is made of",
                job.where,
            )
        ) from None
    if value.dtype in (tf.resource, tf.variant):
        raise TypeError(
            explain(
                f"x is a tensor of {value.dtype.name}, which can't be sent to another rank",
                "Pass a tensor of numbers, bools or strings",
                job.where,
            )
        )
    if value.shape.rank == 0:
        raise ValueError(
            explain("x is a scalar, which has no rows to gather", "Give it an axis 0, as in x[tf.newaxis]", job.where)
        )
    return value


def _take_no_part(name: Optional[str], root: int, error: Exception) -> None:
    """Counts the call all the same, as every other rank does, and lets all have the error."""
    label, order = call_order.label(call_order.GATHER, name)
    try:
        with tf.device("/CPU:0"):
            loader.load().ops.horovod_data_gather(
                tf.zeros([0]), order, root=root, gather_name=label, refused=str(error)
            )
    except tf.errors.OpError:
        pass


@tf.RegisterGradient("HorovodDataGatherGradient")
def _no_second_gradient(*_: Any) -> None:
    raise LookupError(
        explain(
            "gather() has no second gradient: a gradient of its gradient was asked for",
            "Compute what needs it (a penalty on gradients, say) from the tensor that is given to gather()",
        )
    )


@tf.RegisterGradient("HorovodDataGather")
def _gather_gradient(op: Any, gradient: tf.Tensor, *_: Any) -> list[Optional[tf.Tensor]]:
    label = call_order.GATHER_GRADIENT + call_order.label_of(op, "gather_name")[len(call_order.GATHER) :]
    with tf.device("/CPU:0"):
        part = loader.load().ops.horovod_data_gather_gradient(
            tf.convert_to_tensor(gradient),
            op.outputs[1],
            op.outputs[2],
            tf.shape(op.inputs[0], tf.int64),
            root=op.get_attr("root"),
            gather_name=label,
        )
    part.set_shape(op.inputs[0].shape)
    return [part, *[None] * (len(op.inputs) - 1)]
