# SPDX-License-Identifier: Apache-2.0
"""Saves sets with all ranks, and agrees on the set to restore. Collective among trainers.

A set is saved in two halves. At the step each rank takes its part into memory. Then a thread of each rank writes the
part, exchanges with the threads of the other ranks, and on rank 0 makes the set current. The training goes on
meanwhile. A process writes one set at a time.

This module needs no TensorFlow.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import sys
import threading
from typing import Any, Callable, Optional, Union

from ..channel.agreement import raised
from ..ending import exit_status
from ..errors import explain, explained, say, text_of, whole, words_of
from ..job import state
from ..native import bindings
from .sets import Files, Sets, WholeSet

STATE = "HOROVOD_DATA_STATE"  # the variable that names the directory

_ended: "collections.Counter[str]" = collections.Counter()  # the trainings that have ended in each directory

_OF_RANK = "horovod_data.of_rank"  # the attribute of an error that has the number of its rank
EXIT_SECONDS = 3.0  # after an error, an exit waits at most this time for the set that is being written

# What take() returns. It is a function that writes a rank's part from memory into a folder, or the error because of
# which there is no part.
Part = Union[Callable[[str], None], Exception]


class _Writing:
    """A set that a thread of this process writes."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self.saved = False
        self._work: Optional[Callable[[], bool]] = work
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="horovod_data backup", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left, so the training waits
            self._run()

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            self.saved = work()
        except BaseException as error:
            self._error = error

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: Optional[float] = None) -> None:
        if self._thread.ident is not None:  # otherwise it could not be started
            self._thread.join(seconds)

    def take_error(self) -> Optional[BaseException]:
        error, self._error = self._error, None
        return error


_newest: Optional[_Writing] = None  # of this process


def wait(seconds: Optional[float] = None) -> None:
    """Waits until this process writes no set, at most `seconds`. An error of the write is kept. Local."""
    if _newest is not None:
        _newest.join(seconds)


def wait_at_end(fails: bool) -> None:
    """Waits for the set that is being written, before this process leaves the job. Local.

    `fails`: the process ends with an error. Then other ranks may wait for it, so this wait is short.
    """
    wait(EXIT_SECONDS if fails else None)
    if _newest is not None and _newest.runs and (job := state.joined()) is not None and job.trainer == 0:
        what = "the set that is being written is lost, because the program ends with an error"
        say(explain(what, "The sets before stay"))


def take(call: Callable[[], Callable[[str], None]]) -> Part:
    """Returns the result of the call, or its error. save() then raises the error on all ranks."""
    try:
        return call()
    except Exception as error:
        return error


