# SPDX-License-Identifier: Apache-2.0
"""hvdata.audit: which row is which, which rows there should be, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from audits import ROWS, numbers, passed, same
from together import outcomes, raises_everywhere, results

pytestmark = pytest.mark.world(np=1)


def test_a_loader_that_python_counts_through(hvdata, comm):
    """The loader has no __iter__, so Python calls its __getitem__."""

    class Loader:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == len(self):
                raise IndexError
            return np.array([index * comm.size + comm.rank])

    audited = hvdata.audit(Loader(), key=same, reference=4 * comm.size)
    assert len(audited) == 4 and passed(comm, audited).verdict == "every row once"


@pytest.mark.world(np=3)
@pytest.mark.parametrize("reference", [
    ROWS, range(ROWS), set(range(ROWS)), np.arange(ROWS), list(range(ROWS)), lambda: ROWS, lambda: range(ROWS),
    lambda: (np.arange(i, i + 6) for i in range(0, ROWS, 6)), "dataset"],
    ids=["count", "range", "set", "array", "list", "fn of count", "fn of keys", "fn of generator", "dataset"])  # fmt: skip
@pytest.mark.ranks(1, 3)
def test_references(hvdata, comm, reference, request, monkeypatch):
    """Only rank 0 reads the reference, also if other ranks pass one. It sends a large one in parts."""
    monkeypatch.setattr("horovod_data.auditing.reference._CHUNK", 10)
    given = tf.data.Dataset.range(ROWS).batch(5) if isinstance(reference, str) else reference
    other = None if request.node.name.count("fn") == 0 else lambda: 1 / 0
    mine = [rows[rows != 5] for rows in numbers(comm)]
    report = passed(comm, hvdata.audit(mine, key=same, reference=given if comm.rank == 0 else other))
    assert (report.never, report.unknown, report.reference) == (1, 0, ROWS)
    # With a count, the audit doesn't know which row it is.
    counted = isinstance(reference, int) or "fn of count" in request.node.name
    assert [example.key for example in report.never_seen] == ([] if counted else [5])


class Rows:
    """Like datasets of PyTorch and Keras 3, it has no __iter__, and raises no IndexError at its end."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        assert index < ROWS, "beyond the end"
        return np.float32(index), index


@pytest.mark.ranks(1, 2)
def test_a_reference_whose_elements_are_had_by_their_numbers(hvdata, comm):
    mine = [(rows.astype(np.float32), rows) for rows in numbers(comm)]
    for arguments in (
        dict(reference=Rows()),
        dict(reference=Rows, key=1),
        dict(reference=Rows(), key=lambda row: row[1]),
    ):
        report = passed(comm, hvdata.audit(mine, **arguments))
        assert report.verdict == "every row once" and report.reference == ROWS


@pytest.mark.ranks(1, 2)
def test_a_reference_without_an_end(hvdata, comm):
    data = tf.data.Dataset.range(4)
    for reference in (data.repeat(), lambda: data.repeat()):
        raises_everywhere(
            comm,
            lambda: hvdata.audit([], reference=reference),
            ValueError,
            "reference= is a dataset without an end",
            "without repeat()",
        )
    assert passed(comm, hvdata.audit([np.int64(2)], reference=data.repeat(2))).never == 8 - comm.size


@pytest.mark.world(np=2)
def test_rows_that_are_not_in_the_reference(hvdata, comm):
    audited = hvdata.audit(
        numbers(comm), key=lambda rows: [f"r{row}" for row in rows], reference={f"r{row}" for row in range(40)}
    )
    report = passed(comm, audited)
    assert (report.unknown, report.never) == (ROWS - 40, 0)
    assert {one.key for one in report.not_in_reference} <= {f"r{row}" for row in range(40, ROWS)}


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("reference", [{1.0, 2.0}, {"1", "2"}, {100, 101}], ids=["floats", "texts", "other numbers"])
def test_nothing_that_came_is_in_the_reference(hvdata, comm, reference):
    said = str(passed(comm, hvdata.audit([[1, 2]], key=same, reference=reference)))
    assert "Nothing that came is in the reference.\nKeys can only be equal if they are of one kind" in said, said


@pytest.mark.ranks(1, 2)
def test_vectors_without_a_batch_are_explained(hvdata, comm):
    """A vector has the same axis 0 as a batch of numbers, so the audit takes it for a batch."""
    data = tf.data.Dataset.range(16).map(lambda i: tf.fill([3], i))
    mine = data.shard(comm.size, comm.rank).batch(4)
    report = passed(comm, hvdata.audit(mine, reference=data))
    assert (report.unknown, report.never, report.reference) == (16, 48, 48)
    for line in ("  never                   48  100.0 %", "  not in the reference    16"):
        assert f"\n{line}\n" in str(report), report
    assert "Nothing that came is in the reference." in str(report) and "must be in batches on both sides" in str(report)
    assert passed(comm, hvdata.audit(mine, reference=data.batch(5))).verdict == "every row once"


