# SPDX-License-Identifier: Apache-2.0
"""The errors of a library that can't be loaded, and when they are raised."""

import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

from horovod_data.native import bindings, loader

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def failure(monkeypatch, load, **paths) -> str:
    """The text of the ImportError that loading these paths gives."""
    for name, path in paths.items():
        monkeypatch.setattr(loader, name, path)
    with pytest.raises(ImportError) as error:
        load.__wrapped__()
    return str(error.value)


def compile_library(path, text, *arguments):
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source), *arguments], check=True)


def test_the_built_ops_tell_what_they_fit_without_being_loaded():
    built, info = loader.built_ops(), bindings.build_info()
    assert built == (info["build"], info["tensorflow"])
    assert loader._same_tensorflow(built.tensorflow, tf.__version__)
    assert re.match(r"Open MPI|MPICH|Intel|MVAPICH", bindings.build_info()["mpi"])


@needs_compiler
def test_a_core_of_an_older_version(monkeypatch, tmp_path):
    """An older core has other functions. This happens after a pull without a build in an editable checkout."""
    compile_library(tmp_path / "_core.so", "int hvdata_state(void) { return 0; }")
    text = failure(monkeypatch, loader.load_core, _CORE=tmp_path / "_core.so")
    assert "_core.so belongs to an older horovod_data than the Python files beside it" in text
    assert "Rebuild it: `pip install --force-reinstall" in text


def test_not_built(monkeypatch, tmp_path):
    text = failure(monkeypatch, loader.load_core, _CORE=tmp_path / "_core.so")
    assert f"{tmp_path}/_core.so can't be loaded ({tmp_path}/_core.so: cannot open shared object file" in text
    assert "pip install --force-reinstall" in text and "start Python in another folder" in text


def test_ops_are_not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(loader, "_OPS", tmp_path / "_tf.so")
    assert bindings.build_info()["tensorflow"] is None
    text = failure(monkeypatch, loader.load_ops)
    assert (
        f"{tmp_path}/_tf.so is missing: horovod_data was built without TensorFlow. Build it with the TensorFlow" in text
    )
    assert "`pip install --force-reinstall --no-deps --no-build-isolation .` in its source folder" in text


def changed(tmp_path, before: str, after: str):
    """A copy of the ops that describes itself differently."""
    path = tmp_path / "_tf.so"
    path.write_bytes(loader._OPS.read_bytes().replace(f'"{before}"'.encode(), f'"{after}"'.encode()))
    return path


def test_built_for_another_tensorflow(monkeypatch, tmp_path):
    version = loader.built_ops().tensorflow
    text = failure(monkeypatch, loader.load_ops, _OPS=changed(tmp_path, version, "9" + version[1:]))
    assert f"built for TensorFlow 9{version[1:]}, but this is TensorFlow {tf.__version__}" in text
    assert "`pip install --force-reinstall --no-deps --no-build-isolation .` in its source folder" in text


def test_ops_of_another_build(monkeypatch, tmp_path):
    build = loader.built_ops().build
    text = failure(monkeypatch, loader.load_ops, _OPS=changed(tmp_path, build, "9" + build[1:]))
    assert (
        f"_tf.so is of build 9{build[1:]}, and _core.so beside it is of build {build}. Install both from one build"
        in text
    )


@needs_compiler
def test_undefined_symbol(monkeypatch, tmp_path):
    library = tmp_path / "_tf.so"
    compile_library(library, 'const char* info = "\\"build\\": \\"%s\\", \\"tensorflow\\": \\"%s.1\\"";'
                    "void _ZN10tensorflow7removedEv(void); void f(void) { _ZN10tensorflow7removedEv(); }"
                    % (loader.built_ops().build, ".".join(tf.__version__.split(".")[:2])))  # fmt: skip
    text = failure(monkeypatch, loader.load_ops, _OPS=library)
    assert f"{library} can't be loaded (" in text and "undefined symbol: _ZN10tensorflow7removedEv" in text


@needs_compiler
def test_mpi_is_not_there(monkeypatch, tmp_path):
    mpi, library = tmp_path / "libmpi.so.99", tmp_path / "_core.so"
    compile_library(mpi, "void MPI_Whatever(void) {}", "-Wl,-soname,libmpi.so.99")
    compile_library(library, "void MPI_Whatever(void); void f(void) { MPI_Whatever(); }", str(mpi))
    mpi.unlink()
    text = failure(monkeypatch, loader.load_core, _CORE=library)
    assert (
        f"{library} can't be loaded (libmpi.so.99: cannot open shared object file" in text and "LD_LIBRARY_PATH" in text
    )


def test_not_a_library(monkeypatch, tmp_path):
    (tmp_path / "_core.so").write_text("no library")
    assert "can't be loaded" in failure(monkeypatch, loader.load_core, _CORE=tmp_path / "_core.so")


def test_mpi_libraries_of_a_process():
    line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 1    "
    maps = [line + path for path in (
        "/x/lib/libmpi.so.40.30.4", "/x/lib/libmpi.so.40.30.4", "/y/libmpich.so.12.2.2", "/x/lib/libmpi_cxx.so.40",
        "/x/libmpi_mpifh.so.40", "/x/my libs/libmpi.so.12", "[heap]", "/x/libopen-pal.so.40", "/x/MPI.cpython-311.so",
    )] + ["7ffe0000-7fff0000 rw-p 00000000 00:00 0 "]  # fmt: skip
    found = loader.mpi_libraries(maps)
    assert found == ["/x/lib/libmpi.so.40.30.4", "/x/my libs/libmpi.so.12", "/y/libmpich.so.12.2.2"]
    assert len(loader.mpi_libraries()) == 1  # this process has one MPI library


FIRST_USE = """
import sys
import horovod_data
assert "tensorflow" not in sys.modules
assert set(horovod_data.__all__) <= set(dir(horovod_data))
try:
    horovod_data.no_such_name
except AttributeError as error:
    print(error)
sys.modules["tensorflow"] = None  # as if it were not installed
assert callable(horovod_data.init)
assert not {"numpy", "horovod_data.loading.loader"} & set(sys.modules), "a job waits for init(), so it imports only what it uses"
for use in (lambda: horovod_data.predict, lambda: exec("from horovod_data import scatter")):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def test_the_libraries_are_loaded_when_a_name_is_first_used():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=170)
    said = done.stdout.splitlines()
    assert done.returncode == 0 and said[0] == "module 'horovod_data' has no attribute 'no_such_name'", done
    assert len(said) == 3 and all(
        line.startswith("horovod_data needs TensorFlow for this, and can't import it (")
        and "`pip install tensorflow-cpu`" in line
        for line in said[1:]
    )
