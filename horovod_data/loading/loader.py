# SPDX-License-Identifier: Apache-2.0
"""loader(): makes a channel, and gives this rank's shares as numpy arrays or torch tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Optional, Union

from ..channel.create import Channel, make
from ..channel.options import Options
from ..channel.reader_iterable import check_iterable, read_iterable
from ..channel.reading import INFINITE, InputContext, Reading, Rules, with_context
from ..elements import arrays
from ..ending import signals
from ..errors import explained
from ..job import state
from ..native import bindings, calls, shares


def loader(
    source: Any,
    *,
    batch: str,
    to: str = "numpy",
    schedule: str = "static",
    remainder: str = "drop",
    prefetch: Union[int, str] = "auto",
    name: Optional[str] = None,
    on_reader_error: str = "raise",
    verify: bool = False,
    prefetch_mb: Optional[float] = None,
    shard: Optional[str] = None,
    weigh: Union[None, str, Callable[..., Any]] = None,
    cache: Optional[str] = None,
    shuffle: bool = False,
    seed: int = 0,
    writable: bool = False,
) -> Loader:
    """Deals the elements of the reader's source to all ranks, as distribute_dataset() does. Ranks need no TensorFlow.

    Collective, as distribute_dataset(). One rank may call loader() where another rank calls distribute_dataset(). Each
    `iter()` of the result begins an epoch: one pass over the source, in which all ranks take part.

    Args:
      source: on readers one of these. On other ranks it is not used, and may be None.
        A tf.data.Dataset.
        An iterable, such as a torch DataLoader, a Hugging Face or Grain dataset, or a list. Readers call `iter(source)`
        once for each epoch. An element is a nest (dict, list, tuple, namedtuple) of numpy arrays, torch tensors on the
        CPU, numbers, str, bytes, lists of numbers or texts, hvdata.Ragged, hvdata.Sparse and None. All elements have
        the structure, the types and the numbers of axes of the first one, which is made in this call. Sizes may differ.
        A function that returns one of these. With one parameter without a default it gets a context with the attributes
        num_input_pipelines, input_pipeline_id and num_replicas_in_sync. If the program has imported TensorFlow, that is
        a tf.distribute.InputContext. With a parameter named `epoch` the function is called for every epoch, with the
        epoch's number from 1. An iterator, such as a generator, can be read once: pass the function that makes it.
      batch, schedule, remainder, prefetch, name, on_reader_error, verify, prefetch_mb, cache, shuffle, seed: as in
        distribute_dataset().
      shard: "auto": several readers divide the source. If it is a Python iterable, every reader reads all elements, and
        delivers its part of them.
      weigh: as in distribute_dataset(). If the source is a Python iterable, a function gets its elements unchanged.
      to: what this rank gets. Other ranks may get something else.
        "numpy": read-only arrays over the memory in which the share came. Texts are arrays of objects: str where the
        source has str, otherwise bytes. bfloat16 needs ml_dtypes.
        "torch": tensors over the same memory. Writing into them may end the process, because torch has no read-only
        tensors. Texts are lists of str or bytes.
        Ragged and sparse tensors are hvdata.Ragged and hvdata.Sparse.
      writable: True: each array is a copy, into which the program may write.

    Returns:
      A Loader. The memory of a share is used as long as an array or a slice of it lives, also after shutdown().

    Raises:
      TypeError, ValueError, RuntimeError, TimeoutError, KeyboardInterrupt and errors of the function: as
        distribute_dataset() raises them. Errors of the first element are raised in the same way.
      ImportError: to="torch" without PyTorch, or bfloat16 without ml_dtypes, on this rank.

    Iterating raises, on every rank:

    - The error that the source has raised, if its class is a builtin one. Otherwise a ValueError, TimeoutError or
      RuntimeError with its text. Its place is in front: channel, epoch, step, reader and host.
    - RuntimeError: a process was lost; after shutdown(); or a newer iterator has ended this epoch.
    - TimeoutError: nothing has come for HOROVOD_DATA_TIMEOUT seconds.
    """
    given = locals()
    job = state.current("loader()")
    arrays.check(to, writable)
    options = Options(**{field.name: given[field.name] for field in dataclasses.fields(Options)})
    options = options.completed(job.settings)
    with signals.Held() as ctrl_c:
        return Loader(make(job, options, "loader", lambda job: _read(source, options, job), ctrl_c), job, to, writable)


def _read(source: Any, options: Options, job: state.Job) -> Optional[Reading]:
    """This rank's side as a reader. None: it does not read."""
    if job.reader is None:
        return None
    rules = Rules(options, job.reader, *job.layout.sizes(job.comm_rank))
    if _checked(source) is None:
        to_do = "Pass a source, or a function that returns one; only other ranks may pass None"
        raise explained(TypeError, "source is None on a reader", to_do)
    function = None
    if isinstance(source, type) or callable(source) and not hasattr(source, "__iter__"):
        tf = sys.modules.get("tensorflow")
        context = InputContext if tf is None else tf.distribute.InputContext
        made, wants = with_context(source, context(rules.readers, rules.reader, rules.trainers), options)
        source = _called(made, 1 if wants.epoch else None)
        function = made if wants.epoch else None
    if _is_dataset(source):
        from ..channel.reader_dataset import read_made  # imports TensorFlow

        return read_made(source, function, rules)
    check_iterable(source)
    anew = None if function is None else lambda epoch: _called(function, epoch)
    return read_iterable(source, anew, rules)


