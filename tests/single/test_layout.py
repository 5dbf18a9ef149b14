# SPDX-License-Identifier: Apache-2.0
"""Who reads and who trains, for every shape of job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_data.job.layout import make_layout


def test_rank_0_reads_and_trains():
    layout = make_layout(["a", "a", "b"])
    assert layout.reader_index == (0, -1, -1)
    assert layout.trainer_index == (0, 1, 2)


def test_one_process_does_both():
    layout = make_layout(["a"])
    assert (layout.reader_index, layout.trainer_index) == ((0,), (0,))


def test_the_last_rank_is_the_dedicated_reader_so_that_trainers_keep_their_ranks():
    layout = make_layout(["a", "a", "b"], readers=1)
    assert layout.reader_index == (-1, -1, 0)
    assert layout.trainer_index == (0, 1, -1)
    assert (layout.readers, layout.trainers) == ((2,), (0, 1))


def test_several_dedicated_readers():
    layout = make_layout(["a", "a", "b", "b", "b"], readers=2)
    assert layout.reader_index == (-1, -1, -1, 0, 1)
    assert layout.trainer_index == (0, 1, 2, -1, -1)


def test_the_first_rank_of_every_host_reads_and_trains():
    layout = make_layout(["a", "b", "a", "b"], readers_per_node=1, embedded=True)
    assert layout.group == (0, 1, 0, 1)
    assert layout.audience(2) == (0, 2)
    assert layout.readers == (0, 1)
    assert layout.trainers == (0, 1, 2, 3)


def test_the_last_rank_of_every_host_is_its_reader():
    layout = make_layout(["a", "b", "a", "b", "a"], readers_per_node=1)
    assert layout.reader_index == (-1, -1, -1, 0, 1)
    assert layout.trainer_index == (0, 1, 2, -1, -1)


@pytest.mark.parametrize("readers, processes", [(1, 1), (2, 2), (3, 1)])
def test_somebody_must_train(readers, processes):
    with pytest.raises(ValueError) as error:
        make_layout(["a"] * processes, readers=readers)
    assert f"readers={readers}" in str(error.value)
    assert f"this job has {processes} process" in str(error.value)
    assert f"start N+{readers} processes" in str(error.value)
    assert f"`mpirun -np {readers + 1} python train.py`" in str(error.value)


def test_somebody_must_train_on_every_host():
    with pytest.raises(ValueError, match=r"host b, which runs 1 process\. Start at least 2 processes on every host"):
        make_layout(["a", "a", "b"], readers_per_node=1)


@given(
    hosts=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    count=st.integers(0, 4),
    per_node=st.booleans(),
    embedded=st.booleans(),
)
def test_every_job(hosts, count, per_node, embedded):
    groups = [[rank for rank, other in enumerate(hosts) if other == host] for host in set(hosts)]
    groups = groups if per_node else [list(range(len(hosts)))]
    arguments = {"readers_per_node": 1, "embedded": embedded} if per_node else {"readers": count}
    if per_node:
        count = 0 if embedded else 1
    if any(count >= len(group) for group in groups):
        with pytest.raises(ValueError):
            make_layout(hosts, **arguments)
        return
    layout = make_layout(hosts, **arguments)
    # Numbers are given without gaps, in rank order.
    assert [index for index in layout.reader_index if index >= 0] == list(range(len(layout.readers)))
    assert [index for index in layout.trainer_index if index >= 0] == list(range(len(layout.trainers)))
    # Everybody has a part; dedicated readers have one part, and so many are there as were asked for.
    assert set(layout.readers) | set(layout.trainers) == set(range(len(hosts)))
    both = set(layout.readers) & set(layout.trainers)
    assert both == (set(layout.readers) if count == 0 else set())
    for group in groups:
        assert len(set(layout.readers) & set(group)) == max(count, 1)
        assert set(layout.trainers) & set(group)
