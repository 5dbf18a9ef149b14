# SPDX-License-Identifier: Apache-2.0
"""Keras and Horovod learn the handwritten digits that digits_data.py wrote."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from digits_data import images
from digits_ledger import Ledger

BATCH = 128  # of all ranks together
EPOCHS = 12

hvd.init()


def share(split):
    return images(split).shard(hvd.size(), hvd.rank()).batch(BATCH // hvd.size())


train, valid = share("train"), share("valid")

tf.keras.utils.set_random_seed(1 + hvd.rank())  # each rank draws numbers of its own; rank 0's weights go to all
model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.002 * hvd.size())),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)
ledger = Ledger()
model.fit(
    ledger.watch("train", train),
    validation_data=ledger.watch("valid", valid),
    epochs=EPOCHS,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), ledger],
)
ledger.check(model, valid, least_accuracy=0.95)
