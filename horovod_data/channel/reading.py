# SPDX-License-Identifier: Apache-2.0
"""What a reader's side gives to its channel, for every kind of source. Also the arguments of the program's function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, Callable, NamedTuple, Optional

from ..elements.nests import leaves
from ..errors import explained
from .options import Options
from .shard.summary import PartSummary

INFINITE, UNKNOWN = -1, -2  # as tf.data counts


class Rules(NamedTuple):
    """What a channel requires of the source that this reader reads."""

    options: Options
    reader: int
    readers: int
    trainers: int
    group_trainers: int  # the trainers for which this reader cuts its global batches

    @property
    def divides(self) -> bool:
        """Says whether each reader takes a part of the source."""
        return self.options.shard is not None and self.readers > 1


@dataclasses.dataclass
class Reading:
    """What this process reads for a channel, or the function that makes it for every epoch."""

    spec: Any  # of its elements (elements/specs.py); with costs if `weigh` gives them. EMPTY: it has no elements
    count: int  # of its elements, as tf.data counts
    steps: Optional[int]  # global batches with at least one row for each trainer; None: unknown
    fingerprint: Optional[str]  # of the pipeline before it is sharded; None: unknown
    part: Optional[PartSummary]  # with shard="auto": of the common source
    # deal(channel, epoch, number) runs one epoch, until all trainers have ended it
    deal: Callable[[int, int, int], None]
    close: Callable[[], None] = lambda: None  # frees what it holds
    # takes the spec of the other readers' elements. It is called if `spec` is EMPTY
    agreed: Callable[[Any], None] = lambda spec: None


# Stands for the spec of a source without elements, which is unknown.
EMPTY = "empty"


def steps_of(count: int, spec: Any, options: Options, trainers: int, with_rows: Optional[int]) -> int:
    """The number of steps in an epoch of `count` elements. Both numbers may be INFINITE or UNKNOWN, as in tf.data.

    `with_rows`: the number of elements with at least one row for each trainer (Reading.steps). None: unknown.
    """
    if count < 0 or options.schedule == "dynamic":
        return INFINITE if count == INFINITE else UNKNOWN
    if options.batch == "per_rank":
        return count // trainers if options.remainder == "drop" else -(-count // trainers)
    rows = [leaf.rows for _, leaf in leaves(spec)]
    if options.remainder != "drop" or any(rows):  # with "drop", a check has ensured that the ranks divide the rows
        return count
    if 0 in rows:
        return 0
    return UNKNOWN if with_rows is None else with_rows  # a batch smaller than the number of ranks makes no step


# ---- The function that makes a source.


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What the program's function gets in place of a tf.distribute.InputContext, where TensorFlow is not imported."""

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int


class Wants(NamedTuple):
    """The arguments that a dataset function takes."""

    context: bool  # an InputContext
    epoch: bool  # the epoch's number, passed by the name `epoch`; the function is then called for every epoch


def with_context(function: Callable[..., Any], context: Any, options: Options) -> tuple[Callable[..., Any], Wants]:
    """The function with its InputContext, if it takes one, and the arguments that it takes.

    Raises:
      TypeError, ValueError: the function takes what it can't get.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin function without a signature
        return function, Wants(False, False)
    if any(p.name == "epoch" and p.kind is p.POSITIONAL_ONLY for p in parameters):
        what = "the dataset function's parameter `epoch` can be passed by its position only, but is passed by its name"
        raise explained(TypeError, what, "Leave out the `/` behind it")
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "epoch"
    ]
    if len(needed) > 1:
        what = f"the dataset function needs the arguments {', '.join(p.name for p in needed)}"
        to_do = "It may take one context, and the number of the epoch as `epoch`"
        raise explained(TypeError, what, to_do)
    given = function.keywords if isinstance(function, functools.partial) else {}
    epoch = "epoch" in by_name and "epoch" not in given
    if epoch and options.cached:
        what = 'cache="job" runs the pipeline once, but the dataset function takes the number of the epoch as `epoch`'
        to_do = "Leave out the parameter, and put what differs between epochs behind the call"
        raise explained(ValueError, what, to_do)
    if not needed:
        return function, Wants(False, epoch)
    if needed[0].kind is needed[0].KEYWORD_ONLY or (epoch and needed[0].name in by_name):
        return functools.partial(function, **{needed[0].name: context}), Wants(True, epoch)
    return functools.partial(function, context), Wants(True, epoch)
