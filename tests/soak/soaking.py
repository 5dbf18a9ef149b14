# SPDX-License-Identifier: Apache-2.0
"""The program of a rank in a job of `make soak`: case after case, until its time is over. soak.py starts it."""

from __future__ import annotations

import collections
import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Optional

sys.path.append(str(Path(__file__).resolve().parent.parent))

import cases
import numpy as np
import oracle
import tensorflow as tf
from cases import Case
from heap import allocated
from mpi4py import MPI  # first: asks for MPI_THREAD_MULTIPLE

import horovod_data as hvdata

LET_GO = 10  # seconds in which a reader gets the memory of unused shares back
NAP = 0.002


class Found(AssertionError):
    """A finding: something is not as promised."""


def numpy_of(element: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), element)


def key(element: Any) -> tuple[Any, ...]:
    """Equal for equal elements."""
    arrays = [np.asarray(array) for array in oracle.flatten(element)]
    return tuple(
        (array.dtype.name, array.shape, tuple(array.ravel()) if array.dtype == object else array.tobytes())
        for array in arrays
    )


class Soak:
    """One process's part of a job. Tests derive faulty classes from it."""

    def __init__(self) -> None:
        self.given = json.loads(sys.argv[1])
        if not self.given["horovod"]:
            sys.modules["horovod"] = None  # type: ignore[assignment]  # as if it were not installed
        hvdata.init()
        if not self.given["horovod"]:
            del sys.modules["horovod"]
        self.comm = MPI.COMM_WORLD.Dup()
        self.readers = max(1, hvdata.num_readers())
        self.trainers = self.comm.size - (hvdata.num_readers() if self.given["readers"] else 0)
        self.rank = hvdata.rank()  # None on a dedicated reader
        self.folder = Path(self.given["folder"])
        self.told: collections.Counter[str] = collections.Counter()

    def meet(self, mine: Any = None) -> list[Any]:
        """An allgather over all processes. It sleeps while it waits, and so leaves the cores to other processes."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(NAP)
        return self.comm.allgather(mine)

    def record(self) -> Optional[dict[str, Any]]:
        """The channel's last certificate, which reader 0's process has."""
        from horovod_data.certificate import last

        self.meet()  # all are at the end
        return next((one for one in self.meet(last().get("soak")) if one), None)

    # ---- Cases.

    def run(self) -> None:
        begin = time.monotonic()
        wanted = self.given["cases"]
        numbers = iter(wanted) if wanted else iter(range(1 << 40))
        while True:
            number = next(numbers, None)
            if number is None or self.meet(time.monotonic() - begin)[0] > self.given["seconds"]:
                break
            self.at = f"case {number}"
            self.case(number)
            self.tell(number)
        self.meet()
        hvdata.shutdown()

    def case(self, number: int) -> None:
        case = cases.draw(f"{self.given['seed']}/{self.given['job']}", number, self.trainers)
        elements = case.elements()
        dataset = self.channel(case, elements)
        orders = set()
        for i, epoch in enumerate(case.epochs):
            self.at = f"case {number}, epoch {i + 1} of {case}"
            shares = cases.shares(case, elements, self.readers, self.trainers, i + 1)
            want = [] if self.rank is None else shares[self.rank]
            delivered = shares if case.schedule == "static" else shares[:1]
            rows = sum(cases.rows(case, share) for mine in delivered for share in mine)
            got = []
            taken: list[int] = []
            until = epoch.at[self.rank] if epoch.how == "break" and self.rank is not None else None
            if epoch.how in ("whole", "break"):
                got = self.take(case, iter(dataset), until)
            else:
                it = iter(dataset) if self.rank is not None else None
                got = self.take(case, it, epoch.at[0])
                taken = self.meet(len(got))
                state = self.save(it, f"{number}-{i}")
                if epoch.how != "go on":
                    del it
                    if epoch.how == "new channel":
                        del dataset
                        dataset = self.channel(case, elements)
                    it = iter(dataset) if self.rank is not None else None
                    self.restore(it, state)
                got += self.take(case, it, None)
                del it
            self.compare(case, got, want, until, left=epoch.how == "break")
            record = self.record()
            whole = epoch.how != "break"
            if whole and (record is None or (record["verdict"], record["rows"]) != ("complete", rows)):
                raise Found(f"{rows} rows, but the certificate says {record}")
            if record is not None and record["verdict"] == "wrong":
                raise Found(f"the certificate says {record}")
            if whole and record is not None and case.schedule == "static":
                # Each shuffled epoch has an order of its own, so "drop" leaves out other rows in each.
                leaves_out = case.shuffle and case.remainder == "drop"
                orders.add((case.shuffle or record["order"], leaves_out or record["any_order"]))
            self.told["cached epochs"] += case.cache is not None
            self.told["epochs"] += 1
            self.told["breaks"] += epoch.how == "break"
            self.told["saves"] += bool(taken)
        if len(orders) > 1:
            raise Found(f"epochs of the same rows have the digests {orders}")
        elements.clear()

    def channel(self, case: Case, elements: list[Any]) -> tf.data.Dataset:
        names = "batch", "schedule", "remainder", "prefetch", "cache", "shuffle", "seed"
        options = {name: getattr(case, name) for name in names}
        return hvdata.distribute_dataset(
            lambda context: source(case, elements, context), **options, name="soak", verify=True
        )

    def take(self, case: Case, iterator: Any, until: Optional[int]) -> list[Any]:
        """Up to `until` shares, or all that are left."""
        got: list[Any] = []
        while self.rank is not None and (until is None or len(got) < until):
            try:
                got.append(numpy_of(next(iterator)))
            except StopIteration:
                break
            if case.slow == self.rank:
                time.sleep(0.001)
        self.told["steps"] += len(got)
        return got

    def compare(
        self, case: Case, got: list[Any], want: list[Any], until: Optional[int] = None, left: bool = False
    ) -> None:
        """Compares the shares of this rank with the expected ones.

        `until` is the number of steps that this rank was to take, or None for all. `left` says whether any rank left
        early.
        """
        if case.schedule == "static":
            want = want[:until]
            if len(got) != len(want):
                raise Found(f"{len(got)} steps, not {len(want)}")
            for step, (one, other) in enumerate(zip(got, want)):
                if not oracle.equal(one, other):
                    differ = f"{one!r:.500}, not {other!r:.500}"
                    raise Found(f"step {step} of rank {self.rank} is not what it should be: {differ}")
        else:
            all_got = collections.Counter(key(one) for mine in self.meet(got) for one in mine)
            due = collections.Counter(key(one) for one in next(w for w in self.meet(want) if w or not all_got))
            more, fewer = sum((all_got - due).values()), sum((due - all_got).values())
            if more or (not left and fewer):
                raise Found(f"{more} elements too much, {fewer} too few")
        self.told["rows"] += sum(cases.rows(case, one) for one in got)

    # ---- Checkpoints.

    def save(self, iterator: Any, name: str) -> str:
        path = str(self.folder / f"state-{self.rank}-{name}")
        if self.rank is not None:
            tf.train.Checkpoint(iterator=iterator).write(path)
        self.meet()
        return path

    def restore(self, iterator: Any, path: str) -> None:
        if self.rank is not None:
            tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
            for file in Path(path).parent.glob(Path(path).name + ".*"):
                file.unlink()
        self.told["restores"] += 1
        self.meet()

    # ---- What soak.py reads.

    def tell(self, number: int) -> None:
        deadline = time.monotonic() + LET_GO
        while (arena := hvdata.stats().get("arena_bytes_in_use", 0)) and time.monotonic() < deadline:
            time.sleep(0.02)  # ranks acknowledge in the background
        held = held_now() | {"arena": arena}
        print("CASE " + json.dumps({"case": number, "rank": self.rank, **self.told, **held}), flush=True)
        self.told.clear()


def held_now() -> dict[str, int]:
    """Collects garbage.

    Returns the allocated, private and shared memory, the threads and the open files of this process.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {
        "allocated": allocated(),
        "private": _field("/proc/self/status", "RssAnon"),
        "shared": _field("/proc/self/smaps_rollup", "Pss_Shmem"),
        "threads": _field("/proc/self/status", "Threads"),
        "files": len(os.listdir("/proc/self/fd")),
    }


