# SPDX-License-Identifier: Apache-2.0
"""Decides what follows the end of an attempt: the end of the job, or another attempt, and on which hosts. Pure.

An attempt is one start of mpirun. It ends in one of four ways:

    DONE   All ranks ended with status 0.
    LEFT   The ranks saved a set after a signal, and left with the leave status.
    ERROR  A rank's program failed by itself: an uncaught exception, or an exit with a status. That may be the leave
           status, too, if no signal has asked for it.
    LOSS   A process was killed by a signal, a host was lost, or a rank no longer answered.

Other ranks fail after a loss, too, because they wait for the lost rank. Such errors count as the loss.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Collection, Optional, Sequence, Union

from .hosts import Host

# Variables for the ranks: the directory, the number of the attempt, and the status of ranks that saved and left.
STATE, ATTEMPT, LEAVE_STATUS = "HOROVOD_DATA_STATE", "HOROVOD_DATA_ATTEMPT", "HOROVOD_DATA_LEAVE_STATUS"

LEFT_OUT_SECONDS = 600.0  # a host that failed in two attempts in a row is left out for this time
_LONGEST_PAUSE = 60.0  # seconds
_SIGNALS = 128  # Open MPI's status after a signal is this number plus the signal's number

Way = enum.Enum("Way", "DONE LEFT ERROR LOSS")


@dataclasses.dataclass(frozen=True)
class Policy:
    """The limits of the restarts."""

    np: int  # trainers of a full job
    min_np: int
    max_restarts: int  # the most restarts within `window` seconds, and the most in a row without a new set
    window: float
    leave_status: int


@dataclasses.dataclass(frozen=True)
class Failure:
    """The error of a rank's program, as the rank noted it."""

    who: str
    status: int
    text: str
    follows: bool = False  # the error says that another rank was lost


@dataclasses.dataclass(frozen=True)
class Lost:
    """A process or a host that was lost. MPI's launcher has named it, or it was silent for too long."""

    what: str
    host: str
    whole_host: bool = False  # True: the host was lost, or a process on it is silent, perhaps because of the host


@dataclasses.dataclass(frozen=True)
class Ended:
    """An attempt that has ended."""

    status: int
    at: float  # seconds of a clock
    begun: int  # ranks that began the user's program under launcher/rank.py
    failures: Sequence[Failure] = ()
    lost: Optional[Lost] = None
    newest: str = ""  # names the newest whole set. Empty: there is none
    asked: bool = False  # the launcher has passed on a signal that asks the ranks to leave


@dataclasses.dataclass(frozen=True)
class Stop:
    """The job ends with this status. `why` is for the log, and may be empty."""

    status: int
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Again:
    """Another attempt follows, `pause` seconds later.

    It uses the hosts in `left_out` only if the other hosts have too few slots.
    """

    why: str
    pause: float
    left_out: frozenset[str]


def way_of(history: Sequence[Ended], leave_status: int) -> Way:
    """How the last attempt ended."""
    last = history[-1]
    if last.status == 0:
        return Way.DONE
    own = [failure for failure in last.failures if not failure.follows]
    # If ranks have agreed to leave, they note no failure. A program with a signal handler of its own may note one.
    if last.status == leave_status and (last.asked or all(failure.status != last.status for failure in own)):
        return Way.LEFT
    if last.lost is not None and last.lost.whole_host:  # then mpirun's status is 1, and the other ranks fail
        return Way.LOSS
    if last.status > _SIGNALS and all(failure.status != last.status for failure in own):
        return Way.LOSS
    if own:
        return Way.ERROR
    # If no rank has ever begun, the ranks leave no notes, or mpirun can't start them.
    return Way.LOSS if last.lost is not None or any(ended.begun for ended in history) else Way.ERROR


def decide(history: Sequence[Ended], policy: Policy) -> Union[Stop, Again]:
    """What follows the last attempt. `history`: all attempts of this launcher, the last one at the end."""
    last, way = history[-1], way_of(history, policy.leave_status)
    if way is Way.LEFT and not last.newest:
        return Stop(last.status, "The ranks have left without a set: the next job starts from the beginning")
    if way in (Way.DONE, Way.LEFT) or policy.max_restarts == 0:
        return Stop(last.status)
    what = reason(last)
    if way is Way.ERROR:
        if not last.newest:
            return Stop(last.status, f"{what}. This is the program's own error, and no set was saved: no restart")
        before = [one for at, one in enumerate(history[:-1], 1) if way_of(history[:at], policy.leave_status) is way]
        if any(one.newest == last.newest for one in before):
            return Stop(last.status, f"{what}. The program has failed twice after {last.newest}: no restart")
    if sum(last.at - one.at < policy.window for one in history[:-1]) >= policy.max_restarts:
        limit = f"{policy.max_restarts} restarts within {policy.window:g} s"
        return Stop(last.status, f"{what}. There were {limit} (--max-restarts, --restart-window): no restart")
    without_progress = 0
    for one in reversed(history[:-1]):
        if one.newest != last.newest:
            break
        without_progress += 1
    if without_progress >= policy.max_restarts:
        limit = f"After {policy.max_restarts} restarts in a row (--max-restarts) there is no new set"
        return Stop(last.status, f"{what}. {limit}: no restart")
    return Again(what, min(2.0**without_progress, _LONGEST_PAUSE), _left_out(history))


def _left_out(history: Sequence[Ended]) -> frozenset[str]:
    """The hosts that have failed in two attempts in a row, lately."""
    return frozenset(
        two.lost.host
        for one, two in zip(history, history[1:])
        if one.lost and two.lost and one.lost.host == two.lost.host and history[-1].at - two.at < LEFT_OUT_SECONDS
    )


def reason(ended: Ended) -> str:
    """Says what ended an attempt: `rank 1 on node2 was killed by signal 9`."""
    if ended.lost is not None and ended.lost.whole_host:
        return ended.lost.what
    for follows in (False, True):
        for failure in ended.failures:
            if failure.follows == follows and (failure.status == ended.status or ended.lost is None):
                return f"{failure.who} failed ({failure.text.rstrip('.')})"
        if ended.lost is not None:
            return ended.lost.what
    if ended.status > _SIGNALS:
        return f"a process was killed by signal {ended.status - _SIGNALS}"
    return f"the job ended with status {ended.status}"


def choose_hosts(
    hosts: Sequence[Host], answering: Collection[str], left_out: Collection[str], min_np: int
) -> Optional[tuple[Host, ...]]:
    """The hosts of the next attempt. None: those that answer have too few slots.

    If the other hosts have fewer than `min_np` slots, hosts that are left out are used, too.
    """
    there = tuple(host for host in hosts if host.name in answering)
    for chosen in (tuple(host for host in there if host.name not in left_out), there):
        if sum(host.slots for host in chosen) >= min_np:
            return chosen
    return None
