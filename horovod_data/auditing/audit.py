# SPDX-License-Identifier: Apache-2.0
"""audit(): which rank saw which row, of any loader."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import tensorflow as tf

from ..channel import receiver
from ..channel.agreement import check_agreement, check_errors
from ..ending import shutdown, signals
from ..errors import explained, whole, words_of
from ..job import state
from .exchange import Exchange
from .iterables import audited_iterable
from .keys import Key, component_of
from .record import Recorder, finish_all
from .reference import Reference, check_reference, make_reference
from .settle import settle

_numbers = itertools.count(1)  # the number of the next audit; calls are collective, so all ranks have the same numbers


def audit(dataset_or_iterable: Any, *, key: Key = None, reference: Any = None) -> Any:
    """Passes the elements of a loader through, unchanged. After each epoch it reports which rows the job saw.

    Collective among trainers: every rank makes the same calls in the same order, and passes its own loader. An
    iteration is an epoch, and all ranks make the same number of iterations. Ranks may make different numbers of steps.
    An epoch ends where the loader ends, or where the program leaves the loop. At the latest it ends when the next
    iteration begins, at shutdown(), or at the end of the program.

    A thread then joins the keys of all ranks, so the program does not wait. When all ranks have ended the epoch, rank 0
    prints the report to stderr, and report() returns it on every rank. An audit keeps this thread and its reference
    until the end of the job. So call audit() once for a loader, not for each epoch.

    Args:
      dataset_or_iterable: this rank's loader: a tf.data.Dataset, or any iterable of nests (tuples, lists, mappings) of
        arrays, tensors, numbers and texts.
      key: what identifies a row. None: the row's content. The rows lie along axis 0 if all components have an axis 0
        of the same length. If not, the element is one row. Any other key is the name or place of a component (`"id"`,
        `1`), a tuple of these (`(0, "id")` for `element[0]["id"]`), or a function of the element. It has one entry for
        each row along axis 0. If it is a single value, the element is one row.
      reference: the expected rows, which rank 0 reads once, in this call. Other ranks may pass None. It is a number of
        rows; or keys, if `key` is given (a set, range, list or 1-d array of whole numbers or texts); or a dataset or
        another iterable of elements; or a function that returns one of these. None: missing rows are unknown.

    Returns:
      An object that yields the same elements, and has report(), reports and end_epoch() (see Audit).
      For a tf.data.Dataset: a dataset with the same element_spec and cardinality, which also works in model.fit.
      For an iterator or a generator: an iterator. For anything else: an iterable.
      On a dedicated reader, which takes no part: the argument itself.

    Raises:
      TypeError, ValueError: an argument is wrong, or the ranks disagree. Every rank raises it, and its text names
        the rank that caused it.
      RuntimeError: before init(), after shutdown(), inside tf.function, or in a TF1 graph.
      Errors of the reference: on rank 0 as they are. On other ranks an error of the same class that quotes them.
      tf.errors.UnavailableError: a rank has departed.
      tf.errors.DeadlineExceededError: a rank has not made the call within HOROVOD_DATA_TIMEOUT seconds.
    """
    job = state.current("audit()")
    if job.trainer is None:
        return dataset_or_iterable
    if tf.inside_function() or not tf.executing_eagerly():
        what = "audit() was called inside tf.function, or where a TF1 graph is being built"
        to_do = "Call it in eager mode, before; the dataset it returns may be used inside"
        raise explained(RuntimeError, what, to_do, job.where)
    receiver.protect_forks()  # init() may have come before TensorFlow
    exchange = Exchange(f"audit {next(_numbers)}", job.trainer, len(job.layout.trainers))
    with signals.Held() as ctrl_c:
        key, known = _agreed(job, exchange, dataset_or_iterable, key, reference, ctrl_c)
    recorder = Recorder(
        exchange.label, key, lambda epoch: settle(exchange, epoch, known, key is None), announce=exchange.rank == 0
    )
    shutdown.before_shutdown(finish_all)
    if isinstance(dataset_or_iterable, tf.data.Dataset):
        from .datasets import AuditedDataset

        return AuditedDataset(dataset_or_iterable, recorder, key)
    return audited_iterable(dataset_or_iterable, recorder)


def _agreed(
    job: state.Job, exchange: Exchange, given: Any, key: Key, reference: Any, ctrl_c: signals.Held
) -> tuple[Key, Reference]:
    """The key, and the reference, which rank 0 reads. Raises an error on all ranks if their arguments differ."""
    failure: Optional[BaseException] = None
    mine: dict[str, Any] = {"arguments": {"key": None}, "reference": reference is not None}
    try:
        _check_loader(given)
        key = _checked_key(key, given)
        mine["arguments"] = {"key": "a function" if callable(key) else key}
        check_reference(reference, key)
    except Exception as error:
        failure = error
        mine["error"] = words_of(error)
    said: list[Any] = [((job.layout.trainers[rank],), one) for rank, one in enumerate(exchange.allgather(mine))]
    check_errors(job, "audit()", said, failure)
    check_agreement(job, "audit()", said)
    return key, make_reference(job, exchange, reference, key, ctrl_c) if said[0][1]["reference"] else Reference()


def _check_loader(given: Any) -> None:
    if isinstance(given, tf.data.Dataset):
        return
    data = isinstance(given, (str, bytes, dict)) or hasattr(given, "__array__")
    if data or not (hasattr(given, "__iter__") or hasattr(given, "__getitem__")):
        to_do = "Pass a tf.data.Dataset or another iterable of batches; [(x, y)] for arrays"
        raise explained(TypeError, f"audit() was given a {type(given).__name__}, which is no loader", to_do)


def _checked_key(key: Any, given: Any) -> Any:
    """The key. Places that were given as numpy numbers become Python ints."""
    if key is not None and not callable(key):
        given_steps = key if isinstance(key, tuple) else (key,)
        steps = tuple(one if isinstance(one, str) else whole(one) for one in given_steps)
        if not steps or None in steps:
            to_do = "Pass None, the name or place of a component, a tuple of these, or a function that returns one key"
            raise explained(TypeError, f"key={key!r} is no key", f"{to_do} for each row of an element")
        key = steps if isinstance(key, tuple) else steps[0]
    if not isinstance(given, tf.data.Dataset) or callable(key):
        return key
    from .datasets import check_spec

    spec = given.element_spec
    try:
        part = component_of(spec, key) if key is not None else spec
    except (KeyError, IndexError, TypeError):
        what = f"key={key!r}: the dataset's elements have no such component; they are {spec}"
        raise explained(ValueError, what, "Name one that they have") from None
    check_spec(part)
    return key
