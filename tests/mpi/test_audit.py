# SPDX-License-Identifier: Apache-2.0
"""hvdata.audit: who saw which row, of loaders that are not ours."""

import collections
import copy
import itertools

import numpy as np
import pytest
import tensorflow as tf
from audits import ROWS, numbers, passed, same
from checkpoints import rest, save, saved, take
from together import attempt, local, plain, raises_everywhere, results

pytestmark = pytest.mark.world(np=2)

Pair = collections.namedtuple("Pair", "x y")


# ---- The elements are unchanged.


def test_elements_of_iterables_are_the_same_objects(hvdata, comm):
    given = [np.arange(3), {"a": [1, 2]}, "text", tf.constant([1.5]), (1, None)]
    audited = hvdata.audit(given)
    for _ in range(2):
        for one, other in zip(given, audited):
            assert one is other
    assert len(audited) == 5
    results(comm, audited.report)
    iterator = hvdata.audit(iter(given))
    assert next(iterator) is given[0] and [id(one) for one in iterator] == [id(one) for one in given[1:]]
    assert results(comm, iterator.report)[0].steps == (5,) * comm.size


DATASETS = {
    "numbers": lambda: tf.data.Dataset.range(10).batch(4),
    "tuple": lambda: tf.data.Dataset.from_tensor_slices((np.arange(6), np.eye(6))).batch(3),
    "one-tuple": lambda: tf.data.Dataset.from_tensor_slices((np.arange(6),)).batch(3),
    "dict": lambda: tf.data.Dataset.from_tensor_slices({"b": [b"x", b"yz"], "a": [1.5, 2.5]}),
    "nested": lambda: tf.data.Dataset.from_tensor_slices(({"i": [1, 2, 3]}, ([4, 5, 6], [7, 8, 9]))).batch(2),
    "namedtuple": lambda: tf.data.Dataset.from_tensor_slices(Pair([1, 2], [3, 4])),
    "ragged": lambda: tf.data.Dataset.range(6).map(lambda i: (i, tf.range(i))).ragged_batch(2),
    "sparse": lambda: tf.data.Dataset.range(4).map(lambda i: tf.sparse.from_dense(tf.one_hot(i, 5))).batch(2),
    "bfloat16": lambda: tf.data.Dataset.range(6).map(lambda i: tf.cast(i, tf.bfloat16)).batch(2),
    "bool": lambda: tf.data.Dataset.range(6).map(lambda i: i % 2 == 0).batch(2),
    "empty": lambda: tf.data.Dataset.range(0),
    "filtered": lambda: tf.data.Dataset.range(20).filter(lambda i: i % 3 == 0),
}


KEYS = {"ragged": 0, "sparse": tf.sparse.to_dense}  # which have no content as a key


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("name", DATASETS)
def test_elements_of_datasets_are_the_same(hvdata, comm, name):
    dataset = DATASETS[name]()
    audited = hvdata.audit(dataset, key=KEYS.get(name))
    assert isinstance(audited, tf.data.Dataset) and audited.element_spec == dataset.element_spec
    assert int(audited.cardinality()) == int(dataset.cardinality())
    elements = results(comm, lambda: [plain(element) for element in local(audited)])
    wanted = [plain(element) for element in local(dataset)]
    assert elements == [wanted] * comm.size
    report = results(comm, audited.report)[0]
    assert report.epoch == 1 and report.steps == (len(wanted),) * comm.size
    for element, other in zip(audited, dataset):
        assert type(element) is type(other)
    again = results(comm, audited.report)[0]
    assert again.epoch == 2 and again.times == report.times and len(audited.reports) == 2


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("key", ["x", 0, np.int64(0), ("x",), (np.int64(0),)], ids=repr)
def test_the_key_is_a_field_of_a_namedtuple(hvdata, comm, key):
    pairs = tf.data.Dataset.from_tensor_slices(Pair([1, 2], [3, 4])).shard(comm.size, comm.rank)
    assert passed(comm, hvdata.audit(pairs, key=key, reference=[1, 2])).verdict == "every row once"
    nested = tf.data.Dataset.zip((pairs, pairs))
    path = (np.int64(1), *(key if isinstance(key, tuple) else (key,)))
    for given in (nested, [tuple(Pair(*map(int, one)) for one in element) for element in nested]):
        assert passed(comm, hvdata.audit(given, key=path, reference=[1, 2])).verdict == "every row once"


