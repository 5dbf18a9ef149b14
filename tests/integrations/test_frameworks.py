# SPDX-License-Identifier: Apache-2.0
"""The frameworks of docs/frameworks.md, which `make test-frameworks` installs.

They are Keras 3 on JAX and on PyTorch, PyTorch, JAX, Horovod with PyTorch, and Horovod's Keras layer on Keras 3.
"""

import importlib.util
import re
import socket
from pathlib import Path

import pytest
from horovods import horovod, needs_keras_3  # noqa: F401
from jobs import run_job

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
PAGE = HERE.parents[1] / "docs" / "frameworks.md"
LIMIT = 150

pytestmark = [pytest.mark.slow, pytest.mark.limit(180)]


def needs(*modules: str):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)}: not installed (make test-frameworks)")


def said(program: Path, np: int, readers: int = 0, **env: str) -> str:
    """What rank 0 prints in a job that ends well."""
    job = run_job(program, np, readers=readers, env={"HOROVOD_CYCLE_TIME": None, **env}, timeout=LIMIT)
    return job.stdout[0]


# 3 ranks don't divide an epoch's last batch.
several = pytest.mark.parametrize("np, readers", [(1, 0), (2, 0), (4, 0), (3, 1)])


def example(name, says, *marks):
    return pytest.param(name, says, id=name, marks=marks)


# What rank 0 prints. The examples compare the weights or the losses of all ranks with those of one process.
@pytest.mark.parametrize("name, says", [
    example("keras_jax", "{np} processes of JAX, {np} devices", needs("jax"), needs_keras_3),
    example("keras_torch", "{np} ranks of Keras on torch", needs("torch"), needs_keras_3),
    example("torch_ranks", "{np} ranks of PyTorch", needs("torch")),
    example("torch_horovod", "{np} ranks of Horovod with PyTorch", needs("torch", "horovod"), pytest.mark.horovod),
    example("jax_ranks", "{np} processes of JAX without TensorFlow", needs("jax")),
])  # fmt: skip
@several
def test_example(name, says, np, readers):
    text = said(EXAMPLES / f"{name}.py", np, readers)
    assert re.search(rf"{says.format(np=np)}: loss .* in one process", text), text


@needs("torch")
@pytest.mark.parametrize("np, readers", [(4, 0), (2, 1)])
def test_rlds_on_pytorch(np, readers, tmp_path):
    text = said(EXAMPLES / "rlds_torch.py", np, readers, RLDS_FOLDER=str(tmp_path), MASTER_PORT=str(free_port()))
    assert f"{np} ranks of PyTorch: each of 960 frames once in each epoch; loss" in text, text
    assert ("on no rank that trains" if readers else "on rank 0, which reads") in text, text


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


COLUMNS = ["ours", "as it is", "tf_keras"]


def table() -> dict[str, list[str]]:
    """{a part of Horovod's Keras layer: what the page says of it in each of COLUMNS}"""
    row = r"^\| `([^`|]+)`" + r" \| ([^|]*)" * len(COLUMNS) + r" \|$"
    return {
        name: [cell.split("; ")[0].strip("`") for cell in cells]
        for name, *cells in re.findall(row, PAGE.read_text(), re.M)
    }


@pytest.mark.horovod
@needs("horovod")
@needs_keras_3
@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_of_horovods_keras_layer(horovod, column):  # noqa: F811
    if column == "tf_keras" and importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed (make test-frameworks)")
    horovod(patched=False)
    env = {"TF_USE_LEGACY_KERAS": "1"} if column == "tf_keras" else {}
    module = "horovod_data.integrations.keras" if column == "ours" else "horovod.tensorflow.keras"
    text = said(HERE / "horovod_keras.py", 2, HVDATA_TEST_LAYER=module, **env)
    outcomes = dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE))
    wanted = {name: cells[COLUMNS.index(column)] for name, cells in table().items()}
    wanted["hvd.DistributedOptimizer"] = wanted["hvd.DistributedOptimizer"].replace("` of `hvdata.init()", "")
    assert outcomes == wanted
