# SPDX-License-Identifier: Apache-2.0
"""Saves model, optimizer and iterators of Keras' fit() together, and resumes fit() in the middle of an epoch."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from typing import Any, Callable, Iterator, Optional, Union

import tensorflow as tf

from ..backup import iterators
from ..backup.leaving import Leaving
from ..backup.sets import WholeSet
from ..backup.together import JobSets, Part, checked_arguments, take
from ..errors import explained, whole
from ..native import tensorflow_private as private

_MODEL = "model"


class BackupAndRestore(tf.keras.callbacks.Callback):
    """Saves the model, the optimizer and the position in the data at the same step of all ranks. fit() resumes there.

    Keras' own callback of this name restores the model only. After a crash in the middle of an epoch, fit() then trains
    the first rows twice and the last rows never. With this callback fit() trains each row once.

    Collective: add it on every rank. When fit() begins in a new job, the callback restores the newest set: the model
    and optimizer of rank 0, the epoch, the step, and each rank's iterator. The new job may have another number of ranks
    (docs/checkpoints.md has the conditions). A thread writes the sets while the training goes on. Only whole sets are
    used, also after SIGKILL in the middle of a write. If a set can't be written, for example because the disk is full,
    a log line says so, and the earlier sets stay.

    SIGTERM and SIGUSR1, on any rank that trains, make all ranks save after one of the next steps and end with status
    75 (HOROVOD_DATA_LEAVE_STATUS). The program's own handlers of these signals are called, too.

    The learning rate is a variable of the optimizer, so it is saved. The states of other callbacks and the sums of
    metrics are not saved. So the logs of a resumed epoch cover only its steps in the new job. Validation data begin
    anew in each validation.

    With Keras 3 the model must be built before fit(), as for Keras' own callback, and the backend must be TensorFlow.

    Raises, in fit():
      RuntimeError: before init(), on a dedicated reader, with another backend of Keras 3, in a TF1 graph, or the ranks
        don't share the directory.
      OSError: rank 0 can't read the directory.
      ValueError: a set is damaged. Or the ranks' arguments differ, or the steps at which they save. Or the model is not
        built (Keras 3), or is not the one that was saved. Or the number of ranks has changed, and a stage behind
        distribute_dataset() buffers elements.
      TypeError: fit() does not iterate over a tf.data.Dataset in this process.
      tf.errors.OpError: an iterator can't be saved or restored (docs/checkpoints.md).
      All ranks raise the error of one rank.
    """

    def __init__(
        self,
        directory: Optional[str] = None,
        save_freq: Union[str, int] = "epoch",
        delete_checkpoint: bool = True,
        keep: int = 2,
    ) -> None:
        """
        Args:
          directory: of the sets, on a file system that all ranks share. Each fit() of a program needs its own.
            None: the value of HOROVOD_DATA_STATE.
          save_freq: "epoch", or the number of steps from one set to the next. The count goes on from epoch to epoch.
            A set that is due after the last step of an epoch is saved after the epoch's validation.
          delete_checkpoint: remove all sets when fit() has ended, as Keras' callback does. Sets in the directory of the
            launcher stay until the job's normal end. If the launcher starts the job again before that end, fit() makes
            no steps.
          keep: the number of sets to keep. 1 or more.

        Raises:
          TypeError, ValueError: an argument has a wrong type or value. Or neither directory nor HOROVOD_DATA_STATE
            is set.
        """
        super().__init__()
        every = None if save_freq == "epoch" else whole(save_freq) or 0
        if every is not None and every <= 0:
            raise explained(ValueError, f'save_freq must be "epoch" or a number of steps, not {save_freq!r}')
        self._directory, self._keep = checked_arguments("BackupAndRestore", directory, keep)
        self._every, self._deletes = every, delete_checkpoint
        self._supports_tf_logs = True  # otherwise Keras 2 copies the logs to numpy in each step
        self._sets: Any = None
        self._leaving: Any = None
        self._epoch = 0
        self._reset()

    def _reset(self) -> None:
        self._found: Optional[WholeSet] = None  # the set, until its iterator is restored
        self._counters: Optional[_Counters] = None
        self._checkpoint: Any = None
        self._matches: Optional[Callable[[], Any]] = None  # raises AssertionError if the restored model is another one
        # A weak reference. A strong one would keep the iterator's epoch open.
        self._iterator: Callable[[], Any] = lambda: None
        self._iterated: Any = None  # the dataset of that iterator
        self._taken = 0  # steps taken from that iterator
        self._done = 0  # steps made in this epoch
        self._began = 0  # the first of the steps that Keras runs together
        self._since = 0  # steps since the last set
        self._due = False  # a set is due at the end of this epoch
        self._leaves = False  # all ranks leave when the next set is current
        self._held: Optional[tuple[Part, dict[str, Any]]] = None  # a set in memory, which is not being written yet

    # ---- Called by Keras.

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def on_train_begin(self, logs: Any = None) -> None:
        if not tf.executing_eagerly():
            what = "BackupAndRestore can't save the iterators of a TF1 graph"
            raise explained(RuntimeError, what, "Use eager mode")
        if (backend := _backend()) != "tensorflow":
            what = f"BackupAndRestore can't reach the iterators of Keras with the backend {backend}"
            raise explained(
                RuntimeError, what, "Use the backend tensorflow, or tf.train.Checkpoint in a loop of your own"
            )
        self._reset()
        arguments = {"save_freq": self._every or "epoch", "delete_checkpoint": bool(self._deletes)}
        self._sets = JobSets(self._directory, self._keep, "BackupAndRestore", arguments)
        self._found = self._sets.open()
        if self._leaving is not None:  # an error has ended an earlier fit()
            self._leaving.close()
        self._leaving = Leaving("BackupAndRestore")
        train_counter = getattr(self.model, "_train_counter", None)  # Keras 2
        extra = {} if train_counter is None else {"train_counter": train_counter}
        self._checkpoint = tf.train.Checkpoint(model=self.model, **extra)
        if self._found is not None:
            self._sets.on_all("model", lambda: self._restore_model(self._found))
            epoch, step, taken = self._where_it_begins(self._found)
            self._counters = _Counters(self.model, epoch, step, taken, step != self._found.about["step"])
        _TrainFunction.install(self.model, self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # on_epoch_end() did not leave, because a callback that Keras calls after it might have ended fit() there.
        if self._leaves:
            self._leaving.leave(f"epoch {epoch - 1}", self._sets.finish())
        self._epoch, self._done = epoch, 0
        if self._counters is not None:
            self._done = self._counters.step
            self._counters.take_back()
            self._counters = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # If Keras runs several steps together, Keras 2 passes the number of the last step. Some versions of Keras 3
        # pass the first.
        together = 1 if batch > self._began else int(getattr(self.model, "steps_per_execution", None) or 1)
        steps = self.params.get("steps")
        done = batch + together if steps is None else min(batch + together, steps)
        self._taken += done - self._done
        self._since += done - self._done
        self._done = done
        self._leaves = self._leaving.after_step().leaves or self._leaves
        if not self._leaves and (self._every is None or self._since < self._every):
            return
        self._due = True
        # If Keras doesn't know the number of steps, this step may be the last one of the epoch. So the set is held
        # until the next step.
        if steps is None:
            self._held = self._take(self._epoch, done)
        elif done < steps:
            self._save(self._take(self._epoch, done))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._due = self._due or self._held is not None
        self._held = None
        if (self._leaves or self._every is None or self._due) and not self.model.stop_training:
            if (taken := self._take(epoch + 1, 0)) is not None:
                self._sets.save(*taken)

    def on_train_end(self, logs: Any = None) -> None:
        _TrainFunction.remove(self.model)
        self._leaving.close()
        if self._counters is not None:  # the restored fit() had no epoch left
            self._counters.take_back()
        if self._deletes:
            self._sets.end(self._take_model, {"epoch": self.params["epochs"], "step": 0, "taken": 0})
        else:
            self._sets.finish()
        self._reset()

    def end(self) -> None:
        """Called after an error in a step, after which Keras calls no on_train_end()."""
        self._leaving.close()

    # ---- Called by the train function.

    def before_step(self, iterator: Any) -> None:
        """Called before the train function takes a step from the iterator."""
        if iterator is not self._iterator():
            dataset = private.dataset_of(iterator) if isinstance(iterator, private.OwnedIterator) else None
            if dataset is None:
                what = f"BackupAndRestore can't save what fit() iterates over, a {type(iterator).__name__}"
                raise explained(TypeError, what, "Give fit() a tf.data.Dataset, without tf.distribute")
            self._iterator, self._iterated, self._taken = weakref.ref(iterator), dataset, 0
            if iterators.is_dynamic(dataset):  # each rank makes its own number of steps, so there are no exchanges
                self._leaving.stop()
        if (found := self._found) is not None:
            self._found = None
            self._taken = self._steps_of(found, "taken")
            self._sets.on_all("iterator", lambda: self._restore_iterator(found, iterator))

    def after_step(self, ended: bool) -> None:
        """Called after the step. `ended`: there was no step, because the iterator has ended."""
        if self._matches is not None:
            matches, self._matches = self._matches, None
            self._sets.on_all("matches", lambda: _check_model(matches))
        held, self._held = self._held, None
        if held is not None and ended:
            self._due = True
        elif held is not None:
            self._save(held)

    # ---- Saving.

    def _save(self, taken: Optional[tuple[Part, dict[str, Any]]]) -> None:
        """Begins to save a set of the middle of an epoch. If all ranks are to leave, waits for it, and leaves."""
        if taken is not None:
            self._sets.save(*taken)
        if self._leaves:
            self._leaving.leave(f"epoch {self._epoch}, step {self._done}", self._sets.finish())

    def _take(self, epoch: int, step: int) -> Optional[tuple[Part, dict[str, Any]]]:
        """Takes a set into memory. None: there was no step yet."""
        iterator, fresh = self._iterator(), False
        dataset, taken = self._iterated, self._taken
        if dataset is None:
            return None
        if step == 0:
            steps, length = self.params.get("steps"), int(dataset.cardinality())
            fresh = steps is None or length in (steps, taken)
            if fresh:  # Keras makes a new iterator for the next epoch
                iterator, taken = iter(dataset), 0
        if iterator is None:
            raise explained(RuntimeError, "BackupAndRestore can't save: the iterator of fit() is gone")
        about = {
            "epoch": epoch,
            "step": step,
            "taken": taken,
            "fresh": fresh,
            "ranks": self._sets.ranks,
            "per_rank": iterators.is_per_rank(dataset),
        }

        def take_part() -> Callable[[str], None]:
            state, write_model = iterators.state_of(iterator, dataset), self._take_model()

            def write(folder: str) -> None:
                iterators.write(folder, state)
                write_model(folder)

            return write

        self._since, self._due = 0, False
        return take(take_part), about

    def _take_model(self) -> Callable[[str], None]:
        if self._sets.rank != 0:
            return lambda folder: None
        write = private.snapshot(self._checkpoint)
        return lambda folder: write(os.path.join(folder, _MODEL))

    # ---- Restoring.

    def _where_it_begins(self, found: WholeSet) -> tuple[int, int, int]:
        """The epoch, its step, and the steps that were taken from the iterator."""
        if self._sets.is_over:
            return self.params["epochs"], 0, 0
        return found.about["epoch"], self._steps_of(found, "step"), self._steps_of(found, "taken")

    def _steps_of(self, found: WholeSet, what: str) -> int:
        """Converts the set's number of steps `what` to whole steps of this job's number of ranks."""
        steps = int(found.about[what])
        return steps * found.about["ranks"] // self._sets.ranks if found.about["per_rank"] else steps

    def _restore_model(self, found: Any) -> None:
        if not self.model.built and not _is_keras_2(self.model):
            to_do = "Call it on a batch, or give it an Input"
            raise explained(ValueError, "BackupAndRestore needs a model that is built before fit()", to_do)
        optimizer = self.model.optimizer
        if getattr(optimizer, "built", True) is False and self.model.built:
            optimizer.build(self.model.trainable_variables)
        try:
            status = self._checkpoint.read(os.path.join(found.part(0), _MODEL))
        except ValueError as error:  # another shape
            raise _other_model(error) from None
        status.expect_partial()  # a checkpoint has more than fit() needs
        self._matches = status.assert_existing_objects_matched

    def _restore_iterator(self, found: WholeSet, iterator: Any) -> None:
        if not found.about["fresh"]:
            iterators.check_ranks(self._iterated, found.about["ranks"], self._sets.ranks)
        iterators.restore(iterator, iterators.read(found, self._sets.rank, "BackupAndRestore"))


class _TrainFunction:
    """Keras' train function, which fit() calls for each step (or steps_per_execution of them) with its iterator.

    Model.make_train_function() documents this call. In Keras 2 and 3 nothing else shows the iterator.
    """

    def __init__(self, function: Callable[[Any], Any], backup: BackupAndRestore) -> None:
        self.function = function
        self._backup = backup

    @classmethod
    def install(cls, model: Any, backup: BackupAndRestore) -> None:
        cls.remove(model)  # an error may have ended an earlier fit()
        model.train_function = cls(model.train_function, backup)

    @classmethod
    def remove(cls, model: Any) -> None:
        if isinstance(model.train_function, cls):
            model.train_function = model.train_function.function

    def __call__(self, iterator: Any) -> Any:
        self._backup.before_step(iterator)
        try:
            logs = self.function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            self._backup.after_step(ended=True)
            raise
        except BaseException:
            self._backup.end()
            raise
        self._backup.after_step(ended=False)
        return logs


class _Counters:
    """Makes fit() begin at an epoch and a step, from on_train_begin() until take_back()."""

    def __init__(self, model: Any, epoch: int, step: int, taken: int, open_end: bool) -> None:
        self._model, self.epoch, self.step = model, epoch, step
        if _is_keras_2(model):
            model._training_state = self
            # After a change of the number of ranks, it is not known how many steps the remaining elements make.
            self._open_end = open_end
            return
        self._initial_epoch = model._initial_epoch
        model._initial_epoch = self.epoch
        epoch_iterator = _local_of_fit("epoch_iterator")
        if epoch_iterator is not None and (step > 0 or taken > 0):
            _begin_at(epoch_iterator, step, taken)

    def take_back(self) -> None:
        """Undoes the changes to Keras, when the first epoch begins, or when there is none."""
        if _is_keras_2(self._model):
            self._model._training_state = None
            if self._open_end and (handler := _local_of_fit("data_handler")) is not None:
                handler._inferred_steps = None  # for this epoch only; otherwise its end would end fit()
        else:
            self._model._initial_epoch = self._initial_epoch

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Called by fit() of Keras 2."""
        return self.epoch, self.step


