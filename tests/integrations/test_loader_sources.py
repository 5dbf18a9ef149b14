# SPDX-License-Identifier: Apache-2.0
"""hvdata.loader() with the sources of real libraries: plain, resumed in mid-epoch, and over several epochs.

`make test-frameworks` installs the libraries.
"""

import json
from pathlib import Path

import pytest
from jobs import run_job
from loader_sources import BATCH, ROWS

pytestmark = [pytest.mark.slow, pytest.mark.limit(180)]
PROGRAM = Path(__file__).resolve().with_name("loader_sources.py")
# {the source's function: the modules that it needs}
IN_ORDER = {
    "data_loader": ["torch"],
    "stateful_data_loader": ["torchdata"],
    "hf": ["datasets"],
    "hf_iterable": ["datasets"],
    "hf_in_a_stateful_data_loader": ["datasets", "torchdata"],
    "grain_iter": ["grain"],
    "webdataset": ["webdataset"],
}
SOURCES = {
    **IN_ORDER,
    "stateful_shuffled": ["torchdata"],
    "hf_shuffled": ["datasets"],
    "hf_of_a_later_epoch": ["datasets"],
    "hf_shuffled_in_a_stateful_data_loader": ["datasets", "torchdata"],
    "grain_map": ["grain"],
    "grain_data_loader": ["grain"],
}
# Both processes of the library import torch again, unless they are forked.
WITH_WORKERS = [
    ("data_loader", "fork"), ("stateful_data_loader", "fork"), ("stateful_data_loader", "forkserver"),
    ("stateful_data_loader", "spawn"), ("hf_in_a_stateful_data_loader", "fork"), ("grain_iter", ""), ("grain_data_loader", ""), ("webdataset", "forkserver"),
]  # fmt: skip


def rows_of(source, readers, *arguments):
    """The rows that the ranks have got, in the job's order: {part of the program: [row, ...] or [[row, ...], ...]}."""
    for module in SOURCES[source]:
        pytest.importorskip(module)
    job = run_job(PROGRAM, 2, source, *arguments, readers=readers, timeout=150)
    ranks = [json.loads(job.stdout[rank].splitlines()[-1]) for rank in range(2)]
    assert not any(rank["tensorflow"] for rank in ranks)

    def order(part):
        return [row for shares in zip(*part) for share in shares for row in share]

    found = {key: order([rank[key] for rank in ranks]) for key in ("before", "after", "resumed", "resumed_here")}
    for key in ("epochs", "later"):
        found[key] = [order(epochs) for epochs in zip(*[rank[key] for rank in ranks])]
    return found, job


def check(found, job, in_order):
    everything = list(range(ROWS))
    for epoch in (*found["epochs"], *found["later"], found["before"] + found["after"]):
        assert sorted(epoch) == everything, job.describe()
        assert not in_order or epoch == everything, job.describe()
    assert len(found["before"]) == 3 * BATCH
    assert found["resumed"] == found["after"] == found["resumed_here"], job.describe()


@pytest.mark.parametrize("source", SOURCES)
def test_a_source(source):
    check(*rows_of(source, readers=0), in_order=source in IN_ORDER)


@pytest.mark.parametrize("source, method", WITH_WORKERS)
def test_a_source_with_workers_on_a_dedicated_reader(source, method):
    found = rows_of(source, 1, "2", *[method] * bool(method))
    check(*found, in_order="hf" not in source and "grain" not in source and source != "webdataset")


VALIDATES = """
import torch
import horovod_data as hvdata

class Rows:  # its workers fork while this rank holds a batch
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return float(x[0]), i

hvdata.init()
loader = hvdata.loader(lambda: [torch.full([40000], float(k)) for k in range(4)], batch="global", to="torch")
kept = []
for step, x in enumerate(loader):
    kept.append(x[:3])
    if step % 2:
        for batch, rows in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            assert batch.tolist() == [float(step)] * 4
    assert [part.tolist() for part in kept] == [[float(k)] * 3 for k in range(step + 1)]
assert len(list(loader)) == 4
print("whole", flush=True)
"""


def test_workers_of_a_data_loader_on_ranks_that_hold_a_loader():
    pytest.importorskip("torch")
    job = run_job(VALIDATES, 2, timeout=120)
    job.assert_said("^whole$", 0, 1)
