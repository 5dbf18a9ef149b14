# SPDX-License-Identifier: Apache-2.0
"""The command lines of mpirun that horovod-data-run makes."""

import re

import pytest

from horovod_data.launcher import LaunchError, hydra, open_mpi
from horovod_data.launcher.arrangement import Request, arrange
from horovod_data.launcher.command import Command, Extras, exportable, on_rank
from horovod_data.launcher.hosts import Host

TWO = (Host("a", 2), Host("b", 2))
RUN = "-m horovod_data.launcher.rank"


@pytest.mark.parametrize("program, started", [
    ("python train.py --lr 1", f"python {RUN} train.py --lr 1"),
    ("/opt/venv/bin/python3.11 -u -X dev train.py -c x", f"/opt/venv/bin/python3.11 -u -X dev {RUN} train.py -c x"),
    ("python -Wignore -OO -m train a", f"python -Wignore -OO {RUN} -m train a"),
    ("python3 -c pass", f"python3 {RUN} -c pass"), ("python -I train.py", f"python -I {RUN} train.py"),
    ("python -mpkg.train a", f"python {RUN} -m pkg.train a"), ("python -uIcpass a", f"python -uI {RUN} -c pass a"),
    ("python -BuW ignore -Xdev train.py", f"python -BuW ignore -Xdev {RUN} train.py"),
    ("python -um train -c", f"python -u {RUN} -m train -c"), ("python -m", None), ("python -X", None), ("python -uc", None),
    ("python", None), ("python -", None), ("python -V", None), ("python -i train.py", None), ("python -ic pass", None),
    ("python --help", None), ("sh -c python", None), ("./train.py", None), ("ipython train.py", None), ("python-config x", None),
])  # fmt: skip
def test_python_programs_are_run_by_ours(program, started):
    assert " ".join(on_rank(program.split())) == (started or program)
    lines = "import a\na.b()"
    assert on_rank(["python", f"-c{lines}"]) == ["python", *RUN.split(), "-c", lines]


ONE_READER = Request(None, readers=1)
READER_ON_C = Request(None, readers=1, reader_hosts=("c",))


def mpirun(
    extras=Extras(), request=ONE_READER, environ={}, oversubscribed=False, hosts=TWO, version="Open MPI 4.1.4"
) -> str:
    arrangement = arrange(request, hosts)
    return str(open_mpi.command(["mpirun"], arrangement, ["train"], extras, environ, oversubscribed, version))


def mpiexec(extras=Extras(), request=ONE_READER, environ={}, hosts=TWO) -> str:
    return str(hydra.command(["mpirun"], arrange(request, hosts), ["train"], extras, environ))


def test_whole_command_lines():
    assert mpirun(request=READER_ON_C) == (
        "mpirun --bind-to none --map-by slot:OVERSUBSCRIBE --mca pml ob1 --mca btl '^openib' "
        "--mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 5 "
        "-np 4 -host a:2,b:2 -x HOROVOD_DATA_READERS=1 train : "
        "-np 1 -host c:1 -x HOROVOD_DATA_READERS=1 -x CUDA_VISIBLE_DEVICES= train"
    )
    assert mpiexec(request=READER_ON_C) == (
        "mpirun -hosts a:2,b:2,c:1 -genv HOROVOD_DATA_READERS 1 -np 4 train : -env CUDA_VISIBLE_DEVICES '' -np 1 train"
    )


OWN_PML = Extras(mpi_args=["--mca", "pml", "ucx", "--map-by", "ppr:2:node"])
OWN_MCA = {"OMPI_MCA_oob_tcp_keepalive_time": "9", "OMPI_MCA_mpi_yield_when_idle": "0"}
ALL = Extras(
    environ={"A": "1 2"},
    interfaces=["eth0"],
    ssh_port=2222,
    ssh_identity_file="key",
    output_filename="out",
    tag_output=True,
)
NETWORK = Extras(interfaces=["eth0"], ssh_port=2222)
OWN_NETWORK = {
    "OMPI_MCA_plm_rsh_args": "-o X=1",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "HYDRA_LAUNCHER_EXTRA_ARGS": "-o X=1",
}
SIXTY_FOUR = tuple(Host(f"n{index}", 1) for index in range(64))


@pytest.mark.parametrize("given, once, never", [
    ({"oversubscribed": True}, ["--mca mpi_yield_when_idle 1"], []),
    ({}, [], ["mpi_yield_when_idle", "no_tree_spawn"]),
    # Parameters of the user win.
    ({"extras": OWN_PML, "environ": OWN_MCA, "oversubscribed": True},
     ["pml ucx", "btl '^openib'", "map-by", "--bind-to none", "keepalive_probes"], ["pml ob1", "keepalive_time", "yield"]),
    ({"extras": Extras(binding_args=["-rankfile", "f"])}, [], ["--bind-to"]),
    ({"extras": Extras(mpi_args=["-bind-to", "core"])}, [], ["bind-to none"]),
    # From version 5 on the daemons have variables of their own.
    ({"version": "Open MPI 3.1.6"}, ["keepalive_time"], []),
    ({"version": "Open MPI (unknown)"}, ["keepalive_time"], []),
    ({"version": "Open MPI 5.0.0rc12"}, ["--mca pml ob1", "PRTE_MCA_oob_tcp_keepalive_time=1", "probes=5 mpirun"], ["--mca oob"]),
    ({"version": "Open MPI 10.0"}, ["--mca pml ob1", "PRTE_MCA_oob_tcp_keepalive_time=1"], ["--mca oob"]),
    ({"version": "Open MPI 5.0", "environ": {"PRTE_MCA_oob_tcp_keepalive_time": "9"}}, ["keepalive_intvl"], ["keepalive_time"]),
    ({"extras": ALL}, ["--mca plm_rsh_args '-p 2222 -i key'", "--mca btl_tcp_if_include eth0", "--mca oob_tcp_if_include eth0",
                       "--tag-output", "--output-filename out"], []),
    ({"extras": Extras(timestamps=True, output_filename="f", interfaces=["eth0", "eth1"])},
     ["--timestamp-output --output-filename", "btl_tcp_if_include eth0,eth1"], []),
    # Options come before the environment.
    ({"extras": NETWORK, "environ": OWN_NETWORK}, ["--mca plm_rsh_args '-o X=1 -p 2222'", "--mca btl_tcp_if_include eth0",
                                                   "--mca oob_tcp_if_include eth0"], []),
    ({"environ": OWN_NETWORK}, [], ["plm_rsh_args", "if_include"]),
    ({"request": Request(None), "hosts": SIXTY_FOUR}, ["--mca plm_rsh_no_tree_spawn true --mca plm_rsh_num_concurrent 64"], []),
    ({"request": Request(None), "hosts": SIXTY_FOUR[:-1]}, [], ["no_tree_spawn"]),
])  # fmt: skip
def test_open_mpi(given, once, never):
    text = mpirun(**given)
    assert [text.count(part) for part in [*once, *never]] == [1] * len(once) + [0] * len(never), text
    if given.get("extras") is ALL:
        assert text.count("-x 'A=1 2'") == text.count("-np ")  # each context needs its own


