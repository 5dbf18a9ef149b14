# SPDX-License-Identifier: Apache-2.0
"""predict(): a model's outputs for every row of a dataset, on rank 0, in the order in which the reader has the rows.

Every rank predicts its shares and keeps the outputs of some steps. Then a gather brings them to rank 0. Rank 0 answers all ranks:
whether a rank has failed, and after how many steps the next gather is. So memory stays small, and a failure of one rank ends
the call on all. Every failure of a rank goes this way, also an error of the reader's pipeline, which all ranks raise. If a rank
just raised, the other ranks would pair its next call with their gather.
"""

from __future__ import annotations

import traceback
from typing import Any, Callable, Optional, Sequence

import tensorflow as tf

from ..channel import receiver
from ..channel.create import DatasetOrFn
from ..channel.distribute import distribute
from ..channel.options import UNLESS_SHARDED, Options
from ..ending import signals
from ..errors import explained
from ..job import state
from ..native import tensorflow_private as private
from .rounds import Outputs, Rounds

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
        rounds = Rounds(job, channel)
        _predict(model_or_fn, shares, ends, job, rounds, ctrl_c)
        return rounds.joined


def _predict(
    model_or_fn: Any,
    shares: tf.data.Dataset,
    ends: Sequence[Any],
    job: state.Job,
    rounds: Rounds,
    ctrl_c: signals.Held,
) -> None:
    """`ends`: the ends of channels in `shares`, where an earlier call distributed them."""
    outputs = Outputs()
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
