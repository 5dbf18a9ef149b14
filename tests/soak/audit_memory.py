# SPDX-License-Identifier: Apache-2.0
"""The memory of an audit of so many rows, on 1, 2 and 4 ranks. A rank's part is an N-th. On several ranks, keys also travel.

    python tests/soak/audit_memory.py [--rows 4000000] [--ranks 1 2 4] [--mpirun mpirun]

Prints, for each number of ranks, the most memory that a rank needed between audit() and the report, beyond what it had before. It also
prints the growth for each further row that a rank saw, against an audit of a quarter of the rows. Status 1: an audit that does not find
every row once, or more memory than docs/audit.md promises, in all or for a row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import proof

BATCH = 1000
BEYOND_ROWS = 100 << 20  # as docs/audit.md says
ENOUGH_ROWS = (
    2_000_000  # further rows that a rank saw. With fewer, the figure for a row depends on when memory is given back
)


def status(name: str) -> int:
    """VmRSS, or its maximum VmHWM, in bytes."""
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))


def each_row(ranks: int) -> int:
    """Bytes, as docs/audit.md says: 16 for a row that this rank saw, up to five times that during the report; 16 for a row that it counts."""
    return (3 if ranks == 1 else 5) * 16 + 16


def every_rank(rows: int) -> None:
    import numpy as np

    import horovod_data as hvdata

    hvdata.init()
    list(hvdata.audit([np.arange(BATCH)], key=lambda rows: rows))  # what the first one loads stays
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
    """On rank 0: the most memory, of all ranks, that an audit of so many rows takes beyond what a rank had."""
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
