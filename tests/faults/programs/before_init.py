# SPDX-License-Identifier: Apache-2.0
"""Rank 1 ends before init(), for which the others wait: `before_init.py BEFORE END`."""

import os
import sys

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
before, end = sys.argv[1:3]
if before == "mpi4py":
    from mpi4py import MPI  # noqa: F401: initialises MPI
import horovod_data as hvdata

if rank == 1:
    print("LEAVES", flush=True)
    if end == "os._exit(0)":
        os._exit(0)
    sys.exit(0)
hvdata.init()
print("came through init()", flush=True)
