# SPDX-License-Identifier: Apache-2.0
"""shard="auto": several readers with one pipeline deliver each of its rows once, without a line of code for it."""

import numpy as np
import pytest
import tensorflow as tf
from together import raises_everywhere, results

pytestmark = [pytest.mark.readers(2, 3), pytest.mark.limit(120)]


@pytest.fixture(autouse=True)
def one_seed():
    """Readers on which other tests have set other global seeds would shuffle in other orders, and be refused."""
    tf.random.set_seed(5)


@pytest.fixture
def files(tmp_path, comm):
    """Seven files of texts; of some only one line."""
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
    """All rows that one pass delivers, and what the readers printed."""
    ds = hvdata.distribute_dataset(dataset, batch=options.pop("batch", "per_rank"), remainder="partial", shard="auto", **options)

    def local():
        return [row for element in ds for row in element.numpy().tolist()] if hvdata.is_trainer() else []

    return sorted(row for mine in results(comm, local) for row in mine)


PIPELINES = {
    "text": lambda paths: tf.data.TextLineDataset(paths).batch(1),
    "interleave": lambda paths: tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TextLineDataset, cycle_length=2).batch(2),
    "shuffled list": lambda paths: tf.data.Dataset.list_files(paths, shuffle=True).flat_map(tf.data.TextLineDataset).batch(2),
    "shuffled": lambda paths: tf.data.TextLineDataset(paths).shuffle(5).map(lambda x: x).batch(3).prefetch(1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_files(hvdata, comm, files, capfd, name):
    for _ in range(2):
        assert rows(hvdata, comm, lambda: PIPELINES[name](files), name="train") == lines_of(files)
    told = results(comm, lambda: capfd.readouterr().err)
    readers = hvdata.num_readers()
    said = [line for text in told for line in text.splitlines() if "shard=" in line]
    assert len(said) == 2 and all(f'channel train] shard="auto": each of {readers} readers reads its own files, of 7.' in line
                                  for line in said), told


ELEMENTS = {
    "range": (lambda: tf.data.Dataset.range(23).batch(2), "it does not begin with a list of files"),
    "generator": (lambda: tf.data.Dataset.from_generator(lambda: iter(range(23)), output_signature=tf.TensorSpec([], tf.int64)).batch(2),
                  "it does not begin with a list of files"),
    "seeded": (lambda: tf.data.Dataset.range(23).shuffle(9, seed=3).batch(2), "it does not begin with a list of files"),
    "two sources": (lambda: tf.data.Dataset.range(11).concatenate(tf.data.Dataset.range(11, 23)).batch(2), "Concatenate counts, or is not known"),
}


@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(hvdata, comm, capfd, name, batch):
    make, why = ELEMENTS[name]
    assert rows(hvdata, comm, make, batch=batch) == list(range(23))
    readers = hvdata.num_readers()
    said = [line for text in results(comm, lambda: capfd.readouterr().err) for line in text.splitlines() if "shard=" in line]
    assert len(said) == 1 and f"reads everything and delivers one element in {readers} ({why})." in said[0], said


@pytest.mark.parametrize("make, why", [
    (lambda paths: tf.data.TextLineDataset(paths).take(4).batch(1), "Take counts"),
    (lambda paths: tf.data.TextLineDataset(paths[:1]).batch(1), "1 files for")], ids=["take", "one file"])  # fmt: skip
def test_files_that_can_not_be_divided(hvdata, comm, files, capfd, make, why):
    """What tf.data's AutoShard delivers several times, or fails at."""
    wanted = lines_of(files[:3])[:4] if "Take" in why else lines_of(files[:1])
    assert rows(hvdata, comm, lambda: make(files)) == wanted
    said = [line for text in results(comm, lambda: capfd.readouterr().err) for line in text.splitlines() if "shard=" in line]
    assert len(said) == 1 and why in said[0], said


def test_every_epoch_its_own_dataset(hvdata, comm):
    ds = hvdata.distribute_dataset(lambda epoch: tf.data.Dataset.range(100 * epoch, 100 * epoch + 9).batch(1), batch="per_rank",
                                   remainder="partial", shard="auto")
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
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(make, batch="per_rank", shard="auto"), ValueError,
                      r'shard="auto" cannot give each reader its own files \(it does not begin with a list of files\), nor its own elements: ', what,
                      "elements would come twice or not at all. Give it a seed")


def _options():
    options = tf.data.Options()
    options.deterministic = False
    return options


def test_a_function_that_shards_itself_is_refused(hvdata, comm):
    def function(context):
        return tf.data.Dataset.range(24).shard(context.num_input_pipelines, context.input_pipeline_id).batch(1)

    raises_everywhere(comm, lambda: hvdata.distribute_dataset(function, batch="per_rank", shard="auto"), ValueError,
                      r"divides one pipeline between the readers, but reader 0 on \S+ and reader 1 on \S+ have different ones",
                      "leave shard out")


def test_saved_and_restored(hvdata, comm, tmp_path):
    """Each reader goes on in its own part."""
    ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(60).batch(1), batch="per_rank", remainder="partial", shard="auto")
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


@pytest.mark.parametrize("wrong", [True, "files", 2])
def test_wrong_arguments(hvdata, comm, wrong):
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(lambda: tf.data.Dataset.range(4).batch(1), batch="per_rank", shard=wrong),
                      ValueError, r"shard=.* is not known\. Use None or 'auto'")


def test_a_cache_that_readers_might_share(hvdata, comm, files, capfd, tmp_path, monkeypatch):
    """In memory each reader has its own part. In a file it might find another one's: there each keeps all of it."""
    folder = tmp_path / f"of rank {comm.rank}"  # a disk of its own
    folder.mkdir()
    monkeypatch.chdir(folder)
    told = []
    for path in "", "cache":
        assert rows(hvdata, comm, lambda path=path: tf.data.TextLineDataset(files).batch(2).cache(path)) == lines_of(files)
        told += [line for text in results(comm, lambda: capfd.readouterr().err) for line in text.splitlines() if "shard=" in line]
    assert len(told) == 2 and "its own files, of 7." in told[0] and "(cache() has a file)" in told[1], told
