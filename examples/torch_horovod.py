# SPDX-License-Identifier: Apache-2.0
"""Horovod with PyTorch, with one reader and no TensorFlow. hvd.DistributedOptimizer averages the gradients.

    mpirun -np 4 python examples/torch_horovod.py

One process runs the DataLoader for all ranks. At the end rank 0 trains alone on the same global batches, and compares.
The loss and the weights must be the same as with one process.
"""

import sys

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset

import horovod_data as hvdata

ROWS, BATCH, EPOCHS, CLOSE = 1000, 96, 3, 1e-5  # the last batch of an epoch has 40 rows


def samples() -> DataLoader:
    """Global batches. Only readers call this function, and rank 0 to compare."""
    random = torch.Generator().manual_seed(7)
    x = torch.randn(ROWS, 8, generator=random)
    return DataLoader(TensorDataset(x, torch.tanh(x.sum(dim=1, keepdim=True))), BATCH, shuffle=True, generator=random)


def new_model(seed: int):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, batches):
    """The sum of the squared errors of this rank's rows, for each epoch."""
    totals = torch.zeros(EPOCHS, dtype=torch.float64)
    for epoch in range(EPOCHS):
        for x, y, *weight in batches:
            optimizer.zero_grad()
            errors = torch.square(model(x) - y)[:, 0]
            # Horovod averages over the ranks. With the weights this is the mean over all rows of the step.
            (errors * weight[0] if weight else errors).mean().backward()
            optimizer.step()
            totals[epoch] += errors.detach().sum()
    return totals


hvdata.init()  # initialises Horovod on the ranks that train
batches = hvdata.loader(samples, to="torch", batch="global", remainder="partial", weigh="rows", name="train")
hvdata.serve()

model, optimizer = new_model(seed=1 + hvd.rank())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
losses = hvd.allreduce(train(model, optimizer, batches), op=hvd.Sum) / ROWS

right = True
if hvd.rank() == 0:
    alone, its_optimizer = new_model(seed=1)
    losses_alone = train(alone, its_optimizer, samples()) / ROWS
    pairs = zip([losses_alone, *alone.parameters()], [losses, *model.parameters()])
    difference = max(torch.max(torch.abs(mine - ours)).item() for mine, ours in pairs)
    said = f"{hvd.size()} ranks of Horovod with PyTorch: loss {losses.numpy()}, in one process {losses_alone.numpy()}"
    print(f"{said}; largest difference, weights included: {difference:.1e}")
    right = difference <= CLOSE and losses[-1] < 0.8 * losses[0]
if not hvd.broadcast_object(bool(right), root_rank=0):  # all ranks wait here for rank 0
    sys.exit("the loss is not that of one process")
if "tensorflow" in sys.modules:
    sys.exit("this rank has imported TensorFlow")
