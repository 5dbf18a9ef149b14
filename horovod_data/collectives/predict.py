# SPDX-License-Identifier: Apache-2.0
"""predict: a model's outputs for every row of a dataset, on rank 0, in the order in which the reader has the rows.

Every rank predicts its shares and keeps the outputs for some steps. Then they go to rank 0 as one gather, and rank 0 says to all
whether somebody failed and after how many steps the next gather is: so memory stays small and a rank that fails ends the call
everywhere. Whatever fails on a rank goes that way, also what the reader's pipeline raises on all of them: a rank that left without
would leave the others a gather that the next call would take for its own.
"""

from __future__ import annotations

import base64
import itertools
import json
import traceback
from typing import Any, Callable, Optional, Sequence

import numpy as np
import tensorflow as tf

from ..channel import elements, receiver
from ..channel.agreement import raised
from ..channel.create import DatasetOrFn
from ..channel.distribute import distribute
from ..channel.options import UNLESS_SHARDED, Options
from ..ending import signals
from ..errors import explain, placed, without_place, words_of
from ..job import state
from ..native import tensorflow_private as private
from .gather import gather
from .scatter import scatter

_MOST_STEPS = 64
_ENOUGH_BYTES = 8 << 20  # of one gather, all ranks together
_INFINITE = tf.data.INFINITE_CARDINALITY
_END = object()


def predict(
    model_or_fn: Any,
    dataset: DatasetOrFn,
    *,
    batch: str = "global",
    name: Optional[str] = None,
    shard: Optional[str] = None,
) -> Any:
    """Distributes a dataset, predicts on every rank, and gives rank 0 the outputs in the reader's order, each row's once.

    Collective: every process calls it, readers too. A dedicated reader gets None at once, and reads in serve(). Shares are
    those of distribute_dataset(..., remainder="partial"): nothing is dropped or padded, whatever the number of rows.

    With several readers the order is that of the steps, in which readers take turns. It is that of the dataset where they divide
    its elements and batch="global"; with batch="per_rank" a step is made of elements of one reader, and where each has its own files
    those take turns.

    Args:
      model_or_fn: a Keras model (anything with `predict_on_batch`): it gets the inputs of an element (x of a tuple x, y, weight). Or a
        function: called as Dataset.map would call it, with the parts of a tuple as arguments. It returns a tensor or array, or a
        nest of them, with a row for each row of the share. It isn't called for shares without rows.
      dataset: a tf.data.Dataset or a function that makes one, as distribute_dataset() takes it; None where nothing is read.
        Its elements are batches, and it ends. Or what distribute_dataset(..., remainder="partial") returned, on every rank, also with
        stages of the rank's own behind that leave each element what it is for all of its rows (map, prefetch, cache; batch,
        unbatch, shuffle and their like are refused): so a dedicated reader, which takes no new datasets in serve(), can read for it. Then `batch`,
        `name` and `shard` are those of that call.
      batch: "global" or "per_rank", as of distribute_dataset().
      name: of the channel.
      shard: "auto": several readers divide the dataset, as in distribute_dataset(). None: they do so, too, but where the dataset
        function takes a tf.distribute.InputContext and thus gives each its own part.

    Returns:
      On rank 0 the outputs of all rows: the nest that model_or_fn returns, of numpy arrays of shape [rows, ...]. Elsewhere None.

    Raises:
      TypeError, ValueError: wrong arguments, a dataset that never ends or has no rows, outputs that have not one row for each or
        whose rows have not one shape, ranks that come to different numbers of steps.
      RuntimeError: before init(), after shutdown(), or where TensorFlow does not execute eagerly.
      What model_or_fn raises: on its own rank as it is, on all others by the same class with that rank's name, where that class
        is Python's or TensorFlow's. Errors of the pipeline as of distribute_dataset(). Ctrl-C is raised when the others have heard of it.
    """
    job = state.current("predict()")
    if not tf.executing_eagerly():
        raise RuntimeError(
            explain(
                "predict() was called where TensorFlow does not execute eagerly",
                "Call it outside of tf.function and of TF1 graphs",
                job.where,
            )
        )
    channel = name
    ends: Sequence[Any] = ()
    with signals.Held() as ctrl_c:
        if isinstance(dataset, tf.data.Dataset) and (ends := receiver.ends_of_channels(dataset)):
            shares, channel = dataset, ends[0].label
        else:
            sharded = UNLESS_SHARDED if shard is None else shard
            options = Options(batch=batch, remainder="partial", name=name, shard=sharded)
            shares = distribute(dataset, options, ctrl_c)
        if job.trainer is None:
            return None
        rounds = _Rounds(job, channel)
        _predict(model_or_fn, shares, ends, job, rounds, ctrl_c)
        return rounds.joined


