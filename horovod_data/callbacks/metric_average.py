# SPDX-License-Identifier: Apache-2.0
"""Computes metrics of epochs and validations over all ranks' rows.

Horovod's MetricAverageCallback averages over ranks instead.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from ..channel.create import options_of
from ..channel.reader_dataset import eagerly
from ..collectives.gather import gather
from ..collectives.scatter import scatter
from ..job import state
from ..observe import times


class MetricAverage(tf.keras.callbacks.Callback):
    """Computes the logs of an epoch over the rows of all ranks: loss, metrics, and their `val_` counterparts.

    Collective: add it on every rank, before callbacks that read the logs (EarlyStopping, ReduceLROnPlateau,
    ModelCheckpoint). It calls two small collectives for each epoch, and two for each validation.

    A rank's mean over 3 rows counts 3 times as much as a mean over 1 row. A rank without rows does not count. The
    callback adds up the states of the metrics over the ranks, as tf.distribute does. So metrics that are not means
    (AUC, Precision, RootMeanSquaredError) are exact, too. A metric of your own needs a state that can be added up.

    With remainder="pad" or "repeat", filler rows have weight 0. The loss and metrics in `weighted_metrics` leave filler
    rows out, as in one process. Metrics in `metrics` count filler rows, because Keras gives these metrics no weights.

    With `weigh`, the loss and `weighted_metrics` are means over the weights. With remainder="pad" or "repeat", all
    ranks have the same number of rows in a step. Then the mean of the step is exact. It counts once for each row of the
    step, filler rows included. With unequal shares ("partial", batch="per_rank") the rows of a longer share count more.
    For exact figures leave `weigh` out, for example for the validation data. The callback then counts rows.

    Raises:
      RuntimeError: fit() raises it before init(), and on a dedicated reader.
    """

    def __init__(self) -> None:
        super().__init__()
        self._train: Optional[dict[str, float]] = None
        self._tested: dict[str, float] = {}
        self._before: dict[str, tuple[int, int, int]] = {}
        self._in_epoch = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._train, self._tested, self._before = None, {}, _delivered()
        self._in_epoch = True

    def on_test_begin(self, logs: Any = None) -> None:
        if self._in_epoch:  # Keras resets the metrics for the validation
            self._train = self._averaged()
        self._before = _delivered()

    def on_test_end(self, logs: Any = None) -> None:
        self._tested = self._averaged()
        _replace(logs, self._tested)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._in_epoch = False
        train = self._averaged() if self._train is None else self._train
        _replace(logs, train)
        if logs is not None:  # added, because a rank whose validation had no batch lacks these logs
            logs.update({f"val_{name}": value for name, value in self._tested.items()})

    def _averaged(self) -> dict[str, float]:
        """The results of the metrics over the rows of all ranks. Collective."""
        model = self.model
        variables = list({id(v): v for metric in model.metrics for v in metric.variables}.values())
        own = [np.asarray(v) for v in variables]
        losses = {id(metric.count) for metric in _loss_trackers(model)}
        rows = self._rows()
        # The counts of the losses include filler rows. `rows`, the number of delivered rows, does not.
        of_losses = [id(v) in losses for v in variables]
        sent = [min(value, rows) if is_loss and rows is not None else value for value, is_loss in zip(own, of_losses)]
        flat = np.concatenate([np.asarray(value, np.float64).ravel() for value in sent] or [np.zeros(0)])
        total = _sum_over_ranks(flat)
        sums, at = [], 0
        for value in own:
            sums.append(total[at : at + value.size].reshape(value.shape).astype(value.dtype))
            at += value.size
        try:
            for variable, value in zip(variables, sums):
                variable.assign(value)
            results = model.get_metrics_result()
            return {name: float(value) for name, value in results.items() if np.ndim(value) == 0}
        finally:
            for variable, value in zip(variables, own):
                variable.assign(value)

    def _rows(self) -> Optional[int]:
        """The number of rows that one channel has delivered to this rank in this epoch, or in this validation.

        Filler rows don't count.

        None: Keras' own counts are right, or these rows are not a whole epoch of exactly one channel.
        """
        reductions = {getattr(loss, "reduction", "auto") for loss in tf.nest.flatten(self.model.loss)}
        # For all other reductions, Keras' loss is a mean over the weights, or no mean.
        if not reductions <= {"auto", "sum_over_batch_size", "mean"}:
            return None
        news = {}
        for name, (rows, steps, of_epoch) in _delivered().items():
            rows_before, steps_before, _ = self._before.get(name, (0, 0, 0))
            if steps != steps_before:
                news[name] = rows - rows_before, of_epoch
        if len(news) != 1:
            return None
        ((name, (rows, of_epoch)),) = news.items()
        # Keras counts filler rows in its losses. With `weigh` the losses are means over the weights.
        options = options_of.get(name)  # None: the load of a cached channel
        corrects = options is not None and options.fills and options.weigh is None
        return rows if corrects and rows == of_epoch else None


def _delivered() -> dict[str, tuple[int, int, int]]:
    """By channel: the rows and steps that this rank has got until now, and the rows of the channel's last epoch.

    Filler rows don't count.
    """
    process = times.own()
    tallies = {name: channel["tally"]["rows"] for name, channel in process.get("channels", {}).items()}
    return {name: (its.rows, its.steps, tallies[name]) for name, its in times.trainers(process).items()}


def _loss_trackers(model: Any) -> list[Any]:
    """The metrics in which Keras keeps the means of the losses.

    A batch counts once for each of its rows. The weights of the rows do not matter.
    """
    found = [model._loss_tracker] if getattr(model, "_loss_tracker", None) is not None else []  # Keras 3
    for container in getattr(model, "compiled_loss", None), getattr(model, "_compile_loss", None):
        found += [metric for metric in getattr(container, "metrics", None) or [] if hasattr(metric, "count")]
    return found


def _sum_over_ranks(values: Any) -> Any:
    job = state.current("MetricAverage")
    ranks = len(job.layout.trainers)
    with eagerly():
        gathered = gather(tf.constant(values[np.newaxis]), name="hvdata.MetricAverage.states")
        summed = None
        if job.trainer == 0:
            summed = tf.repeat(tf.reduce_sum(gathered, 0, keepdims=True), ranks, axis=0)
        return np.asarray(scatter(summed, name="hvdata.MetricAverage.sums", dtype=tf.float64))[0]


def _replace(logs: Any, results: dict[str, float]) -> None:
    """Replaces the values of metrics in Keras' logs. Other values stay, for example the learning rate."""
    for name, value in results.items():
        if logs is not None and name in logs:
            logs[name] = value
