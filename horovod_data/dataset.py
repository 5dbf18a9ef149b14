# SPDX-License-Identifier: Apache-2.0
"""distribute_dataset: makes a channel, and returns this rank's end of it as a tf.data.Dataset."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import json
import math
import numbers
import os
import sys
import threading
import weakref
from typing import Any, Callable, Optional, Union

import tensorflow as tf

from . import core, elements, interrupts, membership
from . import tensorflow_private as private
from .agreement import check_agreement, check_errors
from .errors import checked_name, explain, say, start_thread, text_of, whole
from .progress import watch
from .reading import Reading, checked_dataset_or_fn, steps_of
from .receiving import receive
from .serving import Dealer
from .settings import LEAST_MB, verify_in
from .sharding import Part, Said, check_parts

_BATCH = ("global", "per_rank")
_SCHEDULE = ("static", "dynamic")
_REMAINDER = ("drop", "partial", "pad")
_ON_ERROR = ("raise", "continue")
_INFINITE, _UNKNOWN = -1, -2  # as tf.data counts
_MOST_PREFETCH = 2**31 - 1  # a C int
_AUTO = "auto"
_MIB = 1 << 20
_MOST_MB = float(1 << 20)

DatasetFn = Optional[Callable[..., tf.data.Dataset]]
DatasetOrFn = Union[tf.data.Dataset, DatasetFn]


class _Ours(str):
    """A text that no text of a user's is."""


