# SPDX-License-Identifier: Apache-2.0
"""cache="job" over hosts: the rows of each rank, the bytes on the lines, what each host keeps, and lost hosts."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from bed import Bed
from endless import PLACES, cut_for_good
from jobs import program
from oracle import cached_epoch, deliver, permuted
from over_hosts import start_over

pytestmark = [pytest.mark.slow, pytest.mark.limit(180)]

SEED, EPOCHS = 5, 3
ROWS, WIDTH, STEPS = 16, 1024, 128  # of one rank's share; float32 of a row; of an epoch
ROW_BYTES = 4 * WIDTH
# Bytes of everything else on a host's line in an epoch: heads of pieces, credits, Horovod's own messages.
REST = 200_000

SOURCE = """
from mpi4py import MPI
batch, elements, rows, width = sys.argv[1], *map(int, sys.argv[2:5])

def source():
    for element in range(elements):
        yield np.repeat(np.arange(element * rows, (element + 1) * rows, dtype=np.float32)[:, None], width, 1)

loader = hvdata.loader(source, batch=batch, cache="job", shuffle=True, seed=5, name="kept")
"""

# Each rank pauses at the file's name that it says, so that the test can read the lines' counters.
SCRIPT = program(
    SOURCE
    + """
folder, epochs = sys.argv[5], int(sys.argv[6])
together = MPI.COMM_WORLD.Split(int(hvdata.is_trainer()))

def pause(word):
    together.Barrier()
    say(word)
    while not os.path.exists(f"{folder}/{word}"):
        time.sleep(0.02)

def tell():
    while not os.path.exists(f"{folder}/EPOCH1."):
        time.sleep(0.02)
    say("KEPT", hvdata.stats()["kept/cache_bytes"])

threading.Thread(target=tell).start()  # a dedicated reader serves meanwhile
hvdata.serve()
pause("READY")
for epoch in range(1, epochs + 1):
    got = []
    for share in loader:
        assert (share == share[:, :1]).all(), "the values of a row belong to several rows"
        got.append(share[:, 0].astype(int).tolist())
    say("GOT " + json.dumps(got))
    pause(f"EPOCH{epoch}.")
