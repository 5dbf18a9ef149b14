# SPDX-License-Identifier: Apache-2.0
"""The reader's side of a channel whose source is a Python iterable: its iterators, their states, and its elements."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np

from ..elements import columns, specs
from ..elements.nests import leaves
from ..errors import explained, show_trace
from ..native import shares
from .reading import EMPTY, INFINITE, UNKNOWN, Reading, Rules
from .shard.summary import PartSummary
from .source_states import Saved, check_whole, forget_state, stateful, use_epoch_of

_NONE: Any = object()  # what next() returns at the end


def read_iterable(source: Any, function: Optional[Callable[..., Any]], rules: Rules) -> Reading:
    """Reads an iterable. Makes its first element, which shows the spec of all. Epoch 1 delivers that element.

    `function`: makes the iterables of later epochs, if each has its own.
    """
    options = rules.options
    first = Iterables(source, options.weigh if options.has_costs else None)
    spec = first.peek()
    if spec is not EMPTY and options.batch == "global":
        specs.check_global(spec[0] if options.has_costs else spec, options.remainder, rules.group_trainers)
    part = None
    if rules.divides:
        what = f"reads everything and delivers one element in {rules.readers} (the source is a Python iterable)"
        part = PartSummary("elements", kinds="iterable", what=what)
    count = UNKNOWN if function is not None else first.count
    if rules.divides and count >= 0:
        count = (count - rules.reader + rules.readers - 1) // rules.readers
    held = [first]  # with a function: empty when an epoch has begun

    def deal(channel: int, epoch: int, number: int) -> None:
        if function is None:
            shares.deal(channel, epoch, anew=False, divides=rules.divides, source=first)
            return
        iterables = held.pop() if held and number == 1 else None
        held.clear()
        if iterables is None:
            first.forget()
            try:
                made = function(number)
            except Exception as error:
                show_trace(error)
                raise
            iterables = first.of_another_epoch(made, number)
        try:
            shares.deal(channel, epoch, anew=True, divides=rules.divides, source=iterables)
        finally:
            iterables.forget()

    return Reading(spec, count, None, None, part, deal, first.forget, first.agreed)


class Iterables:
    """The iterators of one iterable, one at a time. shares.deal() takes their elements from this object.

    `costs`: the function that gives the cost of each row of an element.
    """

    def __init__(self, source: Any, costs: Optional[Callable[..., Any]], spec: Any = EMPTY):
        self._source = source
        self._costs = costs
        self._spec = spec
        self._iterator: Optional[Iterator[Any]] = None
        self._peeked: list[Any] = []  # the first element, if next() has not given it yet
        self._fresh = False  # the iterator was made by peek(), and no epoch uses it yet
        self._restored: Optional[bytes] = None  # the state from which this epoch began
        self._loaded = False  # the source, not an iterator, was given a state
        self._asked = False  # the iterator has yielded in this epoch, so its state is that of the epoch
        self._ended = False  # the iterator has no further element
        self._yielded = 0  # elements of this epoch
        self._kept: Any = None  # what the columns of the last element refer to
        self._begun = False  # the source is an iterator itself, and was read
        self.count = _length(source)

    def peek(self) -> Any:
        """Makes the first element, and returns the spec of all. EMPTY: there is no element."""
        self._iterator = self._iter()
        self._fresh = True
        element = next(self._iterator, _NONE)
        if element is _NONE:
            return self._spec
        self._peeked = [element]
        self._spec = columns.spec_of(self._with_costs(element))
        if not leaves(self._spec if self._costs is None else self._spec[0]):
            what = "the source's first element has no component: it has None and empty containers only"
            to_do = "Let it have an array, a tensor, a number or a text; an empty list may be np.array([])"
            raise explained(TypeError, what, to_do)
        if self._costs is not None:
            _check_costs(self._spec)
        return self._spec

    def agreed(self, spec: Any) -> None:
        """Takes the spec of the other readers' elements. peek() has found no element here."""
        self._spec = spec

    def of_another_epoch(self, source: Any, number: int) -> Iterables:
        """The Iterables of the source that the program's function has made for epoch `number`."""
        check_iterable(source, f"the function made for epoch={number} ")
        return Iterables(source, self._costs, self._spec)

    def forget(self) -> None:
        """Frees the source."""
        self._source = self._iterator = self._kept = None
        self._peeked = []

    @functools.cached_property
    def _maker(self) -> columns.Maker:
        return columns.Maker(self._spec)

    # ---- What shares.deal() calls, on the dealer's thread.

    def start(self, number: int) -> None:
        """Makes an iterator, at the first element. `number`: of the epoch over all runs, from 0."""
        self._restored, self._asked, self._ended = None, False, False
        if self._fresh:
            self._fresh = False
            return
        if self._loaded:
            forget_state(self._source)
        self._loaded = False
        self._peeked = []
        self._iterator = self._iter()
        self._yielded = 0

    def start_from(self, state: bytes, number: int) -> None:
        """Makes an iterator from a state of save().

        If the state's epoch was over, makes none. An iterator that peek() made stays for the next epoch.
        """
        saved = Saved(*pickle.loads(state))
        self._restored, self._asked, self._ended = state, False, saved.ended
        if saved.ended:
            return
        iterator = self._iterator if self._fresh else None
        if iterator is None and not hasattr(self._source, "load_state_dict"):  # workers of a DataLoader start once only
            iterator = self._iter(seeks=True)
        self._fresh, self._peeked, self._yielded = False, [], saved.yielded
        found = stateful(self._source, iterator)
        if found is None:
            what = "the source has no load_state_dict() or set_state(), but had one when the checkpoint was saved"
            raise explained(ValueError, what, "Restore the checkpoint with the source that was saved", where="")
        self._loaded = found.of_source
        if self._loaded:
            use_epoch_of(saved.state, self._source)
        found.load(saved.state)
        self._iterator = self._iter(seeks=True) if self._loaded else iterator

    def next(self) -> Optional[list[columns.Column]]:
        """The columns of the next element. None: there is none. They are valid until the next call."""
        self._kept = None
        if self._ended:
            return None
        if self._peeked:
            element = self._peeked.pop()
        else:
            assert self._iterator is not None
            element = next(self._iterator, _NONE)
        if element is _NONE:
            self._ended = True
            self._check_length()
            return None
        self._asked = True
        self._yielded += 1
        self._check_length()
        self._kept = self._maker.columns(self._with_costs(element))
        return self._kept

    def save(self) -> Optional[bytes]:
        """Returns the state after the last element of next(). None: the source has no state.

        Before the first element of an epoch, the source's own state may be that of another epoch. So the result is the
        state from which this epoch began. If the epoch began without a state, the result is None, and a restore begins
        the source anew. At the end of an epoch, the result only notes the end, because some sources begin anew from a
        state of their end.
        """
        if self._ended:
            return pickle.dumps(tuple(Saved(None, self._yielded, True)))
        if not self._asked:
            return self._restored
        found = stateful(self._source, self._iterator)
        if found is None:
            return None
        check_whole(self._source)
        return pickle.dumps(tuple(Saved(found.get(), self._yielded, False)))

    def close(self) -> None:
        """The epoch is over. An iterator of peek() stays, if this epoch has not used it."""
        self._kept = None
        if not self._fresh:
            self._iterator, self._peeked = None, []

    # ----

    def _iter(self, seeks: bool = False) -> Iterator[Any]:
        """A new iterator. `seeks`: it will be restored, so it may be one that was used before."""
        iterator = iter(self._source)
        if iterator is self._source and not seeks:
            if self._begun:
                what = f"the source is an iterator ({type(iterator).__name__}), which can be read once, and this is another epoch"
                to_do = "Pass a function with a parameter `epoch` that makes one, or an iterable such as a list"
                raise explained(ValueError, what, to_do, where="")
            self._begun = True
        return iterator

    def _with_costs(self, element: Any) -> Any:
        if self._costs is None:
            return element
        given = self._costs(*element) if type(element) in (tuple, list) else self._costs(element)
        costs = np.asarray(given)
        if costs.dtype == object:  # also None
            what = f"weigh= returned a {type(given).__name__} instead of numbers"
            raise explained(ValueError, what, "Let it return a vector with the cost of each row", where="")
        if costs.dtype.kind in "biuf":
            costs = costs.astype(np.float32)
        return element, costs

    def _check_length(self) -> None:
        if self.count < 0:
            return
        if self._yielded > self.count or (self._ended and self._yielded < self.count):
            found = f"{self._yielded} elements" if self._ended else f"element {self._yielded}"
            what = f"the source's len() is {self.count}, but it yielded {found}"
            raise explained(ValueError, what, "Let len() raise a TypeError if the number is not known", where="")


