# SPDX-License-Identifier: Apache-2.0
"""hvdata.predict: the outputs for every row, once, on rank 0, in the reader's order."""

import re
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from together import Raised, outcomes, raises_everywhere, results, same_on_all_ranks

pytestmark = pytest.mark.world(np=2)


def numbers(rows, batch):
    return tf.data.Dataset.range(rows).batch(batch)


def given_to(hvdata, dataset):
    return dataset if hvdata.is_reader() else None


@same_on_all_ranks(12)
@given(rows=st.integers(1, 70), batch=st.integers(1, 9), how=st.sampled_from(["global", "per_rank"]))
def test_every_row_once_in_order(hvdata, comm, rows, batch, how):
    got = results(comm, lambda: hvdata.predict(lambda x: (x * 2, {"text": tf.strings.as_string(x)}),
                                               given_to(hvdata, numbers(rows, batch)), batch=how))  # fmt: skip
    doubles, texts = got[0]
    assert doubles.tolist() == [2 * i for i in range(rows)]
    assert texts["text"].tolist() == [str(i).encode() for i in range(rows)]
    assert got[1:] == [None] * (comm.size - 1)


def test_many_steps_and_large_outputs(hvdata, comm):
    """More steps than one gather takes."""

    def wide(x):
        return tf.cast(x, tf.float32)[:, tf.newaxis] + tf.range(20_000, dtype=tf.float32)

    got = results(comm, lambda: hvdata.predict(wide, given_to(hvdata, numbers(300, 4))))
    assert got[0].shape == (300, 20_000) and (got[0][:, 7] == np.arange(300) + 7).all()


def test_a_rank_that_finds_no_memory_for_what_it_sends(hvdata, comm, monkeypatch):
    """The rank fails after the model and before the gather in which all wait for it."""
    stack = tf.stack

    def short(texts, *args, **kwargs):
        if len(texts) > 1:
            raise MemoryError("no memory for so many rows")
        return stack(texts, *args, **kwargs)

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(tf, "stack", short)
    got = outcomes(comm, lambda: hvdata.predict(lambda x: x * 2, given_to(hvdata, numbers(8 * comm.size, comm.size))))
    assert all(isinstance(one, Raised) and "no memory for so many rows" in one.text for one in got), got


def test_an_audited_end_of_a_channel(hvdata, comm):
    """The rows of the audit are those of all ranks."""
    once = hvdata.audit(hvdata.distribute_dataset(lambda: numbers(24, 4), batch="global", remainder="partial"))
    got = results(comm, lambda: hvdata.predict(lambda x: x * 2, once))
    assert got[0].tolist() == [2 * i for i in range(24)]


class Mute(Exception):
    def __str__(self):
        raise TypeError("no text")


def test_a_model_whose_error_has_no_text(hvdata, comm):
    def model(x):
        raise Mute

    def fails():
        try:
            hvdata.predict(model, given_to(hvdata, numbers(8 * comm.size, 1)))
        except Exception as error:
            return type(error).__name__

    for _ in range(2):  # the ranks' calls go together as before
        assert None not in results(comm, fails)
    got = results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(8, 2))))
    assert got[0].tolist() == list(range(8))


def test_a_keras_model_gets_the_inputs(hvdata, comm):
    keras = tf.keras
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    x = np.arange(26, dtype=np.float32).reshape(13, 2)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros(13))).batch(5)
    got = results(comm, lambda: hvdata.predict(model, given_to(hvdata, dataset)))
    assert got[0].shape == (13, 1) and np.allclose(got[0][:, 0], x.sum(axis=1))


def test_parts_of_a_tuple_are_arguments(hvdata, comm):
    dataset = tf.data.Dataset.zip((numbers(10, 4), numbers(10, 4)))
    got = results(comm, lambda: hvdata.predict(lambda a, b: a + b, given_to(hvdata, dataset)))
    assert got[0].tolist() == [2 * i for i in range(10)]


def test_a_function_that_makes_the_dataset(hvdata, comm):
    got = results(comm, lambda: hvdata.predict(lambda x: -x, lambda: numbers(9, 2), name="made"))
    assert got[0].tolist() == [-i for i in range(9)]


