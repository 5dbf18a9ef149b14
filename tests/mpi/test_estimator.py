# SPDX-License-Identifier: Apache-2.0
"""tf.estimator: input_fn is called in a new graph for every train and evaluate, and takes its channel up again."""

import numpy as np
import pytest
import tensorflow as tf
from together import results

pytestmark = pytest.mark.world(np=2)

if not hasattr(tf, "estimator"):
    pytest.skip("TensorFlow after 2.15 has no tf.estimator: STACK=2.15 make smoke", allow_module_level=True)

v1 = tf.compat.v1
TRAIN, VALID = 48, 24


def model_fn(features, labels, mode):
    """Counts how often each label came, in a variable: what was trained on, and what was evaluated."""
    with v1.variable_scope("seen", reuse=v1.AUTO_REUSE):
        seen = v1.get_variable("seen", [TRAIN], initializer=v1.zeros_initializer(), use_resource=True)
        w = v1.get_variable("w", [], initializer=v1.zeros_initializer(), use_resource=True)
    loss = tf.reduce_mean((w * features - tf.cast(labels, tf.float32)) ** 2)
    if mode == tf.estimator.ModeKeys.EVAL:
        total = v1.metrics.mean(tf.cast(labels, tf.float32))
        count = v1.metrics.mean_tensor(tf.reduce_sum(tf.one_hot(labels, TRAIN), axis=0))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"label": total, "seen": count})
    step = v1.train.get_or_create_global_step()
    count = seen.scatter_add(tf.IndexedSlices(tf.ones_like(features), labels))
    with tf.control_dependencies([count]):
        train = v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def examples(n):
    return tf.data.Dataset.from_tensor_slices((np.ones(n, np.float32), np.arange(n))).batch(12, drop_remainder=True)


@pytest.fixture
def estimator(tmp_path):
    config = tf.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=10**6, save_summary_steps=10**6)
    return tf.estimator.Estimator(model_fn, config=config)


def test_train_and_evaluate_in_turn(hvdata, comm, estimator):
    calls = []

    def train_examples():
        calls.append("train")
        return examples(TRAIN)

    def train_fn():
        return hvdata.distribute_dataset(train_examples, batch="global", name="estimator-train")

    def valid_fn():
        return hvdata.distribute_dataset(lambda: examples(VALID), batch="global", name="estimator-valid")

    def run():
        seen = []
        for _ in range(3):
            estimator.train(train_fn)  # to the end of the data
            evaluated = estimator.evaluate(valid_fn)
            seen.append((estimator.get_variable_value("seen/seen"), evaluated["seen"] * (VALID // 12)))
        return seen, int(estimator.get_variable_value("global_step"))

    got = results(comm, run)
    assert [steps for _, steps in got] == [3 * TRAIN // 12] * comm.size
    for epoch in range(3):
        assert sum(seen[epoch][0] for seen, _ in got).tolist() == [epoch + 1.0] * TRAIN
        assert np.round(sum(seen[epoch][1] for seen, _ in got)).tolist() == [1.0] * VALID + [0.0] * (TRAIN - VALID)
    assert comm.allgather(calls) == [["train"]] + [[]] * (comm.size - 1)  # the function is called once per channel
