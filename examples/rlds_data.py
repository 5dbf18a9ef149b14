# SPDX-License-Identifier: Apache-2.0
"""Episodes of a simulated robot in the layout of RLDS. They are written once, and read as a tf.data.Dataset of frames.

python examples/rlds_data.py [FOLDER [EPISODES FRAMES SIDE]]     writes the files unless they exist

An episode is one record, in which each feature has a value for each frame. Pictures are JPEG.
"""

import os
import sys

import numpy as np
import tensorflow as tf

FOLDER = os.environ.get("RLDS_FOLDER", os.path.join(".demo", "rlds"))
EPISODES, FRAMES, SIDE = 24, 40, 32  # frames of an episode, and pixels of a picture's side
FILES, PICTURES, JOINTS = 4, 64, 7
TASKS = ("open the drawer", "pick up the cup", "close the drawer", "put the cup on the plate")


def files(folder: str = FOLDER) -> list[str]:
    return [os.path.join(folder, f"train-{i:05}-of-{FILES:05}.tfrecord") for i in range(FILES)]


def frames(folder: str = FOLDER, buffer: int = 500, seed: int = 1, shard=None) -> tf.data.Dataset:
    """Elements {"id": int64, "image": uint8 [side, side, 3], "state": float32 [7], "action": float32 [7], "task": string}, one
    per frame. A buffer of `buffer` decoded frames shuffles them. `shard`: (ranks, rank), if every rank keeps a part.
    """
    dataset = tf.data.TFRecordDataset(files(folder)).flat_map(_frames_of)
    if shard:  # before decode, where it saves the most work
        dataset = dataset.shard(*shard)
    return dataset.map(_decode, num_parallel_calls=tf.data.AUTOTUNE).shuffle(buffer, seed=seed)


def _frames_of(record: tf.Tensor) -> tf.data.Dataset:
    def each(shape, dtype):
        return tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=True)

    episode = tf.io.parse_single_example(
        record,
        {
            "id": each([], tf.int64),
            "steps/observation/image": each([], tf.string),
            "steps/observation/state": each([JOINTS], tf.float32),
            "steps/action": each([JOINTS], tf.float32),
            "steps/language_instruction": each([], tf.string),
        },
    )
    return tf.data.Dataset.from_tensor_slices({name.rpartition("/")[2]: value for name, value in episode.items()})


def _decode(frame):
    task = frame.pop("language_instruction")
    return {**frame, "image": tf.io.decode_jpeg(frame["image"], channels=3), "task": task}


def write(folder: str = FOLDER, episodes: int = EPISODES, length: int = FRAMES, side: int = SIDE) -> bool:
    """Writes the files. Returns False if they existed. The brightness of a frame's picture is a part of its action."""
    if all(map(os.path.exists, files(folder))):
        return False
    os.makedirs(folder, exist_ok=True)
    random = np.random.default_rng(7)
    coarse = random.uniform(0, 255, (PICTURES, 8, 8, 3)) * np.linspace(0.2, 1, PICTURES)[:, None, None, None]
    pictures = tf.cast(tf.image.resize(coarse, (side, side)), tf.uint8)
    encoded = [tf.io.encode_jpeg(picture).numpy() for picture in pictures]
    brightness = pictures.numpy().mean(axis=(1, 2, 3)) / 255
    # Written under other names and renamed at the end, so that existing files are always complete.
    writers = [tf.io.TFRecordWriter(path + ".part") for path in files(folder)]
    for number in range(episodes):
        shown = random.integers(PICTURES, size=length)
        state = random.normal(size=(length, JOINTS)).astype(np.float32)
        action = state / 2
        action[:, 0] += brightness[shown]
        features = {
            "id": np.arange(number * length, (number + 1) * length),
            "steps/observation/image": [encoded[picture] for picture in shown],
            "steps/observation/state": state.ravel(),
            "steps/action": action.ravel(),
            "steps/language_instruction": [TASKS[number % len(TASKS)].encode()] * length,
        }
        example = tf.train.Example(
            features=tf.train.Features(feature={name: _feature(values) for name, values in features.items()})
        )
        writers[number % FILES].write(example.SerializeToString())
    for path, writer in zip(files(folder), writers):
        writer.close()
        os.replace(path + ".part", path)
    return True


def _feature(values) -> tf.train.Feature:
    if isinstance(values, list):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values.dtype.kind == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


if __name__ == "__main__":
    folder, *sizes = sys.argv[1:] or [FOLDER]
    print(f"{folder}: {'written' if write(folder, *map(int, sizes)) else 'already there'}")
