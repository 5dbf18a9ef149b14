# SPDX-License-Identifier: Apache-2.0
"""What every rank of a job of `make soak` runs: case after case, until its time is over. Started by soak.py, told by JSON."""

from __future__ import annotations

import collections
import json
import sys
import time
from pathlib import Path
from typing import Any, Optional

sys.path.append(str(Path(__file__).resolve().parent.parent))

import cases
import numpy as np
import oracle
import tensorflow as tf
import usage
from cases import Case
from mpi4py import MPI  # first: asks for MPI_THREAD_MULTIPLE

import horovod_data as hvdata

LET_GO = 10  # seconds: within them a reader has the memory of shares back that nobody uses
NAP = 0.002


class Found(AssertionError):
    """Something was not as it is promised."""


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
    """One process's part. Tests make others of it, that go wrong."""

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

    # ---- How the processes meet.

    def meet(self, mine: Any = None) -> list[Any]:
        """What all of them say, in the order of their processes. Leaves the cores to others while it waits."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(NAP)
        return self.comm.allgather(mine)

    def record(self, name: str) -> Optional[dict[str, Any]]:
        """The channel's last certificate, which reader 0's process has."""
        from horovod_data.certificate import last

        self.meet()  # all are at the end
        return next((one for one in self.meet(last().get(name)) if one), None)

    # ---- Cases.

    def run(self) -> None:
        begin = time.monotonic()
        wanted = self.given["cases"]
        numbers = iter(wanted) if wanted else iter(range(1 << 40))
        if self.given["goes_on"]:
            self.go_on_with_another_jobs()
        while True:
            number = next(numbers, None)
            if number is None or self.meet(time.monotonic() - begin)[0] > self.given["seconds"]:
                break
            self.at = f"case {number}"
            self.case(number)
            self.tell(number)
        if self.given["hands_on"]:
            self.hand_on()
        self.meet()
        hvdata.shutdown()

    def case(self, number: int) -> None:
        case = cases.draw(f"{self.given['seed']}/{self.given['job']}", number, self.trainers)
        elements = case.elements()
        want = self.want(case, elements)
        rows = cases.rows_delivered(case, elements, self.readers, self.trainers)
        name = "soak"
        dataset = self.channel(case, elements, name)
        orders = set()
        for i, epoch in enumerate(case.epochs):
            self.at = f"case {number}, epoch {i + 1} of {case}"
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
                        dataset = self.channel(case, elements, name)
                    it = iter(dataset) if self.rank is not None else None
                    self.restore(it, state)
                got += self.take(case, it, None)
                del it
            self.compare(case, got, want, until, left=epoch.how == "break")
            record = self.record(name)
            whole = epoch.how != "break"
            if whole and (record is None or (record["verdict"], record["rows"]) != ("complete", rows)):
                raise Found(f"{rows} rows, but the certificate says {record}")
            if record is not None and record["verdict"] == "wrong":
                raise Found(f"the certificate says {record}")
            if whole and record is not None and case.schedule == "static":
                orders.add((record["order"], record["any_order"]))
            self.told["epochs"] += 1
            self.told["breaks"] += epoch.how == "break"
            self.told["saves"] += bool(taken)
        if len(orders) > 1:
            raise Found(f"epochs of the same rows have the digests {orders}")
        elements.clear()

    def want(self, case: Case, elements: list[Any]) -> list[Any]:
        """What this rank is to get."""
        return [] if self.rank is None else cases.shares(case, elements, self.readers, self.trainers)[self.rank]

    def channel(self, case: Case, elements: list[Any], name: str) -> tf.data.Dataset:
        return hvdata.distribute_dataset(
            lambda context: source(case, elements, context),
            batch=case.batch,
            schedule=case.schedule,
            remainder=case.remainder,
            prefetch=case.prefetch,
            name=name,
            verify=True,
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
        """`until`: the steps that this rank was to take; None: all. `left`: whether any rank left early."""
        if case.schedule == "static":
            want = want[:until]
            if len(got) != len(want):
                raise Found(f"{len(got)} steps, not {len(want)}")
            for step, (one, other) in enumerate(zip(got, want)):
                if not oracle.equal(one, other):
                    raise Found(
                        f"step {step} of rank {self.rank} is not what it should be: {one!r:.500}, not {other!r:.500}"
                    )
        else:
            all_got = collections.Counter(key(one) for mine in self.meet(got) for one in mine)
            due = collections.Counter(key(one) for one in next(w for w in self.meet(want) if w or not all_got))
            if all_got - due or (not left and due - all_got):
                raise Found(
                    f"{sum((all_got - due).values())} elements too much, {sum((due - all_got).values())} too few"
                )
        self.told["rows"] += sum(
            1 if not np.ndim(oracle.flatten(one)[0]) else len(oracle.flatten(one)[0]) for one in got
        )

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

    def hand_on(self) -> None:
        """Leaves an epoch in the middle, for a job of another number of ranks; rank 0 alone saves."""
        name = self.given["hands_on"]
        case = cases.draw_handed_on(name)
        self.at = f"the case that is handed on, {case}"
        elements = case.elements()
        dataset = self.channel(case, elements, "handed-on")
        want = self.want(case, elements)
        self.compare(case, self.take(case, iter(dataset), None), want)
        record = self.record("handed-on")
        if record is None or record["verdict"] != "complete":
            raise Found(f"a whole epoch, but the certificate says {record}")
        steps = len(elements) if case.batch == "global" else len(elements) // self.trainers
        at = hash(name.encode()[-1]) % steps + 1
        it = iter(dataset) if self.rank is not None else None
        self.compare(case, self.take(case, it, at), want[:at])
        if self.rank == 0:
            tf.train.Checkpoint(iterator=it).write(str(self.folder / "handed-on"))
            done = at if case.batch == "global" else at * self.trainers
            (self.folder / "handed-on.json").write_text(
                json.dumps(
                    {"name": name, "elements": done, **{part: record[part] for part in ("rows", "order", "any_order")}}
                )
            )
        self.meet()

    def go_on_with_another_jobs(self) -> None:
        """The rest of that epoch; its certificate is that of the whole epoch, as the first job had it."""
        said = json.loads((self.folder / "handed-on.json").read_text())
        case = cases.draw_handed_on(said["name"])
        self.at = f"a case of an earlier job, {case}"
        elements = case.elements()
        want = self.want(case, elements[said["elements"] :])
        dataset = self.channel(case, elements, "handed-on")
        it = iter(dataset) if self.rank is not None else None
        if self.rank == 0:
            tf.train.Checkpoint(iterator=it).read(str(self.folder / "handed-on")).assert_consumed()
        self.meet()
        self.compare(case, self.take(case, it, None), want)
        record = self.record("handed-on")
        if record is None or any(record[part] != said[part] for part in ("rows", "order", "any_order")):
            raise Found(
                f"on another number of ranks the rest of an epoch has the certificate {record}, the whole had {said}"
            )
        self.told["restores"] += 1
        self.told["resizes"] += 1

    # ---- What soak.py reads.

    def tell(self, number: int) -> None:
        deadline = time.monotonic() + LET_GO
        while (arena := hvdata.stats().get("arena_bytes_in_use", 0)) and time.monotonic() < deadline:
            time.sleep(0.02)  # ranks tell readers in the background what they have let go of
        held = usage.now() | {"arena": arena}
        print("CASE " + json.dumps({"case": number, "rank": self.rank, **self.told, **held}), flush=True)
        self.told.clear()


def source(case: Case, elements: list[Any], context: Any) -> tf.data.Dataset:
    """A reader's part of the elements, made in the case's way. A generator finds none any more once `elements` is empty, for
    TensorFlow keeps generators for ever, and what they refer to."""
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
