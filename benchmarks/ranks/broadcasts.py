# SPDX-License-Identifier: Apache-2.0
"""Rank 0 sends an array to all ranks: by torch.distributed with gloo, and without PyTorch by MPI."""

from __future__ import annotations

import importlib.util
import os
import socket
from typing import Any

import numpy as np

NAME = (
    "`torch.distributed.broadcast`, gloo"
    if importlib.util.find_spec("torch")
    else "`MPI_Bcast`, because PyTorch is missing"
)


def join_torch(comm: Any) -> Any:
    """torch.distributed, with a group of all ranks. None: PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch.distributed as dist

    if not dist.is_initialized():
        port = None
        if comm.rank == 0:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(comm.bcast(port))}
        place = {"RANK": comm.rank, "LOCAL_RANK": comm.rank, "WORLD_SIZE": comm.size, "LOCAL_WORLD_SIZE": comm.size}
        os.environ.update(address, **{name: str(number) for name, number in place.items()})
        dist.init_process_group("gloo")
    return dist


class Broadcasts:
    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._dist = join_torch(comm)

    def __call__(self, array: Any) -> Any:
        """The array of rank 0. On other ranks `array` has its shape and type, and gets its contents."""
        if self._dist is None:
            self._comm.Bcast(np.ascontiguousarray(array))
            return array
        import torch

        self._dist.broadcast(torch.from_numpy(array), src=0)
        return array
