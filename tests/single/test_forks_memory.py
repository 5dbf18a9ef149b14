# SPDX-License-Identifier: Apache-2.0
"""A forked child shares the memory of its parent, so our code in the child touches few objects."""

import subprocess
import sys

SCRIPT = """
import gc, os, re
import tensorflow as tf
from horovod_data.ending import forks

forks.install(lambda dataset: [])
iterator = iter(tf.data.Dataset.range(3))  # which a child must keep
heap = [[number] for number in range(400_000)]  # about 36 MB of objects that the garbage collector knows
gc.collect()
gc.freeze()  # as servers do that fork

def own_mib():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(kib) for kib in re.findall(r"Private_Dirty: *(\\d+)", file.read())) >> 10

if (child := os.fork()) == 0:
    print(own_mib(), gc.get_freeze_count() > 400_000, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_child_copies_little_of_its_parents_memory():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mib, still_frozen = done.stdout.split()
    assert int(mib) < 18 and still_frozen == "True", done.stdout
