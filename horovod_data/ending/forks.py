# SPDX-License-Identifier: Apache-2.0
"""Protects a forked child from the job's objects that it inherits.

Iterators of tf.data and sessions of TF1 have threads, but a child has only the thread that forked. TensorFlow waits for
an iterator's threads when it destroys the iterator, and when the program asks for an element. So a child would crash or
wait without end. Therefore in a child:

- The inherited iterators and sessions are never destroyed.
- Iterators and datasets of a channel raise, and inherited sessions raise.

The parent keeps weak references to its iterators and sessions. If the child searched all objects, it would copy most of
the parent's memory, because reading a reference count writes to the object's page.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import weakref
from typing import Any, Callable, NoReturn, Optional, Sequence, Union

import tensorflow as tf

from .. import errors
from ..native import tensorflow_private as private

_Inherited = Union[private.OwnedIterator, private.BaseSession]
_inherited: "weakref.WeakSet[_Inherited]" = weakref.WeakSet()
_ends_of_channels: Optional[Callable[[tf.data.Dataset], Sequence[Any]]] = None


def install(ends_of_channels: Callable[[tf.data.Dataset], Sequence[Any]]) -> None:
    """Prepares this process for forked children. May be repeated.

    `ends_of_channels` returns the stages of a dataset that receive from a channel.
    """
    global _ends_of_channels
    if _ends_of_channels is not None:
        return
    _ends_of_channels = ends_of_channels
    kinds = private.OwnedIterator, private.BaseSession
    for kind in kinds:
        _note_made(kind)
    if frozen := gc.get_freeze_count() > 0:  # get_objects() leaves out objects that the program has frozen
        gc.unfreeze()
    objects = gc.get_objects()
    if frozen:
        gc.freeze()
    # Objects made before init(). isinstance() would make proxies import modules, or raise.
    found = {of for of in set(map(type, objects)) if issubclass(of, kinds)}
    _inherited.update(one for one in objects if type(one) in found)
    os.register_at_fork(after_in_child=_in_child)


def _note_made(kind: type) -> None:
    initialize = kind.__init__  # type: ignore[misc]

    @functools.wraps(initialize)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        _inherited.add(self)
        initialize(self, *args, **kwargs)

    kind.__init__ = noted  # type: ignore[misc]


def _refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    raise tf.errors.FailedPreconditionError(None, None, errors.forked(what, "used"))


_refuse_dataset = functools.partial(_refuse, "a dataset of horovod_data")
_refuse_session = functools.partial(_refuse, "a session of TensorFlow")


def _in_child() -> None:
    private.keep_functions()
    call = getattr(tf.data.Dataset, private.DATASET_CALL)  # iter() calls it
    checked = lambda dataset: _refuse_dataset() if _is_of_channel(dataset) else call(dataset)
    setattr(tf.data.Dataset, private.DATASET_CALL, checked)
    for one in list(_inherited):
        with contextlib.suppress(Exception):  # the other objects must still be disarmed
            _disarm(one)


def _disarm(one: _Inherited) -> None:
    """In the child: makes sure that the object is never destroyed, and that calls raise if they would need a thread."""
    if isinstance(one, private.BaseSession):
        _keep(one)
        # close() would wait for the session's threads
        vars(one).update(dict.fromkeys(private.SESSION_CALLS, _refuse_session), close=lambda: None)
    elif (resource := private.resource_of(one)) is not None and private.is_eager(resource):
        _keep(resource)
        if (dataset := private.dataset_of(one)) is not None and _is_of_channel(dataset):
            vars(one).update(dict.fromkeys(private.ITERATOR_CALLS, _refuse_dataset))


def _is_of_channel(dataset: tf.data.Dataset) -> bool:
    with contextlib.suppress(Exception):  # a dataset of the program's own class may raise
        return bool(_ends_of_channels is not None and _ends_of_channels(dataset))
    return False


def _keep(one: Any) -> None:
    """Adds a reference that is never released, not even at the end of Python."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
