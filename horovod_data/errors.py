# SPDX-License-Identifier: Apache-2.0
"""The one style of every error text: where it happened, what happened, what to do."""

from __future__ import annotations


def explain(what: str, to_do: str = "", where: str = "") -> str:
    """Returns `[where] what. To do.`: the parts that are empty are left out.

    `where` names as much as is known of reader or rank and host, channel, epoch and step, as the C++ core does:
    `rank 1 on node7, channel train, epoch 2, step 17`.
    """
    sentences = (part if part.endswith((".", "!", "?")) else part + "." for part in (what, to_do) if part)
    return (f"[{where}] " if where else "") + " ".join(sentences)


def place(rank: int, host: str) -> str:
    """The `where` of a process: its rank in the communicator that was given to init(), and its host."""
    return f"rank {rank} on {host}"