UNLESS_SHARDED = _Ours("auto, unless the dataset function takes a context")  # for shard, of predict()


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments on which all ranks must agree."""

    batch: str
    schedule: str
    remainder: str
    prefetch: Union[int, str]
    name: Optional[str]
    on_reader_error: str = "raise"
    verify: bool = False
    prefetch_mb: Optional[float] = None  # with "auto" alone, and there not None
    shard: Optional[str] = None

    def __post_init__(self) -> None:
        _choice("batch", self.batch, _BATCH)
        _choice("schedule", self.schedule, _SCHEDULE)
        _choice("remainder", self.remainder, _REMAINDER)
        _choice("on_reader_error", self.on_reader_error, _ON_ERROR)
        if self.shard is not None and self.shard is not UNLESS_SHARDED and not (
                isinstance(self.shard, str) and self.shard == _AUTO):
            raise ValueError(explain(f"shard={self.shard!r} is not known", "Use None or 'auto'"))
        object.__setattr__(self, "prefetch", self._checked_prefetch())  # numpy's whole numbers can't travel
        object.__setattr__(self, "prefetch_mb", _size(self.prefetch_mb))
        if self.prefetch != _AUTO and self.prefetch_mb is not None:
            raise ValueError(explain(f"prefetch_mb={self.prefetch_mb:g} bounds prefetch=\"auto\", but prefetch={self.prefetch} "
                                     "says how many steps", "Give one of them"))
        checked_name(self.name)
        if self.schedule == "dynamic" and self.batch == "global":
            raise ValueError(explain('schedule="dynamic" deals whole elements to whoever comes first, but batch="global" '
                                     "cuts each one for all ranks", 'Use batch="per_rank" with it'))

    def _checked_prefetch(self) -> Union[int, str]:
        if isinstance(self.prefetch, str) and self.prefetch == _AUTO:
            return _AUTO
        if (prefetch := whole(self.prefetch)) is None:
            raise TypeError(explain(f"prefetch={self.prefetch!r} is not a whole number",
                                    'It counts steps: 1 or more; "auto" stands for as many as help'))
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise ValueError(explain(
                f"prefetch={prefetch} is {'less than 1' if prefetch < 1 else f'more than {_MOST_PREFETCH}'}",
                f"It counts the steps that may be on their way to a rank: 1 to {_MOST_PREFETCH}, or \"auto\""))
        return prefetch


def _size(given: Any) -> Optional[float]:
    if given is None:
        return None
    if not isinstance(given, numbers.Real) or isinstance(given, bool):
        raise TypeError(explain(f"prefetch_mb must be a number of MiB, not {given!r}"))
    try:
        size = float(given)
    except OverflowError:  # more digits than a text should have
        given = size = math.inf if given > 0 else -math.inf  # type: ignore[operator]
    if not math.isfinite(size) or size < LEAST_MB:
        raise ValueError(explain(f"prefetch_mb={given!r} is not a size in MiB of {LEAST_MB:g} or more"))
    return min(size, _MOST_MB)


def _choice(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(explain(f"{argument}={value!r} is not known", f"Use {', '.join(others)} or {last}"))


@dataclasses.dataclass
class _Channel:
    """A channel as the Python side of one rank knows it."""

    number: int
    label: str
    options: Options
    spec: Any  # of the reader's elements
    steps: int
    made_of: Callable[[], Any] = lambda: None  # the dataset function, while it lives
    told: bool = False  # that another one is ignored


# Channels made by name while a graph was built, the k-th of a name in its graph as the k-th here. Estimators build a new
# graph for each call of train() or evaluate(), and call the same input_fn in each: they get the channels that are there.
# These live until shutdown, because whether an old graph has been freed would differ between ranks.
_named: dict[str, list[_Channel]] = {}
# How often each graph has asked for each name.
_asked: "weakref.WeakKeyDictionary[tf.Graph, collections.Counter[str]]" = weakref.WeakKeyDictionary()


def distribute_dataset(dataset_or_fn: DatasetOrFn, *, batch: str, schedule: str = "static",
                       remainder: str = "drop", prefetch: Union[int, str] = "auto", name: Optional[str] = None,
                       on_reader_error: str = "raise", verify: bool = False,
                       prefetch_mb: Optional[float] = None, shard: Optional[str] = None) -> tf.data.Dataset:
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
    job = membership.current("distribute_dataset()")
    if prefetch_mb is None and isinstance(prefetch, str):
        prefetch_mb = max(job.settings.prefetch_bytes / _MIB, LEAST_MB)  # which is of whole bytes
    options = Options(batch, schedule, remainder, prefetch, name, on_reader_error, _verified(verify), prefetch_mb, shard)
    if tf.inside_function():
        raise RuntimeError(explain("distribute_dataset() was called inside tf.function, where it would run once per trace",
                                   "Call it before, and use the dataset inside", job.where))
    if not tf.executing_eagerly():
        return _shares(_channel_of_graph(job, options, dataset_or_fn), job)
    channel = _make_channel(job, options, dataset_or_fn)
    try:
        return _shares(channel, job)  # the dataset object keeps the channel in use
    finally:
        core.channel_unuse(channel.number)


def distribute_datasets_from_function(fn: DatasetFn, *, batch: str, schedule: str = "static", remainder: str = "drop",
                                      prefetch: Union[int, str] = "auto", name: Optional[str] = None,
                                      on_reader_error: str = "raise", verify: bool = False,
                                      prefetch_mb: Optional[float] = None, shard: Optional[str] = None) -> tf.data.Dataset:
    """distribute_dataset() of a function, under the name that tf.distribute has for it. Collective.

    Args:
      fn: takes a tf.distribute.InputContext (or nothing), returns a tf.data.Dataset, and is called on readers only, once
        (with a parameter named `epoch`: for every epoch); elsewhere it may be None.
      batch, schedule, remainder, prefetch, name, on_reader_error, verify, prefetch_mb, shard: as of distribute_dataset().

    Returns:
      A tf.data.Dataset of this rank's shares, as distribute_dataset() does.

    Raises:
      TypeError: fn is a dataset. All else as distribute_dataset() does.
    """
    membership.current("distribute_datasets_from_function()")
    if isinstance(fn, tf.data.Dataset):
        raise TypeError(explain("distribute_datasets_from_function() was given a dataset",
                                "Pass a function that returns one, or call distribute_dataset()"))
    return distribute_dataset(fn, batch=batch, schedule=schedule, remainder=remainder, prefetch=prefetch, name=name,
                              on_reader_error=on_reader_error, verify=verify, prefetch_mb=prefetch_mb, shard=shard)


def _verified(verify: Any) -> bool:
    if not isinstance(verify, bool):
        raise TypeError(explain(f"verify must be True or False, not {verify!r}"))
    return verify or verify_in(os.environ)


def _channel_of_graph(job: membership.Job, options: Options, dataset_or_fn: DatasetOrFn) -> _Channel:
    graph = tf.compat.v1.get_default_graph()
    if options.name is None:
        channel = _make_channel(job, options, dataset_or_fn)
        weakref.finalize(graph, core.channel_unuse, channel.number).atexit = False
        return channel
    asked = _asked.setdefault(graph, collections.Counter())
    channels = _named.setdefault(options.name, [])
    if asked[options.name] == len(channels):
        channels.append(_make_channel(job, options, dataset_or_fn))
        channels[-1].made_of = _weakly(dataset_or_fn)
        given = None
    else:  # not collective: an error stays on this rank
        checked_dataset_or_fn(dataset_or_fn, needed=job.reader is not None)
        given = dataset_or_fn
    channel = channels[asked[options.name]]
    if channel.options != options:
        raise ValueError(explain(f"channel {options.name!r} exists with {_shown(channel.options)}, but was asked for again "
                                 f"with {_shown(options)}", "Use the same arguments or another name", job.where))
    asked[options.name] += 1
    # A dedicated reader, which is in serve(), never comes here.
    if (job.reader is not None or job.trainer == 0) and given is not None and given != channel.made_of() and not channel.told:
        channel.told = True
        say(explain(
            f"channel {options.name!r} exists already, from an earlier graph: it goes on with the dataset that it was made of, "
            "and the one that is given now is ignored",
            "That is right where both are the same, as with an input_fn that is called again; for another dataset use another "
            "name", job.where))
    return channel


def _weakly(given: Any) -> Callable[[], Any]:
    """A reference to a dataset function that doesn't keep it; datasets are never the same again."""
    if given is None or isinstance(given, tf.data.Dataset):
        return lambda: None
    try:
        return weakref.WeakMethod(given) if hasattr(given, "__self__") else weakref.ref(given)
    except TypeError:
        return lambda: None


