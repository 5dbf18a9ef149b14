# SPDX-License-Identifier: Apache-2.0
"""Which ranks of this host are gone, or have come to their end, as a process sees it that looks at a launcher's children."""

import subprocess
import sys

import pytest

# As a launcher does it: a process for each rank, with variables that say which. It waits for rank 0.
LAUNCHER = """
import os, subprocess, sys
with open("/proc/self/comm", "w") as file:
    file.write("orted")
names = sys.argv[1].split(",")
def start(rank, command):
    values = {names[0]: str(rank + int(sys.argv[2])), names[1]: str(rank), names[2]: "3", names[3]: sys.argv[3]}
    return subprocess.Popen(command, env={**os.environ, **values})
ranks = [start(rank, command) for rank, command in enumerate([
    [*sys.argv[6:], sys.executable, "-c", sys.argv[4]], [sys.executable, "-c", sys.argv[5]], ["sleep", "600"]])]
gone = ranks[1].wait() if sys.argv[5] == "" else None
ranks[0].wait()
for rank in ranks[1:]:
    rank.kill()
"""
LOOKS = """
import time
from horovod_data.ending.siblings import Siblings
siblings, end = Siblings(), time.monotonic() + 40
while not (found := siblings.absent()) and time.monotonic() < end:
    if {most} and time.monotonic() > end - 40 + {most}: break
    time.sleep(0.1)
print([str(one) for one in found], flush=True)
"""
OPEN_MPI = "OMPI_COMM_WORLD_RANK,OMPI_COMM_WORLD_LOCAL_RANK,OMPI_COMM_WORLD_LOCAL_SIZE,OMPI_COMM_WORLD_SIZE"
HYDRA = "PMI_RANK,MPI_LOCALRANKID,MPI_LOCALNRANKS,PMI_SIZE"
pytestmark = pytest.mark.limit(90)


# What starts a program, and stays, and hands on no environment of its own: a container's runtime, sudo.
WRAPPER = """
import json, os, subprocess, sys
if "FULL" in os.environ:
    sys.exit(subprocess.call(sys.argv[1:], env=json.loads(os.environ["FULL"])))
os.execve(sys.executable, [sys.executable, "-c", *sys.orig_argv[2:]], {"FULL": json.dumps(dict(os.environ))})
"""


def looked(names, first, size, other, most=0, wrapper=()):
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, names, str(first), str(size), LOOKS.format(most=most), other, *wrapper],
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("names", [OPEN_MPI, HYDRA], ids=["Open MPI", "Hydra"])
def test_one_that_is_gone(names):
    assert looked(names, 0, 3, "") == "['rank 1 has left, its process is gone']"


def test_one_that_is_gone_where_other_hosts_have_ranks_too():
    """Which of the job's ranks it was is not known then."""
    assert (
        looked(OPEN_MPI, 6, 9, "") == "['the rank with number 1 on this host (from 0) has left, its process is gone']"
    )


def test_one_whose_program_has_ended():
    ends = "import time; from horovod_data.ending.siblings import tell_end; tell_end(); time.sleep(600)"
    assert looked(OPEN_MPI, 6, 9, ends) == "['rank 7 has come to the end of its program']"


def test_all_are_there():
    assert looked(OPEN_MPI, 0, 3, "import time; time.sleep(600)", most=4) == "[]"


def test_a_wrapper_between_the_launcher_and_the_rank():
    assert (
        looked(OPEN_MPI, 0, 3, "import time; time.sleep(600)", most=4, wrapper=[sys.executable, "-c", WRAPPER]) == "[]"
    )


def test_a_wrapper_around_another_rank():
    """Which of the launcher's children it is, and whether it is one, nobody can tell."""
    wrapped = "import os; os.execvpe('sleep', ['sleep', '600'], {'PATH': os.environ['PATH']})"
    assert looked(OPEN_MPI, 0, 3, wrapped, most=4) == "[]"


def test_under_no_launcher():
    from horovod_data.ending.siblings import Siblings

    assert Siblings({}).absent() == []


def test_whether_there_are_ranks_on_other_hosts():
    from horovod_data.ending.siblings import over_hosts

    for names in (OPEN_MPI, HYDRA):
        here, all_of_them = names.split(",")[2:]
        values = dict.fromkeys(names.split(","), "0")
        assert over_hosts({**values, here: "2", all_of_them: "4"})
        assert not over_hosts({**values, here: "4", all_of_them: "4"})
    assert not over_hosts({})
