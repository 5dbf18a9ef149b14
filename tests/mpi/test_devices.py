# SPDX-License-Identifier: Apache-2.0
"""Several devices in one rank: each device gets rows of its own. Two logical CPU devices stand for GPUs."""

import numpy as np
import pytest
import tensorflow as tf
from together import merged, results

pytestmark = [pytest.mark.world(np=2), pytest.mark.own_job]  # a process has as many devices in all of its tests

DEVICES = 2
try:  # must come before anything uses TensorFlow
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
    )
except RuntimeError:
    pass  # if all files share a process, TensorFlow has begun; the fixture below reports that


@pytest.fixture
def devices():
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(names) == DEVICES, "run this file in a process of its own"
    return names


@pytest.fixture
def rows(hvdata, comm):
    """48 rows, in global batches of 24: each device of each rank gets 24 / N / 2 of a step."""
    return hvdata.distribute_dataset(
        tf.data.Dataset.range(48).batch(24, drop_remainder=True), batch="global", prefetch=4
    )


def test_mirrored_strategy(hvdata, comm, devices, rows):
    strategy = tf.distribute.MirroredStrategy(devices)

    def run():
        got = []
        for _ in range(2):
            for step in strategy.experimental_distribute_dataset(rows):
                got.append([part.numpy() for part in strategy.experimental_local_results(step)])
        return got

    got = results(comm, run)
    assert {len(part) for steps in got for step in steps for part in step} == {24 // comm.size // DEVICES}
    for epoch in range(2):
        order = [
            part for step in zip(*(steps[2 * epoch : 2 * epoch + 2] for steps in got)) for one in step for part in one
        ]
        np.testing.assert_array_equal(np.concatenate(order), np.arange(48))


def test_multi_device_iterator(hvdata, comm, devices, rows):
    """tf.data deals whole elements to devices in turn."""
    from tensorflow.python.data.ops import multi_device_iterator_ops

    def run():
        iterator = multi_device_iterator_ops.OwnedMultiDeviceIterator(rows, devices=devices)
        return [part.numpy() for part in iterator.get_next()]

    for _ in range(2):
        got = results(comm, run)
        per_device = [np.concatenate([parts[device] for parts in got]) for device in range(DEVICES)]
        np.testing.assert_array_equal(np.concatenate(per_device), np.arange(48))


@pytest.mark.parametrize("to", [
    lambda name: tf.data.experimental.prefetch_to_device(name), lambda name: tf.data.experimental.copy_to_device(name)],
    ids=["prefetch", "copy"])  # fmt: skip
def test_to_a_device(hvdata, comm, devices, rows, to):
    for device in devices:
        ds = rows.apply(to(device))
        got = results(comm, lambda ds=ds: [x.numpy() for x in ds])
        np.testing.assert_array_equal(np.concatenate(merged(got)), np.arange(48))
