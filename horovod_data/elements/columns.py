# SPDX-License-Identifier: Apache-2.0
"""Makes columns of the elements that a Python source yields, and finds the spec of its first element.

A column is the address of the items of an array. The C++ core copies them before it asks for the next element.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from ..errors import explained
from . import dtypes, specs
from .composites import Ragged, Sparse
from .nests import called, check_keys, filled, leaves, matched

_TEXTS = (str, bytes)
_PLAIN = (bool, int, float, complex, str, bytes, np.generic)


class Column(NamedTuple):
    """The items of one tensor. `kept` keeps them alive.

    Texts are in the form of csrc/wire/strings.h: all lengths as uint64, then all bytes.
    """

    dtype: str
    dims: tuple[int, ...]
    address: int
    size: int  # in bytes
    kept: Any
    text: Optional[bool] = None  # True: the items are str. False: they are bytes, or mixed. None: there are no texts

    @property
    def number(self) -> int:
        """TensorFlow's number of the type."""
        return dtypes.number_of(self.dtype)


def spec_of(element: Any) -> Any:
    """The spec of a source's elements, from its first element. The sizes of axes count as unknown.

    Raises:
      TypeError: a component can't be sent to another rank. The text says which, and what to do.
    """
    check_keys(element, "the source's")
    shape_of = _structure(element)
    return filled(shape_of, [_leaf_spec(name, leaf) for name, leaf in leaves(shape_of)])


class Maker:
    """Makes the columns of elements of one spec."""

    def __init__(self, spec: Any):
        self._spec = spec
        self._leaves = [
            (name, leaf, specs.is_composite(leaf), [(part.dtype, part.shape) for part in specs.components(leaf)])
            for name, leaf in leaves(spec)
        ]

    def columns(self, element: Any) -> list[Column]:
        """The columns of an element, in the order of specs.components(spec).

        Raises:
          TypeError: the element has another structure, or a component of another type or number of axes.
        """
        found: list[Column] = []
        for (name, leaf, composite, wanted), value in zip(self._leaves, matched(self._spec, element)):
            _check_composite(name, value)
            parts = _parts_of(value)
            columns = [_column(name, part) for part in parts]
            same = len(columns) == len(wanted) and composite == _is_composite(value)
            for i, (part, (dtype, _)) in enumerate(zip(parts, wanted)):
                if isinstance(part, list) and not columns[i].size:  # an empty list has no type of its own
                    columns[i] = columns[i]._replace(dtype=dtype)
            for column, (dtype, shape) in zip(columns, wanted):
                same = same and column.dtype == dtype and (shape is None or len(shape) == len(column.dims))
                same = same and (column.text is None or column.text == leaf.text)
            if not same:
                now = _leaf_spec(name, value)
                what = f"{called(name)} is {_shown(now)}, but in the first element it was {_shown(leaf)}"
                raise explained(TypeError, what, "Let all elements have the same types and numbers of axes", where="")
            found += columns
        return found


def _shown(leaf: specs.LeafSpec) -> str:
    kind = "str" if getattr(leaf, "text", False) else "bytes" if leaf.dtype == dtypes.TEXT else leaf.dtype
    return f"{leaf.kind}{kind} with {leaf.rank} axes"


def _structure(element: Any) -> Any:
    """The nest of an element, with a _Leaf around each leaf. A list of numbers or texts is a leaf."""
    if element is None or isinstance(element, list) and _is_plain(element):
        return None if element is None else _Leaf(element)
    if isinstance(element, dict):
        kind = collections.OrderedDict if isinstance(element, collections.OrderedDict) else dict
        return kind((key, _structure(part)) for key, part in element.items())
    if isinstance(element, (list, tuple)):
        parts = list(map(_structure, element))
        if hasattr(element, "_fields"):
            return type(element)(*parts)
        return parts if isinstance(element, list) else tuple(parts)
    return _Leaf(element)


class _Leaf:
    """Hides a value from the functions that walk through nests."""

    def __init__(self, value: Any):
        self.value = value