def test_what_distribute_dataset_returned(hvdata, comm):
    """A dedicated reader takes no new datasets. So predict() takes a distributed one, repeatedly, also with stages
    after it."""
    shares = hvdata.distribute_dataset(given_to(hvdata, numbers(23, 5)), batch="global", remainder="partial")
    for dataset in shares, shares.map(lambda x: x).prefetch(2):
        got = results(comm, lambda dataset=dataset: hvdata.predict(lambda x: -x, dataset))
        assert got[0].tolist() == [-i for i in range(23)] and got[1:] == [None] * (comm.size - 1)


def test_a_none_before_the_rows(hvdata, comm):
    dataset = numbers(11, 3).map(lambda x: ((None, x), {"a": None}))
    got = results(comm, lambda: hvdata.predict(lambda first, second: first[1] + 1, given_to(hvdata, dataset)))
    assert got[0].tolist() == list(range(1, 12))


def test_no_rows_on_rank_0(hvdata, comm):
    """Rank 0 has the outputs of the others in their structure."""
    if comm.size == 1:
        pytest.skip("nobody else has rows")
    dataset = tf.data.Dataset.range(2 * comm.size).map(lambda i: tf.fill([2 if i % comm.size > 0 else 0], i))
    got = results(
        comm, lambda: hvdata.predict(lambda x: {"z": x, "a": (x + 1, [x])}, given_to(hvdata, dataset), batch="per_rank")
    )
    wanted = [i for i in range(2 * comm.size) for _ in range(2) if i % comm.size > 0]
    assert list(got[0]) == ["z", "a"] and got[0]["z"].tolist() == got[0]["a"][1][0].tolist() == wanted
    assert got[0]["a"][0].tolist() == [i + 1 for i in wanted]


# ---- What is wrong.


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_what_was_distributed_with_other_rows(hvdata, comm, remainder):
    shares = hvdata.distribute_dataset(
        given_to(hvdata, numbers(8 * comm.size, 4 * comm.size)), batch="global", remainder=remainder, name="rows"
    )
    raises_everywhere(
        comm,
        lambda: hvdata.predict(lambda *x: x, shares),
        ValueError,
        r"channel rows\] predict\(\) was given what distribute_dataset",
        'Distribute it with remainder="partial"',
    )


@pytest.mark.parametrize(
    "kind, stage",
    [
        ("Batch", lambda ds: ds.batch(2)),
        ("Unbatch", lambda ds: ds.unbatch().map(lambda x: [x])),
        ("Interleave", lambda ds: ds.interleave(tf.data.Dataset.from_tensors)),
        ("Shuffle", lambda ds: ds.prefetch(1).shuffle(3)),
        ("ParallelMap", lambda ds: ds.map(lambda x: x, num_parallel_calls=2, deterministic=False)),
    ],
)
def test_stages_that_mix_rows(hvdata, comm, kind, stage):
    """The outputs would not be in the reader's order."""
    shares = hvdata.distribute_dataset(
        given_to(hvdata, numbers(8 * comm.size, 4 * comm.size)), batch="global", remainder="partial", name="mixed"
    )
    raises_everywhere(
        comm,
        lambda: hvdata.predict(lambda x: x, stage(shares)),
        ValueError,
        rf"channel mixed\] predict\(\) was given what distribute_dataset.*a stage \({kind}\)",
    )
    # On another branch they are a rank's own matter.
    beside = tf.data.Dataset.range(100).shuffle(9).batch(2)
    got = results(
        comm,
        lambda: hvdata.predict(lambda x, y: x, tf.data.Dataset.zip((shares.map(lambda x: x + 1).prefetch(2), beside))),
    )
    assert got[0].tolist() == [i + 1 for i in range(8 * comm.size)]


def test_stages_that_mix_rows_behind_an_audit_and_in_tf1(hvdata, comm):
    from horovod_data.native import tensorflow_private as private

    shares = hvdata.distribute_dataset(
        given_to(hvdata, numbers(8 * comm.size, 4 * comm.size)), batch="global", remainder="partial", name="mixed"
    )
    mixed = [
        hvdata.audit(shares).map(lambda x: x).shuffle(3),
        private.DatasetV1Adapter(shares.shuffle(3)).map(lambda x: x),
    ]
    for dataset in mixed:
        raises_everywhere(comm, lambda: hvdata.predict(lambda x: x, dataset), ValueError, r"a stage \(Shuffle\)")
    in_order = shares.map(lambda x: x, num_parallel_calls=2, deterministic=True)
    options = tf.data.Options()
    options.deterministic = False
    assert results(comm, lambda: hvdata.predict(lambda x: x, in_order.with_options(options)))[0].tolist() == list(
        range(8 * comm.size)
    )


