# SPDX-License-Identifier: Apache-2.0
"""A verified job that survives a series of faults: `survives.py STOPPED`.

STOPPED is the process that is stopped for 5 seconds: "reader" or a trainer's rank. The job ends in the middle of an
epoch, with iterators alive. After each fault every process, also a dedicated reader, prints its new threads and files.
"""

import collections
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import tensorflow as tf

import horovod_data as hvdata

kib, stopped = float(os.environ["HVDATA_TEST_KIB"]), sys.argv[1]
STEPS = 8
hvdata.init()
size = int(os.environ["HVDATA_TEST_TRAINERS"])
FAILS_AT = {1: 0, 2: STEPS // 2, 3: STEPS - 1}  # epoch: step. The epochs after these are as they should be
BREAKS = range(4, 4 + size)  # epochs in which one rank after the other leaves early
STOPS = 4 + size
AT_FIRST = 2  # epochs
reader_before = None


def stop_for_five_seconds():
    subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def rows(epoch, name):
    for number in range(STEPS * size):
        if name == "train" and number == FAILS_AT.get(epoch, -1) * size:
            print("RAISES", epoch, time.monotonic(), flush=True)
            raise ValueError("no such row")
        if name == "train" and epoch == STOPS and stopped == "reader" and number == 3 * size:
            stop_for_five_seconds()
        yield np.full(int(kib * 256), number, np.float32)


def channel(name):
    spec = tf.TensorSpec([int(kib * 256)], tf.float32)
    return hvdata.distribute_dataset(
        lambda epoch: tf.data.Dataset.from_generator(lambda: rows(epoch, name), output_signature=spec),
        batch="per_rank",
        name=name,
        verify=True,
        prefetch=2,
    )


def looks():
    """A channel. At each of its epochs the reader, too, prints its new threads and files."""

    def make(epoch):
        global reader_before
        if epoch > AT_FIRST:
            say_what_is_kept(f"by the reader, look {epoch - AT_FIRST}", reader_before)
        else:
            reader_before = settled()
        return tf.data.Dataset.range(size)

    return hvdata.distribute_dataset(make, batch="per_rank", name="looks", verify=True)


def take(ds, most=STEPS):
    """Compares the rank's shares. Returns the number of steps, and the error that ended them."""
    step = 0
    try:
        for x in ds:
            assert (x.numpy() == step * size + me).all(), (step, x)
            step += 1
            if step == most:
                break
    except tf.errors.OpError as error:
        return step, " ".join(error.message.split())
    return step, ""


def threads_and_files():
    """The threads of this process by name, and the files of its descriptors, with their numbers."""
    found = collections.Counter()
    for folder in "task", "fd":
        for one in os.listdir(f"/proc/self/{folder}"):
            path = f"/proc/self/{folder}/{one}"
            try:
                name = os.readlink(path).partition(":[")[0] if folder == "fd" else open(f"{path}/comm").read().strip()
            except OSError:  # it has just ended
                continue
            found[f"{folder} {name}"] += 1
    return found


def settled():
    """The threads and files that are there for longer than a moment."""
    gc.collect()
    found = threads_and_files()
    for _ in range(10):
        time.sleep(0.02)
        found &= threads_and_files()
    return found


def say_what_is_kept(of, before):
    """Prints the threads and files that a fault has left behind. They may take a moment to end."""
    gc.collect()
    deadline = time.monotonic() + 10
    while (more := threads_and_files() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    print("KEPT", of, "nothing" if not more else dict(more), flush=True)


def stay(ds):
    """Whole epochs, after which TensorFlow and MPI have the threads and files that they keep."""
    for _ in range(AT_FIRST):
        assert take(ds, STEPS + 1) == (STEPS, "")


def kept(of):
    say_what_is_kept(of, before)
    assert take(look, 2) == (1, "")


train, valid = channel("train"), channel("valid")
tiny = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(size), batch="per_rank", name="tiny", verify=True)
look = looks()
hvdata.serve()
me = hvdata.rank()
stay(valid)
for _ in range(AT_FIRST):
    assert take(look, 2) == (1, "")
before = settled()
for epoch in FAILS_AT:
    came, message = take(train)
    print("FAILED", epoch, came, time.monotonic(), message, flush=True)
    kept(f"of epoch {epoch}")
for epoch in BREAKS:
    print("BROKE", epoch, *take(train, 2 if epoch - BREAKS[0] == me else STEPS + 1), time.monotonic(), flush=True)
    kept(f"of epoch {epoch}")
began = time.monotonic()
steps = 0
for x in train:  # of STOPS
    steps += 1
    if stopped == str(me) and steps == 3:
        stop_for_five_seconds()
print("STOPPED", steps, time.monotonic() - began, flush=True)
kept("of the stop")

found = {}
threads = [
    threading.Thread(target=lambda name=name, ds=ds: found.update({name: [take(ds, STEPS + 1) for _ in range(2)]}))
    for name, ds in (("train", train), ("valid", valid))
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("THREADS", found["train"], found["valid"], flush=True)
kept("of the threads")

epochs = 1000 if "1000" in sys.argv else 20
print("TINY", sum(int(x) == me for _ in range(epochs) for x in tiny), flush=True)
kept("of the tiny epochs")

held = [iter(train), iter(valid)]
print("LEAVES", [int(next(it)[0]) for it in held], flush=True)
