# SPDX-License-Identifier: Apache-2.0
"""Compares the arguments that all ranks give to one common call. An error of one rank is raised on all."""

from __future__ import annotations

import builtins
import functools
import sys
from typing import Any, Optional

from ..errors import explained, placed_error
from ..job import state

# One pair per distinct contribution: the ranks that gave it, and the contribution.
Said = list[tuple[tuple[int, ...], dict[str, Any]]]


def _ranks(job: state.Job, ranks: tuple[int, ...]) -> str:
    shown = ", ".join(job.name(rank) for rank in ranks[:8])
    return shown + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def check_agreement(job: state.Job, what: str, said: Said) -> None:
    """Raises ValueError when the ranks' arguments differ, with the same text on every rank."""
    sides: list[str] = []
    for key in said[0][1]["arguments"]:
        values: dict[str, tuple[int, ...]] = {}
        for ranks, words in said:
            value = repr(words["arguments"][key])
            values[value] = tuple(sorted(values.get(value, ()) + ranks))
        if len(values) > 1:
            ordered = sorted(values.items(), key=lambda item: item[1])
            sides += [f"{key}={value} on {_ranks(job, ranks)}" for value, ranks in ordered]
    if sides:
        to_do = "Every rank must make the same calls in the same order with the same arguments"
        raise explained(ValueError, f"the ranks disagree in {what}: {'; '.join(sides)}", to_do)


def raised(where: str, kind: str, message: str) -> Exception:
    """An error of another rank. It has the class named `kind` in TensorFlow or Python, or is a RuntimeError."""
    tf: Any = sys.modules.get("tensorflow")
    for module, before in ((tf and tf.errors, (None, None)), (builtins, ())):
        named = getattr(module, kind, None)
        if isinstance(named, type) and issubclass(named, Exception):
            try:
                return placed_error(functools.partial(named, *before), message, where)
            except TypeError:  # its constructor takes more than a text
                break
    return placed_error(RuntimeError, message, where)


def check_errors(job: state.Job, what: str, said: Said, failure: Optional[BaseException]) -> None:
    """Raises this rank's own error. If it has none, raises the error of the first rank that has one.

    That error has the same class if this rank knows the class. Otherwise it is a RuntimeError.
    """
    try:
        if failure is not None:
            raise failure
    finally:
        failure = None  # otherwise this frame and the error would keep each other alive, with the program's frames
    for ranks, words in said:
        if "error" in words:
            kind, text = words["error"]
            raise raised(_ranks(job, ranks), kind, f"{what} failed: {kind}: {text}")
