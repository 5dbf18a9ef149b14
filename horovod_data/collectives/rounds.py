# SPDX-License-Identifier: Apache-2.0
"""The rounds of predict(). A round gathers the outputs of some steps on rank 0. Then rank 0 answers all ranks."""

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
from .gather import gather
from .scatter import scatter

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


class Outputs:
    """The outputs that this rank has not sent yet.

    `steps` has a list of encoded tensors for each step. The list is empty if the share had no rows.
    """

    def __init__(self) -> None:
        # Only this attribute holds the error. A local variable with the error would make a cycle, because the frame
        # holds the error, and the error's traceback holds the frame.
        self.failure: Optional[BaseException] = None
        self.structure: Any = None
        self.spec: Any = None  # the spec of `structure`, for other ranks
        self.steps: list[list[tf.Tensor]] = []

    def add(self, function: Callable[..., Any], element: Any) -> None:
        rows = _rows_of_element(element)
        if rows == 0:
            self.steps.append([])
            return
        made = function(element)
        leaves = [_tensor_of(leaf) for leaf in tf.nest.flatten(made)]
        for leaf in leaves:
            if (got := _rows(leaf, "model_or_fn")) != rows:
                what = f"model_or_fn returned {got} rows for a share of {rows}"
                raise explained(ValueError, what, "Return one row for each row of the share")
        if self.structure is None:
            self.structure, self.spec = made, _spec_of(made, leaves)
        tf.nest.assert_same_structure(self.structure, made)
        self.steps.append([tf.io.serialize_tensor(leaf) for leaf in leaves])

    def own_failure(self) -> BaseException:
        """Returns this rank's failure, and forgets it."""
        assert self.failure is not None
        failure, self.failure = self.failure, None
        return failure

    def taken(self, step: int, ended: bool) -> tf.Tensor:
        """Returns the kept outputs as one row for a gather, and forgets them."""
        words = {
            "spec": self.spec,
            "rows": [bool(step) for step in self.steps],
            "step": step + 1,  # the current step, from 1
            "ended": ended,
            "failure": None if self.failure is None else words_of(self.failure),
        }
        texts = [tf.constant(json.dumps(words)), *itertools.chain.from_iterable(self.steps)]
        self.steps = []
        return tf.io.serialize_tensor(tf.stack(texts))[tf.newaxis]


