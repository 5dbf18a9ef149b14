# SPDX-License-Identifier: Apache-2.0
"""What stands before every Python block of README.md and docs/ when the tests run it."""

import horovod.tensorflow as hvd  # noqa: F401
import numpy as np  # noqa: F401
import tensorflow as tf

import horovod_data as hvdata

hvdata.init()


def make_train() -> tf.data.Dataset:
    """96 rows (x, y), in batches of 32."""
    x = tf.reshape(tf.range(96 * 4), [96, 4])
    return tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(32)
