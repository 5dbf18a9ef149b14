# SPDX-License-Identifier: Apache-2.0
"""hvdata.predict: every rank predicts its part of the handwritten digits, and rank 0 writes one line per digit, in
order.

mpirun -np 4 python examples/predict_in_order.py [FILE]
"""

import os
import sys

import digits_data
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

hvdata.init()
if hvdata.rank() == 0:
    digits_data.write()

# A model without training: the mean image of each digit. The prediction is the digit with the nearest mean.
train = [(x["image"].numpy(), int(y)) for x, y in digits_data.images("train")] if hvdata.rank() == 0 else []
means = np.stack([np.mean([x for x, y in train if y == digit], axis=0) for digit in range(10)]) if train else None
means = hvdata.scatter(np.tile(means, [hvdata.size(), 1, 1, 1]) if train else None, dtype=tf.float32)


def nearest(x, y):
    distances = tf.reduce_sum(tf.square(x["image"][:, tf.newaxis] - means[tf.newaxis]), axis=[2, 3, 4])
    return {"id": x["id"], "digit": tf.argmin(distances, axis=1), "right": y}


def rows():
    return digits_data.images("valid").batch(100)  # 360 images, so the last batch has 60


got = hvdata.predict(nearest, rows if hvdata.is_reader() else None)
if hvdata.rank() == 0:
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(digits_data.FOLDER, "predictions.txt")
    with open(path, "w") as file:
        for ident, digit in zip(got["id"], got["digit"]):
            print(ident, digit, file=file)
    wanted = [int(x["id"]) for x, _ in digits_data.images("valid")]
    if got["id"].tolist() != wanted:
        sys.exit("the predictions are not in the order of the rows")
    print(
        f"{len(wanted)} predictions by {hvdata.size()} ranks in {path}, in order; right: {np.mean(got['digit'] == got['right']):.1%}"
    )
