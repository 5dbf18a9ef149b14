# SPDX-License-Identifier: Apache-2.0
"""batch x schedule x remainder against the oracle, on pipelines of any length and batches of any size."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from oracle import deliver, dropped, equal, is_dynamic_delivery
from together import elements, on_reader, results, same_on_all_ranks, written

pytestmark = pytest.mark.world(np=3)

REMAINDERS = ["drop", "partial", "pad", "repeat"]


def batch_of(first: int, rows: int):
    """Rows with their numbers, in components of several kinds. Large components travel as messages."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    return {
        "id": ids,
        "text": np.array([b"row %d\0" % i for i in ids], object),
        "x": (np.repeat(ids[:, None], 3, axis=1).astype(np.float32),),
    }


def batches_of(rows_of_batches):
    starts = itertools.accumulate(rows_of_batches, initial=0)
    return [batch_of(first, rows) for first, rows in zip(starts, rows_of_batches)]


SPEC = {
    "id": tf.TensorSpec([None], tf.int64),
    "text": tf.TensorSpec([None], tf.string),
    "x": (tf.TensorSpec([None, 3], tf.float32),),
}


def source_of(batches):
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SPEC)


def delivers(hvdata, comm, batches, epochs=2, **arguments):
    """Asserts that each rank gets the oracle's rows in every epoch."""
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source_of(batches)), **arguments)
    oracle_arguments = {key: value for key, value in arguments.items() if key in ("batch", "remainder")}
    want = deliver(batches, comm.size, **oracle_arguments)
    for epoch in range(epochs):
        got = elements(comm, ds)
        for rank in range(comm.size):
            mine = [equal(a, b) for a, b in itertools.zip_longest(got[rank], want[rank])]
            assert all(mine), f"epoch {epoch + 1}, rank {rank}: got {got[rank]}, not {want[rank]}"


rows_of_batches = st.lists(st.integers(0, 11), max_size=9)
prefetches = st.sampled_from(["auto", 1, 2, 3, 5, 16])


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(7)
@given(rows=rows_of_batches, prefetch=prefetches)
def test_global(hvdata, comm, remainder, rows, prefetch):
    delivers(hvdata, comm, batches_of(rows), batch="global", remainder=remainder, prefetch=prefetch)


@pytest.mark.world(np=4)
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(7)
@given(rows=rows_of_batches, prefetch=prefetches)
def test_per_rank(hvdata, comm, remainder, rows, prefetch):
    delivers(hvdata, comm, batches_of(rows), batch="per_rank", remainder=remainder, prefetch=prefetch)


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(7)
@given(rows=rows_of_batches, prefetch=prefetches, remainder=st.sampled_from(REMAINDERS))
def test_dynamic(hvdata, comm, rows, prefetch, remainder):
    batches = batches_of(rows)
    ds = hvdata.distribute_dataset(
        on_reader(hvdata, lambda: source_of(batches)),
        batch="per_rank", schedule="dynamic", prefetch=prefetch, remainder=remainder,
    )  # fmt: skip
    for _ in range(2):
        got = elements(comm, ds)
        if remainder in ("pad", "repeat"):  # nothing is ever missing
            assert all(weight.tolist() == [1.0] * len(batch["id"]) for mine in got for batch, weight in mine), got
            got = [[batch for batch, _ in mine] for mine in got]
        assert is_dynamic_delivery(batches, got), got


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("remainder", REMAINDERS)
def test_global_by_messages(hvdata, comm, remainder):
    """Shares too large to travel with their header."""
    rows = [5, 4096, 1, 4099, 4097]
    batches = [np.arange(n * 64, dtype=np.float64).reshape(n, 64) + at * 1e6 for at, n in enumerate(rows)]
    source = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=tf.TensorSpec([None, 64], tf.float64)
    )
    ds = hvdata.distribute_dataset(source, batch="global", remainder=remainder, prefetch=3)
    want = deliver(batches, comm.size, "global", remainder=remainder)
    for _ in range(2):
        got = elements(comm, ds)
        assert [[equal(a, b) for a, b in zip(*pair)] for pair in zip(got, want)] == [[True] * len(w) for w in want]
        assert [len(steps) for steps in got] == [len(steps) for steps in want]


@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
def test_every_rank_gets_the_same_number_of_steps(hvdata, comm, batch, remainder):
    """Contract 3, on a source whose length nobody knows beforehand."""
    for n in range(2 * comm.size + 2):
        batches = batches_of([3] * n)
        ds = hvdata.distribute_dataset(source_of(batches), batch=batch, remainder=remainder)
        assert len(set(results(comm, lambda: sum(1 for _ in ds)))) == 1


def test_the_order_of_the_job_does_not_depend_on_n(hvdata, comm):
    """Contract 4: rank 0's share, rank 1's share, ... of step 0, then step 1, is the reader's order."""
    batches = batches_of([12, 24, 12])
    for batch in "global", "per_rank":
        ds = hvdata.distribute_dataset(source_of(batches), batch=batch, remainder="partial", prefetch=4)
        got = elements(comm, ds)
        order = np.concatenate([share["id"] for step in zip(*got) for share in step])
        np.testing.assert_array_equal(order, np.arange(48))


def test_what_drop_drops_is_logged(hvdata, comm, capfd):
    """Contract 2: the reader logs the number of dropped rows in each epoch that dropped some."""
    for batch, rows in ("global", [comm.size + 1, 2 * comm.size + 1]), ("per_rank", [2] * (comm.size + 1)):
        batches = batches_of(rows)
        count = dropped(batches, comm.size, batch, "drop")
        ds = hvdata.distribute_dataset(source_of(batches), batch=batch, name=f"dropping-{batch}")
        elements(comm, ds)
        if comm.size > 1:
            assert count > 0
            said = written(comm, capfd, "left out")
            line = next(
                (line for line in said.splitlines() if f"dropping-{batch}" in line and "left out" in line), None
            )
            assert line is not None, said
            assert str(count) in line, line


@pytest.mark.world(np=2)
@pytest.mark.parametrize(
    "batch, rows, why",
    [
        ("global", lambda n: [n - 1] * 3, "every batch was smaller than the number of trainers"),
        ("per_rank", lambda n: [100] * max(n - 1, 1), "there were fewer elements than trainers"),
    ],
)
def test_drop_with_too_little_warns(hvdata, comm, capfd, batch, rows, why):
    """Batches with fewer rows than ranks make no step, and neither do fewer elements than ranks. The reader warns once
    of an epoch without steps."""
    if comm.size == 1:
        pytest.skip("one rank gets all")
    batches = batches_of(rows(comm.size))
    ds = hvdata.distribute_dataset(source_of(batches), batch=batch, name=f"too-few-{batch}")
    for _ in range(2):
        assert elements(comm, ds) == [[]] * comm.size
    comm.barrier()
    said = "".join(comm.allgather(capfd.readouterr().err))
    lines = [line for line in said.splitlines() if f"too-few-{batch}" in line and "no step" in line]
    assert len(lines) == 1 and why in lines[0], said
