# SPDX-License-Identifier: Apache-2.0
"""shard="auto": several readers of one pipeline divide its files between them, or its elements.

As tf.data's own AutoShard, which does the files here, but for what that gets wrong: it divides the files also where a stage
counts (take(10) would be ten of each reader), and elements also where their order differs from reader to reader.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Iterator

import tensorflow as tf

from . import tensorflow_private as private
from .errors import explain
from .receiving import stages

# Stages that do the same with some of the files as with all of them, by the names of their classes without `Dataset`.
_ALIKE = frozenset({
    "Batch", "Cache", "DenseToRagged", "Filter", "FixedLengthRecord", "FlatMap", "IgnoreErrors", "Interleave", "Map", "Options",
    "PaddedBatch", "ParallelBatch", "ParallelInterleave", "ParallelMap", "Prefetch", "RaggedBatch", "Repeat", "Shuffle", "TFRecord",
    "TextLine", "Unbatch"})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Part:
    """What one of several readers reads of a dataset that all of them have."""

    dataset: tf.data.Dataset
    kind: str  # "files" or "elements"
    files: int = 0  # of all readers
    digest: str = ""  # of their names
    why: str = ""  # not by files


def part_of(dataset: tf.data.Dataset, reader: int, readers: int) -> Part:
    """This reader's part.

    Raises:
      ValueError: the order of the elements, which have to be divided, is not the same on all readers.
    """
    files, why = _files(dataset, readers)
    if files:
        try:
            digest = hashlib.sha256(b"\0".join(files)).hexdigest()
            return Part(private.shard_files(dataset, reader, readers), "files", len(files), digest)
        except tf.errors.OpError:
            why = "what reads the files is not known to tf.data"
    if unordered := next(_unordered(dataset), None):
        raise ValueError(explain(
            f'shard="auto" cannot give each reader its own files ({why}), nor its own elements: '
            f"{unordered}, so every reader has another order, and elements would come twice or not at all",
            "Give it a seed, or let the dataset function take a tf.distribute.InputContext and shard by num_input_pipelines and "
            "input_pipeline_id"))
    return Part(dataset.shard(readers, reader), "elements", why=why)


def _files(dataset: tf.data.Dataset, readers: int) -> tuple[list[bytes], str]:
    """The files to divide, in some order; or none, and why it can't be done."""
    sources = []
    for stage in stages(dataset):
        if not list(private.inputs(stage)):
            sources.append(stage)
        elif (name := _name(stage)) not in _ALIKE:
            return [], f"{name} counts, or is not known"
        elif private.caches_in_a_file(stage):  # which readers of one file system share: one would find another's part there
            return [], "cache() has a file"
    if len(sources) != 1:
        return [], f"{len(sources)} sources"
    spec = sources[0].element_spec
    if not (isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape.rank == 0):
        return [], "it does not begin with a list of files"
    count = int(sources[0].cardinality())
    if count < readers:
        return [], f"{count} files for {readers} readers" if count >= 0 else "nobody knows how many files there are"
    return sorted(sources[0].as_numpy_iterator()), ""


def _name(stage: tf.data.Dataset) -> str:
    return type(stage).__name__.lstrip("_").removesuffix("V1").removesuffix("V2").removesuffix("Dataset")


def _unordered(dataset: tf.data.Dataset) -> Iterator[str]:
    """What makes the order of the elements another one on each reader."""
    if dataset.options().deterministic is False:
        yield "its options say deterministic=False"
    for stage in stages(dataset):
        for who, seeds in private.seeds(stage):
            # Zeros stand for seeds that TensorFlow draws anew.
            if all(value is not None and int(value) == 0 for value in map(tf.get_static_value, seeds)):
                yield f"{who} has no seed"
