# SPDX-License-Identifier: Apache-2.0
"""The reader's side of a channel: checks the user's dataset, and runs the op that deals its elements."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf

from ..elements import specs
from ..elements.nests import leaves
from ..errors import explained
from ..job import state
from ..native import loader
from ..native import tensorflow_private as private
from . import tensors
from .options import UNLESS_SHARDED
from .reading import INFINITE, UNKNOWN, Reading, Rules, with_context
from .receiver import ends_of_channels
from .shard.fingerprint import fingerprint_of
from .shard.parts import ReaderPart, part_of


def read_dataset(dataset_or_fn: Any, rules: Rules) -> Reading:
    """Calls `dataset_or_fn` if it is a function. Checks what can be checked before the first element."""
    if isinstance(dataset_or_fn, tf.data.Dataset):
        variant = private.variant(dataset_or_fn)
        if not private.is_eager(variant):
            return _of_graph(dataset_or_fn, rules, variant.graph)
        return read_made(dataset_or_fn, None, rules)
    context = tf.distribute.InputContext(rules.readers, rules.reader, rules.trainers)
    function, wants = with_context(dataset_or_fn, context, rules.options)
    first = called(function, 1 if wants.epoch else None)
    if rules.options.shard is UNLESS_SHARDED and wants.context:  # the function gives each reader its part
        rules = rules._replace(options=dataclasses.replace(rules.options, shard=None))
    return read_made(first, function if wants.epoch else None, rules)


def read_made(dataset: Any, function: Optional[Callable[..., Any]], rules: Rules) -> Reading:
    """Reads a dataset. `function`: makes the datasets of later epochs, if each has its own."""
    first = _prepared(dataset, rules)
    anew = None
    if function is not None:
        anew = functools.partial(_made_anew, function, rules, first.spec)
    count = int(first.count.numpy())
    if anew is not None and count != INFINITE:
        count = UNKNOWN  # another epoch may have more or fewer
    fingerprint = fingerprint_of(first.dataset) if rules.readers > 1 else None
    with eagerly():
        found = private.rows_of_batches(first.dataset if first.part is None else first.part.dataset)
    steps = None
    if found is not None:
        batches, rows, last = found
        steps = (batches if rows >= rules.group_trainers else 0) + (last >= rules.group_trainers)
    part = None if first.part is None else first.part.summary
    return Reading(tensors.spec_of(first.spec), count, steps, fingerprint, part, _eager_deal(first, anew))


def _of_graph(dataset: tf.data.Dataset, rules: Rules, graph: tf.Graph) -> Reading:
    """Reads a dataset of a TF1 graph."""
    if rules.divides:
        to_do = "Pass a function that makes the dataset: it is called in eager mode"
        raise explained(ValueError, 'shard="auto" cannot look into a dataset of a TF1 graph', to_do)
    made = _prepared(dataset, rules, graph)
    deal, close, length = _graph_deal(graph, private.variant(made.flat), made.count)
    return Reading(tensors.spec_of(made.spec), length, None, None, None, deal, close)


@dataclasses.dataclass
class _Prepared:
    """A dataset that was checked. `flat` yields its elements as plain tensors.

    If several readers divide the elements, `flat` yields all of them, and `count` counts this reader's own.
    """

    dataset: tf.data.Dataset
    flat: tf.data.Dataset
    spec: Any
    count: tf.Tensor
    part: Optional[ReaderPart]


def _prepared(dataset: tf.data.Dataset, rules: Rules, graph: Optional[tf.Graph] = None) -> _Prepared:
    if ends_of_channels(dataset):
        raise explained(
            ValueError,
            "the dataset is what distribute_dataset() returned, or is made of it. It has one rank's shares, so this reader "
            "would wait for itself",
            "Distribute the original dataset, and put the other stages behind distribute_dataset()",
        )
    part = None
    if rules.divides:
        with mode_of_readers(graph):
            part = part_of(dataset, rules.reader, rules.readers)
    whole, own = dataset, dataset if part is None else part.dataset
    # If the readers divide elements, the core gets all of them. It compares them between the readers, and deals only
    # this reader's elements.
    if part is not None and not part.divides_elements:
        dataset = own
    spec = dataset.element_spec
    tensors.check_types(spec)
    if rules.options.batch == "global":
        specs.check_global(tensors.spec_of(spec), rules.options.remainder, rules.group_trainers)
    with mode_of_readers(graph):
        if rules.options.has_costs:
            dataset = dataset.map(tensors.with_costs(rules.options.weigh, spec))
            tensors.check_costs(dataset.element_spec)
            dataset = dataset.map(tensors.costs_as_floats)
            spec = dataset.element_spec
        flat = dataset
        if tensors.has_composites(spec):
            flat = dataset.map(tensors.take_apart)
        return _Prepared(whole, flat, spec, tf.data.experimental.cardinality(own), part)


def _made_anew(function: Callable[..., Any], rules: Rules, spec: Any, number: int) -> _Prepared:
    """The dataset of epoch `number`. Its elements must have the types and shapes that all ranks know.

    With shard="auto" the readers do not compare their parts again, because this call is not collective.
    """
    made = _prepared(called(function, number), rules)
    if not _fits(made.spec, spec):
        raise explained(
            ValueError,
            f"the dataset function made a dataset of {made.spec} for epoch={number}, but of {spec} for epoch=1",
            "All epochs must have the same structure, types and shapes. If a size differs, make it None in epoch 1",
        )
    return made


def _fits(spec: Any, known: Any) -> bool:
    """Says whether all elements of `spec` fit `known`."""
    try:
        common = specs.common_spec([tensors.spec_of(known), tensors.spec_of(spec)])
    except ValueError:
        return False
    return bool(leaves(common) == leaves(tensors.spec_of(known)))


def checked_dataset_or_fn(dataset_or_fn: Any, needed: bool) -> None:
    """Raises TypeError unless this is a dataset, a function, or None if it is not needed."""
    if isinstance(dataset_or_fn, tf.data.Dataset) or callable(dataset_or_fn) or (dataset_or_fn is None and not needed):
        return
    what = f"a {type(dataset_or_fn).__name__}, not a tf.data.Dataset nor a function that returns one"
    to_do = "Make a dataset of it, for example with tf.data.Dataset.from_tensor_slices"
    if dataset_or_fn is None:
        what = "None on a reader"
        to_do = "Pass a tf.data.Dataset, or a function that returns one; only other ranks may pass None"
    raise explained(TypeError, f"dataset_or_fn is {what}", to_do)


def called(function: Callable[..., Any], epoch: Optional[int]) -> tf.data.Dataset:
    """Calls a dataset function. `epoch` None: it does not take the number of the epoch."""
    with mode_of_readers(), state.reads():
        dataset = function() if epoch is None else function(epoch=epoch)
        if not isinstance(dataset, tf.data.Dataset):
            what = f"the dataset function returned a {type(dataset).__name__}, not a tf.data.Dataset"
            raise explained(TypeError, what)
        return dataset


@contextlib.contextmanager
def mode_of_readers(graph: Optional[tf.Graph] = None) -> Iterator[None]:
    """The context in which datasets are made and extended: their graph, or eager mode."""
    with eagerly() if graph is None else graph.as_default(), tf.device("/CPU:0"):
        yield


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Eager mode, in TF1 programs as well."""
    if tf.executing_eagerly():
        yield
    else:  # a dataset keeps the default graph alive, which therefore must not be the program's (see _graph_deal)
        private.begin_without_gpus()
        with tf.Graph().as_default(), private.eager_mode():
            yield