def _field(path: str, name: str) -> int:
    """Returns bytes, or a bare number. It is 0 if the kernel has no such line."""
    with open(path) as file:
        words = next((line.split()[1:] for line in file if line.startswith(name + ":")), ["0"])
    return int(words[0]) << (10 if words[-1] == "kB" else 0)


def source(case: Case, elements: list[Any], context: Any) -> tf.data.Dataset:
    """Makes a reader's part of the elements in the case's way.

    TensorFlow keeps generators, and the objects to which they refer, for ever. To free the elements, the caller empties
    `elements`.
    """
    mine = cases.of_readers(elements, context.num_input_pipelines)[context.input_pipeline_id]
    shapes = [shape if case.kind == "single" else (None, *shape) for _, shape in case.parts]
    dtypes = [tf.as_dtype(dtype) for dtype, _ in case.parts]
    spec = cases.nested(case.nest, [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes)])
    if case.kind == "generator" or not mine:
        numbers = (context.input_pipeline_id, len(elements), context.num_input_pipelines)
        return tf.data.Dataset.from_generator(lambda: (elements[i] for i in range(*numbers)), output_signature=spec)
    if case.kind in ("single", "ready-made"):
        stacked = [np.stack(arrays) for arrays in zip(*map(oracle.flatten, mine))]
        return tf.data.Dataset.from_tensor_slices(cases.nested(case.nest, _tensors(stacked, dtypes)))
    rows = [np.concatenate(arrays) for arrays in zip(*map(oracle.flatten, mine))]
    dataset = tf.data.Dataset.from_tensor_slices(cases.nested(case.nest, _tensors(rows, dtypes)))
    most = max(len(oracle.flatten(one)[0]) for one in mine)
    if case.kind == "mapped":
        return dataset.map(_same, num_parallel_calls=2).batch(most).prefetch(2)
    return dataset.batch(most)


def _tensors(arrays: list[Any], dtypes: list[tf.DType]) -> list[tf.Tensor]:
    return [tf.constant(array, dtype) for array, dtype in zip(arrays, dtypes)]


def _same(*element: Any) -> Any:
    return element[0] if len(element) == 1 else element


def main(kind: type[Soak] = Soak) -> None:
    soak = kind()
    soak.at = "the beginning"
    try:
        soak.run()
    except Exception as error:
        print(f"FOUND job {soak.given['job']}, {soak.at}: {type(error).__name__}: {error}", flush=True)
        raise


if __name__ == "__main__":
    main()
