# SPDX-License-Identifier: Apache-2.0
"""Loads a model that was saved without DistributedOptimizer, and makes its optimizer average gradients."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import horovod.tensorflow as hvd
import keras

from ...errors import explained
from .optimizer import DistributedOptimizer, averages, copy_state


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

    Raises:
      ValueError: the model's class has a compile() of its own. Keras does not call it for a loaded model.
    """
    custom = {**{each.__name__: each for each in custom_optimizers or ()}, **(custom_objects or {})}
    model = keras.models.load_model(filepath, custom_objects=custom)
    plain = model.optimizer
    if plain is None or averages(plain):
        return model
    with keras.saving.custom_object_scope(custom):
        optimizer = keras.saving.serialize_keras_object(DistributedOptimizer(plain, compression=compression))
        # On a machine with a GPU compile() may have chosen jit_compile=True. This optimizer does not run with XLA.
        changed = {"optimizer": optimizer, "jit_compile": "auto"}
        model.compile_from_config({**model.get_compile_config(), **changed})
    if not averages(model.optimizer):
        to_do = "Compile it with DistributedOptimizer(model.optimizer) yourself"
        raise explained(ValueError, "load_model() can't compile a model whose class has a compile() of its own", to_do)
    copy_state(plain, model.optimizer)
    return model
