# SPDX-License-Identifier: Apache-2.0
"""The common part of scatter() and gather(): their checks, their ops, the names by which the calls of the ranks find
each other, and their gradients. The gradient of scatter() is a gather, and that of gather() is a scatter."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import Any, Callable, Optional, Sequence

import tensorflow as tf

from ..errors import checked_name, explain, explained, message_of, text_of, whole
from ..job import roles, state
from ..native import loader

# In a TF1 graph calls without a name may run in any order, so each gets a name by its place in the graph. All ranks
# build the same graphs.
_graph_names: "weakref.WeakKeyDictionary[tf.Graph, itertools.count[int]]" = weakref.WeakKeyDictionary()
_order: list[tf.Tensor] = []  # see _label
_UNNAMED = "\0"
# The first characters of names in the core (csrc/meeting/exchange.h). Names of users contain no NUL.
_KINDS = {"scatter": "", "gather": "\0G"}
_GRADIENT = "\0B"


def call(
    verb: str, root: Any, name: Optional[str], inputs: Callable[[int], Sequence[tf.Tensor]]
) -> tuple[int, Sequence[tf.Tensor], Any]:
    """Makes a call of scatter() or gather(). `inputs` takes the root, and returns the inputs of the op.

    A call with a wrong argument also counts, so the next calls of all ranks still match. The other ranks get the error.

    Returns:
      The root, the inputs, and the results of the op.

    Raises:
      RuntimeError: there is no job, or this is a dedicated reader.
      TypeError, ValueError: root is not a rank, name is not a name, or `inputs` raised it.
    """
    root_rank = _checked(verb, 0, name)
    try:
        # A call with a wrong root and a right name counts as a call with root 0.
        root_rank = _checked(verb, root, name)
        given = inputs(root_rank)
    except (TypeError, ValueError) as error:
        if tf.executing_eagerly():
            nothing = [tf.zeros([0]), *([tf.constant(0, tf.int64)] if verb == "scatter" else [])]
            with contextlib.suppress(tf.errors.OpError):
                _run(verb, nothing, *_label(verb, name), root_rank, message_of(error))
        raise
    return root_rank, given, _run(verb, given, *_label(verb, name), root_rank)


@tf.RegisterGradient("HorovodDataScatter")
def _scatter_gradient(op: Any, gradient: tf.Tensor, _: Any) -> list[Optional[tf.Tensor]]:
    gathered = _backward("gather", op, gradient)
    others: list[Optional[tf.Tensor]] = [None] * (len(op.inputs) - 1)
    if roles.rank() == op.get_attr("root"):
        gathered.set_shape(op.inputs[0].shape)
        return [gathered, *others]
    # `gathered` has no rows here, so its sum is 0. In a graph, the gather runs because the gradient uses this sum.
    return [tf.zeros_like(op.inputs[0]) + tf.reduce_sum(gathered), *others]


@tf.RegisterGradient("HorovodDataGather")
def _gather_gradient(op: Any, gradient: tf.Tensor, *_: Any) -> list[Optional[tf.Tensor]]:
    part = _backward("scatter", op, gradient, op.outputs[1])
    part.set_shape(op.inputs[0].shape)
    return [part, *[None] * (len(op.inputs) - 1)]


def _backward(verb: str, op: Any, gradient: tf.Tensor, *inputs: tf.Tensor) -> tf.Tensor:
    """Makes the gradient of a call, by the reverse call `verb`. The reverse call has the same name on all ranks."""
    gradient, returned = tf.convert_to_tensor(gradient), op.outputs[0].shape
    refused = ""
    if not gradient.shape.is_compatible_with(returned):  # by a user's output_gradients=
        what = f"the gradient has shape {gradient.shape}, but what the call returned has shape {returned}"
        refused = explain(what, "Pass output_gradients of that shape", where="")
    # With unknown shapes, the check runs in the graph, so the other ranks don't get its error.
    if not (gradient.shape.is_fully_defined() and returned.is_fully_defined()):
        what = "the gradient has another shape than what the call returned. Pass output_gradients of that shape"
        same = tf.debugging.assert_equal(tf.shape(gradient), tf.shape(op.outputs[0]), what)
        with tf.control_dependencies([] if same is None else [same]):
            gradient = tf.identity(gradient)
    name = tf.strings.join([_GRADIENT, op.outputs[-1]])
    return _run(verb, [gradient, *inputs], name, [], op.get_attr("root"), refused)[0]


def _run(
    verb: str, inputs: Sequence[tf.Tensor], label: Any, order: list[tf.Tensor], root: int, refused: str = ""
) -> Any:
    """Runs the op, and returns its results. `label` and `order`: as of _label()."""
    with tf.device("/CPU:0"):
        op = getattr(loader.load_ops(), f"horovod_data_{verb}")
        return op(*inputs, label, order, root=root, refused=refused)


def _checked(verb: str, root: Any, name: Optional[str]) -> int:
    """The root as a number."""
    job = state.current(f"{verb}()")
    if job.trainer is None:
        raise explained(RuntimeError, f"{verb}() was called on a dedicated reader, which is no rank")
    size = len(job.layout.trainers)
    if (number := whole(root)) is None:
        raise explained(TypeError, f"root={root!r} is not a rank", f"Use a whole number, 0 to {size - 1}")
    if not 0 <= number < size:
        raise explained(ValueError, f"root={number} is not one of the {size} ranks", f"Use 0 to {size - 1}")
    checked_name(name)
    return number


def _label(verb: str, name: Optional[str]) -> tuple[str, list[tf.Tensor]]:
    """The name of a call in the core, and inputs for its op. These inputs make calls without a name run in order."""
    kind = _KINDS[verb]
    if name is not None:
        return kind + name, []
    if tf.executing_eagerly():
        return kind + _UNNAMED, []
    if tf.compat.v1.executing_eagerly_outside_functions():
        # Ops of a tf.function that use the same resource run in the order of the program. This also holds for functions
        # that it calls, branches and loops.
        with tf.init_scope(), tf.device("/CPU:0"):
            if not _order:
                _order.append(tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="horovod_data_order"))
        return kind + _UNNAMED, _order
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return f"{kind}{_UNNAMED} {next(_graph_names.setdefault(graph, itertools.count()))}", []


def tensor_of(x: Any, dtype: Optional[tf.DType], verb: str) -> tf.Tensor:
    """`x` as a tensor. `verb` names what the call does with it, for errors."""
    try:
        value = tf.convert_to_tensor(x, dtype=dtype)
    except Exception as error:  # of any class: tensors of PyTorch with a gradient raise RuntimeError
        # the constructors of other classes may need more than a text
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise explained(
            kind,
            f"x can't be made a tensor{f' of {dtype.name}' if dtype else ''}: {text_of(error)}",
            f"Pass a tensor. For a ragged or sparse tensor, {verb} the tensors that it is made of",
        ) from None
    check_sendable(f"x is a tensor of {value.dtype.name}", value.dtype)
    return value


def check_sendable(what: str, dtype: tf.DType) -> None:
    """Raises TypeError if tensors of this dtype can't be sent. `what` is the beginning of the error text."""
    if dtype in (tf.resource, tf.variant):
        to_do = "Pass a tensor of numbers, bools or strings"
        raise explained(TypeError, f"{what}, which can't be sent to another rank", to_do)
