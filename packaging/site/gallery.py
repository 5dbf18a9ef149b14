# SPDX-License-Identifier: Apache-2.0
"""Writes docs/gallery.md: runs the examples, and shows what they say.

    python packaging/site/gallery.py [NAME...]     NAME: these examples alone; the others keep the output that the page has
    python packaging/site/gallery.py none          no example: new words, the same output

Takes a few minutes. RETURNN's needs `make test-integrations` before it; jax_ranks, keras_jax, keras_torch, torch_horovod, torch_ranks and rlds_torch need `make test-frameworks`, and
.venv/bin/python.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = "pictures"  # a folder where the example runs


@dataclasses.dataclass(frozen=True)
class Entry:
    title: str
    words: str  # a sentence, with the links
    command: str
    first: int = 12  # lines of the output that are shown
    last: int = 12
    picture: str = ""  # what is shown below it, as Markdown
    caption: str = ""
    made: str = (
        ""  # of the pictures that the example made: the one that is kept in docs/, under the name that `picture` has
    )

    @property
    def script(self) -> str:
        return re.search(r"examples/(\w+)\.py", self.command)[1]


ENTRIES = [
    Entry(
        "The digits",
        "[digits_data.py](../examples/digits_data.py) writes scikit-learn's handwritten digits as TFRecord files. The next "
        "three examples read them.",
        "python examples/digits_data.py",
    ),
    Entry(
        "The demo",
        "`make demo` runs [digits_demo.py](../examples/digits_demo.py). It trains on the handwritten digits with 4 ranks. Only the "
        "reader can see the files. The demo counts how often each file is opened.",
        "python examples/digits_demo.py",
        first=9,
        last=7,
    ),
    Entry(
        "Keras, one reader",
        "[digits_keras.py](../examples/digits_keras.py) trains with Keras and Horovod, and one process reads. "
        "[digits_ledger.py](../examples/digits_ledger.py) compares the rows of all ranks.",
        "mpirun -np 4 python examples/digits_keras.py",
        first=4,
        last=4,
    ),
    Entry(
        "Keras, all read",
        "[digits_keras_stock.py](../examples/digits_keras_stock.py) is the same script without the three changed lines: "
        "every rank reads everything and keeps its part.",
        "mpirun -np 4 python examples/digits_keras_stock.py",
        first=4,
        last=4,
    ),
    Entry(
        "Keras 3",
        "[keras3_train_step.py](../examples/keras3_train_step.py) trains with `fit` and a `train_step` of its own. It runs on Keras 2 "
        "and Keras 3.",
        "mpirun -np 4 python examples/keras3_train_step.py",
    ),
    Entry(
        "Keras 3 on JAX",
        "[keras_jax.py](../examples/keras_jax.py) trains with `fit` on the JAX backend, and compares its loss with that of one "
        "process.",
        "mpirun -np 4 python examples/keras_jax.py",
    ),
    Entry(
        "Keras 3 on PyTorch",
        "[keras_torch.py](../examples/keras_torch.py) trains with `fit` on the PyTorch backend, and compares its weights with those of "
        "one process. [coordinator.py](../examples/coordinator.py) finds the address where the processes meet.",
        "mpirun -np 4 python examples/keras_torch.py",
    ),
    Entry(
        "PyTorch",
        "[torch_ranks.py](../examples/torch_ranks.py) trains with `DistributedDataParallel` on the batches of one `DataLoader`, and "
        "compares its loss with that of one process. The ranks import no TensorFlow.",
        "mpirun -np 4 python examples/torch_ranks.py",
    ),
    Entry(
        "Horovod with PyTorch",
        "[torch_horovod.py](../examples/torch_horovod.py) does the same with Horovod's `DistributedOptimizer`.",
        "mpirun -np 4 python examples/torch_horovod.py",
    ),
    Entry(
        "JAX",
        "[jax_ranks.py](../examples/jax_ranks.py) trains with JAX on the batches of one generator, without TensorFlow and without "
        "Keras.",
        "mpirun -np 4 python examples/jax_ranks.py",
    ),
    Entry(
        "RLDS on PyTorch",
        "[rlds_torch.py](../examples/rlds_torch.py) trains with PyTorch, and one process runs a `tf.data` pipeline of robot episodes "
        "with a shuffle buffer. No rank that trains imports TensorFlow. [rlds_data.py](../examples/rlds_data.py) has the pipeline.",
        "HOROVOD_DATA_READERS=1 mpirun -np 5 python examples/rlds_torch.py",
    ),
    Entry(
        "Your own loop",
        "[custom_loop.py](../examples/custom_loop.py) trains in a `tf.function` with `hvd.DistributedGradientTape`. It then "
        "compares the weights with those of a training in one process.",
        "mpirun -np 4 python examples/custom_loop.py",
    ),
    Entry(
        "A dedicated reader",
        "[dedicated_reader.py](../examples/dedicated_reader.py) has a process that only reads, beside the ranks that "
        "train.",
        "HOROVOD_DATA_READERS=1 mpirun -np 4 python examples/dedicated_reader.py",
    ),
    Entry(
        "Several readers",
        "[several_readers.py](../examples/several_readers.py) has two readers, each with its own files.",
        "HOROVOD_DATA_READERS=2 mpirun -np 4 python examples/several_readers.py",
    ),
    Entry(
        "Sequences from a generator",
        "[speech_generator.py](../examples/speech_generator.py) reads utterances from a Python generator, and pads each "
        "batch. It runs in TensorFlow 1's graph mode.",
        "mpirun -np 3 python examples/speech_generator.py",
    ),
    Entry(
        "Even batches of tokens",
        "[token_batches.py](../examples/token_batches.py) gives all ranks nearly the same work in each step, and each row the "
        "weight of its tokens.",
        "mpirun -np 4 python examples/token_batches.py",
    ),
    Entry(
        "RETURNN",
        "[returnn_training.py](../examples/returnn_training.py) trains with RETURNN's own `tf.data` pipeline, with one reader.",
        "mpirun -np 4 python examples/returnn_training.py",
        first=0,
        last=5,
    ),
    Entry(
        "Predictions in order",
        "[predict_in_order.py](../examples/predict_in_order.py) predicts on all ranks and writes one file, in order.",
        "mpirun -np 4 python examples/predict_in_order.py",
    ),
    Entry(
        "Scatter",
        "[scatter_op.py](../examples/scatter_op.py) gives every rank its rows of one rank's tensor, and gathers the gradient.",
        "mpirun -np 3 python examples/scatter_op.py",
    ),
    Entry(
        "The audit of published bugs",
        "[audit_published_bugs.py](../examples/audit_published_bugs.py) finds the bugs of published loaders. This part of its "
        "output is about 29 files on 8 ranks.",
        f"mpirun -np 4 python examples/audit_published_bugs.py {PICTURES}",
        picture="![Four bands with two blue cells each, and a fifth band with eight blue cells on black](gallery_audit.png)",
        caption="The picture has a column for each file, and a band for each of the four processes. A process stands for two of the eight "
        "ranks. Blue files were seen once, white files never. In the last band, of all processes, black files were never seen.",
        made="files_of_29",
    ),
]

HEAD = """# Gallery

