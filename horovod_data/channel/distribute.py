# SPDX-License-Identifier: Apache-2.0
"""distribute_dataset(): makes a channel, and returns this rank's end of it as a tf.data.Dataset."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from typing import Any, Callable, Optional, Union

import tensorflow as tf

from ..ending import signals
from ..errors import explain, explained, say
from ..job import state
from ..native import bindings
from . import elements
from .create import Channel, DatasetFn, DatasetOrFn, make
from .options import Options
from .reader_dataset import checked_dataset_or_fn
from .receiver import receive

# The channels that were made by name in a TF1 graph: the k-th of a name in a graph is the k-th in this list. An Estimator builds a new
# graph for each call of train() or evaluate(), and calls the same input_fn in it. It gets the channels that exist.
# They live until shutdown(): an old graph may be freed on one rank and not on another.
_named: dict[str, list[Channel]] = {}
# The number of calls for each name in each graph.
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
    """Deals the elements of the reader's dataset to all ranks. Each rank gets its own elements, and no others.

    Collective: every rank, and every dedicated reader, makes the same calls in the same order with the same arguments.
    Only the dataset (or function) of readers is used. Each iteration of the returned dataset is a new epoch: one pass over the
    reader's dataset, in which all ranks take part.

    Args:
      dataset_or_fn: a tf.data.Dataset, or a function that returns one. Readers call the function once, in eager mode. On other
        ranks it may be None. A function with one parameter without a default gets a tf.distribute.InputContext:
        input_pipeline_id is the reader's number, num_input_pipelines the number of readers, num_replicas_in_sync the number of
        trainers. A function with a parameter named `epoch` is called for every epoch, with its number from 1. The number goes
        on over a restore. The first call is made here, all others on a thread of ours. All datasets of such a function have the
        same element_spec. Their lengths may differ, so the cardinality is UNKNOWN unless the first one is infinite.
      batch: "global": each element is a global batch, cut along axis 0 into one share per rank (as in tf.distribute).
        "per_rank": each element is one rank's whole batch, and N consecutive elements make a step (as in Horovod).
      schedule: "static": all ranks get the same number of steps, in an order that depends on the reader's order alone.
        "dynamic": first come, first served, with batch="per_rank" only. Each rank ends when the source is exhausted.
      remainder: what happens to m rows (elements) that N ranks don't divide. "drop": each rank gets floor(m / N) rows. A log
        line counts the rows that are left out. "partial": the first m mod N ranks get one row more. Shares may be empty.
        "pad": all ranks get ceil(m / N) rows. The missing ones, at the end, are zeros. A float32 weight for each row (0 on
        padding) comes with them: (x, y) becomes (x, y, weight), anything else becomes (element, weight).
      prefetch: the steps that may be on their way to a rank, beyond the one it works on. "auto": as many as help, 2 to 64, bounded
        in bytes. The order of rows, and the rank that gets each, don't depend on it. A number of 1 or more: the reader holds at
        most prefetch + 1 global batches, a trainer at most prefetch of its own.
      prefetch_mb: with prefetch="auto", the MiB of batches that the reader may have on their way for this channel. Two steps may
        always be. Each rank may have its part of them. None stands for HOROVOD_DATA_PREFETCH_MB, by default 64. It is never more
        than a quarter of a reader's HOROVOD_DATA_ARENA_MB. With a number for prefetch it is an error.
      shard: for several readers. None: each reader delivers all of its dataset, and the dataset function gives each its part.
        "auto": all readers have the same dataset, and each delivers its part of it. A part is some of the files, if the dataset
        begins with a list of at least as many files as there are readers, and no later stage counts elements. Otherwise every
        reader reads everything, and delivers its part of the elements. A line says which. Parts that don't make up one whole (for
        example with another order on each reader) are an error. Except: datasets that a function makes for later epochs are
        not compared, so they must be the same on all readers.
      on_reader_error: the effect of an error in a reader's pipeline. "raise": the epoch ends, and every rank raises the error.
        "continue": a line says what is lost, and the epoch goes on with the other readers.
      verify: every row gets a hash where the pipeline yields it, and again where it is handed out. A row that is lost, comes
        twice, is altered, or goes to another rank is an error on every rank (DataLossError). At the end of an epoch the
        certificate is one line, and a record in HOROVOD_DATA_CERTIFICATE (docs/certificate.md). HOROVOD_DATA_VERIFY=1 does
        that for every channel.
      name: of the channel, in messages. While a TF1 graph is built, a name that exists in another graph stands for the same
        channel.

    Returns:
      A tf.data.Dataset of this rank's shares, with dtypes and structure as on the reader, and axis 0 as described. (A namedtuple
      has the same name and fields on other ranks, but another class. A dict keeps its order, and is a dict or an
      OrderedDict.) On a dedicated reader it can't be iterated.

    Raises:
      TypeError, ValueError: an argument is wrong, elements can't be dealt this way, or the ranks disagree. A wrong argument is
        raised before any other rank is asked. If the program catches that error, the next call takes the place of this one. An
        error that one rank alone can see is raised there as it is. On the other ranks it has the same class, and names that rank.
      RuntimeError: before init(), after shutdown(), inside tf.function, or when a rank has left.
      TimeoutError: a rank has not made this call within HOROVOD_DATA_TIMEOUT seconds.
      Errors of the dataset function: on the reader as they are. Elsewhere they have the same class and quote the text. (A
        RuntimeError where the class is neither Python's nor TensorFlow's.)
      KeyboardInterrupt: in the dataset function at once, otherwise when all ranks have made the call.

    Iterating raises, on every rank: tf.errors.* as the reader's pipeline raised it, with its place (channel, epoch, step,
    reader and host); UnavailableError when a process is lost; DeadlineExceededError when nothing has come for
    HOROVOD_DATA_TIMEOUT seconds; FailedPreconditionError after shutdown(), and in an iterator whose epoch was ended by a
    newer one of the same dataset.
    """
    given = locals()  # inside a tf.function AutoGraph adds names of its own
    state.current("distribute_dataset()")
    return distribute(
        dataset_or_fn, Options(**{field.name: given[field.name] for field in dataclasses.fields(Options)})
    )


def distribute(dataset_or_fn: DatasetOrFn, options: Options, held: Optional[signals.Held] = None) -> tf.data.Dataset:
    """distribute_dataset() as a part of a larger call. `held` defers signals until the end of that call."""
    job = state.current("distribute_dataset()")
    options = options.completed(job.settings)
    if tf.inside_function():
        raise explained(
            RuntimeError,
            "distribute_dataset() was called inside tf.function, where it would run once per trace",
            "Call it before, and use the dataset inside",
            job.where,
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
        raise explained(
            TypeError,
            "distribute_datasets_from_function() was given a dataset",
            "Pass a function that returns one, or call distribute_dataset()",
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
        raise explained(
            ValueError,
            f"channel {options.name!r} exists with {channel.options}, but was asked for again with {options}",
            "Use the same arguments or another name",
            job.where,
        )
    asked[name] += 1
    # A dedicated reader never comes here: it is in serve().
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
    """A weak reference to a dataset function. A dataset is another one in each call, so it needs none."""
    if given is None or isinstance(given, tf.data.Dataset):
        return lambda: None
    try:
        return weakref.WeakMethod(given) if hasattr(given, "__self__") else weakref.ref(given)
    except TypeError:
        return lambda: None


def _shares(channel: Channel, job: state.Job) -> tf.data.Dataset:
    options = channel.options
    spec = elements.share_spec(channel.spec, options, len(job.layout.audience(job.comm_rank)))
    whole = options.remainder == "partial" and options.schedule == "static"
    return receive(channel.number, channel.label, channel.steps, spec, whole)
