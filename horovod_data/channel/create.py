# SPDX-License-Identifier: Apache-2.0
"""A channel is made: its arguments, and what all ranks agree on."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import math
import numbers
import threading
from typing import Any, Callable, Optional, Union

import tensorflow as tf

from ..ending import shutdown, signals
from ..errors import checked_name, explain, say, stand_in, start_thread, whole, words_of
from ..job import state
from ..job.settings import LEAST_MB
from ..native import bindings
from ..native import tensorflow_private as private
from ..observe.progress import watch
from . import elements, reader_thread
from .agreement import check_agreement, check_errors
from .reader_dataset import Reading, checked_dataset_or_fn, steps_of
from .shard.sharding import Part, Said, check_parts

_BATCH = ("global", "per_rank")
_SCHEDULE = ("static", "dynamic")
_REMAINDER = ("drop", "partial", "pad")
_ON_ERROR = ("raise", "continue")
_INFINITE, _UNKNOWN = -1, -2  # as tf.data counts
_MOST_PREFETCH = 2**31 - 1  # a C int
_AUTO = "auto"
MIB = 1 << 20
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
        if (
            self.shard is not None
            and self.shard is not UNLESS_SHARDED
            and not (isinstance(self.shard, str) and self.shard == _AUTO)
        ):
            raise ValueError(explain(f"shard={self.shard!r} is not known", "Use None or 'auto'"))
        object.__setattr__(self, "prefetch", self._checked_prefetch())  # numpy's whole numbers can't travel
        object.__setattr__(self, "prefetch_mb", _size(self.prefetch_mb))
        if self.prefetch != _AUTO and self.prefetch_mb is not None:
            raise ValueError(
                explain(
                    f'prefetch_mb={self.prefetch_mb:g} bounds prefetch="auto", but prefetch={self.prefetch} '
                    "says how many steps",
                    "Give one of them",
                )
            )
        checked_name(self.name)
        if self.schedule == "dynamic" and self.batch == "global":
            raise ValueError(
                explain(
                    'schedule="dynamic" deals whole elements to whoever comes first, but batch="global" '
                    "cuts each one for all ranks",
                    'Use batch="per_rank" with it',
                )
            )

    def _checked_prefetch(self) -> Union[int, str]:
        if isinstance(self.prefetch, str) and self.prefetch == _AUTO:
            return _AUTO
        if (prefetch := whole(self.prefetch)) is None:
            raise TypeError(
                explain(
                    f"prefetch={self.prefetch!r} is not a whole number",
                    'It counts steps: 1 or more; "auto" stands for as many as help',
                )
            )
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise ValueError(
                explain(
                    f"prefetch={prefetch} is {'less than 1' if prefetch < 1 else f'more than {_MOST_PREFETCH}'}",
                    f'It counts the steps that may be on their way to a rank: 1 to {_MOST_PREFETCH}, or "auto"',
                )
            )
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
class Channel:
    """A channel as the Python side of one rank knows it."""

    number: int
    label: str
    options: Options
    spec: Any  # of the reader's elements
    steps: int
    made_of: Callable[[], Any] = lambda: None  # the dataset function, while it lives
    told: bool = False  # that another one is ignored


Owes = Callable[[Exception], None]  # what a rank owes the others, when it has left with an error of these words


def make(
    job: state.Job,
    options: Options,
    dataset_or_fn: DatasetOrFn,
    ctrl_c: signals.Held,
    owes: Optional[Owes] = None,
    keeps: Optional[Callable[[Channel], None]] = None,
) -> Channel:
    """Makes a channel, of which the caller is a user. Collective; the order in which all ranks call it is that of the channels.

    Where a rank leaves with what the others don't have (Ctrl-C, say), and its program may go on, the others, who have had its word,
    have a channel all the same: it goes on reading for them on threads, and asks for nothing. Then, on a thread: `keeps` takes the
    channel, with the use of it, and `owes` what the rank owes them besides.
    """
    mine: dict[str, Any] = {"arguments": dataclasses.asdict(options)}
    reading: Optional[Reading] = None
    dealer: Optional[reader_thread.Dealer] = None
    failure: Optional[BaseException] = None
    try:
        try:
            ctrl_c.open()
            checked_dataset_or_fn(dataset_or_fn, needed=job.reader is not None)
            if job.reader is not None:
                reading = Reading.make(
                    dataset_or_fn,
                    options.batch,
                    options.remainder,
                    options.shard is not None,
                    options.shard == UNLESS_SHARDED,
                    job.reader,
                    len(job.layout.readers),
                    len(job.layout.trainers),
                    len(job.layout.audience(job.comm_rank)),
                )
        finally:
            ctrl_c.close()
        if reading is not None:
            proto = private.nested_structure_coder.encode_structure(elements.by_place(reading.spec))
            mine["spec"] = base64.b64encode(proto.SerializeToString()).decode()
            mine["keys"] = elements.key_order(reading.spec)
            mine["count"] = reading.count
            mine["arena"] = job.settings.arena_bytes
            mine["fingerprint"] = reading.fingerprint
            mine["part"] = None if reading.part is None else dataclasses.asdict(reading.part.said())
            dealer = reader_thread.Dealer(reading)
    except BaseException as error:
        failure = error
        mine["error"] = words_of(error)
        if reading is not None and dealer is None:
            reading.close()

    making = _Making(job, options, mine, reading, dealer, failure)
    try:
        making.begin()
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        return making.finish(ctrl_c.let_come)
    except BaseException as error:
        if error is making.refused:
            making.cancel()
        else:
            making.finish_alone(stand_in(error), owes, keeps)
        if (
            failure is None
            or error is failure
            or making.met
            or not (isinstance(error, Exception) or isinstance(failure, SystemExit))
        ):
            raise
        raise failure from error  # there was nobody to hear of it
    finally:
        failure = making.refused = None  # or they would keep themselves, and the program's frames, by this one


_JOIN_SECONDS = 5.0


class _Making:
    """A channel that is being made. Its parts can be taken up where they were left."""

    def __init__(
        self,
        job: state.Job,
        options: Options,
        mine: dict[str, Any],
        reading: Optional[Reading],
        dealer: Optional[reader_thread.Dealer],
        failure: Optional[BaseException],
    ) -> None:
        self.refused: Optional[BaseException] = None  # the error that all ranks have
        self.agreed = False  # all ranks have the channel, whatever becomes of this one
        self._job, self._options, self._mine, self._reading, self._dealer, self._failure = (
            job,
            options,
            mine,
            reading,
            dealer,
            failure,
        )
        self._what = (
            f"distribute_dataset(name={options.name!r})" if options.name is not None else "distribute_dataset()"
        )
        self._number: Optional[int] = None
        self._said: Optional[list[bindings.Contribution]] = None
        self._made: Optional[Channel] = None

    @property
    def met(self) -> bool:
        """Whether all ranks have heard each other."""
        return self._said is not None

    def begin(self) -> None:
        """Gives the others this rank's word."""
        self._number = bindings.agree_begin(json.dumps(self._mine, sort_keys=True).encode(), self._what)

    def finish(self, let_come: Callable[[], None] = lambda: None) -> Channel:
        """Waits for the words of all, and makes the channel of them. What `let_come` raises ends the wait, and nothing else."""
        assert self._number is not None
        if self._made is None:
            number = self._number
            reader_thread.wait_for_channels(
                lambda other, _: other < number, let_come
            )  # they are made in the order of their numbers
            if self._said is None:
                said = bindings.agree_wait(self._number, let_come)
                if isinstance(said, Exception):
                    self.refused = said
                    raise said
                self._said = said
            channel, arenas = self._checked([(one.ranks, json.loads(one.payload)) for one in self._said])
            self.agreed = True
            _create(channel, arenas, self._reading)
            self._made = channel
        watch.expect(self._made.label, self._made.steps)
        if self._dealer is not None:
            self._dealer.begin(self._made.number, self._made.label)
        return self._made

    def _checked(self, said: list[tuple[tuple[int, ...], dict[str, Any]]]) -> tuple[Channel, list[int]]:
        assert self._number is not None
        try:
            check_agreement(self._job, self._what, said)
            check_errors(self._job, self._what, said, self._failure)
            return _agreed(self._job, self._options, self._number, self._what, said, self._reading)
        except Exception as error:
            if not isinstance(error, MemoryError):  # this rank's own, perhaps
                self.refused = error
            raise

    def cancel(self) -> None:
        """There will be no channel."""
        self._failure = None
        if self._dealer is not None:
            self._dealer.cancel()

    def finish_alone(self, why: Exception, owes: Optional[Owes], keeps: Optional[Callable[[Channel], None]]) -> None:
        """Where the program has left: does on a thread what is left to do, of what has begun."""
        if self._number is None:
            return self.cancel()
        number, made = self._number, threading.Event()
        if self._failure is not None:
            self._failure = stand_in(self._failure)

        def run() -> None:
            try:
                channel = self.finish()
                if keeps is not None:
                    keeps(channel)
                else:
                    bindings.channel_unuse(channel.number)
            except BaseException:
                self.cancel()
                if not self.agreed:  # all ranks have it
                    return
            finally:
                reader_thread.unmade.pop(number, None)
                made.set()
            if owes is not None:
                with contextlib.suppress(BaseException):
                    owes(why)

        thread = threading.Thread(target=run, name="horovod_data channel", daemon=True)
        reader_thread.unmade[number] = reader_thread.Unmade(self._options.name, made)
        try:
            start_thread(thread, self._job.where)
        except RuntimeError:  # no thread can be had
            if self._made is not None:
                return run()
            reader_thread.unmade.pop(number, None)  # the others wait to their limit
            made.set()
            self.cancel()
        else:
            shutdown.at_shutdown(lambda: thread.join(_JOIN_SECONDS))


