# SPDX-License-Identifier: Apache-2.0
"""PyTorch on several ranks, fed by an RLDS pipeline in tf.data. One process runs it, with one shuffle buffer for all.

    HOROVOD_DATA_READERS=1 mpirun -np 5 python examples/rlds_torch.py    4 ranks train, one process reads
    mpirun -np 4 python examples/rlds_torch.py                           rank 0 reads, too

Only the process that reads imports TensorFlow. DistributedDataParallel trains. At the end, the ranks compare: in each
epoch each frame came once, on one rank.
"""

import os
import sys

import torch
import torch.distributed as dist

import horovod_data as hvdata

BATCH, EPOCHS, FRAMES = 8, 3, 960
BUFFER = 500  # decoded frames in the shuffle buffer


def batches():
    """Called on the reader only."""
    from rlds_data import frames, write  # these import TensorFlow

    write()
    return frames(buffer=BUFFER).batch(BATCH)


class Policy(torch.nn.Module):
    """The action for a picture and the state of the joints."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(3 + 7, 7)

    def forward(self, image, state):
        colours = image.float().mean(dim=(1, 2)) / 255
        return self.last(torch.cat([colours, state], dim=1))


hvdata.init()
loader = hvdata.loader(batches, batch="per_rank", to="torch", name="train")
hvdata.serve()  # a dedicated reader stays here

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # all ranks are on one host
os.environ.setdefault("MASTER_PORT", "29531")
dist.init_process_group("gloo", rank=hvdata.rank(), world_size=hvdata.size())
torch.manual_seed(1)
policy = torch.nn.parallel.DistributedDataParallel(Policy())
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
losses, seen = [], []
for _ in range(EPOCHS):
    each, ids = [], []
    for batch in loader:
        loss = torch.square(policy(batch["image"], batch["state"]) - batch["action"]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        each.append(loss.detach())
        ids += batch["id"].tolist()
    mean = torch.stack(each).mean() / hvdata.size()
    dist.all_reduce(mean)  # all ranks have made as many steps
    losses.append(mean.item())
    seen.append(ids)

everybody = [None] * hvdata.size()
dist.all_gather_object(everybody, ("tensorflow" in sys.modules, hvdata.is_reader(), seen))
dist.destroy_process_group()
for epoch in range(EPOCHS):
    ids = sorted(sum((seen[epoch] for *_, seen in everybody), []))
    if ids != list(range(FRAMES)):
        sys.exit(f"epoch {epoch}: not every frame came once: {len(ids)} came, {len(set(ids))} different ones")
if any(imported is not reads for imported, reads, _ in everybody):
    sys.exit(f"TensorFlow is not where it should be: {[imported for imported, *_ in everybody]}")
if losses[-1] > 0.1 * losses[0]:
    sys.exit(f"the policy learns nothing: {losses}")
if hvdata.rank() == 0:
    trained = [rank for rank, (imported, *_) in enumerate(everybody) if imported]
    where = f"on rank {trained[0]}, which reads" if trained else "on no rank that trains"
    print(f"{hvdata.size()} ranks of PyTorch: each of {FRAMES} frames once in each epoch; loss {losses}")
    print(f"TensorFlow is imported {where}")
