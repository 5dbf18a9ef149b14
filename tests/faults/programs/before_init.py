# SPDX-License-Identifier: Apache-2.0
"""Rank 1 ends before init(), and the others wait for it there: `before_init.py END`.

With --help all ranks end there.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import threading

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
end = "--help"
if end not in sys.argv:
    end = sys.argv[1]
import horovod_data as hvdata  # noqa: E402

if end == "--help":
    argparse.ArgumentParser("before_init.py").parse_args()
if rank == 1:
    if end == "after a child":  # whose memory counts as that of its parent until it calls exec()
        memory = bytearray(200 << 20)
        memory[::4096] = bytes(len(memory) // 4096)
        subprocess.run(["true"], check=True)
    if end == "with a thread":  # Python waits for it
        threading.Timer(0.5, lambda: None).start()
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