"""
)


@dataclass(frozen=True)
class Layout:
    """`per_host` ranks on each of `hosts` hosts. Rank 0 reads, or a process on one more host."""

    hosts: int
    per_host: int
    dedicated: bool

    @property
    def places(self):
        return [host for host in range(self.hosts) for _ in range(self.per_host)] + [self.hosts] * self.dedicated

    @property
    def ranks(self):
        return self.hosts * self.per_host

    @property
    def all_hosts(self):
        return self.hosts + self.dedicated

    @property
    def readers_host(self):
        return self.hosts if self.dedicated else 0

    def host_of(self, rank):
        return rank // self.per_host

    def holder(self, batch, unit):
        """Returns the host that keeps this unit: the host of the rank that gets the unit in epoch 1.

        A host that only reads keeps a part of each rank's units instead.
        """
        spared = 1 if self.dedicated else 0
        if batch == "per_rank":
            turn, rank = divmod(unit, self.ranks)
            count = turn + rank
            spares = (count + 1) * spared // self.all_hosts > count * spared // self.all_hosts
        else:
            rank, row = divmod(unit % (ROWS * self.ranks), ROWS)
            spares = row >= ROWS - ROWS * spared // self.all_hosts
        return self.readers_host if spares else self.host_of(rank)

    def lines(self, batch, epoch):
        """The bytes of rows that each host must send in an epoch. Epoch 1 has the load."""
        sent = [0] * self.all_hosts
        units, size = (STEPS * self.ranks, ROWS) if batch == "per_rank" else (STEPS * self.ranks * ROWS, 1)
        for position in range(units):
            unit = position if epoch == 1 else permuted(position, units, SEED, epoch)
            rank = position % self.ranks if batch == "per_rank" else position // ROWS % self.ranks
            ways = [(self.holder(batch, unit), self.host_of(rank))]
            ways += [(self.readers_host, self.holder(batch, unit))] * (epoch == 1)
            for here, there in ways:
                sent[here] += size * ROW_BYTES * (here != there)
        return sent


@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("layout", [Layout(2, 2, False), Layout(2, 2, True), Layout(3, 1, False)], ids=str)
def test_rows_and_lines(tmp_path, layout, batch):
    """Each byte of the load crosses a line once.

    In later epochs a row crosses a line if its rank is on another host.
    """
    data = STEPS * layout.ranks * ROWS * ROW_BYTES
    elements, rows = (STEPS * layout.ranks, ROWS) if batch == "per_rank" else (STEPS, layout.ranks * ROWS)
    arguments = [batch, elements, rows, WIDTH, tmp_path, EPOCHS]
    env = {"HOROVOD_CYCLE_TIME": "20"}
    sent = []
    with Bed(layout.all_hosts) as bed:
        with start_over(
            bed, SCRIPT, layout.places, *map(str, arguments), readers=int(layout.dedicated), env=env
        ) as job:
            for pause in "READY", *(f"EPOCH{epoch}." for epoch in range(1, EPOCHS + 1)):
                for rank in range(layout.ranks):
                    job.wait_for(pause, rank)
                sent.append([bed.counters(host).payload_sent for host in range(layout.all_hosts)])
                (tmp_path / pause).touch()
            assert job.finish(60) == 0, job.describe()

    whole = [np.arange(element * rows, (element + 1) * rows) for element in range(elements)]
    for epoch in range(1, EPOCHS + 1):
        wanted = deliver(cached_epoch(whole, batch, epoch, SEED), layout.ranks, batch)
        for rank in range(layout.ranks):
            got = [json.loads(line[4:]) for line in job.stdout[rank].splitlines() if line.startswith("GOT ")]
            assert got[epoch - 1] == [share.tolist() for share in wanted[rank]], f"epoch {epoch}, rank {rank}"

        lines = layout.lines(batch, epoch)
        crossed = [after - before for before, after in zip(sent[epoch - 1], sent[epoch])]
        for host, (least, counted) in enumerate(zip(lines, crossed)):
            assert least <= counted <= 1.1 * least + REST, f"epoch {epoch}: {crossed}, not {lines}"
        # The same by the number of hosts. What a host that only reads keeps crosses a line in epoch 1, too.
        often = 1 if layout.dedicated and epoch == 1 else 1 - 1 / layout.all_hosts
        assert abs(sum(lines) / data - often) < 0.05

    kept = [int(out.split("KEPT ")[1].split()[0]) for out in job.stdout]
    keepers = [layout.places.index(host) for host in range(layout.all_hosts)]
    units = elements if batch == "per_rank" else elements * rows
    holders = [layout.holder(batch, unit) for unit in range(units)]
    for host, keeper in enumerate(keepers):
        held = data // units * holders.count(host)
        assert held <= kept[keeper] <= 1.05 * held + 4096 * STEPS, f"host {host} keeps {kept[keeper]} bytes, not {held}"
        assert held > 0.25 * data
    assert all(kept[process] == 0 for process in range(len(kept)) if process not in keepers)


# ---- Faults. The last process, on host 1, reads and keeps its host's rows; rank 0 keeps those of host 0.

ENDLESS = program(
    SOURCE
    + """
hvdata.serve()
for epoch in range(1, 1000):
    for step, share in enumerate(loader):
        say(f"epoch {epoch} step {step}.")
        time.sleep(0.02)
"""
)


def start(bed):
    return start_over(bed, ENDLESS, PLACES, "global", "100", "16", "1024", readers=1)


def test_a_host_is_cut_off_in_epoch_2():
    with Bed(2) as bed, start(bed) as job:
        cut_for_good(job, bed, "epoch 2 step 10.")
