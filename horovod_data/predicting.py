# SPDX-License-Identifier: Apache-2.0
"""predict: a model's outputs for every row of a dataset, on rank 0, in the order in which the reader has the rows.

Every rank predicts its shares and keeps the outputs for some steps. Then they go to rank 0 as one gather, and rank 0 says to all
whether somebody failed and after how many steps the next gather is: so memory stays small and a rank that fails ends the call
everywhere.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from . import roles
from .agreement import raised
from .dataset import DatasetOrFn, distribute_dataset
from .errors import explain, place, without_place
from .gathering import gather
from .scattering import scatter

_MOST_STEPS = 64
_ENOUGH_BYTES = 8 << 20  # of one gather, all ranks together
_INFINITE = tf.data.INFINITE_CARDINALITY


def predict(model_or_fn: Any, dataset: DatasetOrFn, *, batch: str = "global", name: Optional[str] = None) -> Any:
    """Distributes a dataset, predicts on every rank, and gives rank 0 the outputs in the reader's order, each row's once.

    Collective: every process calls it, readers too. A dedicated reader gets None at once, and reads in serve(). Shares are
    those of distribute_dataset(..., remainder="partial"): nothing is dropped or padded, whatever the number of rows. With
    several readers the order is that of the steps, in which readers take turns.

    Args:
      model_or_fn: a Keras model (anything with `predict_on_batch`): it gets the inputs of an element (x of a tuple x, y, weight). Or a
        function: called as Dataset.map would call it, with the parts of a tuple as arguments. It returns a tensor or array, or a
        nest of them, with a row for each row of the share. It isn't called for shares without rows.
      dataset: a tf.data.Dataset or a function that makes one, as distribute_dataset() takes it; None where nothing is read.
        Its elements are batches, and it ends.
      batch: "global" or "per_rank", as of distribute_dataset().
      name: of the channel.

    Returns:
      On rank 0 the outputs of all rows: the nest that model_or_fn returns, of numpy arrays of shape [rows, ...]. Elsewhere None.

    Raises:
      TypeError, ValueError: wrong arguments, a dataset that never ends or has no rows, outputs that have not one row for each.
      RuntimeError: before init(), after shutdown(), or where TensorFlow does not execute eagerly.
      What model_or_fn raises: on its own rank as it is, on all others by the same class with that rank's name, where that class
        is Python's or TensorFlow's. Errors of the pipeline as of distribute_dataset().
    """
    job = roles.current("predict()")
    if not tf.executing_eagerly():
        raise RuntimeError(explain("predict() was called where TensorFlow does not execute eagerly",
                                   "Call it outside of tf.function and of TF1 graphs", job.where))
    function = _function(model_or_fn, job)
    shares = distribute_dataset(dataset, batch=batch, remainder="partial", name=name)
    if job.trainer is None:
        return None
    if int(shares.cardinality()) == _INFINITE:
        raise ValueError(explain("predict() was given a dataset that never ends", "Leave out repeat(), or add take()", job.where))
    rounds = _Rounds(job, name)
    outputs = _Outputs()
    failure: Optional[Exception] = None
    step = 0
    for element in shares:
        try:
            outputs.add(function, element)
        except Exception as error:
            failure = error
            break  # which closes the iterator: the others go on without this rank
        step += 1
        if step == rounds.next_step:
            rounds.gather(outputs, step)
    rounds.gather(outputs, step, failure)
    return rounds.joined(outputs.structure)


def _function(model_or_fn: Any, job: roles.Job) -> Callable[[Any], Any]:
    """What takes an element."""
    if (on_batch := getattr(model_or_fn, "predict_on_batch", None)) is not None:
        return lambda element: on_batch(element[0] if isinstance(element, tuple) and 1 <= len(element) <= 3 else element)
    if not callable(model_or_fn):
        raise TypeError(explain(f"predict() takes a model or a function, not {model_or_fn!r}",
                                "Pass something with predict_on_batch(), as Keras models have it, or a function", job.where))
    return lambda element: model_or_fn(*element) if type(element) is tuple else model_or_fn(element)


def _rows(leaf: Any, what: str) -> int:
    shape = leaf.shape
    if len(shape) == 0:
        raise ValueError(explain(f"{what} holds a scalar, which has no rows", "Predict batches, and return a row for each of theirs"))
    return int(shape[0])


class _Outputs:
    """Those of this rank that rank 0 has not got yet: of each step with rows a list of encoded tensors."""

    def __init__(self) -> None:
        self.structure: Any = None
        self.dtypes: list[str] = []  # of its leaves
        self.steps: list[list[tf.Tensor]] = []

    def add(self, function: Callable[..., Any], element: Any) -> None:
        rows = _rows(tf.nest.flatten(element)[0], "an element")
        if rows == 0:
            self.steps.append([])
            return
        made = function(element)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(made)]
        for leaf in leaves:
            if (got := _rows(leaf, "what predicts")) != rows:
                raise ValueError(explain(f"what predicts returned {got} rows for a share of {rows}", "Return a row for each of its rows"))
        if self.structure is None:
            self.structure, self.dtypes = made, [leaf.dtype.name for leaf in leaves]
        tf.nest.assert_same_structure(self.structure, made)
        self.steps.append([tf.io.serialize_tensor(leaf) for leaf in leaves])

    def taken(self, failure: Optional[Exception], step: int) -> tf.Tensor:
        """One row for a gather. Forgets them."""
        words = {"dtypes": self.dtypes, "rows": [bool(step) for step in self.steps], "step": step + 1,  # the one at work
                 "failure": None if failure is None else [type(failure).__name__, str(failure)]}
        texts = [tf.constant(json.dumps(words)), *itertools.chain.from_iterable(self.steps)]
        self.steps = []
        return tf.io.serialize_tensor(tf.stack(texts))[tf.newaxis]


class _Rounds:
    """The gathers, one after another, and what rank 0 has got by them."""

    def __init__(self, job: roles.Job, channel: Optional[str]):
        self.next_step = 1  # behind how many steps the next one is
        self._job = job
        self._channel = f", channel {channel}" if channel is not None else ""  # as places say it
        self._name = f"horovod_data.predict{self._channel}"
        self._dtypes: list[str] = []
        self._got: list[list[Any]] = []  # on rank 0: the leaves of a rank's rows of a step, in order

    def gather(self, outputs: _Outputs, step: int, failure: Optional[Exception] = None) -> None:
        """Collective among trainers. Raises what was wrong on any of them."""
        parts = gather(outputs.taken(failure, step), name=self._name)
        verdict = {}
        if self._job.trainer == 0:
            try:
                verdict = self._take([tf.io.parse_tensor(part, tf.string).numpy() for part in parts], step)
            except Exception as error:
                verdict = {"failure": [0, step, type(error).__name__, str(error)]}
                failure = failure or error
        told = scatter(tf.constant([json.dumps(verdict)] * len(self._job.layout.trainers)), name=self._name)
        verdict = json.loads(told.numpy()[0])
        if failure is not None:
            raise failure
        if "failure" in verdict:
            rank, at, kind, text = verdict["failure"]
            member = self._job.layout.trainers[rank]
            whose = place(member, self._job.hosts[member])
            raise raised(kind, f"[{whose}{self._channel}, step {at}] predict() failed: {kind}: {without_place(text, whose)}")
        self.next_step = verdict["next_step"]

    def _take(self, parts: list[Any], step: int) -> dict[str, Any]:
        """What all ranks sent for the same steps, and what to tell them."""
        heads = [json.loads(texts[0]) for texts in parts]
        for rank, head in enumerate(heads):
            if head["failure"] is not None:
                return {"failure": [rank, head["step"], *head["failure"]]}
            self._dtypes = self._dtypes or head["dtypes"]
            if head["dtypes"] and head["dtypes"] != self._dtypes:
                raise TypeError(explain(f"the ranks predict different types: {', '.join(self._dtypes)} on rank 0, "
                                        f"{', '.join(head['dtypes'])} on rank {rank}", "Use the same model on all ranks"))
        at = [1] * len(parts)
        for i in range(len(heads[0]["rows"])):
            for rank, head in enumerate(heads):
                if head["rows"][i]:
                    texts = parts[rank][at[rank]:at[rank] + len(self._dtypes)]
                    self._got.append([tf.io.parse_tensor(text, dtype).numpy() for text, dtype in zip(texts, self._dtypes)])
                    at[rank] += len(self._dtypes)
        steps = max(1, len(heads[0]["rows"]))
        bytes_of_step = sum(len(text) for texts in parts for text in texts) / steps
        return {"next_step": step + max(1, min(2 * steps, _MOST_STEPS, int(_ENOUGH_BYTES / max(bytes_of_step, 1))))}

    def joined(self, structure: Any) -> Any:
        """On rank 0, behind the last step."""
        rows = sum(len(leaves[0]) for leaves in self._got)
        verdict = scatter(tf.fill([len(self._job.layout.trainers)], tf.constant(rows, tf.int64)), name=self._name)
        if int(verdict[0]) == 0:
            raise ValueError(explain("predict() was given a dataset without rows", "Look at what the reader finds", self._job.where))
        if self._job.trainer != 0:
            return None
        return tf.nest.pack_sequence_as(structure, [np.concatenate(leaves) for leaves in zip(*self._got)])
