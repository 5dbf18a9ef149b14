# SPDX-License-Identifier: Apache-2.0
"""python -m horovod_data.certificate: what it says of two files."""

import json
import os
import subprocess
import sys

import pytest

from horovod_data.certificate import main


def record(epoch=1, digests=(1, 2, 3), **changes):
    rows = 10 * len(digests)
    made = {
        "certificate": 2,
        "channel": "train",
        "epoch": epoch,
        "verdict": "complete",
        "finding": "",
        "batch": "global",
        "schedule": "static",
        "ranks": 2,
        "rows": rows,
        "order": f"{hash(digests) & 0xFFFF:016x}",
        "any_order": f"{sum(digests):016x}",
        "digests": "".join(f"{one:08x}" for one in digests),
    }
    return {**made, **changes}


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records)


@pytest.fixture
def said(tmp_path, capsys):
    """Compares two files of these records or this text. Returns the status and the output."""

    def run(a, b):
        files = tmp_path / "a.json", tmp_path / "b.json"
        for file, records in zip(files, (a, b)):
            file.write_text(lines(*records) if isinstance(records, list) else records)
        status = main([str(file) for file in files])
        out, err = capsys.readouterr()
        return status, out + err

    return run


CUT = {"verdict": "not complete"}
SAME = "channel train, epoch 1: the same 30 rows in the same order"


@pytest.mark.parametrize("a, b, status, text", [
    ([record()], [record(ranks=4)], 0, f"{SAME}\n"),
    ([record()], [record(digests=(1, 3, 2))], 1, "the same 30 rows in another order; the first element that differs is number 1"),
    # The digest of the order is equal.
    ([record()], [record(any_order="0")], 1, "epoch 1: other rows: 30 and 30; no difference in the first 3 elements"),
    ([record()], [record(digests=(1, 2, 3, 4))], 1,
     "other rows: 30 and 40; the second goes on where the other ends, with element 3"),
    ([record()], [record(verdict="wrong", finding="1 row lost")], 1, "the second is wrong itself: 1 row lost"),
    ([record()], [record(**CUT)], 1, f"{SAME}; the second is not complete\n"),
    ([record(**CUT)], [record()], 1, f"{SAME}; the first is not complete\n"),
    ([record(**CUT)], [record(**CUT)], 0, f"{SAME}; neither epoch is complete\n"),
    ([record(**CUT)], [record(digests=(1, 2, 3, 4))], 1, "with element 3; the first is not complete\n"),
    ([record(rows=1)], [record(rows=1)], 0, "the same 1 row in the same order"),
    # The later record of an epoch counts.
    ([record(digests=(7,)), record()], [record()], 0, "the same 30 rows in the same order"),
    ([record()], [record(digests=(1, 2), **CUT), record(ranks=4)], 0,
     "channel train, epoch 1 (the last of 1 record and of 2): the same 30 rows in the same order\n"),
    ([record(), record(epoch=2)], [record()], 1, "epoch 2: only in"),
    ([record(digests="")], [record(order="0")], 1, "other rows"),
    # A name is no command to the terminal.
    ([record(channel="\x1b[2Jtrain")], [record(channel="\x1b[2Jtrain")], 0, "channel \\x1b[2Jtrain, epoch 1"),
])  # fmt: skip
def test_two_runs(said, a, b, status, text):
    got, told = said(a, b)
    assert got == status and text in told, told
    assert "\x1b" not in told


def test_a_name_that_is_distributed_again(said):
    """The epochs of such a name count from 1 again. All records are compared."""
    again = [record(), record(digests=(4, 5))]
    status, text = said(again, [record(digests=(1, 3, 2)), record(digests=(4, 5))])
    assert status == 1 and "epoch 1 (record 1 of 2): the same 30 rows in another order" in text
    assert "epoch 1 (record 2 of 2): the same 20 rows in the same order\n" in text
    assert said(again, again)[0] == 0


@pytest.mark.parametrize("a, b, status", [((1,), (1, 2), 0), ((), (1, 2), 0), ((1,), (1, 3), 1)],
                         ids=["further", "not at all", "elsewhere"])  # fmt: skip
def test_two_runs_that_continued_from_their_checkpoints(said, a, b, status):
    """The runs were interrupted at different places of one epoch. What the later record lacks is compared."""
    got, text = said([record(digests=a, **CUT), record()], [record(digests=b, **CUT), record()])
    assert got == status and text.endswith("epoch 1 (record 2 of 2): the same 30 rows in the same order\n"), text
    continued = "(record 1 of 2): not complete, and the next record continues it, in both files\n" in text
    assert continued == (status == 0), text


# ---- Files that are no certificates.

NO_RECORD = {
    "nothing": ("", "no record"),
    "another text": ("nonsense\n", "Name a file that HOROVOD_DATA_CERTIFICATE"),
    "nothing but the number": ('{"certificate": 2, "channel": "train", "epoch": 1}', "line 1 of"),
    "no field but the number": ('{"certificate": 1}\n', "no record"),
    "a field of another type": (json.dumps(record(epoch="1")), "(its epoch is '1')"),
    "truth for a number": (json.dumps(record(epoch=True)), "is no record of a certificate"),
    "a list": ("[1, 2]", "is no record of a certificate"),
    "no end of lists": ("[" * 100000, "is no record of a certificate"),
    "another verdict": (json.dumps(record(verdict="fine")), "is no record of a certificate"),
    "another version": (json.dumps(record(certificate=1)), "of version 1, not 2"),
    **{
        f"no {name}": (json.dumps({**record(), name: None}).replace(f'"{name}": null', '"x": 0'), f"(it has no {name})")
        for name in ("verdict", "digests", "certificate")
    },
}


@pytest.mark.parametrize("what", NO_RECORD)
def test_what_is_no_certificate(said, what):
    text, says = NO_RECORD[what]
    status, told = said([record()], text)
    assert status == 2 and "b.json" in told and says in told, told


def test_files_that_can_not_be_read(tmp_path, capsys):
    (tmp_path / "saved").write_bytes(bytes(range(256)))
    for path in "/nowhere/a", str(tmp_path / "saved"):
        assert main([path] * 2) == 2
        assert path in capsys.readouterr().err


def test_a_file_that_is_cut_or_changed_is_refused_or_differs(said):
    """One byte after another: a verdict, never a traceback."""
    good = lines(record())
    statuses = set()
    for at in range(0, len(good) - 1, 3):
        for bad in (good[:at], good[:at] + chr(ord(good[at]) ^ 1) + good[at + 1 :]):
            statuses.add(said(bad, [record()])[0])
    assert statuses == {0, 1, 2}  # 0: where it says nothing that is compared


# ---- Output.


@pytest.mark.parametrize("redirection, status, error", [
    (">&-", 0, ""),
    (">/dev/full", 2, "can't be written: No space left"),
    ("| head -1", 2, ""),
])  # fmt: skip
def test_an_output_that_takes_nothing(tmp_path, redirection, status, error):
    """A result that can't be written is neither equal nor different."""
    file = tmp_path / "a.json"
    file.write_text(lines(*(record(epoch=i) for i in range(3000))))
    command = f"set -o pipefail; {sys.executable} -m horovod_data.certificate {file} {file} {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == status and "Traceback" not in done.stderr and error in done.stderr, done
    assert bool(done.stderr) == bool(error), done


def test_a_name_that_stdout_cannot_show(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(lines(record(channel="\u8bad")))
    command = [sys.executable, "-m", "horovod_data.certificate", file, file]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "channel \\u8bad, epoch 1: the same 30 rows" in done.stdout, done
