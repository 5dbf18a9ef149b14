# SPDX-License-Identifier: Apache-2.0
"""What a forked child inherits of a job that it is no part of: objects that it can neither use nor destroy.

A tf.data iterator has threads, and a child has only the thread that forked. TensorFlow joins them all the same when an
iterator is destroyed, and hands an element that is asked for to one of them: the child crashes or waits for ever. So in a
child the iterators that it inherits are never destroyed, and those of a channel, and its datasets, raise. So do sessions of
TF1, which have their threads in the parent, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
from typing import Any, NoReturn

import tensorflow as tf

from .. import errors
from ..channel import receiver
from ..native import tensorflow_private as private

_installed = False


def install() -> None:
    """From now on forked children of this process are taken care of. May be repeated."""
    global _installed
    if not _installed:
        _installed = True
        os.register_at_fork(after_in_child=_in_child)


def _refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    raise tf.errors.FailedPreconditionError(None, None, errors.forked(what, "used"))


def _in_child() -> None:
    refuse = functools.partial(_refuse, "a dataset of horovod_data")
    refuse_session = functools.partial(_refuse, "a session of TensorFlow")
    bases = private.OwnedIterator, private.BaseSession, tf.data.Dataset
    private.keep_functions()
    gc.unfreeze()  # get_objects() leaves out what the parent has frozen
    known: dict[type, Any] = {}  # which of these a type is; there are half a million objects, and few types
    for one in gc.get_objects():
        kind = type(one)  # not isinstance(): proxies import modules, or raise, when they are asked
        if kind not in known:
            known[kind] = next((base for base in bases if issubclass(kind, base)), None)
        if (base := known[kind]) is None:
            continue
        with contextlib.suppress(Exception):  # of a dataset of the user's own kind, say: the others come all the same
            if base is private.BaseSession:
                _keep(one)
                vars(one).update(dict.fromkeys(private.SESSION_CALLS, refuse_session), close=_nothing)
            elif base is tf.data.Dataset:
                if receiver.ends_of_channels(one):
                    vars(one)[private.DATASET_CALL] = refuse
            elif (resource := private.resource_of(one)) is not None and private.is_eager(
                resource
            ):  # else one of a graph's
                _keep(resource)
                if (dataset := private.dataset_of(one)) is not None and receiver.ends_of_channels(dataset):
                    vars(one).update(dict.fromkeys(private.ITERATOR_CALLS, refuse))


def _nothing() -> None:
    """To close a session is to wait for its threads."""


def _keep(one: Any) -> None:
    """For ever: a reference that nobody gives back, not even the end of Python."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
