# SPDX-License-Identifier: Apache-2.0
"""Audits tf.data's datasets.

A map records each element. It stands between stages that note the begin and the end of an iteration.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..channel import tensors
from ..elements import nests
from ..errors import explained
from ..native import tensorflow_private as private
from .iterables import Audit
from .keys import component_of
from .record import Recorder


class AuditedDataset(private.UnaryDataset, Audit):
    """A dataset of the same elements. It can be used in `fit`, in tf.function and before other stages."""

    def __init__(self, inner: tf.data.Dataset, recorder: Recorder, key: Any):
        self._inner, self._recorder = inner, recorder
        self._audited = inner  # for functions that examine the stages of a pipeline
        self._passing = _passing(inner, recorder, key)
        super().__init__(self._passing, private.variant(self._passing))

    @property
    def element_spec(self) -> Any:
        return self._inner.element_spec

    def __getattr__(self, name: str) -> Any:
        if hasattr(tf.compat.v1.data.Dataset, name):  # TF1's iterators of the given dataset would bypass the audit
            raise AttributeError(name)
        return super().__getattr__(name)


def check_spec(spec: Any) -> None:
    """Raises TypeError if a component of the elements is no array."""
    for name, leaf in nests.leaves(spec):
        if not isinstance(leaf, tf.TensorSpec) or leaf.dtype in (tf.variant, tf.resource):
            what = f"component {name} of the dataset's elements is a {type(leaf).__name__} ({leaf})"
            to_do = "Pass as key= the name or place of a component that identifies the row"
            raise explained(TypeError, f"{what}, of which audit() can't make an array", to_do)


def _passing(inner: tf.data.Dataset, recorder: Recorder, key: Any) -> tf.data.Dataset:
    spec = inner.element_spec
    named = key is not None and not callable(key)  # then only the key's component goes to Python
    steps = int(inner.cardinality())

    def record(iteration: Any, *flat: Any) -> None:
        of = component_of(spec, key) if named else spec
        element = tf.nest.pack_sequence_as(of, list(flat), expand_composites=True)
        if callable(key):
            element = tf.nest.map_structure(tf.convert_to_tensor, element, expand_composites=True)
        recorder.record(int(iteration), element, of="key" if named else "element")
        if steps >= 0 and recorder.steps == steps:
            recorder.end(int(iteration))  # because Keras doesn't ask for more elements than it expects

    def begun(_: Any) -> tf.Tensor:
        return tf.numpy_function(lambda _: np.int64(recorder.begin()), [_], tf.int64)

    def of_iteration(iteration: tf.Tensor) -> tf.data.Dataset:
        def seen(*element: Any) -> Any:
            # map() passes a tuple as several arguments, but a namedtuple as one.
            element = element if type(spec) is tuple else element[0]
            tf.numpy_function(
                record, [iteration, *tensors.take_apart(component_of(element, key) if named else element)], []
            )
            return tf.nest.pack_sequence_as(spec, list(tensors.take_apart(element)), expand_composites=True)

        def ended(_: Any) -> tf.data.Dataset:
            tf.numpy_function(lambda number: recorder.end(int(number)), [iteration], [])
            return inner.take(0)

        return inner.map(seen).concatenate(tf.data.Dataset.from_tensors(0).flat_map(ended))

    start = tf.data.Dataset.from_tensors(np.int64(0)).map(begun).map(lambda iteration: tf.ensure_shape(iteration, []))
    passing = start.flat_map(of_iteration)
    if steps != tf.data.UNKNOWN_CARDINALITY:
        passing = passing.apply(tf.data.experimental.assert_cardinality(steps))
    settings = tf.data.Options()
    # prefetched elements would count before the program asks for them
    settings.experimental_optimization.inject_prefetch = False
    return passing.with_options(inner.options().merge(settings))
