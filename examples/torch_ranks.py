# SPDX-License-Identifier: Apache-2.0
"""PyTorch on several ranks, with one reader and no TensorFlow. DistributedDataParallel trains.

    mpirun -np 4 python examples/torch_ranks.py

One process runs the DataLoader for all ranks. The tensors of a batch lie in the memory in which the batch came. At the
end rank 0 trains alone on the same global batches, and compares. Loss and weights must be the same as with one process.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist
from coordinator import address
from torch.utils.data import DataLoader, TensorDataset

import horovod_data as hvdata

ROWS, BATCH, EPOCHS, CLOSE = 1000, 96, 3, 1e-5  # the last batch of an epoch has 40 rows


def samples() -> DataLoader:
    """Global batches. Only readers call this function, and rank 0 to compare."""
    random = torch.Generator().manual_seed(7)
    x = torch.randn(ROWS, 8, generator=random)
    return DataLoader(TensorDataset(x, torch.tanh(x.sum(dim=1, keepdim=True))), BATCH, shuffle=True, generator=random)


def train(batches, distributed: bool):
    """The loss of each epoch, and the weights at the end."""
    # Other weights on each rank: DistributedDataParallel sends rank 0's to all.
    torch.manual_seed(1 + distributed * hvdata.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(EPOCHS):
        total = torch.zeros((), dtype=torch.float64)
        for x, y, *weight in batches:
            errors = torch.square(model(x) - y)[:, 0]
            # DistributedDataParallel averages over the ranks. With the weights this is the mean over all rows.
            (errors * weight[0] if weight else errors).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            total += errors.detach().sum()
        if distributed:
            dist.all_reduce(total)
        losses.append(total.item() / ROWS)
    return np.array(losses), [parameter.detach().numpy() for parameter in model.parameters()]


hvdata.init()
batches = hvdata.loader(samples, to="torch", batch="global", remainder="partial", weigh="rows", name="train")
meeting = address()
hvdata.serve()

dist.init_process_group("gloo", init_method=f"tcp://{meeting}", rank=hvdata.rank(), world_size=hvdata.size())
losses, weights = train(batches, distributed=True)
right = torch.ones(1)
if hvdata.rank() == 0:
    alone, weights_alone = train(samples(), distributed=False)
    difference = max(np.max(np.abs(mine - ours)) for mine, ours in zip([alone, *weights_alone], [losses, *weights]))
    said = f"{hvdata.size()} ranks of PyTorch: loss {losses}, in one process {alone}"
    print(f"{said}; largest difference, weights included: {difference:.1e}")
    right *= difference <= CLOSE and losses[-1] < 0.8 * losses[0]
dist.broadcast(right, src=0)  # all ranks wait here for rank 0
dist.destroy_process_group()
if not right:
    sys.exit("the loss is not that of one process")
if "tensorflow" in sys.modules:
    sys.exit("this rank has imported TensorFlow")
