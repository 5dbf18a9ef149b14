# SPDX-License-Identifier: Apache-2.0
"""A reader takes no GPU for the datasets of TF1 programs, neither in its own sessions nor in the eager context."""

import shutil

import pytest
from jobs import run_program

pytestmark = pytest.mark.limit(120)

PROGRAM = """
program = v1.ConfigProto()
program.gpu_options.visible_device_list = "0"
program.gpu_options.per_process_gpu_memory_fraction = 0.1
"""
# One dataset is an object of this graph, dealt in a session. The other comes from a function, dealt eagerly.
SCRIPT = (
    PROGRAM
    + """
first = v1.data.Dataset.range(8) if hvdata.is_reader() else None
datasets = [train(first, name="first"), train(lambda: tf.data.Dataset.range(8), name="second")]
fetches = [v1.data.make_one_shot_iterator(one).get_next() for one in datasets]
with v1.Session(config=program) as session:
    for fetch in fetches:
        say("got", [int(session.run(fetch)) for _ in range(4)])
    if hvdata.is_reader():
        ours = [one for one in gc.get_objects() if issubclass(type(one), v1.Session) and one is not session]
        say("sessions", [dict(one._config.device_count) for one in ours])
        say("eager", context.context().config.device_count["GPU"],
            [one.device_type for one in tf.config.get_visible_devices()])
"""
)
V1 = """
import tensorflow as tf
from tensorflow.python.eager import context
v1 = tf.compat.v1
v1.disable_eager_execution()
"""


@pytest.mark.commit
def test_a_tf1_program_with_a_visible_device_list():
    job = run_program(SCRIPT, 2, before=V1)
    for rank, out in enumerate(job.stdout):
        assert out.count(f"got {list(range(rank, 8, 2))}") == 2, job.describe()
    assert "sessions [{'GPU': 0}]" in job.stdout[0] and "eager 0 ['CPU']" in job.stdout[0], job.describe()


# Each element is the MiB of GPU memory that the reader's process has while it deals the element. Programs take a tenth
# of the GPU.
ON_A_GPU = (
    PROGRAM
    + """
import subprocess
def gpu_memory():
    held = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                          check=True, capture_output=True, text=True).stdout
    return sum(int(words[1]) for words in map(str.split, held.replace(",", " ").splitlines()) if int(words[0]) == os.getpid())

def while_dealing():
    for _ in range(4):
        yield gpu_memory()

# A dataset with functions, made here, would have TensorFlow begin its eager context, with all GPUs.
first = v1.data.Dataset.range(4) if hvdata.is_reader() else None
datasets = [train(first, name="first"), train(lambda: v1.data.Dataset.from_generator(while_dealing, tf.int64, []), name="second")]
fetches = [v1.data.make_one_shot_iterator(one).get_next() for one in datasets]
say("before", gpu_memory())
hvdata.serve()
with v1.Session(config=program) as session:
    say("program", gpu_memory(), [one.device_type for one in session.list_devices()])
    for name, fetch in zip(["numbers", "reader"], fetches):
        say(name, *[int(session.run(fetch)) for _ in range(4 // size)])
    say("after", gpu_memory())
"""
)


@pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="needs a GPU, and a TensorFlow that uses it")
@pytest.mark.parametrize("readers", [0, 1], ids=["embedded", "dedicated"])
def test_on_a_gpu(readers):
    job = run_program(ON_A_GPU, 2, before=V1, readers=readers, env={"CUDA_VISIBLE_DEVICES": "0"})
    said = [{line.split()[0]: line.split()[1:] for line in out.splitlines()} for out in job.stdout]
    of_program = [int(one["program"][0]) for one in said[:2]]
    assert min(of_program) > 0 and "GPU" in job.stdout[0], job.describe()  # else this has shown nothing
    for rank, out in enumerate(job.stdout):
        assert "before 0\n" in out, job.describe()
        of_reader = [int(word) for line in out.splitlines() if line.startswith("reader") for word in line.split()[1:]]
        assert set(of_reader) == ({0} if readers else {of_program[0]}) or not of_reader and rank == 2, job.describe()
        assert rank == 2 or int(said[rank]["after"][0]) == of_program[rank], job.describe()
