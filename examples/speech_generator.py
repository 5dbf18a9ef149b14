# SPDX-License-Identifier: Apache-2.0
"""Utterances of different lengths from a Python generator, padded batch by batch, as in the training of speech
toolkits.

    mpirun -np 3 python examples/speech_generator.py

TensorFlow 1 graph mode: one iterator over two channels, initialised again in every epoch. Batches are dicts of tensors
whose shapes differ from batch to batch. Only rank 0 runs the generator.
"""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

v1 = tf.compat.v1
UTTERANCES = {"train": 50, "dev": 11}
BATCH, CHANNELS, EPOCHS = 4, 40, 3
SPEC = {
    "features": tf.TensorSpec([None, CHANNELS], tf.float32),
    "features_length": tf.TensorSpec([], tf.int32),
    "labels": tf.TensorSpec([None], tf.int32),
    "labels_length": tf.TensorSpec([], tf.int32),
    "tag": tf.TensorSpec([], tf.string),
}


def utterance(split: str, number: int) -> dict:
    random = np.random.default_rng([number, len(split)])
    frames, letters = random.integers(20, 200), random.integers(1, 12)
    return {
        "features": random.normal(size=(frames, CHANNELS)).astype(np.float32),
        "features_length": np.int32(frames),
        "labels": random.integers(0, 30, letters).astype(np.int32),
        "labels_length": np.int32(letters),
        "tag": f"{split}/{number}",
    }


def utterances(split: str) -> tf.data.Dataset:
    def generate():
        for number in range(UTTERANCES[split]):
            yield utterance(split, number)

    return tf.data.Dataset.from_generator(generate, output_signature=SPEC).padded_batch(BATCH)


def is_right(batch: dict) -> bool:
    """Says whether every utterance of this batch is whole, with zeros after its end."""
    for i, tag in enumerate(batch["tag"]):
        split, number = tag.decode().split("/")
        made = utterance(split, int(number))
        for key in ("features", "labels"):
            length = batch[f"{key}_length"][i]
            if not np.array_equal(batch[key][i, :length], made[key]) or np.any(batch[key][i, length:]):
                return False
    return True


hvdata.init()

with tf.Graph().as_default(), v1.Session() as session:
    # Each batch of the generator goes to one rank. "partial": if the last batches are fewer than the ranks, the other
    # ranks get a batch without utterances. So all ranks make the same number of steps.
    channels = {
        split: hvdata.distribute_dataset(
            lambda split=split: utterances(split), batch="per_rank", remainder="partial", name=split
        )
        for split in UTTERANCES
    }
    hvdata.serve()
    iterator = v1.data.Iterator.from_structure(
        v1.data.get_output_types(channels["train"]), v1.data.get_output_shapes(channels["train"])
    )
    initializers = {split: iterator.make_initializer(channel) for split, channel in channels.items()}
    element = iterator.get_next()
    seen = []  # for each epoch and split: this rank's steps, tags and frames
    for epoch in range(EPOCHS):
        for split in UTTERANCES:
            session.run(initializers[split])
            steps, tags, shapes = 0, [], set()
            while True:
                try:
                    batch = session.run(element)
                except tf.errors.OutOfRangeError:
                    break
                if not is_right(batch):
                    sys.exit(f"epoch {epoch}, {split}, step {steps}: a batch is not what the generator made")
                steps += 1
                tags += batch["tag"].tolist()
                shapes.add(batch["features"].shape)
            seen.append((epoch, split, steps, tags, len(shapes)))

for entries in zip(*hvd.allgather_object(seen)):
    epoch, split = entries[0][:2]
    steps, tags, shapes = ([entry[i] for entry in entries] for i in (2, 3, 4))
    if len(set(steps)) != 1:
        sys.exit(f"epoch {epoch}, {split}: the ranks made {steps} steps")
    if sorted(sum(tags, [])) != sorted(f"{split}/{number}".encode() for number in range(UTTERANCES[split])):
        sys.exit(f"epoch {epoch}, {split}: not every utterance came exactly once: {tags}")
    if hvd.rank() == 0:
        print(
            f"epoch {epoch + 1}, {split}: {steps[0]} steps on every rank, utterances {[len(mine) for mine in tags]}, "
            f"together {UTTERANCES[split]}, each once; {shapes} different shapes"
        )
