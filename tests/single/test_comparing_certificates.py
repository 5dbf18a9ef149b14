# SPDX-License-Identifier: Apache-2.0
"""python -m horovod_data.certificate: what it says of two files."""

import json
import os
import re
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


@pytest.fixture
def said(tmp_path, capsys):
    def run(a, b):
        files = []
        for name, records in (("a", a), ("b", b)):
            files.append(tmp_path / f"{name}.json")
            files[-1].write_text(
                "".join(json.dumps(one) + "\n" for one in records) if isinstance(records, list) else records
            )
        status = main([str(file) for file in files])
        out, err = capsys.readouterr()
        return status, out + err

    return run


def test_equal(said):
    assert said([record()], [record(ranks=4)]) == (0, "channel train, epoch 1: the same 30 rows in the same order\n")


def test_another_order(said):
    status, text = said([record()], [record(digests=(1, 3, 2))])
    assert (
        status == 1 and "the same 30 rows in another order; the first element that differs is number 1 (step 1)" in text
    )


def test_other_rows_though_the_digest_of_their_order_is_the_same(said):
    status, text = said([record()], [record(any_order="0")])
    assert status == 1 and "epoch 1: other rows: 30 and 30; no difference in the first 3 elements" in text


def test_another_version(said):
    status, text = said([record()], [record(certificate=1)])
    assert status == 2 and "b.json" in text and "of version 1, not 2" in text and "with this version" in text


def test_steps_of_per_rank_batches(said):
    changes = {"batch": "per_rank"}
    status, text = said(
        [record(digests=(1, 2, 3, 4, 5), **changes)], [record(digests=(1, 2, 3, 4, 6), ranks=4, **changes)]
    )
    assert status == 1
    assert (
        "other rows: 50 and 50; the first element that differs is number 4 (step 2 of the first, step 1 of the second)"
        in text
    )


@pytest.mark.parametrize("changes, differ, text", [
    ({}, {1}, "number 1 (step 1)"),  # reader 1's first
    ({}, {2}, "number 2 (step 0)"),  # reader 0's second, for the other rank
    ({}, {1, 2}, "number 2 (step 0)"),
    ({}, {4}, "number 4 (step 2)"),
    ({"batch": "global"}, {3}, "number 3 (step 3)"),
    ({"readers_per_node": True}, {1}, "number 1 (step 0)"),
    ({"readers_per_node": True}, {2, 3}, "number 2 (step 1)"),
    ({"schedule": "dynamic"}, {3}, "number 3 (step 3)"),
])  # fmt: skip
def test_steps_of_several_readers(said, changes, differ, text):
    changes = {"batch": "per_rank", "readers": 2, "readers_per_node": False, **changes}
    one, other = range(1, 9), [50 + i if i in differ else i + 1 for i in range(8)]
    status, words = said([record(digests=tuple(one), **changes)], [record(digests=tuple(other), **changes)])
    assert status == 1 and f"the first element that differs is {text}" in words


@pytest.mark.parametrize("had", [[5, 5, 2, 2], [5, 5]])  # restored on more ranks, and on fewer
def test_no_step_of_an_epoch_whose_steps_differed(said, had):
    same = {"batch": "per_rank", "steps_per_rank": [7, 7]}
    changed = {"batch": "per_rank", "steps_per_rank": had, "ranks": 4 if len(had) == 4 else 1}
    status, words = said([record(digests=(1, 2, 3, 4), **same)], [record(digests=(1, 2, 3, 5), **changed)])
    assert status == 1 and "the first element that differs is number 3 (step 1 of the first)" in words
    changed["verdict"] = "not complete" if len(had) == 2 else "complete"
    status, words = said([record(digests=(1, 2, 3, 4), **changed)], [record(digests=(1, 2, 3, 5), **changed)])
    assert status == 1 and re.search(r"the first element that differs is number 3(;|$)", words.rstrip()), words


def test_one_that_goes_on(said):
    status, text = said([record()], [record(digests=(1, 2, 3, 4))])
    assert (
        status == 1
        and "other rows: 30 and 40; the second goes on where the other ends, with element 3 (step 3)" in text
    )


def test_one_that_is_wrong(said):
    status, text = said([record()], [record(verdict="wrong", finding="1 row lost")])
    assert status == 1 and "the second is wrong itself: 1 row lost" in text


CUT = {"verdict": "not complete"}


@pytest.mark.parametrize("a, b, status, text", [
    ({}, CUT, 1, "the same 30 rows in the same order; the second is not complete\n"),
    (CUT, {}, 1, "the same 30 rows in the same order; the first is not complete\n"),
    (CUT, CUT, 0, "the same 30 rows in the same order; neither epoch is complete\n"),
    (CUT, {"digests": (1, 2, 3, 4)}, 1, "with element 3 (step 3); the first is not complete\n"),
], ids=["second", "first", "both", "other rows"])  # fmt: skip
def test_an_epoch_that_is_not_complete(said, a, b, status, text):
    got, line = said([record(**a)], [record(**b)])
    assert got == status and line.endswith(text), line


def test_one_row(said):
    assert "the same 1 row in the same order" in said([record(rows=1)], [record(rows=1)])[1]


def test_the_later_record_of_an_epoch_counts(said):
    assert said([record(digests=(7,)), record()], [record()])[0] == 0


