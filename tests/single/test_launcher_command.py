# SPDX-License-Identifier: Apache-2.0
"""What horovod-data-run prints without a job, and which variables its options set."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launched import LAUNCHER, ask_launcher, executable

from horovod_data import _version
from horovod_data.job.settings import read_roles
from horovod_data.launcher import LaunchError, main
from horovod_data.launcher import options as options_of
from horovod_data.launcher.arrangement import arrange
from horovod_data.launcher.command import Command
from horovod_data.launcher.hosts import Host

TWO = (Host("a", 2), Host("b", 2))


@pytest.fixture
def mpi(tmp_path):
    """The option for an mpirun that prints the given text."""

    def make(said: str) -> list[str]:
        return ["--mpirun", str(executable(tmp_path / "mpirun", f"cat <<'END'\n{said}\nEND"))]

    return make


OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to ..."
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: ..."


@pytest.fixture
def run(mpi, monkeypatch, capsys):
    """Runs the command in this process. Returns its output, or its error if `status` is 2."""

    monkeypatch.setattr(main, "start", lambda command: pytest.fail(f"it starts {command}"))

    def run(*words, version=OPEN_MPI, env={}, status):
        with monkeypatch.context() as changed:
            for name, value in env.items():
                changed.setenv(name, value)
            assert main.main([*mpi(version), *words]) == status
        out, err = capsys.readouterr()
        assert err.startswith("horovod-data-run: error: ") == (status == 2) == (not out), out + err
        return err or out

    return run


@pytest.fixture
def shown(run):
    """What a dry run prints."""
    return lambda *words, **more: run("--dry-run", *words, status=0, **more)


@pytest.fixture
def refused(run):
    """The error of the command."""
    return lambda *words, **more: run(*words, status=2, **more)


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
    (["-np", "1", "-H", "a", "--hostfile", "f", "true"], "-H a and --hostfile f contradict each other"),
    (["-np", "1", "--hostfile", "/no/such", "true"], "--hostfile names the host file /no/such, which can't be read"),
    (["-np", "1", "--readers", "1", "--embedded", "true"], "--embedded says that each host's first trainer reads for its host"),
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
def test_errors(refused, words, text):
    assert text in refused(*words)


@pytest.mark.parametrize("words, env, text", [
    (["--state", " "], {}, "--state ' ' names no directory"),
    (["--state", "d", "--max-restarts", "-1"], {}, "--max-restarts -1: give 0 or more"),
    (["--state", "d", "--min-np", "0"], {}, "--min-np 0: give 1 or more"),
    (["--state", "d", "--min-np", "3"], {}, "--min-np 3 is more than the 2 processes that train. Give 2 or less"),
    (["--state", "d", "--grace-seconds", "0"], {}, "--grace-seconds 0: give 1 or more"),
    (["--state", "d", "--min-np", "1", "--readers-per-node", "1"], {}, "fewer hosts have fewer readers, which can't restore the state"),
    (["--state", __file__], {}, "this directory can't be used (Not a directory)"),
    (["--state", "d", "--min-np", "1"], {N: "1"}, "with --readers-per-node, fewer hosts have fewer readers"),
    *((["--state", "d"], {"HOROVOD_DATA_LEAVE_STATUS": text}, f"HOROVOD_DATA_LEAVE_STATUS={text} is no exit status") for text in ("0", "126", "x")),
])  # fmt: skip
def test_errors_of_a_state(refused, words, env, text):
    assert text in refused("-np", "2", *words, "true", env=env)


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


def test_a_folder_for_the_output_that_can_not_be(refused, tmp_path):
    (tmp_path / "file").write_text("")
    for path, said in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "x", "Not a directory")):
        text = f"--output-filename {path}: this folder can't be made ({said}). Name a folder to write the output of each rank to."
        said = refused("-np", "1", "--output-filename", str(path), "true")
        assert said == f"horovod-data-run: error: {text}\n"


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


def test_another_mpi(refused):
    works = "horovod-data-run works with Open MPI and with MPICH"
    text = f"--version says 'Wonder MPI 1.0', but {works}"
    assert text in refused("-np", "1", "true", version="Wonder MPI 1.0")


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
def test_options_that_only_horovodrun_has(refused, option):
    says = f"{option.split()[0]} is an option of horovodrun's that horovod-data-run does not have"
    assert says in refused("-np", "1", *option.split(), "true")


@pytest.mark.horovod
@pytest.mark.parametrize("words, text, said", [
    (["--cycle-time-ms", "-1"], None, "(ValueError: cycle_time_ms=-1.0 must be >= 0). Fix them."),
    (["--config-file", "FILE"], None, "No such file or directory: 'FILE'). Fix them, or what --config-file FILE says."),
    (["--config-file", "FILE"], "params: [", "ParserError: while parsing"),
    (["--config-file", "FILE"], "controller: smoke", "(ValueError: No such controller supported: smoke)"),
    (["--config-file", "FILE"], "- params", "(AttributeError: "),
])  # fmt: skip
def test_values_that_horovod_refuses(refused, words, text, said, tmp_path):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    error = refused("-np", "1", *(word.replace("FILE", str(path)) for word in words), "true")
    assert error.startswith("horovod-data-run: error: Horovod refuses its options (") and error.count("\n") == 1
    assert said.replace("FILE", str(path)) in error


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
