# SPDX-License-Identifier: Apache-2.0
"""shard="auto": several readers with one pipeline deliver each of its rows once, without a line of code for it."""

import re

import numpy as np
import pytest
import tensorflow as tf
from together import raises_everywhere, results

pytestmark = [pytest.mark.world(np=1, readers=2), pytest.mark.readers(2, 3), pytest.mark.limit(120)]


@pytest.fixture(autouse=True)
def one_seed():
    """Without this, other tests' global seeds would give readers different orders of shuffles, which are refused."""
    tf.random.set_seed(5)


@pytest.fixture
def files(tmp_path, comm):
    """Seven text files, some with only one line."""
    folder = comm.bcast(str(tmp_path), 0)
    paths = [f"{folder}/{i}.txt" for i in range(7)]
    if comm.rank == 0:
        for i, path in enumerate(paths):
            with open(path, "w") as file:
                file.writelines(f"{i}-{line}\n" for line in range(1 + i % 3))
    comm.barrier()
    return paths


def lines_of(paths):
    return sorted(line.encode() for path in paths for line in open(path).read().split())


def rows(hvdata, comm, dataset, **options):
    """All rows of one pass, and the output of the readers."""
    ds = hvdata.distribute_dataset(
        dataset, batch=options.pop("batch", "per_rank"), remainder="partial", shard="auto", **options
    )

    def local():
        return [row for element in ds for row in element.numpy().tolist()] if hvdata.is_trainer() else []

    return sorted(row for mine in results(comm, local) for row in mine)


PIPELINES = {
    "text": lambda paths: tf.data.TextLineDataset(paths).batch(1),
    "interleave": lambda paths: (
        tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TextLineDataset, cycle_length=2).batch(2)
    ),
    "shuffled list": lambda paths: (
        tf.data.Dataset.list_files(paths, shuffle=True).flat_map(tf.data.TextLineDataset).batch(2)
    ),
    "shuffled": lambda paths: tf.data.TextLineDataset(paths).shuffle(5).map(lambda x: x).batch(3).prefetch(1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_files(hvdata, comm, files, capfd, name):
    for _ in range(2):
        assert rows(hvdata, comm, lambda: PIPELINES[name](files), name="train") == lines_of(files)
    told = results(comm, lambda: capfd.readouterr().err)
    readers = hvdata.num_readers()
    said = [line for text in told for line in text.splitlines() if "shard=" in line]
    assert len(said) == 2 and all(
        f'channel train] shard="auto": each of {readers} readers reads its own files, of 7.' in line for line in said
    ), told


ELEMENTS = {
    "range": (lambda: tf.data.Dataset.range(23).batch(2), "it does not begin with a list of files"),
    "generator": (
        lambda: tf.data.Dataset.from_generator(
            lambda: iter(range(23)), output_signature=tf.TensorSpec([], tf.int64)
        ).batch(2),
        "it does not begin with a list of files",
    ),
    "seeded": (lambda: tf.data.Dataset.range(23).shuffle(9, seed=3).batch(2), "it does not begin with a list of files"),
    "two sources": (
        lambda: tf.data.Dataset.range(11).concatenate(tf.data.Dataset.range(11, 23)).batch(2),
        "Concatenate counts, or is not known",
    ),
}


@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(hvdata, comm, capfd, name, batch):
    make, why = ELEMENTS[name]
    assert rows(hvdata, comm, make, batch=batch) == list(range(23))
    readers = hvdata.num_readers()
    said = [
        line for text in results(comm, lambda: capfd.readouterr().err) for line in text.splitlines() if "shard=" in line
    ]
    assert len(said) == 1 and f"reads everything and delivers one element in {readers} ({why})." in said[0], said


@pytest.mark.parametrize("make, why", [
    (lambda paths: tf.data.TextLineDataset(paths).take(4).batch(1), "Take counts"),
    (lambda paths: tf.data.TextLineDataset(paths[:1]).batch(1), "1 files for")], ids=["take", "one file"])  # fmt: skip
def test_files_that_can_not_be_divided(hvdata, comm, files, capfd, make, why):
    """Pipelines for which tf.data's AutoShard fails or delivers rows several times."""
    wanted = lines_of(files[:3])[:4] if "Take" in why else lines_of(files[:1])
    assert rows(hvdata, comm, lambda: make(files)) == wanted
    said = [
        line for text in results(comm, lambda: capfd.readouterr().err) for line in text.splitlines() if "shard=" in line
    ]
    assert len(said) == 1 and why in said[0], said


def test_every_epoch_its_own_dataset(hvdata, comm):
    ds = hvdata.distribute_dataset(
        lambda epoch: tf.data.Dataset.range(100 * epoch, 100 * epoch + 9).batch(1),
        batch="per_rank",
        remainder="partial",
        shard="auto",
    )
    for epoch in 1, 2:
        got = results(comm, lambda: [int(x[0]) for x in ds if len(x)] if hvdata.is_trainer() else [])
        assert sorted(x for mine in got for x in mine) == list(range(100 * epoch, 100 * epoch + 9))


@pytest.mark.parametrize("make, what", [
    (lambda: tf.data.Dataset.range(9).shuffle(9).batch(1), "ShuffleDataset has no seed"),
    (lambda: tf.data.Dataset.range(2).flat_map(lambda i: tf.data.Dataset.range(5).shuffle(5)).batch(1), "in a function has no seed"),
    (lambda: tf.data.Dataset.range(9).batch(1).with_options(_options()), "its options say deterministic=False")],
    ids=["shuffle", "in a function", "options"])  # fmt: skip
def test_an_order_of_each_readers_own_is_refused(hvdata, comm, make, what):
    tf.random.set_seed(None)  # with one, each shuffle has a seed of it
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(make, batch="per_rank", shard="auto"),
        ValueError,
        r'shard="auto" cannot give each reader its own files \(it does not begin with a list of files\), nor its own elements: ',
        what,
        "elements would come twice or not at all. Give it a seed",
    )