def _is_plain(value: Any) -> bool:
    """Says whether a list has only numbers and texts, or lists of them."""
    return bool(value) and all(_is_plain(one) if type(one) is list else isinstance(one, _PLAIN) for one in value)


def _is_composite(value: Any) -> bool:
    return isinstance(value, (Ragged, Sparse))


def _parts_of(value: Any) -> Sequence[Any]:
    if isinstance(value, Ragged):
        return [value.values, *value.row_splits]
    if isinstance(value, Sparse):
        return [value.indices, value.values, value.dense_shape]
    return [value]


def _leaf_spec(name: str, leaf: Any) -> specs.LeafSpec:
    value = leaf.value if isinstance(leaf, _Leaf) else leaf
    _check_composite(name, value)
    columns = [_column(name, part) for part in _parts_of(value)]
    if isinstance(value, Ragged):
        values, *splits = columns
        kinds = {split.dtype for split in splits}
        if len(kinds) > 1 or not kinds <= {"int64", "int32"}:
            what = f"{called(name)} is an hvdata.Ragged whose row_splits are not all int64, or all int32"
            raise explained(TypeError, what, 'Make them with numpy.array(..., "int64")', where="")
        shape = (None,) * (len(splits) + len(values.dims))
        text = _is_text(values, value.values)
        return specs.RaggedSpec(shape, values.dtype, len(splits), splits[0].dtype, text=text)
    if isinstance(value, Sparse):
        indices, values, dense_shape = columns
        if (indices.dtype, dense_shape.dtype) != ("int64", "int64"):
            what = f"{called(name)} is an hvdata.Sparse with indices or a dense_shape that are not int64"
            raise explained(TypeError, what, 'Make them with numpy.array(..., "int64")', where="")
        return specs.SparseSpec((None,) * dense_shape.dims[0], values.dtype, _is_text(values, value.values))
    return specs.DenseSpec((None,) * len(columns[0].dims), columns[0].dtype, text=_is_text(columns[0], value))


def _check_composite(name: str, value: Any) -> None:
    """Raises TypeError if the parts of an hvdata.Ragged or hvdata.Sparse do not belong together."""
    if isinstance(value, Ragged):
        splits = [np.asarray(one) for one in value.row_splits]
        sizes = [*(one.size - 1 for one in splits[1:]), (_shape_of(value.values) or (-1,))[0]]
        for one, size in zip(splits, sizes):
            if one.ndim != 1 or one.size == 0 or one[0] != 0 or one[-1] != size or (one[1:] < one[:-1]).any():
                what = f"{called(name)} is an hvdata.Ragged whose row_splits do not divide its values"
                to_do = "Each vector begins with 0, never falls, and ends with the length of what it divides"
                raise explained(TypeError, what, to_do, where="")
    elif isinstance(value, Sparse):
        shapes = [_shape_of(part) for part in _parts_of(value)]
        if [len(shape) for shape in shapes] != [2, 1, 1] or shapes[0] != (*shapes[1], *shapes[2]):
            what = f"{called(name)} is an hvdata.Sparse whose parts have the shapes {', '.join(map(str, shapes))}"
            to_do = "Pass indices [entries, axes], values [entries], dense_shape [axes]"
            raise explained(TypeError, what, to_do, where="")


def _shape_of(part: Any) -> tuple[int, ...]:
    """The shape of an array, a tensor, or a list of texts. For a list, numpy.shape() would make a copy."""
    if isinstance(part, list) and part and isinstance(part[0], _TEXTS):
        return (len(part),)
    return tuple(np.shape(part) if not hasattr(part, "shape") else part.shape)


def _is_text(column: Column, value: Any) -> bool:
    """Says whether a column has str. If it is empty, the array's type says so."""
    if column.text is None:
        return isinstance(value, np.ndarray) and value.dtype.kind in "UT"
    return column.text


