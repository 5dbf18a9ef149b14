# SPDX-License-Identifier: Apache-2.0
"""The parts of an audit, in one process: counting, the record of an epoch, the report's texts.

Keys are in test_audit_keys.py.
"""

import collections
import itertools

import numpy as np
import pytest

from horovod_data.auditing import counting, keys, record
from horovod_data.auditing.iterables import audited_iterable
from horovod_data.auditing.record import Epoch, Recorder
from horovod_data.auditing.report import Example, Report, Seen, share


def words(values):
    return keys.given_keys(np.asarray(values, np.int64)).words


def in_parts(words):
    return words[keys.in_parts(words, 1)[0]]


def table(reference):
    """The form that count() takes."""
    if reference is None:
        return None
    return in_parts(np.column_stack([words(reference), np.arange(len(reference), dtype=np.uint64)]))


# ---- Counting, against the obvious way.


def obvious(received, reference):
    seen = collections.Counter(itertools.chain(*received))
    wanted = collections.Counter(reference if reference is not None else ())
    ranks = range(len(received))
    pairs = {(a, b): len(set(received[a]) & set(received[b])) for a in ranks for b in ranks if a < b}
    pairs.update({(a, a): sum(1 for n in collections.Counter(received[a]).values() if n > 1) for a in ranks})
    return dict(
        times=dict(sorted(collections.Counter(seen.values()).items())),
        distinct=len(seen),
        never=sum(max(0, m - seen[k]) for k, m in wanted.items()),
        repeats=sum(max(0, n - max(1, wanted[k])) for k, n in seen.items()),
        unknown=len(set(seen) - set(wanted)) if reference is not None else 0,
        own=[len(set(one)) for one in received],
        pairs={pair: rows for pair, rows in pairs.items() if rows},
    )


@pytest.mark.parametrize("seed", range(30))
def test_counting(seed, monkeypatch):
    if seed % 5 < 3:
        monkeypatch.setattr(counting, "_CELLS", 40)
    random = np.random.default_rng(seed)
    received = [
        random.integers(-5, random.integers(0, 40), random.integers(0, 60)).tolist()
        for _ in range(random.integers(1, 6))
    ]
    reference = random.integers(0, 40, 50).tolist() if seed % 3 else None
    found = counting.count([in_parts(words(one)) for one in received], table(reference))
    wanted = obvious(received, reference)
    assert found.times == wanted["times"] and found.own.tolist() == wanted["own"]
    assert found.sums.tolist() == [wanted["never"], wanted["repeats"]]
    assert (sum(found.times.values()), sum(found.strange.values())) == (wanted["distinct"], wanted["unknown"])
    pairs = {(a, b): int(found.pairs[a, b]) for a, b in np.argwhere(np.triu(found.pairs)).tolist()}
    assert pairs == wanted["pairs"]
    for word0, word1, _, times in found.repeated:
        assert sum(one.count(keys.shown(word0, word1)) for one in received) == times
    for word0, word1, *_ in found.never:
        assert keys.shown(word0, word1) in set(reference) - set(itertools.chain(*received))


# ---- The record.


def test_places_in_an_epoch():
    epoch = Epoch(1)
    for rows in (3, 0, 2):
        epoch.add(keys.given_keys([f"{rows}.{i}" for i in range(rows)]))
    assert (epoch.steps, epoch.rows, epoch.words().shape) == (3, 5, (5, 2))
    assert [epoch.place(i) for i in range(5)] == [(1, 0), (1, 1), (1, 2), (3, 0), (3, 1)]
    assert epoch.names.get(4) == "2.1" and counting.positions(epoch.words(), epoch.words()[4]) == [4]


def failing():
    yield [1, 2]
    raise OSError("no such\nfile")


class Silent(Exception):
    def __str__(self):
        raise ValueError


def silent():
    raise Silent(1, 2)
    yield


