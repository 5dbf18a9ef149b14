# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run places processes on several hosts, which differ in name only.

Instead of ssh, a script starts MPI's daemon on this machine under another host name. tests/cluster has hosts with
networks of their own.
"""

import os
import subprocess

import pytest
from launched import executable, run_launcher

AGENT = """
while :; do case $1 in -p | -i) echo "WITH $1 $2" >&2; shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1; shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$host" "$@"
"""
SHOW = (
    'echo "RUNS ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $(hostname) devices=$CUDA_VISIBLE_DEVICES '
    '$HOROVOD_DATA_READERS $HOROVOD_DATA_READERS_PER_NODE $HOROVOD_DATA_EMBEDDED $TOKEN"'
)
may_rename = os.geteuid() == 0 and subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0
pytestmark = [pytest.mark.limit(90), pytest.mark.skipif(not may_rename, reason="needs root, for host names of its own")]


@pytest.fixture
def by_name(tmp_path):
    """The variables with which both MPIs start their daemons under such host names."""
    agent = executable(tmp_path / "agent", AGENT)
    return {
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "OMPI_MCA_mpi_yield_when_idle": "1",  # the hosts share the cores of this one
    }


def each(hosts, devices="3", **other):
    """Lines of ranks on these hosts. `other` has the devices of some."""
    return [f"{rank} {host} devices={other.get(f'rank{rank}', devices)}" for rank, host in enumerate(hosts.split())]


PER_NODE = ["-H", "ha:2,hb:1", "--readers-per-node", "1"]
TRAINERS = ["-H", "ha:2,hb:2", "-np", "3"]


@pytest.mark.commit("per node", "embedded")
@pytest.mark.parametrize("words, runs, sees", [
    pytest.param(PER_NODE, each("ha ha ha hb hb", rank2="", rank4=""), "1", id="per node"),
    pytest.param([*PER_NODE, "--embedded"], each("ha ha hb"), "1 1", id="embedded"),
    pytest.param([*TRAINERS, "--readers", "3", "--reader-hosts", "hc,hd"],
                 each("ha ha hb hc hc hd", rank3="", rank4="", rank5=""), "3", id="elsewhere"),
    pytest.param(["-H", "ha:2,hb:2", "--readers", "3"], each("ha ha hb hb ha ha hb", rank4="", rank5="", rank6=""), "3",
                 id="beside trainers"),
    # Open MPI takes its slots from the host file as well, for example in Kubernetes.
    pytest.param(["--readers-per-node", "1"], each("ha ha ha hb hb hb", rank2="", rank5=""), "1", id="default host file"),
    pytest.param(["-H", "ha:1,hb:1", "-p", "2222", "-i", "/my/key"], each("ha hb"), "0", id="ssh"),
])  # fmt: skip
def test_who_runs_where(by_name, tmp_path, words, runs, sees):
    """The test also looks at the environment that a process gets."""
    env = {**by_name, "CUDA_VISIBLE_DEVICES": "3", "TOKEN": "of the launcher"}
    if "-H" not in words:
        (tmp_path / "hostfile").write_text("ha slots=2\nhb slots=2\n")
        env["OMPI_MCA_orte_default_hostfile"] = str(tmp_path / "hostfile")
    job = run_launcher(*words, "-x", "CUDA_VISIBLE_DEVICES", "sh", "-c", SHOW, env=env)
    shown = sorted((" ".join(line.split()) for line in job.lines("RUNS")), key=lambda line: int(line.split()[0]))
    assert shown == [" ".join([line, *sees.split(), "of the launcher"]) for line in runs], job.output
    if "-p" in words:
        assert "WITH -p 2222" in job.output and "WITH -i /my/key" in job.output, job.output
