# SPDX-License-Identifier: Apache-2.0
"""JAX on several ranks, with one reader and no TensorFlow.

    mpirun -np 4 python examples/jax_ranks.py

One process makes the batches of all ranks. Each rank gets its own rows of a global batch, and JAX makes one global
array of them. At the end rank 0 trains alone on the same global batches, and compares. Loss and weights must be the
same as with one process.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from coordinator import address
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import horovod_data as hvdata

ROWS, BATCH, EPOCHS, CLOSE = 1000, 96, 3, 1e-5  # the last batch of an epoch has 40 rows


def samples(epoch: int):
    """Yields the global batches of an epoch. Only readers call this function, and rank 0 to compare."""
    order = np.random.default_rng(epoch).permutation(ROWS)
    x = np.random.default_rng(7).normal(size=(ROWS, 8)).astype(np.float32)
    y = np.tanh(x.sum(axis=1))
    for start in range(0, ROWS, BATCH):
        rows = order[start : start + BATCH]
        yield x[rows], y[rows]


def new_weights():
    """The same on all ranks."""
    random = np.random.default_rng(1)
    sizes = {"hidden": (8, 64), "out": (64,)}
    return {name: (random.normal(size=size) / 8).astype(np.float32) for name, size in sizes.items()}


@jax.jit
def step(weights, x, y, of_row):
    """The new weights, and the sum of the squared errors of all rows."""

    def total(weights):
        errors = jnp.square(jax.nn.relu(x @ weights["hidden"]) @ weights["out"] - y)
        return jnp.sum(errors * of_row)

    error, gradients = jax.value_and_grad(total)(weights)
    rows = jnp.sum(of_row)
    return jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient / rows, weights, gradients), error


def train(batches, weights, place):
    """The loss of each epoch, and the weights at the end. `batches(epoch)` begins an epoch."""
    losses = []
    for epoch in range(1, EPOCHS + 1):
        error = 0.0
        for x, y, *of_row in batches(epoch):
            weights, more = step(weights, *place((x, y, of_row[0] if of_row else np.ones(len(y), np.float32))))
            error += float(more)
        losses.append(error / ROWS)
    return np.array(losses), [np.asarray(weight) for weight in weights.values()]


hvdata.init()
# "pad": JAX needs equal shares. Missing rows are filled up, and a weight per row says which rows are real.
loader = hvdata.loader(samples, batch="global", remainder="pad", name="train")
meeting = address()
hvdata.serve()

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # for CPUs; GPUs use their own library
jax.distributed.initialize(meeting, hvdata.size(), hvdata.rank())
mesh = Mesh(jax.devices(), "rows")
by_rows, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())


def as_global(share):
    return [jax.make_array_from_process_local_data(by_rows, array) for array in share]


everybodys = {name: jax.make_array_from_process_local_data(everywhere, one) for name, one in new_weights().items()}
losses, weights = train(lambda epoch: loader, everybodys, as_global)

right = True
if hvdata.rank() == 0:
    alone, weights_alone = train(samples, new_weights(), lambda batch: batch)
    difference = max(np.max(np.abs(mine - ours)) for mine, ours in zip([alone, *weights_alone], [losses, *weights]))
    said = f"{jax.process_count()} processes of JAX without TensorFlow: loss {losses}, in one process {alone}"
    print(f"{said}; largest difference, weights included: {difference:.1e}")
    right = difference <= CLOSE and losses[-1] < 0.8 * losses[0] and jax.process_count() == hvdata.size()
if not multihost_utils.broadcast_one_to_all(np.array(right)):  # all ranks wait here for rank 0
    sys.exit("the loss is not that of one process")
if "tensorflow" in sys.modules:
    sys.exit("this rank has imported TensorFlow")
