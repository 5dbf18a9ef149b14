# SPDX-License-Identifier: Apache-2.0
"""The spec of an element: a nest with a spec for each of its leaves. JSON carries it to other processes.

The C++ core knows plain tensors only. A leaf is one tensor if it is dense, and several if it is ragged or sparse.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from typing import Any, Optional, Sequence, Union

import numpy as np

from ..errors import explained
from . import dtypes
from .nests import filled, leaves

# None: the number of axes is unknown. Within it, None: the size of the axis is unknown.
Shape = Optional[tuple[Optional[int], ...]]


class _Leaf:
    """What the specs of all kinds of leaves have."""

    shape: Shape
    dtype: str
    text: bool = False  # dtype "string": the source has str, not bytes
    kind = ""

    @property
    def rank(self) -> Optional[int]:
        """The number of axes; None: unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def rows(self) -> Optional[int]:
        """The static size of axis 0. None if it is unknown, or if there is no axis 0."""
        return self.shape[0] if self.shape else None

    def __str__(self) -> str:
        dtype = "str" if self.text else self.dtype
        return f"{self.kind}{dtype} of {'unknown shape' if self.shape is None else f'shape {self.shape}'}"


@dataclasses.dataclass(frozen=True)
class DenseSpec(_Leaf):
    """One tensor."""

    shape: Shape
    dtype: str
    name: Optional[str] = None  # as TensorFlow's TensorSpec has it
    text: bool = False


@dataclasses.dataclass(frozen=True)
class SparseSpec(_Leaf):
    """Indices, values and dense shape."""

    shape: Shape
    dtype: str
    text: bool = False
    kind = "sparse "


@dataclasses.dataclass(frozen=True)
class RaggedSpec(_Leaf):
    """Values, and row splits from the outermost to the innermost.

    If ragged_rank is 0, it is a row of a ragged tensor, and one dense tensor.
    """

    shape: Shape
    dtype: str
    ragged_rank: int
    splits: str  # the type of the row splits
    flat: Optional[DenseSpec] = None  # of the values, if TensorFlow knows it
    text: bool = False
    kind = "ragged "


LeafSpec = Union[DenseSpec, SparseSpec, RaggedSpec]


def is_composite(leaf: LeafSpec) -> bool:
    """Says whether the leaf has several tensors, or is a row of such a leaf."""
    return not isinstance(leaf, DenseSpec)


# ---- JSON. So no process needs to unpickle anything.


def to_json(spec: Any) -> Any:
    """The spec as a value that JSON can hold.

    Dicts keep the order of their keys. Namedtuples keep the names of their class and of their fields.
    """
    if spec is None:
        return None
    if isinstance(spec, dict):
        kind = "ordered" if isinstance(spec, collections.OrderedDict) else "dict"
        return [kind, [[key, to_json(part)] for key, part in spec.items()]]
    if isinstance(spec, (tuple, list)):
        if hasattr(spec, "_fields"):
            return ["named", type(spec).__name__, list(spec._fields), [to_json(part) for part in spec]]
        return ["list" if isinstance(spec, list) else "tuple", [to_json(part) for part in spec]]
    sizes = None if spec.shape is None else list(spec.shape)
    if isinstance(spec, SparseSpec):
        return ["sparse", sizes, spec.dtype, spec.text]
    if isinstance(spec, RaggedSpec):
        return ["ragged", sizes, spec.dtype, spec.ragged_rank, spec.splits, to_json(spec.flat), spec.text]
    return ["tensor", sizes, spec.dtype, spec.name, spec.text]


def from_json(said: Any) -> Any:
    """The inverse of to_json(). It makes a new class for each namedtuple."""
    if said is None:
        return None
    kind, *given = said
    if kind in ("dict", "ordered"):
        items = [(key, from_json(part)) for key, part in given[0]]
        return collections.OrderedDict(items) if kind == "ordered" else dict(items)
    if kind == "named":
        # rename=True: the class may have been made with it, and then has fields such as _1.
        return collections.namedtuple(given[0], given[1], rename=True)(*map(from_json, given[2]))
    if kind in ("list", "tuple"):
        parts = [from_json(part) for part in given[0]]
        return parts if kind == "list" else tuple(parts)
    shape = None if given[0] is None else tuple(given[0])
    if kind == "sparse":
        return SparseSpec(shape, *given[1:])
    if kind == "ragged":
        return RaggedSpec(shape, given[1], given[2], given[3], from_json(given[4]), given[5])
    return DenseSpec(shape, *given[1:])


