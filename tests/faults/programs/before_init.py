# SPDX-License-Identifier: Apache-2.0
"""Rank 1 ends before init(), for which the others wait: `before_init.py BEFORE END`. With --help all end there."""

import argparse
import contextlib
import os
import sys

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
before, end = "", "--help"
if end not in sys.argv:
    before, end = sys.argv[1:3]
if before == "mpi4py":
    from mpi4py import MPI  # noqa: F401  # initialises MPI
import horovod_data as hvdata  # noqa: E402

if end == "--help":
    argparse.ArgumentParser("before_init.py").parse_args()
if end == "all os._exit(0)":
    print("LEAVES", flush=True)
    os._exit(0)
if rank == 1:
    print("LEAVES", flush=True)
    if end == "os._exit(0)":
        os._exit(0)
    sys.exit(0)
hvdata.init  # imports TensorFlow: that is no part of the wait
with contextlib.suppress(ImportError):
    import horovod.tensorflow  # noqa: F401
print("WAITS", flush=True)
hvdata.init()
print("came through init()", flush=True)
