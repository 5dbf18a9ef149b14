# SPDX-License-Identifier: Apache-2.0
"""hvdata.audit finds in one epoch what took weeks of training: five ways to give ranks the wrong rows. Four are
published.

    mpirun -np 4 python examples/audit_published_bugs.py

Each loader has a published bug, and is made for the published number of ranks. If the job has fewer processes, each
process plays several of these ranks, one after another. The job sees the same rows.
"""

import sys

import numpy as np

import horovod_data as hvdata

hvdata.init()
rank, size = hvdata.rank(), hvdata.size()


def batches(rows, of=1024):
    return np.array_split(rows, max(1, -(-len(rows) // of)))


def seed_before_the_stride(stream, rows=2**18, streams=16):
    """sandyresearch/parcae #10: each of 16 ranks shuffles by a seed of its own, and then takes every 16th row."""
    return batches(np.random.default_rng(stream).permutation(rows)[stream::streams])


def sharded_twice(stream, rows=4096, streams=8):
    """RETURNN #1738: the files are shared by the ranks, and then each rank takes its share of its share."""
    mine = np.arange(rows)[stream::streams]
    return batches(mine[stream::streams])


def files_of_29(stream, streams=8):
    """RETURNN #1570: 29 files on 8 ranks, 4 to each but the last, which has 1. All stop when that one stops."""
    files = np.arange(29)
    share = [files[4 * other : 4 * other + 4] for other in range(streams)]
    steps = min(map(len, share))
    return [share[stream][step : step + 1] for step in range(steps)]


def padded_by_repeating(stream, rows=4001, streams=8):
    """As a DistributedSampler that keeps the last rows: it wraps around, so that all have the same number of steps."""
    each = -(-rows // streams)
    return batches(np.resize(np.arange(rows), each * streams)[stream::streams])


def everybody_batch_0(stream, rows=4096):
    """Nothing tells the ranks apart: each reads the first batch."""
    return [np.arange(rows)[:64]]


def audited(loader, streams, rows):
    """The report of an epoch. The ranks of this job play the ranks of the loader."""
    mine = [batch for stream in range(rank, streams, size) for batch in loader(stream)]
    audit = hvdata.audit(mine, key=lambda row: row, reference=range(rows))
    for _ in audit:
        pass
    report = audit.report()
    if rank == 0:
        print(f"\n{loader.__doc__}\n\n{report}")
    return report


def expect(what, found, expected, within=0.0, word="published"):
    if abs(found - expected) > within:
        sys.exit(f"rank {rank}: {what}: found {found}, {word} {expected}")
    if rank == 0:
        print(f"-> {what}: {found:g}, {word} {expected:g}{f' +- {within:g}' if within else ''}")


report = audited(seed_before_the_stride, 16, 2**18)
expect("% of the rows never seen", 100 * report.never / report.reference, 36, within=1)

report = audited(sharded_twice, 8, 4096)
expect("rows seen, of 4096", report.distinct, 4096 // 8)

report = audited(files_of_29, 8, 29)
expect("files read, of 29", report.distinct, 8)

report = audited(padded_by_repeating, 8, 4001)
expect("rows that came twice", report.times[2], 7, word="expected")

report = audited(everybody_batch_0, size, 4096)
expect(f"rows that all {size} ranks saw, and no others", report.times[size], 64, word="expected")

if rank == 0:
    print("\nall five were found")
