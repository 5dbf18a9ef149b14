# SPDX-License-Identifier: Apache-2.0
"""TensorBoard scalars of delivery: how much of its time a rank waits, steps/s, rows/s, and batches in its queue.

model.fit(dataset, callbacks=[hvdata.callbacks.DeliveryCallback("logs")])     # with Keras

scalars = hvdata.callbacks.DeliveryScalars("logs")                            # in a custom loop
for step, batch in enumerate(dataset):
    ...
    if step % 100 == 0:
        scalars.write(step)
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

import tensorflow as tf

from ..channel.reader_dataset import eagerly
from ..errors import explained, forked, whole
from ..job import state
from ..native import bindings
from ..observe import stats, times

# The metadata that tf.summary.scalar writes. With TensorFlow 2.21 that function raises an error without TensorBoard.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class=1,  # DATA_CLASS_SCALAR
)


class DeliveryScalars:
    """Writes the scalars of this rank since the last write. Local.

    A channel named `train` has these scalars. Rates count the time inside epochs only:

    - `delivery/train/wait_share`: the part of its epochs' time, 0 to 1, in which the rank waited for batches.
    - `delivery/train/steps_per_second`, `delivery/train/rows_per_second`: the rates of this rank.
    - `delivery/train/queue`: the mean number of batches in the queue when the program asked for a batch.
    - `delivery/train/untaken`: only on a rank that reads: the number of steps, at the time of the write, that it has
      dealt and that some rank has not taken.
    """

    def __init__(self, log_dir: str, channel: Optional[str] = None) -> None:
        """
        Args:
          log_dir: TensorBoard's folder. Each rank writes into a folder of its own there: `delivery-rank0`.
          channel: the name of a channel (distribute_dataset(name=)). None stands for all channels.

        Raises:
          RuntimeError: before init(), or on a dedicated reader, which gets no batches.
        """
        rank = state.current("DeliveryScalars()").trainer
        if rank is None:
            what = "DeliveryScalars() was called on a dedicated reader, which gets no batches"
            to_do = "Call horovod_data.serve() before it"
            raise explained(RuntimeError, what, to_do)
        self._channel = channel
        with eagerly():  # in a TF1 graph this would make ops that never run
            self._writer: Any = tf.summary.create_file_writer(os.path.join(log_dir, f"delivery-rank{rank}"))
        self._before, self._resets = times.own(), stats.resets  # by channel, the times at the last write

    def write(self, step: int) -> dict[str, float]:
        """Writes the scalars of the time since the last write, at step `step`. It skips channels without new steps.

        Returns:
          The scalars that were written, by name.

        Raises:
          RuntimeError: in a forked child.
        """
        if bindings.state() is bindings.State.FORKED:
            raise RuntimeError(forked("DeliveryScalars.write()"))
        written: dict[str, float] = {}
        own = times.own()
        if self._resets != stats.resets:
            self._before["channels"], self._resets = {}, stats.resets
        (grown,) = times.since([own], {times.who(own): self._before})
        reading = times.readers(grown)
        for name, here in times.trainers(grown).items():
            if here.steps == 0 or here.total <= 0 or self._channel not in (None, name):
                continue
            self._before["channels"][name] = own["channels"][name]
            written |= {
                f"delivery/{name}/wait_share": here.wait_share,
                f"delivery/{name}/steps_per_second": here.steps / here.total,
                f"delivery/{name}/rows_per_second": here.rows / here.total,
                f"delivery/{name}/queue": here.queued / here.steps,
            }
            if name in reading:
                written[f"delivery/{name}/untaken"] = reading[name].untaken
        with eagerly(), self._writer.as_default():
            for tag, value in written.items():
                tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=_SCALAR)
            self._writer.flush()
        return written

    def close(self) -> None:
        """Closes the file. Nothing can be written after it."""
        with eagerly():
            self._writer.close()


class DeliveryCallback(tf.keras.callbacks.Callback):
    """Writes DeliveryScalars in Keras' fit(), after every epoch or every few batches. Add it on each rank. Local."""

    def __init__(self, log_dir: str, channel: Optional[str] = None, update_freq: Union[str, int] = "epoch") -> None:
        """
        Args:
          log_dir: TensorBoard's folder, as in DeliveryScalars.
          channel: the name of a channel, as in DeliveryScalars. None stands for all channels.
          update_freq: "epoch", "batch", or a number of batches, as in Keras' TensorBoard callback.

        Raises:
          ValueError: update_freq has another value.
          RuntimeError: in fit(), not here: init() was not called, or this is a dedicated reader.
        """
        super().__init__()
        every = 1 if update_freq == "batch" else None if update_freq == "epoch" else whole(update_freq) or 0
        if every is not None and every <= 0:
            raise explained(
                ValueError, f'update_freq must be "epoch", "batch" or a number of batches, not {update_freq!r}'
            )
        self._log_dir, self._channel, self._every = log_dir, channel, every
        self._scalars: Optional[DeliveryScalars] = None
        self._batches = 0
        self._batch = -1  # the last batch of this epoch

    def on_train_begin(self, logs: Any = None) -> None:
        if self._scalars is None:
            self._scalars = DeliveryScalars(self._log_dir, self._channel)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        before = self._batches
        # For batches that Keras runs together, Keras 2 passes the number of the last batch, and some versions of Keras
        # 3 the first.
        together = int(getattr(self.model, "steps_per_execution", None) or 1) if batch == 0 else 1
        self._batches += max(together, batch - self._batch)
        self._batch = batch
        if self._every and self._batches // self._every > before // self._every and self._scalars is not None:
            self._scalars.write(self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._every and self._scalars is not None:
            self._scalars.write(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None
