# SPDX-License-Identifier: Apache-2.0
"""Checks whether a pipeline yields the same elements in the same order on all readers, as far as its stages show.

The fingerprint of its graph (channel/shard/fingerprint.py) shows more, but some pipelines have no fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from ...native import tensorflow_private as private

# The name of an op that draws random numbers contains one of these. Ops without state ("Stateless") have their seeds as
# inputs.
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "StatefulUniform", "StatefulStandardNormal", "RngReadAndSkip")
_MAPS = frozenset({"Map", "ParallelMap"})


def outline_of(chain: Iterable[tf.data.Dataset]) -> tuple[str, str]:
    """Returns two digests: of the stages with their numbers and their functions' ops, and of the stages' seeds.

    Every pipeline has these digests. Pipelines that differ may have equal digests.
    """
    kinds, seeds = hashlib.sha256(), hashlib.sha256()
    for stage in chain:
        # Functions come in any order. Some have numbers in their names that differ from process to process.
        ops = sorted(node.op for node in private.function_nodes(stage) if not node.op.startswith("__"))
        kinds.update(repr([private.name(stage), private.numbers(stage), private.small_numbers(stage), ops]).encode())
        # Zeros stand for seeds that each process draws for itself. All other seeds must be equal on all readers.
        drawn = [[tf.get_static_value(seed) for seed in pair] for _, pair in private.seeds(stage)]
        drawn += sorted(_seeds_of(node) for node in _random(stage))
        seeds.update(repr([[None if seed is None else int(seed) for seed in pair] for pair in drawn]).encode())
    return kinds.hexdigest(), seeds.hexdigest()


def varies(chain: Iterable[tf.data.Dataset]) -> bool:
    """Says whether a stage's function draws random numbers, or changes a variable.

    Then the values of an element differ from reader to reader, although the order may be the same.
    """

    def changes(node: Any) -> bool:
        return "Assign" in node.op and "Variable" in node.op

    return any(
        next(_random(stage), None) is not None or any(map(changes, private.function_nodes(stage))) for stage in chain
    )


def unordered(
    dataset: tf.data.Dataset, chain: list[tf.data.Dataset], moved: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yields the reasons why the elements, or their order, may differ from reader to reader.

    Args:
      dataset: the pipeline, which has the options.
      chain: all stages, or only the first ones of the pipeline, in reverse order.
      moved: kinds of stages whose own seeds don't matter.
    """
    if dataset.options().deterministic is False and (
        not moved or any(private.name(stage).startswith("Parallel") for stage in chain)
    ):
        yield "its options say deterministic=False"
    decided = _decided(chain)
    for stage in chain:
        if private.unordered(stage):
            yield f"{private.name(stage)}Dataset has deterministic=False"
        within = (node.attr for node in private.function_nodes(stage) if "deterministic" in node.attr)
        if any(attributes["deterministic"].s == b"false" for attributes in within):
            yield f"a dataset in a function of {private.name(stage)}Dataset has deterministic=False"
        for owner, seeds in private.seeds(stage):
            if private.name(stage) in moved and " in a function" not in owner:
                continue
            # Zeros mean that TensorFlow draws new seeds.
            if all(value is not None and int(value) == 0 for value in map(tf.get_static_value, seeds)):
                yield f"{owner} has no seed"
        # A random number in a function changes only one element, unless the function decides which elements exist.
        if id(stage) in decided:
            for node in _random(stage):
                if _seeds_of(node) == [0, 0]:
                    yield f"{node.op} in a function has no seed, and may decide which elements there are"


def _decided(chain: list[tf.data.Dataset]) -> set[int]:
    """The ids of stages with a function that may select elements (not a map), and of all stages before these."""
    decided: set[int] = set()
    work = [stage for stage in chain if private.name(stage) not in _MAPS and private.has_functions(stage)]
    while work:
        stage = work.pop()
        if id(stage) not in decided:
            decided.add(id(stage))
            work += private.inputs(stage)
    return decided


def _random(stage: tf.data.Dataset) -> Iterator[Any]:
    for node in private.function_nodes(stage):
        if "Stateless" not in node.op and "Dataset" not in node.op and any(word in node.op for word in _RANDOM):
            yield node


def _seeds_of(node: Any) -> list[int]:
    """The two seeds of an op. An op that keeps its state in a variable has no seeds, and gives zeros."""
    return [node.attr[name].i if name in node.attr else 0 for name in ("seed", "seed2")]
