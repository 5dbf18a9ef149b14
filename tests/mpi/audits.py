# SPDX-License-Identifier: Apache-2.0
"""For tests of hvdata.audit: rows, and a pass over them."""

import numpy as np
from together import results

ROWS = 48


def passed(comm, audited):
    """The report of one pass over it, which is the same on all ranks."""
    got = results(comm, lambda: (len(list(audited)), audited.report()))
    first = got[0][1]
    for _, report in got:
        assert str(report) == str(first) and report.pairs == first.pairs
    return first


def numbers(comm, rows=ROWS):
    """This rank's share of the numbers, in batches of 4."""
    mine = list(range(comm.rank, rows, comm.size))
    return [np.array(mine[i : i + 4]) for i in range(0, len(mine), 4)]


def same(rows):
    """A key that is the row itself."""
    return rows
