# SPDX-License-Identifier: Apache-2.0
"""hvdata.predict: the outputs for every row, once, on rank 0, in the reader's order."""

import re

import numpy as np
import pytest
import tensorflow as tf
from together import Raised, outcomes, raises_everywhere, results, same_on_all_ranks
from hypothesis import given, strategies as st


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


# ---- What is wrong.


def test_a_rank_whose_model_raises(hvdata, comm):
    """Its error is that of all, and nobody waits."""
    who = comm.size - 1

    def fails(x):
        if comm.rank == who and int(x[0]) > 20:
            raise ValueError("odd")
        return x

    got = outcomes(comm, lambda: hvdata.predict(fails, given_to(hvdata, numbers(400, 2 * comm.size)), name="odd"))
    for rank, one in enumerate(got):
        assert isinstance(one, Raised) and one.kind is ValueError, one
        assert one.text == "odd" if rank == who else one.text.startswith(f"[rank {who} on ") and re.search(r"channel odd, step \d+\] predict\(\) failed: ValueError: odd", one.text)
    assert results(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(3, 3))))[0].tolist() == [0, 1, 2]


def test_fewer_rows_than_the_share_has(hvdata, comm):
    raises_everywhere(comm, lambda: hvdata.predict(lambda x: x[1:], given_to(hvdata, numbers(8 * comm.size, 8 * comm.size))), ValueError,
                      r"what predicts returned 7 rows for a share of 8\. Return a row for each of its rows")


def test_no_rows_at_all(hvdata, comm):
    raises_everywhere(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(0, 4))), ValueError, "a dataset without rows")


def test_a_dataset_that_never_ends(hvdata, comm):
    raises_everywhere(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, numbers(4, 4).repeat())), ValueError, "never ends")


def test_neither_model_nor_function(hvdata, comm):
    raises_everywhere(comm, lambda: hvdata.predict("model", given_to(hvdata, numbers(4, 4))), TypeError,
                      "predict.. takes a model or a function, not 'model'")


def test_a_pipeline_that_raises(hvdata, comm):
    broken = numbers(64, 4).map(lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32) / tf.where(x < 30, 1.0, 0.0), "bad row"))
    raises_everywhere(comm, lambda: hvdata.predict(lambda x: x, given_to(hvdata, broken)), tf.errors.InvalidArgumentError, "bad row")


def test_inside_tf_function(hvdata, comm):
    raises_everywhere(comm, lambda: tf.function(lambda: hvdata.predict(lambda x: x, None))(), RuntimeError,
                      "predict.. was called where TensorFlow does not execute eagerly")
