# SPDX-License-Identifier: Apache-2.0
"""The reader's side of a channel: checks the user's dataset, and runs the op that deals its elements."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf

from ..errors import explained
from ..job import state
from ..native import loader
from ..native import tensorflow_private as private
from . import elements
from .options import UNLESS_SHARDED, Options
from .receiver import ends_of_channels
from .shard.fingerprint import fingerprint_of
from .shard.parts import ReaderPart, part_of

_INFINITE, _UNKNOWN = -1, -2  # as tf.data counts


@dataclasses.dataclass(frozen=True)
class _Rules:
    """What a channel requires of the datasets that its reader reads."""

    options: Options
    audience: int  # the trainers for which this reader cuts its global batches
    shard: bool  # each reader takes a part of the dataset
    reader: int = 0
    readers: int = 1


@dataclasses.dataclass
class Reading:
    """A dataset that this process reads for a channel. Or a function that makes a dataset for every epoch."""

    spec: Any  # of its elements
    count: int  # of its elements, as tf.data counts
    steps: Optional[int]  # global batches with a row for each trainer at least; None: unknown
    fingerprint: Optional[str]  # equal for pipelines that yield the same, before they are sharded; None: not known
    part: Optional[ReaderPart]  # with shard="auto"
    # deal(channel, epoch, number) runs one epoch, until all trainers have ended it
    deal: Callable[[int, int, int], None]
    close: Callable[[], None]  # frees the session in which it runs

    @classmethod
    def make(
        cls,
        dataset_or_fn: Any,
        options: Options,
        reader: int,
        readers: int,
        trainers: int,
        audience: int,
    ) -> "Reading":
        """Calls `dataset_or_fn` if it is a function. Checks what can be checked before the first element."""
        rules = _Rules(options, audience, options.shard is not None and readers > 1, reader, readers)
        if isinstance(dataset_or_fn, tf.data.Dataset) or not callable(dataset_or_fn):
            variant = private.variant(dataset_or_fn)
            graph = None if private.is_eager(variant) else variant.graph
            if graph is not None and rules.shard:
                raise explained(
                    ValueError,
                    'shard="auto" cannot look into a dataset of a TF1 graph',
                    "Pass a function that makes the dataset: it is called in eager mode",
                )
            first = _prepared(dataset_or_fn, rules, graph)
            if graph is not None:
                deal, close, length = _graph_deal(graph, private.variant(first.flat), first.count)
                return cls(first.spec, length, None, None, None, deal, close)
            anew = None
        else:
            input_context = tf.distribute.InputContext(readers, reader, trainers)
            wants = _Wants.of(dataset_or_fn)
            if options.shard is UNLESS_SHARDED and wants.context:  # the function gives each reader its part
                rules = dataclasses.replace(rules, shard=False)
            first = _prepared(_call(dataset_or_fn, wants, input_context, 1), rules, None)
            anew = None
            if wants.epoch:
                anew = functools.partial(_made_anew, dataset_or_fn, wants, input_context, rules, first.spec)
        count = int(first.count.numpy())
        if anew is not None and count != _INFINITE:
            count = _UNKNOWN  # another epoch may have more or fewer
        fingerprint = fingerprint_of(first.dataset) if readers > 1 else None
        with eagerly():
            steps = _steps_with_rows(first.dataset if first.part is None else first.part.dataset, audience)
        return cls(first.spec, count, steps, fingerprint, first.part, _eager_deal(first, anew), lambda: None)


@dataclasses.dataclass(frozen=True)
class _Wants:
    """The arguments that a dataset function takes."""

    context: bool  # an InputContext
    context_name: str  # of its parameter, where it must be passed by name
    epoch: bool  # the epoch's number, by this name; the function is then called for every epoch

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "_Wants":
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a builtin function without a signature
            return cls(False, "", False)
        if any(p.name == "epoch" and p.kind is p.POSITIONAL_ONLY for p in parameters):
            raise explained(
                TypeError,
                "the dataset function's parameter `epoch` can be passed by its position only, and the "
                "number of the epoch is passed by name",
                "Leave out the `/` behind it",
            )
        given = function.keywords if isinstance(function, functools.partial) else {}
        by_name = [p for p in parameters if p.name == "epoch" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        needed = [
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p not in by_name
        ]
        if len(needed) > 1:
            raise explained(
                TypeError,
                f"the dataset function needs the arguments {', '.join(needed)}",
                "It may take a tf.distribute.InputContext, and the number of the epoch as `epoch`",
            )
        named = [
            p.name
            for p in parameters
            if p.name in needed and (p.kind is p.KEYWORD_ONLY or by_name and p.kind is p.POSITIONAL_OR_KEYWORD)
        ]
        return cls(bool(needed), named[0] if named else "", bool(by_name) and "epoch" not in given)


@dataclasses.dataclass
class _Prepared:
    """A dataset that was checked. `flat` yields the same elements as plain tensors."""

    dataset: tf.data.Dataset
    flat: tf.data.Dataset
    spec: Any
    count: tf.Tensor
    part: Optional[ReaderPart]


def _prepared(dataset: tf.data.Dataset, rules: _Rules, graph: Optional[tf.Graph]) -> _Prepared:
    if ends_of_channels(dataset):
        raise explained(
            ValueError,
            "the dataset is itself what distribute_dataset() returned, or made of it: one rank's share, for which this "
            "reader would wait for itself",
            "Distribute the dataset that it came from, and do the rest on every rank behind it",
        )
    part = None
    if rules.shard:
        with _mode(graph), tf.device("/CPU:0"):
            part = part_of(dataset, rules.reader, rules.readers)
    whole, dataset = dataset, part.dataset if part is not None else dataset
    spec = dataset.element_spec
    elements.check_types(spec)
    if rules.options.batch == "global":
        elements.check_global(spec, rules.options.remainder, rules.audience)
    with _mode(graph), tf.device("/CPU:0"):
        if rules.options.has_costs:
            dataset = dataset.map(elements.with_costs(rules.options.weigh))
            spec = dataset.element_spec
            elements.check_costs(spec)
        flat = dataset
        if elements.has_composites(spec):
            flat = dataset.map(elements.take_apart)
        return _Prepared(whole, flat, spec, tf.data.experimental.cardinality(dataset), part)


def _made_anew(
    function: Callable[..., Any],
    wants: _Wants,
    input_context: tf.distribute.InputContext,
    rules: _Rules,
    spec: Any,
    number: int,
) -> _Prepared:
    """The dataset of epoch `number`. Its elements must have the types and shapes that all ranks know.

    With shard="auto" this reader's part is not compared with the parts of other readers, which don't wait for it.
    """
    made = _prepared(_call(function, wants, input_context, number), rules, None)
    if not _fits(made.spec, spec):
        raise explained(
            ValueError,
            f"the dataset function made for epoch={number} a dataset of {made.spec}, but that for epoch=1 was of {spec}",
            "All epochs must have the same structure, types and shapes: let a size that differs be None in the first one, too",
        )
    return made


def _fits(spec: Any, known: Any) -> bool:
    """Says whether all elements of `spec` fit `known`."""
    try:
        common = elements.common_spec([known, spec])
    except ValueError:
        return False
    return bool(tf.nest.flatten(common) == tf.nest.flatten(known))


def checked_dataset_or_fn(dataset_or_fn: Any, needed: bool) -> None:
    """Raises TypeError unless this is a dataset, a function, or None if it is not needed."""
    if isinstance(dataset_or_fn, tf.data.Dataset) or callable(dataset_or_fn):
        return
    if dataset_or_fn is None:
        if needed:
            raise explained(
                TypeError,
                "dataset_or_fn is None on a reader",
                "Pass a tf.data.Dataset, or a function that returns one; only other ranks may pass None",
            )
        return
    raise explained(
        TypeError,
        f"dataset_or_fn is a {type(dataset_or_fn).__name__}, not a tf.data.Dataset nor a function that returns one",
        "Make a dataset of it, for example with tf.data.Dataset.from_tensor_slices",
    )


def _call(
    function: Callable[..., Any], wants: _Wants, input_context: tf.distribute.InputContext, number: int
) -> tf.data.Dataset:
    arguments = [input_context] if wants.context else []
    keywords: dict[str, Any] = {"epoch": number} if wants.epoch else {}
    if wants.context_name:
        keywords[wants.context_name] = arguments.pop()
    with _mode(None), tf.device("/CPU:0"), state.reads():
        dataset = function(*arguments, **keywords)
        if not isinstance(dataset, tf.data.Dataset):
            raise explained(
                TypeError, f"the dataset function returned a {type(dataset).__name__}, not a tf.data.Dataset"
            )
        return dataset


@contextlib.contextmanager
def _mode(graph: Optional[tf.Graph]) -> Iterator[None]:
    """The context in which a dataset is made or extended: its graph, or eager mode."""
    with eagerly() if graph is None else graph.as_default():
        yield


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Eager mode, in TF1 programs as well."""
    if tf.executing_eagerly():
        yield
    else:  # a dataset keeps the default graph alive: it must not be the program's graph (see _graph_deal)
        private.begin_without_gpus()
        with tf.Graph().as_default(), private.eager_mode():
            yield


