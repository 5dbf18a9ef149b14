# SPDX-License-Identifier: Apache-2.0
"""The data of a profile: in files, as DLIO writes and reads them, and ready-made.

DLIO drops the data that it has read. It gives the accelerator a random sample of the profile's size, which is made
once. Here the bytes that were read arrive. An image is filled up with zeros. A volume is cut to its first bytes. This
replaces decoding and cutting, and costs a copy.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from profiles import PREFETCH, Profile

MOST = 8  # the most parallel calls, because each holds a batch


def write(profile: Profile, directory: Path) -> None:
    """Writes files of random bytes.

    They are on the disk when it returns, so that no write-back disturbs a measurement.
    """
    random = np.random.default_rng(1)
    for number in range(profile.files):
        path = directory / f"{number:04}.{profile.format}"
        if profile.format == "npz":
            samples = np.frombuffer(random.bytes(profile.read * profile.samples), np.uint8).reshape(-1, profile.samples)
            np.savez(path, x=samples, y=[0] * profile.samples)
        else:
            with tf.io.TFRecordWriter(str(path)) as records:
                for _ in range(profile.samples):
                    records.write(_example(random.bytes(profile.read)))
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _example(image: bytes) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "size": tf.train.Feature(int64_list=tf.train.Int64List(value=[len(image)])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@dataclasses.dataclass(frozen=True)
class _Samples:
    """The interface that rivals need of a batch (see ranks/setting.py): uint8[rows, columns]."""

    profile: Profile

    @property
    def bytes(self) -> int:
        return self.profile.batch

    @property
    def rows(self) -> int:
        return self.profile.rows

    def zeros(self, rows: int) -> tf.Tensor:
        return tf.zeros([rows, self.profile.delivered], tf.uint8)


class ReadyMade(_Samples):
    def own(self) -> tf.data.Dataset:
        return self.whole(1)

    def whole(self, ranks: int) -> tf.data.Dataset:
        """Global batches. The rows for rank r hold the number r."""
        owners = tf.repeat(tf.range(ranks), self.rows)
        rows = tf.tile(tf.cast(owners, tf.uint8)[:, None], [1, self.profile.delivered])
        return tf.data.Dataset.from_tensors(rows).repeat()


@dataclasses.dataclass(frozen=True)
class Stored(_Samples):
    directory: Path
    feeds: int = 1  # the ranks that this pipeline feeds; it has threads for as many ranks, at most MOST

    @property
    def paths(self) -> list[str]:
        return [str(path) for path in sorted(self.directory.glob(f"*.{self.profile.format}"))]

    def own(self) -> tf.data.Dataset:
        return self._batches(self._files(), self.rows)

    def whole(self, ranks: int) -> tf.data.Dataset:
        return self._batches(self._files(), ranks * self.rows)

    def part(self, ranks: int, rank: int) -> tf.data.Dataset:
        """One rank's batches, from its own part of the files."""
        return self._batches(self._files().shard(ranks, rank), self.rows)

    def _files(self) -> tf.data.Dataset:
        """The files, shuffled once as in DLIO's default with a seed, and repeated, because a profile has more files
        than this."""
        files = tf.data.Dataset.from_tensor_slices(self.paths)
        return files.shuffle(self.profile.files, seed=1, reshuffle_each_iteration=False).repeat()

    def _batches(self, files: tf.data.Dataset, rows: int) -> tf.data.Dataset:
        read = self._volumes if self.profile.format == "npz" else self._images
        return read(files, rows).prefetch(PREFETCH)

    def _images(self, files: tf.data.Dataset, rows: int) -> tf.data.Dataset:
        """The stages of DLIO's TFReader, in the same order."""

        def parse(records: tf.Tensor) -> tf.Tensor:
            features = {"image": tf.io.FixedLenFeature([], tf.string), "size": tf.io.FixedLenFeature([], tf.int64)}
            image = tf.io.parse_example(records, features)["image"]
            pixels = tf.io.decode_raw(image, tf.uint8, fixed_length=self.profile.delivered)
            return tf.ensure_shape(pixels, [rows, self.profile.delivered])

        records = tf.data.TFRecordDataset(files, num_parallel_reads=self.profile.read_threads)
        if self.profile.shuffle:
            records = records.shuffle(self.profile.shuffle, seed=1)
        calls = min(MOST, self.feeds * self.profile.computation_threads)
        return records.batch(rows, drop_remainder=True).map(parse, num_parallel_calls=calls)

    def _volumes(self, files: tf.data.Dataset, rows: int) -> tf.data.Dataset:
        """Whole files, read by an operation of TensorFlow. DLIO's NPZReader reads whole files, too, with np.load.

        A tf.data service can't be stopped while a pipeline calls Python. It holds the interpreter's lock, and waits for
        the call.
        """
        begin = _begin_of_data(self.paths[0])

        def sample(path: tf.Tensor) -> tf.Tensor:
            first = tf.strings.substr(tf.io.read_file(path), begin, self.profile.delivered)
            return tf.ensure_shape(tf.io.decode_raw(first, tf.uint8), [self.profile.delivered])

        return files.map(sample, num_parallel_calls=self.profile.read_threads).batch(rows, drop_remainder=True)


def _begin_of_data(npz: str) -> int:
    """The place where the numbers of `x` begin in the file.

    It is the same in all files that np.savez wrote with one shape.
    """
    with zipfile.ZipFile(npz) as archive, archive.open("x.npy") as member, open(npz, "rb") as file:
        np.lib.format.read_magic(member)
        np.lib.format.read_array_header_1_0(member)
        header = archive.getinfo("x.npy").header_offset
        file.seek(header + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        return header + 30 + name + extra + member.tell()
