# SPDX-License-Identifier: Apache-2.0
"""Horovod's Keras layer for Keras 3, in place of horovod.tensorflow.keras (docs/frameworks.md).

import horovod_data.integrations.keras as hvd

It has `DistributedOptimizer`, `load_model` and `callbacks`. Every other name is horovod.tensorflow's.
"""

from __future__ import annotations

from typing import Any

import keras as _keras

from ...errors import explained as _explained

if _keras.__version__.startswith("2."):
    _what = f"horovod_data.integrations.keras is for Keras 3, and this is Keras {_keras.__version__}"
    raise _explained(ImportError, _what, "Import horovod.tensorflow.keras")
if _keras.backend.backend() != "tensorflow":
    _what = f"horovod_data.integrations.keras needs Keras' backend tensorflow, and this is {_keras.backend.backend()}"
    raise _explained(ImportError, _what, "Set KERAS_BACKEND=tensorflow, or train without Horovod's optimizer")

import horovod.tensorflow as _horovod  # noqa: E402

from . import callbacks  # noqa: E402
from .loading import load_model  # noqa: E402
from .optimizer import DistributedOptimizer  # noqa: E402

__all__ = ["DistributedOptimizer", "callbacks", "load_model"]


def __getattr__(name: str) -> Any:
    return getattr(_horovod, name)