class Loader:
    """Its `__iter__` begins again and returns the loader itself, as in many loaders."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == self.rows:
            raise StopIteration
        self.at += 1
        return [self.at]

    def __len__(self):
        return self.rows


class Apart(Loader):
    """Its `__iter__` returns another object."""

    def __iter__(self):
        return iter([[i] for i in range(1, self.rows + 1)])


class Failing:
    __iter__ = staticmethod(failing)


class NoStart(Loader):
    def __iter__(self):
        raise OSError("no such file")


class Once(Loader):
    """Its `__iter__` does not begin again."""

    at = 0

    def __iter__(self):
        return self


def finish(recorder):
    """All epochs that have ended get their reports."""
    recorder.close_for_good()
    recorder.thread.join()


@pytest.fixture
def recorder():
    made = Recorder("audit 1", lambda rows: rows, lambda epoch: epoch, announce=False)
    yield made
    finish(made)


def reports(recorder):
    """The epochs that have ended."""
    finish(recorder)
    return [(epoch.rows, epoch.error) for epoch in recorder.reports]


@pytest.mark.parametrize("form, rows, error", [
    (Failing, 2, "OSError: no such file"), (failing, 2, "OSError: no such file"),
    (lambda: NoStart(3), 0, "OSError: no such file"), (silent, 0, "Silent: (its text can't be had: ValueError)"),
], ids=["iterable", "generator", "its __iter__", "an error without a text"])  # fmt: skip
def test_an_error_ends_an_epoch(recorder, form, rows, error):
    with pytest.raises((OSError, Silent)):
        list(audited_iterable(form(), recorder))
    assert recorder.steps == 0  # the next one has not begun
    assert reports(recorder) == [(rows, error)]


def test_an_epoch_that_the_garbage_collector_ends_while_it_ends_counts_once(recorder, monkeypatch):
    class Collected(record.Epoch):
        def __init__(self, number):
            recorder.end(whole=False)
            super().__init__(number)

    list(audited_iterable([[1, 2, 3]], recorder))
    iterator = iter(audited_iterable([[4]], recorder))
    next(iterator)
    monkeypatch.setattr(record, "Epoch", Collected)
    recorder.end()
    monkeypatch.undo()
    assert reports(recorder) == [(3, None), (1, None)]


@pytest.mark.parametrize("forgiven", [False, True])
@pytest.mark.parametrize("form", [list, iter])
def test_a_key_that_cant_be_made_ends_an_epoch(recorder, form, forgiven):
    """With --audit the error is forgiven. All elements pass, and the audit has the elements before the error."""
    audited = audited_iterable(form([[1, 2, 3], None, [4]]), recorder)
    wrong = "audit 1, epoch 1, step 2: the keys of the rows can't be made"
    if forgiven:
        recorder.forgiving = True
        assert list(audited) == [[1, 2, 3], None, [4]]
    else:
        with pytest.raises(TypeError, match=wrong):
            list(audited)
    ((rows, error),) = reports(recorder)
    assert rows == 3 and error.startswith(f"TypeError: {wrong}") and len(error) < 230


def test_a_generator_is_one_epoch(recorder):
    audited = audited_iterable(iter([[1], [2]]), recorder)
    assert [len(list(audited)) for _ in range(3)] == [2, 0, 0] and reports(recorder) == [(2, None)]


@pytest.mark.parametrize("kind", [Loader, Apart])
@pytest.mark.parametrize("rows", [0, 3])
def test_a_loader_that_returns_itself_begins_again(kind, rows, recorder):
    given = kind(rows)
    iter(given)
    audited = audited_iterable(given, recorder)
    assert [list(audited) for _ in range(3)] == [list(kind(rows))] * 3 and len(audited) == rows
    assert reports(recorder) == [(rows, None)] * 3


def test_a_loop_that_is_left_is_no_error(recorder):
    audited = audited_iterable(Loader(3), recorder)
    for _ in range(2):
        for step, row in enumerate(audited, 1):
            assert row == [step]
            if step == 2:
                break
    assert len(list(audited)) == 3
    for _ in audited_iterable(iter([[1], [2]]), recorder):
        break
    finish(recorder)
    found = [(epoch.rows, epoch.whole, epoch.error) for epoch in recorder.reports]
    assert found == [(2, False, None), (2, False, None), (3, True, None), (1, False, None)]


def test_an_iterator_written_in_python_continues_after_a_loop_that_was_left(recorder):
    audited = audited_iterable(Once(5), recorder)
    next(audited)
    for _ in audited:
        break
    assert list(audited) == [[3], [4], [5]] and reports(recorder) == [(5, None)]


def test_a_generator_that_is_garbage_ends_its_epoch_under_the_recorders_lock(recorder):
    """The garbage collector may run on a thread that holds the lock."""
    loop = iter(audited_iterable([[1], [2]], recorder))
    next(loop)
    with recorder._lock:
        del loop
    assert reports(recorder) == [(1, None)]


def test_an_epoch_after_the_end_has_no_report(recorder):
    """An earlier epoch still has its report."""
    audited = audited_iterable([[1], [2]], recorder)
    list(audited)
    finish(recorder)
    assert audited.report().rows == 2
    list(audited)
    with pytest.raises(RuntimeError, match=r"report\(\) was called after horovod_data.shutdown\(\), for epoch 2"):
        audited.report()


# ---- Texts.


def report(received, reference=None, **more):
    """The report of a job whose ranks saw these numbers in one step each, without the exchange."""
    found = counting.count([words(one) for one in received], table(reference))
    known = reference is not None
    values = dict(
        name="audit 1",
        epoch=1,
        steps=(1,) * len(received),
        rows=tuple(map(len, received)),
        distinct_by_rank=tuple(found.own.tolist()),
        never=int(found.sums[0]) if known else None,
        unknown=sum(found.strange.values()) if known else None,
        repeats=int(found.sums[1]),
        reference=len(reference) if known else None,
        times=found.times,
        times_unknown=found.strange,
        pairs={(int(a), int(b)): int(found.pairs[a, b]) for a, b in np.argwhere(np.triu(found.pairs))},
        by_content=False,
    )
    return Report(**{**values, **more})


ONCE = """\
audit 1, epoch 1: every row once.
  seen   rows    share
  never     0    0.0 %
  once    100  100.0 %

  rank    steps  rows  different
  0 to 1      1    50         50"""


def test_every_row_once():
    one = report([range(0, 100, 2), range(1, 100, 2)], range(100))
    assert one.ok and one.once == 100 and one.pairs == {} and str(one) == ONCE


UNKNOWN = "no row more than once (only reference= can show whether some are missing)"
HALF = [range(0, 3), range(6, 9)]
FAILED = {0: "KeyError: a", 1: "KeyError: a"}
EXAMPLES = dict(seen_again=(Example(1, 2, (Seen(0, 1, 0), Seen(0, 2, 0))),), never_seen=(Example(0, 0),))


@pytest.mark.parametrize("received, reference, more, verdict, sentences", [
    ([[1, 2], [3]], None, {}, UNKNOWN, []),
    ([[1, 2, 3]] * 3, range(6), {}, "50.0 % of the rows were never seen; 50.0 % of the rows were seen more than once",
     ["All ranks saw the same rows: nothing gives each rank its own part of them.",
      "Ranks that saw the same: 0 and 1 3 rows; 0 and 2 3 rows; 1 and 2 3 rows."]),
    ([[0, 4, 8], [3, 7, 11]], range(12), {}, "50.0 % of the rows were never seen",
     ["The 2 ranks together saw about 1/2 of the rows, none twice"]),
    # Shares are those of a reference that has rows twice, and such a row may come twice.
    ([[5, 5]], [5, 5, 6], {}, "33.3 % of the rows were never seen", ["never       1  33.3 %"]),
    ([[5, 6], [5]], [5, 5, 6], {}, "every row once", []),
    ([[5, 6]], [5, 5, 6], {}, "33.3 % of the rows were never seen", []),
    ([[1, 1, 2, 77], [3, 2]], range(4), dict(steps=(4, 1), **EXAMPLES),
     "25.0 % of the rows were never seen; 50.0 % of the rows were seen more than once; 1 row that is not in the reference came",
     ["The ranks did not make the same number of steps: 1 to 4.", "Rank 0 saw 1 row more than once itself.",
      "Seen again: 1 (rank 0 in step 1, row 0; rank 0 in step 2, row 0).", "Never seen: 0."]),
    # Strangers have no share of the reference.
    ([[1, 2, 77], [77, 78, 2]], range(4), {},
     "50.0 % of the rows were never seen; 25.0 % of the rows were seen more than once; "
     "2 rows that are not in the reference came, 1 of them more than once",
     ["  once                     1  25.0 %\n  2 times                  1  25.0 %\n  not in the reference     2\n"]),
    ([[1, 2], [3]], range(1, 4), dict(errors={1: "OSError: no such file"}),
     "an error ended the epoch on rank 1; up to there every row once",
     ["Rank 1's epoch was ended after 1 step by OSError: no such file."]),
    ([[], []], None, dict(steps=(0, 0), errors=FAILED), "an error ended the epoch on all ranks; up to there no rank saw a row", []),
    ([[i] for i in range(7)], None, dict(errors={i: "KeyError: a" for i in range(5)}), f"an error ended the epoch on 5 ranks; up to there {UNKNOWN}",
     ["ended the epoch on 5 ranks", "1 rank more had an error."]),
    ([[], []], None, {}, "no rank saw a row", []),
    ([[], []], range(3), {}, "100.0 % of the rows were never seen", []),
])  # fmt: skip
def test_texts(received, reference, more, verdict, sentences):
    one = report(received, reference, **more)
    assert one.verdict == verdict
    assert all(sentence in str(one) for sentence in sentences), str(one)
    assert one.ok == (verdict in ("every row once", UNKNOWN, "no rank saw a row"))


@pytest.mark.parametrize("received, more", [
    (HALF, dict(errors={1: "OSError: no such file"})), (HALF, dict(left=(0, 1))), ([range(100, 103), range(106, 109)], {})],
    ids=["error", "left", "unknown"])  # fmt: skip
def test_half_of_the_rows_are_not_always_sharded_twice(received, more):
    one = report(received, range(12), **more)
    assert "sharded twice" not in str(one) and "The 2 ranks together saw" not in str(one)
    assert ("On all ranks the epoch ended before the loader did" in str(one)) == ("left" in more)


@pytest.mark.parametrize("part, whole, text", [
    (0, 5, "0.0 %"), (5, 5, "100.0 %"), (1, 10**6, "< 0.1 %"), (999999, 10**6, "> 99.9 %"), (36, 100, "36.0 %"),
    (0, 0, "0.0 %")])  # fmt: skip
def test_shares(part, whole, text):
    assert share(part, whole) == text


def test_no_thread_for_an_audit(monkeypatch):
    """The audit raises, and the end of the program waits for nothing."""
    monkeypatch.setattr(record, "start_thread", lambda thread: (_ for _ in ()).throw(RuntimeError("no more threads")))
    before = list(record._live)
    with pytest.raises(RuntimeError, match="no more threads"):
        Recorder("audit", lambda rows: rows, lambda epoch: None, False)
    assert record._live == before
