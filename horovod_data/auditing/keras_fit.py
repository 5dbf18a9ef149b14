# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run --audit: audits the data of Keras' Model.fit, without changes in the program.

With HOROVOD_DATA_AUDIT=1, launcher/rank.py (before the program starts) and horovod_data.init() call install(). It
replaces Model.fit in every Keras that is imported by then or later. The new Model.fit audits x. It adds a callback that
ends the audit's epochs with Keras' epochs. A log line on rank 0 names what can't be audited.

This module is loaded before TensorFlow, so it imports only modules that need no TensorFlow.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.machinery
import inspect
import os
import sys
from typing import Any, Callable, Mapping

from ..errors import fork_check, say
from ..job.launch_checks import rank_before_mpi

VARIABLE = "HOROVOD_DATA_AUDIT"
# Modules that make a class Model: Keras 2, TensorFlow's Keras 2 in its own package, Keras 3.
_HOMES = {"keras.src.engine.training", "tf_keras.src.engine.training", "keras.src.models.model"}

_fits = 0  # the number of calls that were audited, or named as not audited
_depth = 0  # of calls of Model.fit within each other


def wanted(environ: Mapping[str, str]) -> bool:
    return environ.get(VARIABLE, "").strip() == "1"


def install() -> None:
    """Replaces Model.fit, now or when Keras is imported. A second call does nothing."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    for name in _HOMES & set(sys.modules):
        _replace_fit(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())
    atexit.register(_say_if_nothing, fork_check())


class _AfterImport:
    """Replaces Model.fit when one of the modules has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name in _HOMES else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _replace_fit(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace_fit(module: Any) -> None:
    fit = getattr(getattr(module, "Model", None), "fit", None)
    if fit is None or getattr(fit, "of_audit", False):
        return

    @functools.wraps(fit)
    def audited_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _depth
        given = inspect.signature(fit).bind(self, *args, **kwargs)
        _depth += 1
        try:
            if _depth == 1:
                return _fit(fit, module, given)
            _say("Model.fit was called within a call of Model.fit, and is not audited. Call hvdata.audit() yourself")
            return fit(*given.args, **given.kwargs)
        finally:
            _depth -= 1

    audited_fit.of_audit = True  # type: ignore[attr-defined]
    module.Model.fit = audited_fit


def _fit(fit: Callable[..., Any], module: Any, given: inspect.BoundArguments) -> Any:
    global _fits
    _fits += 1
    audited = None
    try:
        audited = _audited(given.arguments)
    except Exception as error:
        # audit() raises on all ranks if it raises on one rank. Or the job is over, here or elsewhere
        # (UnavailableError).
        if not isinstance(error, (TypeError, ValueError, RuntimeError)) and type(error).__name__ != "UnavailableError":
            raise
        _say(f"this call of Model.fit is not audited: {error}")
    if audited is None:
        return fit(*given.args, **given.kwargs)
    given.arguments["x"] = audited
    given.arguments["callbacks"] = _with_callback(module, given.arguments.get("callbacks"), audited.end_epoch)
    try:
        return fit(*given.args, **given.kwargs)
    finally:
        audited._recorder.close_for_good()


def _audited(arguments: Mapping[str, Any]) -> Any:
    """The audited x for Keras. None: Keras takes x as it is. Raises TypeError if x can't be audited."""
    import horovod_data

    try:
        horovod_data.rank()
    except RuntimeError:  # the program hasn't called init(): after a plain hvd.init() all ranks come here together
        horovod_data.init()
    if not horovod_data.is_trainer():
        return None
    from .iterables import Audit

    x = arguments.get("x")
    if isinstance(x, Audit):
        return None  # the program audits x itself
    loader = _loader_of(x, arguments)
    audited = horovod_data.audit(x if loader is None else loader)
    audited._recorder.forgiving = True  # nothing is raised within the program's fit, because the report has the error
    if arguments.get("validation_data") is not None:
        _say("this call of Model.fit has validation_data, which is not audited. Call hvdata.audit() for it yourself")
    if loader is None:
        return audited
    list(audited)  # Keras cuts and shuffles the arrays, but an epoch has every row once
    audited._recorder.close_for_good()
    return None


def _loader_of(x: Any, arguments: Mapping[str, Any]) -> Any:
    """A loader for x if x holds arrays. None: x is a loader. Raises TypeError if x can't be audited."""
    import tensorflow as tf

    kind = f"x is a {type(x).__module__}.{type(x).__name__}"
    if isinstance(x, tf.data.Dataset):
        return None
    if hasattr(x, "__next__"):
        raise TypeError(f"{kind}, from which Keras takes batches before it trains with them")
    if arguments.get("validation_split"):
        raise TypeError(f"{kind}, of which validation_split takes a part away")
    if isinstance(x, (list, tuple, dict)) or hasattr(x, "__array__"):
        return [(x, arguments.get("y"))]
    raise TypeError(f"{kind}, which Keras would not recognise in a wrapper. Call hvdata.audit() yourself")


def _with_callback(module: Any, callbacks: Any, end_epoch: Callable[[], None]) -> Any:
    """The program's callbacks and our callback. `module` is the model's, because another Keras has other callbacks."""
    keras = importlib.import_module(module.__name__.partition(".")[0])
    ours = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_, **__: end_epoch())
    if hasattr(callbacks, "append") and hasattr(callbacks, "on_epoch_end"):  # Keras' CallbackList
        callbacks.append(ours)
        return callbacks
    several = callbacks if isinstance(callbacks, (list, tuple)) else [] if callbacks is None else [callbacks]
    return [ours, *several]  # before the program's callbacks, which may raise


@functools.lru_cache  # logs each text once
def _say(text: str) -> None:
    """Logs a line on the launcher's first rank, because the program may not have called init()."""
    if not rank_before_mpi(os.environ):
        say(f"--audit: {text}")


def _say_if_nothing(forked: Callable[[], bool]) -> None:
    if not _fits and not forked():
        to_do = "Wrap what your loop iterates over in hvdata.audit()"
        _say(f"this program has not called Keras' Model.fit, so nothing was audited. {to_do}")
