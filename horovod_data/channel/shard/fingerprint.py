# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a pipeline's graph. Readers with equal fingerprints have the same pipeline."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Optional

import tensorflow as tf

from ...native import tensorflow_private as private
from ..receiver import stages

_MOST_TO_FINGERPRINT = 16 << 20  # bytes of tensors that a pipeline may hold
_NUMBER = re.compile(r"_\d+$")


def fingerprint_of(dataset: tf.data.Dataset) -> Optional[str]:
    """The fingerprint of the pipeline's graph: stages, functions, file names, constants.

    A pipeline with Python code (generators, py_function), or with large tensors, has none.
    """
    tensors = [tensor for stage in stages(dataset) for tensor in private.captured(stage)]
    if any(tensor.dtype == tf.variant for tensor in tensors):  # another dataset, for example, which may hold anything
        return None
    if sum(_bytes_of(tensor) for tensor in tensors) > _MOST_TO_FINGERPRINT:
        return None
    try:
        graph = private.serialized_graph(dataset)
    except tf.errors.OpError:  # the dataset can't be serialised
        return None
    if any("PyFunc" in node.op for node in _nodes(graph)):
        return None
    _forget_history(graph)
    return hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _forget_history(graph: Any) -> None:
    """Removes numbers in names of datasets and functions. These numbers depend on what the process has made before."""
    for function in graph.library.function:
        function.signature.name = _NUMBER.sub("", function.signature.name)
    for node in _nodes(graph):
        node.op = _NUMBER.sub("", node.op) if node.op.startswith("__") else node.op
        node.attr.pop("metadata", None)
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func) if attribute.HasField("func") else attribute.list.func:
                called.name = _NUMBER.sub("", called.name)
            if any("SeedGenerator" in handle.name for handle in attribute.tensor.resource_handle_val):
                attribute.tensor.ClearField("resource_handle_val")  # a shuffle has its seeds in other inputs
    functions = sorted(graph.library.function, key=lambda function: function.SerializeToString(deterministic=True))
    del graph.library.function[:]
    graph.library.function.extend(functions)


def _bytes_of(tensor: tf.Tensor) -> int:
    """The least number of bytes of a tensor. It is 0 if the shape is unknown."""
    return tensor.shape.num_elements() * tensor.dtype.size if tensor.shape.is_fully_defined() else 0