def _options():
    options = tf.data.Options()
    options.deterministic = False
    return options


def test_a_function_that_shards_itself_is_refused(hvdata, comm):
    def function(context):
        return tf.data.Dataset.range(24).shard(context.num_input_pipelines, context.input_pipeline_id).batch(1)

    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(function, batch="per_rank", shard="auto"),
        ValueError,
        r"divides one pipeline between the readers, but reader 0 on \S+ and reader 1 on \S+ have different ones",
        "leave shard out",
    )


def test_saved_and_restored(hvdata, comm, tmp_path):
    """Each reader resumes in its own part."""
    ds = hvdata.distribute_dataset(
        lambda: tf.data.Dataset.range(60).batch(1), batch="per_rank", remainder="partial", shard="auto"
    )
    folder = comm.bcast(str(tmp_path), 0)

    def first():
        if not hvdata.is_trainer():
            return []
        iterator = iter(ds)
        got = [int(next(iterator)[0]) for _ in range(3)]
        tf.train.Checkpoint(iterator=iterator).write(f"{folder}/{hvdata.rank()}")
        return got

    def second():
        if not hvdata.is_trainer():
            return []
        iterator = iter(ds)
        tf.train.Checkpoint(iterator=iterator).read(f"{folder}/{hvdata.rank()}").assert_consumed()
        return [int(x[0]) for x in iterator if len(x)]

    got = results(comm, first) + results(comm, second)
    assert sorted(np.concatenate([mine for mine in got if mine])) == list(range(60))


def test_saved_and_restored_between_files(hvdata, comm, files, tmp_path):
    """The save lies between records of files."""
    folder = comm.bcast(str(tmp_path), 0)
    paths = [f"{folder}/{i}.tfrecord" for i in range(5)]
    if comm.rank == 0:
        for i, path in enumerate(paths):
            with tf.io.TFRecordWriter(path) as writer:
                for record in range(6):
                    writer.write(b"%d-%d" % (i, record))
    comm.barrier()
    ds = hvdata.distribute_dataset(
        lambda: tf.data.TFRecordDataset(paths).batch(1),
        batch="per_rank",
        remainder="partial",
        shard="auto",
        name="records",
    )
    every = sorted(b"%d-%d" % (i, record) for i in range(5) for record in range(6))

    def part(steps):
        iterator = iter(ds)
        if steps is None:
            tf.train.Checkpoint(iterator=iterator).read(f"{folder}/state{hvdata.rank()}").assert_consumed()
            return [row for x in iterator for row in x.numpy().tolist()]
        got = [row for _ in range(steps) for row in next(iterator).numpy().tolist()]
        tf.train.Checkpoint(iterator=iterator).write(f"{folder}/state{hvdata.rank()}")
        return got

    got = [
        row
        for steps in (2, None)
        for mine in results(comm, lambda steps=steps: part(steps) if hvdata.is_trainer() else [])
        for row in mine
    ]
    assert sorted(got) == every
    assert (
        sorted(
            row
            for mine in results(
                comm, lambda: [x for x in ds.unbatch().as_numpy_iterator()] if hvdata.is_trainer() else []
            )
            for row in mine
        )
        == every
    )


