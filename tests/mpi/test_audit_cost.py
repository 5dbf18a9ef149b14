# SPDX-License-Identifier: Apache-2.0
"""What an audit sends. Its memory: tests/soak/audit_memory.py."""

import numpy as np
import pytest
from audits import passed
from together import results

pytestmark = pytest.mark.world(np=3)


def test_each_key_travels_once(hvdata, comm):
    """As with MPI's Alltoallv: 16 bytes for each key, to the rank that counts it, which for an N-th of them is their
    own."""
    rows = 60_000
    audited = hvdata.audit(
        np.array_split(np.arange(comm.rank, rows, comm.size), 10), key=lambda rows: rows, reference=rows
    )

    def sent():
        counters = hvdata.stats()
        return sum(counters[f"payload_bytes_{way}"] for way in ("inline", "arena", "message"))

    before = sum(results(comm, sent))
    assert passed(comm, audited).verdict == "every row once"
    keys = 16 * rows * (comm.size - 1) / comm.size
    more = 16_000 * comm.size**2  # what each says to all of what it has counted: however many rows there are
    assert 0.95 * keys <= sum(results(comm, sent)) - before <= 1.05 * keys + more
