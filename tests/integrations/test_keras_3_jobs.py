# SPDX-License-Identifier: Apache-2.0
"""digits_keras.py with Keras 3: on Horovod with our patch, on Horovod as it is, and with one import changed."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from horovods import horovod, needs_keras_3  # noqa: F401
from jobs import run_job

pytestmark = [pytest.mark.horovod, needs_keras_3, pytest.mark.limit(180)]

OURS, STOCK, PLAIN = "horovod_data.integrations.keras", "horovod.tensorflow.keras", "horovod.keras"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAINS = {"HOROVOD_CYCLE_TIME": None}  # Horovod's own
CHANGES = {  # in digits_keras.py: what is replaced, and by what
    "import horovod.tensorflow.keras as hvd\n": "import {module} as hvd\n",
    "EPOCHS = 12\n": "EPOCHS = 1\n",
    "tf.keras.optimizers.Adam(0.002 * hvd.size())": "tf.keras.optimizers.SGD(0.05)",
    "ledger = Ledger()\n": "first = model.get_weights()\nprint('compiled', flush=True)\nledger = Ledger()\n",
    "least_accuracy=0.95)\n": "least_accuracy=0.0)\n{write}",
}
WRITE = """
import os
import numpy as np
folder = os.environ["HVDATA_TEST_WEIGHTS"]
loss = np.float32(model.history.history["loss"][0])
np.savez(os.path.join(folder, f"{hvd.size()}.{hvd.rank()}.npz"), loss, first[0], *model.get_weights())
"""


def script(module):
    """digits_keras.py for one epoch. It writes its loss, and weights before and after."""
    text = (EXAMPLES / "digits_keras.py").read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new.format(module=module, write=WRITE))
    return f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n{text}"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, EXAMPLES / "digits_data.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def ended(digits, tmp_path):
    """A function that runs a script() on ranks, and gives (loss, first weight, weights) of each."""

    def run(text, ranks):
        env = {**TRAINS, "DIGITS_FOLDER": str(digits), "HVDATA_TEST_WEIGHTS": str(tmp_path)}
        run_job(text, ranks, env=env, timeout=120)
        files = [np.load(tmp_path / f"{ranks}.{rank}.npz") for rank in range(ranks)]
        all_of_it = [[file[f"arr_{index}"] for index in range(len(file.files))] for file in files]
        return [(loss, first, weights) for loss, first, *weights in all_of_it]

    return run


def same(one, other):
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other))


def distance(one, other):
    return max(np.abs(mine - theirs).max() for mine, theirs in zip(one, other))


@pytest.mark.parametrize(
    "module, patched, counts",
    [
        pytest.param(STOCK, True, [2], id="patched"),
        pytest.param(STOCK, True, [4], id="patched, 4 ranks", marks=pytest.mark.slow),
        pytest.param(OURS, False, [2, 4], id="ours", marks=pytest.mark.slow),
        pytest.param(PLAIN, True, [2, 4], id="horovod.keras", marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_of_one_process(horovod, ended, module, patched, counts):  # noqa: F811
    horovod(patched)
    ((loss, _, weights),) = ended(script(module), 1)
    for count in counts:
        ranks = ended(script(module), count)
        assert not np.array_equal(ranks[0][1], ranks[1][1])
        for _, _, mine in ranks:
            assert same(mine, ranks[0][2]) and distance(mine, weights) < 1e-5
        # The last batch has filler rows, which Keras counts.
        assert abs(np.mean([each for each, *_ in ranks]) - loss) < 1e-3


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


@pytest.mark.slow
@pytest.mark.parametrize("module", [STOCK, PLAIN])
def test_tf_keras_on_horovod_with_our_patch(horovod, tmp_path, module):  # noqa: F811
    """With tf_keras the optimizers stay Horovod's, which averages their gradients."""
    pytest.importorskip("tf_keras")
    horovod(patched=True)
    env = {**TRAINS, "TF_USE_LEGACY_KERAS": "1"}
    run_job(OF_TF_KERAS.format(module=module), 2, str(tmp_path), env=env, timeout=100)
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other


OF_ANOTHER_BACKEND = """
import keras, tensorflow as tf
keras.backend.backend = tf.keras.backend.backend = lambda: "jax"
import {module} as hvd
hvd.init()
print("rank", hvd.rank())
"""


@pytest.mark.parametrize("module", [STOCK, pytest.param(PLAIN, marks=pytest.mark.slow)])
def test_another_backend_on_horovod_with_our_patch(horovod, tmp_path, module):  # noqa: F811
    """Another backend has no optimizer of ours. The rest of Horovod can be used."""
    horovod(patched=True)
    job = run_job(OF_ANOTHER_BACKEND.format(module=module), 1, timeout=100)
    assert "rank 0" in job.stdout[0], job.describe()


EARLY = """
import horovod.tensorflow.keras as hvd
import tensorflow as tf
import horovod_data as hvdata
hvd.init()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05))
hvdata.init()
"""
OF_TENSORFLOW = """
import horovod.tensorflow as hvd
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05))
"""
LOADED = """
import os
import horovod.tensorflow.keras as hvd
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
path = os.path.join(os.environ["HVDATA_TEST_DIR"], f"{hvd.rank()}.keras")
model.save(path)
hvd.load_model(path)
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
    "text, ranks",
    [
        pytest.param(script(STOCK), 4, id="horovod.tensorflow.keras", marks=pytest.mark.slow),
        pytest.param(script(PLAIN), 2, id="horovod.keras", marks=pytest.mark.slow),
        pytest.param(EARLY, 2, id="made before init"),
        pytest.param(LOADED, 2, id="load_model", marks=pytest.mark.slow),
        pytest.param(OF_TENSORFLOW, 2, id="horovod.tensorflow", marks=pytest.mark.slow),
    ],
)
def test_horovod_as_it_is(horovod, digits, text, ranks):  # noqa: F811
    """An error on every rank, before the first step."""
    horovod(patched=False)
    env = {"DIGITS_FOLDER": str(digits)}
    job = run_job(ALL_WRITE.format(script=textwrap.indent(text, "    ")), ranks, env=env, timeout=100, status=None)
    assert job.returncode != 0 and not any("compiled" in out for out in job.stdout), job.describe()
    for rank, text in enumerate(job.stderr):
        assert f"RuntimeError: [rank {rank} on " in text, job.describe()
        assert "Horovod's DistributedOptimizer does not average the gradients of an optimizer of Keras 3" in text
        assert "horovod_data.integrations.keras" in text and "TF_USE_LEGACY_KERAS=1 with the package tf_keras" in text


OF_ANOTHER_KERAS = """
import keras, tensorflow

def imported():
    try:
        import horovod_data.integrations.keras
    except ImportError as error:
        print(error, flush=True)

ours, keras.backend.backend = keras.backend.backend, lambda: "jax"
imported()
keras.backend.backend, keras.__version__ = ours, "2.15.0"
imported()
"""


def test_another_keras_is_refused():
    job = run_job(OF_ANOTHER_KERAS, 1)
    of_jax, of_keras_2 = job.stdout[0].splitlines()
    assert of_jax.startswith("horovod_data.integrations.keras needs Keras' backend tensorflow, and this is jax"), of_jax
    said = "horovod_data.integrations.keras is for Keras 3, and this is Keras 2.15.0. Import horovod.tensorflow.keras."
    assert of_keras_2.startswith(said), of_keras_2
