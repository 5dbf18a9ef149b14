# SPDX-License-Identifier: Apache-2.0
"""The sets of a directory. A set has one part for each rank. It is whole, or it is not used.

    set-00000007/            a current set.
        set.json             The names and sizes of all files, and `about`.
        part-0/, part-1/     The files of the ranks.
    set-00000008.writing/    A set that is not whole, perhaps of a killed job.

The ranks write their parts beside each other. When all have confirmed, one rank calls make_current(). It renames the
folder, and that one rename makes the set current. So a process may be killed at any moment.

This module needs neither TensorFlow nor MPI.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
from typing import Any, Iterator, Optional

from ..errors import explained

_MANIFEST = "set.json"
_FORMAT = 1
_WRITING = ".writing"
_NAME = re.compile(rf"set-(\d{{8,}})({re.escape(_WRITING)})?")

# The sizes in bytes of a part's files, by name.
Files = dict[str, int]


@dataclasses.dataclass(frozen=True)
class WholeSet:
    """A set that was made current, with all its files."""

    path: str
    number: int
    parts: int
    about: dict[str, Any]  # as given to make_current()

    def part(self, part: int) -> str:
        """The folder of a part."""
        return _part(self.path, part)


class Sets:
    """The sets of one directory. Ranks may call folder() and sync() at the same time. Local.

    All other methods are for one process at a time.
    """

    def __init__(self, directory: str, keep: int = 2) -> None:
        """
        Args:
          directory: exists, or is made by the first call of folder().
          keep: the number of whole sets that make_current() keeps. 1 or more.
        """
        self.directory = directory
        self._keep = keep

    def newest(self) -> tuple[Optional[WholeSet], list[str]]:
        """The newest whole set, and the names of newer sets that are not whole.

        Raises:
          OSError: the directory exists and can't be read.
        """
        skipped: list[str] = []
        for number, name in sorted(self._names(), reverse=True):
            whole = None if name.endswith(_WRITING) else self._whole(number, name)
            if whole is not None:
                return whole, skipped
            skipped.append(name)
        return None, skipped

    def next_number(self) -> int:
        """A number above those of all sets, whole or not."""
        return max((number for number, _ in self._names()), default=0) + 1

    def clean(self) -> None:
        """Removes the sets that a killed job was writing. Call it while no process writes a set."""
        for _, name in self._names():
            if name.endswith(_WRITING):
                _remove(os.path.join(self.directory, name))

    def folder(self, number: int, part: int) -> str:
        """Makes the folder in which a rank writes its part of a new set, and returns its path.

        Raises:
          OSError: it can't be made.
        """
        path = _part(self._writing(number), part)
        os.makedirs(path, exist_ok=True)
        return path

    def sync(self, number: int, part: int) -> Files:
        """Waits until the files of a part are on the disk. Returns their sizes.

        Raises:
          OSError: they could not be written, for example because the disk is full.
        """
        folder = _part(self._writing(number), part)
        sizes = {}
        for name in sorted(os.listdir(folder)):
            _sync(os.path.join(folder, name))
            sizes[name] = os.path.getsize(os.path.join(folder, name))
        _sync(folder)
        return sizes

    def make_current(self, number: int, parts: list[Files], about: dict[str, Any]) -> WholeSet:
        """Makes a set current, and removes the oldest sets. All parts of the set must be on the disk.

        Args:
          number: of the set.
          parts: what sync() returned for each part, in order.
          about: anything that JSON can hold.

        Raises:
          OSError: the set can't be made current. The sets before it stay.
        """
        writing, path = self._writing(number), self._path(number)
        manifest = os.path.join(writing, _MANIFEST)
        with open(manifest, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "parts": parts, "about": about}, file)
        _sync(manifest)
        _sync(writing)
        os.rename(writing, path)
        _sync(self.directory)
        older = sorted(one for one in self._names() if not one[1].endswith(_WRITING))
        for _, name in older[: -self._keep]:
            self._remove_whole(name)
        return WholeSet(path, number, len(parts), about)

    def drop(self, number: int) -> None:
        """Removes a set that is not to become current. Files that can't be removed stay, and are never used."""
        _remove(self._writing(number))

    def clear(self) -> None:
        """Removes all sets, the newest last, so that a kill meanwhile leaves the newest."""
        for _, name in sorted(self._names()):
            self._remove_whole(name)
        with contextlib.suppress(OSError):  # the directory may have other files
            os.rmdir(self.directory)

    def _names(self) -> Iterator[tuple[int, str]]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        for name in names:
            if matched := _NAME.fullmatch(name):
                yield int(matched[1]), name

    def _whole(self, number: int, name: str) -> Optional[WholeSet]:
        path = os.path.join(self.directory, name)
        try:
            with open(os.path.join(path, _MANIFEST), encoding="utf-8") as file:
                manifest = json.load(file)
            if manifest["format"] > _FORMAT:
                to_do = "Use that version, or another directory"
                raise explained(ValueError, f"a newer version of horovod_data has written the set {path}", to_do)
            if not manifest["parts"] or not isinstance(manifest["about"], dict):
                return None
            for part, files in enumerate(manifest["parts"]):
                for file_name, size in files.items():
                    if os.path.getsize(os.path.join(_part(path, part), file_name)) != size:
                        return None
            return WholeSet(path, number, len(manifest["parts"]), manifest["about"])
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        except (KeyError, TypeError, AttributeError):  # another program has written the manifest
            return None

    def _remove_whole(self, name: str) -> None:
        path = os.path.join(self.directory, name)
        with contextlib.suppress(OSError):
            os.remove(os.path.join(path, _MANIFEST))  # first: without it, the set is not whole
        _remove(path)

    def _path(self, number: int) -> str:
        return os.path.join(self.directory, f"set-{number:08}")

    def _writing(self, number: int) -> str:
        return self._path(number) + _WRITING


def _part(path: str, part: int) -> str:
    return os.path.join(path, f"part-{part}")


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _sync(path: str) -> None:
    """Waits until a file or a folder is on the disk, so that it survives a crash of the host."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
