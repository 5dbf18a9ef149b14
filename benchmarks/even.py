# SPDX-License-Identifier: Apache-2.0
"""Even steps: how long all ranks wait for the rank with the most tokens, with even_batches and with other ways.

    python benchmarks/even.py                        # about 3 minutes
    python benchmarks/even.py --docs                 # and publish it in docs/

One process makes the batches of all ranks, and no rank trains: the time of a step is the padded size of its largest
batch. Writes even.json and .md to --out. Status 1: even_batches misses an aim.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import launch
import numpy as np
import tensorflow as tf
from page import Result, defined, table, write

import horovod_data as hvdata

MEDIAN, LONGEST = 100, 4000
BUDGET, PLAIN, BUCKETS = "even_batches, max_cost", "plain batches", "buckets by length"


def rows_of(costs: np.ndarray) -> tf.data.Dataset:
    """Rows of tokens, each of which is the length of its row."""
    return tf.data.Dataset.from_tensor_slices(costs).map(lambda length: tf.fill([length], length))


def even(rows: tf.data.Dataset, ranks: int, arguments: argparse.Namespace, **size: int) -> tf.data.Dataset:
    return rows.apply(hvdata.even_batches(tf.size, ranks=ranks, window=arguments.window, **size))


def buckets(rows: tf.data.Dataset, tokens: int) -> tf.data.Dataset:
    ends = [25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400, LONGEST + 1]
    return rows.bucket_by_sequence_length(tf.size, ends, [max(1, tokens // end) for end in [*ends, LONGEST]])


# Each takes the lengths of the rows, the rows of a batch that has `--tokens` tokens on average, the ranks and the
# arguments.
WAYS: dict[str, Callable[[np.ndarray, int, int, argparse.Namespace], tf.data.Dataset]] = {
    BUDGET: lambda costs, size, ranks, arguments: even(rows_of(costs), ranks, arguments, max_cost=arguments.tokens),
    "even_batches, batch_size": lambda costs, size, ranks, arguments: even(
        rows_of(costs), ranks, arguments, batch_size=size
    ),
    PLAIN: lambda costs, size, ranks, arguments: rows_of(costs).padded_batch(size),
    BUCKETS: lambda costs, size, ranks, arguments: buckets(rows_of(costs), arguments.tokens),
    "all rows sorted": lambda costs, size, ranks, arguments: rows_of(np.sort(costs)).padded_batch(size),
}


def measured(name: str, sigma: float, ranks: int, arguments: argparse.Namespace) -> Result:
    drawn = np.random.default_rng(1).lognormal(np.log(MEDIAN), sigma, arguments.rows)
    costs = np.clip(drawn, 1, LONGEST).astype(np.int64)
    dataset = WAYS[name](costs, max(1, int(arguments.tokens / costs.mean())), ranks, arguments)
    sizes, real = [], []
    began = time.monotonic()
    for batch in dataset.as_numpy_iterator():
        sizes.append(batch.size)
        real.append(int(np.sum(batch[:, 0])))
    seconds = time.monotonic() - began
    assert sum(real) == costs.sum(), f"{name} lost rows"
    whole = len(sizes) // ranks * ranks
    steps = np.reshape(sizes[:whole], [-1, ranks])
    last = max(sizes[whole:], default=0)  # the other ranks wait in the last step
    return {
        "name": name,
        "sigma": sigma,
        "ranks": ranks,
        "steps": len(steps) + bool(last),
        "epoch": int(steps.max(1).sum() + last),
        "uneven": float(np.mean(steps.max(1) / steps.mean(1))),
        "padding": sum(sizes) / sum(real) - 1,
        "fill": float(np.mean(sizes) / arguments.tokens) if name in (BUDGET, BUCKETS) else None,
        "rows_per_second": arguments.rows / seconds,
    }


COLUMNS = {
    "": lambda r: r["name"],
    "max / mean": lambda r: f"{r['uneven']:.3f}",
    "epoch": lambda r: f"{1 / r['faster']:.3f}",
    "padding": lambda r: f"{100 * r['padding']:.1f}%",
    "fill": lambda r: f"{100 * r['fill']:.1f}%" if r["fill"] else "",
    "steps": lambda r: f"{r['steps']:,}",
    "rows per second": lambda r: f"{r['rows_per_second']:,.0f}",
}


def main() -> int:
    # tokens: of a batch; window: the rows that even_batches collects
    settings = {"ranks": [4, 8], "sigmas": [1.0, 0.6], "rows": 50_000, "tokens": 16384, "window": 10_000}
    arguments = launch.parsed(__doc__, {"rows": 6000, "tokens": 4096, "window": 3000}, **settings)
    text = [
        f"The data has {arguments.rows:,} rows of tokens of log-normal lengths, with a median of {MEDIAN} and at most {LONGEST}. "
        f"The window has {arguments.window:,} rows. A step has as many consecutive batches as there are ranks.",
        *defined(
            {
                "max_cost, buckets by length": f"a batch has at most {arguments.tokens:,} tokens with padding. Buckets are those of "
                "`bucket_by_sequence_length`",
                "batch_size, plain batches, all rows sorted": "a batch has as many rows as have that many tokens on average. Plain "
                "batches are those of `padded_batch`. In the last way `padded_batch` follows a sort of the whole data",
                "Max / mean": "the largest padded size in a step over the mean size in that step. The figure is the mean over all steps",
                "Epoch": "the sum of the largest padded sizes of all steps. With plain batches it is 1",
                "Padding": "padding over real tokens",
                "Fill": "the mean padded size of a batch over the budget",
                "Rows per second": "the speed of one process that does nothing else",
            }
        ),
    ]
    results = []
    for sigma in arguments.sigmas:
        for ranks in arguments.ranks:
            group = [measured(name, sigma, ranks, arguments) for name in WAYS]
            plain_epoch = next(result["epoch"] for result in group if result["name"] == PLAIN)
            for result in group:
                result["faster"] = plain_epoch / result["epoch"]
            text += ["", f"**Sigma {sigma:g}, {ranks} ranks**", *table(group, COLUMNS)]
            results += group
    missed = [
        result
        for result in results
        if result["name"] == BUDGET
        and (result["uneven"] > 1.05 or result["faster"] < 1.8 or result["padding"] > 0.05 or result["fill"] < 0.97)
    ]
    return write("even", arguments, text, results=results) or int(bool(missed) and not arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
