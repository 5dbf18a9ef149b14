# SPDX-License-Identifier: Apache-2.0
"""The command lines, and what horovod-data-run prints without a job."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launched import LAUNCHER, ask_launcher

from horovod_data import _version
from horovod_data.job.settings import read_roles
from horovod_data.launcher import LaunchError, hydra, main, open_mpi
from horovod_data.launcher import options as options_of
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


# ---- In a process of its own.


@pytest.fixture
def mpi(tmp_path):
    """The command of an mpirun that prints the given text."""

    def make(said: str) -> list[str]:
        (tmp_path / "mpirun").write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        (tmp_path / "mpirun").chmod(0o755)
        return ["--mpirun", str(tmp_path / "mpirun")]

    return make


OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to ..."
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: ..."


@pytest.fixture
def shown(mpi):
    """What a dry run prints."""

    def run(*words, version=OPEN_MPI, env=None):
        done = ask_launcher(*mpi(version), "--dry-run", *words, env=env)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 1 and not done.stderr, done
        return done.stdout

    return run


R, N, E = "HOROVOD_DATA_READERS", "HOROVOD_DATA_READERS_PER_NODE", "HOROVOD_DATA_EMBEDDED"


@pytest.mark.parametrize("version, shows", [
    (OPEN_MPI, "-np 3 -host localhost:3 -x HOROVOD_DATA_READERS=1 python -m horovod_data.launcher.rank train.py --readers 9 : "
               "-np 1 -host localhost:1 -x HOROVOD_DATA_READERS=1 -x CUDA_VISIBLE_DEVICES= python"),
    (HYDRA, "-hosts localhost:4 -genv HOROVOD_DATA_READERS 1 -np 3 python -m"),
], ids=["Open MPI", "Hydra"])  # fmt: skip
def test_dry_run(shown, version, shows):
    text = shown("-np", "3", "--readers", "1", "python", "train.py", "--readers", "9", version=version)
    assert shows in text and "train.py --readers 9" in text


def test_a_word_that_is_no_text_is_printed_unchanged(mpi):
    words = [*LAUNCHER, *mpi(OPEN_MPI), "-np", "1", "--dry-run", "true", os.fsdecode(b"caf\xe9")]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 0 and b"caf\xe9" in done.stdout, done


def test_a_dry_run_shows_which_variables_the_start_removes(shown):
    """The shown command must not take the readers from the shell's variables if it runs in the same shell."""
    words = ["--readers-per-node", "1", "-np", "1", "true"]
    text = shown(*words, env={R: "2"})
    assert text.startswith(f"env -u {R} /") and f"-x {N}=1" in text
    text = shown("-p", "22", *words, version=HYDRA, env={R: "2", E: "0"})
    assert text.startswith(f"env -u {R} -u {E} HYDRA_LAUNCHER_EXTRA_ARGS='-p 22' /")
    assert "env -u" not in shown(*words)


def test_the_version_of_open_mpi_counts(shown):
    text = shown("-np", "1", "true", version="mpirun (Open MPI) 5.0.3\n\nReport bugs to ...")
    assert "--map-by slot:OVERSUBSCRIBE" in text and "--mca oob_tcp_keepalive" not in text


def test_a_containers_quota_counts_as_cores(monkeypatch, capsys, mpi):
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
    for cores, yields in ((0.5, True), (None, False)):
        monkeypatch.setattr(main, "quota", lambda: cores)
        assert main.main([*mpi(OPEN_MPI), "-np", "1", "--dry-run", "true"]) == 0
        assert ("yield" in capsys.readouterr().out) == yields


def test_hosts_of_the_batch_system(shown, tmp_path):
    (tmp_path / "nodes").write_text("a\na\nb\n")
    text = shown("--readers-per-node", "1", "true", env={"PBS_NODEFILE": str(tmp_path / "nodes")})
    assert placed(text) == ["2 a:2", "1 a:1", "1 b:1", "1 b:1"], text
    assert "-host c:1" in shown("-np", "1", "-H", "c:3", "true", env={"PBS_NODEFILE": "/no/such"})


def placed(text):
    """`processes host:slots` of each context."""
    return [" ".join(found) for found in re.findall(r"-np (\d) -host (\S+)", text)]


def test_version():
    done = ask_launcher("--version")
    assert (done.returncode, done.stdout) == (0, f"horovod_data {_version.__version__}\n")


