# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files that are cut or changed: an error, and the next epoch runs."""

from pathlib import Path

import pytest
import tensorflow as tf
from together import elements

pytestmark = [pytest.mark.world(np=3), pytest.mark.limit(120)]


def attempt(call):
    """The error of TensorFlow, or the refusal to read, that `call` raises; or None."""
    try:
        call()
    except (tf.errors.OpError, ValueError, IndexError, AssertionError) as error:
        return error
    return None


def channel(hvdata, comm):
    rows = tf.data.Dataset.range(40 * comm.size).shuffle(8, seed=1, reshuffle_each_iteration=False)
    return hvdata.distribute_dataset(rows, batch="per_rank", verify=True)


@pytest.mark.ways("auto", "arena")
@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_files(hvdata, comm, tmp_path, how):
    """TensorFlow's own checksums find the damage first."""
    ds = channel(hvdata, comm)
    it = iter(ds)
    for _ in range(3):
        next(it)
    path = tmp_path / "iterator"
    tf.train.Checkpoint(iterator=it).write(str(path))
    comm.Barrier()
    del it
    data = Path(f"{path}.data-00000-of-00001")
    whole = data.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        data.write_bytes(whole[:at] if how == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        again = iter(ds)
        found = attempt(lambda: tf.train.Checkpoint(iterator=again).read(str(path)).assert_consumed())
        assert isinstance(found, (tf.errors.OpError, IndexError)), found
        comm.Barrier()
    assert [len(share) for share in elements(comm, ds)] == [40] * comm.size
