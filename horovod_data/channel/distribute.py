# SPDX-License-Identifier: Apache-2.0
"""distribute_dataset(): makes a channel, and returns this rank's side of it as a tf.data.Dataset."""

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
from . import tensors
from .create import Channel, make
from .options import Options
from .reader_dataset import checked_dataset_or_fn, read_dataset
from .reading import Reading, Rules
from .receiver import protect_forks, receive

DatasetFn = Optional[Callable[..., tf.data.Dataset]]
DatasetOrFn = Union[tf.data.Dataset, DatasetFn]

# For each name, the channels that were made in TF1 graphs. The k-th call for a name in any graph gets the k-th channel.
# Example: an Estimator builds a new graph for each train() or evaluate(), and calls the same input_fn in it. Each such
# call gets the existing channel. Channels live until shutdown(), because an old graph may be freed on one rank only.
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
    weigh: Union[None, str, Callable[..., Any]] = None,
    cache: Optional[str] = None,
    shuffle: bool = False,
    seed: int = 0,
) -> tf.data.Dataset:
    """Deals the elements of the reader's dataset to all ranks. Each rank gets its own elements only.

    Collective: every rank, and every dedicated reader, makes the same calls in the same order with the same arguments.
    Only the dataset (or function) of readers is used. Each iteration of the returned dataset is a new epoch: one pass
    over the reader's dataset, in which all ranks take part.

    Args:
      dataset_or_fn: a tf.data.Dataset, or a function that returns one. On ranks that don't read it may be None. Readers
        call the function once, in eager mode.
        A function with one parameter without a default gets a tf.distribute.InputContext: input_pipeline_id is the
        number of the reader, num_input_pipelines the number of readers, num_replicas_in_sync the number of trainers.
        A function with a parameter named `epoch` is called for every epoch, with the epoch's number from 1. A restored
        run continues the numbers. The first call is made here, all later calls on a thread of the library. All its
        datasets must have the same element_spec. Their lengths may differ, so the cardinality is UNKNOWN unless the
        first dataset is infinite.
      batch: what an element is.
        "global": a global batch. It is cut along axis 0 into one share per rank (as in tf.distribute).
        "per_rank": one rank's whole batch. N consecutive elements make a step for N ranks (as in Horovod).
      schedule: "static": all ranks get the same number of steps, in an order that depends on the reader's order alone.
        "dynamic": first come, first served, with batch="per_rank" only. Each rank ends when the source is exhausted.
      remainder: what happens if m rows (elements) don't divide evenly among N ranks.
        "drop": each rank gets floor(m / N) rows. A log line counts the rows that are left out.
        "partial": the first m mod N ranks get one row more. Shares may be empty.
        "pad": all ranks get ceil(m / N) rows. The missing rows, at the end, are zeros. Each row gets a float32 weight:
        0 for padding, 1 otherwise. (x, y) becomes (x, y, weight), anything else becomes (element, weight).
        "repeat": as "pad", but the missing rows (elements) are copies of the first rows (elements) of the same step,
        with weight 0. So batch normalisation sees only real rows. (x, y, sample_weight) becomes
        (x, y, sample_weight * weight), as with `weigh`.
      prefetch: the most steps that a reader may send ahead to a rank, beyond its current step. This changes neither the
        order of rows, nor which rank gets a row.
        "auto": as many as help the rank: 2 to 64, within prefetch_mb.
        A whole number of 1 or more: a reader holds at most prefetch + 1 global batches, and a trainer at most prefetch
        shares.
      prefetch_mb: with prefetch="auto", the most MiB of batches that the reader may send ahead for this channel, to
        all ranks together. Two steps are always allowed. None stands for HOROVOD_DATA_PREFETCH_MB, by default 64, and
        with cache="job" for an eighth of it. At most a quarter of a reader's HOROVOD_DATA_ARENA_MB is used. With
        a number as prefetch, prefetch_mb is an error.
      shard: for several readers.
        None: each reader delivers all of its dataset. The dataset function gives each reader its part.
        "auto": all readers have the same dataset, and each delivers its part of it. A log line says if files or
        elements are divided. Files are divided if the dataset begins with a list of at least as many files as readers,
        and no later stage counts elements. Otherwise every reader reads everything, and delivers its part of the
        elements. If the parts don't make up one whole, it is an error: for example, if their orders differ.
        Datasets that a function makes for later epochs are not compared, so they must be the same on all readers.
      on_reader_error: the effect of an error in a reader's pipeline.
        "raise": the epoch ends, and every rank raises the error.
        "continue": a log line says what is lost, and the epoch continues with the other readers.
      weigh: exact weights with every share, so unequal shares give the gradient of one process. With these weights

            mean over ranks of (mean over the rank's rows of weight * loss) = sum(cost * loss) / sum(cost)

        over all rows of a step, for every batch, remainder and number of readers. A row on a rank with n rows has the
        weight N * n * cost / (the cost of all rows of the step). No collective is needed. Not with schedule="dynamic".
        None: no weights, except those of "pad" and "repeat".
        "rows": each row costs 1.
        A function: on a reader it is called with the components of an element, as in Dataset.map. It returns the cost
        of each row, for example its tokens: a vector of numbers of 0 or more, or a number if elements have no axis 0.
        (x, y) becomes (x, y, weight) with a float32 weight for each row. (x, y, sample_weight), where sample_weight is
        one float tensor with an axis 0, becomes (x, y, sample_weight * weight). Anything else becomes
        (element, weight).
      cache: "job": the pipeline runs once, and its rows (elements with batch="per_rank") stay in the memory of the
        job's hosts. Later epochs are delivered from there (docs/slow-storage.md). Epoch 1 comes in the pipeline's
        order. Put random augmentation behind this call, because every epoch gets the same rows.
        A host keeps at most HOROVOD_DATA_CACHE_GB, by default half of the memory that is available in this call. Rows
        beyond that go to files in HOROVOD_DATA_CACHE_DIR. Without such a folder every rank raises an error.
        The data must be finite. Not with schedule="dynamic", a function with a parameter `epoch`,
        on_reader_error="continue", or a reader on each of several hosts.
      shuffle: with cache="job". True: every epoch after the first delivers all rows in a new permutation. It depends on
        `seed` and on the number of the epoch alone. A restored run continues the numbers. False: every epoch has the
        order of epoch 1.
      seed: of the permutations: a whole number of at most 64 bits.
      verify: True: every row is hashed where the pipeline yields it, and again where a rank gets it. A row that is
        lost, repeated, altered, or on the wrong rank is an error on every rank (DataLossError). At the end of an epoch,
        a log line and a record in the file HOROVOD_DATA_CERTIFICATE certify it (docs/certificate.md).
        HOROVOD_DATA_VERIFY=1 verifies every channel.
      name: the channel's name in messages. While a TF1 graph is built, a name that exists in another graph stands for
        the same channel.

    Returns:
      A tf.data.Dataset of this rank's shares, with dtypes and structure as on the reader, and axis 0 as described. On
      other ranks a namedtuple has the same name and fields, with another class. A dict keeps its order, and is a dict
      or an OrderedDict. On a dedicated reader the dataset can't be iterated.

    Raises:
      TypeError, ValueError: an argument is wrong, elements can't be dealt this way, or the ranks disagree. A wrong
        argument is raised before the ranks compare their arguments. If the program catches that error, its next call
        counts instead of this one. An error that only one rank can see is raised there as it is. On the other ranks it
        has the same class, and names that rank.
      RuntimeError: before init(), after shutdown(), inside tf.function, or after a rank has departed.
      TimeoutError: a rank has not made this call within HOROVOD_DATA_TIMEOUT seconds.
      Errors of the dataset function: on the reader as they are. On other ranks they quote the text. Their class is the
        same if it is Python's or TensorFlow's, otherwise RuntimeError.
      KeyboardInterrupt: at once in the dataset function, otherwise when all ranks have made the call.

    Iterating raises, on every rank:

    - tf.errors.*: an error of the reader's pipeline, with its place (channel, epoch, step, reader and host).
    - ResourceExhaustedError: with cache="job": the rows of a host don't fit in its memory.
    - UnavailableError: a process was lost.
    - DeadlineExceededError: nothing has come for HOROVOD_DATA_TIMEOUT seconds.
    - FailedPreconditionError: after shutdown(), or when a newer iterator of the dataset has ended this epoch.
    """
    given = locals()  # inside a tf.function AutoGraph adds local names later
    state.current("distribute_dataset()")
    return distribute(
        dataset_or_fn, Options(**{field.name: given[field.name] for field in dataclasses.fields(Options)})
    )


