# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run --audit: audits the data of Keras' Model.fit, without changes in the program.

HOROVOD_DATA_AUDIT=1 makes horovod_data.init() replace Model.fit. launcher/rank.py does so too, before the program
starts. They replace it in every Keras that is imported, then or later. The new Model.fit audits x. It also adds a
callback that ends the audit's epochs with Keras' epochs. It changes nothing else of the call. A log line on rank 0
names what can't be audited.

This module is loaded before TensorFlow, so it imports only Python's own modules.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from typing import Any, Callable, Mapping, NamedTuple

from ..errors import fork_check, say

VARIABLE = "HOROVOD_DATA_AUDIT"
# Modules that make a class Model: Keras 2, TensorFlow's Keras 2 in its own package, Keras 3.
_HOMES = {"keras.src.engine.training", "tf_keras.src.engine.training", "keras.src.models.model"}

_fits = 0  # the number of calls that were audited, or named as not audited
_within: dict[
    int, bool
] = {}  # processes (not their forked children) that are within a fit: True if a fit within that fit was named


class CantBeAudited(Exception):
    """The data can't be audited, so Model.fit gets it unchanged. The text says why."""


def wanted(environ: Mapping[str, str]) -> bool:
    """Says whether the variable asks for the audit. read_settings() refuses values other than 0 and 1."""
    return environ.get(VARIABLE, "").strip() == "1"


