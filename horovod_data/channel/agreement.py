# SPDX-License-Identifier: Apache-2.0
"""Compares all ranks' arguments of a call that ranks make together. An error of one rank is raised on all."""

from __future__ import annotations

import builtins
import functools
from typing import Any, Optional

import tensorflow as tf

from ..errors import explained, placed_error
from ..job import state

# One pair for each distinct contribution: the ranks that made it, and the contribution.
Said = list[tuple[tuple[int, ...], dict[str, Any]]]


def _ranks(job: state.Job, ranks: tuple[int, ...]) -> str:
    shown = ", ".join(job.name(rank) for rank in ranks[:8])
    return shown + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def check_agreement(job: state.Job, what: str, said: Said) -> None:
    """Raises ValueError when the ranks' arguments differ, with the same text on every rank."""
    differences: list[str] = []
    for key in said[0][1]["arguments"]:
        values: dict[str, tuple[int, ...]] = {}
        for ranks, contribution in said:
            value = repr(contribution["arguments"][key])
            values[value] = tuple(sorted(values.get(value, ()) + ranks))
        if len(values) > 1:
            ordered = sorted(values.items(), key=lambda item: item[1])
            differences += [f"{key}={value} on {_ranks(job, ranks)}" for value, ranks in ordered]
    if differences:
        to_do = "Every rank must make the same calls in the same order with the same arguments"
        raise explained(ValueError, f"the ranks disagree in {what}: {'; '.join(differences)}", to_do)


def raised(where: str, kind: str, message: str) -> Exception:
    """Returns another rank's error. Its class is the one named `kind` in tf.errors or builtins, or RuntimeError."""
    for module, first_arguments in ((tf.errors, (None, None)), (builtins, ())):
        named = getattr(module, kind, None)
        if isinstance(named, type) and issubclass(named, Exception):
            try:
                return placed_error(functools.partial(named, *first_arguments), message, where)
            except TypeError:  # its constructor takes more than a text
                break
    return placed_error(RuntimeError, message, where)


def check_errors(job: state.Job, what: str, said: Said, failure: Optional[BaseException]) -> None:
    """Raises this rank's own error, `failure`. If that is None, raises the error of the first rank that has one."""
    try:
        if failure is not None:
            raise failure
    finally:
        failure = None  # otherwise this frame and the error would keep each other alive, with the program's frames
    for ranks, contribution in said:
        if "error" in contribution:
            kind, text = contribution["error"]
            raise raised(_ranks(job, ranks), kind, f"{what} failed: {kind}: {text}")
