# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of fit() on one rank: `interrupted_fit.py RANK`. The program goes on, and calls fit() again."""

import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import horovod_data as hvdata

hvdata.init()
size, kib = int(os.environ["HVDATA_TEST_TRAINERS"]), float(os.environ["HVDATA_TEST_KIB"])
BATCH = 4


def examples():
    x = np.ones([10 * BATCH * size, int(kib * 256) // BATCH], np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)


train = hvdata.distribute_dataset(examples, batch="per_rank", name="train", verify=True)
hvdata.serve()


class Interrupt(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and hvdata.rank() == int(sys.argv[1]):
            print("FAULT", time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGINT)


class Count(tf.keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(int(kib * 256) // BATCH,))])
model.compile("sgd", "mse")
try:
    model.fit(train, epochs=1, verbose=0, callbacks=[Interrupt()])
    print("FIT to its end", flush=True)
except KeyboardInterrupt:
    print("FIT interrupted", flush=True)
count = Count()
model.fit(train, epochs=2, verbose=0, callbacks=[count])
print("AGAIN", count.steps, flush=True)
