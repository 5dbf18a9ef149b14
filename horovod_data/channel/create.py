# SPDX-License-Identifier: Apache-2.0
"""Makes a channel. All ranks agree on the channel, and each rank creates its own side."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from ..elements import nests, specs
from ..ending import signals
from ..errors import explain, explained, say, words_of
from ..job import state
from ..native import bindings
from ..observe.progress import watch
from . import cached, reader_thread
from .agreement import Said, check_agreement, check_errors
from .options import AUTO, BATCH, MIB, REMAINDER, SCHEDULE, Options
from .reading import EMPTY, INFINITE, UNKNOWN, Reading, steps_of
from .shard.summary import PartSummary, check_parts

# The options of the newest channel of each name.
options_of: dict[str, Options] = {}


@dataclasses.dataclass
class Channel:
    """A channel as the Python side of one rank knows it."""

    number: int
    label: str
    options: Options
    spec: Any  # the spec of the reader's elements (elements/specs.py)
    steps: int
    made_of: Optional[Callable[..., Any]] = None  # the dataset function of a channel that TF1 graphs share
    told: bool = False  # a log line has said that another dataset is ignored

    def share_spec(self, job: state.Job) -> Any:
        """The spec of this rank's shares as readers send them."""
        options = self.options
        trainers = len(job.layout.group_trainers(job.comm_rank))
        static = options.schedule == "static"
        return specs.share_spec(
            self.spec, options.batch, options.remainder, static, options.has_costs, options.weighs, trainers
        )

    @property
    def multiplies(self) -> bool:
        """Says whether a share ((x, y, sample_weight), weight) becomes (x, y, sample_weight * weight)."""
        exact = self.options.weigh is not None or self.options.remainder == "repeat"
        return exact and specs.has_sample_weight(self.spec[0] if self.options.has_costs else self.spec)


# Checks the argument of the call. On a reader it also makes the reader's side.
Read = Callable[[state.Job], Optional[Reading]]


def make(job: state.Job, options: Options, call: str, read: Read, ctrl_c: signals.Held) -> Channel:
    """Makes a channel. The caller is a user of the channel until it calls bindings.channel_unuse().

    `call`: the function that the program has called.

    Collective: all ranks make their channels in the same order. Every rank takes part in the agreement, also after its
    own work has failed. So all ranks raise the error of a failed rank.
    `ctrl_c` delivers signals while the program's own code runs. After that it defers signals.
    """
    cached.check_layout(job, options)
    mine: dict[str, Any] = {"arguments": options.words()}
    reading: Optional[Reading] = None
    dealer: Optional[reader_thread.Dealer] = None
    failure: Optional[BaseException] = None
    try:
        try:
            ctrl_c.open()
            reading = read(job)
        finally:
            ctrl_c.close()
        if reading is not None:
            mine["spec"] = EMPTY if reading.spec is EMPTY else specs.to_json(reading.spec)
            mine["count"], mine["steps"] = reading.count, reading.steps
            mine["arena"] = job.settings.arena_bytes
            mine["fingerprint"] = reading.fingerprint
            mine["part"] = None if reading.part is None else dataclasses.asdict(reading.part)
            if options.cached and reading.count == INFINITE:
                what = 'cache="job" keeps all elements of the source, which is infinite'
                raise explained(ValueError, what, "Leave out .repeat(): each iteration is an epoch")
            dealer = reader_thread.Dealer(reading)
    except BaseException as error:  # also Ctrl-C and sys.exit()
        failure = error
        mine["error"] = words_of(error)
        if reading is not None and dealer is None:
            reading.close()

    what = f"{call}({'' if options.name is None else f'name={options.name!r}'})"
    made = False
    try:
        number, said = _exchanged(mine, what, failure)
        check_agreement(job, what, said)
        check_errors(job, what, said, failure)
        channel, arenas, elements = _agreed(job, options, number, what, said, reading)
        if reading is not None and reading.spec is EMPTY:
            reading.agreed(channel.spec)
        watch.renew(channel.label)
        options_of[channel.label] = options
        of_readers = channel
        if options.cached:
            of_readers = dataclasses.replace(channel, label=f"{channel.label} (load)")
            channel = _create_kept(job, of_readers, channel.label, arenas, elements, reading, what)
        else:
            _create(channel, arenas, reading)
        watch.expect(channel.label, channel.steps)
        if dealer is not None:
            dealer.begin(of_readers.number, of_readers.label)
        made = True
        return channel
    finally:
        if dealer is not None and not made:
            dealer.cancel()
        failure = None  # otherwise this frame and the error would keep each other alive, with the program's frames


