# SPDX-License-Identifier: Apache-2.0
"""A rank's end of a channel as a tf.data.Dataset."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import tensorflow as tf

from ..native import bindings, loader
from ..native import tensorflow_private as private
from . import elements


class _ReceiverDataset(private.DatasetSource):
    """This rank's shares, as flat tensors or in their structure."""

    def __init__(self, channel: int, label: str, steps: int, spec: Any, whole: bool):
        self._spec = spec
        self.label = label
        self.whole = whole  # all rows come, in order and without padding
        parts = elements.components(spec)
        types, shapes = elements.flat_types(parts)
        session = bindings.session()
        with private.at_once(), tf.device("/CPU:0"):  # the caller's use of the channel may go next
            variant = loader.load().ops.horovod_data_receiver(
                tf.constant(channel, tf.int64),
                tf.constant(session - (1 << 64) if session >= 1 << 63 else session, tf.int64),
                label,
                tf.constant(steps, tf.int64),
                output_types=types,
                output_shapes=shapes,
            )
        super().__init__(variant)

    @property
    def element_spec(self) -> Any:
        return self._spec


class _Typed(private.UnaryDataset):
    """The same dataset, whose static shapes are known better than TensorFlow sees from the map that made it."""

    def __init__(self, dataset: tf.data.Dataset, spec: Any):
        self._spec = spec
        super().__init__(dataset, private.variant(dataset))

    @property
    def element_spec(self) -> Any:
        return self._spec


def receive(channel: int, label: str, steps: int, spec: Any, whole: bool) -> tf.data.Dataset:
    """This rank's shares of a channel, of which there are `steps` (as tf.data counts) with this spec. `whole`: those of all ranks
    are all rows, in order and without padding."""
    dataset: tf.data.Dataset
    if elements.has_composites(spec):
        flat = tuple(tf.TensorSpec(part.shape, part.dtype) for part in elements.components(spec))
        dataset = _Typed(_ReceiverDataset(channel, label, steps, flat, whole).map(elements.put_together(spec)), spec)
    else:
        dataset = _ReceiverDataset(channel, label, steps, spec, whole)
    settings = tf.data.Options()
    # Keras and tf.distribute would otherwise shard once more what is this rank's own already.
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # TensorFlow would add a prefetch of its own: elements that count as taken but that nobody has, which breaks the bound
    # on how far ranks run apart, and a checkpoint saved by rank 0 alone.
    settings.experimental_optimization.inject_prefetch = False
    # Nothing here can be tuned, and the tuner's thread can miss its cancellation (TensorFlow 2.15 wakes it before it marks
    # the cancellation as done): then the end of an iterator takes up to a minute.
    settings.autotune.enabled = False
    dataset = dataset.with_options(settings)
    if not private.tf2():  # TF1 behaviour: people expect make_one_shot_iterator() and its like
        dataset = private.DatasetV1Adapter(dataset)
    return dataset


def stages(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The stages of a pipeline, each once. There may be more of them than Python's stack has room for."""
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
    audited = getattr(stage, "_audited", None)  # which its function captures
    return [*private.inputs(stage), *([audited] if isinstance(audited, tf.data.Dataset) else [])]


def stages_behind(ends: Sequence[tf.data.Dataset], dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The stages of a pipeline that get what comes from these, the nearest first."""
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


def ends_of_channels(dataset: tf.data.Dataset) -> list[_ReceiverDataset]:
    """The stages of a pipeline that are ends of channels. One that a function captures is not seen."""
    return [stage for stage in stages(dataset) if isinstance(stage, _ReceiverDataset)]
