# SPDX-License-Identifier: Apache-2.0
"""All private parts of TensorFlow that this package uses. If a new version of TensorFlow breaks something, look here
first.

csrc/ops/status.h lists those of the C++ side. All of them work with TensorFlow 2.15 to 2.21.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.data.ops.dataset_ops import DatasetSource as DatasetSource
from tensorflow.python.data.ops.dataset_ops import DatasetV1Adapter as DatasetV1Adapter
from tensorflow.python.data.ops.dataset_ops import UnaryDataset as UnaryDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator as OwnedIterator
from tensorflow.python.eager import context, executor
from tensorflow.python.eager.context import eager_mode as eager_mode
from tensorflow.python.framework.none_tensor import NoneTensorSpec as NoneTensorSpec
from tensorflow.python.ops import control_flow_util

# ITERATOR_CALLS: the methods of an iterator that give an element or its state. DATASET_CALL: the method of a dataset
# that iter() calls first.
ITERATOR_CALLS: tuple[str, ...] = ("_next_internal", "get_next_as_optional", "_save", "_restore")
ITERATOR_CALLS += ("_serialize_to_tensors", "_restore_from_tensors")
DATASET_CALL = "_apply_debug_options"

_NOW = "now"  # the prefix of files that snapshot() writes at once

# Attributes of stages: numbers that affect the stage's elements, and that are the same on all hosts.
_NUMBERS: tuple[str, ...] = (
    "_num_shards",
    "_index",
    "_count",
    "_batch_size",
    "_drop_remainder",
    "_cycle_length",
    "_block_length",
)
_NUMBERS += ("_start", "_stop", "_step")


def begin_without_gpus() -> None:
    """In a TF1 program, begins the eager context without GPUs.

    Only this package uses that context. If the context began with GPUs, it would take all of them, even if the program
    gives its own sessions a visible_device_list. TensorFlow allows only one mapping of GPUs in a process. The context's
    list of visible devices stays, because sessions without a config use it.
    """
    if not is_tf1_program():
        return
    runtime = context.context()
    with contextlib.suppress(RuntimeError):  # the context runs already
        visible = runtime.get_visible_devices()
        runtime.set_visible_devices([], "GPU")
        runtime.ensure_initialized()
        runtime._visible_device_list = visible


def is_tf1_program() -> bool:
    """Says whether graphs are this program's default."""
    return bool(context.default_execution_mode == context.GRAPH_MODE)


def takes_devices() -> bool:
    """Says whether the program's TensorFlow has begun, which takes the devices. An import alone does not."""
    runtime = context.context_safe()
    return runtime is not None and bool(runtime._initialized)


def tf2() -> bool:
    return tf.__internal__.tf2.enabled()


def variant(dataset: tf.data.Dataset) -> tf.Tensor:
    return dataset._variant_tensor


def is_eager(tensor: tf.Tensor) -> bool:
    return isinstance(tensor, tf.__internal__.EagerTensor)


def resource_of(iterator: OwnedIterator) -> Any:
    """The resource that is destroyed with the iterator. None: the iterator has no resource yet."""
    return vars(iterator).get("_iterator_resource")


def dataset_of(iterator: OwnedIterator) -> Optional[tf.data.Dataset]:
    """The dataset of an iterator. None: it was an argument of a tf.function, which knows only its resource."""
    return getattr(iterator, "_dataset", None)


def state_of(iterator: OwnedIterator, ignores_external_state: bool) -> tf.Tensor:
    """The state of an iterator, as a scalar string.

    `ignores_external_state`: stages with a state of their own, for example of random ops, lose it. Otherwise they raise
    FailedPreconditionError.
    """
    policies = tf.data.experimental.ExternalStatePolicy
    policy = policies.IGNORE if ignores_external_state else policies.FAIL
    state = tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource, external_state_policy=policy.value
    )
    return tf.io.serialize_tensor(state)


def restore_state(iterator: OwnedIterator, state: tf.Tensor) -> None:
    """Restores the result of state_of() into an iterator that was never asked for an element."""
    variant_of_state = tf.io.parse_tensor(state, tf.variant)
    tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=variant_of_state)


