# SPDX-License-Identifier: Apache-2.0
"""Measured memory, compared with the formula in docs/guarantees.md.

    python benchmarks/memory.py                      # prefetch default, 1, 2, 8; four pipelines; about four minutes
    python benchmarks/memory.py --docs               # and publish it in docs/

Writes memory.json, .md and .png to --out. Status 1: something failed, or took more than the formula allows.
"""

from __future__ import annotations

import sys
from typing import Any

import launch
import machine
from page import LIMIT, OURS, RIVAL, defined, prose, size_name, table, write

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


def window(said: object, step: int) -> int:
    """The most steps of the window. A given number, or for the default as many as fit into BOUND, at least 2."""
    return said if isinstance(said, int) else max(2, min(MOST_STEPS, BOUND // step))


def reader_bytes(prefetch: int, step: int) -> int:
    """The most bytes in the reader: the steps on their way, and the step that waits for credit."""
    return (prefetch + 1) * step


def hands_bytes(step: int) -> int:
    """The most bytes beyond reader_bytes(): the step that ranks use now, and the step that the pipeline makes next.

    On the reader's host, the step that ranks use is in the same memory. The second step may also be the pipeline's
    source.
    """
    return 2 * step


def trainer_bytes(prefetch: int, share: int) -> int:
    """The most bytes in a rank that trains, if batches are messages: the steps that have arrived, and the step in
    use."""
    return (prefetch + 1) * share


def mib(count: float) -> str:
    return f"{count / 2**20:,.1f}"


def main() -> int:
    parser = launch.options(__doc__, seconds=3.0, limit=120)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=64, help="of a global batch")
    parser.add_argument("--row-bytes", type=int, default=256 << 10)
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument(
        "--prefetch", type=int, nargs="+", default=[DEFAULT, 1, 2, 8], help=f"{DEFAULT}: default settings"
    )
    arguments = launch.parsed(parser, seconds=0.3, ranks=2, row_bytes=16 << 10, prefetch=[DEFAULT])
    step = arguments.rows * arguments.row_bytes
    share = step // arguments.ranks
    told: dict[str, Any] = {"machine": machine.describe(), "step": step, "ranks": arguments.ranks}
    results: list[dict[str, Any]] = []
    cases = [(pipeline, prefetch) for pipeline in arguments.pipelines for prefetch in arguments.prefetch]
    # A separate job for each case, because memory that was used once may be kept. With --quick, one job does all cases.
    jobs = [([pipeline], prefetch) for pipeline, prefetch in cases]
    if arguments.quick:
        shared_jobs = [[name for name in arguments.pipelines if (name == MESSAGES) == apart] for apart in (False, True)]
        jobs = [(names, prefetch) for names in shared_jobs if names for prefetch in arguments.prefetch]
    for names, prefetch in jobs:
        results += launch.run(
            "memory",
            arguments.ranks,
            arguments,
            {
                "pipelines": names,
                "rows": arguments.rows,
                "row_bytes": arguments.row_bytes,
                "prefetch": prefetch,
                "keep": KEEP[names == [MESSAGES]],
            },
            env={
                **({"HOROVOD_DATA_PAYLOAD": "message", **GIVEN_BACK} if names == [MESSAGES] else {}),
                **({"HOROVOD_DATA_PREFETCH_MB": str(BOUND >> 20)} if prefetch == DEFAULT else {}),
            },
        )
    told["results"] = results

    rows, bars = [], []
    for pipeline, prefetch in cases:
        group = [r for r in results if (r["pipeline"], r["prefetch"]) == (pipeline, prefetch)]
        if not group:
            continue
        shared = sum(r["shared"] for r in group)
        reader = shared + group[0]["private"]
        steps = window(group[0]["window"], step)
        most = reader_bytes(steps, step) + hands_bytes(step)
        trainer = max((r["private"] for r in group[1:]), default=0)
        trainer_most = trainer_bytes(steps, share)
        holds = reader <= most + SLACK and trainer <= trainer_most + SLACK
        name = (
            f"default: {max(r['widest'] for r in group)} of at most {steps}" if prefetch == DEFAULT else str(prefetch)
        )
        rows.append(
            [
                pipeline,
                name,
                mib(shared),
                mib(group[0]["private"]),
                mib(most),
                mib(trainer),
                mib(trainer_most),
                mib(max(r["resident"] for r in group)),
                "yes" if holds else "no",
            ]
        )
        bars.append((pipeline, name, shared, group[0]["private"], most))
    text = [
        prose(
            f"Global batches have {size_name(step)} ({arguments.rows} rows). {arguments.ranks} ranks train, and rank 0 reads. First ranks "
            "take steps as they come, so they wait and the default window widens. Then each rank keeps each share for 20 ms, or 80 ms with "
            "*messages*, so the reader is always ahead. Figures are peaks in MiB, beyond the memory of the same job with rows of 64 bytes."
        ),
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
        *table(
            [
                "pipeline",
                "prefetch",
                "shared",
                "reader's private",
                "formula",
                "trainer's private",
                "formula",
                "resident",
                "holds",
            ],
            rows,
        ),
    ]

    def draw(pyplot: Any) -> Any:
        figure, axis = pyplot.subplots(figsize=(9, 3))
        names = [f"{pipeline}\nprefetch {prefetch}" for pipeline, prefetch, *_ in bars]
        axis.bar(names, [most / 2**20 for *_, most in bars], width=0.7, color=LIMIT, label="formula")
        axis.bar(names, [shared / 2**20 for *_, shared, _, _ in bars], width=0.4, color=OURS, label="shared")
        axis.bar(
            names,
            [own / 2**20 for *_, own, _ in bars],
            width=0.4,
            color=RIVAL,
            label="reader's private",
            bottom=[shared / 2**20 for *_, shared, _, _ in bars],
        )
        axis.tick_params(axis="x", labelsize=6)
        axis.set_ylabel(f"MiB, steps of {size_name(step)}")
        axis.legend()
        return figure

    summary = table(
        ["pipeline", "prefetch", "MiB of the reader, shared and private", "formula"],
        [[pipeline, prefetch, mib(shared + own), mib(most)] for pipeline, prefetch, shared, own, most in bars],
    )
    write("memory", told, text, summary, arguments, draw)
    return 0 if len(rows) == len(cases) and all(row[-1] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
