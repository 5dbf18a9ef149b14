# SPDX-License-Identifier: Apache-2.0
"""Loads a model that was saved without DistributedOptimizer, and makes its optimizer average gradients."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import horovod.tensorflow as hvd
import keras

from .optimizer import DistributedOptimizer, averages, xla_has_collectives


def load_model(
    filepath: Any,
    custom_optimizers: Optional[Sequence[Any]] = None,
    custom_objects: Optional[Mapping[str, Any]] = None,
    compression: Any = hvd.Compression.none,
) -> Any:
    """Loads a model with keras.models.load_model(). Its optimizer then averages gradients over all ranks. Local.

    Args:
      filepath: of the model.
      custom_optimizers: classes of optimizers that Keras does not have.
      custom_objects: other classes and functions that Keras does not have, by name.
      compression: as for DistributedOptimizer(), if the model was saved without it.

    Returns:
      The compiled model. Its optimizer keeps its variables, such as momenta.
    """
    custom = {**{each.__name__: each for each in custom_optimizers or ()}, **(custom_objects or {})}
    model = keras.models.load_model(filepath, custom_objects=custom)
    if model.optimizer is not None and not averages(model.optimizer):
        DistributedOptimizer(model.optimizer, compression=compression)
        if not xla_has_collectives():  # if there is a GPU, compile() may have chosen XLA
            model.jit_compile = False
    return model
