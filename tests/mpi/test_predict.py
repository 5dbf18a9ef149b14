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
from together import Raised, attempt, raises_everywhere, results, same_on_all_ranks

import horovod_data
from horovod_data.native import tensorflow_private

pytestmark = pytest.mark.world(np=2)


def numbers(rows, batch):
    return tf.data.Dataset.range(rows).batch(batch)


def given_to(hvdata, dataset):
    return dataset if hvdata.is_reader() else None


def predicted(hvdata, comm, model, dataset, **arguments):
    """What rank 0 gets. Other ranks get None."""
    got = results(comm, lambda: hvdata.predict(model, dataset, **arguments))
    assert got[1:] == [None] * (comm.size - 1)
    return got[0]


def same(x):
    return x


def goes_on(hvdata, comm, name=None):
    """After an error the next call works."""
    assert predicted(hvdata, comm, lambda x: x, given_to(hvdata, numbers(9, 2)), name=name).tolist() == list(range(9))


@same_on_all_ranks(12)
@given(rows=st.integers(1, 70), batch=st.integers(1, 9), how=st.sampled_from(["global", "per_rank"]))
def test_every_row_once_in_order(hvdata, comm, rows, batch, how):
    model = lambda x: (x * 2, {"text": tf.strings.as_string(x)})
    doubles, texts = predicted(hvdata, comm, model, given_to(hvdata, numbers(rows, batch)), batch=how)
    assert doubles.tolist() == [2 * i for i in range(rows)]
    assert texts["text"].tolist() == [str(i).encode() for i in range(rows)]


def test_many_steps_and_large_outputs(hvdata, comm):
    """More steps than one gather takes."""

    def wide(x):
        return tf.cast(x, tf.float32)[:, tf.newaxis] + tf.range(20_000, dtype=tf.float32)

    got = predicted(hvdata, comm, wide, given_to(hvdata, numbers(300, 4)))
    assert got.shape == (300, 20_000) and (got[:, 7] == np.arange(300) + 7).all()


def test_a_keras_model_gets_the_inputs(hvdata, comm):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    x = np.arange(26, dtype=np.float32).reshape(13, 2)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros(13))).batch(5)
    got = predicted(hvdata, comm, model, given_to(hvdata, dataset))
    assert got.shape == (13, 1) and np.allclose(got[:, 0], x.sum(axis=1))


