# SPDX-License-Identifier: Apache-2.0
"""Backup: saves the objects of the program's own training loop and the position in the data. Resumes the loop there.

This module needs no TensorFlow. It uses TensorFlow and PyTorch if the program has imported them.
"""

from __future__ import annotations

import os
import pickle
import sys
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Type

from ..errors import explained, whole
from ..loading.loader import Loader
from . import iterators
from .copies import copied
from .leaving import Leaving, checked_seconds
from .sets import WholeSet
from .together import JobSets, checked_arguments, take

_OBJECTS, _MODEL = "objects", "model"  # the names of files in the part of rank 0
_WHAT = "Backup"


class Backup:
    """Saves and restores a training loop: objects, values and the position in the data, at the same step of all ranks.

        with hvdata.Backup(directory, every=200, model=model, optimizer=optimizer) as backup:
            for epoch in backup.epochs(3):
                for batch in backup.steps(train):
                    ...  # one training step

    Collective: every trainer makes it with the same arguments, and makes the same steps. On entry it restores the
    newest set, if there is one. Then `epochs()` and `steps()` go on where that set was saved, also on another number of
    ranks (docs/checkpoints.md has the conditions). A step has ended when the loop asks for the next batch. Sets are
    saved at that moment: the state is copied in memory, and a thread writes it. Only whole sets are used. If the disk
    has an error, a log line reports it, and the earlier sets stay.

    SIGTERM and SIGUSR1, on any rank that trains, make all ranks save after one of the next steps and end with status
    75 (HOROVOD_DATA_LEAVE_STATUS). The program's own handlers of these signals are called, too.

    If the block ends without an error, the sets are removed. Sets in the directory of the launcher stay until the job's
    normal end. If the launcher starts the job again before that, the block makes no steps.

    Attributes:
      step: the number of steps that were made, over all epochs and all starts of the job.
      epoch: the number of the running epoch, from 0.
      values: a dict for what can't be restored in place, such as a tree of JAX arrays. Anything that pickle can hold.
        Rank 0 saves it. On entry, all ranks get it.
    """

    def __init__(
        self,
        directory: Optional[str] = None,
        *,
        every: Optional[int] = None,
        seconds: Optional[float] = 600,
        keep: int = 2,
        **objects: Any,
    ) -> None:
        """Local.

        Args:
          directory: where the sets are, on a file system that all ranks share. None: the value of HOROVOD_DATA_STATE.
          every: the number of steps from one set to the next. None: no set by number.
          seconds: the time from one set to the next, by the clock of rank 0. None: no set by time.
          keep: the number of sets to keep. 1 or more.
          objects: the objects, by name, that rank 0 saves and all ranks restore in place. Each object has state_dict()
            and load_state_dict(), as objects of PyTorch do, or is one that tf.train.Checkpoint can save, such as a
            tf.Variable, a Keras model or a Keras optimizer.

        Raises:
          TypeError, ValueError: an argument has a wrong type or value. Or neither directory nor HOROVOD_DATA_STATE is
            set. Or an optimizer of Keras is not built.
        """
        steps = None if every is None else whole(every) or 0
        if steps is not None and steps <= 0:
            raise explained(ValueError, f"every must be a number of steps, not {every!r}")
        self._every, self._seconds = steps, checked_seconds(seconds)
        self._directory, self._keep = checked_arguments(_WHAT, directory, keep)
        self._with_states = {name: one for name, one in objects.items() if _has_state(one)}
        self._checkpoint = _checkpoint_of({name: one for name, one in objects.items() if not _has_state(one)})
        self._names = sorted(objects)
        self.step = self.epoch = 0
        self.values: dict[str, Any] = {}
        self._sets: Optional[JobSets] = None
        self._leaving: Optional[Leaving] = None
        self._found: Optional[WholeSet] = None  # the set, until its position is restored
        self._of_epoch = 0  # steps of the running epoch
        self._data: Any = None  # what steps() got
        self._channels: list[str] = []  # of it
        self._running: Any = None  # identifies the newest call of steps()
        self._iterator: Any = None  # the iterator over `_data`. None: no epoch is running

    def __enter__(self) -> Backup:
        """Restores the newest set. Collective. If one rank raises an error, all ranks raise it.

        Raises:
          RuntimeError: before init(), on a dedicated reader, or the ranks don't share the directory.
          OSError: rank 0 can't read the directory.
          ValueError: the ranks' arguments differ, or an object is not the one that was saved.
        """
        arguments = {"every": self._every, "seconds": self._seconds, "objects": self._names}
        self._sets = JobSets(self._directory, self._keep, _WHAT, arguments)
        self._found = self._sets.open()
        if (found := self._found) is not None:
            self._sets.on_all("objects", lambda: self._restore_objects(found))
            self.step, self.epoch, self._of_epoch = (found.about[name] for name in ("step", "epoch", "of_epoch"))
        self._leaving = Leaving(_WHAT, self._seconds)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Ends the sets, after all ranks have come here. After an error the sets stay, and no rank waits for another.

        Raises:
          ValueError: the ranks have saved at different steps.
        """
        assert self._sets is not None and self._leaving is not None
        self._leaving.close()
        self._data = self._iterator = self._running = None
        if error is None:
            self._sets.end(self._take_of_rank_0, self._about())
        else:
            self._sets.stop()

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs, from the restored one to `count` - 1. Sets `epoch`."""
        first = count if self._sets is not None and self._sets.is_over else self.epoch
        for epoch in range(first, count):
            if epoch != self.epoch:
                self.epoch, self._of_epoch = epoch, 0
            yield epoch
        self.epoch, self._of_epoch = max(self.epoch, count), 0

    def steps(self, data: Any, count: Optional[int] = None) -> Iterator[Any]:
        """The batches of the running epoch. In a resumed run the first call goes on with the epoch that was saved.

        Collective: every rank makes the same steps, and may save after each of them. If the restored set says that the
        training is over, there are no batches.

        Args:
          data: a result of distribute_dataset(), perhaps with stages behind it, or of loader(). All calls get the same
            channel. Iterate over other data, such as those of a validation, without steps().
          count: the steps of an epoch. The next call goes on where this one stopped, and begins the data again at their
            end. None: an epoch is one pass over the data. Each call begins a new pass.

        It raises the errors of a Loader's state_dict() and load_state_dict() too, or of tf.train.Checkpoint.

        Raises:
          TypeError: `data` is something else.
          RuntimeError: outside of the `with` block. Or another call of steps() has begun meanwhile.
          ValueError: `data` has another channel than in the calls before, or one with schedule="dynamic". Or the ranks
            save at different steps. Or the restored position is damaged. Or the number of ranks has changed, and a
            stage behind distribute_dataset() buffers elements.
        """
        if self._sets is None or self._leaving is None:
            raise explained(
                RuntimeError, "steps() was called outside of the block", "Use `with Backup(...) as backup:`"
            )
        if self._sets.is_over:
            return
        self._begin(data, goes_on=count is not None)
        self._running = mine = object()
        began_anew = False
        while count is None or self._of_epoch < count:
            if self._running is not mine:
                what = "another steps() of this Backup has begun, so this one has lost its place"
                raise explained(RuntimeError, what, "Use one steps() at a time, and iterate over other data without it")
            try:
                element = next(self._iterator)
            except StopIteration:
                self._iterator = None
                if count is None or began_anew:
                    return
                began_anew = True
                self._begin(data, goes_on=False)
                continue
            began_anew = False
            yield element
            self._after_step()

    # ---- Steps.

    def _begin(self, data: Any, goes_on: bool) -> None:
        """Makes the iterator of an epoch, and restores its position. Or keeps the one that is running."""
        assert self._sets is not None
        if goes_on and self._iterator is not None and self._data is data:
            return
        if not isinstance(data, Loader) and not _is_dataset(data):
            what = f"steps() was given a {type(data).__name__}"
            raise explained(TypeError, what, "Give it a result of distribute_dataset() or of loader()")
        channels = iterators.channels_of(data)
        if iterators.is_dynamic(data):
            what = 'steps() was given data with schedule="dynamic", with which ranks make different numbers of steps'
            raise explained(ValueError, what, 'Use schedule="static"')
        if self._data is not None and channels != self._channels:
            what = f"steps() was given the channel {', '.join(channels)} after {', '.join(self._channels)}"
            raise explained(ValueError, what, "Use steps() for the training data alone, and iterate over other data")
        self._channels = channels
        self._iterator, self._data = None, data
        found, self._found = self._found, None
        if found is None:
            self._iterator = iter(data)
            return

        def restore() -> None:
            assert self._sets is not None
            state = iterators.read(found, self._sets.rank, _WHAT)
            if isinstance(data, Loader):
                data.load_state_dict({"state": state})
                self._iterator = iter(data)
            else:
                iterators.check_ranks(data, found.about["ranks"], self._sets.ranks)
                self._iterator = iter(data)
                iterators.restore(self._iterator, state)

        self._sets.on_all("iterator", restore)

    def _after_step(self) -> None:
        assert self._sets is not None and self._leaving is not None
        self.step += 1
        self._of_epoch += 1
        decision = self._leaving.after_step()
        if not decision.saves and (self._every is None or self.step % self._every != 0):
            return
        self._sets.save(take(self._take), self._about())
        self._leaving.saved()
        if decision.leaves:
            self._leaving.leave(f"step {self.step}", self._sets.finish())

    def _take(self) -> Callable[[str], None]:
        if isinstance(self._data, Loader):
            state = self._data.state_dict()["state"]
        else:
            state = iterators.state_of(self._iterator, self._data)
        write_objects = self._take_of_rank_0()

        def write(folder: str) -> None:
            iterators.write(folder, state)
            write_objects(folder)

        return write

    def _about(self) -> dict[str, Any]:
        assert self._sets is not None
        return {"epoch": self.epoch, "step": self.step, "of_epoch": self._of_epoch, "ranks": self._sets.ranks}

    # ---- Objects.

    def _take_of_rank_0(self) -> Callable[[str], None]:
        assert self._sets is not None
        return self._take_objects() if self._sets.rank == 0 else lambda folder: None

    def _take_objects(self) -> Callable[[str], None]:
        states = {name: copied(one.state_dict()) for name, one in self._with_states.items()}
        said = {"names": self._names, "states": states, "values": copied(self.values)}
        write_model = None if self._checkpoint is None else _snapshot(_tf_checkpoint(self._checkpoint))

        def write(folder: str) -> None:
            torch: Any = sys.modules.get("torch")
            with open(os.path.join(folder, _OBJECTS), "wb") as file:
                try:
                    # Protocol 5 writes arrays without a copy. A copy would keep the other threads waiting.
                    pickle.dump(said, file, 5) if torch is None else torch.save(said, file)
                except RuntimeError as error:  # on a full disk torch raises it while it handles the OSError
                    raise error.__context__ if isinstance(error.__context__, OSError) else error
            if write_model is not None:
                write_model(os.path.join(folder, _MODEL))

        return write

    def _restore_objects(self, found: WholeSet) -> None:
        torch: Any = sys.modules.get("torch")
        path = os.path.join(found.part(0), _OBJECTS)
        with open(path, "rb") as file:
            try:
                said = pickle.load(file) if torch is None else torch.load(file, map_location="cpu", weights_only=False)
            except Exception as error:  # of any class, because pickle runs what it reads
                why = f"{type(error).__name__}: {error}".rstrip(": ")
                to_do = "If it is damaged, remove this set. Then the set before it is used"
                raise explained(ValueError, f"{_WHAT} can't restore from {path} ({why})", to_do) from None
        if said["names"] != self._names:
            theirs, ours = (", ".join(names) or "no object" for names in (said["names"], self._names))
            raise _other_objects(f"the set has {theirs}, and this run {ours}")
        for name, one in self._with_states.items():
            one.load_state_dict(said["states"][name])
        self.values.clear()
        self.values.update(said["values"])
        if self._checkpoint is not None:
            try:
                status = _tf_checkpoint(self._checkpoint).read(os.path.join(found.part(0), _MODEL))
                status.expect_partial()
                status.assert_existing_objects_matched()
            except (AssertionError, ValueError) as error:
                raise _other_objects(str(error).strip()) from None


