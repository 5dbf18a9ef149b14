# SPDX-License-Identifier: Apache-2.0
"""The verdict of report(): one sentence on what a channel's ranks wait for, and what would change that.

Pure arithmetic.
"""

from __future__ import annotations

import collections
import dataclasses
from statistics import fmean
from typing import Optional, Sequence

from ..times import Channel, Reader, Trainer

# A rank that waits for less than this part of a step is limited by its own work.
LITTLE = 0.05
# A rank is slow if the other ranks wait at least this many times as long as it waits.
_SLOWER = 3.0
# A reader is named as slow if a step takes it at least this many times as long as the other readers.
_SLOW_READER = 1.5
# Advice needs at least this gain (a factor).
_WORTH = 1.1


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The sentence, and its parts.

    `gain`: how many times as fast a step would be with the advice. None: there is no advice.
    """

    bound_by: str  # "trainer", "reader", "link" or "rank"
    text: str
    wait_share: float  # the part of a step spent waiting, mean over the ranks
    rank: Optional[int] = None  # the slow rank
    readers: Optional[int] = None  # the number of dedicated readers that is advised
    gain: Optional[float] = None


def judge(channel: Channel) -> Verdict:
    """The verdict on a channel."""
    trainers = [one for one in channel.trainers if one.steps]
    share = fmean(one.wait_share for one in trainers)
    delivery = fmean((one.wait + one.receive) / one.total for one in trainers if one.total) if share else 0.0
    slow = _slow_rank(channel, trainers)
    if slow is not None:
        return slow
    if fmean(one.later_share for one in trainers) < LITTLE:
        text = f"trainer-bound: delivery costs {_percent(delivery)} of a step"
        if delivery - share >= LITTLE:
            text += ", most of it making tensors of batches (verify=True looks at every row)"
        elif share >= LITTLE:
            text += f", most of it before the first batch of an epoch ({_time(fmean(one.first / max(1, one.epochs) for one in trainers))})"
        return Verdict("trainer", text, share)
    if channel.cache is not None:  # ranks wait for all keepers at once, so times don't tell which one is awaited
        return _reader_bound(channel, trainers, share)
    reader = _awaited(channel, trainers)
    if reader is None or reader.room <= reader.pipeline + reader.deal:
        return _reader_bound(channel, trainers, share)
    if channel.grouped or all(one.host == reader.host for one in trainers) or share + reader.room / reader.total <= 1:
        # Within one host there is no link. With several hosts, ranks and reader may have waited at different times.
        text = (
            f"reader-bound in a part of the time: ranks wait {_percent(share)} of a step for the pipeline, and at other times "
            "the reader waits for ranks; stats(reset=True) on all ranks between these times tells them apart"
        )
        return Verdict("reader", text, share)
    return _link_bound(channel, trainers, reader, share)


def _slow_rank(channel: Channel, trainers: Sequence[Trainer]) -> Optional[Verdict]:
    """The verdict on a rank that takes its batches late. If all ranks step together, the other ranks wait for it."""
    if len(trainers) < 2 or channel.dynamic:
        return None
    most = max(one.later_share for one in trainers)
    slow = [one for one in trainers if one.later_share * _SLOWER <= most]
    others = [one for one in trainers if one not in slow]
    waiting = fmean(one.later_share for one in others) if others else 0.0
    room = {one.rank: sum(reader.room_of.get(one.rank, 0.0) for reader in channel.readers) for one in trainers}
    whole = sum(room.values())
    if waiting < LITTLE or not slow or whole < LITTLE * sum(one.total for one in channel.readers):
        return None  # the readers don't wait for ranks, so all ranks wait for the pipelines
    if sum(room[one.rank] for one in slow) < 0.5 * whole:
        return None
    worst = max(slow, key=lambda one: room[one.rank])
    if worst.step / worst.steps < _WORTH * min(one.step / one.steps for one in others):
        return None  # its steps are as short as the others', so it waits less because it is nearer to the data
    wait = fmean((one.wait - one.first) / one.steps for one in others)
    at_their_pace = max(_own(others), _pace(channel))
    gain = worst.seconds_per_step / at_their_pace if at_their_pace else 1.0
    if gain < _WORTH:
        return None
    who, them = f"{worst.name} is slow", "it"
    if len(slow) > 1:
        some = ", ".join(str(one.rank) for one in slow[:4]) + " ..." * (len(slow) > 4)
        who, them = f"ranks {some} are slow, {worst.name} most", "them"
    text = (
        f"{who}: the others wait {_time(wait)} of each step for {them}; at their pace a step would take "
        f"{_time(at_their_pace)} ({gain:.1f}x)"
    )
    if channel.cache is None:  # cache="job" refuses "dynamic"
        text += '. schedule="dynamic" gives each rank as many batches as it can take'
    return Verdict("rank", text, waiting, rank=worst.rank, gain=gain)


def _awaited(channel: Channel, trainers: Sequence[Trainer]) -> Optional[Reader]:
    """The reader for which ranks wait most."""
    if channel.grouped:  # the slowest reader sets the pace of all hosts
        return max(channel.readers, key=_dealing, default=None)

    def waited(reader: Reader) -> float:
        return sum(one.waited_for.get(reader.reader, 0.0) for one in trainers)

    return max(channel.readers, key=waited, default=None)


def _reader_bound(channel: Channel, trainers: Sequence[Trainer], share: float) -> Verdict:
    text = f"reader-bound: ranks wait {_percent(share)} of a step for the pipeline"
    if channel.cache is not None:  # more readers would change the first epoch alone
        from_memory = f"ranks wait {_percent(share)} of a step for the memory of the job"
        loads = f", or for the pipeline ({channel.cache.loading})" if channel.cache.loading else ""
        return Verdict("reader", f"reader-bound: {from_memory}{loads}", share)
    if not channel.readers or channel.grouped:  # a host can't have more than one reader
        return Verdict("reader", text, share)
    copying = sum(one.deal for one in channel.readers) > sum(one.pipeline for one in channel.readers)
    if copying:
        text = f"reader-bound: ranks wait {_percent(share)} of a step while the reader copies and sends"
    if (found := _slow_reader(channel)) is not None:
        slow, mine, others = found
        text += (
            f". {slow.name[0].upper()}{slow.name[1:]} is slow: it takes {_time(mine)} for a step, the other readers "
            f"{_time(others)}. Readers take turns, so the slowest sets the pace"
        )
    more = max(2, len(channel.readers) + 1)
    now, then = _now(channel, trainers), max(_own(trainers), _busy(channel) / more)
    gain = now / then if then else 1.0
    if gain < _WORTH:
        return Verdict("reader", text, share)
    many = {2: "two", 3: "three", 4: "four"}.get(more, str(more))
    text += f"; {many} readers would give {gain:.1f}x (HOROVOD_DATA_READERS={more}, or init(readers={more})), if each has its cores"
    return Verdict("reader", text, share, readers=more, gain=gain)


def _link_bound(channel: Channel, trainers: Sequence[Trainer], reader: Reader, share: float) -> Verdict:
    hosts = sorted({one.host for one in trainers} - {reader.host})
    way = f"from {reader.host} to {', '.join(hosts[:4])}{' ...' * (len(hosts) > 4)}" if hosts else f"on {reader.host}"
    fullest = max(collections.Counter(one.host for one in trainers).values())
    now, then = _now(channel, trainers), max(_own(trainers), _busy(channel) * fullest / len(trainers))
    text = f"link-bound: ranks wait {_percent(share)} of a step for batches on their way {way}"
    if then and now / then >= _WORTH and hosts:
        text += f"; a reader on every host (readers_per_node=1) would give {now / then:.1f}x, if each has its cores; smaller elements would give a part of this gain"
        return Verdict("link", text, share, gain=now / then)
    return Verdict("link", text, share)


def _work(channel: Channel) -> list[float]:
    """Seconds that each reader worked after its pipeline had filled its buffers."""
    filling = _filling(channel)
    return [max(0.0, one.pipeline - filling) + one.deal for one in channel.readers]


def _work_per_step(channel: Channel) -> list[float]:
    return [worked / one.steps if one.steps else 0.0 for worked, one in zip(_work(channel), channel.readers)]


def _busy(channel: Channel) -> float:
    """Seconds that a reader takes for one of its own steps, in its pipeline and for dealing.

    Static readers take turns, so the slowest reader counts. Dynamic readers deal whenever they can, so the mean counts.
    """
    if channel.dynamic:
        # in dynamic channels, a reader counts the element of one rank as a step
        steps = sum(one.steps for one in channel.readers) / len(channel.trainers)
        return sum(_work(channel)) / steps if steps else 0.0
    return max(_work_per_step(channel), default=0.0)


def _slow_reader(channel: Channel) -> Optional[tuple[Reader, float, float]]:
    """The slowest of several readers that take turns, its seconds per step, and the mean of the other readers."""
    if channel.dynamic or channel.grouped or len(channel.readers) < 2:
        return None
    work = _work_per_step(channel)
    slow = work.index(max(work))
    mine = work.pop(slow)
    others = fmean(work)
    return (channel.readers[slow], mine, others) if mine >= _SLOW_READER * others else None


def _pace(channel: Channel) -> float:
    """Seconds of a step if only the readers took time. They take turns, or each reader serves its own host."""
    if channel.grouped:
        return max(map(_dealing, channel.readers), default=0.0)
    return _busy(channel) / max(1, len(channel.readers))


def _dealing(reader: Reader) -> float:
    return (reader.pipeline + reader.deal) / reader.steps if reader.steps else 0.0


def _own(trainers: Sequence[Trainer]) -> float:
    """Seconds of a step of the slowest rank, without its waits."""
    return max((one.step + one.receive) / one.steps for one in trainers)


def _now(channel: Channel, trainers: Sequence[Trainer]) -> float:
    filling = _filling(channel)
    return fmean(max(0.0, one.total - filling) / one.steps for one in trainers)


def _filling(channel: Channel) -> float:
    """Seconds in which pipelines filled their buffers before the first batch of an epoch.

    The rest of the wait for a first batch has other causes. The link may be full of other ranks' batches, or ranks may
    still be in the last epoch.
    """
    worked = max((one.pipeline for one in channel.readers), default=0.0)
    return min([worked, *(one.first for one in channel.trainers if one.steps)])


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.0995 else f"{100 * part:.1f} %"


def _time(seconds: float) -> str:
    if seconds < 1e-4:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.0095 else f"{seconds * 1e3:.2g} ms"
