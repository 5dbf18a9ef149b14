# SPDX-License-Identifier: Apache-2.0
"""Every Python block of README.md and docs/ runs on 2 ranks, and prints what the page says.

The blocks share a job, because its start takes longer than the blocks. Each block has a namespace of its own, filled by
tests/docs/prelude.py. The objects of a block are freed before the next block begins.
"""

import gc
import importlib.util
import os
import re
import socket
import sys

import pytest
import tensorflow as tf
from docs.blocks import DOCS_TESTS, named
from together import outcomes

PRELUDE = (DOCS_TESTS / "prelude.py").read_text()
# A process can do these only once, so such a block has a job of its own.
ONCE = re.compile(r"shutdown\(|init\([^)]|exit\(|disable_eager|disable_v2|enable_v1|import MPI")
TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch: not installed (make test-frameworks)"
)

pytestmark = [
    pytest.mark.world(np=2),
    pytest.mark.horovod,
    pytest.mark.own_job,
    pytest.mark.ranks(2),
    pytest.mark.ways("auto"),
]
PARAMS = [
    pytest.param(
        block,
        id=block.id,
        marks=[
            *([pytest.mark.alone()] if ONCE.search(block.text) else []),
            *([TORCH] if "import torch" in block.text else []),
        ],
    )
    for block in named("python")
]


@pytest.fixture
def meeting_point(comm, monkeypatch):
    """Where torch.distributed finds rank 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = comm.bcast(free.getsockname()[1])
    monkeypatch.setitem(os.environ, "MASTER_ADDR", "127.0.0.1")
    monkeypatch.setitem(os.environ, "MASTER_PORT", str(port))


@pytest.mark.usefixtures("meeting_point")
@pytest.mark.parametrize("block", PARAMS)
def test_python(comm, capsys, block):
    capsys.readouterr()

    def run() -> str:
        names = {"__name__": "__main__"}
        try:
            for text, where in (PRELUDE, "prelude.py"), (block.text, block.id):
                exec(compile(text, where, "exec"), names)
            return capsys.readouterr().out
        finally:
            names.clear()
            tf.keras.backend.clear_session()
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_initialized():
                distributed.destroy_process_group()

    texts = outcomes(comm, run)
    gc.collect()  # channels have names, which the next block may use again
    for rank, text in enumerate(texts):
        assert isinstance(text, str), f"rank {rank}: {text.where}"
    comm.Barrier()
    if block.output is not None:
        lines = [line for text in texts for line in text.splitlines()]
        assert sorted(lines) == sorted(block.output.splitlines()), texts
