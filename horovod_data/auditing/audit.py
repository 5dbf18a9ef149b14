# SPDX-License-Identifier: Apache-2.0
"""audit(): who saw which row, of any loader."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import tensorflow as tf

from ..channel.agreement import check_agreement, check_errors
from ..ending import shutdown, signals
from ..errors import explain, text_of, whole
from ..job import state
from .exchange import Exchange
from .iterables import audited_iterable
from .keys import Key, component_of
from .record import Recorder, finish_all
from .reference import Reference, check_reference, make_reference
from .sequences import audited_sequence, sequence_class
from .settle import settle

_numbers = itertools.count(1)  # of audits: calls are collective, so the numbers are the same on all ranks


def audit(dataset_or_iterable: Any, *, key: Key = None, reference: Any = None) -> Any:
    """Passes the elements of a loader through, unchanged. After each epoch it reports which rows the job saw: never, once, n
    times, on which ranks. Any loader will do: a tf.data pipeline with `shard`, a DataLoader of PyTorch's, a Keras sequence, a
    generator.

    Collective among trainers: every rank makes the same calls in the same order, and passes its own loader. An iteration is
    an epoch, and all ranks make the same number of them. An epoch ends where the loader ends or where the loop is left, at
    the latest when the next one begins. It also ends at shutdown(), at the end of the program, and when nothing holds the
    audit any more. A thread then brings the ranks' keys together. Nobody waits for it, and ranks may make different numbers
    of steps. When all ranks have ended the epoch, rank 0 prints the report to stderr, and report() returns it on every rank.

    Memory: 16 bytes for each row that this rank saw, and 16 for each that it counts (all rows / N). Rows of the reference take
    24 instead, as long as something holds the audit. While the report is made, the first are there up to five times, and
    100 MiB more.

    Args:
      dataset_or_iterable: this rank's loader: a tf.data.Dataset, or any iterable of nests (tuples, lists, mappings) of
        arrays, tensors, numbers and texts.
      key: what a row is known by. None: its content, a 128-bit hash over dtype, shape and bytes of all components. Or the
        name or place of a component (`"id"`, `1`), or a tuple of them (`(0, "id")` for `element[0]["id"]`), or a function of
        the element. The key is an array with one entry for each row: whole numbers, texts, or anything else along whose axis
        0 the rows are. It may be a tuple of such arrays, which are the key together. If it is a single value, the element is
        one row. Without a key the rows are counted along axis 0 if all components have one of the same length. Otherwise the
        element is one row.
      reference: the rows that there should be. Either their number; or their keys (a set, range, list or 1-d array of whole
        numbers or texts), with a key; or a dataset or another iterable of elements to make keys of, also one that has only
        `__getitem__` and `__len__`; or a function that returns one of these. Rank 0's counts, and is read there, once, in
        this call. Other ranks may pass None. None: what was never seen isn't known.

    Returns:
      What yields the same elements. Of a tf.data.Dataset: one with the same element_spec and cardinality, which does the same
      in model.fit. Of an iterator or a generator: an iterator. Of a Keras sequence: a sequence. Of anything else: an
      iterable. All have report(), reports and end_epoch() (see Audit). On a dedicated reader, which takes no part: what was
      given.

    Raises:
      TypeError, ValueError: a wrong argument, or ranks that disagree; on every rank, with the rank that had it.
      RuntimeError: before init(), after shutdown(), inside tf.function, or in a TF1 graph.
      Errors of the reference: on rank 0 as they are, elsewhere one of the same class that quotes them.
      tf.errors.UnavailableError, DeadlineExceededError: a rank has departed, or does not come.
    """
    job = state.current("audit()")
    if job.trainer is None:
        return dataset_or_iterable
    if tf.inside_function() or not tf.executing_eagerly():
        what = "audit() was called inside tf.function, or where a TF1 graph is being built"
        to_do = "Call it in eager mode, before; the dataset it returns may be used inside"
        raise RuntimeError(explain(what, to_do, job.where))
    exchange = Exchange(f"audit {next(_numbers)}", job.trainer, len(job.layout.trainers))
    with signals.Held() as ctrl_c:
        key, known = _agreed(job, exchange, dataset_or_iterable, key, reference, ctrl_c)
    sequence = sequence_class(dataset_or_iterable)
    recorder = Recorder(
        exchange.label,
        key,
        lambda epoch: settle(exchange, epoch, known, key is None),
        announce=exchange.rank == 0,
        partial=sequence is None,
    )
    shutdown.before_shutdown(finish_all)
    if isinstance(dataset_or_iterable, tf.data.Dataset):
        from .datasets import AuditedDataset

        return AuditedDataset(dataset_or_iterable, recorder, key)
    if sequence is not None:
        return audited_sequence(dataset_or_iterable, recorder, sequence)
    return audited_iterable(dataset_or_iterable, recorder)


def _agreed(
    job: state.Job, exchange: Exchange, given: Any, key: Key, reference: Any, ctrl_c: signals.Held
) -> tuple[Key, Reference]:
    """The key and the reference, which rank 0 reads, where all ranks' arguments fit."""
    failure: Optional[BaseException] = None
    words: dict[str, Any] = {"arguments": {"key": None}, "reference": reference is not None}
    try:
        _check_loader(given)
        key = _checked_key(key, given)
        words["arguments"] = {"key": "a function" if callable(key) else key}
        check_reference(reference, key)
    except Exception as error:
        failure = error
        words["error"] = [type(error).__name__, text_of(error)]
    said: list[Any] = [((job.layout.trainers[rank],), one) for rank, one in enumerate(exchange.allgather(words))]
    check_errors(job, "audit()", said, failure)
    check_agreement(job, "audit()", said)
    return key, make_reference(job, exchange, reference, key, ctrl_c) if said[0][1]["reference"] else Reference()


def _check_loader(given: Any) -> None:
    if isinstance(given, tf.data.Dataset):
        return
    what, to_do = "", "Pass a tf.data.Dataset or another iterable of batches"
    if isinstance(given, (str, bytes, dict)) or hasattr(given, "__array__"):
        what, to_do = "which is no loader", f"{to_do}; [(x, y)] for arrays"
    elif not hasattr(given, "__iter__") and not hasattr(given, "__getitem__"):  # Keras' sequences have the second
        what = "over which nobody can iterate"
    if what:
        raise TypeError(explain(f"audit() was given a {type(given).__name__}, {what}", to_do))


def _checked_key(key: Any, given: Any) -> Any:
    """The key, its places as Python's own numbers."""
    if key is not None and not callable(key):
        steps = tuple(
            one if isinstance(one, str) else whole(one) for one in (key if isinstance(key, tuple) else (key,))
        )
        if not steps or None in steps:
            to_do = "Pass None, the name or place of a component, a tuple of these, or a function that returns one key for each "
            raise TypeError(explain(f"key={key!r} is no key", f"{to_do}row of an element"))
        key = steps if isinstance(key, tuple) else steps[0]
    if not isinstance(given, tf.data.Dataset) or callable(key):
        return key
    from .datasets import check_spec

    spec = given.element_spec
    try:
        part = component_of(spec, key) if key is not None else spec
    except (KeyError, IndexError, TypeError):
        what = f"key={key!r}: the dataset's elements have no such component; they are {spec}"
        raise ValueError(explain(what, "Name one that they have")) from None
    check_spec(part)
    return key