# ---- Components.


class EmptyRule(enum.IntEnum):
    """What a component becomes in a share without an element. The numbers are those of csrc/rows/leaves.h."""

    ROWS = 0
    ROW_SPLITS = 1
    DENSE_SHAPE = 2
    ENTRIES = 3


@dataclasses.dataclass(frozen=True)
class Component:
    """One tensor of a flattened element."""

    name: str
    dtype: str
    shape: Shape
    rule: EmptyRule
    row_length: int = -1  # the length of a uniform axis that a ragged tensor stores as row splits; else -1
    # The static shape that the core gets. For the dense shape of a sparse tensor it is the shape of the sparse tensor.
    static: Shape = None

    @property
    def number(self) -> int:
        """TensorFlow's number of the type. Raises TypeError for a type that can't be sent."""
        return dtypes.number_of(self.dtype)


def components(spec: Any) -> list[Component]:
    """The plain tensors of an element of this spec, in order."""
    return [part for name, leaf in leaves(spec) for part in _parts(name, leaf)]


def _parts(name: str, leaf: LeafSpec) -> list[Component]:
    def part(dtype: str, shape: Shape, rule: EmptyRule, row_length: int = -1) -> Component:
        return Component(name, dtype, shape, rule, row_length, shape)

    if isinstance(leaf, SparseSpec):
        of_shape = Component(name, "int64", (leaf.rank,), EmptyRule.DENSE_SHAPE, static=leaf.shape)
        entries = part("int64", (None, leaf.rank), EmptyRule.ENTRIES), part(leaf.dtype, (None,), EmptyRule.ENTRIES)
        return [*entries, of_shape]
    if isinstance(leaf, RaggedSpec) and leaf.ragged_rank:
        ragged = leaf.ragged_rank
        sizes = (None,) * (ragged + 1) if leaf.shape is None else leaf.shape[: ragged + 1]
        values: Shape = None
        if leaf.flat is not None:
            values = None if leaf.flat.shape is None else (None, *leaf.flat.shape[1:])
        elif leaf.shape is not None:
            values = (None, *leaf.shape[ragged + 1 :])
        counts = [None if sizes[0] is None else sizes[0] + 1] + [None] * (ragged - 1)
        splits = [
            part(leaf.splits, (count,), EmptyRule.ROW_SPLITS, -1 if length is None else length)
            for count, length in zip(counts, sizes[1:])
        ]
        return [part(leaf.dtype, values, EmptyRule.ROWS), *splits]
    return [part(leaf.dtype, leaf.shape, EmptyRule.ROWS)]


def bytes_of(spec: Any) -> Optional[int]:
    """The bytes of an element. None: they differ, or are unknown."""
    total = 0
    for part in components(spec):
        sizes = [size for size in part.shape or (None,) if size is not None]
        if part.dtype == dtypes.TEXT or part.shape is None or len(sizes) < len(part.shape):
            return None
        total += math.prod(sizes) * np.dtype(dtypes.bits_of(part.dtype)).itemsize
    return total


def components_of_channel(spec: Any, has_costs: bool) -> list[Component]:
    """The plain tensors that a reader sends. `spec`: of elements, or of (element, costs) if has_costs."""
    if not has_costs:
        return components(spec)
    element, costs = spec
    return [*components(element), dataclasses.replace(components(costs)[0], name="what weigh= returned")]


def with_weight(element: Any, weight: Any) -> Any:
    """(x, y) and [x, y] become (x, y, weight), as Keras takes it. Anything else becomes (element, weight).

    A torch DataLoader makes a list of the pairs of its dataset.
    """
    if type(element) in (tuple, list) and len(element) == 2:
        return (*element, weight)
    return (element, weight)


def has_sample_weight(spec: Any) -> bool:
    """Says whether an element is Keras' (x, y, sample_weight): the third component is one float tensor with an axis
    0."""
    if type(spec) not in (tuple, list) or len(spec) != 3:
        return False
    return isinstance(spec[2], DenseSpec) and spec[2].dtype.startswith(dtypes.FLOATING) and bool(spec[2].rank)


# ---- The spec of several readers.


