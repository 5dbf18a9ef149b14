# SPDX-License-Identifier: Apache-2.0
"""horovod_data.integrations.keras: Horovod's optimizer and callbacks for Keras 3."""

import numpy as np
import pytest
import tensorflow as tf
from together import raises_everywhere, results

keras = pytest.importorskip("keras", minversion="3", reason="Keras 2 is installed; TensorFlow 2.21 has Keras 3")
pytest.importorskip("horovod.tensorflow")
import horovod_data.integrations.keras as hvd  # noqa: E402

pytestmark = [pytest.mark.world(np=2), pytest.mark.ranks(1, 2, 4), pytest.mark.limit(120)]

SGD, Adam, LossScale = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.LossScaleOptimizer
ROWS, BATCH, STEPS = 64, 16, 4


def rows(batch=BATCH):
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    words = random.integers(0, 5, size=(ROWS, 3))
    return tf.data.Dataset.from_tensor_slices(((x, words), np.tanh(x.sum(axis=1, keepdims=True)))).batch(batch)


def model_of(optimizer, seed=1, dtype=None, **how):
    keras.utils.set_random_seed(seed)
    x, words = keras.Input((8,)), keras.Input((3,), dtype="int64")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(6, 2, dtype=dtype)(words))
    hidden = keras.layers.Dense(16, activation="tanh", dtype=dtype)(keras.layers.Concatenate()([x, embedded]))
    model = keras.Model([x, words], keras.layers.Dense(1, dtype="float32")(hidden))
    if dtype is not None:
        model.dtype_policy = dtype  # for float16 compile() adds a LossScaleOptimizer
    model.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError(), **how)
    return model


def fitted(model, data, epochs=3, callbacks=()):
    history = model.fit(data, epochs=epochs, verbose=0, callbacks=[*callbacks]).history
    return model.get_weights(), history["loss"]


def fit_on_all(hvdata, comm, model, **more):
    """(weights, losses) of each rank, which begin with other weights."""
    data = hvdata.distribute_dataset(rows, batch="global")
    both = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    return results(comm, lambda: fitted(model, data, callbacks=both, **more))


def same(one, other):
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other))


def distance(one, other):
    return max(np.abs(mine - theirs).max() for mine, theirs in zip(one, other))


def scaled_inside(**options):
    return lambda: hvd.DistributedOptimizer(LossScale(SGD(0.05)), **options)


def scaled_outside(**options):
    return lambda: LossScale(hvd.DistributedOptimizer(SGD(0.05), **options))


def distributed(make, **options):
    return lambda: hvd.DistributedOptimizer(make(), **options)


def plain():
    return SGD(0.05)


# What horovod.tensorflow.DistributedOptimizer passes on.
FIXED = dict(device_dense="", device_sparse="", gradient_predivide_factor=1.0, scale_local_gradients=True)
FIXED["process_set"] = hvd.global_process_set


def everything():
    return SGD(0.05, momentum=0.9, clipnorm=0.5, use_ema=True, weight_decay=0.01)


def accumulating():
    return SGD(0.05, gradient_accumulation_steps=2)


