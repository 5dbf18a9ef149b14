# SPDX-License-Identifier: Apache-2.0
"""shard="auto": the readers of one pipeline divide its files, or its elements, between them.

tf.data's AutoShard divides the files, and Dataset.shard() divides the elements. Neither notices a wrong result. This
module finds two causes of wrong results:

- A stage counts elements. Then the files must not be divided. For example, take(10) would take ten elements on each
  reader.
- The readers have the elements in different orders. Then the elements must not be divided.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import tensorflow as tf

from ...errors import explained
from ...native import tensorflow_private as private
from ..receiver import stages
from .order import outline_of, unordered, varies
from .summary import PartSummary

# Stages that treat a part of the files as they treat all files. Each name is the name of a class without `Dataset`.
_ALIKE = frozenset({
    "Batch", "Cache", "DenseToRagged", "Filter", "FixedLengthRecord", "FlatMap", "IgnoreErrors", "Interleave", "Map", "Options",
    "PaddedBatch", "ParallelBatch", "ParallelInterleave", "ParallelMap", "Prefetch", "RaggedBatch", "Repeat", "Shuffle", "TFRecord",
    "TextLine", "Unbatch"})  # fmt: skip

# Stages that AutoShard moves: it divides the list of files first, even if such a stage comes directly after the list.
_MOVED = frozenset({"Shuffle"})
_READS_FILES = ("TextLine", "TFRecord", "FixedLengthRecord")


@dataclasses.dataclass(frozen=True)
class ReaderPart:
    """The part of a common dataset that one of several readers reads."""

    dataset: tf.data.Dataset
    summary: PartSummary
    varies: bool = False  # each reader draws its own random numbers for the values of the elements

    @property
    def divides_elements(self) -> bool:
        """Says whether this reader pulls all elements of the pipeline, but delivers only those of `dataset`."""
        return self.summary.kind == "elements"


def _digest(names: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\0".join(names)).hexdigest()


def part_of(dataset: tf.data.Dataset, reader: int, readers: int) -> ReaderPart:
    """This reader's part. Raises ValueError if the pipeline can't be divided."""
    chain = list(stages(dataset))
    if any(private.caches_in_a_file(stage) for stage in chain):
        raise explained(
            ValueError,
            f'shard="auto" gives the pipeline to {readers} readers, and its cache() has a file: each of them would write '
            "that file with other elements, or find it locked",
            "Use cache() without a file; or leave shard out, and let the dataset function take a "
            "tf.distribute.InputContext, shard by num_input_pipelines and input_pipeline_id, and cache in a file of its own",
        )
    files, why = _files(dataset, chain, readers)
    if files:
        try:
            what = f"reads its own files, of {len(files)}"
            summary = PartSummary("files", _digest(files), _digest(sorted(files)), what=what)
            return ReaderPart(private.shard_files(dataset, reader, readers), summary)
        except tf.errors.OpError:
            why = "tf.data does not know the stage that reads the files"
    if reason := next(unordered(dataset, chain), None):
        raise explained(
            ValueError,
            f'shard="auto" cannot give each reader its own files ({why}), nor its own elements: '
            f"{reason}, so every reader has another order, and elements would come twice or not at all",
            "Give it a seed, or let the dataset function take a tf.distribute.InputContext and shard by num_input_pipelines and "
            "input_pipeline_id",
        )
    kinds, seeds = outline_of(chain)
    what = f"reads everything and delivers one element in {readers} ({why})"
    differ = varies(chain)
    if differ:
        what += "; the values of elements aren't compared, because a function in the pipeline draws random numbers"
    summary = PartSummary("elements", kinds=kinds, seeds=seeds, what=what)
    return ReaderPart(dataset.shard(readers, reader), summary, differ)


def _files(dataset: tf.data.Dataset, chain: list[tf.data.Dataset], readers: int) -> tuple[tuple[bytes, ...], str]:
    """Returns the files to divide, in their order, and an empty text. Otherwise returns no files, and the reason."""
    sources = []
    for stage in chain:
        if not list(private.inputs(stage)):
            sources.append(stage)
        elif (name := private.name(stage)) not in _ALIKE:
            return (), f"{name} counts elements, or is unknown"
    if len(sources) != 1:
        return (), f"{len(sources)} sources"
    spec = sources[0].element_spec
    if not (isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape.rank == 0):
        return (), "it does not begin with a list of files"
    count = int(sources[0].cardinality())
    if count < readers:
        return (), f"{count} files for {readers} readers" if count >= 0 else "the number of files is unknown"
    # The first stages yield names of files. A later stage reads these files. All readers must have the names in the
    # same order. The pipeline is a chain, because it has one source and no stage with several inputs.
    names = chain[next((i for i in reversed(range(len(chain))) if _reads_files(chain[i])), -1) + 1 :]
    if next(unordered(dataset, names, _MOVED) if len(names) > 1 else iter(()), None):
        return (), "names of files have another order on each reader"
    return tuple(sources[0].as_numpy_iterator()), ""


def _reads_files(stage: tf.data.Dataset) -> bool:
    """Says whether a stage, or a dataset in its function, reads a file by its name."""
    return private.name(stage) in _READS_FILES or any(
        node.op.endswith(("Dataset", "DatasetV2")) and node.op.startswith(_READS_FILES)
        for node in private.function_nodes(stage)
    )