def _predict(
    model_or_fn: Any,
    shares: tf.data.Dataset,
    ends: Sequence[Any],
    job: state.Job,
    rounds: _Rounds,
    ctrl_c: signals.Held,
) -> None:
    """`ends`: of the channels that the shares come from, where others distributed them."""
    outputs = _Outputs()
    function: Any = None
    iterator: Any = None
    step = 0
    while not rounds.done:
        failure: Optional[BaseException] = None
        ended = False
        try:
            try:
                ctrl_c.open()
                if (
                    function is None
                ):  # in the first round nobody begins: a rank that can't would keep the others waiting in their epoch
                    if ends:
                        _check_stages(shares, ends, f"{job.where}{rounds.of_channel}")
                    if int(shares.cardinality()) == _INFINITE:
                        raise ValueError(
                            explain(
                                "predict() was given a dataset that never ends",
                                "Leave out repeat(), or add take()",
                                job.where,
                            )
                        )
                    function = _function(model_or_fn, job)
                elif iterator is None:
                    iterator = iter(shares)
                while step < rounds.next_step and not ended:
                    if (element := next(iterator, _END)) is _END:
                        ended = True
                    else:
                        outputs.add(function, element)
                        step += 1
            finally:
                ctrl_c.close()
        except (
            BaseException
        ) as error:  # also Ctrl-C, and sys.exit() in the model's code: the program may catch them, and go on
            ctrl_c.close()  # another one may have come in between
            failure = error
            _let_go(error)
        if ended or failure is not None:
            iterator = None  # closes it: the others go on without this rank
        try:
            rounds.gather(outputs, step, ended, failure)
        finally:
            failure = None  # or it would keep itself, and the program's frames, by this one


def _check_stages(dataset: tf.data.Dataset, ends: Sequence[Any], where: str) -> None:
    """Of what distribute_dataset() returned, and behind it: the outputs of each step's rows go to rank 0 as they come.

    Raises:
      ValueError: they would not be those of all rows in the reader's order.
    """
    if not all(end.whole for end in ends):
        raise ValueError(
            explain(
                "predict() was given what distribute_dataset() returned, which may leave out rows or add some",
                'Distribute it with remainder="partial" and schedule="static"',
                where,
            )
        )
    behind = receiver.stages_behind(ends, dataset)
    in_order = dataset.options().deterministic is not False
    for stage in behind:
        if private.divides_anew(stage, in_order):
            raise ValueError(
                explain(
                    "predict() was given what distribute_dataset() returned, and behind it a stage "
                    f"({private.name(stage)}) after which rows don't come as the reader has them",
                    "Put it before distribute_dataset(), or leave it out",
                    where,
                )
            )


def _let_go(error: BaseException) -> None:
    """Of what the frames hold that it came through: the iterator is among that."""
    seen: list[BaseException] = []  # one may be its own cause
    waiting: list[Optional[BaseException]] = [error]
    while waiting:
        if (at := waiting.pop()) is not None and not any(at is one for one in seen):
            seen.append(at)
            traceback.clear_frames(at.__traceback__)
            waiting += [at.__cause__, at.__context__]


def _function(model_or_fn: Any, job: state.Job) -> Callable[[Any], Any]:
    """What takes an element."""
    if (on_batch := getattr(model_or_fn, "predict_on_batch", None)) is not None:
        return lambda element: on_batch(
            element[0] if isinstance(element, tuple) and 1 <= len(element) <= 3 else element
        )
    if not callable(model_or_fn):
        raise TypeError(
            explain(
                f"predict() takes a model or a function, not {model_or_fn!r}",
                "Pass something with predict_on_batch(), as Keras models have it, or a function",
                job.where,
            )
        )
    return lambda element: model_or_fn(*element) if type(element) is tuple else model_or_fn(element)


