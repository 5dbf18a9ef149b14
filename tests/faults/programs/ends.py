# SPDX-License-Identifier: Apache-2.0
"""A verified job with a fault in the middle of an epoch: `ends.py FAULT VICTIM`.

VICTIM is "reader" or a trainer's rank.

On a reader the fault happens in its pipeline, because a dedicated reader runs the user's code there.

Two faults are in a job of loader() without TensorFlow: a process that dies at once, in a job with small elements, and a
trainer that calls sys.exit().
"""

import os
import resource
import signal
import sys
import time

import numpy as np

import horovod_data as hvdata

fault, victim, kib = sys.argv[1], sys.argv[2], float(os.environ["HVDATA_TEST_KIB"])
AT = 5  # the step
hvdata.init()
size = os.environ["HVDATA_TEST_TRAINERS"]


def out_of_memory():
    used = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")][0] << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
    return [np.zeros(1 << 17) for _ in range(100)]  # MemoryError


def system_exit():
    raise SystemExit(3)


FAULTS = {
    "sys.exit(3)": lambda: sys.exit(3),
    "raise SystemExit(3)": system_exit,
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "memory": out_of_memory,
    "closed files": lambda: os.closerange(3, 65536),
}


def meet_the_fault():
    print("FAULT", flush=True)
    FAULTS[fault]()


def rows():
    for number in range(1 << 40):
        if victim == "reader" and number == AT * int(size):
            meet_the_fault()
        yield np.full(int(kib * 256), number, np.float32)  # a new one each: TensorFlow may keep this very memory


def make():
    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([int(kib * 256)], tf.float32))


dies = fault in ("os._exit(0)", "os._exit(3)", "SIGTERM", "SIGKILL") and kib < 1
if dies or (fault == "sys.exit(3)" and victim != "reader"):
    ds = hvdata.loader(rows, batch="per_rank", name="train", verify=True, prefetch=2)
else:
    import tensorflow as tf

    ds = hvdata.distribute_dataset(make, batch="per_rank", name="train", verify=True, prefetch=2)
hvdata.serve()
for step, x in enumerate(ds):
    assert int(x[0]) == step * int(size) + hvdata.rank(), (step, x[0])
    if step == AT and victim == str(hvdata.rank()):
        meet_the_fault()
    time.sleep(0.01)