def _column(name: str, value: Any) -> Column:
    """The column of an array, a torch tensor, a number, a text, or a list of them."""
    if type(value) is np.ndarray:
        return _column_of_array(name, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _column_of_torch(name, value, torch)
    if isinstance(value, list):
        return _column_of_list(name, value)
    if isinstance(value, _TEXTS):
        return _column_of_texts((), [value])
    numbers = isinstance(value, (*_PLAIN, np.ndarray))
    if not numbers and not hasattr(value, "__array__"):
        what = f"{called(name)} is a {type(value).__name__}, which can't be sent to another rank"
        to_do = "Elements may hold arrays, tensors, numbers, texts and lists of them, in dicts, lists and tuples"
        for ours in ("Ragged", "Sparse"):
            if type(value).__name__.startswith(ours):  # TensorFlow's
                to_do = f"Make an hvdata.{ours} of it"
        raise explained(TypeError, what, to_do, where="")
    if isinstance(value, np.ma.MaskedArray):
        what = f"{called(name)} is a masked array, whose mask would be lost"
        raise explained(TypeError, what, "Send its data and its mask as two components, or call filled()", where="")
    return _column_of_array(name, np.asarray(value))


def _column_of_list(name: str, value: list[Any]) -> Column:
    first: Any = value
    while isinstance(first, list) and first:
        first = first[0]
    text = isinstance(first, _TEXTS)
    array: Any = None
    with contextlib.suppress(ValueError):  # numpy can't make an array of it
        # numpy's own texts would lose zeros at their ends, and take the memory of the longest text.
        array = np.asarray(value, object if text else None)
    kinds = set(map(type, array.flat)) if text else set()
    if array is None or list in kinds:
        what = f"{called(name)} is a list of lists of different lengths"
        raise explained(TypeError, what, "Pad them, or make an hvdata.Ragged of them", where="")
    if array.dtype.kind in "SU" or not all(issubclass(kind, _TEXTS) for kind in kinds):
        what = f"{called(name)} is a list with both numbers and texts"
        raise explained(TypeError, what, "Put them into two components", where="")
    return _column_of_array(name, array)


def _column_of_array(name: str, array: Any) -> Column:
    if array.dtype.kind in "SUOT":  # T: numpy's StringDType
        items = array.ravel().tolist()
        if not all(isinstance(item, _TEXTS) for item in items):
            other = next(type(item).__name__ for item in items if not isinstance(item, _TEXTS))
            what = f"{called(name)} is an array of objects, and one of them is a {other}"
            raise explained(TypeError, what, "Use an array of numbers, or of str or bytes", where="")
        return _column_of_texts(array.shape, items)
    dtype = dtypes.name_of(array.dtype)
    if dtype is None:
        what = f"{called(name)} is an array of {array.dtype.name}, which can't be sent to another rank"
        raise explained(TypeError, what, "Convert it to numbers of another type", where="")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    return Column(dtype, array.shape, array.__array_interface__["data"][0], array.nbytes, array)


def _column_of_texts(dims: tuple[int, ...], items: list[Any]) -> Column:
    kinds = {isinstance(item, str) for item in items}
    encoded = [item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in items]
    lengths = np.fromiter(map(len, encoded), "<u8", len(encoded)).tobytes()
    memory = np.frombuffer(b"".join([lengths, *encoded]), np.uint8)
    address = memory.__array_interface__["data"][0]
    return Column(dtypes.TEXT, dims, address, memory.nbytes, memory, kinds == {True} if kinds else None)


def _column_of_torch(name: str, tensor: Any, torch: Any) -> Column:
    if tensor.device.type != "cpu":
        what = f"{called(name)} is a tensor on {tensor.device}"
        raise explained(TypeError, what, "Let the source yield tensors on the CPU: use .cpu()", where="")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or dtype not in dtypes.NAMES.values():
        kind = dtype if tensor.layout == torch.strided else str(tensor.layout)
        what = f"{called(name)} is a tensor of {kind}, which can't be sent to another rank"
        to_do = "Convert it to a dense tensor of another type, or make an hvdata.Sparse or an hvdata.Ragged of it"
        raise explained(TypeError, what, to_do, where="")
    tensor = tensor.detach().contiguous()
    if tensor.is_conj() or tensor.is_neg():  # its memory has other values than the tensor
        tensor = tensor.resolve_conj().resolve_neg()
    return Column(dtype, tuple(tensor.shape), tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)