def _other_objects(why: str) -> Exception:
    what = f"Backup can't restore the newest set: {why}"
    return explained(ValueError, what, "Use the same objects, or another directory")


def _is_dataset(data: Any) -> bool:
    tf: Any = sys.modules.get("tensorflow")
    return tf is not None and isinstance(data, tf.data.Dataset)


def _has_state(one: Any) -> bool:
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))


def _tf_checkpoint(objects: dict[str, Any]) -> Any:
    import tensorflow as tf

    return tf.train.Checkpoint(**objects)


def _snapshot(checkpoint: Any) -> Callable[[str], None]:
    from ..native import tensorflow_private as private

    return private.snapshot(checkpoint)


def _checkpoint_of(objects: dict[str, Any]) -> Optional[dict[str, Any]]:
    """The objects that tf.train.Checkpoint saves. None: there are none. Raises TypeError or ValueError."""
    if not objects:
        return None
    for name, one in objects.items():
        try:
            if "tensorflow" not in sys.modules:
                raise ValueError
            _tf_checkpoint({name: one})
        except ValueError:
            what = f"Backup can't save {name}, a {type(one).__name__}: it has no state_dict() and load_state_dict()"
            to_do = "Put what has no state of its own into `values`"
            raise explained(TypeError, f"{what}, and tf.train.Checkpoint can't save it", to_do) from None
        if hasattr(one, "apply_gradients") and getattr(one, "built", True) is False:
            to_do = f"Call {name}.build(model.trainable_variables) before it"
            raise explained(ValueError, f"Backup was given {name}, an optimizer that is not built", to_do)
    return objects
