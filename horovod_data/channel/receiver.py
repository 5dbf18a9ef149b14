# SPDX-License-Identifier: Apache-2.0
"""A trainer's side of a channel as a tf.data.Dataset, and how to find such datasets in a pipeline."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import tensorflow as tf

from ..ending import forks
from ..native import bindings, loader
from ..native import tensorflow_private as private
from . import tensors


class _ReceiverDataset(private.DatasetSource):
    """The dataset of this rank's shares."""

    def __init__(self, channel: int, label: str, steps: int, spec: Any, whole: bool):
        self._spec = spec
        self.label = label
        self.whole = whole  # the ranks together get all rows, in order and without padding
        parts = tensors.components(spec)
        session = bindings.session()
        with private.at_once(), tf.device("/CPU:0"):  # makes the op now, before the caller releases the channel
            variant = loader.load_ops().horovod_data_receiver(
                tf.constant(channel, tf.int64),
                tf.constant(session - (1 << 64) if session >= 1 << 63 else session, tf.int64),
                label,
                tf.constant(steps, tf.int64),
                output_types=[part.dtype for part in parts],
                output_shapes=[part.shape for part in parts],
            )
        super().__init__(variant)

    @property
    def element_spec(self) -> Any:
        return self._spec


class _Typed(private.UnaryDataset):
    """A mapped dataset with a better element_spec than TensorFlow finds for the map."""

    def __init__(self, dataset: tf.data.Dataset, spec: Any):
        self._spec = spec
        super().__init__(dataset, private.variant(dataset))

    @property
    def element_spec(self) -> Any:
        return self._spec


def receive(channel: int, label: str, steps: int, spec: Any, whole: bool, multiplies: bool) -> tf.data.Dataset:
    """The dataset of this rank's shares: `steps` elements (as tf.data counts) of this spec.

    `whole`: the ranks together get all rows, in order and without padding.
    `multiplies`: a share ((x, y, sample_weight), weight) becomes (x, y, sample_weight * weight).
    """
    dataset: tf.data.Dataset
    if tensors.has_composites(spec):
        flat = tuple(tf.TensorSpec(part.shape, part.dtype) for part in tensors.components(spec))
        dataset = _Typed(_ReceiverDataset(channel, label, steps, flat, whole).map(tensors.put_together(spec)), spec)
    else:
        dataset = _ReceiverDataset(channel, label, steps, spec, whole)
    if multiplies:
        dataset = _Typed(dataset.map(tensors.times_weight), spec[0])
    settings = tf.data.Options()
    # Otherwise Keras and tf.distribute would shard this rank's shares once more.
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Otherwise TensorFlow adds a prefetch. Its elements count as taken before the program has seen them. That breaks
    # the limit on the distance between ranks, and a checkpoint that rank 0 saves alone.
    settings.experimental_optimization.inject_prefetch = False
    # There is nothing to tune here. In TensorFlow 2.15 the tuner's thread can miss its cancellation, because it wakes
    # too early. Then the end of an iterator takes up to a minute.
    settings.autotune.enabled = False
    dataset = dataset.with_options(settings)
    if not private.tf2():  # programs with TF1 behaviour use make_one_shot_iterator() and similar methods
        dataset = private.DatasetV1Adapter(dataset)
    return dataset


def stages(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The stages of a pipeline, each once.

    Not recursive: a pipeline may have more stages than Python's stack allows.
    """
    seen: dict[int, tf.data.Dataset] = {}
    waiting = [dataset]
    while waiting:
        stage = waiting.pop()
        if id(stage) not in seen:
            seen[id(stage)] = stage
            yield stage
            waiting += _givers(stage)


def _givers(stage: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The stages from which this one gets its elements."""
    audited = getattr(stage, "_audited", None)  # a dataset that the stage's function captures
    return [*private.inputs(stage), *([audited] if isinstance(audited, tf.data.Dataset) else [])]


def stages_behind(ends: Sequence[tf.data.Dataset], dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The stages of a pipeline that get elements of `ends`, the nearest stage first."""
    takers: dict[int, list[tf.data.Dataset]] = {}
    for stage in map(private.unwrapped, stages(dataset)):
        for given in map(private.unwrapped, _givers(stage)):
            takers.setdefault(id(given), []).append(stage)
    found: dict[int, tf.data.Dataset] = {}
    waiting = list(ends)
    while waiting:
        for stage in takers.get(id(waiting.pop()), []):
            if id(stage) not in found:
                found[id(stage)] = stage
                waiting.append(stage)
    return list(found.values())


def protect_forks() -> None:
    """Protects forked children of this process from its iterators, sessions and channels. May be repeated."""
    forks.install(ends_of_channels)


def ends_of_channels(dataset: tf.data.Dataset) -> list[_ReceiverDataset]:
    """The stages of a pipeline that receive from a channel.

    It does not see a stage that a function captures.
    """
    return [stage for stage in stages(dataset) if isinstance(stage, _ReceiverDataset)]