CASES = {  # the optimizer of the ranks, of one process, how to compile
    "sgd": (distributed(plain), plain, {}),
    "momentum, clipping, averages": (distributed(everything), everything, {}),
    "accumulation": (distributed(accumulating), accumulating, {}),
    "passes": (distributed(plain, backward_passes_per_step=2, average_aggregated_gradients=True), accumulating, {}),
    "eager": (distributed(plain), plain, dict(run_eagerly=True)),
    "eager passes": (distributed(lambda: SGD(0.025), backward_passes_per_step=2), accumulating, dict(run_eagerly=True)),
    "several steps": (distributed(plain), plain, dict(steps_per_execution=2)),
    "of horovod.tensorflow": (lambda: hvd.DistributedOptimizer(plain(), **FIXED), plain, {}),
    "dense": (distributed(plain, sparse_as_dense=True), plain, {}),
    "sum": (lambda: hvd.DistributedOptimizer(SGD(0.05 / hvd.size()), op=hvd.Sum), plain, {}),
    "scaled inside": (scaled_inside(), lambda: LossScale(plain()), {}),
    "scaled outside": (scaled_outside(), lambda: LossScale(plain()), {}),
    "scaled passes": (scaled_inside(backward_passes_per_step=2, average_aggregated_gradients=True), accumulating, {}),
    "adam": (distributed(lambda: Adam(0.01)), lambda: Adam(0.01), {}),
    "compressed": (distributed(plain, compression=hvd.Compression.fp16), plain, {}),
}
ROUNDED = ("adam", "compressed")  # rounding errors change the weights, and the losses little
# Other tests apply gradients with passes and as dense ones.
FAST = ("sgd", "of horovod.tensorflow", "momentum, clipping, averages", "eager", "scaled inside", *ROUNDED)


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[pytest.mark.slow] * (case not in FAST)) for case in CASES
])  # fmt: skip
def test_weights_are_those_of_one_process(hvdata, comm, case):
    make, alone, how = CASES[case]
    want, losses = fitted(model_of(alone(), **how), rows())
    got = fit_on_all(hvdata, comm, model_of(make(), seed=1 + hvd.rank(), **how))
    for weights, mean_losses in got:
        assert same(weights, got[0][0]) and (case in ROUNDED or distance(weights, want) < 1e-5)
        assert np.allclose(mean_losses, losses, rtol=0, atol=1e-4 if case in ROUNDED else 1e-5)


