# SPDX-License-Identifier: Apache-2.0
"""Refuses Horovod's DistributedOptimizer around an optimizer of Keras 3.

There DistributedOptimizer averages nothing, and raises no error.

Horovod up to 0.28.1 averages gradients in methods that Keras 3 never calls. So each rank would train for itself.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import explain

TO_DO = (
    "Use DistributedOptimizer, load_model and the callbacks of horovod_data.integrations.keras. Or use Keras 2: "
    "TF_USE_LEGACY_KERAS=1 with the package tf_keras"
)


def refuse(where: str) -> None:
    """Makes DistributedOptimizer() and load_model() of Horovod's Keras layers raise, for optimizers of Keras 3.

    Horovod's load_model() gives a model of Keras 3 a plain optimizer.

    Call it if Horovod has several ranks. With the patch in packaging/horovod, Horovod averages these gradients, and
    nothing raises.

    Raises:
      RuntimeError: the program has made such an optimizer before.
    """
    try:
        import horovod._keras as layer

        make, load = layer.create_distributed_optimizer, layer.load_model
        arguments = inspect.signature(make)
    except Exception:  # another version of Horovod
        return
    if any({"_allreduce", "register_local_var"} <= vars(kind).keys() for kind in _kinds(_of_keras_3())):
        raise RuntimeError(_text(where))

    @functools.wraps(make)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = arguments.bind(*args, **kwargs).arguments["optimizer"]
        _check(given, where)
        return make(*args, **kwargs)

    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        model = load(*args, **kwargs)
        _check(getattr(model, "optimizer", None), where)
        return model

    layer.create_distributed_optimizer, layer.load_model = checked, loaded


def _check(optimizer: Any, where: str) -> None:
    kind = _of_keras_3()
    if kind is not None and isinstance(optimizer, kind):
        raise RuntimeError(_text(where))


def _of_keras_3() -> Any:
    """The class of all optimizers of Keras 3. None: the program has not imported Keras 3."""
    keras = sys.modules.get("keras")
    is_3 = getattr(keras, "__version__", "2.").partition(".")[0] != "2"
    return keras.optimizers.Optimizer if keras is not None and is_3 else None


def _kinds(kind: Any) -> Iterator[type]:
    """All classes below a class. Horovod makes one for each optimizer."""
    for below in kind.__subclasses__() if kind is not None else ():
        yield below
        yield from _kinds(below)


def _text(where: str) -> str:
    what = (
        "Horovod's DistributedOptimizer does not average the gradients of an optimizer of Keras 3, so each rank would train "
        "for itself"
    )
    return explain(what, TO_DO, where)
