# SPDX-License-Identifier: Apache-2.0
"""Decides which processes of the communicator read and which train. Pure: no MPI, no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from ..errors import explained


@dataclasses.dataclass(frozen=True)
class Layout:
    """For each rank of the communicator: its index among the readers, its index among the trainers, and its group.

    -1: the rank does not read, or does not train.

    Batches travel within a group. There is one group for the whole job, or one group for each host.
    """

    reader_index: tuple[int, ...]
    trainer_index: tuple[int, ...]
    group: tuple[int, ...]

    @property
    def readers(self) -> tuple[int, ...]:
        """The ranks of the communicator that read, by reader index."""
        return tuple(rank for rank, index in enumerate(self.reader_index) if index >= 0)

    @property
    def trainers(self) -> tuple[int, ...]:
        """The ranks of the communicator that train, by trainer index."""
        return tuple(rank for rank, index in enumerate(self.trainer_index) if index >= 0)

    def keepers(self, hosts: Sequence[str]) -> tuple[int, ...]:
        """The processes that keep the rows of cache="job": one on each host, by their numbers.

        A host's keeper is its first reader, otherwise its first trainer. The host of reader 0 comes first, and then the
        other hosts in the order of the ranks. The C++ core has the same rule (csrc/base/world.cc).
        """
        of_host: dict[str, int] = {}
        for rank in (*self.readers, *self.trainers):
            of_host.setdefault(hosts[rank], rank)
        return tuple(of_host[host] for host in dict.fromkeys([hosts[self.readers[0]], *hosts]))

    def name(self, rank: int, host: str) -> str:
        """Names a process as error texts do (`where` in explained()).

        A trainer has its rank, a dedicated reader its number. The C++ core uses the same form.
        """
        trainer = self.trainer_index[rank]
        return f"rank {trainer} on {host}" if trainer >= 0 else f"reader {self.reader_index[rank]} on {host}"

    def group_trainers(self, rank: int) -> tuple[int, ...]:
        """The trainers of the group of `rank`, as ranks of the communicator.

        A global batch is cut for these trainers.
        """
        return tuple(trainer for trainer in self.trainers if self.group[trainer] == self.group[rank])

    def sizes(self, rank: int) -> tuple[int, int, int]:
        """The number of readers, of trainers, and of trainers in the group of `rank`."""
        return len(self.readers), len(self.trainers), len(self.group_trainers(rank))


def make_layout(
    hosts: Sequence[str], readers: int = 0, readers_per_node: Optional[int] = None, embedded: bool = False
) -> Layout:
    """Decides which processes read and which train.

    Dedicated readers are the last ranks of the job or of each host, so the trainers before them keep their numbers.
    Trainers and readers are numbered in the order of their ranks.

    Args:
      hosts: the host name of every rank of the communicator.
      readers: 0: rank 0 reads and trains. R > 0: the last R ranks only read.
      readers_per_node: if it is not None, `readers` is ignored. The last rank of each host only reads, for the trainers
        of its host.
      embedded: with readers_per_node, the first rank of each host is the reader, and it also trains.

    Raises:
      ValueError: no process would be left to train.
    """
    size = len(hosts)
    names = list(dict.fromkeys(hosts))
    groups, each = [list(range(size))], readers
    if readers_per_node is not None:
        groups = [[rank for rank in range(size) if hosts[rank] == host] for host in names]
        each = 0 if embedded else readers_per_node
    for group in groups:
        if each >= len(group):
            raise _too_few(len(group), each, None if readers_per_node is None else hosts[group[0]])
    # A reader that is not dedicated is the first rank of its group.
    reading = {rank for group in groups for rank in (group[-each:] if each else group[:1])}
    training = set(range(size)) - (reading if each else set())
    group_of = [0 if readers_per_node is None else names.index(host) for host in hosts]
    return Layout(_numbered(size, reading), _numbered(size, training), tuple(group_of))


def _numbered(size: int, chosen: set[int]) -> tuple[int, ...]:
    order = {rank: index for index, rank in enumerate(sorted(chosen))}
    return tuple(order.get(rank, -1) for rank in range(size))


def _too_few(processes: int, readers: int, host: Optional[str]) -> ValueError:
    ours = f"{processes} process{'' if processes == 1 else 'es'}"
    if host is not None:
        return explained(
            ValueError,
            f"readers_per_node={readers} leaves no process to train on host {host}, which runs {ours}",
            f"Start at least {readers + 1} processes on every host, or let each host's first trainer read as well: "
            "embedded=True",
        )
    return explained(
        ValueError,
        f"readers={readers} sets {readers} process{'' if readers == 1 else 'es'} aside for reading, which leaves none to "
        f"train: this job has {ours}",
        f"At least {readers + 1} are needed: for N trainers start N+{readers} processes, "
        f"`mpirun -np {readers + 1} python train.py` or more",
    )