def test_hydra():
    text = mpiexec(ALL)
    for part in (
        "HYDRA_LAUNCHER_EXTRA_ARGS='-p 2222 -i key' mpirun ",
        "-iface eth0",
        "-prepend-rank",
        "-genv A '1 2'",
        "-outfile-pattern out/rank.%r.stdout",
        "-errfile-pattern out/rank.%r.stderr",
    ):
        assert text.count(part) == 1, part
    assert mpiexec(NETWORK, environ=OWN_NETWORK).startswith("HYDRA_LAUNCHER_EXTRA_ARGS='-o X=1 -p 2222' mpirun ")
    assert "HYDRA_LAUNCHER_EXTRA_ARGS" not in mpiexec(environ=OWN_NETWORK)
    assert "Hydra does not watch over its hosts" in hydra.warning(arrange(Request(None), TWO))
    assert hydra.warning(arrange(Request(1), TWO)) == ""


@pytest.mark.parametrize("extras", [
    Extras(binding_args=["--bind-to", "core"]), Extras(mpi_args=["--map-by", "node"]), Extras(mpi_args=["-rf", "f"]),
], ids=["--binding-args", "--map-by", "-rf"])  # fmt: skip
def test_readers_need_no_slot_where_the_user_maps(extras):
    assert "--mca rmaps_base_oversubscribe 1" in mpirun(extras)
    assert "OVERSUBSCRIBE" not in mpirun(extras)
    assert "rmaps" not in mpirun(extras, request=Request(None))  # only readers come on top of the slots
    assert "rmaps" not in mpirun(extras, environ={"OMPI_MCA_rmaps_base_oversubscribe": "0"})


@pytest.mark.parametrize("said", [":NOOVERSUBSCRIBE", " --nooversubscribe", " --mca rmaps_base_oversubscribe 0"])
def test_a_user_who_maps_may_forbid_oversubscription(said):
    words = f"--map-by node{said}".split()
    for extras in Extras(binding_args=words), Extras(mpi_args=words):
        assert "rmaps_base_oversubscribe 1" not in mpirun(extras)


@pytest.mark.parametrize("command, extras, text", [
    (mpirun, Extras(interfaces=["eth0"], mpi_args=["--mca", "btl_tcp_if_include", "lo"]),
     "--network-interface and btl_tcp_if_include in --mpi-args contradict each other. Give one of them"),
    (mpirun, Extras(ssh_port=2222, mpi_args=["--mca", "plm_rsh_args", "-x"]), "-p and plm_rsh_args in --mpi-args contradict"),
    (mpirun, Extras(ssh_identity_file="f", mpi_args=["--mca", "plm_rsh_args", "-x"]), "-i and plm_rsh_args in --mpi-args"),
    (mpiexec, Extras(timestamps=True), "--prefix-output-with-timestamp needs Open MPI, but mpirun is MPICH's"),
    (mpiexec, Extras(binding_args=["x"]), "--binding-args needs Open MPI"),
    (mpiexec, Extras(interfaces=["eth0", "eth1"]), "--network-interface eth0,eth1 needs Open MPI"),
])  # fmt: skip
def test_options_that_do_not_fit(command, extras, text):
    with pytest.raises(LaunchError, match=re.escape(text)):
        command(extras)


def test_variables_for_other_hosts():
    assert mpirun(Extras(exported=["HOME", "PATH"])).count("-x HOME -x PATH -x HOROVOD_DATA_READERS=1") == 3
    sent = ["HOROVOD_CYCLE_TIME", "HOROVOD_DATA_TIMEOUT", "NCCL_DEBUG", "PATH", "PYTHONPATH"]
    kept = ["PWD", "HOSTNAME", "SSH_TTY", "CUDA_VISIBLE_DEVICES", "HOROVOD_DATA_READERS", "OMPI_MCA_x", "PMI_RANK"]
    kept += ["SLURM_JOB_ID", "BASH_FUNC_module%%", "_", "DISPLAY"]
    assert exportable(dict.fromkeys([*kept, *sent], "x")) == sent


def test_a_command_for_the_shell():
    assert str(Command(["mpirun", "a b"], {"C": "d e"})) == "C='d e' mpirun 'a b'"
    assert str(Command(["mpirun", "a b"], {"C": "d e"}, ["F", "G"])) == "env -u F -u G C='d e' mpirun 'a b'"
