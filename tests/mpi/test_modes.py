# SPDX-License-Identifier: Apache-2.0
"""batch x schedule x remainder by both doors, against the oracle, on sources of any length and batches of any size."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numbered_rows import (
    PREFETCHES,
    REMAINDERS,
    ROWS,
    SOURCES,
    batches_of,
    dataset_of,
    delivers,
    delivers_dynamically,
    one_pass_of,
)
from oracle import dropped
from together import elements, same_on_all_ranks, written

pytestmark = pytest.mark.world(np=3)


@st.composite
def channels(draw):
    """(a source, the rows of its batches). A source of loader() has an element."""
    source = draw(st.sampled_from([*SOURCES]))
    return source, draw(st.lists(ROWS, min_size=int(source != "dataset"), max_size=9))


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(9)
@given(channel=channels(), prefetch=PREFETCHES)
@example(channel=("dataset", []), prefetch=1)
@example(channel=("list", [1, 0, 2]), prefetch=1)  # fewer rows than ranks
def test_static(hvdata, comm, batch, remainder, channel, prefetch):
    source, batches = channel[0], batches_of(channel[1])
    one_pass = one_pass_of(hvdata, source, batches, batch=batch, remainder=remainder, prefetch=prefetch)
    delivers(hvdata, comm, one_pass, batches, batch, remainder)


@pytest.mark.readers(0, 1)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(9)
@given(channel=channels(), prefetch=PREFETCHES, remainder=st.sampled_from(REMAINDERS))
def test_dynamic(hvdata, comm, channel, prefetch, remainder):
    source, batches = channel[0], batches_of(channel[1])
    how = {"batch": "per_rank", "schedule": "dynamic", "prefetch": prefetch, "remainder": remainder}
    delivers_dynamically(hvdata, comm, one_pass_of(hvdata, source, batches, **how), batches, remainder)


def test_what_drop_drops_is_logged(hvdata, comm, several, capfd):
    """Contract 2: the reader logs the number of dropped rows in each epoch that dropped some."""
    for batch, rows in ("global", [comm.size + 1, 2 * comm.size + 1]), ("per_rank", [2] * (comm.size + 1)):
        batches = batches_of(rows)
        count = dropped(batches, comm.size, batch, "drop")
        elements(comm, hvdata.distribute_dataset(dataset_of(batches), batch=batch, name=f"dropping-{batch}"))
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
    ds = hvdata.distribute_dataset(dataset_of(batches_of(rows(comm.size))), batch=batch, name=f"too-few-{batch}")
    for _ in range(2):
        assert elements(comm, ds) == [[]] * comm.size
    comm.barrier()
    said = "".join(comm.allgather(capfd.readouterr().err))
    lines = [line for line in said.splitlines() if f"too-few-{batch}" in line and "no step" in line]
    assert len(lines) == 1 and why in lines[0], said
