# SPDX-License-Identifier: Apache-2.0
"""A Keras callback that records which images each rank got, and compares the records of all ranks."""

import sys
import zlib

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from digits_data import IMAGES

# without the warning, on every rank, that the broadcast after the first batch is slow
tf.get_logger().setLevel("ERROR")


class Ledger(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self._steps = {split: [] for split in IMAGES}  # for each step of this epoch on this rank: its ids

    def watch(self, split: str, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Notes the ids and removes them: Keras gets (image, label) or (image, label, weight)."""

        def note(features, *rest):
            tf.numpy_function(self._steps[split].append, [features["id"]], [])
            return features["image"], *rest

        return dataset.map(note)

    def on_epoch_end(self, epoch, logs=None):
        for split in IMAGES:
            mine = self._steps[split]
            ids = np.concatenate(mine or [np.zeros(0, np.int64)])
            gathered = hvd.allgather_object((len(mine), ids[ids > 0]))  # padding has no id
            mine.clear()
            steps, shares = zip(*gathered)
            line = f"epoch {epoch + 1:2}, {split}: steps {_row(steps)}, rows {_row(map(len, shares))} on ranks 0.."
            line += f"{hvd.size() - 1}"
            every_id, times = np.unique(np.concatenate(shares), return_counts=True)
            once = len(every_id) == IMAGES[split] and np.all(times == 1)
            _prove(len(set(steps)) == 1, f"{line}: the ranks did not make the same number of steps")
            _prove(once, f"{line}: {len(every_id)} of {IMAGES[split]} images came, up to {max(times, default=0)} times")
            _say(f"{line}: all {IMAGES[split]} images, each delivered once")

    def check(self, model: tf.keras.Model, valid: tf.data.Dataset, least_accuracy: float) -> None:
        """Checks over all ranks that the weights are equal, and that the model is good."""
        checksum = zlib.crc32(b"".join(weight.tobytes() for weight in model.get_weights()))
        sums = hvd.allgather_object(checksum)
        _prove(len(set(sums)) == 1, f"the ranks ended with different weights, checksums {sums}")
        _say(f"all {hvd.size()} ranks ended with equal weights (checksum {checksum:08x})")

        right = 0
        for features, label, *_ in valid:
            guess = np.argmax(model(features["image"], training=False), axis=1)
            right += int(np.sum((guess == label.numpy()) & (features["id"].numpy() > 0)))
        right = sum(hvd.allgather_object(right))
        accuracy = right / IMAGES["valid"]
        said = f"validation accuracy {accuracy:.4f} ({right} of {IMAGES['valid']} images, counted over the ranks)"
        _prove(accuracy >= least_accuracy, f"{said} is below {least_accuracy}")
        _say(said)


def _row(numbers) -> str:
    return " ".join(map(str, numbers))


def _prove(true: bool, otherwise: str) -> None:
    # Every rank has the same gathered numbers, so either all ranks exit or none.
    if not true:
        sys.exit(f"NOT TRUE: {otherwise}")


def _say(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)
