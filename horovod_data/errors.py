# SPDX-License-Identifier: Apache-2.0
"""The style of every error text (where it happened, what happened, what to do), and small helpers of all modules."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import sys
import threading
from typing import Any, Callable, Optional, Sequence, TypeVar

Failure = TypeVar("Failure", bound=BaseException)

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_here = ""  # the `where` of this process, after it has joined the job
# The key under which an error holds its message without the place. An error of the core holds it in its payloads
# (csrc/ops/status.h). An error of Python has an attribute of this name.
_MESSAGE = "horovod_data.message"


def set_here(where: str) -> None:
    """Makes the texts of explain() begin with `where` from now on."""
    global _here
    _here = where


def here() -> str:
    """The `where` of this process. Empty until it has joined the job."""
    return _here


def explain(what: str, to_do: str = "", where: Optional[str] = None) -> str:
    """Returns `[where] what. To do.`, without the parts that are empty.

    `where` names rank or reader and host, channel, epoch and step as far as they are known, in the form of the C++
    core: `rank 1 on node7, channel train, epoch 2, step 17`. None stands for this process, if it has joined the job.
    """
    return placed(_here if where is None else where, _sentences(what, to_do))


def _sentences(what: str, to_do: str) -> str:
    return " ".join(part if part.endswith((".", "!", "?")) else part + "." for part in (what, to_do) if part)


def explained(kind: type[Failure], what: str, to_do: str = "", where: Optional[str] = None) -> Failure:
    """An error of this class, with the text of explain()."""
    return placed_error(kind, _sentences(what, to_do), where)


def placed_error(kind: Callable[[str], Failure], message: str, where: Optional[str] = None) -> Failure:
    """Returns kind(text). The text is the place and then the message. `where`: as for explain()."""
    where = _here if where is None else where
    error = kind(placed(where, message))
    if where:
        vars(error)[_MESSAGE] = message
    return error


def explain_again(error: BaseException, what: str, to_do: str = "") -> None:
    """Replaces the text of an error by the text of explain()."""
    error.args = (explain(what, to_do),)
    vars(error)[_MESSAGE] = _sentences(what, to_do)


def names_place(error: BaseException) -> bool:
    """Says whether the text of an error begins with the place where it happened."""
    return _placed_message(error) is not None


def message_of(error: BaseException) -> str:
    """The text of an error without its place, so that another text can quote it."""
    message = _placed_message(error)
    return text_of(error) if message is None else message


def _placed_message(error: BaseException) -> Optional[str]:
    # A TF1 session raises an error anew, of the same class, with its text and without its payloads.
    for one in (error, error.__context__):
        payload = getattr(one, "experimental_payloads", {}).get(_MESSAGE.encode())
        if payload is not None and type(one) is type(error):
            message: str = payload.decode(errors="replace")
            if one is error or message.partition("\n")[0] in text_of(error):
                return message
    return vars(error).get(_MESSAGE)


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
    """Writes a line to stderr. If stderr is closed, or a pipe without a reader, the line is lost without an error."""
    if sys.stderr is not None:  # otherwise print() would use stdout
        with contextlib.suppress(Exception):
            # One write for the whole line: without a buffer in stderr, another thread or rank could write between two
            # writes.
            sys.stderr.write(text + "\n")
            sys.stderr.flush()  # last, because the program may have set sys.stderr to an object without flush()


def show_trace(error: BaseException) -> None:
    """Logs the traceback of an error that the program's source has raised. An error of our own checks has none."""
    import traceback

    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        at = at.tb_next
    if at is not None:
        with contextlib.suppress(Exception):
            lines = traceback.format_exception(type(error), error, at)
            say(placed(_here, "the source has raised an error\n" + "".join(lines).rstrip()))


def show_any_text() -> None:
    """From now on print() shows a letter as an escape if stdout's encoding lacks it. Names of channels and files may
    have such letters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def text_of(error: BaseException) -> str:
    """Returns str(error). If that raises an error, returns a text that says so."""
    try:
        return str(error)
    except Exception as other:
        return f"(its text can't be had: {type(other).__name__})"


def words_of(error: BaseException) -> list[str]:
    """The class and the message of an error, for other ranks.

    A text given to sys.exit() is quoted, and a status is not.
    """
    text = message_of(error)
    quoted = isinstance(error, SystemExit) and error.code is not None and not isinstance(error.code, int)
    return [type(error).__name__, repr(text) if quoted else text]


def start_thread(thread: threading.Thread, where: Optional[str] = None) -> None:
    """Starts a thread. Raises RuntimeError if the system has no more threads for this process."""
    try:
        thread.start()
    except RuntimeError as error:
        what = f"This process can start no more threads ({thread.name}: {error})"
        to_do = "Raise the limit of its user (`ulimit -u`), of its container (pids), or of its memory (`ulimit -v`)"
        raise explained(RuntimeError, what, to_do, where) from None


def forked(what: str, done: str = "called") -> str:
    """The text of errors in a forked child of a process of the job."""
    return explain(
        f"{what} was {done} in a forked child (process {os.getpid()}) of a process that had called "
        "horovod_data.init(): a child is no rank of the job",
        'Do it in the parent, or start the child by "spawn", or before init()',
    )


def fork_check() -> Callable[[], bool]:
    """Returns a function that says whether it runs in a forked child of this process."""
    pid = os.getpid()
    return lambda: os.getpid() != pid


def checked_name(name: Any) -> None:
    """Raises TypeError or ValueError if `name` can't be the name of a channel or of a scatter. None is allowed."""
    if name is None:
        return
    if not isinstance(name, str):
        raise explained(TypeError, f"name={name!r} is not a string", "Pass a string, the same on every rank, or None")
    if not name:
        raise explained(ValueError, "name='' is empty", "Pass a name that messages can show, or None")
    if any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in name):
        raise explained(ValueError, f"name={name!r} is no text that can be sent", "Leave out NUL and lone surrogates")


def counted(number: int, what: str) -> str:
    """A number and its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. The first column is aligned to the left, all other columns to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return [f"  {'  '.join(row)}".rstrip() for row in cells]


def whole(value: Any) -> Optional[int]:
    """`value` as an int if it is a whole number, of Python or numpy. Otherwise None, also for a bool."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == bool:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def at_least(least: int, name: str, value: Any) -> int:
    """`value` as an int. Raises ValueError if the argument `name` is no whole number of `least` or more."""
    number = whole(value)
    if number is None or number < least:
        raise explained(ValueError, f"{name} must be a whole number of {least} or more, not {value!r}")
    return number
