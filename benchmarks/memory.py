# SPDX-License-Identifier: Apache-2.0
"""Measured memory, compared with the formula in docs/guarantees.md.

    python benchmarks/memory.py                      # prefetch default, 1, 2, 8; four pipelines; about four minutes
    python benchmarks/memory.py --docs               # and publish it in docs/

Writes memory.json and .md to --out. Status 1: something failed, or took more than the formula allows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import launch
from page import Result, defined, size_name, table, write

PIPELINES = {
    "batch": "it ends with `batch`, which makes its elements in shared memory",
    "ready-made": "it repeats one tensor",
    "flat_map": "it yields tensors in private memory, and does not keep them",
    "messages": "*batch* again, but batches travel as messages, as between hosts",
}
MESSAGES = "messages"
SLACK = 8 << 20  # bytes that allocators round up, and that late threads take
# Settings for *messages*. TensorFlow's allocator in builds with oneDNN, and glibc's, keep freed memory. With these
# settings it goes back at once, so the memory in use shows. But memory then comes page by page, and the reader needs
# longer to be ahead.
KEEP = {False: 0.02, True: 0.08}  # seconds that a rank keeps each share, by whether shares travel as messages
GIVEN_BACK = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}

DEFAULT = 0  # for `prefetch`: no value is given
BOUND, MOST_STEPS = 64 << 20, 64  # limits of the default window (HOROVOD_DATA_PREFETCH_MB): bytes, and steps


def summed(group: list[Result], given: int, ranks: int, step: int) -> Result:
    """The row of the table for one case: the results of its ranks, whose first is the reader."""
    reader, *trainers = group
    # The most steps of the window. The default has as many as fit into BOUND, at least 2.
    steps = given or max(2, min(MOST_STEPS, BOUND // step))
    row = {
        "pipeline": reader["pipeline"],
        "prefetch": str(given) if given else f"default: {max(r['widest'] for r in group)} of at most {steps}",
        "shared": sum(r["shared"] for r in group),
        "private": reader["private"],
        # The steps on their way, the step that waits for credit, the step that ranks use now, and the step that the
        # pipeline makes next. On the reader's host, the step that ranks use is in the same memory.
        "most": (steps + 3) * step,
        "trainer": max(r["private"] for r in trainers),
        # If batches are messages: the steps that have arrived, and the step in use.
        "trainer_most": (steps + 1) * (step // ranks),
        "resident": max(r["resident"] for r in group),
    }
    reads, trains = row["shared"] + row["private"] <= row["most"] + SLACK, row["trainer"] <= row["trainer_most"] + SLACK
    return {**row, "holds": reads and trains}


def mib(what: str) -> Callable[[Result], str]:
    return lambda row: f"{row[what] / 2**20:,.1f}"


COLUMNS = {
    "pipeline": lambda row: row["pipeline"],
    "prefetch": lambda row: row["prefetch"],
    "shared": mib("shared"),
    "reader's private": mib("private"),
    "formula": mib("most"),
    "trainer's private": mib("trainer"),
    "its formula": mib("trainer_most"),
    "resident": mib("resident"),
    "holds": lambda row: "yes" if row["holds"] else "no",
}


def main() -> int:
    # rows: of a global batch. prefetch: DEFAULT for default settings.
    settings = {
        "ranks": 4,
        "rows": 64,
        "row_bytes": 256 << 10,
        "pipelines": list(PIPELINES),
        "prefetch": [DEFAULT, 1, 2, 8],
    }
    quick = {"seconds": 0.3, "ranks": 2, "row_bytes": 16 << 10, "prefetch": [DEFAULT]}
    arguments = launch.parsed(__doc__, quick, **{"seconds": 3.0, "limit": 120.0, **settings})
    step = arguments.rows * arguments.row_bytes
    results, rows = [], []
    # A separate job for each case, because memory that was used once may be kept.
    for pipeline in arguments.pipelines:
        for prefetch in arguments.prefetch:
            given = {"pipelines": [pipeline], "prefetch": prefetch, "keep": KEEP[pipeline == MESSAGES]}
            env = {"HOROVOD_DATA_PAYLOAD": "message", **GIVEN_BACK} if pipeline == MESSAGES else {}
            env |= {"HOROVOD_DATA_PREFETCH_MB": str(BOUND >> 20)} if prefetch == DEFAULT else {}
            group = launch.run("memory", arguments.ranks, arguments, given, env=env)
            results += group
            rows += [summed(group, prefetch, arguments.ranks, step)] if group else []
    text = [
        f"Global batches have {size_name(step)} ({arguments.rows} rows). {arguments.ranks} ranks train, and rank 0 reads. First ranks "
        "take steps as they come, so they wait and the default window widens. Then each rank keeps each share for 20 ms, or 80 ms with "
        "*messages*, so the reader is always ahead. Figures are peaks in MiB, beyond the memory of the same job with rows of 64 bytes.",
        "",
        "The pipelines have no prefetch of their own:",
        *defined({name: PIPELINES[name] for name in arguments.pipelines}),
        "The columns:",
        *defined(
            {
                "Shared": "shared memory of all ranks together",
                "Private": "private memory of the process. With *messages* TensorFlow's and glibc's allocators free memory at once: "
                "`TF_ENABLE_ONEDNN_OPTS=0`, `MALLOC_MMAP_THRESHOLD_`",
                "Formula": "for the reader (prefetch + 1) steps, one step that the ranks use, and one step that the pipeline makes. For a rank "
                "that trains (prefetch + 1) shares",
                "Resident": "the largest peak of a whole process, with TensorFlow",
                "Default": "no argument `prefetch`. The figures are the window at the end, and its limit",
                "Holds": f"yes if the formula holds, within the {size_name(SLACK)} to which allocators round",
            }
        ),
        *table(rows, COLUMNS),
    ]
    return write("memory", arguments, text, step=step, results=results) or int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