def _is_dataset(source: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(source, tf.data.Dataset)


def _called(function: Callable[..., Any], epoch: Optional[int]) -> Any:
    with _mode(), state.reads():
        return _checked(function() if epoch is None else function(epoch=epoch))


def _mode() -> contextlib.AbstractContextManager[None]:
    """The context in which functions make sources."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return contextlib.nullcontext()
    from ..channel.reader_dataset import mode_of_readers
    from ..native import tensorflow_private

    # Datasets are made in eager mode, also in TF1 programs. A program that has only imported TensorFlow keeps its
    # devices for other processes.
    begins = not tf.executing_eagerly() or tensorflow_private.takes_devices()
    return mode_of_readers() if begins else contextlib.nullcontext()


def _checked(source: Any) -> Any:
    """Raises ValueError if the source is fed by a channel."""
    if isinstance(source, (Loader, _Shares)):
        what = "source is what loader() returned. It has one rank's shares, so this reader would wait for itself"
        raise explained(ValueError, what, "Pass the original source")
    return source


class Loader:
    """This rank's shares of a channel. Each `iter()` begins an epoch, and ends the one before it.

    Attributes:
      spec: a nest with the spec of each component of a share. A spec has a `dtype` (its name as in numpy, or "string")
        and a `shape` (None in it: the size varies).
    """

    def __init__(self, channel: Channel, job: state.Job, to: str, writable: bool):
        self._channel = channel
        # The iterators keep this object alive, so the channel is in use as long as one of them exists.
        weakref.finalize(self, bindings.channel_unuse, channel.number).atexit = False
        spec = channel.share_spec(job)
        arrays.check_spec(spec, to)
        self.spec = spec[0] if channel.multiplies else spec
        self._writes = to == "torch" and not writable  # torch has no read-only tensors
        self._maker = arrays.Maker(spec, to, writable, shares.releaser())
        # The last iterator. This object does not keep it alive. So if the program breaks the epoch off, the iterator
        # goes, and the epoch ends for this rank.
        self._last: Optional["weakref.ref[_Shares]"] = None
        self._ended: Optional[shares.ShareIterator] = None  # of the last epoch, if it was taken to its end
        self._next: Optional[shares.ShareIterator] = None  # the iterator of the next epoch, restored
        self._over = False  # the epoch of the restored state was over

    def __iter__(self) -> Iterator[Any]:
        """Begins an epoch. In a resumed run, the first call goes on with the epoch that was saved. If that epoch was
        over, it begins the next one.

        Raises:
          RuntimeError: after shutdown(), or in a forked child.
        """
        shares, self._next = self._next or self._new(), None
        if self._over:
            self._over = False
            shares.next()  # the end
            shares = self._new()
        self._ended = None
        made = _Shares(self, shares)
        self._last = weakref.ref(made)
        return made

    def __len__(self) -> int:
        """The number of steps of an epoch. TypeError: it is infinite, or not known before the epoch."""
        if self._channel.steps >= 0:
            return self._channel.steps
        why = "infinite" if self._channel.steps == INFINITE else "not known before its end"
        raise TypeError(f"the number of steps of an epoch of this loader is {why}")

    def state_dict(self) -> dict[str, Any]:
        """This rank's position, with the states of the readers' sources. Every rank saves its own.

        A source without a state is read again from its beginning, up to the position. That must give the same elements.
        Waits for the readers. Call it in the loop over the loader, or when the epoch is over.

        Raises:
          RuntimeError: an error has ended the epoch, the program has broken it off, or the state is too large.
        """
        last = None if self._last is None else self._last()
        shares = self._ended if last is None else last.shares
        if shares is not None:
            return {"state": shares.save()}
        if self._last is not None:
            what = "state_dict() was called when the program had broken the epoch off, which ends it for this rank"
            raise explained(RuntimeError, what, "Call it in the loop, or keep the iterator: it = iter(loader)")
        if self._next is None:
            self._next = self._new()
        return {"state": self._next.save()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` resume from a result of state_dict(). Every rank restores, before it begins the epoch.

        With schedule="static" all ranks may restore the state of one rank, also if there are more or fewer of them.
        Waits for the readers.

        Raises:
          TypeError: this is no state of a Loader.
          RuntimeError: the state is damaged, or belongs to another channel.
        """
        if not isinstance(state_dict, dict) or not isinstance(state_dict.get("state"), bytes):
            raise explained(
                TypeError, "load_state_dict() was given no state of a Loader", "Pass what state_dict() returned"
            )
        self._last = self._ended = self._next = None  # also if the state can't be restored
        self._over = False
        restored = self._new()
        over = restored.restore(state_dict["state"])
        self._next, self._over = restored, over

    def _new(self) -> shares.ShareIterator:
        return shares.ShareIterator(self._channel.number, self._channel.label, self._writes)

    def end(self, shares: shares.ShareIterator) -> None:
        """The epoch of the last iterator is over. Its state can still be saved."""
        self._ended = shares

    def made_of(self, share: list[calls.Column]) -> Any:
        """The element that the program gets."""
        element = self._maker.element(share)
        return arrays.times_weight(*element) if self._channel.multiplies else element

    def __repr__(self) -> str:
        return f"<horovod_data.Loader of channel {self._channel.label!r}>"


_process = object()  # another one in a forked child. os.getpid() may cost more than a step


def _in_child() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_in_child)


class _Shares:
    """The iterator of an epoch. Several threads may take shares from it."""

    def __init__(self, of: Loader, shares: shares.ShareIterator):
        self._of = of
        self.shares = shares
        self._over = False
        self._lock = threading.Lock()  # a share's columns are valid until the next one comes
        self._process = _process

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._process is not _process:  # a thread that a forked child does not have may hold the lock for ever
            self._lock = threading.Lock()
        with self._lock:
            share = None if self._over else self.shares.next()
            if share is not None:
                return self._of.made_of(share)
            if not self._over:
                self._over = True
                self._of.end(self.shares)
        raise StopIteration
