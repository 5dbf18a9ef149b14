# SPDX-License-Identifier: Apache-2.0
"""gather: joins the rows of all ranks, in rank order, on one rank. The counterpart of scatter."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from ..errors import explained
from ..job import state
from ..native import loader
from . import call_order, operands


def gather(x: Any, root: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Gives the root the rows of every rank's tensor, joined in rank order. It is Horovod's allgather for one rank
    only.

    Collective among trainers: every rank calls it with the same root and name. It works eagerly, in tf.function and in
    TF1 graphs. Each rank may give any number of rows, also 0. A call returns when the root has all parts and they fit
    together. Calls without a name are matched in the order of the program, as in scatter(). Calls with a name are
    matched by name.

    The gradient is a scatter from the root, so every rank takes part in the backward pass. Ranks other than the root
    must differentiate the result of their gather(). It has no rows, so its sum is 0.

    Args:
      x: this rank's rows: a tensor of any dtype, strings included, with at least one axis. All ranks have the same
        dtype, and the same shape except for axis 0.
      root: the rank that gets the rows.
      name: on every rank, the k-th gather with this name belongs to the same call.

    Returns:
      On the root: a tensor of shape [rows of all ranks, ...] with the dtype of x. On other ranks: a tensor of shape [0,
        ...].

    Raises:
      RuntimeError: before init(), after shutdown(), or on a dedicated reader.
      TypeError, ValueError: wrong arguments. In eager mode the call counts as made, and all other ranks raise an
        InvalidArgumentError with the same text. A wrong root counts as 0. Ranks with another root then raise that the
        ranks disagree. A call with a wrong name does not count on any rank.
      tf.errors.InvalidArgumentError: the ranks' tensors don't fit together, or ranks disagree about root.
      tf.errors.UnavailableError: a rank has departed. Inside tf.function TensorFlow changes it to an InternalError with
        the same text.
      tf.errors.DeadlineExceededError: a rank has not made the call within HOROVOD_DATA_TIMEOUT seconds.
      KeyboardInterrupt: after the wait for the other ranks. Ctrl-C does not end the wait.
    """
    job, at = call_order.checked("gather", 0, name)
    try:
        _, at = call_order.checked("gather", root, name)  # last: a call with a wrong root counts, if its name is right
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
    value = operands.tensor_of(x, None, "gather", job)
    if value.shape.rank == 0:
        raise explained(
            ValueError,
            "x is a scalar, which has no rows to gather",
            "Give it an axis 0, as in x[tf.newaxis]",
            job.where,
        )
    return value


def _take_no_part(name: Optional[str], root: int, error: Exception) -> None:
    """Makes the call count on this rank, as on every other rank, and gives all ranks the error."""
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
    operands.no_second_gradient("gather", "is given to gather()")


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