def test_it_needs_neither_tensorflow_nor_mpi():
    code = (
        "import sys\nfrom horovod_data.launcher.main import main\nmain(['-np', '1', '--dry-run', 'true'])\n"
        "print(sorted({'tensorflow', 'numpy', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=170)
    assert done.stdout.splitlines()[-1] == "[]", done


@pytest.mark.parametrize("words, text", [
    ([], "There is no command to start. Write it behind the options, as in `horovod-data-run -np 4 python train.py`"),
    (["true"], "How many processes are to train? Pass -np N"),
    (["-np", "0", "true"], "-np 0: a job needs at least one trainer"),
    (["-np", "1", "-H", "a:b", "true"], "-H a:b: 'a:b' is not a host with its slots"),
    (["-np", "1", "-H", "a", "--hostfile", "f", "true"], "-H a and --hostfile f contradict each other"),
    (["-np", "1", "--hostfile", "/no/such", "true"], "--hostfile names the host file /no/such, which can't be read"),
    (["-np", "1", "--readers", "1", "--readers-per-node", "1", "true"], "contradict each other"),
    (["-np", "1", "--readers", "1", "--embedded", "true"], "--embedded says that each host's first trainer reads for its host"),
    (["-np", "1", "--readers", "1", "--reader-hosts", ",", "true"], "--reader-hosts ,: '' is not the name"),
    (["-np", "1", "-H", "", "true"], "-H : '' is not a host with its slots"),
    (["-np", "1", "--hostfile", "", "true"], "--hostfile '' names no file. Name one, as in --hostfile hosts.txt"),
    (["-np", "1", "--mpirun", "", "true"], "--mpirun '' names no command. Name one, as in --mpirun /path/to/mpirun"),
    (["-np", "1", "--mpirun", "'", "true"], "can't be taken apart into words (No closing quotation). Quote it as for a shell"),
    (["-np", "1", "-x", "NO_SUCH_VARIABLE", "true"], "-x NO_SUCH_VARIABLE: there is no such environment variable"),
    (["-np", "1", "-x", "HOROVOD_DATA_READERS=2", "true"],
     "-x HOROVOD_DATA_READERS=2 would make init() expect readers, but starts no process for them. Use --readers R, which does both"),
    (["-np", "1", "-x", "HOROVOD_DATA_READERS_PER_NODE=1", "true"], "Use --readers-per-node 1, which does both"),
    (["-np", "1", "-x", "HOROVOD_DATA_EMBEDDED=1", "true"], "Use --readers-per-node 1 --embedded, which does both"),
    (["-np", "1", "--mpi-args='x", "true"], "can't be taken apart into words"),
    (["-np", "1", "--max-restarts", "2", "true"], "--max-restarts 2: a job can only go on from the state that it saves. Add --state"),
    (["-np", "1", "--min-np", "1", "true"], "--min-np 1: a job can only go on from the state that it saves"),
    (["-np", "1", "--mpirun", "/no/such/mpirun", "true"], "There is no /no/such/mpirun in PATH: horovod-data-run works with Open MPI"),
])  # fmt: skip
def test_errors(words, text):
    done = ask_launcher(*words)
    assert done.returncode == 2 and done.stderr.startswith("horovod-data-run: error: ") and text in done.stderr, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words, text", [
    (["--state", " "], "--state ' ' names no directory"),
    (["--state", "d", "--max-restarts", "-1"], "--max-restarts -1: give 0 or more"),
    (["--state", "d", "--min-np", "0"], "--min-np 0: give 1 or more"),
    (["--state", "d", "--min-np", "3"], "--min-np 3 is more than the 2 processes that train. Give 2 or less"),
    (["--state", "d", "--grace-seconds", "0"], "--grace-seconds 0: give 1 or more"),
    (["--state", "d", "--min-np", "1", "--readers-per-node", "1"], "fewer hosts have fewer readers, which can't restore the state"),
    (["--state", __file__], "this directory can't be used (Not a directory)"),
])  # fmt: skip
def test_errors_of_a_state(mpi, words, text):
    done = ask_launcher(*mpi(OPEN_MPI), "-np", "2", *words, "true")
    assert done.returncode == 2 and done.stderr.startswith("horovod-data-run: error: ") and text in done.stderr, done


def test_readers_per_node_in_the_environment_fix_the_number_of_hosts(mpi):
    words = [*mpi(OPEN_MPI), "-np", "2", "--state", "d", "--min-np", "1", "--dry-run", "true"]
    done = ask_launcher(*words, env={"HOROVOD_DATA_READERS_PER_NODE": "1"})
    assert done.returncode == 2 and "with --readers-per-node, fewer hosts have fewer readers" in done.stderr, done


def test_a_leave_status_that_is_none(mpi):
    for text in ("0", "126", "x"):
        done = ask_launcher(*mpi(OPEN_MPI), "-np", "1", "--state", "d", "true", env={"HOROVOD_DATA_LEAVE_STATUS": text})
        assert done.returncode == 2 and f"HOROVOD_DATA_LEAVE_STATUS={text} is no exit status" in done.stderr, done