INPUTS = {
    "a tuple's parts": (lambda a, b: (a + b) // 2, tf.data.Dataset.zip((numbers(23, 4), numbers(23, 4)))),
    "a None before the rows": (lambda first, second: first[1], numbers(23, 3).map(lambda x: ((None, x), {"a": None}))),
    "a function": (lambda x: x, lambda: numbers(23, 2)),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_inputs(hvdata, comm, inputs):
    model, dataset = INPUTS[inputs]
    dataset = dataset if inputs == "a function" else given_to(hvdata, dataset)
    assert predicted(hvdata, comm, model, dataset).tolist() == list(range(23))


def distributed(hvdata, comm, remainder="partial", name=None):
    """8 rows for each rank, in two steps."""
    source = given_to(hvdata, numbers(8 * comm.size, 4 * comm.size))
    return hvdata.distribute_dataset(source, batch="global", remainder=remainder, name=name)


def test_what_distribute_dataset_returned(hvdata, comm):
    """A dedicated reader takes no new datasets. So predict() takes a distributed one, repeatedly, also with stages
    after it, or audited."""
    shares = distributed(hvdata, comm)
    for dataset in shares, shares.map(lambda x: x).prefetch(2), hvdata.audit(shares):
        assert predicted(hvdata, comm, lambda x: -x, dataset).tolist() == [-i for i in range(8 * comm.size)]


def test_no_rows_on_rank_0(hvdata, comm, several):
    """Rank 0 has the outputs of the others in their structure."""
    dataset = tf.data.Dataset.range(2 * comm.size).map(lambda i: tf.fill([2 if i % comm.size > 0 else 0], i))
    model = lambda x: {"z": x, "a": (x + 1, [x])}
    got = predicted(hvdata, comm, model, given_to(hvdata, dataset), batch="per_rank")
    wanted = [i for i in range(2 * comm.size) for _ in range(2) if i % comm.size > 0]
    assert list(got) == ["z", "a"] and got["z"].tolist() == got["a"][1][0].tolist() == wanted
    assert got["a"][0].tolist() == [i + 1 for i in wanted]


class Unsendable(dict):
    """Outputs that can't be sent to another rank as they are, as a class of the program may be."""

    def __reduce_ex__(self, protocol):
        raise RuntimeError("this one stays here")


def test_outputs_of_a_class_that_can_not_be_sent(hvdata, comm):
    def parts():
        got = hvdata.predict(lambda x: Unsendable(b=x, a=[x + 1]), given_to(hvdata, numbers(23, 2 * comm.size)))
        return got and (type(got) is Unsendable, got["a"][0].tolist(), got["b"].tolist())

    assert results(comm, parts)[0] == (True, list(range(1, 24)), list(range(23)))


def test_a_rank_whose_first_outputs_come_later_and_differ(hvdata, comm, several):
    """This rank has no rows in the first step."""
    dataset = tf.data.Dataset.range(2 * comm.size).map(lambda i: tf.fill([0 if i == 1 else 2], i))
    model = lambda x: tf.cast(x, tf.float32) if comm.rank == 1 else x
    call = lambda: hvdata.predict(model, given_to(hvdata, dataset), batch="per_rank")
    raises_everywhere(comm, call, TypeError, "the ranks' outputs differ: .*int64.* on one rank, .*float32.* on rank 1")
    goes_on(hvdata, comm)


# ---- Datasets that are refused.


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_what_was_distributed_with_other_rows(hvdata, comm, remainder):
    shares = distributed(hvdata, comm, remainder, "rows")
    says = (r"channel rows\] predict\(\) was given what distribute_dataset", 'Distribute it with remainder="partial"')
    raises_everywhere(comm, lambda: hvdata.predict(lambda *x: x, shares), ValueError, *says)


MIXING = {
    "Batch": lambda ds: ds.batch(2),
    "Unbatch": lambda ds: ds.unbatch().map(lambda x: [x]),
    "Interleave": lambda ds: ds.interleave(tf.data.Dataset.from_tensors),
    "Shuffle": lambda ds: ds.prefetch(1).shuffle(3),
    "Shuffle behind an audit": lambda ds: horovod_data.audit(ds).map(lambda x: x).shuffle(3),
    "Shuffle of TF1": lambda ds: tensorflow_private.DatasetV1Adapter(ds.shuffle(3)).map(lambda x: x),
    "ParallelMap": lambda ds: ds.map(lambda x: x, num_parallel_calls=2, deterministic=False),
}


@pytest.mark.parametrize("stage", MIXING)
def test_stages_that_mix_rows(hvdata, comm, stage):
    """The outputs would not be in the reader's order."""
    shares = distributed(hvdata, comm, name="mixed")
    says = rf"channel mixed\] predict\(\) was given what distribute_dataset.*a stage \({stage.partition(' ')[0]}\)"
    raises_everywhere(comm, lambda: hvdata.predict(same, MIXING[stage](shares)), ValueError, says)
    # On another branch they are a rank's own matter.
    beside = tf.data.Dataset.range(100).shuffle(9).batch(2)
    options = tf.data.Options()
    options.deterministic = False
    in_order = shares.map(lambda x: x + 1, num_parallel_calls=2, deterministic=True).prefetch(2).with_options(options)
    both = tf.data.Dataset.zip((in_order, beside))
    assert predicted(hvdata, comm, lambda x, y: x, both).tolist() == [i + 1 for i in range(8 * comm.size)]


def test_ranks_that_end_at_different_steps(hvdata, comm, several):
    shares = distributed(hvdata, comm)
    says = "the ranks make different numbers of steps: rank 1 makes 1, other ranks make more"
    mine = shares.take(1) if comm.rank == 1 else shares
    raises_everywhere(comm, lambda: hvdata.predict(same, mine), ValueError, says)


# ---- Models and outputs that are refused.


def broken(size):
    return numbers(64, 4).map(
        lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32) / tf.where(x < 30, 1.0, 0.0), "bad row")
    )


