# SPDX-License-Identifier: Apache-2.0
"""The address where the processes of JAX or PyTorch meet. keras_jax.py, keras_torch.py and torch_ranks.py use it."""

import socket

import tensorflow as tf

import horovod_data as hvdata


def address() -> str:
    """Rank 0's host, and a free port. Rank 0 sends them to the other ranks."""
    offer = None
    if hvdata.rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            offer = tf.constant([[socket.gethostname(), str(free.getsockname()[1])]] * hvdata.size())
    [[host, port]] = hvdata.scatter(offer, dtype=tf.string).numpy().astype(str)
    return f"{'127.0.0.1' if host == socket.gethostname() else host}:{port}"