# ---- What is not the same on all readers.


def test_lists_of_files_in_different_orders(hvdata, comm, files):
    """Files are divided by position. With different orders two readers would read one file, and no reader another."""
    mine = files[comm.rank :] + files[: comm.rank]
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(
            lambda: tf.data.TextLineDataset(mine).batch(1), batch="per_rank", shard="auto"
        ),
        ValueError,
        r"reader 0 on \S+ and reader 1 on \S+ have its files in different orders: rows would come twice",
        "Sort the list of files",
    )


@pytest.mark.parametrize("stage", ["shard", "filter"])
def test_python_code_behind_a_shard_by_hand(hvdata, comm, stage):
    """A pipeline whose graph can't be compared."""

    def function(context):
        all_of_it, readers, reader = tf.data.Dataset.range(24), context.num_input_pipelines, context.input_pipeline_id
        mine = (
            all_of_it.shard(readers, reader) if stage == "shard" else all_of_it.filter(lambda x: x % readers == reader)
        )
        return mine.map(lambda x: tf.ensure_shape(tf.py_function(lambda v: v, [x], tf.int64), [])).batch(1)

    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(function, batch="per_rank", shard="auto"),
        ValueError,
        r"reader 0 on \S+ and reader 1 on \S+ have different ones",
    )


def test_different_seeds_behind_a_generator(hvdata, comm):
    tf.random.set_seed(comm.rank + 1)

    def function():
        source = tf.data.Dataset.from_generator(lambda: iter(range(23)), output_signature=tf.TensorSpec([], tf.int64))
        return source.shuffle(9).batch(2)

    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(function, batch="per_rank", shard="auto"),
        ValueError,
        "have different seeds in it: rows would come twice",
        r"tf\.random\.set_seed\(\) the same",
    )
    tf.random.set_seed(5)
    assert rows(hvdata, comm, function) == list(range(23))


def numbers():
    return tf.data.Dataset.range(24)


