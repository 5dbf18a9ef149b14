# SPDX-License-Identifier: Apache-2.0
"""A rank of a job that reads one library's source through hvdata.loader(). test_loader_sources.py runs it.

    loader_sources.py NAME [WORKERS [METHOD]]: WORKERS processes of the library make the batches. METHOD starts them.

Ranks that do not read import neither the library nor TensorFlow. Each trainer prints the numbers of its rows, as JSON.
"""

import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

import horovod_data as hvdata

ROWS, BATCH, SAVED_AT = 48, 6, 3


class Rows:
    """All libraries read these rows. Workers import this module."""

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return {"id": np.int64(i), "x": np.full(3, i, np.float32), "text": f"row {i}"}

    def __repr__(self):  # Grain compares it
        return "Rows()"


def columns():
    rows = [Rows()[i] for i in range(ROWS)]
    return {
        "id": [int(row["id"]) for row in rows],
        "x": [row["x"].tolist() for row in rows],
        "text": [row["text"] for row in rows],
    }


def of_torch(workers, method):
    kind = dict(num_workers=workers, multiprocessing_context=method)
    return {"batch_size": BATCH, **(kind if workers else {})}


def data_loader(workers, method):
    from torch.utils.data import DataLoader

    return DataLoader(Rows(), **of_torch(workers, method))


def stateful_data_loader(workers, method):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Rows(), **of_torch(workers, method))


def stateful_shuffled(workers, method):
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        Rows(), shuffle=True, generator=torch.Generator().manual_seed(3), **of_torch(workers, method)
    )


def hf_streamed():
    import datasets

    return datasets.Dataset.from_dict(columns()).to_iterable_dataset(num_shards=4)


def hf(workers, method):
    import datasets

    return datasets.Dataset.from_dict(columns()).with_format("numpy").batch(BATCH)


def hf_iterable(workers, method):
    return hf_streamed().batch(BATCH)


def hf_shuffled(workers, method):
    return hf_streamed().shuffle(seed=5, buffer_size=20).batch(BATCH)


def hf_of_a_later_epoch(workers, method):
    """The source has the shuffle of epoch 2 when it is saved, and of epoch 0 when it is made again."""
    source = hf_streamed().shuffle(seed=5, buffer_size=1).batch(BATCH)
    made.append(source)
    source.set_epoch(2 if len(made) == 1 else 0)
    return source


def hf_in_a_stateful_data_loader(workers, method):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(hf_streamed().with_format("torch"), **of_torch(workers, method))


def hf_shuffled_in_a_stateful_data_loader(workers, method):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        hf_streamed().with_format("torch").shuffle(seed=5, buffer_size=20), **of_torch(workers, method)
    )


def grain_map(workers, method):
    import grain

    return grain.MapDataset.source(Rows()).shuffle(seed=7).batch(BATCH)


def grain_iter(workers, method):
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain's workers ask for it
    data = grain.MapDataset.source(Rows()).to_iter_dataset().batch(BATCH)
    return data.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else data


def grain_data_loader(workers, method):
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    sampler = grain.samplers.IndexSampler(ROWS, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=7)
    return grain.DataLoader(
        data_source=Rows(), sampler=sampler, operations=[grain.transforms.Batch(BATCH)], worker_count=workers
    )


def shards():
    """Four tar files of WebDataset."""
    for shard in range(4):
        path = Path(folder.name) / f"{shard}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(shard * ROWS // 4, (shard + 1) * ROWS // 4):
                for name, text in (("json", json.dumps({"id": i, "x": [i] * 3})), ("txt", f"row {i}")):
                    member = tarfile.TarInfo(f"{i:06}.{name}")
                    member.size = len(text)
                    tar.addfile(member, io.BytesIO(text.encode()))
        yield str(path)


def row_of_sample(sample):
    return {"id": np.int64(sample["json"]["id"]), "x": np.array(sample["json"]["x"], np.float32), "text": sample["txt"]}


def stacked(rows):
    return {
        "id": np.stack([r["id"] for r in rows]),
        "x": np.stack([r["x"] for r in rows]),
        "text": [r["text"] for r in rows],
    }


def webdataset(workers, method):
    import webdataset as wds

    data = wds.WebDataset(list(shards()), shardshuffle=False).decode().map(row_of_sample)
    data = data.batched(BATCH, collation_fn=stacked)
    return (
        wds.WebLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=method) if workers else data
    )


made = []
folder = None


def numbers(batch):
    """The numbers of the rows of a batch, in which everything else is right."""
    ids = batch["id"].tolist()
    assert batch["x"].tolist() == [[i] * 3 for i in ids] and list(batch["text"]) == [f"row {i}" for i in ids], batch
    return ids


def main():
    global folder
    name, workers, method = [*sys.argv[1:], "0", ""][:3]
    folder = tempfile.TemporaryDirectory()
    hvdata.init()
    make = lambda: globals()[name](int(workers), method or None)
    loader = hvdata.loader(make, batch="global", remainder="partial", verify=True)
    again = hvdata.loader(make, batch="global", remainder="partial", verify=True)
    hvdata.serve()
    epochs = [list(map(numbers, loader)) for _ in range(2)]
    it = iter(loader)
    before = [numbers(next(it)) for _ in range(SAVED_AT)]
    state = loader.state_dict()
    after = list(map(numbers, it))
    again.load_state_dict(state)
    resumed = list(map(numbers, again))
    later = [list(map(numbers, again)) for _ in range(2)]
    loader.load_state_dict(state)  # of the same source
    resumed_here = list(map(numbers, loader))
    later.append(list(map(numbers, loader)))
    if not hvdata.is_reader():
        assert not {"torch", "tensorflow", "datasets", "grain", "webdataset"} & set(sys.modules), (
            "a trainer imports nothing"
        )
    print(json.dumps({"epochs": epochs, "before": before, "after": after, "resumed": resumed, "resumed_here": resumed_here,
                      "later": later, "tensorflow": "tensorflow" in sys.modules}), flush=True)  # fmt: skip
    hvdata.shutdown()


if __name__ == "__main__":
    main()
