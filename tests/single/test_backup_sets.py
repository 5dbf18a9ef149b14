# SPDX-License-Identifier: Apache-2.0
"""Sets of files that ranks save together: a set is whole, or it is not used, wherever a process was killed."""

import json
import os
import shutil
from pathlib import Path

import pytest

from horovod_data.backup import sets
from horovod_data.backup.sets import Sets

PARTS = 2


def write(kept, number, text="data", parts=PARTS):
    """Writes the parts of a set, and returns their files."""
    for part in range(parts):
        Path(kept.folder(number, part), "file").write_text(f"{text} {number} {part}")
    return [kept.sync(number, part) for part in range(parts)]


def save(kept, step):
    number = kept.next_number()
    return kept.make_current(number, write(kept, number), {"step": step})


@pytest.fixture
def kept(tmp_path):
    return Sets(str(tmp_path / "sets"))


def step_of(directory):
    """The step of the newest set, whose files are all there. None: there is no set."""
    found, _ = Sets(directory).newest()
    if found is None:
        return None
    for part in range(found.parts):
        assert Path(found.part(part), "file").read_text() == f"data {found.number} {part}"
    return found.about["step"]


def test_a_directory_without_sets(kept):
    assert kept.newest() == (None, [])
    assert kept.next_number() == 1
    kept.clean()
    kept.clear()
    os.makedirs(kept.directory)
    Path(kept.directory, "notes.txt").write_text("of somebody else")
    assert kept.newest() == (None, [])
    kept.clear()
    assert os.listdir(kept.directory) == ["notes.txt"]


def test_the_newest_set_is_found_and_the_last_ones_are_kept(tmp_path):
    kept = Sets(str(tmp_path), keep=3)
    for step in range(1, 13):
        made = save(kept, step)
        assert kept.newest() == (made, []) and step_of(kept.directory) == step
        assert len(os.listdir(tmp_path)) == min(step, 3)
    assert sorted(os.listdir(tmp_path)) == ["set-00000010", "set-00000011", "set-00000012"]
    kept.clear()
    assert not tmp_path.exists()


def test_numbers_above_eight_digits_are_in_order(kept):
    for number in (99_999_999, 100_000_000):
        kept.make_current(number, write(kept, number), {"step": number})
    assert step_of(kept.directory) == 100_000_000 and kept.next_number() == 100_000_001


def test_a_write_that_was_broken_off(kept):
    """All but the last step of a write is done. test_a_process_may_be_killed_at_every_call() has all other moments."""
    save(kept, 1)
    writing = Path(kept.folder(2, 0)).parent
    (writing / "set.json").write_text(json.dumps({"format": 1, "parts": write(kept, 2), "about": {"step": 2}}))
    found, skipped = kept.newest()
    assert found.about == {"step": 1} and skipped == [writing.name]
    again = Sets(kept.directory)
    assert again.next_number() == 3
    again.clean()
    assert os.listdir(kept.directory) == ["set-00000001"]


class Killed(BaseException):
    """The process dies here."""


CALLS = [(os, "makedirs"), (os, "fsync"), (os, "rename"), (os, "remove"), (os, "rmdir"), (os, "unlink"), (json, "dump")]


def killed_at(monkeypatch, call, run):
    """Runs until the call of this number to the file system, and dies there. Returns whether it has died."""
    left = [call]

    def dying(real):
        def function(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*args, **kwargs)

        return function

    with monkeypatch.context() as patched:
        for module, name in CALLS:
            patched.setattr(module, name, dying(getattr(module, name)))
        patched.setattr(sets, "_remove", lambda path: remove_all(path))
        try:
            run()
        except Killed:
            return True
    return False


def remove_all(path):
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


@pytest.mark.parametrize("what", ["save", "clear"])
def test_a_process_may_be_killed_at_every_call(tmp_path, monkeypatch, what):
    """With the sets of steps 1 and 2 the third is saved, or all are removed. A whole set is found each time."""
    begin = tmp_path / "begin"
    kept = Sets(str(begin))
    save(kept, 1)
    save(kept, 2)
    found = []
    for call in range(100):
        here = str(tmp_path / f"killed {call}")
        shutil.copytree(begin, here)
        if not killed_at(monkeypatch, call, lambda: save(Sets(here), 3) if what == "save" else Sets(here).clear()):
            break
        found.append(step_of(here))
        again = Sets(here)
        again.clean()
        save(again, 4)
        assert step_of(here) == 4
    assert len(found) > 8 and found == sorted(found, key=lambda step: step or 9)
    assert set(found) == ({2, 3} if what == "save" else {2, None})


@pytest.mark.parametrize("text", [
    "[]", "3", "null", '{"format": 1}', '{"format": 1, "parts": [], "about": {}}', '{"format": 1, "parts": [3], "about": {}}',
    '{"format": "x", "parts": [{}], "about": {}}', '{"format": 1, "parts": [{}], "about": []}',
])  # fmt: skip
def test_a_manifest_that_another_program_has_written(kept, text):
    """The set before is used."""
    before, last = save(kept, 1), save(kept, 2)
    Path(last.path, "set.json").write_text(text)
    assert kept.newest() == (before, [os.path.basename(last.path)])


@pytest.mark.parametrize(
    "damage", ["a file is short", "a file is missing", "a part is missing", "the manifest is damaged"]
)
def test_a_damaged_set_is_not_used(kept, damage):
    save(kept, 1)
    path = Path(save(kept, 2).path)
    if damage == "a file is short":
        os.truncate(path / "part-1" / "file", 3)
    elif damage == "a file is missing":
        os.remove(path / "part-0" / "file")
    elif damage == "a part is missing":
        shutil.rmtree(path / "part-1")
    else:
        os.truncate(path / "set.json", 20)
    assert kept.newest()[1] == ["set-00000002"]
    assert step_of(kept.directory) == 1


def test_a_set_of_a_newer_version(kept):
    manifest = Path(save(kept, 1).path, "set.json")
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(
        ValueError, match="a newer version of horovod_data has written the set .*set-00000001. Use that"
    ):
        kept.newest()


def test_a_dropped_set(kept):
    save(kept, 1)
    write(kept, 2)
    kept.drop(2)
    assert os.listdir(kept.directory) == ["set-00000001"]
