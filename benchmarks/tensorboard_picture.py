# SPDX-License-Identifier: Apache-2.0
"""Makes the picture in docs/report.md: TensorBoard in a headless browser, with the scalars of a real job.

    python benchmarks/tensorboard_picture.py                       # writes build/bench/report_tensorboard.png
    python benchmarks/tensorboard_picture.py --out docs            # publishes it

Needs tensorboard, and a chromium (Debian: `apt-get install chromium`). In the first half of the job, a step of the
pipeline takes longer than a step of the ranks. In the second half it is the reverse. Each rank writes its scalars 50
times.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import launch

ROWS, STEPS, WRITES = 32, 500, 50
# Seconds of a step in the first half of the job and in the second: of the pipeline, and of the ranks.
PIPELINE, OWN = (0.03, 0.004), (0.004, 0.015)


def job(log_dir: str) -> None:
    """The program of each rank."""
    import tensorflow as tf

    import horovod_data as hvdata

    hvdata.init()

    def make() -> tf.data.Dataset:
        def batches() -> Iterator[list[int]]:
            for step in range(STEPS):
                time.sleep(PIPELINE[step >= STEPS // 2])
                yield list(range(ROWS * (hvdata.size() or 1)))

        return tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.int32))

    dataset = hvdata.distribute_dataset(make, batch="global", name="train", prefetch=4)
    scalars = hvdata.callbacks.DeliveryScalars(log_dir)
    for step, _ in enumerate(dataset, start=1):
        time.sleep(OWN[step > STEPS // 2])
        if step % (STEPS // WRITES) == 0:
            scalars.write(step)
    scalars.close()
    hvdata.shutdown()


@contextlib.contextmanager
def tensorboard(log_dir: str) -> Iterator[str]:
    """Starts TensorBoard. Yields its address when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            log_dir,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--load_fast",
            "false",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError):
                runs = urllib.request.urlopen(address + "data/runs", timeout=5).read()
                if runs.count(b"delivery-rank") == 4:
                    break
            if time.monotonic() > deadline or server.poll() is not None:
                sys.exit("TensorBoard did not answer with the job's four runs")
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)


def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        sys.exit("There is no chromium in PATH (Debian: apt-get install chromium)")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=launch.HERE.parent / "build" / "bench")
    parser.add_argument("--mpirun", default=shutil.which("mpirun") or "mpirun")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job)
        return 0
    chromium = browser()
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = (arguments.out / "report_tensorboard.png").resolve()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **launch.ENVIRONMENT, "PYTHONPATH": str(launch.HERE.parent)}
        subprocess.run(
            [arguments.mpirun, "-np", "4", sys.executable, __file__, "--job", folder],
            env=environment,
            check=True,
            timeout=240,
        )
        with tensorboard(folder) as address:
            subprocess.run(
                [
                    chromium,
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--hide-scrollbars",
                    f"--user-data-dir={folder}/browser",
                    "--window-size=1110,1060",
                    "--virtual-time-budget=20000",
                    f"--screenshot={picture}",
                    f"{address}?darkMode=false#scalars&_smoothingWeight=0",
                ],
                check=True,
                timeout=120,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
