# SPDX-License-Identifier: Apache-2.0
"""RETURNN's own Engine and data pipeline on several ranks: the result is that of one process with the same data."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from jobs import run_job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "returnn_training.py"
STEP = 12  # sequences of all ranks
CLOSE = 1e-6

pytestmark = [
    pytest.mark.horovod,
    pytest.mark.slow,
    pytest.mark.limit(400),
    pytest.mark.skipif(
        importlib.util.find_spec("returnn") is None,
        reason="RETURNN is not installed (scripts/setup.sh returnn, or make test-integrations)",
    ),
]


def trained(folder: Path, np_: int, *args: str, readers: int = 0, verify: bool = False):
    """Rank 0's parameters and scores, and what ranks wrote to stderr.

    The example itself checks that all ranks have the same parameters, and that the reader read each sequence once.
    """
    out = folder / f"{np_}-{readers}.npz"
    words = ["--max-seqs", str(STEP // np_), "--out", str(out), *args]
    env = {"HOROVOD_CYCLE_TIME": None, **({"HOROVOD_DATA_VERIFY": "1"} if verify else {})}
    job = run_job(EXAMPLE, np_, *words, readers=readers, timeout=180, env=env)
    assert f"{np_} ranks ended with equal parameters" in job.stdout[0], job.describe()
    return dict(np.load(out)), "".join(job.stderr)


def verified(said: str, name: str, rows: int) -> None:
    """Asserts that the output has a certificate of these rows in each of 3 epochs."""
    assert (
        len(re.findall(rf"channel {name}, epoch \d: {rows} rows that the readers? yielded, each delivered once", said))
        == 3
    ), said


def same(got, expected, only="") -> None:
    names = [name for name in expected if name.startswith(only)]
    assert names and sorted(names) == sorted(name for name in got if name.startswith(only))
    for name in names:
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=CLOSE, err_msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.mark.parametrize("np_, readers", [(3, 0), (2, 1), (4, 1)])
def test_as_in_one_process(alone, tmp_path, np_, readers):
    got, said = trained(tmp_path, np_, readers=readers, verify=True)
    same(got, alone)
    verified(said, "train", 50)
    verified(said, "dev", 14)


def test_a_checkpoint_between_epochs(alone, tmp_path):
    model = str(tmp_path / "model")
    trained(tmp_path, 2, "--epochs", "1", "--model", model)
    got, _ = trained(tmp_path, 3, "--model", model, readers=1)  # epochs 2 and 3, in the order of these
    assert not [name for name in got if name.startswith("epoch 1")]
    same(got, {name: value for name, value in alone.items() if not name.startswith("epoch 1")})


def test_averaged_parameters(alone, tmp_path):
    """If ranks average parameters after each step, the result equals a step along the mean of the gradients."""
    got, _ = trained(tmp_path, 2, "--param-sync", "1", "--rate", "0.006")
    same(got, alone, only="parameter")


def test_ranks_that_step_apart(alone, tmp_path):
    got, said = trained(tmp_path, 2, "--param-sync", "3", readers=1, verify=True)
    with pytest.raises(AssertionError):
        same(got, alone, only="parameter")  # it is another training
    verified(said, "train", 50)
