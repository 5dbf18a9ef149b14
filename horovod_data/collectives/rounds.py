# SPDX-License-Identifier: Apache-2.0
"""The rounds of predict().

In a round all ranks tell each other how far they are, and rank 0 gets some steps' outputs.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from ..channel.agreement import raised
from ..channel.tensors import spec_of, tf_spec
from ..elements import specs
from ..errors import explained, words_of
from ..job import state
from ..native import bindings
from .gather import gather

_MOST_STEPS = 64
_ENOUGH_BYTES = 8 << 20  # bytes of one gather, for all ranks together


def _tf_spec(said: Any) -> Any:
    return tf_spec(specs.from_json(said))


def _rows_of_element(element: Any) -> int:
    leaves = [leaf for leaf in tf.nest.flatten(element) if leaf is not None]
    if not leaves:
        raise explained(ValueError, "an element holds no tensor, so it has no rows", "Predict batches")
    if isinstance(leaves[0], tf.RaggedTensor):
        return int(leaves[0].nrows())
    return int(leaves[0].dense_shape[0]) if isinstance(leaves[0], tf.SparseTensor) else _rows(leaves[0], "an element")


def _rows(leaf: Any, what: str) -> int:
    if len(leaf.shape) == 0:
        to_do = "Predict batches, and return one row for each row of the batch"
        raise explained(ValueError, f"{what} holds a scalar, which has no rows", to_do)
    return int(leaf.shape[0])


def _tensor_of(leaf: Any) -> tf.Tensor:
    to_do = "Return tensors or arrays with one row for each row of the share"
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        what = f"model_or_fn returned a {type(leaf).__name__}, which predict() can't join by rows"
        raise explained(ValueError, what, f"{to_do}, for example padded")
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        what = f"model_or_fn returned {leaf!r:.80}, which can't be converted to a tensor"
        raise explained(ValueError, what, to_do) from error


def _spec_of(made: Any, leaves: list[tf.Tensor]) -> Any:
    """Returns the spec of the outputs `made`, for other ranks. The spec allows rows of any shape.

    If the outputs contain classes of the program, returns the spec of a list of tensors.
    """
    parts = [tf.TensorSpec(None, leaf.dtype) for leaf in leaves]
    try:
        spec = specs.to_json(spec_of(tf.nest.pack_sequence_as(made, parts)))
        json.dumps(spec)
    except Exception:  # TypeError of spec_of(), or an error that a class of the program raises
        return specs.to_json(spec_of(parts))
    return spec


class Rounds:
    """The rounds in order, the outputs that this rank has not sent yet, and on rank 0 the outputs of all ranks."""

    def __init__(self, job: state.Job, channel: Optional[str]):
        # Only this attribute holds the error. A local variable with the error would make a cycle, because the frame
        # holds the error, and the error's traceback holds the frame.
        self.failure: Optional[BaseException] = None
        self.next_step = 0  # the next round comes after this many steps
        self.done = False
        self.joined: Any = None  # on rank 0, when done: the outputs of all rows
        self._job = job
        self._of_channel = f", channel {channel}" if channel is not None else ""
        self.where = job.where + self._of_channel  # for error texts
        self._name = f"horovod_data.predict{self._of_channel}"
        self._structure: Any = None  # of this rank's outputs
        self._own_spec: Any = None  # of `_structure`, for other ranks
        self._mine: list[tf.Tensor] = []  # the encoded leaves of the outputs
        self._shapes: list[list[list[int]]] = []  # for each step, the shape of a row in each leaf; [] without rows
        self._spec: Any = None  # of all ranks' outputs
        self._row_shapes: list[list[int]] = []  # the shapes of all rows, when a rank has had a row
        self._got: list[list[Any]] = []  # on rank 0: by step, then by rank, the leaves of the outputs

    def add(self, function: Callable[..., Any], element: Any) -> None:
        """Predicts an element, and keeps the outputs until the next round."""
        rows = _rows_of_element(element)
        if rows == 0:
            self._shapes.append([])
            return
        made = function(element)
        leaves = [_tensor_of(leaf) for leaf in tf.nest.flatten(made)]
        for leaf in leaves:
            if (got := _rows(leaf, "model_or_fn")) != rows:
                what = f"model_or_fn returned {got} rows for a share of {rows}"
                raise explained(ValueError, what, "Return one row for each row of the share")
        if self._structure is None:
            self._structure, self._own_spec = made, _spec_of(made, leaves)
        tf.nest.assert_same_structure(self._structure, made)
        self._mine += [tf.io.serialize_tensor(leaf) for leaf in leaves]
        self._shapes.append([leaf.shape[1:].as_list() for leaf in leaves])

    def exchange(self, step: int, ended: bool) -> None:
        """Sends this rank's outputs to rank 0. Collective among trainers. `step`: the steps until now.

        Raises this rank's own error, if it has one. Otherwise raises the first error of the other ranks.
        """
        size = 0
        try:
            texts = tf.stack(self._mine) if self._mine else tf.constant([], tf.string)
            size = int(tf.reduce_sum(tf.cast(tf.strings.length(texts), tf.int64)))
        except Exception as error:  # for example: no memory
            self.failure = self.failure or error
        mine = {
            "step": step + 1,  # the current step, from 1
            "ended": ended,
            "spec": self._own_spec,
            "shapes": self._shapes,
            "bytes": size,
            "failure": None if self.failure is None else words_of(self.failure),
        }
        self._mine, self._shapes = [], []
        heads = self._told(self._name, mine)
        self._check(heads, step)
        parts = gather(texts, name=f"{self._name}, outputs")
        try:
            if self._job.trainer == 0:
                self._keep(heads, parts.numpy().tolist())
            if ended:
                self._join()
        except Exception as error:  # for example: no memory
            self.failure = error  # for the next round
        if ended:
            self._end()
        steps = len(mine["shapes"])
        bytes_of_step = sum(head["bytes"] for head in heads) / max(1, steps)
        self.next_step = step + max(1, min(2 * steps, _MOST_STEPS, int(_ENOUGH_BYTES / max(bytes_of_step, 1))))
        self.done = ended

    def _end(self) -> None:
        """Raises an error of rank 0 in the last round on all ranks."""
        words = None if self.failure is None else words_of(self.failure)
        if (words := self._told(f"{self._name}, end", words)[0]) is not None:
            whose = self._job.name(self._job.layout.trainers[0])
            raise raised(f"{whose}{self._of_channel}", words[0], f"predict() failed: {words[0]}: {words[1]}")

    def _told(self, name: str, mine: Any) -> list[Any]:
        """What each rank tells the others. Raises this rank's own failure, if it has one."""
        try:
            said = bindings.Allgather(name, json.dumps(mine).encode()).wait()
        except Exception as of_others:  # for example: the other ranks have departed
            if self.failure is not None:
                raise self._own_failure() from of_others
            raise
        if self.failure is not None:
            raise self._own_failure()
        return [json.loads(one) for one in said]

    def _own_failure(self) -> BaseException:
        """Returns this rank's failure, and forgets it."""
        assert self.failure is not None
        failure, self.failure = self.failure, None
        return failure

    def _check(self, heads: list[dict[str, Any]], step: int) -> None:
        """Raises the first failure of a rank, or an error if the ranks' outputs can't be joined."""
        if failed := [(head["step"], rank) for rank, head in enumerate(heads) if head["failure"] is not None]:
            at, rank = min(failed)
            kind, text = heads[rank]["failure"]
            whose = self._job.name(self._job.layout.trainers[rank])
            raise raised(f"{whose}{self._of_channel}, step {at}", kind, f"predict() failed: {kind}: {text}")
        steps = [len(head["shapes"]) for head in heads]
        if len({(head["ended"], count) for head, count in zip(heads, steps)}) > 1:
            few = min(range(len(steps)), key=lambda rank: (steps[rank], not heads[rank]["ended"]))
            fewest = heads[few]["step"] - 1
            raise explained(
                ValueError,
                f"the ranks make different numbers of steps: rank {few} makes {fewest}, other ranks make more",
                "Leave out filter(), take() and their like behind distribute_dataset(), or put them before it",
                self.where,
            )
        for rank, head in enumerate(heads):  # a rank without rows has no spec
            self._spec = self._spec or head["spec"]
        for rank, head in enumerate(heads):
            if head["spec"] not in (None, self._spec):
                raise explained(
                    TypeError,
                    f"the ranks' outputs differ: {_tf_spec(self._spec)} on one rank, {_tf_spec(head['spec'])} on rank {rank}",
                    "Use the same model on all ranks, and let it return tuples, lists and dicts of tensors",
                    self.where,
                )
            for at, shapes in enumerate(head["shapes"], step - steps[0] + 1):
                self._check_shapes(shapes, rank, at)

    def _check_shapes(self, shapes: list[list[int]], rank: int, step: int) -> None:
        self._row_shapes = self._row_shapes or shapes
        for number, (shape, known) in enumerate(zip(shapes, self._row_shapes)):
            if shape != known:
                output = f" (output {number})" if len(shapes) > 1 else ""
                raise explained(
                    ValueError,
                    f"model_or_fn returned rows of shape {known} before, and of {shape} on rank {rank} in step {step}, "
                    f"which can't be joined{output}",
                    "Pad all batches to one size (padded_batch with padded_shapes), or return outputs of one shape",
                    self.where,
                )

    def _keep(self, heads: list[dict[str, Any]], texts: list[bytes]) -> None:
        """On rank 0: keeps the outputs of a round. `texts`: the encoded leaves, by rank and then by step."""
        dtypes = [leaf.dtype for leaf in tf.nest.flatten(_tf_spec(self._spec))] if self._spec else []
        every = iter(texts)
        of_ranks = [list(itertools.islice(every, sum(map(len, head["shapes"])))) for head in heads]
        for at in range(len(heads[0]["shapes"])):
            for head, rest in zip(heads, of_ranks):
                if head["shapes"][at]:
                    self._got.append([tf.io.parse_tensor(rest.pop(0), dtype).numpy() for dtype in dtypes])

    def _join(self) -> None:
        if not self._row_shapes:
            what = "predict() was given a dataset without rows"
            raise explained(ValueError, what, "Check whether the reader finds the data", self.where)
        if self._job.trainer == 0:
            structure = _tf_spec(self._spec) if self._structure is None else self._structure
            self.joined = tf.nest.pack_sequence_as(structure, [np.concatenate(leaves) for leaves in zip(*self._got)])