class Loader:
    def __iter__(self):
        return iter(range(4))


@pytest.mark.ranks(1, 2)
def test_attributes_are_those_of_what_was_given(hvdata, comm):
    for given in (tf.data.Dataset.range(4), Loader(), tf.compat.v1.data.Dataset.range(4)):
        given.classes, given._own = 10, 20
        audited = hvdata.audit(given)
        assert audited.classes == 10 and hasattr(audited, "report")
        assert not any(hasattr(audited, name) for name in ("_own", "no_such", "make_one_shot_iterator"))
        twin = copy.copy(audited)
        assert twin.classes == 10 and twin._inner is given
        assert passed(comm, twin).distinct == 4


@pytest.mark.ranks(1, 2)
def test_datasets_in_functions_and_behind_other_stages(hvdata, comm):
    mine = tf.data.Dataset.range(comm.rank, ROWS, comm.size).batch(4)
    audited = hvdata.audit(mine, key=same, reference=range(ROWS))

    @tf.function
    def total(dataset):
        return dataset.reduce(np.int64(0), lambda so_far, rows: so_far + tf.reduce_sum(rows))

    assert sum(results(comm, lambda: int(total(audited)))) == ROWS * (ROWS - 1) // 2
    assert results(comm, audited.report)[0].verdict == "every row once"
    for _ in audited.map(lambda rows: rows + 1).repeat(2).prefetch(1):
        pass
    last = results(comm, audited.report)[0]
    assert last.epoch == 3 and [one.verdict for one in audited.reports] == ["every row once"] * 3


# ---- The right way, and published bugs; examples/audit_published_bugs.py has others.


def test_shard_done_right(hvdata, comm, capfd):
    data = tf.data.Dataset.range(ROWS).shard(comm.size, comm.rank).batch(4)
    report = passed(comm, hvdata.audit(data, key=same, reference=tf.data.Dataset.range(ROWS).batch(5)))
    assert report.verdict == "every row once" and report.times == {1: ROWS} and report.reference == ROWS
    comm.Barrier()
    said = capfd.readouterr().err
    assert (": every row once." in said) == (comm.rank == 0), said


@pytest.mark.parametrize("by", ["content", "key"])
def test_every_rank_gets_batch_0(hvdata, comm, by):
    """The bug that this project began with."""
    whole = tf.data.Dataset.from_tensor_slices((np.arange(ROWS), np.eye(ROWS)))
    known = dict(reference=whole) if by == "content" else dict(key=0, reference=ROWS)
    report = passed(comm, hvdata.audit(whole.batch(8).take(1), **known))
    assert report.times == {comm.size: 8} and report.never == ROWS - 8
    assert report.pairs == {pair: 8 for pair in itertools.combinations(range(comm.size), 2)}
    assert ("All ranks saw the same rows" in str(report)) == (comm.size > 1)
    if comm.size > 1:
        assert {seen.rank for seen in report.seen_again[0].seen} == set(range(comm.size))
        assert report.seen_again[0].seen[-1].step == 1


# ---- Epochs.