def distribute(dataset_or_fn: DatasetOrFn, options: Options, held: Optional[signals.Held] = None) -> tf.data.Dataset:
    """distribute_dataset() as a part of a larger call. `held` defers signals until the end of that call."""
    job = state.current("distribute_dataset()")
    options = options.completed(job.settings)
    if tf.inside_function():
        what = "distribute_dataset() was called inside tf.function, where it would run once per trace"
        raise explained(RuntimeError, what, "Call it before, and use the dataset inside")
    with contextlib.nullcontext(held) if held is not None else signals.Held() as ctrl_c:
        if not tf.executing_eagerly():
            return _shares(_channel_of_graph(job, options, dataset_or_fn, ctrl_c), job)
        channel = _made(job, options, dataset_or_fn, ctrl_c)
        try:
            return _shares(channel, job)  # the dataset object keeps the channel in use
        finally:
            bindings.channel_unuse(channel.number)


def _made(job: state.Job, options: Options, dataset_or_fn: DatasetOrFn, ctrl_c: signals.Held) -> Channel:
    def read(job: state.Job) -> Optional[Reading]:
        checked_dataset_or_fn(dataset_or_fn, needed=job.reader is not None)
        if job.reader is None:
            return None
        return read_dataset(dataset_or_fn, Rules(options, job.reader, *job.layout.sizes(job.comm_rank)))

    protect_forks()  # init() may have come before TensorFlow
    return make(job, options, "distribute_dataset", read, ctrl_c)