def test_ranks_that_end_at_different_steps(hvdata, comm):
    if comm.size == 1:
        pytest.skip("one rank ends when it ends")
    shares = hvdata.distribute_dataset(
        given_to(hvdata, numbers(8 * comm.size, comm.size)), batch="global", remainder="partial"
    )
    raises_everywhere(
        comm,
        lambda: hvdata.predict(lambda x: x, shares.take(3) if comm.rank == 1 else shares),
        ValueError,
        "the ranks come to different numbers of steps: rank 1 to 3, others to more",
    )


def test_rows_of_different_shapes(hvdata, comm):
    """The batches were padded separately. Only rank 0 can see it, and all ranks raise."""
    dataset = tf.data.Dataset.range(1, 6 * comm.size).map(lambda i: tf.fill([2, i], i))
    raises_everywhere(
        comm,
        lambda: hvdata.predict(lambda x: x, given_to(hvdata, dataset), batch="per_rank", name="padded"),
        ValueError,
        r"what predicts returned rows of shape \[1\] before, and of \[2\] on rank . in step ., which can't be joined",
        "padded_shapes",
    )
    assert results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(3, 3)), name="padded"))[
        0
    ].tolist() == [0, 1, 2]


def test_two_errors_before_ranks_hear_of_one(hvdata, comm):
    """One error is a rank's own and one comes from the pipeline. The next call works."""
    who = comm.size - 1

    def fails(x):
        if comm.rank == who and int(x[0]) >= 3 * comm.size:
            raise ValueError("odd")
        return x

    broken = numbers(64 * comm.size, comm.size).map(lambda x: _checked(x, comm.size))
    for _ in range(2):
        got = outcomes(comm, lambda: hvdata.predict(fails, given_to(hvdata, broken), name="twice"))
        for rank, one in enumerate(got):
            assert isinstance(one, Raised) and ("odd" in one.text or "bad row" in one.text), one
        assert got[who].text == "odd"
        again = results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(9, 2)), name="twice"))
        assert again[0].tolist() == list(range(9))


def _checked(x, size):
    with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(5 * size, tf.int64), "bad row")]):
        return tf.identity(x)


@pytest.mark.parametrize("output, said", [
    (lambda x: tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(x)), x), r"a RaggedTensor, whose parts have no rows\. Return tensors"),
    (lambda x: tf.sparse.from_dense(x), r"a SparseTensor, whose parts have no rows\. Return tensors"),
    (lambda x: None, r"returned None, of which no tensor can be made\. Return tensors or arrays with one row"),
], ids=["ragged", "sparse", "None"])  # fmt: skip
def test_outputs_that_have_no_rows(hvdata, comm, output, said):
    raises_everywhere(
        comm, lambda: hvdata.predict(output, given_to(hvdata, numbers(12 * comm.size, 3 * comm.size))), ValueError, said
    )


def test_a_rank_whose_model_raises(hvdata, comm):
    """All ranks raise its error, and no rank waits."""
    who = comm.size - 1

    def fails(x):
        if comm.rank == who and int(x[0]) > 20:
            raise ValueError("odd")
        return x

    got = outcomes(comm, lambda: hvdata.predict(fails, given_to(hvdata, numbers(400, 2 * comm.size)), name="odd"))
    for rank, one in enumerate(got):
        assert isinstance(one, Raised) and one.kind is ValueError, one
        assert (
            one.text == "odd"
            if rank == who
            else one.text.startswith(f"[rank {who} on ")
            and re.search(r"channel odd, step \d+\] predict\(\) failed: ValueError: odd", one.text)
        )
    assert results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(3, 3))))[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("when", ["in the model", "while it waits for the others", "before the last word"])
def test_ctrl_c_that_one_rank_catches(hvdata, comm, monkeypatch, when):
    """Ctrl-C ends that rank's call and those of the others. No rank waits for its outputs."""
    from horovod_data.collectives import predict

    who = comm.size - 1
    gathers = []

    def presses(x):
        if comm.rank == who and when == "in the model" and int(x[0]) > 20:
            signal.raise_signal(signal.SIGINT)
        return x

    def gather(*args, **kwargs):
        gathers.append(kwargs["name"])
        last = outcome["gathers"]
        if comm.rank == who and len(gathers) == {"while it waits for the others": 2, "before the last word": last}.get(
            when
        ):
            signal.raise_signal(signal.SIGINT)
        return theirs(*args, **kwargs)

    def predicts():
        try:
            return hvdata.predict(presses, given_to(hvdata, numbers(400, 2 * comm.size)), name="pressed")
        except KeyboardInterrupt:
            return "interrupted"

    outcome = {"gathers": -1}
    theirs = predict.gather
    monkeypatch.setattr(predict, "gather", gather)
    if when == "before the last word":
        hvdata.predict(lambda x: x, given_to(hvdata, numbers(400, 2 * comm.size)))
        outcome["gathers"] = len(gathers)
        gathers.clear()
    for rank, one in enumerate(outcomes(comm, predicts)):
        if rank == who:
            assert one == "interrupted"
        elif when == "before the last word":  # they were done by then
            assert rank > 0 or len(one) == 400
        else:
            assert isinstance(one, Raised) and one.kind is RuntimeError, one
            assert re.match(
                rf"\[rank {who} on .*, channel pressed, step \d+\] predict\(\) failed: KeyboardInterrupt", one.text
            ), one.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(3, 3))))[0].tolist() == [0, 1, 2]