def test_a_loop_that_is_left(hvdata, comm):
    """A rank that leaves ends its epoch there. The other ranks wait neither for it nor for the report.

    The next iteration ends an epoch, too.
    """
    audited = hvdata.audit(numbers(comm), key=same)
    for _ in range(2):
        for step, _ in enumerate(audited, 1):
            if comm.rank == 0 and step == 2:
                break
    report = results(comm, audited.report)[0]
    whole = -(-len(range(comm.size - 1, ROWS, comm.size)) // 4)
    assert report.epoch == 2 and report.steps[0] == 2 and report.steps[1:] == (whole,) * (comm.size - 1)
    assert [one.rows for one in audited.reports] == [report.rows] * 2 and report.left == (0,)

    dataset = hvdata.audit(tf.data.Dataset.range(ROWS).shard(comm.size, comm.rank), key=same)
    for steps in (2, 3, 1):
        list(dataset.take(steps))
    results(comm, dataset.report)
    assert [one.steps for one in dataset.reports] == [(steps,) * comm.size for steps in (2, 3, 1)]
    assert {one.left for one in dataset.reports} == {tuple(range(comm.size))}


@pytest.mark.ranks(1, 2)
def test_a_checkpoint_where_it_is_allowed(hvdata, comm, path):
    """The audit's state is not saved. So TensorFlow refuses the checkpoint, unless the user allows it."""
    data = tf.data.Dataset.range(ROWS).shard(comm.size, comm.rank)
    refused = iter(hvdata.audit(data))
    raises_everywhere(comm, lambda: save(refused, path), tf.errors.OpError, "PyFunc is stateful")
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    audited = hvdata.audit(data.with_options(options), reference=ROWS)
    iterator = iter(audited)
    take(iterator, 2)
    saved(comm, iterator, path)
    rest(iterator)
    assert results(comm, audited.report)[0].verdict == "every row once"
    iterator = iter(audited)
    tf.train.Checkpoint(iterator=iterator).read(path)
    assert rest(iterator) == list(range(ROWS))[comm.rank :: comm.size][2:]
    report = results(comm, audited.report)[0]
    assert (report.epoch, report.never, report.repeats) == (2, 2 * comm.size, 0)


def test_report_in_the_middle(hvdata, comm):
    """Rows after a report belong to the next epoch."""
    audited = hvdata.audit(iter(numbers(comm, rows=16 * comm.size)), key=same)
    raises_everywhere(comm, audited.report, RuntimeError, r"audit \d+: report\(\) was called before the first epoch")
    next(audited), next(audited)
    assert results(comm, audited.report)[0].rows == (8,) * comm.size
    next(audited)
    assert results(comm, audited.report)[0].rows == (4,) * comm.size
    assert results(comm, audited.report)[0].epoch == 2  # no row has been seen since
    audited.end_epoch()


def test_uneven_steps_with_a_collective_in_the_loop(hvdata, comm):
    """A rank whose epoch is over must go on to the call for which the others wait."""
    for _ in hvdata.audit([0] * (comm.rank + 1)):
        pass
    comm.Barrier()


def test_two_iterations_at_a_time(hvdata, comm):
    audited = hvdata.audit(tf.data.Dataset.range(8))
    one, two = iter(audited), iter(audited)
    next(one), next(two)
    raises_everywhere(comm, lambda: next(one), tf.errors.OpError, "two iterations go on at the same time")
    results(comm, audited.report)
    generator = hvdata.audit([1, 2, 3])
    first = iter(generator)
    next(first), next(iter(generator))
    raises_everywhere(comm, lambda: next(first), RuntimeError, "two iterations go on at the same time")
    results(comm, generator.report)


# ---- Readers, the end of the job.


@pytest.mark.world(np=2, readers=2)
@pytest.mark.readers(1, 2)
@pytest.mark.ranks(1, 2)
def test_a_dedicated_reader_takes_no_part(hvdata, comm):
    def run():
        data = tf.data.Dataset.range(hvdata.rank() or 0, 12, hvdata.size() or 1)
        audited = hvdata.audit(data, key=same, reference=12)
        if not hvdata.is_trainer():
            return audited is data
        return len(list(audited)), audited.report().verdict

    got = results(comm, run)
    readers = hvdata.num_readers()
    trainers = comm.size - readers
    assert got == [(12 // trainers, "every row once")] * trainers + [True] * readers


@pytest.mark.slow
@pytest.mark.alone()
@pytest.mark.ranks(2)
def test_an_epoch_at_the_end_is_reported(hvdata, comm, capfd):
    """shutdown() ends it, and makes its report with the others."""
    audited = hvdata.audit(tf.data.Dataset.range(ROWS), key=same)
    iterator = iter(audited)
    next(iterator)
    comm.Barrier()
    hvdata.shutdown()
    assert [one.rows for one in audited.reports] == [(1, 1)]
    raised = attempt(lambda: hvdata.audit([]))
    assert "after the end of the job" in raised.text