def distribute_datasets_from_function(fn: DatasetFn, *, batch: str, **options: Any) -> tf.data.Dataset:
    """distribute_dataset() for a function, under the name that tf.distribute uses. Collective.

    Args:
      fn: a function that takes a tf.distribute.InputContext (or nothing) and returns a tf.data.Dataset. Only readers
        call it: once, or for every epoch if it has a parameter named `epoch`. On ranks that don't read it may be None.
      batch, options: all arguments of distribute_dataset() after its first.

    Returns:
      A tf.data.Dataset of this rank's shares, as distribute_dataset() does.

    Raises:
      TypeError: fn is a dataset. All other errors are those of distribute_dataset().
    """
    state.current("distribute_datasets_from_function()")
    if isinstance(fn, tf.data.Dataset):
        to_do = "Pass a function that returns one, or call distribute_dataset()"
        raise explained(TypeError, "distribute_datasets_from_function() was given a dataset", to_do)
    return distribute_dataset(fn, batch=batch, **options)


def _channel_of_graph(job: state.Job, options: Options, dataset_or_fn: DatasetOrFn, ctrl_c: signals.Held) -> Channel:
    graph = tf.compat.v1.get_default_graph()
    if options.name is None:
        channel = _made(job, options, dataset_or_fn, ctrl_c)
        weakref.finalize(graph, bindings.channel_unuse, channel.number).atexit = False
        return channel
    name = options.name
    asked = _asked.setdefault(graph, collections.Counter())
    channels = _named.setdefault(name, [])
    given = None
    if asked[name] == len(channels):
        channels.append(_made(job, options, dataset_or_fn, ctrl_c))
        channels[-1].made_of = None if isinstance(dataset_or_fn, tf.data.Dataset) else dataset_or_fn
    else:  # not collective: an error stays on this rank
        checked_dataset_or_fn(dataset_or_fn, needed=job.reader is not None)
        given = dataset_or_fn
    channel = channels[asked[name]]
    if channel.options.words() != options.words():  # weigh= may be a new function in each graph
        what = f"channel {options.name!r} exists with {channel.options}, but was asked for again with {options}"
        raise explained(ValueError, what, "Use the same arguments or another name")
    asked[name] += 1
    # Trainer 0 logs too, because dedicated readers are in serve() by now.
    logs = job.reader is not None or job.trainer == 0
    if logs and given is not None and given != channel.made_of and not channel.told:
        channel.told = True
        what = f"channel {options.name!r} exists already, from an earlier graph: it keeps its first dataset"
        to_do = (
            "That is right if they are equal, as when an input_fn is called again. For another dataset use another name"
        )
        say(explain(f"{what}, and the one given now is ignored", to_do))
    return channel


def _shares(channel: Channel, job: state.Job) -> tf.data.Dataset:
    options = channel.options
    whole = options.remainder == "partial" and options.schedule == "static"
    return receive(
        channel.number,
        channel.label,
        channel.steps,
        tensors.tf_spec(channel.share_spec(job)),
        whole,
        channel.multiplies,
    )
