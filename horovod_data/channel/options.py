# SPDX-License-Identifier: Apache-2.0
"""The arguments of distribute_dataset() and loader() on which all ranks must agree: names, defaults and checks.

A new argument is a parameter of both functions, a field here with its check, and the code that uses it. Ranks compare
all fields.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from typing import Any, Optional, Union

from ..errors import checked_name, explained, whole
from ..job.settings import LEAST_MB, Settings, verify_in

BATCH = ("global", "per_rank")
SCHEDULE = ("static", "dynamic")
REMAINDER = ("drop", "partial", "pad", "repeat")
ROWS = "rows"
ON_ERROR = ("raise", "continue")
AUTO = "auto"
JOB = "job"
MIB = 1 << 20
_MOST_PREFETCH = 2**31 - 1  # a C int
_MOST_MB = float(1 << 20)
_SEED_BITS = 64


class _Marker(str):
    """A value that is compared by identity, so that no program passes it by accident."""


# The value of `shard` in predict(): "auto", except where the dataset function takes an InputContext.
UNLESS_SHARDED = _Marker("auto, unless the dataset function takes a context")


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments. The fields have the names and defaults of the parameters of distribute_dataset()
    and loader().

    Raises:
      TypeError, ValueError: an argument is wrong by itself, or contradicts another argument.
    """

    batch: str
    schedule: str = "static"
    remainder: str = "drop"
    prefetch: Union[int, str] = AUTO
    name: Optional[str] = None
    on_reader_error: str = "raise"
    verify: bool = False
    prefetch_mb: Optional[float] = None
    shard: Optional[str] = None
    weigh: Any = None
    cache: Optional[str] = None
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _choice("batch", self.batch, BATCH)
        _choice("schedule", self.schedule, SCHEDULE)
        _choice("remainder", self.remainder, REMAINDER)
        _choice("on_reader_error", self.on_reader_error, ON_ERROR)
        if self.shard is not None and self.shard is not UNLESS_SHARDED and not _is_auto(self.shard):
            raise explained(ValueError, f"shard={self.shard!r} is not known", "Use None or 'auto'")
        object.__setattr__(self, "prefetch", _steps(self.prefetch))  # JSON takes no numpy number
        object.__setattr__(self, "prefetch_mb", _size(self.prefetch_mb))
        if self.prefetch != AUTO and self.prefetch_mb is not None:
            both = f'prefetch_mb={self.prefetch_mb:g} bounds prefetch="auto", but prefetch={self.prefetch}'
            raise explained(ValueError, f"{both} says how many steps", "Give one of them")
        checked_name(self.name)
        if not isinstance(self.verify, bool):
            raise explained(TypeError, f"verify must be True or False, not {self.verify!r}")
        if self.schedule == "dynamic" and self.batch == "global":
            raise explained(
                ValueError,
                'schedule="dynamic" gives a whole element to the rank that asks first, but '
                'batch="global" cuts each element for all ranks',
                'Use batch="per_rank" with it',
            )

        rows = isinstance(self.weigh, str) and self.weigh == ROWS  # a tensor can't be compared with a text
        if self.weigh is not None and not rows and not callable(self.weigh):
            raise explained(
                ValueError,
                f"weigh={self.weigh!r} is not known",
                "Use None, 'rows', or a function that returns the cost of each row of an element",
            )
        if self.weigh is not None and self.schedule == "dynamic":
            raise explained(
                ValueError,
                f'weigh={self.weigh!r} divides the rows of a step by their cost, but schedule="dynamic" has no steps',
                'Use schedule="static" with it',
            )
        self._check_cache()

    def _check_cache(self) -> None:
        if self.cache is not None and not (isinstance(self.cache, str) and self.cache == JOB):
            raise explained(ValueError, f"cache={self.cache!r} is not known", "Use None or 'job'")
        if not isinstance(self.shuffle, bool):
            raise explained(TypeError, f"shuffle must be True or False, not {self.shuffle!r}")
        object.__setattr__(self, "seed", _seed(self.seed))
        if self.cache is None:
            if self.shuffle or self.seed:
                given = "shuffle=True" if self.shuffle else f"seed={self.seed}"
                what = f'{given} is about the rows that cache="job" keeps, but cache=None keeps none'
                raise explained(ValueError, what, 'Use cache="job" with it, or Dataset.shuffle() in the pipeline')
            return
        if self.schedule == "dynamic":
            what = 'cache="job" delivers the same steps in every epoch, but schedule="dynamic" has no steps'
            raise explained(ValueError, what, 'Use schedule="static" with it')
        if self.on_reader_error == "continue":
            what = (
                'cache="job" runs the pipeline once, so with on_reader_error="continue" an element that is lost once '
                "would be lost in all epochs"
            )
            raise explained(ValueError, what, 'Use on_reader_error="raise"')

    @property
    def cached(self) -> bool:
        """Says whether the job keeps the rows in its memory."""
        return self.cache is not None

    @property
    def has_costs(self) -> bool:
        """Says whether a function gives the cost of each row. The costs are the last component of an element."""
        return callable(self.weigh)

    @property
    def weighs(self) -> bool:
        """Says whether a weight comes with each row."""
        return self.weigh is not None or self.fills

    @property
    def fills(self) -> bool:
        """Says whether filler rows fill up the shares."""
        return self.remainder in ("pad", "repeat")

    def words(self) -> dict[str, Any]:
        """The arguments in a form for JSON, to compare them between ranks. Functions have no such form."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**given, "weigh": "a function" if self.has_costs else self.weigh}

    def completed(self, settings: Settings) -> Options:
        """A copy in which HOROVOD_DATA_* variables replace arguments that were left out."""
        size = self.prefetch_mb
        if size is None and self.prefetch == AUTO:
            # Keepers deal from memory, so a small window is enough.
            part = 8 if self.cached else 1
            size = max(settings.prefetch_bytes / MIB / part, LEAST_MB)  # rounding to whole bytes may make it less
        return dataclasses.replace(self, verify=self.verify or verify_in(os.environ), prefetch_mb=size)

    def __str__(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.words().items())


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def _steps(given: Any) -> Union[int, str]:
    if _is_auto(given):
        return AUTO
    if (prefetch := whole(given)) is None:
        raise explained(TypeError, f"prefetch={given!r} is not a whole number", 'Use 1 or more steps, or "auto"')
    if not 1 <= prefetch <= _MOST_PREFETCH:
        what = "less than 1" if prefetch < 1 else f"more than {_MOST_PREFETCH}"
        raise explained(ValueError, f"prefetch={prefetch} is {what}", f'Use 1 to {_MOST_PREFETCH} steps, or "auto"')
    return prefetch


def _size(given: Any) -> Optional[float]:
    if given is None:
        return None
    if not isinstance(given, numbers.Real) or isinstance(given, bool):
        raise explained(TypeError, f"prefetch_mb must be a number of MiB, not {given!r}")
    try:
        size = float(given)
    except OverflowError:  # a huge int, whose digits would fill the error text
        given = size = math.inf if given > 0 else -math.inf  # type: ignore[operator]
    if not math.isfinite(size) or size < LEAST_MB:
        raise explained(ValueError, f"prefetch_mb={given!r} is not a size in MiB of {LEAST_MB:g} or more")
    return min(size, _MOST_MB)


def _seed(given: Any) -> int:
    """The seed as a number of 64 bits without a sign."""
    to_do = "Use a number from -2**63 to 2**64 - 1"
    if (seed := whole(given)) is None:
        raise explained(TypeError, f"seed={given!r} is not a whole number", to_do)
    if not -(1 << (_SEED_BITS - 1)) <= seed < 1 << _SEED_BITS:
        raise explained(ValueError, f"seed has more than {_SEED_BITS} bits", to_do)
    return seed & ((1 << _SEED_BITS) - 1)


def _choice(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise explained(ValueError, f"{argument}={value!r} is not known", f"Use {', '.join(others)} or {last}")
