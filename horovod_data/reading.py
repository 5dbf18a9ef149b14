# SPDX-License-Identifier: Apache-2.0
"""The reader's end of a channel: the user's dataset, checked, taken apart where it must be, and the op that deals it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf

from . import elements, loader
from . import tensorflow_private as private
from .errors import explain
from .receiving import received, stages

_INFINITE, _UNKNOWN = -1, -2  # as tf.data counts


@dataclasses.dataclass
class Reading:
    """A dataset that this process reads for a channel."""

    spec: Any  # of its elements
    count: int  # of its elements, as tf.data counts
    fingerprint: Optional[str]  # equal ones stand for pipelines that yield the same; None: not known
    deal: Callable[[int, int], None]  # (channel, epoch): runs one epoch, blocks until all trainers have ended it

    @classmethod
    def make(cls, dataset_or_fn: Any, batch: str, remainder: str, reader: int, readers: int, trainers: int,
             audience: int) -> "Reading":
        """Calls the function if it is one, and checks what can be checked before the first element.

        `audience`: of the job's `trainers`, those between which this reader's global batches are divided.
        """
        graph: Optional[tf.Graph] = None
        if callable(dataset_or_fn) and not isinstance(dataset_or_fn, tf.data.Dataset):
            dataset = _call(dataset_or_fn, tf.distribute.InputContext(readers, reader, trainers))
        else:
            dataset = dataset_or_fn
            if not private.is_eager(private.variant(dataset)):
                graph = private.variant(dataset).graph
        if received(dataset):
            raise ValueError(explain(
                "the dataset is itself what distribute_dataset() returned, or made of it: one rank's share, for which this "
                "reader would wait for itself",
                "Distribute the dataset that it came from, and do the rest on every rank behind it"))
        spec = dataset.element_spec
        elements.check_types(spec)
        if batch == "global":
            elements.check_global(spec, remainder, audience)
        with _mode(graph), tf.device("/CPU:0"):
            if elements.has_composites(spec):
                cut = elements.precut(audience, remainder) if batch == "global" else elements.take_apart
                flat = dataset.map(cut)
            else:
                flat = dataset
            count = tf.data.experimental.cardinality(dataset)
            variant = private.variant(flat)
            if graph is None:
                deal = _eager_deal(flat, variant)
                length = int(count.numpy())
            else:
                deal, length = _graph_deal(graph, variant, count)
        fingerprint = _fingerprint(dataset) if readers > 1 and graph is None else None
        return cls(spec, length, fingerprint, deal)


def checked_dataset_or_fn(dataset_or_fn: Any, needed: bool) -> None:
    """Raises TypeError for anything but a dataset, a function, or, where it is not needed, None."""
    if isinstance(dataset_or_fn, tf.data.Dataset) or callable(dataset_or_fn):
        return
    if dataset_or_fn is None:
        if needed:
            raise TypeError(explain("dataset_or_fn is None on a reader",
                                    "Pass a tf.data.Dataset, or a function that returns one; only other ranks may pass None"))
        return
    raise TypeError(explain(f"dataset_or_fn is a {type(dataset_or_fn).__name__}, not a tf.data.Dataset nor a function that "
                            "returns one", "Make a dataset of it, for example with tf.data.Dataset.from_tensor_slices"))


def _call(function: Callable[..., Any], input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    with _mode(None), tf.device("/CPU:0"):
        dataset = function(input_context) if _takes_argument(function) else function()
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(explain(f"the dataset function returned a {type(dataset).__name__}, not a tf.data.Dataset"))
        return dataset


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return False
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or any(p.name in needed and p.kind is p.KEYWORD_ONLY for p in parameters):
        raise TypeError(explain(f"the dataset function needs the arguments {', '.join(needed)}",
                                "It may take none, or one: a tf.distribute.InputContext"))
    return bool(needed)


@contextlib.contextmanager
def _mode(graph: Optional[tf.Graph]) -> Iterator[None]:
    """In which a dataset is made or extended: in its graph, or eagerly."""
    if graph is not None:
        with graph.as_default():
            yield
    elif tf.executing_eagerly():
        yield
    else:  # a dataset keeps the default graph, eager or not: it must not be the one that is being built (see _graph_deal)
        with tf.Graph().as_default(), private.eager_mode():
            yield


def _eager_deal(dataset: tf.data.Dataset, variant: tf.Tensor) -> Callable[[int, int], None]:
    def deal(channel: int, epoch: int) -> None:
        _ = dataset  # keeps alive what the pipeline needs of Python: generators, py_function bodies
        with private.eager_mode(), tf.device("/CPU:0"):
            loader.load().ops.horovod_data_deal(variant, channel, epoch)

    return deal


def _graph_deal(graph: tf.Graph, variant: tf.Tensor, count: tf.Tensor) -> tuple[Callable[[int, int], None], int]:
    """A dataset that was made in a TF1 graph runs in a session of its own, on a copy of what it needs of that graph: as long
    as the user's graph lives, this rank uses the channel, so the channel can't keep it alive. Returns the length, too."""
    needed: set[str] = set()
    waiting = [variant.op, count.op]
    while waiting:
        op = waiting.pop()
        if op.name not in needed:
            needed.add(op.name)
            waiting += [tensor.op for tensor in op.inputs] + op.control_inputs
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    part.node.extend(node for node in whole.node if node.name in needed)
    for node in part.node:
        node.attr.pop("_class", None)  # beside which ops it runs; they may not be there
    with tf.Graph().as_default() as copy:
        copied, length = tf.import_graph_def(part, return_elements=[variant.name, count.name], name="")
        channel_in = tf.compat.v1.placeholder(tf.int64, [])
        epoch_in = tf.compat.v1.placeholder(tf.int64, [])
        op = loader.load().ops.horovod_data_deal(copied, channel_in, epoch_in)
    private.keep_python_functions(graph, copy)
    session = tf.compat.v1.Session(graph=copy)

    def deal(channel: int, epoch: int) -> None:
        session.run(op, {channel_in: channel, epoch_in: epoch})

    return deal, int(session.run(length))


_MOST_TO_FINGERPRINT = 16 << 20  # bytes of tensors that a pipeline may hold


def _fingerprint(dataset: tf.data.Dataset) -> Optional[str]:
    """Of the pipeline's graph: stages, functions, file names, constants. Where Python code takes part (generators,
    py_function), or large tensors do, which would be slow, there is none."""
    tensors = [tensor for stage in stages(dataset) for tensor in private.captured(stage)]
    if any(tensor.dtype == tf.variant for tensor in tensors):  # another dataset, say, which may hold anything
        return None
    if sum(_bytes_of(tensor) for tensor in tensors) > _MOST_TO_FINGERPRINT:
        return None
    try:
        graph = private.serialized_graph(dataset)
    except tf.errors.OpError:  # what can't be serialised
        return None
    nodes = list(graph.node) + [node for function in graph.library.function for node in function.node_def]
    if any("PyFunc" in node.op for node in nodes):
        return None
    return hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()


def _bytes_of(tensor: tf.Tensor) -> int:
    """At least; 0 where it is not known without a look at the contents."""
    return tensor.shape.num_elements() * tensor.dtype.size if tensor.shape.is_fully_defined() else 0


def steps_of(count: int, spec: Any, batch: str, schedule: str, remainder: str, trainers: int) -> int:
    """The number of steps in an epoch of `count` elements, both as tf.data counts: INFINITE and UNKNOWN included."""
    if count < 0 or schedule == "dynamic":
        return _INFINITE if count == _INFINITE else _UNKNOWN
    if batch == "per_rank":
        return count // trainers if remainder == "drop" else -(-count // trainers)
    rows = [elements.rows_of(leaf) for _, leaf in elements.leaves(spec)]
    if remainder != "drop" or any(rows):  # what the ranks don't divide has been refused
        return count
    return 0 if 0 in rows else _UNKNOWN  # a batch smaller than the number of ranks makes no step
