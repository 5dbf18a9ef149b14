# SPDX-License-Identifier: Apache-2.0
"""Backup: its arguments, and the values of TensorFlow's objects that a set gets."""

import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model.registration import register_checkpoint_saver

import horovod_data as hvdata
from horovod_data.native import tensorflow_private

OF_BOTH = [
    ({"keep": 0}, "keep must be 1 or more sets, not 0"),
    ({"directory": ""}, "was given no directory"),
    ({"directory": 3}, "directory must be a path, not 3"),
    ({"directory": None}, "Pass a directory that all ranks share, or set HOROVOD_DATA_STATE"),
]
OF_BACKUP = [
    ({"every": 0}, "every must be a number of steps, not 0"),
    ({"seconds": 0}, "seconds must be above 0, not 0"),
    ({"seconds": "1"}, "seconds must be a number, not '1'"),
    ({"array": np.zeros(3)}, "can't save array, a ndarray: it has no state_dict.*Put what has no state of its own into `values`"),
]  # fmt: skip
OF_THE_CALLBACK = [
    ({"save_freq": 0}, 'save_freq must be "epoch" or a number of steps, not 0'),
    ({"save_freq": "batch"}, "not 'batch'"),
    ({"save_freq": True}, "not True"),
]


@pytest.mark.parametrize("call, arguments, text", [
    *((hvdata.Backup, *wrong) for wrong in OF_BOTH + OF_BACKUP),
    *((hvdata.callbacks.BackupAndRestore, *wrong) for wrong in OF_BOTH + OF_THE_CALLBACK),
])  # fmt: skip
def test_wrong_arguments(call, arguments, text):
    with pytest.raises((TypeError, ValueError), match=text):
        call(**{"directory": "x", **arguments})


def test_other_data(tmp_path):
    with pytest.raises(RuntimeError, match="outside of the block"):
        next(hvdata.Backup(str(tmp_path)).steps([1]))


class SavesItself(tf.Module):
    """Has a saver of its own, which runs at the snapshot."""

    def __init__(self):
        super().__init__()
        self.number = tf.Variable(1)


def saves(trackables, file_prefix):
    (one,) = trackables.values()
    tf.raw_ops.SaveV2(prefix=file_prefix, tensor_names=["number"], shape_and_slices=[""], tensors=[one.number])
    return file_prefix


def restores(trackables, merged_prefix):
    (one,) = trackables.values()
    found = tf.raw_ops.RestoreV2(
        prefix=merged_prefix, tensor_names=["number"], shape_and_slices=[""], dtypes=[tf.int32]
    )
    one.number.assign(found[0])


def test_values_are_those_of_the_snapshot(tmp_path):
    register_checkpoint_saver(
        name="of_a_test", predicate=lambda one: isinstance(one, SavesItself), save_fn=saves, restore_fn=restores
    )
    dense, table, number_of, own = tf.Variable([1.0, 2.0]), tf.Variable(tf.zeros([3, 2])), tf.Variable(7), SavesItself()
    table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1])))
    before = [dense.numpy().tolist(), table.numpy().tolist()]
    checkpoint = tf.train.Checkpoint(dense=dense, table=table, number=number_of, own=own)
    write = tensorflow_private.snapshot(checkpoint)
    dense.assign_add([1.0, 1.0])
    table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2])))
    number_of.assign(8)
    own.number.assign(0)
    (tmp_path / "part").mkdir()
    write(str(tmp_path / "part" / "model"))
    checkpoint.read(str(tmp_path / "part" / "model"))
    assert [dense.numpy().tolist(), table.numpy().tolist()] == before and (int(number_of), int(own.number)) == (7, 1)
    assert all(name.startswith("model") for name in os.listdir(tmp_path / "part"))