@pytest.mark.parametrize("dtype", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)])
def test_mixed_precision_is_one_process_that_makes_the_same_shares(hvdata, comm, dtype):
    """One process that makes a step of the whole batch rounds its gradient once, to 16 bits. Ranks round each share's.

    So the oracle accumulates the gradients of the shares. The whole batch gives other weights, also without ranks.
    """
    policy, size = keras.DTypePolicy(dtype), hvd.size()
    accumulating = SGD(0.05, gradient_accumulation_steps=size if size > 1 else None)
    want, _ = fitted(model_of(accumulating, dtype=policy), rows(BATCH // size))
    model = model_of(hvd.DistributedOptimizer(plain()), seed=1 + hvd.rank(), dtype=policy)
    assert isinstance(model.optimizer, LossScale) == (dtype == "mixed_float16")  # Keras puts one around ours
    got = fit_on_all(hvdata, comm, model)
    for weights, _ in got:
        assert same(weights, got[0][0]) and distance(weights, want) < 1e-5
    if size > 1:
        whole, _ = fitted(model_of(plain(), dtype=policy), rows())
        assert distance(whole, want) > 1e-5


def variables_of(dtypes, values):
    return [keras.Variable(value, dtype=dtype, name=f"v{i}") for i, (dtype, value) in enumerate(zip(dtypes, values))]


def applied(optimizer, values, *steps, graph=True, dtypes=("float32",) * 3):
    """The values of variables after each of the steps. A step has a list of gradients."""
    variables = variables_of(dtypes, values)
    optimizer.build(variables)
    apply = lambda grads: optimizer.apply(grads, variables)
    apply, seen = tf.function(apply) if graph else apply, []
    for grads in steps:
        apply(grads)
        seen.append([variable.numpy() for variable in variables])
    return seen


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_sparse_gradients(hvdata, comm, graph):
    """Each rank has another number of rows, some of them twice. A tensor stands before and after them."""
    mine = hvd.rank()
    indices = [mine % 3] * (mine + 1)
    slices = tf.IndexedSlices(tf.fill([mine + 1, 2], 1.0), tf.constant(indices), tf.constant([3, 2]))
    run = lambda **options: applied(
        hvd.DistributedOptimizer(SGD(1.0), **options),
        [np.zeros(2), np.zeros((3, 2)), np.zeros(1)],
        [tf.fill([2], float(mine)), slices, tf.fill([1], 2.0 * mine)],
        graph=graph,
    )
    want = np.zeros((3, 2))
    for rank in range(hvd.size()):
        want[rank % 3] -= (rank + 1) / hvd.size()
    mean = np.mean(np.arange(hvd.size()))
    for options in {}, {"sparse_as_dense": True}:
        for ((before, middle, after),) in results(comm, lambda: run(**options)):
            assert np.allclose(before, -mean) and np.allclose(middle, want) and np.allclose(after, -2 * mean), options


@pytest.mark.parametrize("graph", [False, True])
def test_gradients_of_several_dtypes(hvdata, comm, graph):
    dtypes = "float32", "float64", "float32"
    grads = [tf.fill([2], tf.cast(hvd.rank() + index, dtype)) for index, dtype in enumerate(dtypes)]
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    mean = np.mean(np.arange(hvd.size()))
    for (values,) in results(comm, lambda: applied(optimizer, np.zeros([3, 2]), grads, graph=graph, dtypes=dtypes)):
        assert np.allclose(values, [[-mean] * 2, [-mean - 1] * 2, [-mean - 2] * 2])


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that is not registered with Keras."""

    def __call__(self, step):
        return 0.5

    def get_config(self):
        return {}


@pytest.mark.parametrize("rate", [Halved(), lambda: 0.5], ids=["schedule", "function"])
def test_a_rate_that_a_configuration_does_not_have(hvdata, comm, rate):
    def run():
        given = SGD(rate, momentum=0.5)
        made = hvd.DistributedOptimizer(given)
        assert made.learning_rate == given.learning_rate == 0.5
        assert len(made.variables) == len(given.variables)
        config = made.get_config()["optimizer"]
        assert config["class_name"] == "SGD" and config["config"]["momentum"] == 0.5
        scaled = hvd.DistributedOptimizer(LossScale(SGD(rate)))
        return scaled.learning_rate, applied(made, [[0.0]], [tf.constant([float(hvd.rank())])])

    for inner, values in results(comm, run):
        assert inner == 0.5 and np.allclose(values, -0.5 * np.mean(np.arange(hvd.size())))


several_optimizers = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)


def one_for_each(make):
    """A MultiOptimizer with an optimizer for v0, and another one for all other variables."""
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(make(1.0), {"v0": make(2.0)}))


def several():
    return one_for_each(lambda rate: SGD(rate, momentum=0.5))


@pytest.mark.parametrize("make", [
    lambda: SGD(1.0, momentum=0.5, weight_decay=0.5), pytest.param(several, marks=several_optimizers)],
    ids=["one", "several"])  # fmt: skip
def test_a_built_optimizer_keeps_its_variables(hvdata, comm, make):
    """A single optimizer also keeps what it leaves out of weight decay, which is not in its configuration."""

    def run():
        given = make()
        if make is not several:
            given.exclude_from_weight_decay(var_names=["v1"])
        applied(given, [[0.0], [4.0]], [tf.constant([1.0]), tf.constant([1.0])])
        kept = hvd.DistributedOptimizer(given)
        left_out = [] if make is several else [kept._use_weight_decay(each) for each in kept._trainable_variables]
        return [one.numpy() for one in kept.variables], [one.numpy() for one in given.variables], left_out

    for mine, theirs, left_out in results(comm, run):
        assert same(mine, theirs) and len(mine) == len(theirs) >= 4
        assert left_out == ([] if make is several else [True, False])


@keras.saving.register_keras_serializable("test")
def halves(variable):
    return SGD(0.5, momentum=0.5)


@several_optimizers
def test_a_multi_optimizer_with_a_registered_function(hvdata, comm):
    def run():
        saved = hvd.DistributedOptimizer(keras.optimizers.MultiOptimizer(halves), op=hvd.Sum)
        loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(saved))
        return applied(loaded, [[0.0]], [tf.constant([float(hvd.rank())])])

    for ((total,),) in results(comm, run):
        assert np.allclose(total, -0.5 * sum(range(hvd.size())))


SCALED = {  # averaging is in each of the optimizers, or around them
    "one": lambda: LossScale(hvd.DistributedOptimizer(SGD(1.0))),
    "inside": lambda: LossScale(one_for_each(lambda rate: hvd.DistributedOptimizer(SGD(rate)))),
    "outside": lambda: LossScale(hvd.DistributedOptimizer(one_for_each(SGD))),
}


@pytest.mark.parametrize("case", [
    "one", *(pytest.param(case, marks=several_optimizers) for case in ("inside", "outside"))])  # fmt: skip
def test_ranks_skip_the_same_steps(hvdata, comm, case):
    """One rank alone has an infinite gradient in the first step."""
    optimizer = SCALED[case]()
    first = [tf.constant([np.inf if hvd.rank() == hvd.size() - 1 else 1.0]), tf.constant([1.0])]
    second = [tf.constant([optimizer.initial_scale / 2 * hvd.rank()])] * 2
    run = lambda: (applied(optimizer, np.zeros([2, 1]), first, second), float(optimizer.dynamic_scale.numpy()))
    mean = np.mean(np.arange(hvd.size()))
    for (skipped, values), scale in results(comm, run):
        assert not np.any(skipped) and scale == optimizer.initial_scale / 2
        assert np.allclose(np.ravel(values), [-mean if case == "one" else -2 * mean, -mean])


def test_the_default_is_no_xla_on_a_machine_with_a_gpu(hvdata, comm, tmp_path, monkeypatch):
    """This holds for a model that was saved there without our optimizer, too."""
    path = tmp_path / "model.keras"

    def run():
        hvd.DistributedOptimizer(plain())
        alone = model_of(plain())
        alone.save(path)
        loaded = hvd.load_model(path)
        fit_rows(loaded, 1)
        compiled = [model_of(make()).jit_compile for make in (distributed(plain), scaled_inside(), scaled_outside())]
        return alone.jit_compile, loaded.jit_compile, compiled

    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [gpu])
    monkeypatch.delenv("HOROVOD_ENABLE_XLA_OPS", raising=False)
    for alone, loaded, compiled in results(comm, run):
        assert alone and not loaded and compiled == [False] * 3
    monkeypatch.setenv("HOROVOD_ENABLE_XLA_OPS", "1")
    assert all(results(comm, lambda: model_of(distributed(plain)()).jit_compile))


def test_passes_are_added_up(hvdata, comm):
    """Nothing changes before the last pass. A variable without a gradient stays."""
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=3)
    steps = [[tf.constant([float(hvd.rank() + step)]), None] for step in range(6)]
    run = lambda: (applied(optimizer, [[0.0], [5.0]], *steps), int(optimizer.iterations.numpy()))
    mean = np.mean(np.arange(hvd.size()))
    for seen, iterations in results(comm, run):
        first, second = -(3 * mean + 3), -(3 * mean + 3) - (3 * mean + 12)
        assert np.allclose(np.ravel([one for one, _ in seen]), [0, 0, first, first, first, second])
        assert all(untouched == 5 for _, untouched in seen) and iterations == 2


@pytest.mark.parametrize("scaled", [False, True])
def test_a_saved_model_keeps_its_optimizer(hvdata, comm, tmp_path, scaled):
    """The model is saved in Keras' own format. From HDF5, Keras 3.15 makes optimizers that can't train."""
    options = dict(backward_passes_per_step=2, op=hvd.Sum, compression=hvd.Compression.fp16)
    inner = hvd.DistributedOptimizer(
        SGD(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5), momentum=0.9), **options
    )
    model = model_of(LossScale(inner) if scaled else inner)
    path = tmp_path / "model.keras"

    def run():
        fit_rows(model, 2)
        model.save(path)
        again = keras.models.load_model(path)
        both = [getattr(each.optimizer, "inner_optimizer", each.optimizer) for each in (model, again)]
        kept = [one.numpy() for one in again.optimizer.variables], [one.numpy() for one in model.optimizer.variables]
        for each in model, again:
            fit_rows(each, 2)
        return [type(one).__name__ for one in both], both[0].get_config() == both[1].get_config(), kept, (
            model.get_weights(), again.get_weights())  # fmt: skip

    for kinds, alike, (mine, theirs), (weights, others) in results(comm, run):
        assert kinds == ["DistributedSGD"] * 2 and alike
        assert len(mine) == len(theirs) and same(mine, theirs) and same(weights, others)


def fit_rows(model, epochs):
    model.fit(rows().shard(hvd.size(), hvd.rank()), epochs=epochs, verbose=0)


def test_load_model_makes_a_plain_optimizer_average(hvdata, comm, tmp_path):
    model = model_of(SGD(0.05, momentum=0.9))
    fitted(model, rows(), epochs=1)
    path = tmp_path / "model.keras"
    model.save(path)

    def run():
        loaded = hvd.load_model(path)
        assert same(
            [one.numpy() for one in loaded.optimizer.variables], [one.numpy() for one in model.optimizer.variables]
        )
        fit_rows(loaded, 1)
        loaded.save(path)
        return type(keras.models.load_model(path).optimizer).__name__, loaded.get_weights()

    got = results(comm, run)
    assert all(name == "DistributedSGD" and same(weights, got[0][1]) for name, weights in got)


REFUSED = {
    "no optimizer": (TypeError, lambda: hvd.DistributedOptimizer("sgd"), "was given builtins.str"),
    "twice": (ValueError, lambda: hvd.DistributedOptimizer(distributed(plain)()), "averages gradients already"),
    "twice, scaled": (ValueError, lambda: hvd.DistributedOptimizer(scaled_outside()()), "averages gradients already"),
    "some ranks": (
        ValueError, lambda: hvd.DistributedOptimizer(plain(), process_set=hvd.ProcessSet([0])), "was given process_set=",
    ),
    "groups": (ValueError, lambda: hvd.DistributedOptimizer(plain(), groups=2), "was given groups=2. Leave it out"),
    "unknown": (TypeError, lambda: hvd.DistributedOptimizer(plain(), group=2), "has no argument 'group'"),
    "op": (ValueError, lambda: hvd.DistributedOptimizer(plain(), op=hvd.Adasum), "op must be one of .* average and sum"),
    "compression": (ValueError, lambda: hvd.DistributedOptimizer(plain(), compression=int), "none and fp16"),
    "passes": (ValueError, lambda: hvd.DistributedOptimizer(plain(), backward_passes_per_step=0), "not 0"),
    "rate": (ValueError, lambda: hvd.callbacks.LearningRateWarmupCallback(None), "needs initial_lr"),
    "jit": (
        RuntimeError,
        lambda: fit_rows(model_of(distributed(plain)(), jit_compile=True), 1),
        r"can't compile Horovod's collectives.*jit_compile=False",
    ),
    "jit, scaled passes": (
        RuntimeError,
        lambda: fit_rows(model_of(scaled_outside(backward_passes_per_step=2)(), jit_compile=True), 1),
        r"can't compile Horovod's collectives",
    ),
    "steps": (
        ValueError,
        lambda: model_of(distributed(plain)()).fit(
            rows().filter(lambda *_: True), callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.1)]
        ),
        "Pass steps_per_epoch",
    ),
    "gradients": (ValueError, lambda: distributed(plain)().apply([tf.zeros(1)]), "must already be built"),
    "variables": (
        ValueError, lambda: hvd.DistributedOptimizer(built()).apply([tf.zeros(1)], [keras.Variable([0.0])]), "Unknown variable",
    ),
}  # fmt: skip


def built():
    optimizer = plain()
    optimizer.build([keras.Variable([0.0])])
    return optimizer


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(hvdata, comm, case):
    kind, call, text = REFUSED[case]
    raises_everywhere(comm, call, kind, text)


def test_broadcast_comes_before_the_first_step(hvdata, comm):
    """Each rank keeps its seeds."""
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(SGD(0.1 * (1 + hvd.rank()))), loss="mse")
    seed = [variable for variable in model.variables if "seed" in variable.path]
    before = results(comm, lambda: ([one.numpy().tolist() for one in seed], model.get_weights()))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)

    def run():
        callback.set_model(model)
        callback.on_train_begin()
        return (
            [one.numpy().tolist() for one in seed], model.get_weights(), float(model.optimizer.learning_rate.numpy()),
        )  # fmt: skip

    for (seeds, _), (seeds_now, now, rate) in zip(before, results(comm, run)):
        assert seeds and seeds_now == seeds
        assert same(now, before[0][1]) and np.isclose(rate, 0.1)


def test_a_model_that_fit_builds(hvdata, comm):
    """Keras has no weights before the first step. Rank 0 has made a model before, so its layers and tensors have other
    names. The collectives don't."""
    if hvd.rank() == 0:
        model_of(hvd.DistributedOptimizer(Adam()))
    data = hvdata.distribute_dataset(lambda: rows().map(lambda x, y: (x[0], y)), batch="global")

    def run():
        keras.utils.set_random_seed(1 + hvd.rank())
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(Adam(0.1)), loss="mse")
        return fitted(model, data, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])[0]

    got = results(comm, run)
    assert len(got[0]) == 2 and all(same(weights, got[0]) for weights in got)