def common_spec(specs: Sequence[Any]) -> Any:
    """The spec that fits the elements of several readers. Sizes that differ become unknown.

    Raises:
      ValueError: the readers have different components, or components of different types. The text says which.
    """
    named = [leaves(spec) for spec in specs]
    for reader, others in enumerate(named):
        if [name for name, _ in others] != [name for name, _ in named[0]]:
            ours, theirs = (", ".join(name for name, _ in one) for one in (named[0], others))
            raise ValueError(f"reader 0 has {ours}, reader {reader} has {theirs}")
    common = []
    for same in zip(*named):
        first = found = same[0][1]
        for reader, (name, leaf) in enumerate(same):
            found = _common_leaf(found, leaf)
            if found is None:
                raise ValueError(f"for reader 0 {name} is {first}, for reader {reader} it is {leaf}")
        common.append(found)
    return filled(specs[0], common)


def _common_leaf(one: LeafSpec, other: LeafSpec) -> Optional[LeafSpec]:
    changed: dict[str, Any] = {"shape": _common_shape(one.shape, other.shape)}
    if isinstance(one, DenseSpec) and isinstance(other, DenseSpec) and one.name != other.name:
        changed["name"] = None
    if isinstance(one, RaggedSpec) and isinstance(other, RaggedSpec) and one.flat and other.flat:
        changed["flat"] = _common_leaf(one.flat, other.flat)
    found = dataclasses.replace(one, **changed)
    return found if type(one) is type(other) and found == dataclasses.replace(other, **changed) else None


def _common_shape(one: Shape, other: Shape) -> Shape:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(size if size == same else None for size, same in zip(one, other))


# ---- Shares.


def _with_rows(leaf: LeafSpec, rows: Optional[int]) -> LeafSpec:
    if not leaf.shape:  # unknown, or a scalar
        return leaf
    shape = (rows, *leaf.shape[1:])
    if isinstance(leaf, RaggedSpec):
        return dataclasses.replace(leaf, shape=shape, flat=None)
    return dataclasses.replace(leaf, shape=shape)


def share_spec(
    spec: Any, batch: str, remainder: str, static: bool, has_costs: bool, weighs: bool, trainers: int
) -> Any:
    """The spec of a share as readers send it. With weights it is (x, y, weight) or (element, weight).

    `static`: the schedule. `has_costs`: `spec` is that of (element, costs). `weighs`: a weight comes with each row.
    """

    def of_leaf(leaf: LeafSpec) -> LeafSpec:
        if batch == "per_rank":
            return _with_rows(leaf, None) if remainder == "partial" and static else leaf
        if leaf.rows is None or remainder == "partial":
            return _with_rows(leaf, None)
        return _with_rows(leaf, leaf.rows // trainers if remainder == "drop" else -(-leaf.rows // trainers))

    shared = filled(spec, [of_leaf(leaf) for _, leaf in leaves(spec)])
    if has_costs:
        return with_weight(*shared)
    if not weighs:
        return shared
    first = leaves(shared)[0][1]
    return with_weight(shared, DenseSpec(None if first.shape is None else first.shape[:1], "float32"))


# ---- Checks.


def check_global(spec: Any, remainder: str, trainers: int) -> None:
    """Raises ValueError where the spec alone shows that batch="global" is wrong."""
    named = [(name, leaf) for name, leaf in leaves(spec) if leaf.rank is not None]
    for name, leaf in named:
        if leaf.rank == 0:
            what = f'batch="global" cuts every component along axis 0, but {name} is a scalar'
            raise explained(ValueError, what, 'Give it an axis 0, or use batch="per_rank"')
    known = [(name, leaf.rows) for name, leaf in named if leaf.rows is not None]
    for name, rows in known[1:]:
        if rows != known[0][1]:
            both = f"{known[0][0]} has {known[0][1]} rows and {name} has {rows}"
            what = f'batch="global" needs one axis 0 for all components, but {both}'
            raise explained(ValueError, what, 'Make them equal, or use batch="per_rank"')
    if known and remainder == "drop" and (known[0][1] or 0) % trainers:
        rows = known[0][1] or 0
        raise explained(
            ValueError,
            f'every global batch has {rows} rows, which {trainers} ranks can\'t share evenly: with remainder="drop" '
            f"{rows % trainers} rows of every batch would be lost",
            f"Use batches of {max(rows // trainers, 1) * trainers} rows, or another remainder=",
        )