# ---- What is refused.


@pytest.mark.world(np=3)
@pytest.mark.parametrize("arguments, kind, text", [
    (dict(key=1.5), TypeError, r"key=1\.5 is no key"), (dict(key=()), TypeError, r"key=\(\) is no key"),
    (dict(reference=-1), ValueError, "reference=-1 is less than 0"), (dict(reference="rows"), TypeError, "is no reference"),
    (dict(reference={1, 2}), ValueError, "reference= has keys, but audit.. has no key="),
    *((dict(dataset_or_iterable=given), TypeError, r"audit\(\) was given a") for given in ("text", {"x": 1}, 5, np.zeros(3), None)),
])  # fmt: skip
@pytest.mark.parametrize("where", ["everywhere", "on the last rank"])
@pytest.mark.ranks(1, 3)
def test_wrong_arguments(hvdata, comm, arguments, kind, text, where):
    wrong = where == "everywhere" or comm.rank == comm.size - 1
    call = lambda: hvdata.audit(**{"dataset_or_iterable": [], **(arguments if wrong else {})})
    raises_everywhere(comm, call, kind, text)
    assert passed(comm, hvdata.audit([1, 2], key=same)).distinct == 2


@pytest.mark.world(np=2)
@pytest.mark.ranks(2, 3)
def test_ranks_that_disagree(hvdata, comm):
    key = "a" if comm.rank else 0
    says = ("the ranks disagree", "key='a' on rank", "key=0 on rank 0")
    raises_everywhere(comm, lambda: hvdata.audit([], key=key), ValueError, *says)


def test_a_component_that_is_not_there(hvdata, comm):
    data = tf.data.Dataset.from_tensor_slices({"x": [1, 2]})
    says = "key='id': the dataset's elements have no such component"
    raises_everywhere(comm, lambda: hvdata.audit(data, key="id"), ValueError, says)
    for given, key, kind, says in (
        ([{"x": 1}], "id", KeyError, r"audit \d+, epoch 1, step 1: the keys of the rows can't be made"),
        (data, lambda row: None, tf.errors.OpError, "the keys of the rows can't be made"),
    ):
        audited = hvdata.audit(given, key=key)
        raises_everywhere(comm, lambda audited=audited: list(audited), kind, says)
        report = results(comm, audited.report)[0]
        assert not report.ok and "an error ended the epoch" in report.verdict
        assert set(report.errors) == set(range(comm.size))


@pytest.mark.world(np=2)
def test_a_reference_that_fails(hvdata, comm):
    def reference():
        yield np.arange(3)
        raise OSError("no such folder")

    got = outcomes(comm, lambda: hvdata.audit([], reference=reference))
    for rank, one in enumerate(got):
        assert one.kind is OSError and "no such folder" in one.text, one
        assert rank == 0 or "reading the reference" in one.text
    for given, says in (
        (dict(reference=lambda: "text"), "is no reference. Pass a number of rows"),
        (dict(key=same, reference=[("a", 1), ("b", 2)]),
         "no keys can be made of an element of reference=: the key is a tuple. Make one text"),
        (dict(key=same, reference={("a", 1), ("b", 2, 3)}),
         "a key in reference= is a list, not an array of one kind"),
    ):  # fmt: skip
        raises_everywhere(comm, lambda given=given: hvdata.audit([], **given), TypeError, says)


def test_inside_a_function(hvdata, comm):
    raises_everywhere(
        comm, lambda: tf.function(lambda: hvdata.audit([]) and 1)(), RuntimeError, "called inside tf.function"
    )


@pytest.mark.world(np=3)
def test_each_key_travels_once(hvdata, comm):
    """Like MPI's Alltoallv, an audit sends 16 bytes for each key, to the rank that counts the key.

    An N-th of the keys stays on its own rank. tests/soak/audit_memory.py measures the memory of an audit.
    """
    rows = 60_000
    mine = np.array_split(np.arange(comm.rank, rows, comm.size), 10)
    audited = hvdata.audit(mine, key=same, reference=rows)

    def sent():
        counters = hvdata.stats()
        return sum(counters[f"payload_bytes_{way}"] for way in ("inline", "arena", "message"))

    before = sum(results(comm, sent))
    assert passed(comm, audited).verdict == "every row once"
    keys = 16 * rows * (comm.size - 1) / comm.size
    more = 16_000 * comm.size**2  # each rank sends its counts to all ranks, however many rows there are
    assert 0.95 * keys <= sum(results(comm, sent)) - before <= 1.05 * keys + more
