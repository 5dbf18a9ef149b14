# SPDX-License-Identifier: Apache-2.0
"""Every example is a job that proves something. It exits with another status if that is not true."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import run_job
from ranks.launch import environment, launcher, open_mpi

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [pytest.mark.horovod, pytest.mark.limit(180)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    command = [sys.executable, str(EXAMPLES / "digits_data.py"), str(folder)]
    assert "written" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "already there" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return folder


def proven(name: str, np: int, *said: str, readers: int = 0, args: tuple[str, ...] = (), by="", **env: str) -> str:
    """Runs examples/NAME.py. Returns what rank 0 prints."""
    variables = {**env, "HOROVOD_CYCLE_TIME": None}  # Horovod's own: these train
    job = run_job(EXAMPLES / f"{name}.py", np, *args, readers=readers, timeout=150, env=variables, launcher=by)
    for pattern in said:
        assert re.search(pattern, job.stdout[0]), f"{pattern!r} not in:\n{job.describe()}"
    return job.stdout[0]


ACCURATE = r"validation accuracy 0\.9[5-9]"


@pytest.mark.slow  # `make demo` is the same on more ranks
@pytest.mark.parametrize("np, readers", [(1, 0), (2, 1)])
def test_digits_keras(digits, np, readers):
    equal = f"all {np} ranks ended with equal weights"
    text = proven("digits_keras", np, equal, ACCURATE, readers=readers, DIGITS_FOLDER=str(digits))
    for split, images in (("train", 1437), ("valid", 360)):
        assert len(re.findall(rf"{split}: .* all {images} images, each delivered once", text)) == 12, text


@pytest.mark.slow  # nothing of ours is in it
def test_digits_keras_stock(digits):
    equal = "all 2 ranks ended with equal weights"
    proven("digits_keras_stock", 2, equal, ACCURATE, DIGITS_FOLDER=str(digits))


@pytest.mark.slow
@pytest.mark.limit(300)
@pytest.mark.parametrize("options", [[], ["--dedicated", "--ranks", "2"]], ids=["rank 0 reads", "dedicated"])
def test_demo(options, tmp_path):
    environ = environment(tmp_path, 0, {"MPIRUN": shlex.join(launcher()), "HOROVOD_CYCLE_TIME": None})
    command = [sys.executable, str(EXAMPLES / "digits_demo.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = 2 if options else 4
    hidden = re.findall(r"an empty folder is mounted over the data|a data folder that does not exist", done.stdout)
    assert len(hidden) == ranks - 1 + bool(options)
    assert len(re.findall(r"process \d reads: it sees 6 files", done.stdout)) == 1
    assert "validation accuracy 0.9" in done.stdout
    assert "opened 12 times in all: once per epoch" in done.stdout or "no inotify" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("[demo] all of this is true")
    assert os.listdir(tmp_path / ".demo" / "digits")


LEDGER = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import horovod.tensorflow as hvd
import tensorflow as tf
from digits_data import IMAGES
from digits_ledger import Ledger
hvd.init()
ledger = Ledger()
for split, images in IMAGES.items():
    ids = tf.concat([tf.range(1, images + 1, dtype=tf.int64), tf.constant(EXTRA, tf.int64)], 0)
    for _ in ledger.watch(split, tf.data.Dataset.from_tensors(({{"image": 0, "id": ids}},))):
        pass
ledger.on_epoch_end(0)
"""


@pytest.mark.commit("twice")
@pytest.mark.parametrize("extra, status, said", [
    ([0, 0], 0, ""), ([7], 1, "images came, up to 2 times"), ([5000], 1, "1438 of 1437 images came"),
], ids=["padding", "twice", "unknown"])  # fmt: skip
def test_the_ledger_finds_what_is_wrong(extra, status, said):
    job = run_job(LEDGER.replace("EXTRA", str(extra)), np=1, status=status)
    assert said in job.stderr[0], job.describe()


def test_the_demo_finds_files_read_too_often(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from digits_demo import check_opens

    check_opens({"train-0": 12, "train-1": 12, "valid-0": 13}, epochs=12)
    for wrong in {"train-0": 12, "train-1": 24}, {"train-0": 12}, {}:
        with pytest.raises(SystemExit, match="NOT TRUE"):
            check_opens(wrong, epochs=12)


LOST = [
    r"% of the rows never seen: 3[567]\.?\d*, published 36 \+- 1", "rows seen, of 4096: 512, published 512",
    "files read, of 29: 8, published 8", "rows that came twice: 7", "rows that all {np} ranks saw, and no others: 64",
    "all five were found"]  # fmt: skip

# (name, ranks, dedicated readers): what rank 0 prints
JOBS = {
    **{("custom_loop", np, 0): ["{np} ranks made 3 x 11 steps", "together 3000", "as after training in one process"]
       for np in (1, 2, 4)},
    ("dedicated_reader", 2, 0): [r"hvd.size\(\) is {np};", "each of 240 once", "rank 0$"],
    ("dedicated_reader", 3, 1): [r"hvd.size\(\) is {np};", "each of 240 once", "a dedicated reader, no rank of Horovod"],
    ("several_readers", 2, 2): [r"2 reader\(s\); lines on each rank: .* once"],
    **{("scatter_op", np, 0): ["{np} ranks: equal shares, splits .* are right"] for np in (1, 3)},
    **{("keras3_train_step", np, 0): [r"{np} ranks with equal weights: loss 0\.1\d+ to 0\.0\d+"] for np in (1, 2)},
    **{("token_batches", np, 0): [r"{np} ranks made \d+ steps; loss 3\.\d+ to [12]\.\d+, at each step as in one process"]
       for np in (1, 3)},
    **{("predict_in_order", np, 0): [r"360 predictions by {np} ranks in .*predictions.txt, in order; right: [89]\d\.\d%"]
       for np in (1, 3)},
}  # fmt: skip
IN_COMMIT = {("custom_loop", 2, 0), ("predict_in_order", 1, 0)}


@pytest.mark.parametrize("job", [
    pytest.param(job, id="-".join(map(str, job)), marks=[pytest.mark.commit] * (job in IN_COMMIT)) for job in JOBS
])  # fmt: skip
def test_example(job, digits):
    name, np, readers = job
    said = [pattern.replace("{np}", str(np)) for pattern in JOBS[job]]
    proven(name, np, *said, readers=readers, DIGITS_FOLDER=str(digits))


@pytest.mark.slow
@pytest.mark.skipif(not open_mpi(), reason="horovodrun knows MPICH by its name, which not every mpirun of MPICH says")
def test_horovodrun():
    proven("custom_loop", 2, *JOBS["custom_loop", 2, 0][1:], by=str(Path(sys.executable).with_name("horovodrun")))


@pytest.mark.parametrize("np, readers", [(3, 0), (2, 1)])
def test_speech_generator(np, readers):
    text = proven("speech_generator", np, readers=readers)
    for split, utterances in ("train", 50), ("dev", 11):
        steps = rf"epoch \d, {split}: \d+ steps on every rank, .* together {utterances}, each once"
        assert len(re.findall(steps, text)) == 3, text


@pytest.mark.parametrize("np", [1, 4])
def test_audit_of_published_bugs(np):
    said = [pattern.replace("{np}", str(np)) for pattern in LOST]
    proven("audit_published_bugs", np, *said)
