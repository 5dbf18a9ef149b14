# SPDX-License-Identifier: Apache-2.0
"""Ranks with different calls: every rank raises an error with the values of both sides. The next call works."""

import re
import socket

import pytest
import tensorflow as tf
from together import elements, numbers, raises_everywhere, results

pytestmark = [pytest.mark.world(np=2), pytest.mark.ranks(2, 3, 4)]  # one rank agrees with itself

BASE = {"batch": "per_rank", "schedule": "static", "remainder": "drop", "prefetch": 2, "name": "train"}


@pytest.fixture(autouse=True)
def goes_on(hvdata, comm):
    """An error on all ranks leaves them in step: the next call works."""
    yield
    assert elements(comm, numbers(hvdata, comm.size)) == [[rank] for rank in range(comm.size)]


def distribute(hvdata, **arguments):
    return hvdata.distribute_dataset(lambda: tf.data.Dataset.range(12).batch(12), **arguments)


@pytest.fixture(params=["reader", "other"])
def odd_one(request, comm):
    return 0 if request.param == "reader" else comm.size - 1


@pytest.mark.parametrize("other", [
    {"batch": "global"}, {"remainder": "partial"}, {"schedule": "dynamic"}, {"prefetch": 5}, {"name": "valid"}, {"name": None},
    {"prefetch": 7, "remainder": "pad"},
], ids=str)  # fmt: skip
def test_other_arguments(hvdata, comm, odd_one, other):
    mine = {**BASE, **other} if comm.rank == odd_one else BASE
    host = re.escape(comm.bcast(socket.gethostname(), odd_one))
    got = raises_everywhere(comm, lambda: distribute(hvdata, **mine), ValueError, rf"rank[s ]*\D*{odd_one}", host)
    for one in got:
        named = [argument for argument in other if argument in one.text]
        assert named, one.text
        for value in (str(arguments[named[0]]) for arguments in (BASE, other) if arguments[named[0]] is not None):
            assert value in one.text, one.text


def test_other_order_of_calls(hvdata, comm):
    """Training and validation the other way round on the last rank."""
    names = ["train", "valid"] if comm.rank < comm.size - 1 else ["valid", "train"]
    for name in names:
        call = lambda name=name: distribute(hvdata, **{**BASE, "name": name})  # noqa: E731
        raises_everywhere(comm, call, ValueError, "train", "valid", "order|same")


def test_an_argument_error_is_no_disagreement(hvdata, comm):
    """An error that each rank finds by itself takes no channel number. So a single rank may have it."""
    if comm.rank == 0:
        with pytest.raises(ValueError, match="prefetch"):
            distribute(hvdata, **{**BASE, "prefetch": 0})
    got = elements(comm, numbers(hvdata, 2 * comm.size))
    assert got == [[rank, rank + comm.size] for rank in range(comm.size)]


def test_graph_on_one_rank_and_eager_on_the_others(hvdata, comm):
    """One rank may build a graph while the others run eagerly."""
    v1 = tf.compat.v1

    def graph():
        with tf.Graph().as_default(), v1.Session() as session:
            iterator = v1.data.make_initializable_iterator(distribute(hvdata, batch="global"))
            fetch = iterator.get_next()
            session.run(iterator.initializer)
            return session.run(fetch).tolist()

    def eager():
        return [x.numpy().tolist() for x in distribute(hvdata, batch="global")][0]

    assert sum(results(comm, graph if comm.rank == 0 else eager), []) == list(range(12))