class Rounds:
    """The gathers, in order, and the outputs that have reached rank 0."""

    def __init__(self, job: state.Job, channel: Optional[str]):
        self.next_step = 0  # the next gather comes after this many steps
        self.done = False
        self.joined: Any = None  # on rank 0, when done: the outputs of all rows
        self._job = job
        # for error texts
        self.of_channel = f", channel {channel}" if channel is not None else ""
        self._name = f"horovod_data.predict{self.of_channel}"
        self._spec: Any = None  # the spec of every rank's outputs
        self._got: list[list[Any]] = []  # on rank 0: by step, then by rank, the leaves of the outputs

    def gather(self, outputs: Outputs, step: int, ended: bool) -> None:
        """Sends this rank's outputs to rank 0, and takes rank 0's answer.

        Raises this rank's own error, if it has one. Otherwise raises the first error of the other ranks. Collective
        among trainers.
        """
        try:
            answer = self._exchange(outputs, step, ended)
        except Exception as of_others:  # for example: the other ranks have departed
            if outputs.failure is not None:
                raise outputs.own_failure() from of_others
            raise
        if outputs.failure is not None:
            raise outputs.own_failure()
        if "failure" in answer:
            rank, failed, kind, text = answer["failure"]
            member = self._job.layout.trainers[rank]
            whose = self._job.name(member)
            raise raised(f"{whose}{self.of_channel}, step {failed}", kind, f"predict() failed: {kind}: {text}")
        self.done, self.next_step = answer["done"], answer["next_step"]

    def _exchange(self, outputs: Outputs, step: int, ended: bool) -> dict[str, Any]:
        """Gathers the outputs on rank 0, and returns rank 0's answer."""
        try:
            mine = outputs.taken(step, ended)
        except Exception as error:  # for example: no memory
            outputs.failure = outputs.failure or error
            outputs.steps = []
            mine = outputs.taken(step, ended)
        parts = gather(mine, name=self._name)
        answer = {}
        if self._job.trainer == 0:
            try:
                answer = self._take(outputs, [tf.io.parse_tensor(part, tf.string).numpy() for part in parts], step)
            except Exception as error:
                answer = {"failure": [0, step, *words_of(error)]}
                outputs.failure = outputs.failure or error
        answers = scatter(tf.constant([json.dumps(answer)] * len(self._job.layout.trainers)), name=self._name)
        return dict(json.loads(answers.numpy()[0]))

    def _take(self, outputs: Outputs, parts: list[Any], step: int) -> dict[str, Any]:
        """Takes the outputs that all ranks sent for the same steps, and returns the answer."""
        heads = [json.loads(texts[0]) for texts in parts]
        if failed := [(head["step"], rank) for rank, head in enumerate(heads) if head["failure"] is not None]:
            at, rank = min(failed)  # the first failure
            return {"failure": [rank, at, *heads[rank]["failure"]]}
        steps = [len(head["rows"]) for head in heads]
        if len({(head["ended"], count) for head, count in zip(heads, steps)}) > 1:
            few = min(range(len(steps)), key=lambda rank: (steps[rank], not heads[rank]["ended"]))
            fewest = step - steps[0] + steps[few]
            raise explained(
                ValueError,
                f"the ranks make different numbers of steps: rank {few} makes {fewest}, other ranks make more",
                "Leave out filter(), take() and their like behind distribute_dataset(), or put them before it",
                self._where(),
            )
        for rank, head in enumerate(heads):
            self._check_spec(rank, head["spec"])
        rest = [texts[1:].tolist() for texts in parts]
        dtypes = [leaf.dtype for leaf in tf.nest.flatten(_tf_spec(self._spec))] if self._spec else []
        for i in range(steps[0]):
            for rank, head in enumerate(heads):
                if head["rows"][i]:
                    leaves = [tf.io.parse_tensor(rest[rank].pop(0), dtype).numpy() for dtype in dtypes]
                    self._keep(leaves, rank, step - steps[0] + i + 1)
        if heads[0]["ended"]:
            self._join(outputs)
        bytes_of_step = sum(len(text) for texts in parts for text in texts) / max(1, steps[0])
        more = max(1, min(2 * steps[0], _MOST_STEPS, int(_ENOUGH_BYTES / max(bytes_of_step, 1))))
        return {"done": heads[0]["ended"], "next_step": step + more}

    def _check_spec(self, rank: int, spec: Any) -> None:
        """Checks that the outputs of all ranks have the same types and the same structure.

        `spec` is None if the rank had no rows.
        """
        self._spec = self._spec or spec
        if spec is not None and spec != self._spec:
            raise explained(
                TypeError,
                f"the ranks' outputs differ: {_tf_spec(self._spec)} on one rank, {_tf_spec(spec)} on rank {rank}",
                "Use the same model on all ranks, and let it return tuples, lists and dicts of tensors",
                self._where(),
            )

    def _keep(self, leaves: list[Any], rank: int, step: int) -> None:
        for number, (leaf, known) in enumerate(zip(leaves, self._got[0] if self._got else leaves)):
            if leaf.shape[1:] != known.shape[1:]:
                output = f" (output {number})" if len(leaves) > 1 else ""
                raise explained(
                    ValueError,
                    f"model_or_fn returned rows of shape {list(known.shape[1:])} before, and of {list(leaf.shape[1:])} on "
                    f"rank {rank} in step {step}, which can't be joined{output}",
                    "Pad all batches to one size (padded_batch with padded_shapes), or return outputs of one shape",
                    self._where(),
                )
        self._got.append(leaves)

    def _join(self, outputs: Outputs) -> None:
        """Joins the outputs. It runs before rank 0 answers, so all ranks raise its errors."""
        if not self._got:
            what = "predict() was given a dataset without rows"
            raise explained(ValueError, what, "Check whether the reader finds the data", self._where())
        structure = _tf_spec(self._spec) if outputs.structure is None else outputs.structure
        self.joined = tf.nest.pack_sequence_as(structure, [np.concatenate(leaves) for leaves in zip(*self._got)])

    def _where(self) -> str:
        return self._job.where + self.of_channel