def _begin_at(epoch_iterator: Any, step: int, taken: int) -> None:
    """Makes the next epoch of a Keras 3 EpochIterator begin at a step. Skipping steps takes no elements."""
    from_first = epoch_iterator._enumerate_iterator

    def from_step() -> Iterator[Any]:
        del epoch_iterator._enumerate_iterator  # for this epoch only
        steps = from_first()
        together = epoch_iterator.steps_per_execution
        for _ in itertools.islice(steps, step // together):
            pass
        for number, each in enumerate(steps):
            if number == 0:  # Keras compares _steps_seen with the length of the dataset
                epoch_iterator._steps_seen = taken + together
            yield each

    epoch_iterator._enumerate_iterator = from_step


def _local_of_fit(name: str) -> Any:
    """A local variable of the running fit(), to which Keras gives callbacks no other way.

    None: fit() of this version of Keras has no such variable.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_keras_2(model: Any) -> bool:
    return hasattr(model, "_maybe_load_initial_counters_from_ckpt")


def _backend() -> str:
    backend = getattr(tf.keras.backend, "backend", None)
    return "tensorflow" if backend is None else str(backend())


def _check_model(matches: Callable[[], Any]) -> None:
    try:
        matches()
    except AssertionError as error:
        raise _other_model(error) from None


def _other_model(error: Exception) -> Exception:
    what = f"BackupAndRestore has restored another model than this one: {str(error).strip()}"
    return explained(ValueError, what, "Use the same model and optimizer, or another directory")