def _rows_of_element(element: Any) -> int:
    leaves = [leaf for leaf in tf.nest.flatten(element) if leaf is not None]
    if not leaves:
        raise ValueError(explain("an element holds no tensor, so it has no rows", "Predict batches"))
    if isinstance(leaves[0], tf.RaggedTensor):
        return int(leaves[0].nrows())
    if isinstance(leaves[0], tf.SparseTensor):
        return int(leaves[0].dense_shape[0])
    return _rows(leaves[0], "an element")


def _rows(leaf: Any, what: str) -> int:
    shape = leaf.shape
    if len(shape) == 0:
        raise ValueError(
            explain(f"{what} holds a scalar, which has no rows", "Predict batches, and return a row for each of theirs")
        )
    return int(shape[0])


def _tensor_of(leaf: Any) -> tf.Tensor:
    to_do = "Return tensors or arrays with one row for each row of the share"
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise ValueError(
            explain(
                f"what predicts returned a {type(leaf).__name__}, whose parts have no rows", f"{to_do}: pad it, say"
            )
        )
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise ValueError(
            explain(f"what predicts returned {leaf!r:.80}, of which no tensor can be made", to_do)
        ) from error


def _in_words(made: Any, leaves: list[tf.Tensor]) -> Optional[list[Any]]:
    """The structure of outputs for another rank, or None for one of classes that only this program knows."""
    spec = tf.nest.pack_sequence_as(made, [tf.TensorSpec(None, leaf.dtype) for leaf in leaves])
    try:
        proto = private.nested_structure_coder.encode_structure(elements.by_place(spec))
        words = [base64.b64encode(proto.SerializeToString(deterministic=True)).decode(), elements.key_order(spec)]
        json.dumps(words)
    except Exception:  # NotEncodableError, and what keys and constructors of such classes raise
        return None
    return words


def _of_words(words: list[Any]) -> Any:
    proto = private.nested_structure_coder.struct_pb2.StructuredValue.FromString(base64.b64decode(words[0]))
    return elements.in_order(private.nested_structure_coder.decode_proto(proto), words[1])