class JobSets:
    """The sets of a job. Every rank has one, with the same arguments, and calls the same methods. Collective."""

    def __init__(self, directory: str, keep: int, what: str, arguments: dict[str, Any]) -> None:
        """Local.

        Args:
          directory: of the sets, on a file system that all ranks share.
          keep: the number of whole sets to keep.
          what: names the caller in error texts.
          arguments: those of the caller that must be equal on all ranks. Anything that JSON can hold.

        Raises:
          RuntimeError: before init(), or on a dedicated reader.
        """
        self._job = state.current(what)
        if self._job.trainer is None:
            raise explained(
                RuntimeError, f"{what} was called on a dedicated reader", "Call horovod_data.serve() before it"
            )
        self.rank, self.ranks = self._job.trainer, len(self._job.layout.trainers)
        self._what, self._arguments = what, {"keep": keep, **arguments}
        self._sets = Sets(directory, keep)
        self._number = 0  # of the next set
        self._writing: Optional[_Writing] = None  # the last set, until finish() has its result
        self._saved = False  # the result
        self._path = os.path.realpath(directory)
        self.is_over = False  # the set to restore says that the training has ended

    def open(self) -> Optional[WholeSet]:
        """Finds the newest whole set, and prepares the directory for new ones.

        Returns:
          The set to restore, the same on every rank. None: there is none.

        Raises:
          RuntimeError: the ranks don't share the directory.
          ValueError: the ranks have other arguments, or another training of this program has saved the set.
          OSError: rank 0 can't read the directory.
        """
        wait()  # an error may have ended the training before
        atexit.unregister(_wait_at_exit)
        atexit.register(_wait_at_exit)
        token = ".seen-by-all-ranks"
        path = os.path.join(self._sets.directory, token)

        def find(said: list[Any]) -> Any:
            for rank, arguments in enumerate(said):
                if arguments != said[0]:
                    what = f"the ranks disagree in {self._what}(): {_shown(said[0])} on rank 0; "
                    what += f"{_shown(arguments)} on rank {rank}"
                    raise explained(ValueError, what, "Pass the same arguments on every rank")
            try:
                found, skipped = self._sets.newest()
            except OSError as error:
                what = f"{self._what} can't read the directory {self._sets.directory}: {text_of(error)}"
                raise explained(OSError, what, "Use a directory of its own") from None
            theirs = 0 if found is None else found.about.get("ended", 0)
            if found is not None and theirs != _ended[self._path]:
                what = (
                    f"training {theirs + 1} of the program in the directory {self._sets.directory} has saved the set "
                )
                what += f"{os.path.basename(found.path)}, and this is training {_ended[self._path] + 1}"
                raise explained(ValueError, what, "Give each fit() or block of Backup a directory of its own")
            number = self._sets.next_number()
            if number > 1:  # a process of the job before may still live on a lost host, and begin one more set
                number += 1
            for name in skipped:
                self._say(f"the set {name} is not whole, so it is not used")
            self._sets.clean()
            try:
                os.makedirs(self._sets.directory, exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(str(number))
            except OSError as error:
                self._say(f"no set can be saved in {self._sets.directory}: {text_of(error)}")
                return {"set": found and vars(found), "number": number, "token": False}
            return {"set": found and vars(found), "number": number, "token": True}

        answer = self._decide("open", self._arguments, find)
        sees = not answer["token"] or os.path.exists(path)

        def compare(seen: list[Any]) -> Any:
            if answer["token"]:
                os.remove(path)
            if not all(seen):
                what = f"rank {seen.index(False)} does not see the directory {self._sets.directory} of rank 0"
                raise explained(RuntimeError, what, "Use a directory on a file system that all ranks share")
            return {}

        self._decide("shared", sees, compare)
        self._number = answer["number"]
        if answer["set"] is None:
            return None
        self.is_over = bool(answer["set"]["about"].get("over"))
        return WholeSet(**answer["set"])

    def save(self, part: Part, about: dict[str, Any]) -> None:
        """Waits for the previous set, and begins to save a set. A thread writes this rank's part.

        An error of the disk, on any rank, is logged, and the sets before stay. Any other error of a part is raised on
        all ranks: on its own rank at once, on the other ranks by the next save() or finish().

        Args:
          part: take() returns it.
          about: the same on every rank, and anything that JSON can hold.

        Raises:
          ValueError: the ranks gave different `about` for the previous set.
          Exception: a part of the previous set, or this rank's part of the new set, has an error that does not concern
            the disk.
        """
        global _newest
        self.finish()
        number = self._number
        self._number += 1
        mine = {"about": {**about, "ended": _ended[self._path]}}
        self._writing = _newest = _Writing(lambda: self._write(number, part, mine))
        if isinstance(part, Exception):
            self.finish()

    def finish(self) -> bool:
        """Waits until the last set was saved. Raises the errors of save().

        Returns:
          Whether the set was saved, the same on every rank.
        """
        wait()
        writing, self._writing = self._writing, None
        if writing is None:
            return self._saved
        self._saved, error = writing.saved, writing.take_error()
        try:
            if error is not None:
                raise error
        finally:
            error = None  # otherwise this frame and the error would keep each other alive
        return self._saved

    def stop(self) -> None:
        """Called after an error of the training. Waits a short time for the last set. Local."""
        wait(EXIT_SECONDS)

    def _write(self, number: int, part: Part, mine: dict[str, Any]) -> bool:
        """Called on the thread. Writes this rank's part, and makes the set current when all parts are written."""
        failure: Optional[BaseException] = None
        try:
            if isinstance(part, Exception):
                raise part
            part(self._sets.folder(number, self.rank))
            mine["files"] = self._sets.sync(number, self.rank)
        except Exception as error:
            if _is_of_disk(error):
                mine["disk"] = words_of(error)
            else:
                failure, mine["error"] = error, words_of(error)

        def confirm(said: list[Any]) -> Any:
            saved = False
            try:
                saved = self._confirm(number, said)
            finally:
                if not saved:
                    self._sets.drop(number)
            return {"saved": saved}

        try:
            return bool(self._decide("save", mine, confirm, failure)["saved"])
        finally:
            failure = None

    def end(self, taken: Callable[[], Callable[[str], None]], about: dict[str, Any]) -> None:
        """Removes all sets when the training has ended, after every rank has made this call.

        Sets in the directory of the launcher stay, because the launcher starts the job again if the rest of the program
        fails. The last set then says that the training is over. The launcher removes the sets at the job's normal end.

        Args:
          taken: the argument of take() for that last set.
          about: of that set, as in save().
        """
        self.finish()
        of_launcher = os.environ.get(STATE, "").strip() if os.environ.get("HOROVOD_DATA_ATTEMPT") else ""
        if not of_launcher or os.path.realpath(of_launcher) != self._path:
            self._clear()
        elif not self.is_over:
            self.save(take(taken), {**about, "over": True})
            self.finish()
        _ended[self._path] += 1

    def _clear(self) -> None:
        def remove(_: list[Any]) -> Any:
            self._sets.clear()
            return {}

        self._decide("clear", None, remove)

    def on_all(self, what: str, call: Callable[[], None]) -> None:
        """Makes a call on every rank. An error on one rank is raised on all."""
        mine: Optional[list[str]] = None
        failure: Optional[BaseException] = None
        try:
            call()
        except Exception as error:
            failure, mine = error, words_of(error)

        def check(said: list[Any]) -> Any:
            self._raise_first(said)
            return {}

        try:
            self._decide(what, mine, check, failure)
        finally:
            failure = None

    def _confirm(self, number: int, said: list[Any]) -> bool:
        self._raise_first([one.get("error") for one in said])
        abouts = [one["about"] for one in said]
        for rank, about in enumerate(abouts):
            if about != abouts[0]:
                what = (
                    f"the ranks save at different steps: rank 0 at {_shown(abouts[0])}, rank {rank} at {_shown(about)}"
                )
                raise explained(ValueError, what, "Give all ranks the same callbacks and the same number of steps")
        for rank, one in enumerate(said):
            if "disk" in one:
                self._not_saved(rank, one["disk"][1])
                return False
        parts: list[Files] = [one["files"] for one in said]

        try:
            self._sets.make_current(number, parts, abouts[0])
        except OSError as error:
            self._not_saved(0, text_of(error))
            return False
        return True

    def _raise_first(self, errors: list[Optional[list[str]]]) -> None:
        """Raises the error of the first rank that has sent one. `errors`: by rank, the words of its error."""
        for rank, words in enumerate(errors):
            if words is not None:
                whose = self._job.name(self._job.layout.trainers[rank])
                error = raised(whose, words[0], f"{self._what} failed: {words[0]}: {words[1]}")
                vars(error)[_OF_RANK] = rank
                raise error

    def _decide(
        self, step: str, mine: Any, decide: Callable[[list[Any]], Any], failure: Optional[BaseException] = None
    ) -> dict[str, Any]:
        """Gathers `mine` of all ranks on rank 0, which decides. Every rank returns the decision, or raises its error.

        `failure`: this rank's own error, which it raises itself.
        """
        name = f"hvdata.backup.{step}"
        said = bindings.Allgather(name, json.dumps(mine).encode()).wait()
        answer: dict[str, Any] = {}
        if self.rank == 0:
            try:
                answer = decide([json.loads(one) for one in said])
            except Exception as error:
                answer = {"raises": [vars(error).get(_OF_RANK, 0), *words_of(error)]}
        answer = json.loads(bindings.Allgather(f"{name}.answer", json.dumps(answer).encode()).wait()[0])
        try:
            if failure is not None:
                raise failure
        finally:
            failure = None  # otherwise this frame and the error would keep each other alive
        if "raises" in answer:
            rank, *words = answer["raises"]
            raise raised(self._job.name(self._job.layout.trainers[rank]), *words)
        return dict(answer)

    def _not_saved(self, rank: int, why: str) -> None:
        whose = self._job.name(self._job.layout.trainers[rank])
        self._say(f"no set was saved, and the job goes on with the set before. {whose}: {why}")

    def _say(self, what: str) -> None:
        say(explain(f"{self._what}: {what}"))


def _wait_at_exit() -> None:
    wait_at_end(exit_status.failing())


def checked_arguments(what: str, directory: Any, keep: Any) -> tuple[str, int]:
    """The directory of the sets, and how many are kept. Raises TypeError or ValueError.

    `directory` None: the value of HOROVOD_DATA_STATE.
    """
    kept = whole(keep) or 0
    if kept <= 0:
        raise explained(ValueError, f"keep must be 1 or more sets, not {keep!r}")
    if directory is None:
        directory = os.environ.get(STATE, "").strip()
    elif not isinstance(directory, (str, os.PathLike)):
        raise explained(TypeError, f"directory must be a path, not {directory!r}")
    path: Union[str, bytes] = os.fspath(directory)
    if not path:
        to_do = f"Pass a directory that all ranks share, or set {STATE}"
        raise explained(ValueError, f"{what}() was given no directory", to_do)
    return os.fsdecode(path), kept


def _is_of_disk(error: Exception) -> bool:
    """Says whether an error is of the disk. After such an error the job goes on with the set before."""
    if isinstance(error, OSError):
        return True
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        return False
    of_disk = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.NotFoundError)
    return isinstance(error, of_disk)


def _shown(about: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in about.items())