def check_iterable(source: Any, whose: str = "") -> None:
    """Raises TypeError if the source is no iterable of elements."""
    if not isinstance(source, (str, bytes, dict)) and (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        return
    what = f"{whose}a {type(source).__name__}, not an iterable of batches"
    to_do = "Use a tf.data.Dataset, a DataLoader, a list, or a function that returns one"
    raise explained(TypeError, what if whose else f"source is {what}", to_do)


def _length(source: Any) -> int:
    """The number of elements, as tf.data counts. The length of a DataLoader over an IterableDataset is an estimate."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(getattr(source, "dataset", None), data.IterableDataset):
        return UNKNOWN
    try:
        count = len(source)
    except TypeError:
        return UNKNOWN
    except OverflowError:  # len() takes no more than sys.maxsize
        return INFINITE
    return INFINITE if count == sys.maxsize else count  # sys.maxsize: of a Grain dataset that is repeated for ever


def _check_costs(spec: Any) -> None:
    """Raises ValueError if `weigh` returns something else than one cost for each row. `spec`: of (element, costs)."""
    element, costs = spec
    if costs.dtype != "float32":
        what = f"weigh= returned an array of {costs.dtype} instead of numbers"
        raise explained(ValueError, what, "Let it return a vector with the cost of each row", where="")
    first = leaves(element)[0][1]
    if costs.rank != min(first.rank, 1):
        what = f"weigh= returned costs with {costs.rank} axes for an element whose first component has {first.rank}"
        to_do = "Let it return a vector with the cost of each row" if first.rank else "Let it return a number"
        raise explained(ValueError, what, to_do, where="")