def test_a_rank_whose_model_ends_the_program(hvdata, comm):
    """Test runners catch sys.exit(). The other ranks raise."""

    def leaves(x):
        if comm.rank == comm.size - 1:
            sys.exit(3)
        return x

    def predicts():
        try:
            hvdata.predict(leaves, given_to(hvdata, numbers(40, 2 * comm.size)))
        except SystemExit as error:
            return error.code

    for rank, one in enumerate(outcomes(comm, predicts)):
        assert one == 3 if rank == comm.size - 1 else one.kind is RuntimeError and "SystemExit: 3" in one.text, one
    assert results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(3, 3))))[0].tolist() == [0, 1, 2]


@pytest.mark.ranks(2, 3)
def test_a_stage_of_a_ranks_own_that_raises(hvdata, comm):
    """A stage after the channel raises on one rank in the middle of a round. That rank leaves the epoch, so the others
    finish."""

    def check(x):
        if comm.rank == comm.size - 1 and int(x[0]) >= 150 * comm.size:
            raise ValueError("not this one")
        return x

    once = hvdata.distribute_dataset(
        lambda: tf.data.Dataset.range(400 * comm.size).batch(1), batch="per_rank", prefetch=2, remainder="partial"
    )
    once = once.map(lambda x: tf.ensure_shape(tf.numpy_function(check, [x], tf.int64), [1]))
    for one in outcomes(comm, lambda: hvdata.predict(lambda x: x * 2, once)):
        assert isinstance(one, Raised) and "not this one" in one.text, one
    assert len(results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(8, 1))))[0]) == 8


def test_fewer_rows_than_the_share_has(hvdata, comm):
    raises_everywhere(
        comm,
        lambda: hvdata.predict(lambda x: x[1:], given_to(hvdata, numbers(8 * comm.size, 8 * comm.size))),
        ValueError,
        r"what predicts returned 7 rows for a share of 8\. Return a row for each of its rows",
    )


def test_no_rows_at_all(hvdata, comm):
    raises_everywhere(
        comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(0, 4))), ValueError, "a dataset without rows"
    )


def test_a_dataset_that_never_ends(hvdata, comm):
    raises_everywhere(
        comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(4, 4).repeat())), ValueError, "never ends"
    )


def test_neither_model_nor_function(hvdata, comm):
    raises_everywhere(
        comm,
        lambda: hvdata.predict("model", given_to(hvdata, numbers(4, 4))),
        TypeError,
        "predict.. takes a model or a function, not 'model'",
    )


def test_a_rank_without_a_model(hvdata, comm):
    """Rank 0, which reads, or the last rank has no model."""
    for who in sorted({0, comm.size - 1}):
        raises_everywhere(
            comm,
            lambda who=who: hvdata.predict(None if comm.rank == who else lambda x: x, given_to(hvdata, numbers(4, 4))),
            TypeError,
            "predict.. takes a model or a function, not None",
        )


def test_a_pipeline_that_raises(hvdata, comm):
    broken = numbers(64, 4).map(
        lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32) / tf.where(x < 30, 1.0, 0.0), "bad row")
    )
    raises_everywhere(
        comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, broken)), tf.errors.InvalidArgumentError, "bad row"
    )


def test_inside_tf_function(hvdata, comm):
    raises_everywhere(
        comm,
        lambda: tf.function(lambda: hvdata.predict(lambda x: x, None))(),
        RuntimeError,
        "predict.. was called where TensorFlow does not execute eagerly",
    )
