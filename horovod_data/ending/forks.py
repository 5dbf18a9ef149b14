# SPDX-License-Identifier: Apache-2.0
"""Protects a forked child from the iterators of tf.data that it inherits.

An iterator has threads, but a child has only the thread that forked. TensorFlow waits for an iterator's threads when it
destroys the iterator, and when the program asks for an element. So a child would wait without end. Therefore in a
child:

- The iterators that were made after init() are never destroyed.
- Iterators and datasets of a channel raise.

The parent keeps weak references to its iterators. If the child searched all objects, it would copy most of the parent's
memory, because looking at an object changes its reference count, which writes to the object's page.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from typing import Any, Callable, NoReturn, Optional, Sequence

import tensorflow as tf

from .. import errors
from ..native import tensorflow_private as private

_inherited: "weakref.WeakSet[private.OwnedIterator]" = weakref.WeakSet()
_ends_of_channels: Optional[Callable[[tf.data.Dataset], Sequence[Any]]] = None


def install(ends_of_channels: Callable[[tf.data.Dataset], Sequence[Any]]) -> None:
    """Prepares this process for forked children. May be repeated.

    `ends_of_channels` returns the stages of a dataset that receive from a channel.
    """
    global _ends_of_channels
    if _ends_of_channels is not None:
        return
    _ends_of_channels = ends_of_channels
    initialize = private.OwnedIterator.__init__

    @functools.wraps(initialize)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        _inherited.add(self)
        initialize(self, *args, **kwargs)

    private.OwnedIterator.__init__ = noted
    os.register_at_fork(after_in_child=_in_child)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise tf.errors.FailedPreconditionError(None, None, errors.forked("a dataset of horovod_data", "used"))


def _in_child() -> None:
    private.keep_functions()
    call = getattr(tf.data.Dataset, private.DATASET_CALL)  # iter() calls it
    checked = lambda dataset: _refuse() if _is_of_channel(dataset) else call(dataset)
    setattr(tf.data.Dataset, private.DATASET_CALL, checked)
    for one in list(_inherited):
        with contextlib.suppress(Exception):  # the other iterators must still be disarmed
            _disarm(one)


def _disarm(iterator: private.OwnedIterator) -> None:
    """In the child: keeps the iterator for ever. Makes the calls of a channel's iterator raise an error."""
    if (resource := private.resource_of(iterator)) is not None and private.is_eager(resource):
        # A reference that is never released, not even at the end of Python.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(resource))
        if (dataset := private.dataset_of(iterator)) is not None and _is_of_channel(dataset):
            vars(iterator).update(dict.fromkeys(private.ITERATOR_CALLS, _refuse))


def _is_of_channel(dataset: tf.data.Dataset) -> bool:
    with contextlib.suppress(Exception):  # a dataset of the program's own class may raise
        return bool(_ends_of_channels is not None and _ends_of_channels(dataset))
    return False
