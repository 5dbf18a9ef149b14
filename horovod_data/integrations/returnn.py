# SPDX-License-Identifier: Apache-2.0
"""RETURNN's `dataset_pipeline` under Horovod: one process reads for all ranks (docs/returnn.md).

use_horovod = horovod_data.integrations.returnn.attach()    # in the config; or config.set("use_horovod", attach())
dataset_pipeline = True
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any, Callable

from ..channel.distribute import distribute_dataset
from ..channel.reader_thread import serve
from ..errors import explained
from ..job import roles, state
from ..native import bindings
from ..start import init


class _Producer:
    """The provider for the generator of one RETURNN dataset.

    For the generator, its dataset is always the current one.
    """

    def __init__(self, context: Any) -> None:
        self._provider = context.parent
        self.current_dataset_name = context.dataset_name
        self.datasets = {context.dataset_name: context.returnn_dataset}
        self.data_keys = context.parent.data_keys

    @property
    def current_dataset_complete_frac(self) -> float:
        return float(self._provider.current_dataset_complete_frac)

    @current_dataset_complete_frac.setter
    def current_dataset_complete_frac(self, value: float) -> None:
        if self._provider.current_dataset_name == self.current_dataset_name:
            self._provider.current_dataset_complete_frac = value


class _Epochs:
    """The trainers' epoch, on a dedicated reader, which has no Engine. It counts how often "train" was opened."""

    def __init__(self, start: int) -> None:
        self._start, self._opened = start, 0

    def of(self, dataset_name: str) -> int:
        self._opened += dataset_name == "train"
        return self._start + max(self._opened - 1, 0)


_epochs: list[_Epochs] = []  # one entry, from the first pipeline on
_options: dict[str, Any] = {}
_attached: list[Any] = []


def attach(**options: Any) -> bool:
    """Makes RETURNN's tf.data pipeline (`dataset_pipeline` in its config) run under Horovod: one process reads for all
    ranks.

    Call it before the Engine is made, on every rank and dedicated reader. It calls init() if the program has not. After
    it, `map_producer_to_consumer` of the pipeline deals whole batches. Dedicated readers serve, and then exit with
    status 0.

    Args:
      options: arguments of distribute_dataset(). The defaults are batch="per_rank" and remainder="partial". They keep
        every sequence, so some ranks may have an empty batch in the last step of an epoch.

    Returns:
      The value for `use_horovod` in RETURNN's config. It is False on a dedicated reader, because Horovod does not count
      it.

    Raises:
      ImportError: RETURNN, or its TensorFlow backend, is not installed.
      TypeError: distribute_dataset() does not have an option. Or the option is `name`, which RETURNN sets.
      Errors of init(): as init() raises them.
    """
    from returnn.tf import data_pipeline

    allowed = inspect.signature(distribute_dataset).parameters.keys() - {"dataset_or_fn", "name"}
    if wrong := options.keys() - allowed:
        raise explained(
            TypeError, f"attach() was given {', '.join(sorted(wrong))}", f"It takes {', '.join(sorted(allowed))}"
        )
    if bindings.state() is bindings.State.NEVER_STARTED:
        init()
    state.current("returnn.attach()")
    _options.clear()
    _options.update({"batch": "per_rank", "remainder": "partial", **options})
    if not _attached:
        _attached.append(data_pipeline)
        context, provider = data_pipeline.InputContext, data_pipeline.DatasetDataProvider
        context.__init__ = _init_context(context.__init__)
        context.get_returnn_dataset = _get_returnn_dataset(context.get_returnn_dataset)
        context.map_producer_to_consumer = _map_producer_to_consumer
        provider.__init__ = _init_provider(provider.__init__)
        provider.get_complete_frac = _get_complete_frac(provider.get_complete_frac)
    return roles.is_trainer()


def _init_context(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except NotImplementedError:  # RETURNN has no map_producer_to_consumer under Horovod
            if not self.horovod_enabled or self.config.is_true("distributed_tf"):
                raise
            self.distributed_tf_enabled = False
            self.final_dataset = self.final_dataset_init_iterator_op = None

    return init


def _get_returnn_dataset(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get(self: Any, **kwargs: Any) -> Any:
        pinned = copy.copy(self)
        pinned.parent = _Producer(self)
        dataset = original(pinned, **kwargs)
        if roles.is_trainer():
            return dataset  # the Engine has prepared the epoch before it asks for the dataset
        return _prepared(self, dataset)

    return get


def _prepared(context: Any, dataset: Any) -> Any:
    """The dataset, changed so that it prepares its epoch's order at the begin of each epoch.

    On trainers the Engine does that.
    """
    import tensorflow as tf
    from returnn.engine.base import EngineBase

    if not _epochs:
        _epochs.append(_Epochs(EngineBase.get_train_start_epoch(context.config)))

    def begin(_: Any) -> Any:
        context.returnn_dataset.init_seq_order(epoch=_epochs[0].of(context.dataset_name))
        return 0

    once = tf.data.Dataset.from_tensors(0).map(lambda zero: tf.numpy_function(begin, [zero], tf.int64))
    return once.flat_map(lambda _: dataset)


def _map_producer_to_consumer(self: Any, dataset: Any) -> Any:
    return distribute_dataset(dataset, name=self.dataset_name, **_options)


def _init_provider(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        serve()

    return init


def _get_complete_frac(original: Callable[..., float]) -> Callable[..., float]:
    @functools.wraps(original)
    def get(self: Any) -> float:
        return original(self) or 1.0  # only readers know the value, and RETURNN divides by it

    return get
