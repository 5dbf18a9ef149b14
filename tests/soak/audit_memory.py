# SPDX-License-Identifier: Apache-2.0
"""Measures the memory of an audit on 1, 2 and 4 ranks. Each of N ranks sees an N-th of the rows.

    python tests/soak/audit_memory.py [--rows 4000000] [--ranks 1 2 4] [--mpirun mpirun]

For each number of ranks, it prints how much the memory of a rank grew at most between audit() and the report. It also
prints the bytes for each further row that a rank saw, compared with an audit of a quarter of the rows.

Status 1: an audit did not find every row once, or took more memory than docs/audit.md promises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import proof

BATCH = 1000
BEYOND_ROWS = 100 << 20  # as docs/audit.md says
# Further rows that a rank saw. With fewer, the figure for a row depends on when memory is given back.
ENOUGH_ROWS = 2_000_000


def status(name: str) -> int:
    """Returns VmRSS or its maximum VmHWM, in bytes."""
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))


def each_row(ranks: int) -> int:
    """Returns the bytes for a row, as docs/audit.md gives them.

    A row that this rank saw takes 16, and up to five times that during the report. A row that it counts takes 16.
    """
    return (3 if ranks == 1 else 5) * 16 + 16


def every_rank(rows: int) -> None:
    import numpy as np

    import horovod_data as hvdata

    hvdata.init()
    list(hvdata.audit([np.arange(BATCH)], key=lambda rows: rows))  # modules that the first audit loads stay in memory
    few, many = (most_of(count) for count in (rows // 4, rows))
    if hvdata.rank() == 0:
        ranks = hvdata.size()
        seen = (rows - rows // 4) / ranks
        for_a_row = (many - few) / seen
        limit = BEYOND_ROWS + each_row(ranks) * rows // ranks
        print(
            f"[audit_memory] {rows:,} rows on {ranks} rank{'s' * (ranks > 1)}: every row once; at most {many >> 20} MiB on a rank, of at most "
            f"{limit >> 20}; {for_a_row:.0f} bytes more for each row more that it saw, of at most {each_row(ranks)}",
            flush=True,
        )
        if many > limit or (for_a_row > each_row(ranks) and seen >= ENOUGH_ROWS):
            raise AssertionError("more memory than docs/audit.md promises")
    hvdata.shutdown()


def most_of(rows: int) -> int:
    """Returns on rank 0 how many bytes the memory of a rank grew at most in an audit of this many rows."""
    import numpy as np

    import horovod_data as hvdata

    rank, size = hvdata.rank(), hvdata.size()
    numbers = range(rank, rows, size)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = status("VmRSS")
    batches = (np.arange(numbers[i], min(rows, numbers[i] + BATCH * size), size) for i in range(0, len(numbers), BATCH))
    audited = hvdata.audit(batches, key=lambda rows: rows, reference=rows)
    for _ in audited:
        pass
    verdict = audited.report().verdict
    if verdict != "every row once":
        raise AssertionError(verdict)
    peak = status("VmHWM") - before
    peaks = hvdata.gather(np.array([peak], np.int64), root=0)
    return int(max(peaks)) if rank == 0 else 0


def jobs(rows: int, ranks: list[int]) -> Iterator[proof.Job]:
    for each in ranks:
        yield each, [rows], {}


if __name__ == "__main__":
    sys.exit(proof.main(__doc__, __file__, every_rank, jobs, rows=4_000_000, ranks=[1, 2, 4]))
