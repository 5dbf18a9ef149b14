# SPDX-License-Identifier: Apache-2.0
"""Saves sets with all ranks, and agrees on the set to restore. Collective among trainers.

This module needs no TensorFlow.
"""

from __future__ import annotations

import collections
import json
import os
import sys
from typing import Any, Callable, Optional, Union

from ..channel.agreement import raised
from ..errors import explain, explained, say, text_of, whole, words_of
from ..job import state
from ..native import bindings
from .sets import Files, Sets, WholeSet

STATE = "HOROVOD_DATA_STATE"  # the variable that names the directory

_ended: "collections.Counter[str]" = collections.Counter()  # the trainings that have ended in each directory

_OF_RANK = "horovod_data.of_rank"  # the attribute of an error that has the number of its rank


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
        self._waiting: Optional[Callable[[], None]] = None  # on rank 0: makes the waiting set current
        self.waits = False  # a set waits for settle()
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

    def save(self, write: Callable[[str], None], about: dict[str, Any], wait: bool = False) -> bool:
        """Saves a set. An error of the disk, on any rank, is logged, and the sets before stay.

        Args:
          write: writes this rank's part into the folder that it is given.
          about: the same on every rank, and anything that JSON can hold.
          wait: the set becomes current only by settle(True).

        Returns:
          Whether the set was saved, the same on every rank.

        Raises:
          ValueError: the ranks differ in `about`.
          Exception: `write` raised an error that does not concern the disk. Every rank raises it.
        """
        number = self._number
        self._number += 1
        mine: dict[str, Any] = {"about": {**about, "ended": _ended[self._path]}}
        failure: Optional[BaseException] = None
        try:
            write(self._sets.folder(number, self.rank))
            mine["files"] = self._sets.sync(number, self.rank)
        except Exception as error:
            if _is_of_disk(error):
                mine["disk"] = words_of(error)
            else:
                failure, mine["error"] = error, words_of(error)

        def confirm(said: list[Any]) -> Any:
            saved = False
            try:
                saved = self._confirm(number, said, wait)
            finally:
                if not saved:
                    self._sets.drop(number)
            return {"saved": saved}

        try:
            saved = bool(self._decide("save", mine, confirm, failure)["saved"])
        finally:
            failure = None
        self.waits = saved and wait
        return saved

    def settle(self, current: bool) -> bool:
        """Makes the set that was saved with wait=True current, or drops it. Local.

        Returns:
          False: rank 0, this rank, could not make it current.
        """
        waiting, self._waiting, self.waits = self._waiting, None, False
        if waiting is None:
            return True
        if not current:
            self._sets.drop(self._number - 1)
            return True
        try:
            waiting()
        except OSError as error:
            self._not_saved(0, text_of(error))
            self._sets.drop(self._number - 1)
            return False
        return True

    def end(self, write: Callable[[str], None], about: dict[str, Any]) -> None:
        """Removes all sets when the training has ended, after every rank has made this call.

        Except: in the directory of the launcher the sets stay, because the launcher starts the job again if the rest of
        the program fails. The last set then says that the training is over. The launcher removes the sets at the job's
        normal end.

        Args:
          write, about: of that last set, as in save().
        """
        self.settle(False)
        of_launcher = os.environ.get(STATE, "").strip() if os.environ.get("HOROVOD_DATA_ATTEMPT") else ""
        if not of_launcher or os.path.realpath(of_launcher) != self._path:
            self._clear()
        elif not self.is_over:
            self.save(write, {**about, "over": True})
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

    def _confirm(self, number: int, said: list[Any], wait: bool) -> bool:
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

        def make_current() -> None:
            self._sets.make_current(number, parts, abouts[0])

        if wait:
            self._waiting = make_current
            return True
        try:
            make_current()
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