def install() -> None:
    """Replaces Model.fit, now or when Keras is imported. A second call does nothing."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    for name in _HOMES & set(sys.modules):
        _replace_fit(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())
    forked = fork_check()
    atexit.register(lambda: _say_if_nothing(forked))


class _AfterImport(importlib.abc.MetaPathFinder):
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
    model = getattr(module, "Model", None)
    fit = getattr(model, "fit", None)
    if model is None or fit is None or getattr(fit, "of_audit", False):
        return

    @functools.wraps(fit)
    def audited_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _fit(fit, module, self, args, kwargs)

    audited_fit.of_audit = True  # type: ignore[attr-defined]
    model.fit = audited_fit


def _fit(fit: Callable[..., Any], module: Any, model: Any, args: Any, kwargs: Any) -> Any:
    global _fits

    given = inspect.signature(fit).bind(model, *args, **kwargs)
    if (named := _within.get(os.getpid())) is not None:
        if not named:
            _say(
                "Model.fit was called within a call of Model.fit, and is not audited. Call hvdata.audit() for it yourself"
            )
            _within[os.getpid()] = True
        return fit(*given.args, **given.kwargs)
    _fits += 1
    audited = _Audited(given.arguments.get("x"))
    try:
        audited = _audited(model, given.arguments)
    except Exception as error:
        # audit() raises on all ranks if it raises on one rank. Or the job is over, here or on the other ranks
        # (UnavailableError).
        expected = isinstance(error, (CantBeAudited, TypeError, ValueError, RuntimeError))
        if not expected and type(error).__name__ != "UnavailableError":
            raise
        _say(f"this call of Model.fit is not audited: {error}")
    given.arguments["x"] = audited.x
    if audited.hooks:
        given.arguments["callbacks"] = _with_callback(module, given.arguments.get("callbacks"), audited.hooks)
    _within[os.getpid()] = False
    failed = True
    try:
        made = fit(*given.args, **given.kwargs)
        failed = False
        return made
    finally:
        _within.pop(os.getpid(), None)
        audited.end(failed)


class _Audited(NamedTuple):
    x: Any  # the data for Keras
    hooks: Mapping[str, Callable[[], None]] = {}  # functions to call, by the name of Keras' event
    end: Callable[[bool], object] = lambda failed: None  # called after fit, with True if it failed


def _audited(model: Any, arguments: Mapping[str, Any]) -> _Audited:
    """The data for Keras, and the functions to call.

    Raises:
      CantBeAudited: x can't be audited. The text says why.
    """
    import horovod_data

    try:
        horovod_data.rank()
    except RuntimeError:  # the program hasn't called init(): after a plain hvd.init() all ranks come here together
        horovod_data.init()
    if not horovod_data.is_trainer():
        return _Audited(arguments.get("x"))
    audited = _audited_x(model, arguments)
    if arguments.get("validation_data") is not None:
        _say("this call of Model.fit has validation_data, which is not audited. Call hvdata.audit() for it yourself")
    return audited


def _audited_x(model: Any, arguments: Mapping[str, Any]) -> _Audited:
    import tensorflow as tf

    import horovod_data

    from .iterables import Audit, ReadAhead
    from .sequences import sequence_class

    def audit(given: Any) -> Any:
        made = horovod_data.audit(given)
        made._recorder.forgive()  # nothing is raised within the program's fit, because the report has the error
        return made

    x, y = arguments.get("x"), arguments.get("y")
    if isinstance(x, Audit):
        return _Audited(x)  # the program audits x itself
    kind = f"x is a {type(x).__module__}.{type(x).__name__}"
    if isinstance(x, tf.data.Dataset):
        made = audit(x)
        return _Audited(made, {"on_epoch_end": made.end_epoch})
    if sequence_class(x) is not None:
        if arguments.get("use_multiprocessing") or getattr(x, "use_multiprocessing", False):
            raise CantBeAudited(f"{kind} whose batches are made in other processes (use_multiprocessing=True)")
        return _Audited(audit(x))  # Keras calls it at the ends of epochs
    if hasattr(x, "__next__"):
        if why := _not_in_order(model, arguments):
            raise CantBeAudited(f"{kind}, from which Keras takes batches before it trains with them, and {why}")
        ahead = ReadAhead(audit(x))
        batches = (batch for batch in ahead)  # generators are the only objects with a next() that Keras 3 takes
        return _Audited(batches, {"on_train_batch_end": ahead.trained, "on_epoch_end": ahead.end_epoch}, ahead.end)
    if arguments.get("validation_split"):
        raise CantBeAudited(f"{kind}, of which validation_split takes a part away")
    if isinstance(x, (list, tuple, dict)) or hasattr(x, "__array__"):
        list(audit([(x, y)]))  # Keras cuts and shuffles x, but an epoch has every row once
        return _Audited(x)
    raise CantBeAudited(f"{kind}, which Keras would not know again if it were wrapped. Call hvdata.audit() yourself")


def _not_in_order(model: Any, arguments: Mapping[str, Any]) -> str:
    """Says why it is unknown with which elements of an iterator Keras has trained. Empty: they can be counted."""
    if (arguments.get("workers") or 1) > 1 or arguments.get("use_multiprocessing"):
        return "several workers of Keras' share it"
    at_once = getattr(model, "steps_per_execution", None)
    if getattr(model, "autotune_steps_per_execution", False) or (at_once is not None and int(at_once) > 1):
        return "with steps_per_execution it doesn't tell after each step that it has made it"
    if _is_callback_list(arguments.get("callbacks")):
        return "callbacks is a CallbackList, which hears of no batches if none of its callbacks did"
    return ""


def _is_callback_list(callbacks: Any) -> bool:
    return hasattr(callbacks, "append") and hasattr(callbacks, "on_epoch_end")


def _with_callback(module: Any, callbacks: Any, hooks: Mapping[str, Callable[[], None]]) -> Any:
    """The program's callbacks and our callback. `module` is the model's, because another Keras has other callbacks."""
    keras = importlib.import_module(module.__name__.partition(".")[0])

    def called(hook: Callable[[], None]) -> Callable[..., None]:
        return lambda *_, **__: hook()

    ours = keras.callbacks.LambdaCallback(**{event: called(hook) for event, hook in hooks.items()})
    if _is_callback_list(callbacks):
        callbacks.append(ours)
        return callbacks
    several = callbacks if isinstance(callbacks, (list, tuple)) else [] if callbacks is None else [callbacks]
    # before the program's callbacks, which may raise: the model has been trained with the batch
    return [ours, *several]


def _say(text: str) -> None:
    """Logs a line on the launcher's first rank. hvd.rank() may be unknown, because the program may not have called
    init()."""
    if next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0") == "0":
        say(f"--audit: {text}")


def _say_if_nothing(forked: Callable[[], bool]) -> None:
    if not _fits and not forked():
        _say(
            "this program has not called Keras' Model.fit, so nothing was audited. Wrap what your loop iterates over in "
            "hvdata.audit()"
        )