def test_a_leave_status_of_an_option(shown, tmp_path):
    text = shown("-np", "1", "--state", str(tmp_path), "-x", "HOROVOD_DATA_LEAVE_STATUS=43", "true")
    assert "-x HOROVOD_DATA_LEAVE_STATUS=43" in text and "LEAVE_STATUS=75" not in text


def test_a_dry_run_with_a_state(shown, tmp_path):
    """A dry run makes no directory."""
    text = shown("-np", "2", "--state", str(tmp_path / "d"), "--max-restarts", "3", "true")
    assert f"-x HOROVOD_DATA_STATE={tmp_path}/d -x HOROVOD_DATA_ATTEMPT=1 -x HOROVOD_DATA_LEAVE_STATUS=75 true" in text
    assert not (tmp_path / "d").exists()
    text = shown("-np", "1", "--max-restarts", "3", "true", env={"HOROVOD_DATA_STATE": str(tmp_path)})
    assert f"-x HOROVOD_DATA_STATE={tmp_path} " in text


def test_a_command_that_is_too_long(mpi):
    words = [*mpi(OPEN_MPI), "-H", ",".join(f"n{index}" for index in range(300)), "--readers-per-node", "1", "true"]
    done = ask_launcher(*words, env={f"A_VARIABLE_OF_SOME_ENVIRONMENT_MODULE_{index}": "1" for index in range(500)})
    assert done.returncode == 2 and "Traceback" not in done.stderr, done
    assert "mpirun can't be started (Argument list too long). Unset variables that ranks don't need" in done.stderr


def test_an_mpirun_that_does_not_start(tmp_path):
    """mpirun may have been removed, or may no longer be executable."""
    for path, said in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Permission denied")):
        text = f"{path} can't be started ({said}). Name another mpirun with --mpirun"
        with pytest.raises(LaunchError, match=re.escape(text)):
            main.start(Command([str(path)]))


def test_a_folder_for_the_output_that_can_not_be(mpi, tmp_path):
    (tmp_path / "file").write_text("")
    for path, said in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "x", "Not a directory")):
        done = ask_launcher(*mpi(OPEN_MPI), "-np", "1", "--output-filename", str(path), "true")
        text = f"--output-filename {path}: this folder can't be made ({said}). Name a folder to write the output of each rank to."
        assert (done.returncode, done.stderr) == (2, f"horovod-data-run: error: {text}\n"), done


def test_names_of_this_machine(monkeypatch, capsys, mpi):
    """init() takes all names of a machine as one host. The long name is looked up only if a similar one was given."""
    asked = []
    monkeypatch.setattr(main.socket, "gethostname", lambda: "me")
    monkeypatch.setattr(main.socket, "getfqdn", lambda: asked.append(1) or "me.example.org")
    words = [*mpi(OPEN_MPI), "--dry-run"]
    by_node = [*words, "--readers-per-node", "1", "-H"]
    assert main.main([*by_node, "localhost:1,127.0.0.1:1,me", "true"]) == 0
    assert placed(capsys.readouterr().out) == ["3 localhost:3", "1 localhost:1"] and not asked
    assert main.main([*by_node, "me.example.org:1,me:1", "true"]) == 0
    assert placed(capsys.readouterr().out) == ["2 me.example.org:2", "1 me.example.org:1"]
    assert main.main([*by_node, "me.elsewhere.org:1,me:1", "true"]) == 2
    assert "error: me and me.elsewhere.org: are these the same host?" in capsys.readouterr().err
    assert main.main([*words, "-np", "2", "--readers", "1", "--reader-hosts", "localhost", "true"]) == 0
    assert placed(capsys.readouterr().out) == ["2 me:2", "1 me:1"]


def test_another_mpi(mpi):
    done = ask_launcher(*mpi("Wonder MPI 1.0"), "-np", "1", "true")
    works = "horovod-data-run works with Open MPI and with MPICH"
    assert done.returncode == 2 and f"--version says 'Wonder MPI 1.0', but {works}" in done.stderr


@pytest.mark.parametrize("options", [
    "", "--readers 1", "--readers-per-node 1", "--readers-per-node 0", "--readers 1 --readers-per-node 0"])  # fmt: skip
