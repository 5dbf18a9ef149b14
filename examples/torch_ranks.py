# SPDX-License-Identifier: Apache-2.0
"""PyTorch on several ranks, with one reader. PyTorch gets the batches without a copy, and DistributedDataParallel
trains.

    mpirun -np 4 python examples/torch_ranks.py

One process runs the tf.data pipeline for all ranks. At the end rank 0 trains alone on the same global batches, and
compares. Loss and weights must be the same as with one process.
"""

import sys
import warnings

import numpy as np
import tensorflow as tf
import torch
import torch.distributed as dist
from coordinator import address

import horovod_data as hvdata

ROWS, BATCH, EPOCHS, CLOSE = 1000, 96, 3, 1e-5  # the last batch of an epoch has 40 rows
# The NumPy arrays are read-only, which PyTorch can't express, so it warns. Nothing here writes into a batch.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def samples() -> tf.data.Dataset:
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, np.tanh(x.sum(axis=1, keepdims=True)))).batch(BATCH)


def by_dlpack(dataset):
    """The dataset's tensors as PyTorch tensors, in the same memory."""
    for element in dataset:
        yield [torch.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor)) for tensor in element]


def by_numpy(dataset):
    """The same tensors, made by way of NumPy."""
    for element in dataset.as_numpy_iterator():
        yield [torch.from_numpy(array) for array in element]


def prove_no_copy(dataset) -> None:
    """Checks for both ways that PyTorch's tensor has the same memory as TensorFlow's."""
    x, *_ = next(iter(dataset))
    if torch.from_dlpack(tf.experimental.dlpack.to_dlpack(x)).data_ptr() != np.asarray(memoryview(x)).ctypes.data:
        sys.exit("DLPack made a copy")
    x, *_ = next(dataset.as_numpy_iterator())
    if torch.from_numpy(x).data_ptr() != x.ctypes.data or x.flags.owndata:
        sys.exit("as_numpy_iterator made a copy")


def train(batches, distributed: bool):
    """The loss of each epoch, and the weights at the end. `batches()` begins an epoch."""
    torch.manual_seed(
        1 + distributed * hvdata.rank()
    )  # other weights on each rank: DistributedDataParallel sends rank 0's to all
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []

    def of_all(number) -> float:
        total = torch.tensor(float(number), dtype=torch.float64)
        if distributed:
            dist.all_reduce(total)
        return total.item()

    for _ in range(EPOCHS):
        total = 0.0
        for x, y, *weight in batches():
            errors = torch.square(model(x) - y)[:, 0]
            # DistributedDataParallel averages over the ranks. With the weights this is the mean over all rows.
            (errors * weight[0] if weight else errors).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            total += errors.sum().item()
        losses.append(of_all(total) / ROWS)
    return np.array(losses), [parameter.detach().numpy() for parameter in model.parameters()]


hvdata.init()
dataset = hvdata.distribute_dataset(samples, batch="global", remainder="partial", weigh="rows", name="train")
hvdata.serve()
dist.init_process_group("gloo", init_method=f"tcp://{address()}", rank=hvdata.rank(), world_size=hvdata.size())
prove_no_copy(dataset)
results = {way.__name__: train(lambda way=way: way(dataset), distributed=True) for way in (by_dlpack, by_numpy)}

verdict = None
if hvdata.rank() == 0:
    alone, weights_alone = train(lambda: by_numpy(samples()), distributed=False)
    right = True
    for way, (losses, weights) in results.items():
        difference = max(np.max(np.abs(mine - ours)) for mine, ours in zip([alone, *weights_alone], [losses, *weights]))
        print(
            f"{hvdata.size()} ranks of PyTorch, {way} without a copy: loss {losses}, in one process {alone}; largest difference, "
            f"weights included: {difference:.1e}"
        )
        right = right and difference <= CLOSE and losses[-1] < 0.8 * losses[0]
    verdict = tf.repeat(right, hvdata.size())
right = hvdata.scatter(verdict, dtype=tf.bool).numpy()[0]  # all ranks wait here for rank 0
dist.destroy_process_group()
if not right:
    sys.exit("the loss is not that of one process")
