# SPDX-License-Identifier: Apache-2.0
"""The style of every error text (where it happened, what happened, what to do), and small helpers of all modules."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import sys
import threading
from typing import Any, Callable, Optional, TypeVar

Failure = TypeVar("Failure", bound=BaseException)

_here = ""  # this process, once it has joined the job


def set_here(where: str) -> None:
    """From now on the texts of explain() begin with `where`."""
    global _here
    _here = where


def here() -> str:
    """The `where` of this process. Empty until it has joined the job."""
    return _here


def explain(what: str, to_do: str = "", where: Optional[str] = None) -> str:
    """Returns `[where] what. To do.`, without the parts that are empty.

    `where` names rank or reader and host, channel, epoch and step as far as they are known, in the form of the C++ core:
    `rank 1 on node7, channel train, epoch 2, step 17`. None stands for this process, if it has joined the job.
    """
    where = _here if where is None else where
    sentences = (part if part.endswith((".", "!", "?")) else part + "." for part in (what, to_do) if part)
    return placed(where, " ".join(sentences))


def explained(kind: type[Failure], what: str, to_do: str = "", where: Optional[str] = None) -> Failure:
    """An error of this class, with the text of explain()."""
    return kind(explain(what, to_do, where))


def placed(where: str, text: str) -> str:
    """Puts `where`, as explain() takes it, in front of a text."""
    return f"[{where}] {text}" if where else text


def place(rank: int, host: str) -> str:
    """The `where` of a process. `rank` is its rank in the communicator of init()."""
    return f"rank {rank} on {host}"


def say(text: str) -> None:
    """Logs a line on stderr, under our name."""
    show(f"horovod_data: {text}")


def show(text: str) -> None:
    """Writes a line to stderr. Where that is closed, or nobody reads it, the line is lost, and that is no error."""
    if sys.stderr is not None:  # or print() would take stdout
        with contextlib.suppress(Exception):
            # In one piece: where stderr has no buffer, a line of another thread or rank may come between two writes.
            sys.stderr.write(text + "\n")
            sys.stderr.flush()  # last: an object of the program's own may have no flush()


def show_any_text() -> None:
    """For our commands: print() shows letters that stdout's encoding lacks (in names of channels and files) as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def without_place(text: str, where: Optional[str] = None) -> str:
    """A text of explain() without its place, for another text to quote. None stands for the place of this process."""
    return text.removeprefix(placed(_here if where is None else where, ""))


def text_of(error: BaseException) -> str:
    """str(error), or a text that says that its class can't make one."""
    try:
        return str(error)
    except Exception as other:
        return f"(its text can't be had: {type(other).__name__})"


def words_of(error: BaseException) -> list[str]:
    """The class and the text of an error, for other ranks. A text that sys.exit() was given has quotes, a status has none."""
    text = text_of(error)
    quoted = isinstance(error, SystemExit) and error.code is not None and not isinstance(error.code, int)
    return [type(error).__name__, repr(text) if quoted else text]


def start_thread(thread: threading.Thread, where: Optional[str] = None) -> None:
    """Starts a thread.

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
    """The text of errors in a forked child of a process of the job."""
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
    """Raises TypeError or ValueError where `name` can't be the name of a channel or of a scatter. None is no name."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(explain(f"name={name!r} is not a string", "Pass a string, the same on every rank, or None"))
    if not name:
        raise ValueError(explain("name='' is empty", "Pass a name that messages can show, or None"))
    if any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in name):
        raise ValueError(explain(f"name={name!r} is no text that can be sent", "Leave out NUL and lone surrogates"))


def whole(value: Any) -> Optional[int]:
    """`value` as an int if it is a whole number, also one of numpy. Except: a bool is none."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == bool:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