def _eager_deal(first: _Prepared, anew: Optional[Callable[[int], _Prepared]]) -> Callable[[int, int, int], None]:
    """Returns a function that deals an epoch.

    `anew` makes the dataset of each epoch after the first. None: `first` is the dataset of every epoch.
    """
    held = [first]

    def deal(channel: int, epoch: int, number: int) -> None:
        if anew is None:
            made = held[0]
        else:
            made = held.pop() if held and number == 1 else anew(number)
            held.clear()
        # `made` keeps alive the Python parts of the pipeline: generators, bodies of py_function.
        with private.eager_mode(), private.at_once(), tf.device("/CPU:0"):
            part = made.part
            loader.load_ops().horovod_data_deal(
                private.variant(made.flat),
                channel,
                epoch,
                anew=anew is not None,
                divides=part is not None and part.divides_elements,
                varies=part is not None and part.varies,
            )

    del first
    return deal


def _graph_deal(
    graph: tf.Graph, variant: tf.Tensor, count: tf.Tensor
) -> tuple[Callable[[int, int, int], None], Callable[[], None], int]:
    """Prepares a dataset of a TF1 graph.

    Returns a function that deals an epoch, a function that closes the session, and the dataset's length. The session
    runs a copy of the needed part of the graph. The session must not keep the user's graph alive, because this rank
    uses the channel until the user's graph is freed.
    """
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
        node.attr.pop("_class", None)  # names ops that must be on the same device; the copy may lack them
    with tf.Graph().as_default() as copy:
        copied, length = tf.import_graph_def(part, return_elements=[variant.name, count.name], name="")
        channel_in, epoch_in = (tf.compat.v1.placeholder(tf.int64, []) for _ in range(2))
        # A session makes a new dataset for each epoch.
        op = loader.load_ops().horovod_data_deal(copied, channel_in, epoch_in, anew=True)
    private.keep_python_functions(graph, copy)
    # Pipelines run on the host. The session must not take the program's GPUs.
    session = tf.compat.v1.Session(graph=copy, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))

    def deal(channel: int, epoch: int, number: int) -> None:
        session.run(op, {channel_in: channel, epoch_in: epoch})

    return deal, session.close, int(session.run(length))