def snapshot(checkpoint: tf.train.Checkpoint) -> Callable[[str], None]:
    """Reads all values of a checkpoint. Returns a function of a prefix, which may be called later and on any thread.

    The function writes the files that checkpoint.write(prefix) would have written now.

    On a CPU no value is copied: the next op that updates a variable makes a copy. Values on a GPU are copied to the
    CPU.
    """
    by_object, _, savers, _ = checkpoint._saver._gather_serialized_tensors()
    if savers:  # objects that write files themselves. So they write now
        folder = tempfile.TemporaryDirectory()
        checkpoint.write(os.path.join(folder.name, _NOW))

        def move(prefix: str) -> None:
            for name in os.listdir(folder.name):
                shutil.move(os.path.join(folder.name, name), prefix + name[len(_NOW) :])

        return move
    found = []
    for tensors in by_object.values():
        for name, slices in tensors.items():
            for part, value in slices.items() if isinstance(slices, dict) else [("", slices)]:
                if not tf.is_tensor(value):
                    # Calls the function that reads the variable. None: the variable has no value yet.
                    value = value.tensor if hasattr(value, "slice_spec") else value()
                if value is not None:
                    found.append((name, part, value))
    names, parts, values = zip(*found)

    def write(prefix: str) -> None:
        with at_once(), tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=parts, tensors=values)

    return write


def keep_functions() -> None:
    """Makes the runtime keep freed functions, because in a forked child the runtime may end before them."""
    if (runtime := context.context_safe()) is not None:
        vars(runtime)["remove_function"] = lambda name: None


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Makes ops on this thread complete before they return, also after
    tf.config.experimental.set_synchronous_execution(False).

    Unlike TensorFlow's execution_mode(), it does not wait for the ops of other threads, which may wait for us.
    """
    if not context.context().is_async():
        yield
        return
    before, ours = context.context().executor, executor.new_executor(False)
    context.context().executor = ours
    try:
        yield
    finally:
        context.context().executor = before
        ours.wait()


def inputs(stage: tf.data.Dataset) -> Iterable[tf.data.Dataset]:
    filenames = getattr(stage, "_filenames", None)  # for example of a TextLineDataset, whose _inputs() leaves them out
    return [filenames] if isinstance(filenames, tf.data.Dataset) else stage._inputs()


def name(stage: tf.data.Dataset) -> str:
    """The kind of a stage: the name of its class, without `Dataset` and the version of the interface."""
    return type(stage).__name__.lstrip("_").removesuffix("V1").removesuffix("V2").removesuffix("Dataset")


_KEEP_ELEMENTS = ("Prefetch", "Options", "Cache", "Shuffle")


def rows_of_batches(dataset: tf.data.Dataset) -> Optional[tuple[int, int, int]]:
    """The rows of the batches that an eager pipeline ends with, if they are known before it runs.

    Returns:
      The number of full batches, their rows, and the rows of a shorter last batch (0: there is none).
    """
    while name(dataset := unwrapped(dataset)) in _KEEP_ELEMENTS:
        dataset = dataset._input_dataset
    if name(dataset) not in ("Batch", "ParallelBatch", "PaddedBatch"):
        return None
    size, drops = tf.get_static_value(dataset._batch_size), tf.get_static_value(dataset._drop_remainder)
    rows = int(dataset._input_dataset.cardinality())
    if size is None or drops is None or rows < 0:
        return None
    return rows // int(size), int(size), 0 if drops else rows % int(size)


def numbers(stage: tf.data.Dataset) -> list[str]:
    held = [*_NUMBERS, "_buffer_size"] if name(stage) == "Shuffle" else _NUMBERS
    values = [(one, getattr(stage, one, None)) for one in held]
    return [f"{one.strip('_')}={tf.get_static_value(value)}" for one, value in values if isinstance(value, tf.Tensor)]


def small_numbers(stage: tf.data.Dataset) -> list[str]:
    """The values of numeric tensors in captured() that have at most 64 entries."""

    def small(tensor: tf.Tensor) -> bool:
        number = tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_bool
        return bool(number and tensor.shape.is_fully_defined() and tensor.shape.num_elements() <= 64)

    values = [tf.get_static_value(tensor) for tensor in captured(stage) if small(tensor)]
    return [repr(value.tolist()) for value in values if value is not None]


def unordered(stage: tf.data.Dataset) -> bool:
    """Says whether an option of the stage itself allows any order of its elements."""
    if hasattr(stage, "_deterministic"):
        return bool(stage._deterministic == "false")
    if name(stage) != "ParallelInterleave":
        return False
    try:  # the stage hides the option, but its op shows it
        nodes = serialized_graph(stage).node
    except Exception:  # the stage can't be serialised, or is too large
        return False
    own = [node for node in nodes if node.op.startswith("ParallelInterleaveDataset")]
    return any(node.attr["deterministic"].s == b"false" for node in own)


def unwrapped(stage: tf.data.Dataset) -> tf.data.Dataset:
    """The stage inside the adapters that TF1 puts around it."""
    while isinstance(stage, DatasetV1Adapter):
        stage = stage._dataset
    return stage


# The ends of the names of stages that may join rows of several elements, cut an element, or change their order.
_DIVIDE_ANEW = ("Batch", "batch", "FlatMap", "Interleave", "Shuffle", "ShuffleAndRepeat", "Window", "GroupByReducer")


def divides_anew(stage: tf.data.Dataset, in_order: bool) -> bool:
    """Says whether a stage may join rows of several input elements, cut an element, or change the order of elements.

    `in_order`: the pipeline's options keep the order in stages that have no such option.
    """
    asks = getattr(stage, "_deterministic", "default") == "default" and name(stage).startswith("Parallel")
    return name(stage).endswith(_DIVIDE_ANEW) or unordered(stage) or (asks and not in_order)


def has_functions(stage: tf.data.Dataset) -> bool:
    return bool(list(stage._functions()))


def function_nodes(stage: tf.data.Dataset) -> Iterator[Any]:
    """The ops in a stage's functions, and in functions that these call, as NodeDefs. Constants are left out."""
    for function in stage._functions():
        graph = function.function.graph
        yield from (op.node_def for op in graph.get_operations() if op.type != "Const")
        if any(op.type != "Const" and _calls(op) for op in graph.get_operations()):
            for called in graph.as_graph_def().library.function:
                yield from (node for node in called.node_def if node.op != "Const")