def _agreed(
    job: state.Job,
    options: Options,
    number: int,
    what: str,
    said: list[tuple[tuple[int, ...], dict[str, Any]]],
    reading: Optional[Reading],
) -> tuple[Channel, list[int]]:
    """The channel, if what all ranks say fits; and of each reader how much shared memory it has."""
    by_rank = {rank: words for ranks, words in said for rank in ranks}
    readers = [by_rank[rank] for rank in job.layout.readers]
    if options.shard is not None:
        check_parts(
            [None if words["part"] is None else Said(**words["part"]) for words in readers],
            [words["fingerprint"] for words in readers],
            [f"reader {number} on {job.hosts[rank]}" for number, rank in enumerate(job.layout.readers)],
            what,
        )
    spec = _spec(what, readers, reading)
    steps = _steps(job, options, spec, [int(words["count"]) for words in readers])
    channel = Channel(number, options.name or f"channel{number}", options, spec, steps)
    if reading is None or reading.part is None:
        _warn_of_duplicates(job, channel.label, [words["fingerprint"] for words in readers])
    elif job.reader == 0:
        _tell_part(job, channel.label, reading.part)
    return channel, [int(words["arena"]) for words in readers]


def _create(channel: Channel, arenas: list[int], reading: Optional[Reading]) -> None:
    options = channel.options
    watch.renew(channel.label)
    bindings.channel_create(
        channel.label,
        elements.components(channel.spec),
        number=channel.number,
        batch=_BATCH.index(options.batch),
        schedule=_SCHEDULE.index(options.schedule),
        remainder=_REMAINDER.index(options.remainder),
        prefetch=0 if options.prefetch == _AUTO else options.prefetch,
        prefetch_bytes=_prefetch_bytes(options, arenas),
        on_error_continue=options.on_reader_error == "continue",
        add_weight=options.remainder == "pad",
        verify=options.verify,
        weight_component=elements.weight_component(channel.spec),
        is_source=reading is not None,
        elements=_UNKNOWN if reading is None else reading.count,
    )


