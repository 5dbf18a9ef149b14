# SPDX-License-Identifier: Apache-2.0
"""RETURNN trains from its tf.data pipeline under Horovod: one process reads, every rank gets its own sequences.

    mpirun -np 4 python examples/returnn_training.py                            rank 0 reads and trains
    HOROVOD_DATA_READERS=1 mpirun -np 5 python examples/returnn_training.py     4 ranks train, one process reads

Options:

- --max-seqs 3: sequences in each rank's batch
- --rate 0.003, --epochs 3
- --model FOLDER/NAME: checkpoints, from which a second run continues
- --out FILE: rank 0's parameters and scores
- --param-sync STEPS: ranks step separately, and average their parameters after so many steps

If ranks x max-seqs is the same, all numbers of ranks end with the same parameters.
"""

import argparse
import sys

import numpy as np
from returnn.config import Config, set_global_config
from returnn.datasets.generating import StaticDataset
from returnn.log import log

from horovod_data.integrations import returnn as adapter

SEQUENCES = {"train": 50, "dev": 14}  # the last step has fewer sequences than ranks
FEATURES, LABELS = 5, 3


class Sequences(StaticDataset):
    """Sequences of different lengths. Counts how many sequences this process has read."""

    read = 0

    def __init__(self, count: int, seed: int, **kwargs) -> None:
        rng = np.random.RandomState(seed)
        lengths = rng.randint(3, 20, count)
        data = [{"data": rng.standard_normal((length, FEATURES)).astype("float32")} for length in lengths]
        for sequence in data:
            sequence["classes"] = sequence["data"][:, :LABELS].argmax(axis=1).astype("int32")
        super().__init__(data, output_dim={"data": [FEATURES, 2], "classes": [LABELS, 1]}, **kwargs)

    def _collect_single_seq(self, seq_idx: int):
        Sequences.read += 1
        return super()._collect_single_seq(seq_idx)


parser = argparse.ArgumentParser()
parser.add_argument("--max-seqs", type=int, default=3)
parser.add_argument("--rate", type=float, default=0.003)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--model")
parser.add_argument("--out")
parser.add_argument("--param-sync", type=int)
options = parser.parse_args()

use_horovod = adapter.attach()  # before the Engine; False on a dedicated reader

import horovod.tensorflow as hvd  # noqa: E402
from returnn.tf.engine import Engine  # noqa: E402

import horovod_data as hvdata  # noqa: E402

config = Config(
    {
        "use_tensorflow": True,
        "use_horovod": use_horovod,
        "dataset_pipeline": True,
        "device": "cpu",
        "extern_data": {"data": (FEATURES, 2), "classes": (LABELS, 1)},
        "network": {
            "hidden": {"class": "linear", "activation": "tanh", "n_out": 8, "from": "data"},
            "output": {"class": "softmax", "loss": "ce", "from": "hidden", "target": "classes"},
        },
        "max_seqs": options.max_seqs,
        "batch_size": 10**6,
        "num_epochs": options.epochs,
        "optimizer": {"class": "GradientDescent"},
        "learning_rate": options.rate,
        "random_seed": 1,
    }
)
if options.model:
    config.set("model", options.model)
if options.param_sync:
    config.update(
        {
            "horovod_reduce_type": "param",
            "horovod_param_sync_step": options.param_sync,
            "horovod_dataset_distribution": "random_seed_offset",
        }
    )
set_global_config(config)
log.initialize(verbosity=[2])

train = Sequences(SEQUENCES["train"], 1, seq_ordering="random", name="train")
dev = Sequences(SEQUENCES["dev"], 2, name="dev")
for dataset in train, dev:
    dataset.initialize()

scores = {}


class Scores(Engine):
    def eval_model(self, *args, **kwargs):
        result = super().eval_model(*args, **kwargs)
        scores[self.epoch] = dict(self.learning_rate_control.epoch_data[self.epoch].error)
        return result


engine = Scores(config=config)
# a dedicated reader exits here when all trainers are done
engine.init_train_from_config(train_data=train, dev_data=dev)
engine.train()

parameters = {param.name: param.eval(engine.tf_session) for param in engine.network.get_params_list()}
everywhere = hvd.allgather_object((parameters, Sequences.read), session=engine.tf_session)
trained = engine.final_epoch - engine.start_epoch + 1
for other, _ in everywhere:
    if any(not np.array_equal(other[name], parameters[name]) for name in parameters):
        sys.exit("the ranks ended with different parameters")
reads = [read for _, read in everywhere]
expected = trained * sum(SEQUENCES.values()) if hvdata.is_reader() else 0
if Sequences.read != expected:
    sys.exit(f"this rank has read {Sequences.read} sequences, and not {expected}")
if hvd.rank() == 0:
    if options.out:
        np.savez(
            options.out,
            **{f"parameter {name}": value for name, value in parameters.items()},
            **{f"epoch {epoch} {key}": value for epoch, words in scores.items() for key, value in words.items()},
        )
    print(f"{hvd.size()} ranks ended with equal parameters after {trained} epochs; sequences read by each: {reads}")
    for epoch, words in scores.items():
        print(f"epoch {epoch}: " + ", ".join(f"{key} {float(value):.7f}" for key, value in sorted(words.items())))
engine.finalize()