def _shares(channel: _Channel, job: membership.Job) -> tf.data.Dataset:
    options = channel.options
    spec = elements.share_spec(channel.spec, options.batch, options.schedule, options.remainder,
                               len(job.layout.audience(job.comm_rank)))
    whole = options.remainder == "partial" and options.schedule == "static"
    return receive(channel.number, channel.label, channel.steps, spec, whole)


def _shown(options: Options) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in dataclasses.asdict(options).items())


# ---- The agreement.


def _make_channel(job: membership.Job, options: Options, dataset_or_fn: DatasetOrFn) -> _Channel:
    mine: dict[str, Any] = {"arguments": dataclasses.asdict(options)}
    reading: Optional[Reading] = None
    dealer: Optional[Dealer] = None
    failure: Optional[BaseException] = None
    try:
        checked_dataset_or_fn(dataset_or_fn, needed=job.reader is not None)
        if job.reader is not None:
            reading = Reading.make(dataset_or_fn, options.batch, options.remainder, options.shard is not None,
                                   options.shard == UNLESS_SHARDED, job.reader, len(job.layout.readers),
                                   len(job.layout.trainers), len(job.layout.audience(job.comm_rank)))
            proto = private.nested_structure_coder.encode_structure(elements.by_place(reading.spec))
            mine["spec"] = base64.b64encode(proto.SerializeToString()).decode()
            mine["keys"] = elements.key_order(reading.spec)
            mine["count"] = reading.count
            mine["arena"] = job.settings.arena_bytes
            mine["fingerprint"] = reading.fingerprint
            mine["part"] = None if reading.part is None else dataclasses.asdict(reading.part.said())
            dealer = Dealer(reading)
    except SystemExit as error:  # of the dataset function: the others, who wait for this reader, end with it
        sys.exit(error.code)  # which notes the status, however the exception was raised (see exits.py)
    except BaseException as error:
        failure = error
        mine["error"] = [type(error).__name__, text_of(error)]

    what = f"distribute_dataset(name={options.name!r})" if options.name is not None else "distribute_dataset()"
    with interrupts.Held() as ctrl_c:
        try:
            number = core.agree_begin(json.dumps(mine, sort_keys=True).encode(), what)
        except Exception:
            if dealer is not None:
                dealer.cancel()
            raise

        def finish() -> _Channel:
            """What follows when all have said their words."""
            try:
                said = [(contribution.ranks, json.loads(contribution.payload)) for contribution in core.agree_wait(number)]
                ctrl_c.close()
                channel = _agreed(job, options, number, what, said, reading, failure)
            except Exception:
                if dealer is not None:
                    dealer.cancel()
                raise
            if dealer is not None:
                dealer.begin(channel.number, channel.label)
            return channel

        try:
            if failure is not None and not isinstance(failure, Exception):
                raise failure
            ctrl_c.open()
            return finish()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, say, and the program may go on: the others, who have this rank's word, have a channel then
            _finish_alone(finish, job.where)
            raise


def _finish_alone(finish: Callable[[], _Channel], where: str) -> None:
    """Does on a thread what this rank owes the others of a channel that its program doesn't take: it reads, and asks for nothing."""
    def run() -> None:
        with contextlib.suppress(Exception):
            core.channel_unuse(finish().number)

    with contextlib.suppress(RuntimeError):  # no thread can be had: the others wait to their limit
        start_thread(threading.Thread(target=run, name="horovod_data channel", daemon=True), where)