def test_a_name_that_is_distributed_again(said):
    """Its epochs count from 1 again: all records are compared."""
    again = [record(), record(digests=(4, 5))]
    status, text = said(again, [record(digests=(1, 3, 2)), record(digests=(4, 5))])
    assert status == 1 and "epoch 1 (record 1 of 2): the same 30 rows in another order" in text
    assert "epoch 1 (record 2 of 2): the same 20 rows in the same order\n" in text
    assert said(again, again)[0] == 0


@pytest.mark.parametrize("a, b, status", [((1,), (1, 2), 0), ((), (1, 2), 0), ((1,), (1, 3), 1)],
                         ids=["further", "not at all", "elsewhere"])  # fmt: skip
def test_two_runs_that_went_on_from_their_checkpoints(said, a, b, status):
    """Interrupted at different places of one epoch; what the later record does not have is compared."""
    got, text = said([record(digests=a, **CUT), record()], [record(digests=b, **CUT), record()])
    assert got == status and text.endswith("epoch 1 (record 2 of 2): the same 30 rows in the same order\n"), text
    assert ("(record 1 of 2): not complete, and the next record goes on with it, in both\n" in text) == (status == 0), (
        text
    )


def test_an_interrupted_run_beside_one_that_was_not(said):
    status, text = said([record()], [record(digests=(1, 2), **CUT), record(ranks=4)])
    assert (status, text) == (
        0,
        "channel train, epoch 1 (the last of 1 record and of 2): the same 30 rows in the same order\n",
    )


def test_an_epoch_of_one_run_alone(said):
    status, text = said([record(), record(epoch=2)], [record()])
    assert status == 1 and "epoch 2: only in" in text and "a.json" in text


@pytest.mark.parametrize("bad", ["", "nonsense\n", '{"certificate": 1}\n', "[]\n"])
def test_no_certificate(said, bad):
    status, text = said([record()], bad)
    assert status == 2 and "b.json" in text and ("no record" in text)


def test_no_file(capsys):
    assert main(["/nowhere/a", "/nowhere/b"]) == 2
    assert "/nowhere/a" in capsys.readouterr().err


HOSTILE = {
    "nothing but the number": '{"certificate": 2, "channel": "train", "epoch": 1}',
    "a field of another type": json.dumps(record(ranks="2")),
    "ranks that are none": json.dumps(record(ranks=-1, batch="per_rank")),
    "truth for a number": json.dumps(record(epoch=True)),
    "a list": "[1, 2]",
    "no end of lists": "[" * 100000,
    "not a text": "\\x00\\xff",
    "another verdict": json.dumps(record(verdict="fine")),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_certificate(said, what):
    status, text = said(HOSTILE[what], [record()])
    assert status == 2 and "line 1 of" in text and "is no record of a certificate" in text


@pytest.mark.parametrize("without", ["verdict", "digests", "certificate"])
def test_a_field_that_is_missing_is_named(said, without):
    status, text = said([record()], json.dumps({name: value for name, value in record().items() if name != without}))
    assert status == 2 and f"(it has no {without})" in text and "Name a file that HOROVOD_DATA_CERTIFICATE" in text


def test_a_field_of_another_type_is_shown(said):
    status, text = said([record()], [record(epoch="1")])
    assert status == 2 and "(its epoch is '1')" in text and "b.json" in text


def test_a_binary_file_is_named(tmp_path, capsys):
    (tmp_path / "saved").write_bytes(bytes(range(256)))
    assert main([str(tmp_path / "saved")] * 2) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "saved") in said and "Name a file that HOROVOD_DATA_CERTIFICATE" in said


def test_a_file_that_is_cut_or_changed_is_refused_or_differs(said):
    """One byte after another: a verdict, never a traceback."""
    good = json.dumps(record()) + "\n"
    statuses = set()
    for at in range(0, len(good) - 1, 3):
        for bad in (good[:at], good[:at] + chr(ord(good[at]) ^ 1) + good[at + 1 :]):
            statuses.add(said(bad, [record()])[0])
    assert statuses == {0, 1, 2}  # 0: where it says nothing that is compared


def test_zero_ranks_and_no_digests(said):
    assert said([record(ranks=0, batch="per_rank", digests="")], [record(order="0")])[0] == 1


def test_a_name_is_no_command_to_the_terminal(said):
    _, text = said([record(channel="\x1b[2Jtrain")], [record(channel="\x1b[2Jtrain")])
    assert "\x1b" not in text and "channel \\x1b[2Jtrain, epoch 1" in text


def test_stdout_that_is_closed_from_the_beginning(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(record()) + "\n")
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m horovod_data.certificate {file} {file} >&-"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done


@pytest.mark.parametrize("out", ["full", "closed"])
def test_what_can_not_be_written_is_neither_equal_nor_not(tmp_path, out):
    file = tmp_path / "a.json"
    file.write_text("".join(json.dumps(record(epoch=i)) + "\n" for i in range(3000)))
    command = f"{sys.executable} -m horovod_data.certificate {file} {file}"
    command = f"{command} >/dev/full" if out == "full" else f"set -o pipefail; {command} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done
    assert ("can't be written: No space left" in done.stderr) == (out == "full"), done


def test_a_name_that_stdout_cannot_show(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(record(channel="\u8bad")) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "horovod_data.certificate", file, file],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0 and "channel \\u8bad, epoch 1: the same 30 rows" in done.stdout, done
