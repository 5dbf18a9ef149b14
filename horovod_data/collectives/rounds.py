# SPDX-License-Identifier: Apache-2.0
"""The rounds of predict().

In a round all ranks tell each other how far they are, and rank 0 gets some steps' outputs.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from ..channel.agreement import raised
from ..errors import explained, words_of
from ..job import state
from ..native import bindings
from .gather import gather

_MOST_STEPS = 64
_ENOUGH_BYTES = 8 << 20  # bytes of one gather, for all ranks together


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


def _array_of(leaf: Any) -> Any:
    to_do = "Return tensors or arrays with one row for each row of the share"
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        what = f"model_or_fn returned a {type(leaf).__name__}, which predict() can't join by rows"
        raise explained(ValueError, what, f"{to_do}, for example padded")
    try:
        return tf.convert_to_tensor(leaf).numpy()
    except (TypeError, ValueError) as error:
        what = f"model_or_fn returned {leaf!r:.80}, which can't be converted to a tensor"
        raise explained(ValueError, what, to_do) from error


def _encoded(made: list[Any]) -> tuple[tf.Tensor, int]:
    """The outputs of some steps, for rank 0, and their bytes."""
    try:
        data = pickle.dumps(made)
    except MemoryError:
        raise
    except Exception:  # they contain classes of the program, whose __reduce__() may raise anything
        data = pickle.dumps([one if one is None else tf.nest.flatten(one) for one in made])
    return tf.constant([data]), len(data)


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
        self._mine: list[
            Any
        ] = []  # for each step since the last round, the outputs as a nest of arrays; None if the share has no rows
        self._got: list[Any] = []  # on rank 0: such outputs of all ranks, in the order of the rows

    def add(self, function: Callable[..., Any], element: Any) -> None:
        """Predicts an element, and keeps the outputs until the next round."""
        rows = _rows_of_element(element)
        if rows == 0:
            self._mine.append(None)
            return
        made = function(element)
        leaves = [_array_of(leaf) for leaf in tf.nest.flatten(made)]
        for leaf in leaves:
            if (got := _rows(leaf, "model_or_fn")) != rows:
                what = f"model_or_fn returned {got} rows for a share of {rows}"
                raise explained(ValueError, what, "Return one row for each row of the share")
        if self._structure is None:
            self._structure = made
        tf.nest.assert_same_structure(self._structure, made)
        self._mine.append(tf.nest.pack_sequence_as(made, leaves))

    def exchange(self, step: int, ended: bool) -> None:
        """Sends this rank's outputs to rank 0. Collective among trainers. `step`: the steps until now.

        Raises this rank's own error, if it has one. Otherwise raises the first error of the other ranks.
        """
        outputs, size = None, 0
        try:
            outputs, size = _encoded(self._mine)
        except Exception as error:  # for example: no memory
            self.failure = self.failure or error
        steps, self._mine = len(self._mine), []
        mine = {
            "step": step + 1,  # the current step, from 1
            "steps": steps,
            "ended": ended,
            "bytes": size,
            "failure": None if self.failure is None else words_of(self.failure),
        }
        heads = self._told(self._name, mine)
        self._check(heads)
        parts = gather(outputs, name=f"{self._name}, outputs")
        try:
            if self._job.trainer == 0:
                self._keep(parts.numpy().tolist(), step - steps + 1)
                if ended:
                    self._join()
        except Exception as error:  # for example: no memory
            self.failure = error  # for the next round
        if ended:
            self._end()
        bytes_of_step = sum(head["bytes"] for head in heads) / max(1, steps)
        self.next_step = step + max(1, min(2 * steps, _MOST_STEPS, int(_ENOUGH_BYTES / max(bytes_of_step, 1))))
        self.done = ended

    def _end(self) -> None:
        """Raises on all ranks the error, if any, that rank 0 had in the last round."""
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

    def _check(self, heads: list[dict[str, Any]]) -> None:
        """Raises the first failure of a rank, or an error if the ranks have made different numbers of steps."""
        if failed := [(head["step"], rank) for rank, head in enumerate(heads) if head["failure"] is not None]:
            at, rank = min(failed)
            kind, text = heads[rank]["failure"]
            whose = self._job.name(self._job.layout.trainers[rank])
            raise raised(f"{whose}{self._of_channel}, step {at}", kind, f"predict() failed: {kind}: {text}")
        if len({(head["ended"], head["steps"]) for head in heads}) > 1:
            few = min(range(len(heads)), key=lambda rank: (heads[rank]["steps"], not heads[rank]["ended"]))
            fewest = heads[few]["step"] - 1
            raise explained(
                ValueError,
                f"the ranks make different numbers of steps: rank {few} makes {fewest}, other ranks make more",
                "Leave out filter(), take() and their like behind distribute_dataset(), or put them before it",
                self.where,
            )

    def _keep(self, parts: list[bytes], first_step: int) -> None:
        """On rank 0: keeps the outputs of a round. `parts`: the encoded outputs of each rank."""
        for step, of_ranks in enumerate(zip(*map(pickle.loads, parts)), first_step):
            for rank, made in enumerate(of_ranks):
                if made is not None:
                    self._got.append(made)
                    self._check_output(made, rank, step)

    def _check_output(self, made: Any, rank: int, step: int) -> None:
        """Raises an error if the outputs can't be joined with the first ones."""
        types = [tf.nest.map_structure(lambda leaf: leaf.dtype.name, one) for one in (self._got[0], made)]
        if types[0] != types[1]:
            raise explained(
                TypeError,
                f"the ranks' outputs differ: {types[0]} on one rank, {types[1]} on rank {rank}",
                "Use the same model on all ranks, and let it return tuples, lists and dicts of tensors",
                self.where,
            )
        for known, leaf in zip(tf.nest.flatten(self._got[0]), tf.nest.flatten(made)):
            if leaf.shape[1:] != known.shape[1:]:
                raise explained(
                    ValueError,
                    f"model_or_fn returned rows of shape {list(known.shape[1:])} before, and of {list(leaf.shape[1:])} on "
                    f"rank {rank} in step {step}, which can't be joined",
                    "Pad all batches to one size (padded_batch with padded_shapes), or return outputs of one shape",
                    self.where,
                )

    def _join(self) -> None:
        if not self._got:
            what = "predict() was given a dataset without rows"
            raise explained(ValueError, what, "Check whether the reader finds the data", self.where)
        structure = self._got[0] if self._structure is None else self._structure
        leaves = zip(*map(tf.nest.flatten, self._got))
        self.joined = tf.nest.pack_sequence_as(structure, [np.concatenate(of_rows) for of_rows in leaves])