def _eager_deal(first: _Prepared, anew: Optional[Callable[[int], _Prepared]]) -> Callable[[int, int, int], None]:
    """Returns a function that deals an epoch. `anew` makes the dataset of each epoch, and `first` is the dataset of
    epoch 1.

    Without `anew`, `first` is the dataset of every epoch.
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
            loader.load().ops.horovod_data_deal(private.variant(made.flat), channel, epoch, anew=anew is not None)

    del first
    return deal


def _graph_deal(
    graph: tf.Graph, variant: tf.Tensor, count: tf.Tensor
) -> tuple[Callable[[int, int, int], None], Callable[[], None], int]:
    """Prepares a dataset of a TF1 graph.

    Returns a function that deals an epoch, a function that closes the session, and the dataset's length. The session
    runs a copy of the needed part of the graph. While the user's graph lives, this rank uses the channel. So the
    channel must not keep that graph alive.
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
        channel_in = tf.compat.v1.placeholder(tf.int64, [])
        epoch_in = tf.compat.v1.placeholder(tf.int64, [])
        # A session makes a new dataset for each epoch.
        op = loader.load().ops.horovod_data_deal(copied, channel_in, epoch_in, anew=True)
    private.keep_python_functions(graph, copy)
    session = tf.compat.v1.Session(graph=copy, config=_no_gpu())

    def deal(channel: int, epoch: int, number: int) -> None:
        session.run(op, {channel_in: channel, epoch_in: epoch})

    return deal, session.close, int(session.run(length))


