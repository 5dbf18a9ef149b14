# SPDX-License-Identifier: Apache-2.0
"""The rounds of predict(): each gathers the outputs of some steps on rank 0, which answers all ranks."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from ..channel import elements
from ..channel.agreement import raised
from ..errors import explained, placed, without_place, words_of
from ..job import state
from ..native import tensorflow_private as private
from .gather import gather
from .scatter import scatter

_MOST_STEPS = 64
_ENOUGH_BYTES = 8 << 20  # bytes of one gather, for all ranks together


def _rows_of_element(element: Any) -> int:
    leaves = [leaf for leaf in tf.nest.flatten(element) if leaf is not None]
    if not leaves:
        raise explained(ValueError, "an element holds no tensor, so it has no rows", "Predict batches")
    if isinstance(leaves[0], tf.RaggedTensor):
        return int(leaves[0].nrows())
    if isinstance(leaves[0], tf.SparseTensor):
        return int(leaves[0].dense_shape[0])
    return _rows(leaves[0], "an element")


def _rows(leaf: Any, what: str) -> int:
    shape = leaf.shape
    if len(shape) == 0:
        raise explained(
            ValueError,
            f"{what} holds a scalar, which has no rows",
            "Predict batches, and return a row for each of theirs",
        )
    return int(shape[0])


def _tensor_of(leaf: Any) -> tf.Tensor:
    to_do = "Return tensors or arrays with one row for each row of the share"
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise explained(
            ValueError,
            f"what predicts returned a {type(leaf).__name__}, whose parts have no rows",
            f"{to_do}: pad it, say",
        )
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise explained(
            ValueError, f"what predicts returned {leaf!r:.80}, of which no tensor can be made", to_do
        ) from error


def _in_words(made: Any, leaves: list[tf.Tensor]) -> Optional[list[Any]]:
    """The structure of outputs in a form for other ranks. None: it has classes of the program."""
    spec = tf.nest.pack_sequence_as(made, [tf.TensorSpec(None, leaf.dtype) for leaf in leaves])
    try:
        proto = private.nested_structure_coder.encode_structure(elements.by_place(spec))
        words = [base64.b64encode(proto.SerializeToString(deterministic=True)).decode(), elements.key_order(spec)]
        json.dumps(words)
    except Exception:  # NotEncodableError, or an error of such a class
        return None
    return words


def _of_words(words: list[Any]) -> Any:
    proto = private.nested_structure_coder.struct_pb2.StructuredValue.FromString(base64.b64decode(words[0]))
    return elements.in_order(private.nested_structure_coder.decode_proto(proto), words[1])


class Outputs:
    """The outputs that this rank has not sent yet. For each step with rows, a list of encoded tensors."""

    def __init__(self) -> None:
        self.structure: Any = None
        self.dtypes: list[str] = []  # of the leaves of `structure`
        self.words: Optional[list[Any]] = None  # the structure in a form for other ranks
        self.steps: list[list[tf.Tensor]] = []

    def add(self, function: Callable[..., Any], element: Any) -> None:
        rows = _rows_of_element(element)
        if rows == 0:
            self.steps.append([])
            return
        made = function(element)
        leaves = [_tensor_of(leaf) for leaf in tf.nest.flatten(made)]
        for leaf in leaves:
            if (got := _rows(leaf, "what predicts")) != rows:
                raise explained(
                    ValueError,
                    f"what predicts returned {got} rows for a share of {rows}",
                    "Return a row for each of its rows",
                )
        if self.structure is None:
            self.structure, self.dtypes, self.words = (
                made,
                [leaf.dtype.name for leaf in leaves],
                _in_words(made, leaves),
            )
        tf.nest.assert_same_structure(self.structure, made)
        self.steps.append([tf.io.serialize_tensor(leaf) for leaf in leaves])

    def taken(self, step: int, ended: bool, failure: Optional[BaseException]) -> tf.Tensor:
        """All kept outputs as one row for a gather. Forgets them."""
        words = {
            "dtypes": self.dtypes,
            "structure": self.words,
            "rows": [bool(step) for step in self.steps],
            "step": step + 1,  # the current step, from 1
            "ended": ended,
            "failure": None if failure is None else words_of(failure),
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
        self.of_channel = f", channel {channel}" if channel is not None else ""  # in the form of places in error texts
        self._name = f"horovod_data.predict{self.of_channel}"
        self._dtypes: list[str] = []
        self._structure: Any = None
        self._got: list[list[Any]] = []  # on rank 0, in order: for each rank and step, the leaves of its rows

    def gather(self, outputs: Outputs, step: int, ended: bool, failure: Optional[BaseException]) -> None:
        """Sends this rank's outputs to rank 0, and takes its answer.

        Raises the first error of any rank. Collective among trainers.
        """
        try:
            answer, failure = self._exchange(outputs, step, ended, failure)
            if failure is not None:
                raise failure
        except Exception as of_others:  # for example: the other ranks have departed
            if failure is not None and of_others is not failure:
                raise failure from of_others
            raise
        finally:
            failure = None  # otherwise this frame and the error would keep each other alive, with the program's frames
        if "failure" in answer:
            rank, failed, kind, text = answer["failure"]
            member = self._job.layout.trainers[rank]
            whose = self._job.name(member)
            text = without_place(without_place(text, whose), whose + self.of_channel)
            raise raised(kind, placed(f"{whose}{self.of_channel}, step {failed}", f"predict() failed: {kind}: {text}"))
        self.done, self.next_step = answer["done"], answer["next_step"]

    def _exchange(
        self, outputs: Outputs, step: int, ended: bool, failure: Optional[BaseException]
    ) -> tuple[dict[str, Any], Optional[BaseException]]:
        """The answer of rank 0, and the failure of this rank."""
        try:
            try:
                mine = outputs.taken(step, ended, failure)
            except Exception as error:  # for example: no memory
                failure = failure or error
                outputs.steps = []
                mine = outputs.taken(step, ended, failure)
            parts = gather(mine, name=self._name)
            answer = {}
            if self._job.trainer == 0:
                try:
                    answer = self._take(outputs, [tf.io.parse_tensor(part, tf.string).numpy() for part in parts], step)
                except Exception as error:
                    answer = {"failure": [0, step, *words_of(error)]}
                    failure = failure or error
            told = scatter(tf.constant([json.dumps(answer)] * len(self._job.layout.trainers)), name=self._name)
            return json.loads(told.numpy()[0]), failure
        finally:
            failure = None  # for the same reason as in gather()

    def _take(self, outputs: Outputs, parts: list[Any], step: int) -> dict[str, Any]:
        """Takes the outputs that all ranks sent for the same steps, and returns the answer."""
        heads = [json.loads(texts[0]) for texts in parts]
        if failed := [(head["step"], rank) for rank, head in enumerate(heads) if head["failure"] is not None]:
            at, rank = min(failed)  # the first failure
            return {"failure": [rank, at, *heads[rank]["failure"]]}
        steps = [len(head["rows"]) for head in heads]
        if len({(head["ended"], count) for head, count in zip(heads, steps)}) > 1:
            few = min(range(len(steps)), key=lambda rank: (steps[rank], not heads[rank]["ended"]))
            raise explained(
                ValueError,
                f"the ranks come to different numbers of steps: rank {few} to {step - steps[0] + steps[few]}, others to more",
                "Leave out filter(), take() and their like behind distribute_dataset(), or put them before it",
                self._where(),
            )
        first = step - steps[0]
        for rank, head in enumerate(heads):
            self._check_kind(rank, head)
        at_text = [1] * len(parts)
        for i in range(steps[0]):
            for rank, head in enumerate(heads):
                if head["rows"][i]:
                    texts = parts[rank][at_text[rank] : at_text[rank] + len(self._dtypes)]
                    self._keep(
                        [tf.io.parse_tensor(text, dtype).numpy() for text, dtype in zip(texts, self._dtypes)],
                        rank,
                        first + i + 1,
                    )
                    at_text[rank] += len(self._dtypes)
        if heads[0]["ended"]:
            self._join(outputs)
        bytes_of_step = sum(len(text) for texts in parts for text in texts) / max(1, steps[0])
        more = max(1, min(2 * steps[0], _MOST_STEPS, int(_ENOUGH_BYTES / max(bytes_of_step, 1))))
        return {"done": heads[0]["ended"], "next_step": step + more}

    def _check_kind(self, rank: int, head: dict[str, Any]) -> None:
        """Checks that a rank's outputs have the types and the structure of all other ranks."""
        if not head["dtypes"]:
            return
        self._dtypes = self._dtypes or head["dtypes"]
        self._structure = self._structure or head["structure"]
        if head["dtypes"] != self._dtypes:
            raise explained(
                TypeError,
                f"the ranks predict different types: {', '.join(self._dtypes)} on one, "
                f"{', '.join(head['dtypes'])} on rank {rank}",
                "Use the same model on all ranks",
                self._where(),
            )
        if head["structure"] != self._structure:
            raise explained(
                TypeError,
                f"the ranks predict different structures: that of rank {rank} is not that of the ranks before it",
                "Use the same model on all ranks, and let it return tuples, lists and dicts of tensors",
                self._where(),
            )

    def _keep(self, leaves: list[Any], rank: int, step: int) -> None:
        for number, (leaf, known) in enumerate(zip(leaves, self._got[0] if self._got else leaves)):
            if leaf.shape[1:] != known.shape[1:]:
                raise explained(
                    ValueError,
                    f"what predicts returned rows of shape {list(known.shape[1:])} before, and of {list(leaf.shape[1:])} on rank {rank} "
                    f"in step {step}, which can't be joined{f' (output {number})' if len(leaves) > 1 else ''}",
                    "Pad all batches to one size (padded_batch with padded_shapes), or return what has one shape",
                    self._where(),
                )
        self._got.append(leaves)

    def _join(self, outputs: Outputs) -> None:
        """Joins the outputs. It runs before rank 0 answers, so all ranks raise its errors."""
        if not self._got:
            raise explained(
                ValueError, "predict() was given a dataset without rows", "Look at what the reader finds", self._where()
            )
        structure = outputs.structure
        if structure is None:  # rank 0 had no rows
            if self._structure is None:
                raise explained(
                    TypeError,
                    "rank 0 had no rows, and no rank can say the structure of the outputs: it has classes of the program's own",
                    "Return tuples, lists and dicts of tensors",
                    self._where(),
                )
            structure = _of_words(self._structure)
        self.joined = tf.nest.pack_sequence_as(structure, [np.concatenate(leaves) for leaves in zip(*self._got)])

    def _where(self) -> str:
        return self._job.where + self.of_channel
