# SPDX-License-Identifier: Apache-2.0
"""The README's script with Keras 3: on Horovod with our patch, on Horovod as it is, and with one import changed."""

import json
import textwrap

import numpy as np
import pytest
from horovods import horovod, needs_keras_3  # noqa: F401
from jobs import run_job

pytestmark = [pytest.mark.horovod, needs_keras_3, pytest.mark.limit(180)]

SCRIPT = """
import json, os, sys
import {module} as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod_data as hvdata

hvdata.init()


def images():
    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000, seed=1, reshuffle_each_iteration=False)


train = hvdata.distribute_dataset(lambda: images().batch(128), batch="global", remainder="pad", weigh="rows")
hvdata.serve()

tf.keras.utils.set_random_seed(1 + hvd.rank())
model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(8, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
first = [weight.sum().item() for weight in model.get_weights()]
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
print("compiled", flush=True)
losses = model.fit(
    train, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvdata.callbacks.MetricAverage()]
).history["loss"]
with open(os.path.join(sys.argv[1], f"{{hvd.size()}}.{{hvd.rank()}}.json"), "w") as file:
    json.dump([losses, first, [weight.tolist() for weight in model.get_weights()]], file)
"""
OURS, STOCK, PLAIN = "horovod_data.integrations.keras", "horovod.tensorflow.keras", "horovod.keras"


TRAINS = {"HOROVOD_CYCLE_TIME": None}  # Horovod's own


@pytest.mark.parametrize(
    "module, patched", [(OURS, False), (STOCK, True), (PLAIN, True)], ids=["ours", "patched", "horovod.keras"]
)
def test_weights_are_those_of_one_process(horovod, tmp_path, module, patched):  # noqa: F811
    horovod(patched)
    ended = {}
    for np_ in 1, 2, 4:
        job = run_job(SCRIPT.format(module=module), np_, str(tmp_path), env=TRAINS, timeout=100)
        assert job.returncode == 0, job.describe()
        ended[np_] = [json.loads((tmp_path / f"{np_}.{rank}.json").read_text()) for rank in range(np_)]
    ((losses, _, weights),) = ended[1]
    for ranks in ended[2], ended[4]:
        assert ranks[0][1] != ranks[1][1]  # the first weights
        for mean_losses, _, mine in ranks:
            assert mine == ranks[0][2]
            assert np.allclose(
                mean_losses, losses, rtol=0, atol=1e-3
            )  # the last batch has filler rows, which Keras counts
            assert all(np.allclose(one, other, rtol=0, atol=1e-5) for one, other in zip(mine, weights))


OF_TF_KERAS = """
import json, os, sys
import numpy as np
import tensorflow as tf
import horovod.keras
import horovod.tensorflow.keras

hvd = {module}
hvd.init()
tf.keras.utils.set_random_seed(1 + hvd.rank())
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
x = np.random.normal(size=(32, 4))
callbacks = [horovod.tensorflow.keras.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=callbacks)
with open(os.path.join(sys.argv[1], f"{{hvd.rank()}}.json"), "w") as file:
    json.dump([weight.tolist() for weight in model.get_weights()], file)
"""


@pytest.mark.parametrize("module", [STOCK, PLAIN])
def test_tf_keras_on_horovod_with_our_patch(horovod, tmp_path, module):  # noqa: F811
    """Its optimizers stay Horovod's, which averages their gradients."""
    pytest.importorskip("tf_keras")
    horovod(patched=True)
    env = {**TRAINS, "TF_USE_LEGACY_KERAS": "1"}
    job = run_job(OF_TF_KERAS.format(module=module), 2, str(tmp_path), env=env, timeout=100)
    assert job.returncode == 0, job.describe()
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other


OF_ANOTHER_BACKEND = """
import keras, tensorflow as tf
keras.backend.backend = tf.keras.backend.backend = lambda: "jax"
import {module} as hvd
hvd.init()
print("rank", hvd.rank())
"""


@pytest.mark.parametrize("module", [STOCK, PLAIN])
def test_another_backend_on_horovod_with_our_patch(horovod, tmp_path, module):  # noqa: F811
    """It has no optimizer of ours. The rest of Horovod can be used."""
    horovod(patched=True)
    job = run_job(OF_ANOTHER_BACKEND.format(module=module), 1, timeout=100)
    assert job.returncode == 0 and "rank 0" in job.stdout[0], job.describe()


EARLY = """
import horovod.tensorflow.keras as hvd
import tensorflow as tf
import horovod_data as hvdata
hvd.init()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05))
hvdata.init()
"""
# A rank that ended at once would end the others before they write.
ALL_WRITE = """
import sys, time
try:
{script}
except RuntimeError as error:
    print("RuntimeError:", error, file=sys.stderr, flush=True)
    time.sleep(2)
    sys.exit(1)
"""


@pytest.mark.parametrize(
    "script, np_",
    [(SCRIPT.format(module=STOCK), 2), (SCRIPT.format(module=PLAIN), 4), (EARLY, 2)],
    ids=["horovod.tensorflow.keras", "horovod.keras", "made before init"],
)
def test_horovod_as_it_is(horovod, tmp_path, script, np_):  # noqa: F811
    """An error on every rank, before the first step."""
    horovod(patched=False)
    job = run_job(ALL_WRITE.format(script=textwrap.indent(script, "    ")), np_, str(tmp_path), timeout=100)
    assert job.returncode != 0 and not any("compiled" in out for out in job.stdout), job.describe()
    for rank, text in enumerate(job.stderr):
        assert f"RuntimeError: [rank {rank} on " in text, job.describe()
        assert "Horovod's DistributedOptimizer does not average the gradients of an optimizer of Keras 3" in text
        assert "horovod_data.integrations.keras" in text and "TF_USE_LEGACY_KERAS=1 with the package tf_keras" in text


@pytest.mark.parametrize(
    "change, text",
    [
        ('keras.backend.backend = lambda: "jax"', "needs Keras' backend tensorflow, and this is jax"),
        ('keras.__version__ = "2.15.0"', "is for Keras 3, and this is Keras 2.15.0. Import horovod.tensorflow.keras."),
    ],
    ids=["backend", "Keras 2"],
)
def test_another_keras_is_refused(change, text):
    job = run_job(f"import tensorflow, keras\n{change}\nimport horovod_data.integrations.keras", 1)
    assert job.returncode != 0 and f"ImportError: horovod_data.integrations.keras {text}" in job.stderr[0], (
        job.describe()
    )
