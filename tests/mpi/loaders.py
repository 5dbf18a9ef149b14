# SPDX-License-Identifier: Apache-2.0
"""For tests of loader()."""

from together import on_reader, on_trainers


class Stream:
    """An iterable without a length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def loads(hvdata, make, **arguments):
    """A loader of what `make` makes on the reader."""
    return hvdata.loader(on_reader(hvdata, make), **{"batch": "per_rank", **arguments})


def of_epoch(hvdata, comm, loader):
    """The numbers that all trainers get in an epoch, sorted."""
    return sorted(x for mine in on_trainers(hvdata, comm, lambda: [x.item() for x in loader]) for x in mine)
