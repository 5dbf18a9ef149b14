# SPDX-License-Identifier: Apache-2.0
"""The one style of every error text: where it happened, what happened, what to do."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import sys
import threading
from typing import Any, Callable, Optional

_here = ""  # this process, once it has joined the job


def set_here(where: str) -> None:
    """From now on errors say that they happened there."""
    global _here
    _here = where


def here() -> str:
    """This process, as texts say where something happened, if it has joined the job."""
    return _here


def explain(what: str, to_do: str = "", where: Optional[str] = None) -> str:
    """Returns `[where] what. To do.`: the parts that are empty are left out.

    `where` names as much as is known of reader or rank and host, channel, epoch and step, as the C++ core does:
    `rank 1 on node7, channel train, epoch 2, step 17`. None: this process, if it has joined the job.
    """
    where = _here if where is None else where
    sentences = (part if part.endswith((".", "!", "?")) else part + "." for part in (what, to_do) if part)
    return placed(where, " ".join(sentences))


def placed(where: str, text: str) -> str:
    """What all texts that say where begin with; `where` as explain() takes it."""
    return f"[{where}] {text}" if where else text


def place(rank: int, host: str) -> str:
    """The `where` of a process: its rank in the communicator that was given to init(), and its host."""
    return f"rank {rank} on {host}"


def say(text: str) -> None:
    """A line of ours on stderr, as show()."""
    show(f"horovod_data: {text}")


def show(text: str) -> None:
    """On stderr, unless that is closed, nobody reads it, or the program's own object can't: that is no reason to fail for whoever has
    something to say."""
    if sys.stderr is not None:  # or print() would take stdout
        with contextlib.suppress(Exception):
            sys.stderr.write(
                text + "\n"
            )  # in one piece: where stderr has no buffer, another thread's or rank's line may come between two
            sys.stderr.flush()  # an object without flush() has got the text


def show_any_text() -> None:
    """Of a command of ours: what stdout's encoding lacks (a channel's name, a file's) is shown in another way, and is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def without_place(text: str, where: Optional[str] = None) -> str:
    """A text of explain() for another one to quote that says where itself. None: a text of this process."""
    return text.removeprefix(placed(_here if where is None else where, ""))


def text_of(error: BaseException) -> str:
    """str(error), also where its class can't make one."""
    try:
        return str(error)
    except Exception as other:
        return f"(its text can't be had: {type(other).__name__})"


def words_of(error: BaseException) -> list[str]:
    """Its class and text, for other ranks. Of sys.exit() a number is the status, and what else it was given has quotes."""
    text = text_of(error)
    quoted = isinstance(error, SystemExit) and error.code is not None and not isinstance(error.code, int)
    return [type(error).__name__, repr(text) if quoted else text]


def start_thread(thread: threading.Thread, where: Optional[str] = None) -> None:
    """Starts it.

    Raises:
      RuntimeError: the system has no more threads for this process.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError(
            explain(
                f"This process can start no more threads ({thread.name}: {error})",
                "Raise the limit of its user (`ulimit -u`), of its container (pids), or of its memory (`ulimit -v`)",
                where,
            )
        ) from None


def forked(what: str, done: str = "called") -> str:
    """For RuntimeErrors in a forked child of a process of the job."""
    return explain(
        f"{what} was {done} in a forked child (process {os.getpid()}) of a process that had called "
        "horovod_data.init(): a child is no rank of the job",
        'Do it in the parent, or start the child by "spawn", or before init()',
    )


def fork_check() -> Callable[[], bool]:
    """A function that says whether it runs in a forked child of the process that has called this."""
    pid = os.getpid()
    return lambda: os.getpid() != pid


def checked_name(name: Any) -> None:
    """Raises TypeError or ValueError for what can't be the name of a channel or a scatter; None is none."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(explain(f"name={name!r} is not a string", "Pass a string, the same on every rank, or None"))
    if not name:
        raise ValueError(explain("name='' is empty", "Pass a name that messages can show, or None"))
    if any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in name):
        raise ValueError(explain(f"name={name!r} is no text that can be sent", "Leave out NUL and lone surrogates"))


def whole(value: Any) -> Optional[int]:
    """`value` as an int if it is a whole number, numpy's included, but no bool."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == bool:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
