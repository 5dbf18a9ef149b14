# SPDX-License-Identifier: Apache-2.0
"""What an audit takes of memory: of so many rows, on 1, 2 and 4 ranks. A rank's part is an N-th; on several, keys are also on their way.

    python tests/soak/audit_memory.py [--rows 4000000] [--ranks 1 2 4] [--mpirun mpirun]

For each number of ranks the most that any of them has had, from before audit() to behind the report, beyond what it had before.
Status 1: an audit that does not find every row once, or more memory than docs/audit.md promises.
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


def status(name: str) -> int:
    """VmRSS, or VmHWM, the most that it has been, in bytes."""
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))


def every_rank(rows: int) -> None:
    import horovod_data as hvdata
    import numpy as np

    hvdata.init()
    rank, size = hvdata.rank(), hvdata.size()
    numbers = range(rank, rows, size)
    list(hvdata.audit([np.arange(BATCH)], key=lambda rows: rows))  # what the first one loads stays
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = status("VmRSS")
    batches = (np.arange(numbers[i], min(rows, numbers[i] + BATCH * size), size) for i in range(0, len(numbers), BATCH))
    audited = hvdata.audit(batches, key=lambda rows: rows, reference=rows)
    for _ in audited:
        pass
    report = audited.report()
    peak = status("VmHWM") - before
    peaks = hvdata.gather(np.array([peak], np.int64), root=0)
    if rank == 0:
        most = int(max(peaks))
        limit = BEYOND_ROWS + ((3 if size == 1 else 5) * 16 + 16) * len(numbers)
        print(f"[audit_memory] {rows:,} rows on {size} rank{'s' * (size > 1)}: {report.verdict}; at most {most >> 20} MiB on a rank, "
              f"{most / len(numbers):.0f} bytes for each row that it saw; the limit is {limit >> 20} MiB", flush=True)
        if report.verdict != "every row once" or most > limit:
            raise AssertionError("not every row once" if most <= limit else "more memory than docs/audit.md promises")
    hvdata.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--mpirun", default="mpirun")
    arguments = parser.parse_args()
    from ranks.launch import DEFAULTS

    return max(subprocess.run([*shlex.split(arguments.mpirun), "-np", str(ranks), sys.executable, __file__],
                              env={**DEFAULTS, **os.environ, "HVDATA_AUDIT_ROWS": str(arguments.rows)}).returncode
               for ranks in arguments.ranks)


if __name__ == "__main__":
    if "HVDATA_AUDIT_ROWS" in os.environ:
        every_rank(int(os.environ["HVDATA_AUDIT_ROWS"]))
    else:
        sys.exit(main())
