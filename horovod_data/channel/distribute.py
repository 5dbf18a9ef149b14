# SPDX-License-Identifier: Apache-2.0
"""distribute_dataset: makes a channel, and returns this rank's end of it as a tf.data.Dataset."""

from __future__ import annotations

import collections
import contextlib
import weakref
from typing import Any, Callable, Optional, Union

import tensorflow as tf

from ..ending import signals
from ..errors import explain, say
from ..job import state
from ..native import bindings
from . import elements
from .create import Channel, DatasetFn, DatasetOrFn, make
from .options import Options
from .reader_dataset import checked_dataset_or_fn
from .receiver import receive

# Channels made by name while a graph was built, the k-th of a name in its graph as the k-th here. Estimators build a new
# graph for each call of train() or evaluate(), and call the same input_fn in each: they get the channels that are there.
# These live until shutdown, because whether an old graph has been freed would differ between ranks.
_named: dict[str, list[Channel]] = {}
# How often each graph has asked for each name.
_asked: "weakref.WeakKeyDictionary[tf.Graph, collections.Counter[str]]" = weakref.WeakKeyDictionary()


def distribute_dataset(
    dataset_or_fn: DatasetOrFn,
    *,
    batch: str,
    schedule: str = "static",
    remainder: str = "drop",
    prefetch: Union[int, str] = "auto",
    name: Optional[str] = None,
    on_reader_error: str = "raise",
    verify: bool = False,
    prefetch_mb: Optional[float] = None,
    shard: Optional[str] = None,
) -> tf.data.Dataset:
    """Deals the elements of the reader's dataset to all ranks: each gets its own, and nobody else's.

    Collective: every rank, and every dedicated reader, makes the same calls in the same order with the same arguments.
    The dataset (or function) counts on readers only. Each iteration of the returned dataset is a new epoch: one pass over
    the reader's dataset, in which all ranks take part.

    Args:
      dataset_or_fn: a tf.data.Dataset, or a function that returns one and is called on readers only, once, in eager mode.
        A function with one parameter that has no default gets a tf.distribute.InputContext, in which input_pipeline_id is
        the reader's number, num_input_pipelines the number of readers and num_replicas_in_sync the number of trainers. On
        other ranks it may be None. A function with a parameter named `epoch`, beside the other or not, is called anew at the
        beginning of every epoch, with its number from 1, which goes on over a restore; on a thread of ours, but for the first
        call, which is made here. All its datasets have the same element_spec; their lengths may differ, so the cardinality
        is UNKNOWN unless the first one is infinite.
      batch: "global": each element is a global batch, cut along axis 0 into one share per rank (as tf.distribute means
        it). "per_rank": each element is one rank's whole batch; N consecutive ones make a step (as Horovod means it).
      schedule: "static": all ranks get the same number of steps, in an order that depends on nothing but the reader's.
        "dynamic": first come, first served, with batch="per_rank" only; each rank ends when the source is exhausted.
      remainder: what becomes of m rows (elements) that N ranks don't divide. "drop": each rank gets floor(m / N) rows, the
        rest is left out and counted in a log line. "partial": the first m mod N ranks get one row more; shares may be
        empty. "pad": all get ceil(m / N), the missing ones at the end are zeros, and a float32 weight per row (0 on
        padding) is added: (x, y) becomes (x, y, weight), anything else (element, weight).
      prefetch: steps that may be on their way to a rank beyond the one it works on. "auto": as many as help, 2 to 64, bounded in
        bytes; which rows come to whom, and in which order, does not depend on it. A number, 1 or more: so many; the reader holds at
        most prefetch + 1 global batches, a trainer at most prefetch of its own.
      prefetch_mb: with "auto", MiB of batches that the reader may have on their way for this channel, if that is 2 steps or more,
        and for each rank its part of them. None: HOROVOD_DATA_PREFETCH_MB, by default 64. Never more than a quarter of a reader's
        HOROVOD_DATA_ARENA_MB. With a number for prefetch it is an error.
      shard: None: each of several readers delivers all that its dataset yields, and the dataset function gives each its part.
        "auto": all readers have the same dataset, and each delivers its part: its files where the dataset begins with a list of at
        least as many files as there are readers and no stage behind counts elements, otherwise every reader reads all and
        delivers its elements. A line says which. With one reader it does nothing. Where the parts would not be of one whole (another
        order of the files or elements on each reader) it is an error; but what a function makes for later epochs (`epoch`) is not
        compared, so that must be the same on all readers by itself.
      on_reader_error: what an error in a reader's pipeline does. "raise": it ends the epoch, and is raised on every rank.
        "continue": a line says what is lost, and the epoch goes on with what the other readers have.
      verify: every row gets a fingerprint where the pipeline yields it, and again where it is handed out. What is lost, comes
        twice, altered or to another rank is an error on every rank (DataLossError), and at the end of an epoch the certificate
        is one line, and a record in HOROVOD_DATA_CERTIFICATE (docs/certificate.md). HOROVOD_DATA_VERIFY=1 does that for
        every channel.
      name: of the channel, in messages. While a TF1 graph is being built, a name that exists already in another graph
        stands for the same channel.

    Returns:
      A tf.data.Dataset of this rank's shares: dtypes and structure as on the reader, axis 0 as described. (A namedtuple is
      on other ranks one of the same name and fields, but not of the same class; dicts keep their order, and are plain dicts
      or OrderedDicts.) On a dedicated reader it can't be iterated.

    Raises:
      TypeError, ValueError: a wrong argument (before any other rank is asked: the call does not count as made, and on a rank that
        catches the error the next one takes its place), elements that can't be dealt this way, or ranks that disagree. What only
        one rank can see (a reader its elements, say) is raised there as it is, and on the others by the same class with
        that rank's name and text.
      RuntimeError: before init(), after shutdown(), inside tf.function, or when a rank has left.
      TimeoutError: a rank has not made this call within HOROVOD_DATA_TIMEOUT seconds.
      Errors of the dataset function: on the reader as they are, elsewhere one of the same class that quotes them (a
        RuntimeError where the class is neither Python's nor TensorFlow's).

    Iterating raises, on every rank: tf.errors.* as the reader's pipeline raised it, with what its place is (channel,
    epoch, step, reader and host); UnavailableError when a process is lost; DeadlineExceededError when nothing has come for
    HOROVOD_DATA_TIMEOUT seconds; FailedPreconditionError after shutdown(), and in an iterator whose epoch was ended by a
    newer one of the same dataset.
    """
    arguments = {name: value for name, value in locals().items() if name != "dataset_or_fn"}
    state.current("distribute_dataset()")
    return distribute(dataset_or_fn, Options(**arguments))