def _exchanged(mine: dict[str, Any], what: str, failure: Optional[BaseException]) -> tuple[int, Said]:
    """Sends `mine` to all ranks. Returns the number of the agreement, and the data of all ranks.

    If the agreement itself fails, raises this rank's `failure`. Without one, raises the error of the agreement.
    """
    try:
        return bindings.agree(mine, what)
    except Exception as error:
        if failure is not None:
            raise failure from error
        raise
    finally:
        failure = None


def _agreed(
    job: state.Job, options: Options, number: int, what: str, said: Said, reading: Optional[Reading]
) -> tuple[Channel, list[int], int]:
    """Returns the channel, the size of each reader's arena, and the number of all readers' elements (as tf.data counts).

    Raises ValueError if the readers' data don't match.
    """
    by_rank = {rank: contribution for ranks, contribution in said for rank in ranks}
    readers = [by_rank[rank] for rank in job.layout.readers]
    names = [f"reader {reader} on {job.hosts[rank]}" for reader, rank in enumerate(job.layout.readers)]
    fingerprints = [words["fingerprint"] for words in readers]
    if options.shard is not None:
        parts = [None if words["part"] is None else PartSummary(**words["part"]) for words in readers]
        check_parts(parts, fingerprints, names, what)
    spec = _spec(what, readers, reading)
    counts = [words["count"] for words in readers]
    steps = _steps(job, options, spec, counts, [words["steps"] for words in readers])
    channel = Channel(number, options.name or f"channel{number}", options, spec, steps)
    if reading is None or reading.part is None:
        _warn_of_duplicates(job.reader, fingerprints, names, channel.label)
    elif job.reader == 0:
        how = f'shard="auto": each of {len(names)} readers {reading.part.what}'
        say(explain(how, where=f"{names[0]}, channel {channel.label}"))
    return channel, [words["arena"] for words in readers], UNKNOWN if min(counts) < 0 else sum(counts)


def _create_kept(
    job: state.Job,
    load: Channel,
    label: str,
    arenas: list[int],
    elements: int,
    reading: Optional[Reading],
    what: str,
) -> Channel:
    """Creates both channels of cache="job". Returns the one that the program sees, with the name `label`. Collective.

    `load`: the channel from the readers to the keepers, as the ranks have agreed on it.
    """
    mine: dict[str, Any] = {}
    keeper: Optional[cached.Keeper] = None
    failure: Optional[BaseException] = None
    if job.comm_rank in job.layout.keepers(job.hosts):
        try:
            mine = cached.contribution(job)
            keeper = cached.Keeper(load.number)
        except Exception as error:
            failure = error
            mine["error"] = words_of(error)
    made = False
    try:
        number, said = _exchanged(mine, what, failure)
        check_errors(job, what, said, failure)
        cached.check_size(load.spec, elements, said)
        kept = dataclasses.replace(load, number=number, label=label)
        _create(load, arenas, reading, cached.Part(cached.LOAD))
        part = cached.Part(cached.KEPT, elements, mine.get("limit"), mine.get("folder", ""))
        _create(kept, [words["arena"] for _, words in said if words], reading, part)
        if keeper is None:
            bindings.channel_unuse(load.number)
        else:
            keeper.begin(kept.number, kept.label)
            job.keeps = True
        made = True
        return kept
    finally:
        if keeper is not None and not made:
            keeper.dealer.cancel()
        failure = None  # as in make()


