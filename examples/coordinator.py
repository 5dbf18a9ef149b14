# SPDX-License-Identifier: Apache-2.0
"""The address where the processes of JAX or PyTorch meet, for keras_jax.py, keras_torch.py, jax_ranks.py and torch_ranks.py."""

import socket


def address() -> str:
    """Rank 0's host, and a free port. All processes call it between init() and serve(), dedicated readers too."""
    from mpi4py import MPI  # after init(), which starts and ends MPI

    offer = None
    if MPI.COMM_WORLD.rank == 0:  # this rank always trains
        with socket.socket() as free:
            free.bind(("", 0))
            offer = socket.gethostname(), free.getsockname()[1]
    host, port = MPI.COMM_WORLD.bcast(offer)
    return f"{'127.0.0.1' if host == socket.gethostname() else host}:{port}"
