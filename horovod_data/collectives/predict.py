# SPDX-License-Identifier: Apache-2.0
"""predict(): gives rank 0 a model's outputs for every row of a dataset, in the order in which the reader has the rows.

Every rank predicts its shares and keeps the outputs of some steps. Then all ranks make a round: each learns whether a
rank has failed, and after how many steps the next round is. Rank 0 gets the outputs. So memory stays small, and a
failure of one rank ends the call on all ranks.

Every failure of a rank goes this way, also an error of the reader's pipeline, which all ranks raise. If a rank raised
at once, the other ranks' round would be matched with its next call.
"""

from __future__ import annotations

import traceback
from typing import Any, Callable, Optional, Sequence

import tensorflow as tf

from ..channel import receiver
from ..channel.distribute import DatasetOrFn, distribute
from ..channel.options import UNLESS_SHARDED, Options
from ..ending import signals
from ..errors import explained
from ..job import state
from ..native import tensorflow_private as private
from .rounds import Rounds

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
    """Distributes a dataset, predicts on every rank, and gives rank 0 each row's output once, in the reader's order.

    Collective: every process calls it, readers too. A dedicated reader gets None at once, and reads in serve(). Shares
    are those of distribute_dataset(..., remainder="partial"): no row is dropped or padded.

    With several readers, the order is the order of the steps, because readers take turns (docs/predictions.md).

    Args:
      model_or_fn: a Keras model (anything with `predict_on_batch`), or a function. It is not called for shares without
        rows. A model gets the inputs of an element (x of a tuple x, y, weight). A function is called as Dataset.map
        calls it, with the parts of a tuple as arguments. It returns a tensor or array, or a nest of them, with a row
        for each row of the share.
      dataset: a finite tf.data.Dataset of batches, or a function that makes one, as distribute_dataset() takes it. On
        ranks that don't read it may be None.
        Or, on every rank, the result of distribute_dataset(..., remainder="partial"). A job with dedicated readers
        needs this form after serve(), because a reader in serve() takes no new dataset. Stages after
        distribute_dataset() must leave the rows of each element together (map, prefetch, cache). Other stages (batch,
        unbatch, shuffle) are refused. `batch`, `name` and `shard` of predict() are then ignored.
      batch: "global" or "per_rank", as in distribute_dataset().
      name: the name of the channel.
      shard: "auto": several readers divide the dataset, as in distribute_dataset(). None: the same as "auto", unless
        the dataset function takes a tf.distribute.InputContext. Such a function gives each reader its own part.

    Returns:
      On rank 0 the outputs of all rows: the nest that model_or_fn returns, of numpy arrays of shape [rows, ...]. On
      other ranks None.

    Raises:
      TypeError, ValueError: wrong arguments. The dataset never ends, or has no rows. The outputs don't have one row for
        each row, or their rows have different shapes. The ranks reach different numbers of steps.
      RuntimeError: before init(), after shutdown(), or if TensorFlow does not execute eagerly.
      Errors of model_or_fn: on their own rank as they are. Other ranks raise the same class with that rank's name, if
        the class is Python's or TensorFlow's. Errors of the pipeline are raised as by distribute_dataset().
      KeyboardInterrupt: after the other ranks know of it.
    """
    job = state.current("predict()")
    if not tf.executing_eagerly():
        to_do = "Call it outside of tf.function and of TF1 graphs"
        raise explained(RuntimeError, "predict() was called where TensorFlow does not execute eagerly", to_do)
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
        _predict(model_or_fn, shares, ends, rounds, ctrl_c)
        return rounds.joined


def _predict(
    model_or_fn: Any, shares: tf.data.Dataset, ends: Sequence[Any], rounds: Rounds, ctrl_c: signals.Held
) -> None:
    """`ends`: the datasets in `shares` that receive from a channel, if an earlier call distributed them."""
    step = 0
    function: Any = None
    iterator: Any = None
    while not rounds.done:
        ended = False
        try:
            try:
                ctrl_c.open()
                # the first round only checks, so that a rank that fails here does not delay an epoch
                if function is None:
                    if ends:
                        _check_stages(shares, ends, rounds.where)
                    if int(shares.cardinality()) == _INFINITE:
                        to_do = "Leave out repeat(), or add take()"
                        raise explained(ValueError, "predict() was given a dataset that never ends", to_do)
                    function = _function(model_or_fn)
                elif iterator is None:
                    iterator = iter(shares)
                while step < rounds.next_step and not ended:
                    if (element := next(iterator, _END)) is _END:
                        ended = True
                    else:
                        rounds.add(function, element)
                        step += 1
            finally:
                ctrl_c.close()
        except BaseException as error:  # also Ctrl-C, and sys.exit() in the model; the program may catch them
            ctrl_c.close()  # a second signal may have come before the first close()
            rounds.failure = error
            _let_go(error)
        if ended or rounds.failure is not None:
            iterator = None  # this closes it, so the other ranks continue without this rank
        rounds.exchange(step, ended)


def _check_stages(dataset: tf.data.Dataset, ends: Sequence[Any], where: str) -> None:
    """Raises ValueError unless a dataset that an earlier call distributed gives all rows in the reader's order."""
    if not all(end.whole for end in ends):
        what = "predict() was given what distribute_dataset() returned, which may leave out rows or add some"
        to_do = 'Distribute it with remainder="partial" and schedule="static"'
        raise explained(ValueError, what, to_do, where)
    in_order = dataset.options().deterministic is not False
    for stage in receiver.stages_behind(ends, dataset):
        if private.divides_anew(stage, in_order):
            raise explained(
                ValueError,
                "predict() was given what distribute_dataset() returned, with a stage "
                f"({private.name(stage)}) behind it that changes elements or their order",
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


def _function(model_or_fn: Any) -> Callable[[Any], Any]:
    """The function that takes an element and predicts."""
    if (on_batch := getattr(model_or_fn, "predict_on_batch", None)) is not None:
        return lambda one: on_batch(one[0] if isinstance(one, tuple) and 1 <= len(one) <= 3 else one)
    if not callable(model_or_fn):
        to_do = "Pass something with predict_on_batch(), as Keras models have it, or a function"
        raise explained(TypeError, f"predict() takes a model or a function, not {model_or_fn!r}", to_do)
    return lambda element: model_or_fn(*element) if type(element) is tuple else model_or_fn(element)
