# SPDX-License-Identifier: Apache-2.0
"""Certificates of whole jobs, their lines and their files; and horovod-data-run, which writes them for any program.

test_resume.py has the certificates of epochs that go on from a checkpoint.
"""

import json
import sys

import pytest
from jobs import program, run_program
from launched import run_launcher

from horovod_data import certificate

PLAIN = """
numbers = np.random.default_rng(int(sys.argv[1])).permutation(100)
dataset = load(list(numbers.reshape(5, 20)), batch="global")
for epoch in range(2):
    for rows in dataset:
        pass
"""


@pytest.mark.limit(150)
def test_a_file_that_is_for_nothing_or_can_not_be_written_is_told(tmp_path):
    """A file without a record is reported at the end, and one that can't be written is reported at once.

    Neither ends the job.
    """
    file = tmp_path / "none"
    job = run_program(PLAIN, 2, "5", env={"HOROVOD_DATA_CERTIFICATE": str(file)})
    line = f"no certificate was written to {file} (HOROVOD_DATA_CERTIFICATE): no channel of this job was verified."
    assert "".join(job.stderr).count(line) == 1 and not file.exists(), job.describe()
    nowhere = tmp_path / "no folder" / "certificate"
    env = {"HOROVOD_DATA_CERTIFICATE": str(nowhere), "HOROVOD_DATA_VERIFY": "1"}
    said = run_program(PLAIN, 2, "5", env=env).stderr[0]
    early = said.find(f"the certificates of this job can't be written to {nowhere}: No such file")
    assert 0 <= early < said.find("epoch 1: 100 rows") and "no certificate was written" not in said, said


@pytest.mark.commit
@pytest.mark.limit(100)
def test_a_relative_file_lies_where_the_job_began(tmp_path):
    """The program may change its folder."""
    (tmp_path / "elsewhere").mkdir()
    env = {"HOROVOD_DATA_CERTIFICATE": "certificate", "HOROVOD_DATA_VERIFY": "1"}
    run_program("os.chdir('elsewhere')" + PLAIN, 2, "5", cwd=tmp_path, env=env)
    assert len((tmp_path / "certificate").read_text().splitlines()) == 2
    assert not (tmp_path / "elsewhere" / "certificate").exists()


@pytest.mark.limit(200)
def test_the_launcher_writes_certificates_of_any_script(tmp_path, capsys):
    """horovod-data-run --certificate FILE; and the command that compares two of them."""
    script = tmp_path / "train.py"
    script.write_text(program(PLAIN))

    def run(name, ranks, seed):
        file = str(tmp_path / name)
        words = ["-np", str(ranks), "--certificate", file, sys.executable, str(script), str(seed)]
        job = run_launcher(*words, timeout=100)
        assert (
            job.output.count("100 rows that the reader yielded, each delivered once; 0 lost, 0 twice, 0 altered") == 2
        ), job.output
        return file

    first, again = run("a.json", 1, 5), run("b.json", 2, 5)
    assert certificate.main([first, again]) == 0
    same = "channel train, epoch %d: the same 100 rows in the same order\n"
    assert capsys.readouterr().out == same % 1 + same % 2


@pytest.mark.limit(200)
def test_an_epoch_that_all_have_left_is_not_complete(tmp_path):
    """Whatever the reader is doing at that moment. A pull that is cancelled looks like the end of the data."""
    file = tmp_path / "certificate.json"
    run_program("""
dataset = train(lambda: tf.data.Dataset.range(24).batch(4), batch="global", verify=True)
for epoch in range(250):
    it = iter(dataset)
    next(it)
for rows in dataset:
    pass
""", 2, env={"HOROVOD_DATA_CERTIFICATE": str(file)}, timeout=150)  # fmt: skip
    *left, last = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(left) == 250 and (last["verdict"], last["rows"]) == ("complete", 24)
    wrong = [record for record in left if record["verdict"] == "complete" and record["rows"] < 24]
    assert not wrong, f"{len(wrong)} of 250: {wrong[0]}"