RANDOM = {
    "map": (
        lambda: numbers().map(lambda x: x + 1, num_parallel_calls=2, deterministic=False),
        "ParallelMapDataset has deterministic=False",
    ),
    "interleave": (
        lambda: numbers().interleave(
            lambda x: tf.data.Dataset.from_tensors(x), num_parallel_calls=2, deterministic=False
        ),
        "ParallelInterleaveDataset has deterministic=False",
    ),
    "filter": (
        lambda: numbers().filter(lambda x: tf.random.uniform([]) < 0.5),
        "RandomUniform in a function has no seed",
    ),
    "in a branch": (
        lambda: numbers().filter(lambda x: tf.cond(x > 3, lambda: tf.random.uniform([]) < 0.5, lambda: True)),
        "RandomUniform in a function has no seed",
    ),
    "before a filter": (
        lambda: numbers().map(lambda x: (x, tf.random.uniform([]))).filter(lambda x, r: r < 0.5).map(lambda x, r: x),
        "RandomUniform in a function has no seed",
    ),
    "flat_map": (
        lambda: numbers().flat_map(lambda x: tf.data.Dataset.range(tf.random.uniform([], 0, 3, tf.int64))),
        "RandomUniformInt in a function",
    ),
    "inside": (
        lambda: (
            numbers()
            .take(5)
            .flat_map(lambda i: tf.data.Dataset.range(3).map(lambda x: x, num_parallel_calls=2, deterministic=False))
        ),
        "a dataset in a function of FlatMapDataset has deterministic=False",
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_what_a_stage_makes_random_is_refused(hvdata, comm, name):
    tf.random.set_seed(None)
    make, what = RANDOM[name]
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(lambda: make().batch(1), batch="per_rank", shard="auto"),
        ValueError,
        r"cannot give each reader its own files",
        what,
        "so every reader has another order",
    )


def test_random_numbers_that_decide_nothing(hvdata, comm):
    tf.random.set_seed(None)
    make = lambda: numbers().map(lambda x: x + tf.cast(tf.random.uniform([]), tf.int64)).batch(2)  # noqa: E731
    assert rows(hvdata, comm, make) == list(range(24))


@pytest.mark.parametrize("joined", [
    lambda one, other: tf.data.Dataset.sample_from_datasets([one, other], seed=1), lambda one, other: one.concatenate(other)],
    ids=["mixture", "concatenate"])  # fmt: skip
def test_functions_of_another_branch_decide_nothing_here(hvdata, comm, joined):
    """Random numbers in the maps of one source, beside the other's interleave."""
    tf.random.set_seed(None)
    change = lambda x: x + tf.cast(tf.random.uniform([]), tf.int64)  # noqa: E731
    source = lambda first: tf.data.Dataset.range(first, first + 4).interleave(  # noqa: E731
        lambda x: tf.data.Dataset.from_tensors(x).repeat(3), cycle_length=2, num_parallel_calls=tf.data.AUTOTUNE
    )
    make = lambda: joined(source(0).map(change), source(10).map(change)).batch(2)  # noqa: E731
    assert rows(hvdata, comm, make) == sorted([*range(4), *range(10, 14)] * 3)


@pytest.mark.parametrize("stage", [
    lambda names: names.filter(lambda name: tf.random.uniform([]) < 0.5),
    lambda names: names.map(lambda name: name, num_parallel_calls=2, deterministic=False)], ids=["filter", "map"])  # fmt: skip
def test_names_of_files_in_an_order_of_each_readers_own(hvdata, comm, files, stage):
    tf.random.set_seed(None)
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(
            lambda: stage(tf.data.Dataset.from_tensor_slices(files)).flat_map(tf.data.TextLineDataset).batch(1),
            batch="per_rank",
            shard="auto",
        ),
        ValueError,
        r"its own files \(names of files have another order on each reader\), nor its own elements",
    )


def test_an_order_that_matters_only_behind_the_files(hvdata, comm, files):
    tf.random.set_seed(None)
    make = lambda: tf.data.Dataset.from_tensor_slices(files).interleave(  # noqa: E731
        tf.data.TextLineDataset, num_parallel_calls=2, deterministic=False).map(
        lambda x: x, num_parallel_calls=2, deterministic=False).shuffle(5).batch(2)  # fmt: skip
    assert rows(hvdata, comm, make) == lines_of(files)


@pytest.mark.parametrize("wrong", [True, False, 0, "", "files", 2, "auto, unless the dataset function takes a context"])
def test_wrong_arguments(hvdata, comm, wrong):
    for call in (hvdata.distribute_dataset, lambda *args, **kwargs: hvdata.predict(tf.identity, *args, **kwargs)):
        raises_everywhere(
            comm,
            lambda call=call: call(lambda: tf.data.Dataset.range(4).batch(1), batch="per_rank", shard=wrong),
            ValueError,
            rf"shard={re.escape(repr(wrong))} is not known\. Use None or 'auto'",
        )


def test_a_cache_in_memory_divides_files(hvdata, comm, files, capfd):
    assert rows(hvdata, comm, lambda: tf.data.TextLineDataset(files).batch(2).cache()) == lines_of(files)
    assert any("its own files, of 7." in text for text in results(comm, lambda: capfd.readouterr().err))


def test_a_cache_file_that_readers_would_share(hvdata, comm, files, tmp_path):
    """Readers that wrote one cache file failed with AlreadyExistsError at the first batch."""
    path = comm.bcast(f"{tmp_path}/cache", 0)
    for make in (
        lambda: tf.data.TextLineDataset(files).batch(2).cache(path),
        lambda: tf.data.Dataset.range(10).cache(path).batch(2),
    ):
        raises_everywhere(
            comm,
            lambda make=make: hvdata.distribute_dataset(make, batch="per_rank", shard="auto"),
            ValueError,
            r'shard="auto" gives the pipeline to \d readers, and its cache\(\) has a file: each of them would write that file with '
            r"other elements, or find it locked\. Use cache\(\) without a file; or leave shard out",
        )
