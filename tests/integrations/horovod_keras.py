# SPDX-License-Identifier: Apache-2.0
"""Tries each part of Horovod's Keras layer, with the Keras behind tf.keras. Rank 0 prints "works" or an error for each.

    HVDATA_TEST_LAYER=horovod.tensorflow.keras mpirun -np 2 python horovod_keras.py

tests/integrations/test_frameworks.py compares that with the table in docs/frameworks.md.
"""

import functools
import importlib
import os
import traceback

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

keras = tf.keras


def rows() -> tf.data.Dataset:
    x = np.random.default_rng(7).normal(size=(64, 8)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16)


def model_of(optimizer=None) -> keras.Model:
    """Compiled, with other weights on each rank."""
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.0), loss="mse")
    return model


def everywhere(value) -> list:
    return [np.asarray(each) for each in hvd.allgather_object(value)]


def same(value) -> bool:
    first, *others = everywhere(value)
    return all(np.allclose(first, other, rtol=0, atol=1e-6) for other in others)


def plain(variables) -> list:
    """TensorFlow's variables in those of Keras 3."""
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]


def distributed_optimizer(hvdk) -> str:
    """Ranks must end with the weights of one process, in which each step has the rows of all."""
    wanted = model_of(keras.optimizers.SGD(0.05))
    model = model_of(hvdk.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    for each, batches in (wanted, rows()), (model, data):
        each.set_weights([np.zeros((8, 1)), np.zeros(1)])
        each.fit(batches, epochs=2, verbose=0)
    close = [np.allclose(*pair, rtol=0, atol=1e-5) for pair in zip(model.get_weights(), wanted.get_weights())]
    return "works" if all(np.ravel(everywhere(close))) else "no error, but gradients are not averaged"


def broadcast_callback(hvdk) -> str:
    model = model_of()
    before = same(model.get_weights()[0])
    model.fit(data, verbose=0, callbacks=[hvdk.callbacks.BroadcastGlobalVariablesCallback(0)])
    return "works" if same(model.get_weights()[0]) and not before else "nothing is broadcast"


def metric_callback(hvdk) -> str:
    history = model_of().fit(data, verbose=0, callbacks=[hvdk.callbacks.MetricAverageCallback()]).history
    return "works" if same(history["loss"]) else "metrics are not averaged"


def warmup_callback(hvdk, **options) -> str:
    model = model_of(keras.optimizers.SGD(0.1 * hvd.size()))
    callback = hvdk.callbacks.LearningRateWarmupCallback(
        0.1 * hvd.size(), warmup_epochs=2, steps_per_epoch=4, **options
    )
    history = model.fit(data, epochs=2, verbose=0, callbacks=[callback]).history
    return "works" if np.isclose(history["lr"][-1], 0.1 * hvd.size()) else f"rates {history['lr']}"


def gradient_tape(hvdk) -> str:
    model = model_of()
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_mean(tf.square(model(x))) for x, _ in data])
    gradient, _ = hvd.DistributedGradientTape(tape).gradient(loss, plain(model.trainable_variables))
    return "works" if same(gradient.numpy()) and not same(loss.numpy()) else "gradients are not averaged"


def broadcast_variables(hvdk) -> str:
    model = model_of()
    hvd.broadcast_variables(plain(model.variables), root_rank=0)
    return "works" if same(model.get_weights()[0]) else "nothing is broadcast"


def hvdata_fit(hvdk) -> str:
    class Seen(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1

    seen = Seen()
    model_of().fit(data, epochs=2, validation_data=data, verbose=0, callbacks=[seen])
    return "works" if everywhere(seen.batches) == [8] * hvd.size() else f"{seen.batches} steps"


PARTS = {
    "hvd.DistributedOptimizer": distributed_optimizer,
    "BroadcastGlobalVariablesCallback": broadcast_callback,
    "MetricAverageCallback": metric_callback,
    "LearningRateWarmupCallback": warmup_callback,
    "LearningRateWarmupCallback(momentum_correction=False)": functools.partial(
        warmup_callback, momentum_correction=False
    ),
    "hvd.DistributedGradientTape": gradient_tape,
    "hvd.broadcast_variables": broadcast_variables,
    "hvdata.distribute_dataset": hvdata_fit,
}

hvdata.init()
data = hvdata.distribute_dataset(rows, batch="global")
hvdata.serve()
for part, run in PARTS.items():
    try:
        outcome = run(importlib.import_module(os.environ["HVDATA_TEST_LAYER"]))
    except Exception as error:  # the same on all ranks, so that they go on together
        if os.environ.get("SHOW"):
            traceback.print_exc()
        outcome = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        if "does not average" in outcome:  # of hvdata.init(); test_keras_3_jobs.py has its text
            outcome = type(error).__name__
    if hvd.rank() == 0:
        print(f"{part}: {outcome}", flush=True)
