# SPDX-License-Identifier: Apache-2.0
"""shard="auto": several readers with one pipeline deliver each of its rows once, without a line of code for it."""

import pytest
import tensorflow as tf
from readers import divided as distribute
from readers import saved_and_restored
from together import generated, merged, on_trainers, raises_everywhere, results

pytestmark = [pytest.mark.world(np=2, readers=2), pytest.mark.readers(3, 2), pytest.mark.limit(120)]
Data = tf.data.Dataset


@pytest.fixture(autouse=True)
def one_seed():
    """Without this, other tests' global seeds would give readers different orders of shuffles, which are refused."""
    tf.random.set_seed(5)


@pytest.fixture
def no_seed(one_seed):
    """A global seed would give each shuffle a seed."""
    tf.random.set_seed(None)


@pytest.fixture
def files(shared_path, comm):
    """Seven text files, some with only one line."""
    paths = [f"{shared_path}/{i}.txt" for i in range(7)]
    if comm.rank == 0:
        for i, path in enumerate(paths):
            with open(path, "w") as file:
                file.writelines(f"{i}-{line}\n" for line in range(1 + i % 3))
    comm.barrier()
    return paths


def lines_of(paths):
    return sorted(line.encode() for path in paths for line in open(path).read().split())


def all_rows(hvdata, comm, elements):
    """The rows of what is left of a dataset or an iterator, on all trainers."""
    got = on_trainers(hvdata, comm, lambda: [row for element in elements for row in element.numpy().tolist()])
    return sorted(sum(got, []))


def rows(hvdata, comm, dataset, **options):
    return all_rows(hvdata, comm, distribute(hvdata, dataset, **options))


def said(comm, capfd):
    """The lines of all ranks about shard=."""
    texts = results(comm, lambda: capfd.readouterr().err)
    return [line for text in texts for line in text.splitlines() if "shard=" in line]


def refused(hvdata, comm, dataset, *says):
    raises_everywhere(comm, lambda: distribute(hvdata, dataset, remainder="drop"), ValueError, *says)


