# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer for Keras 3: averages gradients in `apply`, through which Keras 3 applies all gradients."""

from __future__ import annotations

import functools
import itertools
import os
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Optional, Sequence

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from ...errors import at_least, explained
from ...native import tensorflow_private as private

# The names under which a saved model has these values.
_OPS = {"average": hvd.Average, "sum": hvd.Sum}
_COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}

# Arguments of Horovod's own function that have no other value here. horovod.tensorflow passes most of them.
_FIXED: dict[str, Any] = {
    "device_dense": "",
    "device_sparse": "",
    "gradient_predivide_factor": 1.0,
    "num_groups": 0,
    "groups": None,
    "process_set": hvd.global_process_set,
    "scale_local_gradients": True,
}

# Numbers optimizers in the order of their first use, which is the same on all ranks. The order in which they are made
# may differ, because a rank may make more optimizers than another rank.
_used = itertools.count()
_Base: Any = object


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    *,
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    **fixed: Any,
) -> Any:
    """Makes an optimizer average gradients over all ranks before it applies them.

    Changes the class of `optimizer` to a subclass of that class, and returns `optimizer`. A saved model keeps the
    optimizer. Import this module before `keras.models.load_model`.

    Gradient clipping, weight decay, averages of weights and loss scaling work as in one process (docs/frameworks.md).

    Local. Its steps are collective: all ranks must apply gradients for the same variables in the same order.

    Args:
      optimizer: an optimizer of Keras 3, or a LossScaleOptimizer around one.
      name: the beginning of the names of its collectives. None: a number.
      compression: hvd.Compression.none or hvd.Compression.fp16. It is for dense gradients.
      sparse_as_dense: makes IndexedSlices dense first. By default their rows are gathered from all ranks.
      op: hvd.Average or hvd.Sum.
      backward_passes_per_step: the number of steps whose gradients are added up before they are averaged and applied.
        IndexedSlices become dense. `iterations` counts the updates.
      average_aggregated_gradients: divides that sum by backward_passes_per_step.
      fixed: the other arguments of Horovod's own function. Only their defaults are allowed.

    Raises:
      TypeError: `optimizer` is no optimizer of Keras 3, or there is no such argument.
      ValueError: an argument has another value, or `optimizer` averages gradients already.
      RuntimeError, at the first step: the model is compiled with jit_compile=True. XLA has Horovod's collectives only
        on GPUs, with HOROVOD_ENABLE_XLA_OPS=1. Without this variable jit_compile="auto", the default, means no XLA.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        what = f"DistributedOptimizer() was given {type(optimizer).__module__}.{type(optimizer).__name__}"
        raise explained(
            TypeError, what, "Give it an optimizer of Keras 3; horovod.tensorflow.keras has the one for tf_keras"
        )
    if averages(optimizer):
        raise explained(ValueError, "DistributedOptimizer() was given an optimizer that averages gradients already")
    for argument, value in fixed.items():
        if argument not in _FIXED:
            raise explained(TypeError, f"DistributedOptimizer() has no argument {argument!r}")
        if value is not _FIXED[argument] and value != _FIXED[argument]:
            what = f"DistributedOptimizer() of Keras 3 was given {argument}={value!r}"
            raise explained(ValueError, what, "Leave it out, or use hvd.DistributedGradientTape in a train_step")
    options = SimpleNamespace(  # as a saved model has them
        name=name,
        compression=_name_of("compression", compression, _COMPRESSIONS),
        sparse_as_dense=sparse_as_dense,
        op=_name_of("op", op, _OPS),
        backward_passes_per_step=at_least(1, "backward_passes_per_step", backward_passes_per_step),
        average_aggregated_gradients=average_aggregated_gradients,
    )
    _skip_steps_together()
    _no_xla_by_default()
    # Keeps the object, because a configuration can't describe every learning rate and every state.
    kind: Any = type(optimizer)
    object.__setattr__(optimizer, "__class__", _averaging_class(kind))
    optimizer._options = options
    optimizer._prefix = ""
    if optimizer.built:
        optimizer._add_sums()
    return optimizer


def averages(optimizer: Any) -> bool:
    """Says whether an optimizer, or one inside of it, averages gradients over all ranks."""
    return any(isinstance(part, _Averaging) for part in _parts(optimizer))


def _parts(optimizer: Any) -> Iterator[Any]:
    """An optimizer, and the optimizers inside of a LossScaleOptimizer and a MultiOptimizer."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for part in getattr(optimizer, "optimizers", ()) if inner is None else [inner]:
        yield from _parts(part)


