# SPDX-License-Identifier: Apache-2.0
"""Horovod's callbacks for Keras 3, with the names of horovod.tensorflow.keras.callbacks."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Union

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from ...errors import explained


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer of one rank, before the first step of fit(). Collective.

    A model that is not built before fit() has no weights yet. Its weights are sent after the first step, as by
    Horovod's own callback. To send them before, give the model an Input, or call it once.

    Each rank keeps the seeds of its own layers, so the ranks still draw different random numbers.
    """

    def __init__(self, root_rank: int) -> None:
        """
        Args:
          root_rank: the rank whose variables all ranks get.
        """
        super().__init__()
        self._root = root_rank
        self._late = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._late = not self.model.built
        if not self._late:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._late:
            self._late = False
            self._broadcast()

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = [*self.model.weights, *(optimizer.variables if optimizer is not None else ())]
        sent = [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]

        @tf.function(autograph=False)  # in a graph all collectives run at the same time
        def broadcast() -> None:
            for number, each in enumerate(sent):
                name = f"BroadcastGlobalVariablesCallback.{number}"
                each.assign(hvd.broadcast(each, self._root, name=name, ignore_name_scope=True))

        broadcast()


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the logs of each epoch by their means over all ranks. Place it before callbacks that use them.

    Collective. Each rank counts the same, also if it had fewer rows: horovod_data.callbacks.MetricAverage counts rows.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(logs or ())
        values = [tf.constant(np.asarray(logs[name], np.float64)) for name in names]
        means = hvd.grouped_allreduce(values, op=hvd.Average, name="MetricAverageCallback")
        for name, mean in zip(names, means):
            logs[name] = mean.numpy()


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` in a range of epochs, and logs it as "lr". Local."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: Union[float, Callable[[float], float]],
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ) -> None:
        """
        Args:
          initial_lr: the learning rate for a multiplier of 1.
          multiplier: a function of the epoch, or a number. A number is raised to the power of (epoch - start_epoch).
          start_epoch: the first epoch of the range.
          end_epoch: the epoch after the range. None: it has no end.
          staircase: True: the rate is set when an epoch begins. False: it is set before each batch, and `multiplier`
            gets fractions of epochs.
          momentum_correction: when the rate changes, scales the momenta of SGD and RMSprop with it, as the paper
            "Accurate, Large Minibatch SGD" does.
          steps_per_epoch: needed if Keras does not know it and staircase is False.

        Raises:
          ValueError: initial_lr is None. In fit(): the steps of an epoch are not known.
          TypeError, in fit(): the optimizer has a LearningRateSchedule.
        """
        super().__init__()
        if initial_lr is None:
            raise explained(ValueError, f"{type(self).__name__}() needs initial_lr")
        self._initial, self._start, self._end = initial_lr, start_epoch, end_epoch
        self._staircase, self._corrects, self.steps_per_epoch = staircase, momentum_correction, steps_per_epoch
        self._multiplier: Any = multiplier
        if not callable(multiplier):
            self._multiplier = lambda epoch: multiplier ** (epoch - start_epoch)
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self._staircase and not self.steps_per_epoch:
            what = f"{type(self).__name__} does not know the steps of an epoch"
            raise explained(ValueError, what, "Pass steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch < self._start or (self._end is not None and self._epoch >= self._end):
            return
        if not self._staircase:
            self._set(self._epoch + batch / self.steps_per_epoch)  # type: ignore[operator]
        elif batch == 0:
            self._set(self._epoch)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, now = _rate(optimizer), self._initial * self._multiplier(epoch)
        optimizer.learning_rate = now
        if self._corrects and before > 0:
            for momentum in _momenta(getattr(optimizer, "inner_optimizer", optimizer)):
                momentum.assign(momentum * (now / before))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = _rate(self.model.optimizer)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr` in the first epochs, batch by batch.

    Local.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        """
        Args:
          initial_lr: the rate after the warm-up.
          warmup_epochs: the number of epochs of the warm-up.
          momentum_correction, steps_per_epoch: as for LearningRateScheduleCallback.
          verbose: 1 makes rank 0 print a line at the end of the warm-up.

        Raises:
          ValueError, in fit(): the steps of an epoch are not known.
          TypeError, in fit(): the optimizer has a LearningRateSchedule.
        """

        def multiplier(epoch: float) -> float:
            done = epoch + 1 / self.steps_per_epoch  # type: ignore[operator]  # so that the last batch has the full rate
            return 1 / hvd.size() + (1 - 1 / hvd.size()) * done / warmup_epochs

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._verbose and epoch + 1 == self._end and hvd.rank() == 0:
            rate = _rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: the warm-up of the learning rate has ended at {rate:g}.")


def _rate(optimizer: Any) -> float:
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def _momenta(optimizer: Any) -> Iterator[Any]:
    """The sums of past updates. Each has the learning rate as a factor."""
    if getattr(optimizer, "momentum", 0) and isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)):
        sums: Any = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", ())
        yield from (each for each in sums if each is not None)