PIPELINES = {
    "text": lambda paths: tf.data.TextLineDataset(paths).batch(1),
    "interleave": lambda paths: (
        Data.from_tensor_slices(paths).interleave(tf.data.TextLineDataset, cycle_length=2).batch(2)
    ),
    "shuffled list": lambda paths: Data.list_files(paths, shuffle=True).flat_map(tf.data.TextLineDataset).batch(2),
    "shuffled": lambda paths: tf.data.TextLineDataset(paths).shuffle(5).map(lambda x: x).batch(3).prefetch(1),
    "a cache in memory": lambda paths: tf.data.TextLineDataset(paths).batch(2).cache(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_files(hvdata, comm, files, capfd, name):
    for _ in range(2):
        assert rows(hvdata, comm, lambda: PIPELINES[name](files), name="train") == lines_of(files)
    lines = said(comm, capfd)
    text = f'channel train] shard="auto": each of {hvdata.num_readers()} readers reads its own files, of 7.'
    assert len(lines) == 2 and all(text in line for line in lines), lines


NO_FILES = "it does not begin with a list of files"
ELEMENTS = {
    "range": (lambda: Data.range(23).batch(2), NO_FILES),
    "generator": (
        lambda: generated(lambda: iter(range(23))).batch(2),
        NO_FILES,
    ),
    "seeded": (lambda: Data.range(23).shuffle(9, seed=3).batch(2), NO_FILES),
    "two sources": (lambda: Data.range(11).concatenate(Data.range(11, 23)).batch(2), "Concatenate counts elements, or is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(hvdata, comm, capfd, name, batch):
    make, why = ELEMENTS[name]
    assert rows(hvdata, comm, make, batch=batch) == list(range(23))
    (line,) = said(comm, capfd)
    assert f"reads everything and delivers one element in {hvdata.num_readers()} ({why})." in line, line


@pytest.mark.parametrize("make, why", [
    (lambda paths: tf.data.TextLineDataset(paths).take(4).batch(1), "Take counts"),
    (lambda paths: tf.data.TextLineDataset(paths[:1]).batch(1), "1 files for")], ids=["take", "one file"])  # fmt: skip
def test_files_that_can_not_be_divided(hvdata, comm, files, capfd, make, why):
    """Pipelines for which tf.data's AutoShard fails or delivers rows several times."""
    wanted = lines_of(files[:3])[:4] if "Take" in why else lines_of(files[:1])
    assert rows(hvdata, comm, lambda: make(files)) == wanted
    (line,) = said(comm, capfd)
    assert why in line, line


def test_every_epoch_its_own_dataset(hvdata, comm):
    ds = distribute(hvdata, lambda epoch: Data.range(100 * epoch, 100 * epoch + 9).batch(1))
    for epoch in 1, 2:
        assert all_rows(hvdata, comm, ds) == list(range(100 * epoch, 100 * epoch + 9))


@pytest.mark.parametrize("source", ["elements", "files"])
def test_saved_and_restored(hvdata, comm, shared_path, path, source):
    """Each reader resumes in its own part. The save lies between records of files."""
    paths = [f"{shared_path}/{i}.tfrecord" for i in range(5)]
    if comm.rank == 0:
        for i, record_path in enumerate(paths):
            with tf.io.TFRecordWriter(record_path) as writer:
                for record in range(6):
                    writer.write(b"%d-%d" % (i, record))
    comm.barrier()
    make = (lambda: Data.range(60)) if source == "elements" else (lambda: tf.data.TFRecordDataset(paths))
    ds = distribute(hvdata, lambda: make().batch(1))
    every = sorted(make().as_numpy_iterator())
    got, again = saved_and_restored(hvdata, comm, ds, path, 3)
    assert sorted(sum(merged(got), []) + all_rows(hvdata, comm, again)) == every
    assert all_rows(hvdata, comm, ds) == every


# ---- What is not the same on all readers.


def numbers():
    return Data.range(24)


def unordered():
    options = tf.data.Options()
    options.deterministic = False
    return options


def parallel(ds):
    return ds.map(lambda x: x, num_parallel_calls=2, deterministic=False)


def rarely(*_):
    return tf.random.uniform([]) < 0.5


IN_A_FUNCTION = "RandomUniform in a function has no seed"
OF_NAMES = r"its own files \(names of files have another order on each reader\)"
RANDOM = {
    "shuffle": (lambda _: numbers().shuffle(9), "ShuffleDataset has no seed"),
    "shuffle in a function": (lambda _: Data.range(2).flat_map(lambda i: numbers().shuffle(5)), "in a function has no seed"),
    "options": (lambda _: numbers().with_options(unordered()), "its options say deterministic=False"),
    "map": (lambda _: parallel(numbers()), "ParallelMapDataset has deterministic=False"),
    "interleave": (lambda _: numbers().interleave(lambda x: Data.from_tensors(x), num_parallel_calls=2, deterministic=False),
                   "ParallelInterleaveDataset has deterministic=False"),
    "filter": (lambda _: numbers().filter(rarely), IN_A_FUNCTION),
    "in a branch": (lambda _: numbers().filter(lambda x: tf.cond(x > 3, rarely, lambda: True)), IN_A_FUNCTION),
    "before a filter": (lambda _: numbers().map(lambda x: (x, tf.random.uniform([]))).filter(lambda x, r: r < 0.5).map(
        lambda x, r: x), IN_A_FUNCTION),
    "flat_map": (lambda _: numbers().flat_map(lambda x: Data.range(tf.random.uniform([], 0, 3, tf.int64))),
                 "RandomUniformInt in a function"),
    "inside": (lambda _: numbers().take(5).flat_map(lambda i: parallel(Data.range(3))),
               "a dataset in a function of FlatMapDataset has deterministic=False"),
    "names, filtered": (lambda files: tf.data.TextLineDataset(Data.from_tensor_slices(files).filter(rarely)), OF_NAMES),
    "names, mapped": (lambda files: tf.data.TextLineDataset(parallel(Data.from_tensor_slices(files))), OF_NAMES),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_an_order_of_each_readers_own_is_refused(hvdata, comm, files, no_seed, name):
    make, what = RANDOM[name]
    says = (
        r'shard="auto" cannot give each reader its own files \(.*\), nor its own elements: ',
        what,
        "so every reader has another order",
        "elements would come twice or not at all. Give it a seed",
    )
    refused(hvdata, comm, lambda: make(files).batch(1), *says)


@pytest.mark.parametrize("stage", ["shard", "filter", "filter behind Python code", "shard behind random Python code"])
def test_a_function_that_shards_itself_is_refused(hvdata, comm, stage):
    """This holds for a graph that can't be compared, too: it has Python code. With random numbers in it, the elements
    aren't compared either."""

    def function(context):
        readers, reader = context.num_input_pipelines, context.input_pipeline_id
        ds = numbers()
        if "filter" in stage:
            ds = ds.filter(lambda x: x % readers == reader)
        if "Python" in stage:
            ds = ds.map(lambda x: tf.ensure_shape(tf.py_function(lambda v: v, [x], tf.int64), []))
        if "random" in stage:
            ds = plus_nothing(ds)
        if "shard" in stage:
            ds = ds.shard(readers, reader)
        return ds.batch(1)

    says = r"divides one pipeline between the readers, but reader 0 on \S+ and reader 1 on \S+ have different ones"
    refused(hvdata, comm, function, says, "leave shard out")


def test_lists_of_files_in_different_orders(hvdata, comm, files):
    """Files are divided by position. With different orders two readers would read one file, and no reader another."""
    mine = files[comm.rank :] + files[: comm.rank]
    says = r"reader 0 on \S+ and reader 1 on \S+ have its files in different orders: rows would come twice"
    refused(hvdata, comm, lambda: tf.data.TextLineDataset(mine).batch(1), says, "Sort the list of files")


def test_different_seeds_behind_a_generator(hvdata, comm):
    def function():
        source = generated(lambda: iter(range(23)))
        return source.shuffle(9).batch(2)

    tf.random.set_seed(comm.rank + 1)
    says = ("have different seeds in it: rows would come twice", r"tf\.random\.set_seed\(\) the same")
    refused(hvdata, comm, function, *says)
    tf.random.set_seed(5)
    assert rows(hvdata, comm, function) == list(range(23))


def plus_nothing(ds):
    """Random numbers that decide nothing."""
    return ds.map(lambda x: x + tf.cast(tf.random.uniform([]), tf.int64))


def tripled(first):
    """Random numbers in the maps of a source, beside the interleave of another one."""
    ds = Data.range(first, first + 4)
    return plus_nothing(ds.interleave(
        lambda x: Data.from_tensors(x).repeat(3), cycle_length=2, num_parallel_calls=tf.data.AUTOTUNE))  # fmt: skip


def out_of_order_behind_files(files):
    names = Data.from_tensor_slices(files)
    return parallel(names.interleave(tf.data.TextLineDataset, num_parallel_calls=2, deterministic=False)).shuffle(5)


BOTH = sorted([*range(4), *range(10, 14)] * 3)
ALLOWED = {
    "numbers": (lambda _: plus_nothing(numbers()), list(range(24))),
    "mixture": (lambda _: Data.sample_from_datasets([tripled(0), tripled(10)], seed=1), BOTH),
    "concatenate": (lambda _: tripled(0).concatenate(tripled(10)), BOTH),
    "behind the files": (out_of_order_behind_files, None),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_an_order_that_does_not_matter(hvdata, comm, files, no_seed, name):
    make, want = ALLOWED[name]
    assert rows(hvdata, comm, lambda: make(files).batch(2)) == (want or lines_of(files))


def test_a_cache_file_that_readers_would_share(hvdata, comm, files, shared_path):
    """Readers that wrote one cache file failed with AlreadyExistsError at the first batch."""
    path = f"{shared_path}/cache"
    says = (
        r'shard="auto" gives the pipeline to \d readers, and its cache\(\) has a file: each of them would write that file with '
        r"other elements, or find it locked\. Use cache\(\) without a file; or leave shard out"
    )
    for make in (
        lambda: tf.data.TextLineDataset(files).batch(2).cache(path),
        lambda: Data.range(10).cache(path).batch(2),
    ):
        refused(hvdata, comm, make, says)


# ---- hvdata.predict divides its dataset in the same way.


def doubled(hvdata, comm, dataset, **arguments):
    """Predictions that are twice the rows."""
    got = results(comm, lambda: hvdata.predict(lambda x: x * 2, dataset, **arguments))
    assert got[1:] == [None] * (comm.size - 1)
    return got[0].tolist()


@pytest.mark.parametrize("batch", [4, 7])
def test_predictions_of_all_readers(hvdata, comm, batch):
    """The rows come in the order of the dataset, from any reader."""
    make = lambda: Data.range(53).batch(batch)
    for dataset in (make, make() if hvdata.is_reader() else None):
        assert doubled(hvdata, comm, dataset) == [2 * i for i in range(53)]


def test_predictions_of_batches_of_ranks(hvdata, comm):
    """Each row comes once. A step has elements of one reader."""
    got = doubled(hvdata, comm, lambda: Data.range(53).batch(3), batch="per_rank")
    assert sorted(got) == [2 * i for i in range(53)]


def by_position(context):
    return numbers().shard(context.num_input_pipelines, context.input_pipeline_id).batch(3)


def by_name(*, context):
    return by_position(context)


@pytest.mark.parametrize("function", [by_position, by_name])
def test_predictions_of_a_function_that_gives_each_its_own(hvdata, comm, function):
    assert sorted(doubled(hvdata, comm, function)) == [2 * i for i in range(24)]
