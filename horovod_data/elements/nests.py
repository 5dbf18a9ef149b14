# SPDX-License-Identifier: Apache-2.0
"""Nests: dicts, lists, tuples and namedtuples with leaves of any kind, in the order of tf.nest.

None is part of the structure, and not a leaf. The same holds for TensorFlow's spec of None.
"""

from __future__ import annotations

import collections
from typing import Any, Iterator, Sequence

from ..errors import explained


def is_none(leaf: Any) -> bool:
    """Says whether a leaf of an element, or of its spec, is None."""
    return leaf is None or type(leaf).__name__ == "NoneTensorSpec"


def leaves(nest: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves with their paths (`['image']`, `[1]['length']`), without None. Dicts are in the order of their sorted
    keys."""
    if is_none(nest):
        return []
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in leaves(nest[key], f"{path}[{key!r}]")]
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return [leaf for key in nest._fields for leaf in leaves(getattr(nest, key), f"{path}.{key}")]
    if isinstance(nest, (tuple, list)):
        return [leaf for i, part in enumerate(nest) for leaf in leaves(part, f"{path}[{i}]")]
    return [(path or "the element", nest)]


def called(name: str) -> str:
    """The words for a leaf in a text. `name`: the leaf's path, from leaves()."""
    return f"component {name}" if name.startswith(("[", ".")) else name


def filled(nest: Any, parts: Sequence[Any]) -> Any:
    """The structure of `nest` with `parts` in the places of its leaves. Each None stays."""
    return _filled(nest, iter(parts))


def _filled(nest: Any, rest: Iterator[Any]) -> Any:
    if is_none(nest):
        return nest
    if isinstance(nest, dict):
        by_key = {key: _filled(nest[key], rest) for key in sorted(nest)}
        items = [(key, by_key[key]) for key in nest]  # in the dict's own order, not sorted
        if isinstance(nest, collections.defaultdict):
            return collections.defaultdict(nest.default_factory, items)
        return type(nest)(items)
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*[_filled(part, rest) for part in nest])
    if isinstance(nest, (tuple, list)):
        return type(nest)([_filled(part, rest) for part in nest])
    return next(rest)


def matched(spec: Any, element: Any, path: str = "") -> list[Any]:
    """The leaves of an element, in the order of leaves(spec).

    Raises:
      TypeError: the element has another structure. The text names the component.
    """
    if is_none(spec):
        if element is None:
            return []
    elif isinstance(spec, dict):
        if isinstance(element, dict) and element.keys() == spec.keys():
            return [leaf for key in sorted(spec) for leaf in matched(spec[key], element[key], f"{path}[{key!r}]")]
    elif isinstance(spec, (tuple, list)):
        same = isinstance(element, (tuple, list)) and isinstance(element, list) is isinstance(spec, list)
        if same and len(element) == len(spec):
            names = [f".{name}" for name in getattr(spec, "_fields", ())] or [f"[{i}]" for i in range(len(spec))]
            return [leaf for name, of, part in zip(names, spec, element) for leaf in matched(of, part, f"{path}{name}")]
    else:
        return [element]
    what = f"{called(path or 'the element')} is {_shown(element)}, but in the first element it was {_shown(spec)}"
    raise explained(TypeError, what, "Let all elements have the same structure", where="")


def _shown(nest: Any) -> str:
    if isinstance(nest, dict):
        return f"a dict of {', '.join(map(repr, nest))}"
    if isinstance(nest, (tuple, list)):
        return f"a {'list' if isinstance(nest, list) else 'tuple'} of {len(nest)}"
    return "None" if is_none(nest) else f"a {type(nest).__name__}"


def check_keys(nest: Any, whose: str) -> None:
    """Raises TypeError if a dict has a key that can't be sent to another process, or keys without an order."""
    if isinstance(nest, dict):
        for key in nest:
            if not isinstance(key, (str, int, float)):
                what = f"{whose} elements have a dict with the key {key!r}, a {type(key).__name__}"
                raise explained(
                    TypeError, f"{what}, which can't be sent to another rank", "Use strings or numbers as keys"
                )
        if len({isinstance(key, str) for key in nest}) > 1:
            what = f"{whose} elements have a dict with strings and numbers as keys, {', '.join(map(repr, nest))}"
            raise explained(TypeError, what, "Use keys of one kind")
    if isinstance(nest, (dict, tuple, list)):
        for part in nest.values() if isinstance(nest, dict) else nest:
            check_keys(part, whose)