def _name_of(argument: str, value: Any, names: dict[str, Any]) -> str:
    for name, known in names.items():
        if value is known or value == known:
            return name
    raise explained(ValueError, f"{argument} must be one of Horovod's {' and '.join(names)}, not {value!r}")


@keras.saving.register_keras_serializable("horovod_data", "DistributedOptimizer")
class _Averaging(_Base):
    """The first base of a class whose second base is the class of an optimizer (_averaging_class)."""

    _plain: Any  # the class of the optimizer
    _options: SimpleNamespace  # the arguments of DistributedOptimizer()
    _prefix: str

    def get_config(self) -> dict[str, Any]:
        plain = self._plain.__new__(self._plain)
        vars(plain).update(vars(self))
        return {"optimizer": keras.saving.serialize_keras_object(plain), **vars(self._options)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        options = dict(config)
        optimizer = keras.saving.deserialize_keras_object(options.pop("optimizer"), custom_objects=custom_objects)
        options["op"] = _OPS[options["op"]]
        options["compression"] = _COMPRESSIONS[options["compression"]]
        return DistributedOptimizer(optimizer, **options)

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._add_sums()

    def _add_sums(self) -> None:
        if self._options.backward_passes_per_step > 1:
            self._passes = self.add_variable((), dtype="int32", name="backward_passes")
            variables = self._trainable_variables
            self._sums = [self.add_variable_from_reference(each, name="gradient_sum") for each in variables]

    @tf.autograph.experimental.do_not_convert  # as in Keras' own methods
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built and variables:
            self.build(variables)
        indices = [self._trainable_variables_indices.get(self._var_key(each)) for each in variables]
        if not grads or len(grads) != len(variables) or None in indices:
            return super().apply(grads, trainable_variables)  # which says what is wrong
        passes = self._options.backward_passes_per_step
        if passes == 1:
            return super().apply(self._averaged(grads, indices), variables)
        sums = [self._sums[index] for index in indices]
        for total, grad in zip(sums, grads):
            if grad is not None:
                total.assign_add(tf.convert_to_tensor(grad))
        self._passes.assign_add(1)

        def update() -> None:
            parts = passes if self._options.average_aggregated_gradients else 1
            added = [None if grad is None else total / parts for total, grad in zip(sums, grads)]
            super(_Averaging, self).apply(self._averaged(added, indices), variables)
            for total in sums:
                total.assign(tf.zeros_like(total))

        keras.ops.cond(self._passes % passes == 0, update, lambda: None)

    def prefix(self) -> str:
        """The beginning of the names of this optimizer's collectives."""
        if not self._prefix:
            self._prefix = self._options.name or f"DistributedOptimizer.{next(_used)}"
        return self._prefix

    def _averaged(self, grads: list[Any], indices: list[Any]) -> list[Any]:
        """The gradients over all ranks. Collective."""
        if private.is_compiled_by_xla(tf.compat.v1.get_default_graph()) and not xla_has_collectives():
            what = "jit_compile=True: XLA can't compile Horovod's collectives"
            to_do = "Call compile(jit_compile=False). On GPUs HOROVOD_ENABLE_XLA_OPS=1 is another way"
            raise explained(RuntimeError, what, to_do)
        # The names have the numbers of the variables. Names of tensors and layers would differ on a rank that has made
        # another model before.
        names = [f"{self.prefix()}.{index}" for index in indices]
        averaged: dict[str, Any] = {}
        dense: dict[str, Any] = {}
        for name, grad in zip(names, grads):
            if isinstance(grad, tf.IndexedSlices) and not self._options.sparse_as_dense:
                averaged[name] = _averaged_slices(grad, name, self._options)
            elif grad is not None:
                dense[name] = tf.convert_to_tensor(grad)
        averaged.update(_averaged_dense(dense, self._options))
        return [averaged.get(name) for name in names]


def _averaged_dense(grads: dict[str, Any], options: SimpleNamespace) -> dict[str, Any]:
    how: dict[str, Any] = {
        "op": _OPS[options.op],
        "compression": _COMPRESSIONS[options.compression],
        "ignore_name_scope": True,
    }
    if not tf.executing_eagerly():  # the collectives begin while other gradients are computed, and Horovod fuses them
        return {name: hvd.allreduce(grad, name=name, **how) for name, grad in grads.items()}
    # In eager mode each collective waits for the ranks. Gradients of different dtypes can't share one.
    of_dtype: dict[Any, list[str]] = {}
    for name, grad in grads.items():
        of_dtype.setdefault(grad.dtype, []).append(name)
    averaged: dict[str, Any] = {}
    for names in of_dtype.values():
        group = hvd.grouped_allreduce([grads[name] for name in names], name=names[0], **how)
        averaged.update(zip(names, group))
    return averaged


def _averaged_slices(grad: Any, name: str, options: SimpleNamespace) -> Any:
    """Gathers the rows of all ranks. Rows with the same index count as their sum."""
    values = hvd.allgather(grad.values, name=f"{name}.values", ignore_name_scope=True)
    indices = hvd.allgather(grad.indices, name=f"{name}.indices", ignore_name_scope=True)
    if options.op == "average":
        values /= tf.cast(hvd.size(), values.dtype)
    return tf.IndexedSlices(values, indices, grad.dense_shape)


@functools.lru_cache(maxsize=None)
def _averaging_class(plain: Any) -> Any:
    made = type(f"Distributed{plain.__name__}", (_Averaging, plain), {"_plain": plain, "__module__": __name__})
    return keras.saving.register_keras_serializable("horovod_data", "DistributedOptimizer")(made)


@functools.lru_cache(maxsize=None)
def _skip_steps_together() -> None:
    """Makes each LossScaleOptimizer around one of our optimizers ask all ranks whether the gradients are finite.

    Model.compile() puts a LossScaleOptimizer around ours for mixed_float16. Without this, a rank with an infinite
    gradient would skip a step in which the other ranks wait for its gradients.
    """
    kind: Any = keras.optimizers.LossScaleOptimizer
    here: Callable[..., Any] = kind.check_finite

    def check_finite(self: Any, grads: Any) -> Any:
        finite = here(self, grads)
        averaging = next((part for part in _parts(self.inner_optimizer) if isinstance(part, _Averaging)), None)
        if averaging is None:
            return finite
        name = f"{averaging.prefix()}.finite"
        return hvd.allreduce(tf.cast(finite, tf.int32), op=hvd.Min, name=name, ignore_name_scope=True) > 0

    kind.check_finite = check_finite


@functools.lru_cache(maxsize=None)
def _no_xla_by_default() -> None:
    """Makes jit_compile="auto" mean no XLA for models with our optimizers, unless XLA has Horovod's collectives.

    Without this, Keras uses XLA for "auto" on a machine with a GPU.
    """
    kind: Any = keras.Model
    here: Optional[Callable[..., bool]] = getattr(kind, "_resolve_auto_jit_compile", None)
    if here is None:
        return

    def resolve(self: Any) -> bool:
        refused = averages(getattr(self, "optimizer", None)) and not xla_has_collectives()
        return not refused and here(self)

    kind._resolve_auto_jit_compile = resolve


def xla_has_collectives() -> bool:
    return os.environ.get("HOROVOD_ENABLE_XLA_OPS") == "1"
