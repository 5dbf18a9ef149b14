# SPDX-License-Identifier: Apache-2.0
"""Makes arrays and torch tensors of the columns of a share, over the memory in which the share arrived.

The memory may be shared with other processes, so nobody may write into it. It stays in use as long as some array refers
to it, also after shutdown().
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from ..errors import explained
from ..native.calls import Column, bytes_at
from . import dtypes, specs
from .composites import Ragged, Sparse
from .nests import called, filled, leaves

TO = ("numpy", "torch")


class _Memory:
    """The memory of one column. numpy makes an array of it without a copy. The array keeps this object alive."""

    __slots__ = ("__array_interface__", "_owner", "_release")
    __array_interface__: dict[str, Any]

    def __init__(self, column: Column, release: Callable[[int], None]):
        self._release = release
        self._owner, column.owner = column.owner, None  # the core releases the owners that are left

    def __del__(self) -> None:
        if self._owner:
            self._release(self._owner)


class Maker(NamedTuple):
    """Makes elements of shares.

    Attributes:
      spec: of a share.
      to: "numpy" or "torch".
      writable: copies each array, so that the program may write into it.
      release: frees the memory of a column, given the column's owner.
    """

    spec: Any
    to: str
    writable: bool
    release: Callable[[int], None]

    def element(self, columns: Sequence[Column]) -> Any:
        """The element of a share's columns."""
        # These objects exist before anything else is made. So an error below releases every column.
        held = [_Memory(column, self.release) for column in columns]
        parts = iter([self._array(*one) for one in zip(columns, held)])
        made: list[Any] = []
        for _, leaf in leaves(self.spec):
            indices = next(parts) if isinstance(leaf, specs.SparseSpec) else None
            values = next(parts)
            if leaf.dtype == dtypes.TEXT:
                values = self._texts(values, leaf.text)
            if isinstance(leaf, specs.SparseSpec):
                made.append(Sparse(indices, values, next(parts)))
            elif isinstance(leaf, specs.RaggedSpec) and leaf.ragged_rank:
                made.append(Ragged(values, [next(parts) for _ in range(leaf.ragged_rank)]))
            else:
                made.append(values)
        return filled(self.spec, made)

    def _array(self, column: Column, memory: _Memory) -> Any:
        shape = tuple(column.dims[: column.ndim])
        name = dtypes.NAMES[column.dtype]
        if name == dtypes.TEXT:
            return _decoded(column, shape)
        read_only = self.to == "numpy"  # torch has no read-only tensors, and warns of a read-only array
        bits = np.dtype(dtypes.bits_of(name))
        array = np.empty(shape, bits)
        if column.bytes:
            data = column.data, read_only
            memory.__array_interface__ = {"version": 3, "shape": shape, "typestr": bits.str, "data": data}
            array = np.asarray(memory)
        if self.writable:
            array = array.copy() if column.bytes else array
        elif read_only:
            array.flags.writeable = False
        if self.to == "torch":
            return _as_torch(array, name)
        dtype = dtypes.numpy_of(name)
        return array if dtype == bits else array.view(dtype)

    def _texts(self, texts: Any, as_str: bool) -> Any:
        """What the program gets of an array of bytes objects. For torch it is a nest of lists, or one text."""
        if as_str:
            decode = np.frompyfunc(lambda text: text.decode("utf-8", "surrogateescape"), 1, 1)
            texts = np.asarray(decode(texts), object) if texts.size else texts
        return texts.tolist() if self.to == "torch" else texts


def _decoded(column: Column, shape: tuple[int, ...]) -> Any:
    """The texts of a column, as an array of bytes objects."""
    encoded = bytes_at(column.data, column.bytes) if column.bytes else b""
    texts = np.empty(shape, object)
    flat = texts.reshape(-1)
    at = 8 * flat.size
    for i, length in enumerate(np.frombuffer(encoded, "<u8", flat.size).tolist()):
        flat[i] = encoded[at : at + length]
        at += length
    return texts


def _as_torch(array: Any, name: str) -> Any:
    torch = sys.modules["torch"]
    dtype = getattr(torch, name)
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def check(to: Any, writable: Any) -> None:
    """Raises ValueError, TypeError or ImportError if `to` or `writable` is wrong, or if this rank can't import
    PyTorch."""
    if not isinstance(to, str) or to not in TO:
        to_do = "Use 'numpy' or 'torch'; distribute_dataset() gives a tf.data.Dataset"
        raise explained(ValueError, f"to={to!r} is not known", to_do)
    if not isinstance(writable, bool):
        raise explained(TypeError, f"writable must be True or False, not {writable!r}")
    if to == "torch" and "torch" not in sys.modules:
        try:
            importlib.import_module("torch")
        except ImportError as error:
            what = f'to="torch" needs PyTorch, which can\'t be imported ({error})'
            raise explained(ImportError, what, 'Install it, or use to="numpy"') from error


def check_spec(spec: Any, to: str) -> None:
    """Raises TypeError or ImportError if there is no array, or torch tensor, for a component."""
    for name, leaf in leaves(spec):
        if leaf.dtype == dtypes.TEXT:
            continue
        if to == "numpy":
            dtypes.numpy_of(leaf.dtype)
            continue
        torch = sys.modules["torch"]
        if leaf.dtype in dtypes.QUANTIZED or not isinstance(getattr(torch, leaf.dtype, None), torch.dtype):
            what = f"torch has no type for {called(name)}, {leaf.dtype}"
            raise explained(TypeError, what, 'Convert it on the reader, or use to="numpy"')


def times_weight(element: Any, weight: Any) -> Any:
    """(x, y, sample_weight) and a weight for each row become (x, y, sample_weight * weight)."""
    x, y, own = element
    weight = weight.reshape(tuple(weight.shape) + (1,) * (own.ndim - 1))
    return x, y, own * (weight.astype(own.dtype) if isinstance(own, np.ndarray) else weight.to(own.dtype))