This page shows the output of each [example](../README.md#documentation). Each example checks its own result, and ends with a status other than 0 if a
check fails. The runs were on two cores. An `…` stands for lines left out. `python packaging/site/gallery.py` writes this page.
"""

TAIL = """
## Job scripts

- Slurm: [several hosts with `horovod-data-run`](../examples/slurm/launcher.sbatch), [`srun`](../examples/slurm/srun.sbatch),
  [a reader on a node of its own](../examples/slurm/reader.sbatch), [a reader on every node](../examples/slurm/readers_per_node.sbatch),
  [a job that is queued again](../examples/slurm/requeue.sbatch).
- Kubernetes: [a TrainJob](../examples/kubernetes/trainjob.yaml) of Kubeflow Trainer, [an MPIJob](../examples/kubernetes/mpijob.yaml).

[Launching](launching.md) says how to use them.

## Pictures

TensorBoard shows the waits of four ranks ([more](monitoring.md#tensorboard)):

![TensorBoard: queue, rows/s, steps/s, untaken and wait share of four ranks](report_tensorboard.png)
"""


def page(outputs: dict[str, str]) -> str:
    """The page, with these outputs of the examples by their commands."""
    wrap = functools.partial(textwrap.fill, width=140, break_long_words=False, break_on_hyphens=False)
    parts = [HEAD]
    for entry in ENTRIES:
        parts.append(
            f"\n## {entry.title}\n\n{wrap(entry.words)}\n\n```console\n$ {entry.command}\n{outputs[entry.command]}```\n"
        )
        if entry.picture:
            parts.append(f"\n{entry.picture}\n\n{wrap(entry.caption)}\n")
    return "".join([*parts, TAIL])


def outputs_of(text: str) -> dict[str, str]:
    """The outputs by their commands, as a page has them."""
    return dict(re.findall(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def shortened(text: str, entry: Entry) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    if entry.script == "audit_published_bugs":  # which says the same of five bugs
        start = next(i for i, line in enumerate(lines) if line.startswith("RETURNN #1570"))
        lines = lines[start : next(i for i, line in enumerate(lines) if i > start and line.startswith("->")) + 1]
        return "…\n" + "\n".join(lines) + "\n…\n"
    if len(lines) > entry.first + entry.last + 1:
        lines = [*lines[: entry.first], "…", *lines[len(lines) - entry.last :]]
    return "\n".join(lines) + "\n"


def run(entry: Entry, folder: Path) -> str:
    from ranks.launch import environment

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(
        folder, 0, {"HOROVOD_CYCLE_TIME": None, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": None, "PATH": path}
    )
    if entry.script.startswith("digits_keras"):
        subprocess.run(
            [sys.executable, "examples/digits_data.py"], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL
        )
    done = subprocess.run(["bash", "-c", entry.command], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{entry.command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    if entry.made:
        name = re.search(r"\((\w+\.png)\)", entry.picture)[1]
        shutil.copy(folder / PICTURES / f"{entry.made}.png", ROOT / "docs" / name)
    said = done.stdout.replace(f"{folder}/", "").replace(socket.gethostname(), "node1")
    return shortened(said, entry)


def main() -> None:
    names = sys.argv[1:]
    sys.path.insert(0, str(ROOT / "tests"))  # where it is known how jobs are started on this machine
    outputs = outputs_of(PAGE.read_text()) if PAGE.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        for entry in ENTRIES:
            if entry.script in names or not names:
                print(f"[gallery] {entry.command}", flush=True)
                outputs[entry.command] = run(entry, folder)
            PAGE.write_text(page({each.command: outputs.get(each.command, "") for each in ENTRIES}))


if __name__ == "__main__":
    main()