def _calls(op: tf.Operation) -> bool:
    return any(attribute.HasField("func") or attribute.list.func for attribute in op.node_def.attr.values())


def captured(stage: tf.data.Dataset) -> list[tf.Tensor]:
    """The tensors that a stage holds or its functions capture, and the arrays that have become constants in its
    functions."""
    tensors = [tensor for tensor in getattr(stage, "_tensors", ()) if isinstance(tensor, tf.Tensor)]
    for function in stage._functions():
        tensors += function.function.captured_inputs
        tensors += [op.outputs[0] for op in function.function.graph.get_operations() if op.type == "Const"]
    return tensors


def caches_in_a_file(stage: tf.data.Dataset) -> bool:
    """Says whether a stage is a cache() with a filename."""
    filename = getattr(stage, "_filename", None)
    return is_eager(filename) and tf.get_static_value(filename) != b""


def seeds(stage: tf.data.Dataset) -> Iterator[tuple[str, list[tf.Tensor]]]:
    """The name and the two seeds of everything in a stage that draws random numbers: the stage, and datasets in its
    functions."""
    if hasattr(stage, "_seed"):
        yield type(stage).__name__.strip("_"), [tf.convert_to_tensor(seed) for seed in (stage._seed, stage._seed2)]
    for function in stage._functions():
        for op in function.function.graph.get_operations():
            if "Dataset" not in op.type or op.op_def is None:
                continue
            names = [argument.name for argument in op.op_def.input_arg]
            if "seed" in names and "seed2" in names and len(names) == len(op.inputs):
                yield f"{op.type} in a function", [op.inputs[names.index(name)] for name in ("seed", "seed2")]


def serialized_graph(dataset: tf.data.Dataset) -> Any:
    return tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())


def shard_files(dataset: tf.data.Dataset, shard: int, shards: int) -> tf.data.Dataset:
    """The elements of every `shards`-th file. Raises tf.errors.OpError if TensorFlow can't divide the files."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return distribute._AutoShardDataset(dataset.with_options(options), shards, shard)


def keep_python_functions(source: tf.Graph, copy: tf.Graph) -> None:
    """Keeps the bodies of generators and py_functions for `copy`.

    They live as long as the graph for which they were made.
    """
    copy._py_funcs_used_in_graph = getattr(source, "_py_funcs_used_in_graph", [])


def is_compiled_by_xla(graph: tf.Graph) -> bool:
    """Says whether the graph belongs to a tf.function with jit_compile=True."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))