def _agreed(job: membership.Job, options: Options, number: int, what: str, said: list[tuple[tuple[int, ...], dict[str, Any]]],
            reading: Optional[Reading], failure: Optional[BaseException]) -> _Channel:
    """Makes the channel, if all ranks can and say the same."""
    check_agreement(job, what, said)
    check_errors(job, what, said, failure)

    by_rank = {rank: words for ranks, words in said for rank in ranks}
    readers = [by_rank[rank] for rank in job.layout.readers]
    if options.shard is not None:
        check_parts([None if words["part"] is None else Said(**words["part"]) for words in readers], [words["fingerprint"] for words in readers],
                    [f"reader {number} on {job.hosts[rank]}" for number, rank in enumerate(job.layout.readers)], what)
    spec = _spec(what, readers, reading)
    steps = _steps(job, options, spec, [int(words["count"]) for words in readers])
    channel = _Channel(number, options.name or f"channel{number}", options, spec, steps)
    if reading is None or reading.part is None:
        _warn_of_duplicates(job, channel.label, [words["fingerprint"] for words in readers])
    elif job.reader == 0:
        _tell_part(job, channel.label, reading.part)
    parts = elements.components(channel.spec)
    watch.renew(channel.label)
    core.channel_create(
        channel.label, parts, number=number, batch=_BATCH.index(options.batch),
        schedule=_SCHEDULE.index(options.schedule), remainder=_REMAINDER.index(options.remainder),
        prefetch=0 if options.prefetch == _AUTO else options.prefetch,
        prefetch_bytes=_prefetch_bytes(options, [int(words["arena"]) for words in readers]), on_error_continue=options.on_reader_error == "continue",
        add_weight=options.remainder == "pad", verify=options.verify, weight_component=elements.weight_component(channel.spec),
        is_source=reading is not None, elements=_UNKNOWN if reading is None else reading.count)
    watch.expect(channel.label, steps)
    return channel


def _prefetch_bytes(options: Options, arenas: list[int]) -> int:
    """What may be on its way is a part of what the readers have for all channels, and for what ranks keep."""
    return min(int((options.prefetch_mb or 0) * _MIB), min(arenas) // 4)


def _spec(what: str, readers: list[dict[str, Any]], reading: Optional[Reading]) -> Any:
    """The spec of the elements of all readers, from what each said of its own."""
    specs = []
    for words in readers:
        proto = private.nested_structure_coder.struct_pb2.StructuredValue.FromString(base64.b64decode(words["spec"]))
        specs.append(elements.in_order(private.nested_structure_coder.decode_proto(proto), words["keys"]))
    try:
        spec = elements.common_spec(specs)
    except ValueError as error:
        raise ValueError(explain(f"the readers' datasets in {what} have different elements: {error}",
                                 "Let the dataset function return the same kind of dataset on every reader")) from None
    # A reader has the classes of its namedtuples.
    return spec if reading is None else tf.nest.pack_sequence_as(reading.spec, tf.nest.flatten(spec))


def _steps(job: membership.Job, options: Options, spec: Any, counts: list[int]) -> int:
    """The cardinality that every trainer sees."""
    if options.on_reader_error == "continue" and len(job.layout.readers) > 1:  # Keras would count on more than may come
        counts = [count if count == _INFINITE else _UNKNOWN for count in counts]

    def steps(count: int, reader: int) -> int:
        return steps_of(count, spec, options.batch, options.schedule, options.remainder, len(job.layout.audience(reader)))

    if len(set(job.layout.group)) == 1:
        unknown = _UNKNOWN if _UNKNOWN in counts else _INFINITE
        return steps(unknown if min(counts) < 0 else sum(counts), job.layout.readers[0])
    if options.schedule == "dynamic":  # the hosts have nothing to do with each other
        return _UNKNOWN
    each = [steps(count, reader) for count, reader in zip(counts, job.layout.readers)]
    finite = [one for one in each if one != _INFINITE]
    if _UNKNOWN in each or not finite:
        return _UNKNOWN if _UNKNOWN in each else _INFINITE
    if options.remainder == "drop":
        return min(finite)
    return max(finite) if len(finite) == len(each) else _INFINITE


def _tell_part(job: membership.Job, label: str, part: Part) -> None:
    readers = len(job.layout.readers)
    how = (f"each of {readers} readers reads its own files, of {len(part.files)}" if part.kind == "files" else
           f"each of {readers} readers reads everything and delivers one element in {readers} ({part.why})")
    say(explain(f'shard="auto": {how}', where=f"reader 0 on {job.hosts[job.comm_rank]}, channel {label}"))


def _warn_of_duplicates(job: membership.Job, label: str, fingerprints: list[Optional[str]]) -> None:
    """A line on the first of readers that seem to read the same, and so deliver everything several times."""
    mine = None if job.reader is None else fingerprints[job.reader]
    same = [reader for reader, one in enumerate(fingerprints) if mine is not None and one == mine]
    if len(same) < 2 or same[0] != job.reader:
        return
    names = ", ".join(f"reader {reader} on {job.hosts[job.layout.readers[reader]]}" for reader in same[:8])
    say(explain(
        f"{names}{' and others' if len(same) > 8 else ''} have the same pipeline: if they find "
        "the same data too, every element is delivered several times",
        "Let the dataset function take a tf.distribute.InputContext and shard its files by num_input_pipelines and "
        "input_pipeline_id", f"reader {job.reader} on {job.hosts[job.comm_rank]}, channel {label}"))
