# SPDX-License-Identifier: Apache-2.0
"""What an audit takes of memory: of so many rows, on 1, 2 and 4 ranks. A rank's part is an N-th; on several, keys are also on their way.

    python tests/soak/audit_memory.py [--rows 4000000] [--ranks 1 2 4] [--mpirun mpirun]

For each number of ranks the most that any of them has had, from before audit() to behind the report, beyond what it had before; and how
much more that is than of a quarter of the rows, for each row that a rank saw: what does not grow with them is taken off.
Status 1: an audit that does not find every row once, or more memory than docs/audit.md promises, all in all or for a row.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
BATCH = 1000
BEYOND_ROWS = 100 << 20  # as docs/audit.md says
ENOUGH_ROWS = 2_000_000  # more that a rank saw, to say what each takes: of fewer it depends on when memory goes back


def status(name: str) -> int:
    """VmRSS, or VmHWM, the most that it has been, in bytes."""
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))


def each_row(ranks: int) -> int:
    """Bytes, as docs/audit.md says: 16 for one that this rank saw, up to five times that while the report is made; 16 for one that it counts."""
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
    """The most, of all ranks, that an audit of so many rows takes beyond what a rank had; on rank 0."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--mpirun", default="mpirun")
    arguments = parser.parse_args()
    from ranks.launch import DEFAULTS

    return max(
        subprocess.run(
            [*shlex.split(arguments.mpirun), "-np", str(ranks), sys.executable, __file__],
            env={**DEFAULTS, **os.environ, "HVDATA_AUDIT_ROWS": str(arguments.rows)},
        ).returncode
        for ranks in arguments.ranks
    )


if __name__ == "__main__":
    if "HVDATA_AUDIT_ROWS" in os.environ:
        every_rank(int(os.environ["HVDATA_AUDIT_ROWS"]))
    else:
        sys.exit(main())