def _no_gpu() -> tf.compat.v1.ConfigProto:
    """The configuration of our sessions. Pipelines run on the host, and the program alone decides about its GPUs."""
    return tf.compat.v1.ConfigProto(device_count={"GPU": 0})


def _steps_with_rows(dataset: tf.data.Dataset, trainers: int) -> Optional[int]:
    found = private.rows_of_batches(dataset)
    if found is None:
        return None
    batches, rows, last = found
    return (batches if rows >= trainers else 0) + (last >= trainers)


def steps_of(count: int, spec: Any, options: Options, trainers: int, with_rows: Optional[int]) -> int:
    """The number of steps in an epoch of `count` elements. Both may be INFINITE or UNKNOWN, as in tf.data.

    `with_rows`: the elements with a row for each trainer at least, if the readers know them (Reading.steps).
    """
    if count < 0 or options.schedule == "dynamic":
        return _INFINITE if count == _INFINITE else _UNKNOWN
    if options.batch == "per_rank":
        return count // trainers if options.remainder == "drop" else -(-count // trainers)
    rows = [elements.rows_of(leaf) for _, leaf in elements.leaves(spec)]
    if options.remainder != "drop" or any(rows):  # with "drop", a check has ensured that the ranks divide the rows
        return count
    if 0 in rows:
        return 0
    return _UNKNOWN if with_rows is None else with_rows  # a batch smaller than the number of ranks makes no step