def test_metrics_are_averaged(hvdata, comm):
    logs = {"loss": float(hvd.rank()), "vector": np.float32([hvd.rank(), 1])}

    def run():
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
        return logs

    mean = (hvd.size() - 1) / 2
    for seen in results(comm, run):
        assert seen["loss"] == mean and seen["vector"].tolist() == [mean, 1]


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.all = []

    def on_train_batch_end(self, batch, logs=None):
        self.all.append(float(self.model.optimizer.learning_rate.numpy()))


def rates(callback, optimizer, epochs=3):
    seen = Rates()
    history = model_of(optimizer).fit(rows(), epochs=epochs, verbose=0, callbacks=[callback, seen]).history
    return seen.all, history["lr"]


def test_warm_up(hvdata, comm, capsys):
    ranks, rate = hvd.size(), 0.1 * hvd.size()
    callback = hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2, verbose=1)
    got = results(comm, lambda: (rates(callback, LossScale(SGD(rate, momentum=0.9))), capsys.readouterr().out))
    part = [min((step + 1) / (2 * STEPS), 1.0) for step in range(3 * STEPS)]
    want = [rate / ranks + (rate - rate / ranks) * done for done in part]
    for rank, ((seen, logged), out) in enumerate(got):
        assert np.allclose(seen, want) and np.allclose(logged, want[STEPS - 1 :: STEPS])
        assert ("Epoch 2: the warm-up" in out) == (rank == 0)


