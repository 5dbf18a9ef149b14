# SPDX-License-Identifier: Apache-2.0
"""batch x schedule x remainder against the oracle, on pipelines of any length and batches of any size."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from oracle import deliver, dropped, equal, is_dynamic_delivery
from together import elements, merged, on_reader, same_on_all_ranks, written

pytestmark = pytest.mark.world(np=3)

REMAINDERS = ["drop", "partial", "pad", "repeat"]


def batch_of(first: int, rows: int):
    """Rows with their numbers, in components of several kinds. Batches of 100 rows and more travel as messages."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    return {
        "id": ids,
        "text": np.array([b"row %d\0" % i for i in ids], object),
        "x": (np.repeat(ids[:, None], 64, axis=1).astype(np.float32),),
    }


def batches_of(rows_of_batches):
    starts = itertools.accumulate(rows_of_batches, initial=0)
    return [batch_of(first, rows) for first, rows in zip(starts, rows_of_batches)]


SPEC = {
    "id": tf.TensorSpec([None], tf.int64),
    "text": tf.TensorSpec([None], tf.string),
    "x": (tf.TensorSpec([None, 64], tf.float32),),
}


def source_of(batches):
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SPEC)


def delivers(hvdata, comm, batches, epochs=2, **arguments):
    """Asserts that each rank gets the oracle's rows in every epoch, and the job all rows that are delivered in order."""
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source_of(batches)), **arguments)
    oracle_arguments = {key: value for key, value in arguments.items() if key in ("batch", "remainder")}
    want = deliver(batches, comm.size, **oracle_arguments)
    for epoch in range(epochs):
        got = elements(comm, ds)
        assert len(set(map(len, got))) == 1, "contract 3: every rank has the same number of steps"
        for rank in range(comm.size):
            mine = [equal(a, b) for a, b in itertools.zip_longest(got[rank], want[rank])]
            assert all(mine), f"epoch {epoch + 1}, rank {rank}: got {got[rank]}, not {want[rank]}"
        if arguments["remainder"] == "partial":
            order = [row for share in merged(got) for row in share["id"]]
            assert order == list(range(sum(len(batch["id"]) for batch in batches))), "contract 4: the reader's order"


rows_of_batches = st.lists(st.integers(0, 11) | st.integers(400, 900), max_size=9)
prefetches = st.sampled_from(["auto", 1, 2, 3, 5, 16])


@pytest.mark.world(np=4)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(7)
@given(rows=rows_of_batches, prefetch=prefetches)
def test_static(hvdata, comm, batch, remainder, rows, prefetch):
    delivers(hvdata, comm, batches_of(rows), batch=batch, remainder=remainder, prefetch=prefetch)


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


def test_what_drop_drops_is_logged(hvdata, comm, several, capfd):
    """Contract 2: the reader logs the number of dropped rows in each epoch that dropped some."""
    for batch, rows in ("global", [comm.size + 1, 2 * comm.size + 1]), ("per_rank", [2] * (comm.size + 1)):
        batches = batches_of(rows)
        count = dropped(batches, comm.size, batch, "drop")
        elements(comm, hvdata.distribute_dataset(source_of(batches), batch=batch, name=f"dropping-{batch}"))
        lines = written(comm, capfd, "left out").splitlines()
        line = next(line for line in lines if f"dropping-{batch}" in line and "left out" in line)
        assert count > 0 and str(count) in line, line


@pytest.mark.world(np=2)
@pytest.mark.parametrize("batch, rows, why", [
    ("global", lambda n: [n - 1] * 3, "every batch was smaller than the number of trainers"),
    ("per_rank", lambda n: [100] * (n - 1), "there were fewer elements than trainers"),
])  # fmt: skip
def test_drop_with_too_little_warns(hvdata, comm, several, capfd, batch, rows, why):
    """Batches with fewer rows than ranks make no step, and neither do fewer elements than ranks. The reader warns once
    of an epoch without steps."""
    ds = hvdata.distribute_dataset(source_of(batches_of(rows(comm.size))), batch=batch, name=f"too-few-{batch}")
    for _ in range(2):
        assert elements(comm, ds) == [[]] * comm.size
    comm.barrier()
    said = "".join(comm.allgather(capfd.readouterr().err))
    lines = [line for line in said.splitlines() if f"too-few-{batch}" in line and "no step" in line]
    assert len(lines) == 1 and why in lines[0], said
