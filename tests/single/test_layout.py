# SPDX-License-Identifier: Apache-2.0
"""Which ranks read and which train, for every shape of job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_data.job.layout import make_layout


@pytest.mark.parametrize("hosts, arguments, readers, trainers", [
    ("aab", {}, (0,), (0, 1, 2)),
    ("a", {}, (0,), (0,)),
    ("aab", {"readers": 1}, (2,), (0, 1)),  # the last rank, so that trainers keep their ranks
    ("aabbb", {"readers": 2}, (3, 4), (0, 1, 2)),
    ("abab", {"readers_per_node": 1, "embedded": True}, (0, 1), (0, 1, 2, 3)),
    ("ababa", {"readers_per_node": 1}, (3, 4), (0, 1, 2)),
])  # fmt: skip
def test_some_jobs(hosts, arguments, readers, trainers):
    layout = make_layout(list(hosts), **arguments)
    assert (layout.readers, layout.trainers) == (readers, trainers)


def test_batches_travel_within_a_group():
    layout = make_layout(["a", "b", "a", "b"], readers_per_node=1, embedded=True)
    assert layout.group == (0, 1, 0, 1) and layout.group_trainers(2) == (0, 2)


@pytest.mark.parametrize("hosts, arguments, keepers", [
    ("aabb", {}, (0, 2)),
    ("a", {}, (0,)),
    ("aabb", {"readers": 1}, (3, 0)),  # keeper 0 is on the reader's host, and the reader is it
    ("aabbc", {"readers": 2}, (3, 0, 4)),  # host c only reads
    ("abc", {"readers": 2}, (1, 0, 2)),
    ("cbabca", {}, (0, 1, 2)),
    ("abbaca", {"readers": 1}, (5, 1, 4)),
])  # fmt: skip
def test_a_host_has_one_keeper(hosts, arguments, keepers):
    assert make_layout(list(hosts), **arguments).keepers(list(hosts)) == keepers


@pytest.mark.parametrize("readers, processes", [(1, 1), (2, 2), (3, 1)])
def test_somebody_must_train(readers, processes):
    with pytest.raises(ValueError) as error:
        make_layout(["a"] * processes, readers=readers)
    for part in f"readers={readers}", f"this job has {processes} process", f"start N+{readers} processes":
        assert part in str(error.value)
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
    # Each rank reads or trains. Dedicated readers do not train.
    assert set(layout.readers) | set(layout.trainers) == set(range(len(hosts)))
    both = set(layout.readers) & set(layout.trainers)
    assert both == (set(layout.readers) if count == 0 else set())
    for group in groups:
        assert len(set(layout.readers) & set(group)) == max(count, 1)
        assert set(layout.trainers) & set(group)
