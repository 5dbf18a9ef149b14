# SPDX-License-Identifier: Apache-2.0
"""The types of items: their names, TensorFlow's numbers for them, and their numpy forms."""

from __future__ import annotations

import functools
from typing import Any, Optional

import numpy as np

from ..errors import explained

TEXT = "string"
# The numbers are those of csrc/rows/column.h and of TensorFlow's DataType.
_NUMBERS = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, TEXT: 7, "complex64": 8, "int64": 9,
    "bool": 10, "qint8": 11, "quint8": 12, "qint32": 13, "bfloat16": 14, "qint16": 15, "quint16": 16, "uint16": 17,
    "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23, "float8_e5m2": 24, "float8_e4m3fn": 25,
    "float8_e4m3fnuz": 26, "float8_e4m3b11fnuz": 27, "float8_e5m2fnuz": 28, "int4": 29, "uint4": 30,
}  # fmt: skip
NAMES = {number: name for name, number in _NUMBERS.items()}
FLOATING = ("float", "bfloat")  # the beginnings of the names of floating-point types
# Numbers with a scale, which is not known here.
QUANTIZED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "qint16": "int16", "quint16": "uint16"}
# Types that numpy has only with ml_dtypes, and numpy's own types of the same size. Older versions of torch have no
# uint16.
_BITS = {name: "int16" if name == "bfloat16" else "uint8" for name in _NUMBERS if name.startswith(("bfloat", "float8"))}
_BITS.update(int4="int8", uint4="uint8")


def number_of(name: str) -> int:
    """TensorFlow's number of a type. Raises TypeError for a type that can't be sent."""
    if name in _NUMBERS:
        return _NUMBERS[name]
    raise explained(TypeError, f"numbers of type {name} can't be sent to another rank", "Convert them to another type")


@functools.lru_cache(maxsize=None)
def name_of(dtype: Any) -> Optional[str]:
    """The name of numpy's type. None: its items can't be sent."""
    return dtype.name if dtype.name in _NUMBERS else None


def bits_of(name: str) -> str:
    """The name of a numpy type of the same size. It is the type itself, if numpy has it."""
    return _BITS.get(name) or QUANTIZED.get(name, name)


@functools.lru_cache(maxsize=None)
def numpy_of(name: str) -> Any:
    """The numpy type. Of quantized numbers it is the type of their integers.

    Raises:
      ImportError: numpy has the type only with ml_dtypes, which is not installed.
    """
    if name not in _BITS:
        return np.dtype(bits_of(name))
    try:
        import ml_dtypes
    except ImportError:
        what = f"numpy has no {name} without ml_dtypes, which is not installed"
        raise explained(ImportError, what, "Install ml_dtypes, or convert the numbers on the reader") from None
    return np.dtype(getattr(ml_dtypes, name))
