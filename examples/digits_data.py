# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's 1,797 real handwritten digits as TFRecord files. They are written once, and read as a tf.data.Dataset.

python examples/digits_data.py [FOLDER]     writes the files unless they exist
"""

import os
import sys

import tensorflow as tf

FOLDER = os.environ.get("DIGITS_FOLDER", os.path.join(".demo", "digits"))
IMAGES = {"train": 1437, "valid": 360}  # every fifth image is for validation
SHARDS = {"train": 4, "valid": 2}


def files(split: str, folder: str = FOLDER) -> list[str]:
    return [os.path.join(folder, f"{split}-{i:05}-of-{SHARDS[split]:05}.tfrecord") for i in range(SHARDS[split])]


def images(split: str, folder: str = FOLDER) -> tf.data.Dataset:
    """Elements ({"image": float32 [8, 8, 1], "id": int64}, label), one per image. "train" is shuffled again in each
    epoch."""
    dataset = tf.data.TFRecordDataset(files(split, folder))
    if split == "train":
        # One seed for the whole job: if every rank reads, all ranks need the same order.
        dataset = dataset.shuffle(IMAGES["train"], seed=1)
    return dataset.map(_parse, num_parallel_calls=2)


def write(folder: str = FOLDER) -> bool:
    """Writes the files. Returns False if they existed."""
    wanted = [path for split in IMAGES for path in files(split, folder)]
    if all(map(os.path.exists, wanted)):
        return False
    from sklearn.datasets import load_digits

    digits = load_digits()
    os.makedirs(folder, exist_ok=True)
    # Written under other names and renamed at the end, so that existing files are always complete.
    writers = {path: tf.io.TFRecordWriter(path + ".part") for path in wanted}
    rows = {"train": 0, "valid": 0}
    for i, (image, label) in enumerate(zip(digits.images, digits.target)):
        split = "valid" if i % 5 == 0 else "train"
        # Ids count from 1, so that the zeros of padding rows are not an id.
        record = _record(image.astype("uint8").tobytes(), int(label), ident=i + 1)
        writers[files(split, folder)[rows[split] % SHARDS[split]]].write(record)
        rows[split] += 1
    for path, writer in writers.items():
        writer.close()
        os.replace(path + ".part", path)
    assert rows == IMAGES, rows
    return True


def _record(image: bytes, label: int, ident: int) -> bytes:
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[ident])),
            }
        )
    ).SerializeToString()


def _parse(record: tf.Tensor):
    scalar = tf.io.FixedLenFeature([], tf.int64)
    example = tf.io.parse_single_example(
        record, {"image": tf.io.FixedLenFeature([], tf.string), "label": scalar, "id": scalar}
    )
    pixels = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [8, 8, 1])
    return {"image": tf.cast(pixels, tf.float32) / 16, "id": example["id"]}, example["label"]


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else FOLDER
    print(f"{folder}: {'written' if write(folder) else 'already there'}")