def _create(channel: Channel, arenas: list[int], reading: Optional[Reading], part: cached.Part = cached.Part()) -> None:
    """Creates a channel of the core. `arenas`: the sizes of its sources' arenas."""
    options = channel.options
    # The most bytes that a reader may send ahead for this channel: at most a quarter of the smallest arena, because all
    # channels share a reader's arena.
    prefetch_bytes = min(int((options.prefetch_mb or 0) * MIB), min(arenas) // 4)
    loads, keeps = part.view == cached.LOAD, part.view == cached.KEPT
    bindings.channel_create(
        channel.label,
        part.folder,
        specs.components_of_channel(channel.spec, options.has_costs),
        number=channel.number,
        batch=BATCH.index("global" if loads else options.batch),
        schedule=SCHEDULE.index(options.schedule),
        remainder=REMAINDER.index(options.remainder),
        prefetch=0 if options.prefetch == AUTO else options.prefetch,
        prefetch_bytes=prefetch_bytes,
        on_error_continue=options.on_reader_error == "continue",
        weighed=options.weigh is not None and not loads,
        has_costs=options.has_costs,
        add_weight=options.weighs and not options.has_costs and not loads,
        verify=options.verify,
        divided=reading is not None and reading.part is not None and not keeps,
        is_source=part.limit is not None if keeps else reading is not None,
        elements=part.elements if keeps else UNKNOWN if reading is None else reading.count,
        view=part.view,
        whole_elements=options.cached and options.batch == "per_rank",
        shuffle=options.shuffle,
        seed_low=options.seed % cached.HALF,
        seed_high=options.seed // cached.HALF,
        cache_bytes=part.limit or 0,
    )


def _spec(what: str, readers: list[dict[str, Any]], reading: Optional[Reading]) -> Any:
    """The spec that fits the elements of all readers."""
    known = [specs.from_json(words["spec"]) for words in readers if words["spec"] != EMPTY]
    if not known:
        to_do = "Give it at least one element: the first one says what its elements are"
        raise explained(ValueError, f"the source in {what} has no elements", to_do)
    try:
        spec = specs.common_spec(known)
    except ValueError as error:
        raise explained(
            ValueError,
            f"the readers' datasets in {what} have different elements: {error}",
            "Let the dataset function return the same kind of dataset on every reader",
        ) from None
    # This reader knows the classes of its namedtuples. Other ranks do not.
    if reading is None or reading.spec is EMPTY:
        return spec
    return nests.filled(reading.spec, [leaf for _, leaf in nests.leaves(spec)])


def _steps(job: state.Job, options: Options, spec: Any, counts: list[int], with_rows: list[Optional[int]]) -> int:
    """The cardinality that every trainer sees.

    `counts` and `with_rows` have Reading.count and Reading.steps of each reader.
    """
    if options.on_reader_error == "continue" and len(job.layout.readers) > 1:  # fewer elements may come
        counts = [count if count == INFINITE else UNKNOWN for count in counts]

    def steps(count: int, reader: int, with_rows: Optional[int]) -> int:
        return steps_of(count, spec, options, len(job.layout.group_trainers(reader)), with_rows)

    if len(set(job.layout.group)) == 1:
        unknown = UNKNOWN if UNKNOWN in counts else INFINITE
        known = [one for one in with_rows if one is not None]
        total = sum(known) if len(known) == len(with_rows) else None
        return steps(unknown if min(counts) < 0 else sum(counts), job.layout.readers[0], total)
    if options.schedule == "dynamic":  # a host's ranks end when their own reader is exhausted
        return UNKNOWN
    each = [steps(*one) for one in zip(counts, job.layout.readers, with_rows)]
    finite = [one for one in each if one != INFINITE]
    if UNKNOWN in each or not finite:
        return UNKNOWN if UNKNOWN in each else INFINITE
    if options.remainder == "drop":
        return min(finite)
    return max(finite) if len(finite) == len(each) else INFINITE


def _warn_of_duplicates(
    reader: Optional[int], fingerprints: list[Optional[str]], readers: list[str], label: str
) -> None:
    """Logs a line on the first of several readers that seem to read the same data."""
    mine = None if reader is None else fingerprints[reader]
    same = [number for number, one in enumerate(fingerprints) if mine is not None and one == mine]
    if len(same) < 2 or same[0] != reader:
        return
    names = ", ".join(readers[number] for number in same[:8]) + " and others" * (len(same) > 8)
    what = f"{names} have the same pipeline: if they find the same data too, every element is delivered several times"
    to_do = (
        "Let the dataset function take a tf.distribute.InputContext and shard its files by num_input_pipelines and "
        "input_pipeline_id"
    )
    say(explain(what, to_do, f"{readers[reader]}, channel {label}"))