WRONG = {
    "ragged": (lambda x: tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(x)), x), None, ValueError,
               r"a RaggedTensor, which predict\(\) can't join by rows\. Return tensors"),
    "sparse": (lambda x: tf.sparse.from_dense(x), None, ValueError, r"a SparseTensor, which predict\(\) can't join by rows\. Return tensors"),
    "None": (lambda x: None, None, ValueError,
             r"returned None, which can't be converted to a tensor\. Return tensors or arrays with one row"),
    "fewer rows": (lambda x: x[1:], lambda n: numbers(8 * n, 8 * n), ValueError,
                   r"model_or_fn returned 7 rows for a share of 8\. Return one row for each row of the share"),
    "no rows at all": (same, lambda n: numbers(0, 4), ValueError, "a dataset without rows"),
    "no end": (same, lambda n: numbers(4, 4).repeat(), ValueError, "never ends"),
    "a text": ("model", None, TypeError, "predict.. takes a model or a function, not 'model'"),
    "an error of the pipeline": (same, broken, tf.errors.InvalidArgumentError, "bad row"),
    # The batches were padded separately. Only rank 0 can see it.
    "rows of different shapes": (same, lambda n: tf.data.Dataset.range(1, 6 * n).map(lambda i: tf.fill([2, i], i)), ValueError,
        r"model_or_fn returned rows of shape \[1\] before, and of \[2\] on rank . in step ., which can't be joined.*padded_shapes"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong(hvdata, comm, wrong):
    model, dataset, kind, says = WRONG[wrong]
    dataset = given_to(hvdata, dataset(comm.size) if dataset else numbers(12 * comm.size, 3 * comm.size))
    batch = "per_rank" if wrong == "rows of different shapes" else "global"
    raises_everywhere(comm, lambda: hvdata.predict(model, dataset, batch=batch, name="wrong"), kind, says)
    goes_on(hvdata, comm, "wrong")


def test_a_rank_without_a_model(hvdata, comm):
    """Rank 0, which reads, or the last rank has no model."""
    says = "predict.. takes a model or a function, not None"
    for who in sorted({0, comm.size - 1}):
        model = None if comm.rank == who else same
        call = lambda model=model: hvdata.predict(model, given_to(hvdata, numbers(4, 4)))
        raises_everywhere(comm, call, TypeError, says)


def test_inside_tf_function(hvdata, comm):
    says = "predict.. was called where TensorFlow does not execute eagerly"
    raises_everywhere(comm, lambda: tf.function(lambda: hvdata.predict(same, None))(), RuntimeError, says)


# ---- One rank fails. No rank waits for its outputs.


def catching(call):
    """Returns the result of `call()`, or its error.

    The result is the error's name if the error is no Exception or has no text.
    """
    try:
        return attempt(call)
    except BaseException as error:
        return type(error).__name__


class Mute(Exception):
    def __str__(self):
        raise TypeError("no text")


def failing(error):
    def model(x):
        raise error

    return model


# What a model does: how its own rank sees the error, and the kind and text on others. Test runners catch sys.exit().
ENDS = {
    "an error": (failing(ValueError("odd")), ValueError, "odd", ValueError, "ValueError: odd"),
    "an exit": (lambda x: sys.exit(3), None, "SystemExit", RuntimeError, "SystemExit: 3"),
    "an error without text": (failing(Mute()), None, "TypeError", RuntimeError, "Mute"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_rank_whose_model_fails(hvdata, comm, end):
    model, kind, text, of_others, says = ENDS[end]
    who = comm.size - 1
    fails = lambda x: model(x) if comm.rank == who and int(x[0]) > 20 else x
    dataset = given_to(hvdata, numbers(400, 2 * comm.size))
    for _ in range(2):  # the ranks' calls match as before
        *others, mine = comm.allgather(catching(lambda: hvdata.predict(fails, dataset, name="odd")))
        assert mine == text if kind is None else mine[:2] == (kind, text), mine
        for one in others:
            assert one.kind is of_others, one
            assert re.match(rf"\[rank {who} on .*channel odd, step \d+\] predict\(\) failed: {says}", one.text), one
    goes_on(hvdata, comm)


@pytest.mark.parametrize("when", ["in the model", "while it waits for the others", "before the last word"])
def test_ctrl_c_that_one_rank_catches(hvdata, comm, monkeypatch, when):
    from horovod_data.collectives import rounds

    who, dataset = comm.size - 1, given_to(hvdata, numbers(400, 2 * comm.size))
    theirs, gathers, presses_at = rounds.gather, [], {"while it waits for the others": 2}.get(when)

    def presses(x):
        if comm.rank == who and when == "in the model" and int(x[0]) > 20:
            signal.raise_signal(signal.SIGINT)
        return x

    def gather(*args, **kwargs):
        gathers.append(kwargs["name"])
        if comm.rank == who and len(gathers) == presses_at:
            signal.raise_signal(signal.SIGINT)
        return theirs(*args, **kwargs)

    monkeypatch.setattr(rounds, "gather", gather)
    if when == "before the last word":
        hvdata.predict(same, dataset)
        presses_at = len(gathers)
        gathers.clear()
    got = comm.allgather(catching(lambda: hvdata.predict(presses, dataset, name="pressed")))
    assert got.pop(who) == "KeyboardInterrupt"
    for rank, one in enumerate(got):
        if when == "before the last word":  # the other ranks were done by then
            assert rank > 0 or len(one) == 400
        else:
            assert isinstance(one, Raised) and one.kind is RuntimeError, one
            says = rf"\[rank {who} on .*, channel pressed, step \d+\] predict\(\) failed: KeyboardInterrupt"
            assert re.match(says, one.text), one.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    goes_on(hvdata, comm)


@pytest.mark.parametrize("what", ["pickled outputs", "outputs in a tensor", "all rows"])
def test_no_memory(hvdata, comm, monkeypatch, what):
    """The last rank fails after the model and before the gather in which all wait for it. Rank 0 finds no memory for all
    rows in the last round. All ranks raise the error, so a program can handle it on all ranks."""
    from horovod_data.collectives import rounds

    who, owner, name = {
        "pickled outputs": (comm.size - 1, rounds.pickle, "dumps"),
        "outputs in a tensor": (comm.size - 1, tf, "constant"),
        "all rows": (0, rounds.Rounds, "_join"),
    }[what]
    function = getattr(owner, name)

    def short(one, *args, **kwargs):
        if (
            isinstance(one, rounds.Rounds)
            or isinstance(one, list)
            and isinstance(one[:1] and one[0], (np.ndarray, bytes))
        ):
            raise MemoryError("no memory for so many rows")
        return function(one, *args, **kwargs)

    if comm.rank == who:
        monkeypatch.setattr(owner, name, short)
    dataset = given_to(hvdata, numbers(8 * comm.size, comm.size))
    raises_everywhere(comm, lambda: hvdata.predict(same, dataset), Exception, "no memory for so many rows")


def test_two_errors_before_ranks_hear_of_one(hvdata, comm):
    """One error is a rank's own and one comes from the pipeline. The next call works."""
    who = comm.size - 1

    def fails(x):
        if comm.rank == who and int(x[0]) >= 3 * comm.size:
            raise ValueError("odd")
        return x

    def checked(x):
        check = tf.debugging.assert_less(x, tf.constant(5 * comm.size, tf.int64), "bad row")
        with tf.control_dependencies([check]):
            return tf.identity(x)

    broken = given_to(hvdata, numbers(64 * comm.size, comm.size).map(checked))
    for _ in range(2):
        got = raises_everywhere(comm, lambda: hvdata.predict(fails, broken, name="twice"), Exception, "odd|bad row")
        assert got[who].text == "odd"
        goes_on(hvdata, comm, "twice")


@pytest.mark.ranks(2, 3)
def test_a_stage_of_a_ranks_own_that_raises(hvdata, comm):
    """A stage after the channel raises on one rank in the middle of a round. That rank leaves the epoch, so the others
    finish."""

    def check(x):
        if comm.rank == comm.size - 1 and int(x[0]) >= 150 * comm.size:
            raise ValueError("not this one")
        return x

    once = hvdata.distribute_dataset(
        lambda: numbers(400 * comm.size, 1), batch="per_rank", prefetch=2, remainder="partial"
    )
    once = once.map(lambda x: tf.ensure_shape(tf.numpy_function(check, [x], tf.int64), [1]))
    raises_everywhere(comm, lambda: hvdata.predict(lambda x: x * 2, once), Exception, "not this one")
    goes_on(hvdata, comm)
