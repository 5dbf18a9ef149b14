# SPDX-License-Identifier: Apache-2.0
"""predict(): a model's outputs for every row of a dataset, on rank 0, in the order in which the reader has the rows.

Every rank predicts its shares and keeps the outputs of some steps. Then a gather brings them to rank 0. Rank 0 answers all ranks:
whether a rank has failed, and after how many steps the next gather is. So memory stays small, and a failure of one rank ends
the call on all. Every failure of a rank goes this way, also an error of the reader's pipeline, which all ranks raise. If a rank
just raised, the other ranks would pair its next call with their gather.
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
from ..errors import explained, placed, without_place, words_of
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
    those of distribute_dataset(..., remainder="partial"): no row is dropped or padded.

    Several readers take turns, so the order is that of the steps. It is the order of the dataset where the readers divide its elements and
    batch="global". With batch="per_rank" each step has elements of one reader. Where each reader has files of its own, they take turns.

    Args:
      model_or_fn: a Keras model (anything with `predict_on_batch`), which gets the inputs of an element (x of a tuple x, y, weight). Or a
        function, which is called as Dataset.map would call it, with the parts of a tuple as arguments. It returns a tensor or
        array, or a nest of them, with a row for each row of the share. It is not called for shares without rows.
      dataset: a tf.data.Dataset or a function that makes one, as distribute_dataset() takes it; None where nothing is read.
        Its elements are batches, and it ends. Or, on every rank, the result of distribute_dataset(..., remainder="partial"), so
        that a dedicated reader, which takes no new dataset in serve(), can read it. Stages after it must leave the rows of each element
        together (map, prefetch, cache). Others (batch, unbatch, shuffle) are refused. Then `batch`, `name` and `shard` are those of
        that call.
      batch: "global" or "per_rank", as in distribute_dataset().
      name: of the channel.
      shard: "auto": several readers divide the dataset, as in distribute_dataset(). None: they do so, too. Except: a dataset
        function that takes a tf.distribute.InputContext gives each reader its own part.

    Returns:
      On rank 0 the outputs of all rows: the nest that model_or_fn returns, of numpy arrays of shape [rows, ...]. Elsewhere None.

    Raises:
      TypeError, ValueError: wrong arguments. The dataset never ends, or has no rows. The outputs have not one row for each row, or their
        rows have different shapes. The ranks come to different numbers of steps.
      RuntimeError: before init(), after shutdown(), or where TensorFlow does not execute eagerly.
      Errors of model_or_fn: on their own rank as they are. Other ranks raise the same class with that rank's name, if the class
        is Python's or TensorFlow's. Errors of the pipeline are raised as by distribute_dataset().
      KeyboardInterrupt: when the other ranks have heard of it.
    """
    job = state.current("predict()")
    if not tf.executing_eagerly():
        raise explained(
            RuntimeError,
            "predict() was called where TensorFlow does not execute eagerly",
            "Call it outside of tf.function and of TF1 graphs",
            job.where,
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
    """`ends`: the ends of channels in `shares`, where an earlier call distributed them."""
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
                if function is None:  # the first round only checks: a rank that fails here must not hold up an epoch
                    if ends:
                        _check_stages(shares, ends, f"{job.where}{rounds.of_channel}")
                    if int(shares.cardinality()) == _INFINITE:
                        raise explained(
                            ValueError,
                            "predict() was given a dataset that never ends",
                            "Leave out repeat(), or add take()",
                            job.where,
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
        except BaseException as error:  # also Ctrl-C, and sys.exit() in the model, which the program may catch
            ctrl_c.close()  # a second signal may have come before the first close()
            failure = error
            _let_go(error)
        if ended or failure is not None:
            iterator = None  # closes it, so the other ranks go on without this one
        try:
            rounds.gather(outputs, step, ended, failure)
        finally:
            failure = None  # else this frame and the error would keep each other alive, with the program's frames


def _check_stages(dataset: tf.data.Dataset, ends: Sequence[Any], where: str) -> None:
    """Checks a dataset that an earlier call distributed, and the stages after it.

    Raises:
      ValueError: its elements would not have all rows in the reader's order.
    """
    if not all(end.whole for end in ends):
        raise explained(
            ValueError,
            "predict() was given what distribute_dataset() returned, which may leave out rows or add some",
            'Distribute it with remainder="partial" and schedule="static"',
            where,
        )
    behind = receiver.stages_behind(ends, dataset)
    in_order = dataset.options().deterministic is not False
    for stage in behind:
        if private.divides_anew(stage, in_order):
            raise explained(
                ValueError,
                "predict() was given what distribute_dataset() returned, and behind it a stage "
                f"({private.name(stage)}) after which rows don't come as the reader has them",
                "Put it before distribute_dataset(), or leave it out",
                where,
            )


def _let_go(error: BaseException) -> None:
    """Clears the frames of an error, which hold the iterator."""
    seen: list[BaseException] = []  # an error may be its own cause
    waiting: list[Optional[BaseException]] = [error]
    while waiting:
        if (at := waiting.pop()) is not None and not any(at is one for one in seen):
            seen.append(at)
            traceback.clear_frames(at.__traceback__)
            waiting += [at.__cause__, at.__context__]


def _function(model_or_fn: Any, job: state.Job) -> Callable[[Any], Any]:
    """The function that gets an element and predicts."""
    if (on_batch := getattr(model_or_fn, "predict_on_batch", None)) is not None:
        return lambda element: on_batch(
            element[0] if isinstance(element, tuple) and 1 <= len(element) <= 3 else element
        )
    if not callable(model_or_fn):
        raise explained(
            TypeError,
            f"predict() takes a model or a function, not {model_or_fn!r}",
            "Pass something with predict_on_batch(), as Keras models have it, or a function",
            job.where,
        )
    return lambda element: model_or_fn(*element) if type(element) is tuple else model_or_fn(element)


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
    """The structure of outputs in a form for other ranks. None: it has classes of the program's own."""
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


class _Outputs:
    """The outputs that this rank has not sent yet: for each step with rows a list of encoded tensors."""

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
        """All of them as one row for a gather. Forgets them."""
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
    """The gathers, one after another, and the outputs that rank 0 has got."""

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
        """Collective among trainers. Raises the first error of any of them."""
        try:
            answer, failure = self._exchange(outputs, step, ended, failure)
            if failure is not None:
                raise failure
        except Exception as of_others:  # for example: the other ranks have left
            if failure is not None and of_others is not failure:
                raise failure from of_others
            raise
        finally:
            failure = None  # else this frame and the error would keep each other alive, with the program's frames
        if "failure" in answer:
            rank, failed, kind, text = answer["failure"]
            member = self._job.layout.trainers[rank]
            whose = self._job.name(member)
            text = without_place(without_place(text, whose), whose + self.of_channel)
            raise raised(kind, placed(f"{whose}{self.of_channel}, step {failed}", f"predict() failed: {kind}: {text}"))
        self.done, self.next_step = answer["done"], answer["next_step"]

    def _exchange(
        self, outputs: _Outputs, step: int, ended: bool, failure: Optional[BaseException]
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
            failure = None  # as in gather()

    def _take(self, outputs: _Outputs, parts: list[Any], step: int) -> dict[str, Any]:
        """Takes what all ranks sent for the same steps, and returns the answer."""
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
        """Checks that a rank's outputs have the types and the structure of all others."""
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

    def _join(self, outputs: _Outputs) -> None:
        """Joins the outputs. It runs before rank 0 answers, so all ranks raise an error of it."""
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