def distribute(dataset_or_fn: DatasetOrFn, options: Options, held: Optional[signals.Held] = None) -> tf.data.Dataset:
    """distribute_dataset(), for a call that does more. `held` holds signals until the end of that call."""
    job = state.current("distribute_dataset()")
    options = options.completed(job.settings)
    if tf.inside_function():
        raise RuntimeError(
            explain(
                "distribute_dataset() was called inside tf.function, where it would run once per trace",
                "Call it before, and use the dataset inside",
                job.where,
            )
        )
    with contextlib.nullcontext(held) if held is not None else signals.Held() as ctrl_c:
        if not tf.executing_eagerly():
            return _shares(_channel_of_graph(job, options, dataset_or_fn, ctrl_c), job)
        channel = make(job, options, dataset_or_fn, ctrl_c)
        try:
            return _shares(channel, job)  # the dataset object keeps the channel in use
        finally:
            bindings.channel_unuse(channel.number)


def distribute_datasets_from_function(fn: DatasetFn, *, batch: str, **options: Any) -> tf.data.Dataset:
    """distribute_dataset() of a function, under the name that tf.distribute has for it. Collective.

    Args:
      fn: takes a tf.distribute.InputContext (or nothing), returns a tf.data.Dataset, and is called on readers only, once
        (with a parameter named `epoch`: for every epoch); elsewhere it may be None.
      batch, options: all arguments of distribute_dataset() after its first.

    Returns:
      A tf.data.Dataset of this rank's shares, as distribute_dataset() does.

    Raises:
      TypeError: fn is a dataset. All else as distribute_dataset() does.
    """
    state.current("distribute_datasets_from_function()")
    if isinstance(fn, tf.data.Dataset):
        raise TypeError(
            explain(
                "distribute_datasets_from_function() was given a dataset",
                "Pass a function that returns one, or call distribute_dataset()",
            )
        )
    return distribute_dataset(fn, batch=batch, **options)


def _channel_of_graph(job: state.Job, options: Options, dataset_or_fn: DatasetOrFn, ctrl_c: signals.Held) -> Channel:
    graph = tf.compat.v1.get_default_graph()
    if options.name is None:
        channel = make(job, options, dataset_or_fn, ctrl_c)
        weakref.finalize(graph, bindings.channel_unuse, channel.number).atexit = False
        return channel
    name = options.name
    asked = _asked.setdefault(graph, collections.Counter())
    channels = _named.setdefault(name, [])
    given = None
    if asked[name] == len(channels):
        channels.append(make(job, options, dataset_or_fn, ctrl_c))
        channels[-1].made_of = _weakly(dataset_or_fn)
    else:  # not collective: an error stays on this rank
        checked_dataset_or_fn(dataset_or_fn, needed=job.reader is not None)
        given = dataset_or_fn
    channel = channels[asked[name]]
    if channel.options != options:
        raise ValueError(
            explain(
                f"channel {options.name!r} exists with {channel.options}, but was asked for again with {options}",
                "Use the same arguments or another name",
                job.where,
            )
        )
    asked[name] += 1
    # A dedicated reader, which is in serve(), never comes here.
    if (
        (job.reader is not None or job.trainer == 0)
        and given is not None
        and given != channel.made_of()
        and not channel.told
    ):
        channel.told = True
        say(
            explain(
                f"channel {options.name!r} exists already, from an earlier graph: it goes on with the dataset that it was made of, "
                "and the one that is given now is ignored",
                "That is right where both are the same, as with an input_fn that is called again; for another dataset use another "
                "name",
                job.where,
            )
        )
    return channel


def _weakly(given: Any) -> Callable[[], Any]:
    """A reference to a dataset function that doesn't keep it; datasets are never the same again."""
    if given is None or isinstance(given, tf.data.Dataset):
        return lambda: None
    try:
        return weakref.WeakMethod(given) if hasattr(given, "__self__") else weakref.ref(given)
    except TypeError:
        return lambda: None


def _shares(channel: Channel, job: state.Job) -> tf.data.Dataset:
    options = channel.options
    spec = elements.share_spec(
        channel.spec, options.batch, options.schedule, options.remainder, len(job.layout.audience(job.comm_rank))
    )
    whole = options.remainder == "partial" and options.schedule == "static"
    return receive(channel.number, channel.label, channel.steps, spec, whole)