def _prefetch_bytes(options: Options, arenas: list[int]) -> int:
    """What may be on its way is a part of what the readers have for all channels, and for what ranks keep."""
    return min(int((options.prefetch_mb or 0) * MIB), min(arenas) // 4)


def _spec(what: str, readers: list[dict[str, Any]], reading: Optional[Reading]) -> Any:
    """The spec of the elements of all readers, from what each said of its own."""
    specs = []
    for words in readers:
        proto = private.nested_structure_coder.struct_pb2.StructuredValue.FromString(base64.b64decode(words["spec"]))
        specs.append(elements.in_order(private.nested_structure_coder.decode_proto(proto), words["keys"]))
    try:
        spec = elements.common_spec(specs)
    except ValueError as error:
        raise ValueError(
            explain(
                f"the readers' datasets in {what} have different elements: {error}",
                "Let the dataset function return the same kind of dataset on every reader",
            )
        ) from None
    # A reader has the classes of its namedtuples.
    return spec if reading is None else tf.nest.pack_sequence_as(reading.spec, tf.nest.flatten(spec))


def _steps(job: state.Job, options: Options, spec: Any, counts: list[int]) -> int:
    """The cardinality that every trainer sees."""
    if options.on_reader_error == "continue" and len(job.layout.readers) > 1:  # Keras would count on more than may come
        counts = [count if count == _INFINITE else _UNKNOWN for count in counts]

    def steps(count: int, reader: int) -> int:
        return steps_of(
            count, spec, options.batch, options.schedule, options.remainder, len(job.layout.audience(reader))
        )

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


def _tell_part(job: state.Job, label: str, part: Part) -> None:
    readers = len(job.layout.readers)
    how = (
        f"each of {readers} readers reads its own files, of {len(part.files)}"
        if part.kind == "files"
        else f"each of {readers} readers reads everything and delivers one element in {readers} ({part.why})"
    )
    say(explain(f'shard="auto": {how}', where=f"reader 0 on {job.hosts[job.comm_rank]}, channel {label}"))


def _warn_of_duplicates(job: state.Job, label: str, fingerprints: list[Optional[str]]) -> None:
    """A line on the first of readers that seem to read the same, and so deliver everything several times."""
    mine = None if job.reader is None else fingerprints[job.reader]
    same = [reader for reader, one in enumerate(fingerprints) if mine is not None and one == mine]
    if len(same) < 2 or same[0] != job.reader:
        return
    names = ", ".join(f"reader {reader} on {job.hosts[job.layout.readers[reader]]}" for reader in same[:8])
    say(
        explain(
            f"{names}{' and others' if len(same) > 8 else ''} have the same pipeline: if they find "
            "the same data too, every element is delivered several times",
            "Let the dataset function take a tf.distribute.InputContext and shard its files by num_input_pipelines and "
            "input_pipeline_id",
            f"reader {job.reader} on {job.hosts[job.comm_rank]}, channel {label}",
        )
    )
