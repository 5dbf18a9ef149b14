# SPDX-License-Identifier: Apache-2.0
"""Pairs the calls of scatter() and gather() on all ranks: by name, or in the order of the program."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional

import tensorflow as tf

from ..errors import checked_name, explained, whole
from ..job import state

# In a TF1 graph calls without a name may run in any order, so each gets a name by its place in the graph. All ranks
# build the same graphs.
_graph_names: "weakref.WeakKeyDictionary[tf.Graph, itertools.count[int]]" = weakref.WeakKeyDictionary()
_order: list[tf.Tensor] = []  # see label
_UNNAMED = "\0"
# The first characters of names in the core (csrc/meeting/exchange.h). Names of users contain no NUL.
SCATTER, GATHER, GATHER_GRADIENT = "", "\0G", "\0B"


def checked(call: str, root: Any, name: Optional[str]) -> tuple[state.Job, int]:
    """Checks a call that trainers make. Returns the job, and the root as a number.

    Raises:
      RuntimeError: there is no job, or this is a dedicated reader.
      TypeError, ValueError: root is not a rank, or name is not a name.
    """
    job = state.current(f"{call}()")
    if job.trainer is None:
        raise explained(RuntimeError, f"{call}() was called on a dedicated reader, which is no rank", where=job.where)
    size = len(job.layout.trainers)
    if (number := whole(root)) is None:
        raise explained(TypeError, f"root={root!r} is not a rank", f"Use a whole number, 0 to {size - 1}", job.where)
    if not 0 <= number < size:
        raise explained(ValueError, f"root={number} is not one of the {size} ranks", f"Use 0 to {size - 1}", job.where)
    checked_name(name)
    return job, number


def label(kind: str, name: Optional[str]) -> tuple[str, list[tf.Tensor]]:
    """The name of a call in the core, and inputs for its op. These inputs make calls without a name run in order."""
    if name is not None:
        return kind + name, []
    if tf.executing_eagerly():
        return kind + _UNNAMED, []
    if tf.compat.v1.executing_eagerly_outside_functions():
        # Ops of a tf.function that use the same resource run in the order of the program. This also holds for functions
        # that it calls, branches and loops.
        with tf.init_scope(), tf.device("/CPU:0"):
            if not _order:
                _order.append(tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="horovod_data_order"))
        return kind + _UNNAMED, _order
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return f"{kind}{_UNNAMED} {next(_graph_names.setdefault(graph, itertools.count()))}", []


def label_of(op: Any, attribute: str) -> str:
    """The name that an op has in the core."""
    name = op.get_attr(attribute)
    return name.decode() if isinstance(name, bytes) else name