class _Outputs:
    """Those of this rank that rank 0 has not got yet: of each step with rows a list of encoded tensors."""

    def __init__(self) -> None:
        self.structure: Any = None
        self.dtypes: list[str] = []  # of its leaves
        self.words: Optional[list[Any]] = None  # that say the structure
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
                raise ValueError(
                    explain(
                        f"what predicts returned {got} rows for a share of {rows}", "Return a row for each of its rows"
                    )
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
        """One row for a gather. Forgets them."""
        words = {
            "dtypes": self.dtypes,
            "structure": self.words,
            "rows": [bool(step) for step in self.steps],
            "step": step + 1,  # the one at work
            "ended": ended,
            "failure": None if failure is None else words_of(failure),
        }
        texts = [tf.constant(json.dumps(words)), *itertools.chain.from_iterable(self.steps)]
        self.steps = []
        return tf.io.serialize_tensor(tf.stack(texts))[tf.newaxis]


class _Rounds:
    """The gathers, one after another, and what rank 0 has got by them."""

    def __init__(self, job: state.Job, channel: Optional[str]):
        self.next_step = 0  # behind how many steps the next one is
        self.done = False
        self.joined: Any = None  # on rank 0, when done
        self._job = job
        self.of_channel = f", channel {channel}" if channel is not None else ""  # as places say it
        self._name = f"horovod_data.predict{self.of_channel}"
        self._dtypes: list[str] = []
        self._structure: Any = None
        self._got: list[list[Any]] = []  # on rank 0: the leaves of a rank's rows of a step, in order

    def gather(self, outputs: _Outputs, step: int, ended: bool, failure: Optional[BaseException]) -> None:
        """Collective among trainers. Raises what was wrong on any of them."""
        try:
            verdict, failure = self._exchange(outputs, step, ended, failure)
            if failure is not None:
                raise failure
        except Exception as of_others:  # there are none any more, say
            if failure is not None and of_others is not failure:
                raise failure from of_others
            raise
        finally:
            failure = None  # or it would keep itself, and the program's frames, by this one
        if "failure" in verdict:
            rank, failed, kind, text = verdict["failure"]
            member = self._job.layout.trainers[rank]
            whose = self._job.name(member)
            text = without_place(without_place(text, whose), whose + self.of_channel)
            raise raised(kind, placed(f"{whose}{self.of_channel}, step {failed}", f"predict() failed: {kind}: {text}"))
        self.done, self.next_step = verdict["done"], verdict["next_step"]

    def _exchange(
        self, outputs: _Outputs, step: int, ended: bool, failure: Optional[BaseException]
    ) -> tuple[dict[str, Any], Optional[BaseException]]:
        """Rank 0's verdict, and what has failed here."""
        try:
            try:
                mine = outputs.taken(step, ended, failure)
            except Exception as error:  # no memory for them, say
                failure = failure or error
                outputs.steps = []
                mine = outputs.taken(step, ended, failure)
            parts = gather(mine, name=self._name)
            verdict = {}
            if self._job.trainer == 0:
                try:
                    verdict = self._take(outputs, [tf.io.parse_tensor(part, tf.string).numpy() for part in parts], step)
                except Exception as error:
                    verdict = {"failure": [0, step, *words_of(error)]}
                    failure = failure or error
            told = scatter(tf.constant([json.dumps(verdict)] * len(self._job.layout.trainers)), name=self._name)
            return json.loads(told.numpy()[0]), failure
        finally:
            failure = None  # as above

    def _take(self, outputs: _Outputs, parts: list[Any], step: int) -> dict[str, Any]:
        """What all ranks sent for the same steps, and what to tell them."""
        heads = [json.loads(texts[0]) for texts in parts]
        if failed := [(head["step"], rank) for rank, head in enumerate(heads) if head["failure"] is not None]:
            at, rank = min(failed)  # what came first
            return {"failure": [rank, at, *heads[rank]["failure"]]}
        steps = [len(head["rows"]) for head in heads]
        if len({(head["ended"], count) for head, count in zip(heads, steps)}) > 1:
            few = min(range(len(steps)), key=lambda rank: (steps[rank], not heads[rank]["ended"]))
            raise ValueError(
                explain(
                    f"the ranks come to different numbers of steps: rank {few} to {step - steps[0] + steps[few]}, others to more",
                    "Leave out filter(), take() and their like behind distribute_dataset(), or put them before it",
                    self._where(),
                )
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
        """Types and structure of a rank's outputs, if it had any yet, must be those of all."""
        if not head["dtypes"]:
            return
        self._dtypes = self._dtypes or head["dtypes"]
        self._structure = self._structure or head["structure"]
        if head["dtypes"] != self._dtypes:
            raise TypeError(
                explain(
                    f"the ranks predict different types: {', '.join(self._dtypes)} on one, "
                    f"{', '.join(head['dtypes'])} on rank {rank}",
                    "Use the same model on all ranks",
                    self._where(),
                )
            )
        if head["structure"] != self._structure:
            raise TypeError(
                explain(
                    f"the ranks predict different structures: that of rank {rank} is not that of the ranks before it",
                    "Use the same model on all ranks, and let it return tuples, lists and dicts of tensors",
                    self._where(),
                )
            )

    def _keep(self, leaves: list[Any], rank: int, step: int) -> None:
        for number, (leaf, known) in enumerate(zip(leaves, self._got[0] if self._got else leaves)):
            if leaf.shape[1:] != known.shape[1:]:
                raise ValueError(
                    explain(
                        f"what predicts returned rows of shape {list(known.shape[1:])} before, and of {list(leaf.shape[1:])} on rank {rank} "
                        f"in step {step}, which can't be joined{f' (output {number})' if len(leaves) > 1 else ''}",
                        "Pad all batches to one size (padded_batch with padded_shapes), or return what has one shape",
                        self._where(),
                    )
                )
        self._got.append(leaves)

    def _join(self, outputs: _Outputs) -> None:
        """Before the others are told that all went well: what goes wrong here is everybody's error."""
        if not self._got:
            raise ValueError(
                explain("predict() was given a dataset without rows", "Look at what the reader finds", self._where())
            )
        structure = outputs.structure
        if structure is None:  # this rank had no rows
            if self._structure is None:
                raise TypeError(
                    explain(
                        "rank 0 had no rows, and no rank can say the structure of the outputs: it has classes of the program's own",
                        "Return tuples, lists and dicts of tensors",
                        self._where(),
                    )
                )
            structure = _of_words(self._structure)
        self.joined = tf.nest.pack_sequence_as(structure, [np.concatenate(leaves) for leaves in zip(*self._got)])

    def _where(self) -> str:
        return self._job.where + self.of_channel