@pytest.mark.parametrize("multiplier", [0.5, lambda epoch: 0.5 ** (epoch - 1)], ids=["number", "function"])
def test_schedule(hvdata, comm, multiplier):
    callback = lambda **options: hvd.callbacks.LearningRateScheduleCallback(
        0.2, multiplier, start_epoch=1, end_epoch=3, **options
    )
    for options, want in (
        ({}, [0.1] * STEPS + [0.2] * STEPS + [0.1] * STEPS * 2),
        (dict(staircase=False), [0.1] * STEPS + [0.2 * 0.5 ** (step / STEPS) for step in range(2 * STEPS)]),
    ):
        for seen, _ in results(comm, lambda: rates(callback(**options), SGD(0.1), epochs=4)):
            assert np.allclose(seen[: len(want)], want)


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("kind", [SGD, keras.optimizers.RMSprop])
def test_momentum_correction(hvdata, comm, corrects, kind):
    """A new rate, which is a factor of all that was summed up before."""

    def run():
        model = model_of(kind(0.1, momentum=0.9))
        model.optimizer.build(model.trainable_variables)
        sums = [one for one in model.optimizer.variables if one.path.endswith("momentum")]
        for each in sums:
            each.assign(tf.ones_like(each))
        callback = hvd.callbacks.LearningRateScheduleCallback(0.05, 1, momentum_correction=corrects)
        callback.set_model(model)
        callback.on_train_batch_begin(0)
        return [float(each.numpy().ravel()[0]) for each in sums]

    for sums in results(comm, run):
        assert len(sums) == 5 and np.allclose(sums, 0.5 if corrects else 1.0)