@pytest.mark.parametrize("environ", [
    {}, {R: "2"}, {R: "0"}, {N: "1"}, {N: "0"}, {N: ""}, {E: "1"}, {E: "0"}, {N: "1", E: "1"}, {N: "1", E: "0"}, {R: " 2 ", E: "1"},
    {R: "two"}, {R: "-1"}, {N: "2"}, {N: "1", E: "yes"}, {E: "yes"}, {R: "1", N: "1"}, {R: "0", N: "1"}, {N: "0", E: "1"},
], ids=str)  # fmt: skip
def test_variables_mean_what_they_mean_to_init(options, environ):
    """The launcher places, and tells init(), what init() would have made of the same variables and options."""
    args = options_of.parse([*options.split(), "-np", "1", "true"])
    try:
        told = read_roles(environ, args.readers, args.readers_per_node)
    except ValueError as refused:
        with pytest.raises(LaunchError) as error:
            options_of.request_of(args, environ)
        assert str(error.value) == str(refused)
        return
    arrangement = arrange(options_of.request_of(args, environ), TWO)
    assert read_roles(arrangement.environ) == told
    dedicated = 0 if told.embedded else told.readers_per_node or told.readers
    assert sum(group.processes for group in arrangement.groups) == 1 + dedicated


@pytest.mark.horovod
@pytest.mark.parametrize("option", ["--gloo", "--max-np 1", "--host-discovery-script x"])
def test_options_that_only_horovodrun_has(option):
    done = ask_launcher("-np", "1", *option.split(), "true")
    says = f"{option.split()[0]} is an option of horovodrun's that horovod-data-run does not have"
    assert done.returncode == 2 and says in done.stderr


@pytest.mark.horovod
@pytest.mark.parametrize("words, text, said", [
    (["--cycle-time-ms", "-1"], None, "(ValueError: cycle_time_ms=-1.0 must be >= 0). Fix them."),
    (["--config-file", "FILE"], None, "No such file or directory: 'FILE'). Fix them, or what --config-file FILE says."),
    (["--config-file", "FILE"], "params: [", "ParserError: while parsing"),
    (["--config-file", "FILE"], "controller: smoke", "(ValueError: No such controller supported: smoke)"),
    (["--config-file", "FILE"], "- params", "(AttributeError: "),
])  # fmt: skip
def test_values_that_horovod_refuses(words, text, said, tmp_path):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    done = ask_launcher("-np", "1", *(word.replace("FILE", str(path)) for word in words), "true")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("horovod-data-run: error: Horovod refuses its options ("), done
    assert said.replace("FILE", str(path)) in done.stderr, done


def variables_of(*words):
    return options_of.extras_of(options_of.parse([*words, "-np", "1", "true"]), {}, []).environ


@pytest.mark.horovod
def test_horovods_timeline_stands_beside_ours(tmp_path):
    ours, config = str(tmp_path / "job.json"), tmp_path / "config.yaml"
    given = variables_of("--timeline-filename", ours, "--timeline-mark-cycles")
    assert given["HOROVOD_DATA_TIMELINE"] == ours and given["HOROVOD_TIMELINE_MARK_CYCLES"] == "1"
    assert given["HOROVOD_TIMELINE"] == str(tmp_path / "job.horovod.json")
    assert variables_of("--timeline-filename", "job")["HOROVOD_DATA_TIMELINE"] == str(Path("job").absolute())
    assert not {"HOROVOD_TIMELINE", "HOROVOD_DATA_TIMELINE"} & set(variables_of())
    config.write_text("timeline:\n  filename: horovods.json\n")
    given = variables_of("--timeline-filename", ours, "--config-file", str(config))
    assert given["HOROVOD_DATA_TIMELINE"] == ours and given["HOROVOD_TIMELINE"] == "horovods.json"


@pytest.mark.parametrize("name", ["", "/", "."])
def test_timelines_and_certificates_have_names(name):
    with pytest.raises(LaunchError, match="--timeline-filename .* names no file"):
        variables_of("--timeline-filename", name)
    says = "--certificate .* names no file. Name one, as in --certificate certificate.json"
    with pytest.raises(LaunchError, match=says):
        variables_of("--certificate", name)
    assert variables_of("--certificate", "job")["HOROVOD_DATA_CERTIFICATE"] == str(Path("job").absolute())


def test_without_horovod(monkeypatch, capsys):
    for name in "horovod", "horovod.runner":  # which another test may have imported
        monkeypatch.setitem(sys.modules, name, None)
    assert main.main(["-np", "2", "--readers", "1", "--dry-run", "--", "true"]) == 0
    assert "-np 2" in capsys.readouterr().out
    assert main.main(["-np", "1", "--timeline-filename", "job.json", "--dry-run", "--", "true"]) == 0
    shown = capsys.readouterr().out
    assert f"HOROVOD_DATA_TIMELINE={Path('job.json').absolute()}" in shown and "HOROVOD_TIMELINE" not in shown
    with pytest.raises(SystemExit):
        main.main(["-np", "2", "--fusion-threshold-mb", "32", "true"])
