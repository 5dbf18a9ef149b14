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

    The current dataset is always the one whose generator asks.
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


_options: dict[str, Any] = {}
_attached: list[Any] = []
_opened: list[str] = []  # on a dedicated reader, which has no Engine: the datasets whose epochs have begun


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
        to_do = f"It takes {', '.join(sorted(allowed))}"
        raise explained(TypeError, f"attach() was given {', '.join(sorted(wrong))}", to_do)
    if bindings.state() is bindings.State.NEVER_STARTED:
        init()
    state.current("returnn.attach()")
    _options.clear()
    _options.update({"batch": "per_rank", "remainder": "partial", **options})
    if not _attached:
        _attached.append(data_pipeline)
        context, provider = data_pipeline.InputContext, data_pipeline.DatasetDataProvider
        _patch(context, "__init__", _init_context)
        _patch(context, "get_returnn_dataset", _get_returnn_dataset)
        context.map_producer_to_consumer = _map_producer_to_consumer
        _patch(provider, "__init__", _init_provider)
        # Only readers know the value, and RETURNN divides by it.
        _patch(provider, "get_complete_frac", lambda original, self: original(self) or 1.0)
    return roles.is_trainer()


def _patch(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Replaces a method by `call`, which gets the original method as its first argument."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(original, self, *args, **kwargs)

    setattr(owner, name, method)


def _init_context(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    try:
        original(self, *args, **kwargs)
    except NotImplementedError:  # RETURNN has no map_producer_to_consumer under Horovod
        if not self.horovod_enabled or self.config.is_true("distributed_tf"):
            raise
        self.distributed_tf_enabled = False
        self.final_dataset = self.final_dataset_init_iterator_op = None


def _get_returnn_dataset(original: Callable[..., Any], self: Any, **kwargs: Any) -> Any:
    pinned = copy.copy(self)
    pinned.parent = _Producer(self)
    dataset = original(pinned, **kwargs)
    # On a trainer the Engine has prepared the epoch before it asks for the dataset.
    return dataset if roles.is_trainer() else _prepared(self, dataset)


def _prepared(context: Any, dataset: Any) -> Any:
    """The dataset, changed so that it prepares the order of each epoch when the epoch begins.

    The number of the epoch is that of the trainers, which count how often "train" begins.
    """
    import tensorflow as tf
    from returnn.engine.base import EngineBase

    start = EngineBase.get_train_start_epoch(context.config)

    def begin(_: Any) -> Any:
        _opened.append(context.dataset_name)
        context.returnn_dataset.init_seq_order(epoch=start + max(_opened.count("train") - 1, 0))
        return 0

    once = tf.data.Dataset.from_tensors(0).map(lambda zero: tf.numpy_function(begin, [zero], tf.int64))
    return once.flat_map(lambda _: dataset)


def _map_producer_to_consumer(self: Any, dataset: Any) -> Any:
    return distribute_dataset(dataset, name=self.dataset_name, **_options)


def _init_provider(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    serve()
