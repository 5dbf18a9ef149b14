# SPDX-License-Identifier: Apache-2.0
"""Jobs of Horovod with PyTorch, where both are installed (`make test-frameworks`). The ranks import no TensorFlow."""

import importlib.util
from pathlib import Path

import pytest
from jobs import run_job


def built() -> bool:
    spec = importlib.util.find_spec("torch") and importlib.util.find_spec("horovod")
    return spec is not None and any(Path(spec.origin).parent.glob("torch/mpi_lib_v2*.so"))


pytestmark = [
    pytest.mark.slow,
    pytest.mark.horovod,
    pytest.mark.limit(180),
    pytest.mark.skipif(not built(), reason="Horovod with PyTorch is not installed (make test-frameworks)"),
]

LIMIT = 120
LIBRARIES = """
import os, sys, time
import torch
import horovod.torch as hvd
import horovod_data as hvdata

def say(*words):
    print(*words, flush=True)
"""

WHO = """
hvdata.init()
say("is", hvdata.rank(), hvdata.size(), (hvd.rank(), hvd.size()) if hvd.is_initialized() else None)
try:
    hvd.init()
    say("joined as", hvd.rank())
except RuntimeError as error:
    say(error)
workers = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1)  # forks
loader = hvdata.loader(lambda: workers, batch="global", to="torch")
hvdata.serve()
total = sum(batch.sum() for batch in loader)
say("sum", hvd.allreduce(total, op=hvd.Sum).item(), "tensorflow" in sys.modules)
"""


@pytest.mark.parametrize("readers", [0, 1])
def test_who_is_who(readers):
    job = run_job(LIBRARIES + WHO, 2, readers=readers, timeout=LIMIT)
    for rank in range(2):
        assert job.stdout[rank] == f"is {rank} 2 ({rank}, 2)\njoined as {rank}\nsum 28.0 False\n", job.describe()
    if readers:
        said, error = job.stdout[2].splitlines()
        assert said == "is None None None" and "hvd.init() was called on a dedicated reader" in error, job.describe()


def test_horovod_of_tensorflow_is_imported_later():
    pytest.importorskip("horovod.tensorflow")
    program = """
hvdata.init()
try:
    import horovod.tensorflow
except ImportError as error:
    say(error)
say("sum", hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=hvd.global_process_set).item())
"""
    job = run_job(LIBRARIES + program, 2, timeout=LIMIT)
    assert job.returncode == 0, job.describe()
    job.assert_said(
        r"\] horovod.tensorflow is imported after horovod_data.init\(\), which has initialised horovod.torch", 0, 1
    )
    job.assert_said(r"^sum 2\.0$", 0, 1)


def test_both_are_imported():
    """A job has the one that the program has initialised."""
    pytest.importorskip("horovod.tensorflow")
    program = """
try:
    hvdata.init()
except RuntimeError as error:
    say(error)
hvd.init()
hvdata.init()
say("sum", hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
"""
    job = run_job("import horovod.tensorflow\n" + LIBRARIES + program, 2, timeout=LIMIT)
    job.assert_said("has imported horovod.tensorflow and horovod.torch, and a job can use only one of them", 0, 1)
    job.assert_said(r"^sum 2\.0$", 0, 1)


def test_it_is_imported_after_init():
    """PyTorch alone does not say that the program uses Horovod."""
    program = """
import torch
import horovod_data as hvdata
hvdata.init()
try:
    import horovod.torch
except ImportError as error:
    print(error, flush=True)
"""
    job = run_job(program, 2, timeout=LIMIT)
    job.assert_said(r"Horovod is imported after .* Import horovod.tensorflow or horovod.torch before init\(\)", 0, 1)


WAITS = """
hvdata.init()
hvd.allreduce(torch.ones(1), name="both")
if hvd.rank() == 1:
    END
try:
    hvd.allreduce(torch.ones(1), name="waits")
except hvd.HorovodInternalError:
    say("the collective failed")
"""


@pytest.mark.parametrize("end, status, rank, said", [
    ("raise ValueError('no more')", 1, 1, "ValueError: no more"), ("sys.exit()", 0, 0, "^the collective failed$")],
    ids=["fails", "ends"])  # fmt: skip
def test_a_rank_is_gone_while_another_waits_in_a_collective(end, status, rank, said):
    program = WAITS.replace("END", f"say('now', time.monotonic()); {end}")
    job = run_job(LIBRARIES + program, 2, timeout=LIMIT, status=status)
    job.assert_said(said, rank)
    job.assert_soon("now", 1)


def test_hvd_shutdown_ends_the_job_first():
    """hvd.init() has initialised MPI, so hvd.shutdown() finalises it. Rank 0 still reads for rank 1 then."""
    program = """
hvd.init()
hvdata.init()
loader = hvdata.loader(lambda: [torch.ones(2)] * 50, batch="global", to="torch")
batches = iter(loader)
next(batches)
if hvd.rank() == 0:
    hvd.shutdown()
    try:
        hvdata.report()
    except RuntimeError as error:
        say(error)
else:
    time.sleep(1)
    say("got", 1 + sum(1 for _ in batches))
"""
    job = run_job(LIBRARIES + program, 2, timeout=LIMIT)
    job.assert_said(r"shutdown\(\)", 0)
    job.assert_said("^got 50$", 1)
