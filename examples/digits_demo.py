# SPDX-License-Identifier: Apache-2.0
"""Runs digits_keras.py on several ranks, where one process reads for all, and proves that it did.

    python examples/digits_demo.py [--data FOLDER] [--ranks 4] [--dedicated]

For every rank but the reader, the data folder is hidden before Python starts the script. Meanwhile the kernel counts
how often each file is opened. The script itself compares the rows of all ranks. The status is 0 only if all checks
succeed. MPIRUN in the environment replaces `mpirun`.
"""

import argparse
import collections
import contextlib
import ctypes
import os
import re
import shlex
import struct
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "digits_keras.py")
LIMIT_SECONDS = 600

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the handwritten digits on several ranks; one reads for all.")
    parser.add_argument("--data", default=".demo", help="folder for the data files (%(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks that train (%(default)s)")
    parser.add_argument("--dedicated", action="store_true", help="one more process that only reads")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = os.path.abspath(os.path.join(options.data, "digits"))
    if options.as_rank:
        become_rank(folder)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Keras 3 warns on each rank of every dataset whose length it does not know.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:keras.src.trainers.epoch_iterator")

    say("1. the data: scikit-learn's 1,797 real handwritten digits as TFRecord files")
    subprocess.run([sys.executable, os.path.join(HERE, "digits_data.py"), folder], check=True)

    job = launcher(options.ranks + options.dedicated) + [sys.executable, __file__, "--data", options.data, "--as-rank"]
    environment = {**os.environ, "HOROVOD_DATA_READERS": str(int(options.dedicated))}
    reader = "one more process reads" if options.dedicated else "rank 0 reads"
    say(f"2. the job: examples/digits_keras.py on {options.ranks} ranks, {reader} for all; loading takes a moment")
    with opens_counted(folder) as opens:
        epochs = run(job, environment)

    say("3. who read?")
    check_opens(opens, epochs)
    say("all of this is true: one process read, every image was delivered once per epoch, and the model is good")


def say(line: str) -> None:
    print(f"[demo] {line}", flush=True)


# ---- The job.


def launcher(processes: int) -> list[str]:
    command = shlex.split(os.environ.get("MPIRUN") or "mpirun")
    version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" in version or "OpenRTE" in version:
        command += ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    return [*command, "-np", str(processes)]


def run(job: list[str], environment: dict[str, str]) -> int:
    """Runs the job and shows its output. Returns the number of training epochs that it reported."""
    epochs = 0
    with subprocess.Popen(job, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        limit = threading.Timer(LIMIT_SECONDS, process.terminate)
        limit.start()
        for line in process.stdout:
            print(f"       {line}", end="", flush=True)
            epochs += bool(re.match(r"epoch +\d+, train: .* each delivered once$", line))
        status = process.wait()
        limit.cancel()
    if status != 0:
        sys.exit(f"[demo] the job failed with status {status}")
    if epochs == 0:
        sys.exit("[demo] NOT TRUE: the job reported no epoch")
    return epochs


def become_rank(folder: str) -> None:
    """Replaces this process by the training script. Unless it is the reader, it first hides the data folder from it."""
    of = next(
        names
        for names in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
        if names[0] in os.environ
    )
    rank, size = (int(os.environ[name]) for name in of)
    reader = size - 1 if os.environ["HOROVOD_DATA_READERS"] == "1" else 0  # a dedicated reader is the last process
    if rank == reader:
        print(f"process {rank} reads: it sees {len(os.listdir(folder))} files in the data folder", flush=True)
    elif hide(folder):
        print(f"process {rank} sees {os.listdir(folder)}: an empty folder is mounted over the data folder", flush=True)
    else:
        folder = "/not-for-this-rank"
        print(f"process {rank} is told a data folder that does not exist (it may not mount)", flush=True)
    os.environ["DIGITS_FOLDER"] = folder
    os.execv(sys.executable, [sys.executable, SCRIPT])


def hide(folder: str) -> bool:
    """Mounts an empty tmpfs over the folder, for this process alone. Returns False if that is not permitted."""
    new_mount_namespace, private, recursive = 0x20000, 1 << 18, 1 << 14
    return (
        libc.unshare(new_mount_namespace) == 0
        and libc.mount(b"none", b"/", None, recursive | private, None) == 0
        and libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, None) == 0
        and os.listdir(folder) == []
    )


# ---- The kernel's count.


@contextlib.contextmanager
def opens_counted(folder: str):
    """Yields a Counter by file name: how often any process opened the file during the block. None without inotify."""
    in_open, header = 0x20, struct.Struct("iIII")
    events = libc.inotify_init1(os.O_CLOEXEC)
    if events < 0 or libc.inotify_add_watch(events, os.fsencode(folder), in_open) < 0:
        yield None
        return
    opens, over = collections.Counter(), threading.Event()

    def count() -> None:
        while not over.is_set():
            data = os.read(events, 1 << 16)
            while data:
                _, _, _, length = header.unpack_from(data)
                name, data = data[header.size :][:length].rstrip(b"\0").decode(), data[header.size + length :]
                if name:
                    opens[name] += 1

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    yield opens
    over.set()
    os.listdir(folder)  # makes an event, so that the thread wakes up
    thread.join()
    os.close(events)


def check_opens(opens, epochs: int) -> None:
    if opens is None:
        say("   this system has no inotify: opened files could not be counted, only hidden from the other ranks")
        return
    # The accuracy at the end needs one more pass over the validation images.
    expected = {"train": epochs, "valid": epochs + 1}
    for split, times in expected.items():
        counts = {name: number for name, number in opens.items() if name.startswith(split)}
        if set(counts.values()) != {times}:
            sys.exit(f"[demo] NOT TRUE: each {split} file should have been opened {times} times in all: {counts}")
        say(f"   the kernel saw each of the {len(counts)} {split} files opened {times} times in all: once per epoch")


if __name__ == "__main__":
    main()
