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


def failure(monkeypatch, path) -> str:
    """The text of the ImportError that loading `path` gives."""
    monkeypatch.setattr(loader, "_PATH", path)
    with pytest.raises(ImportError) as error:
        loader.load.__wrapped__()
    return str(error.value)


def compile_library(path, text, *arguments):
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source), *arguments], check=True)


def test_the_built_library_tells_its_tensorflow_without_being_loaded():
    assert loader._built_for(loader._PATH) == bindings.build_info()["tensorflow"]
    assert loader._same_tensorflow(loader._built_for(loader._PATH), tf.__version__)
    assert re.match(r"Open MPI|MPICH|Intel|MVAPICH", bindings.build_info()["mpi"])


@pytest.mark.parametrize("in_sources, parts", [
    (True, ["has not been built here", "`pip install --no-build-isolation -e {}`"]),
    (False, ["installed without its C++ core", "pip install --force-reinstall"]),
], ids=["in a source tree", "in an installation"])  # fmt: skip
def test_not_built(monkeypatch, tmp_path, in_sources, parts):
    if in_sources:
        (tmp_path / "setup.py").touch()
    text = failure(monkeypatch, tmp_path / "horovod_data" / "_core.so")
    assert all(part.format(tmp_path) in text for part in parts), text


def test_built_for_another_tensorflow(monkeypatch, tmp_path):
    other = tmp_path / "_core.so"
    version = loader._built_for(loader._PATH).encode()
    changed = b"9" + version[1:]
    other.write_bytes(loader._PATH.read_bytes().replace(b'"' + version + b'"', b'"' + changed + b'"'))
    text = failure(monkeypatch, other)
    assert f"built for TensorFlow {changed.decode()}, but this is TensorFlow {tf.__version__}" in text
    assert "`pip install --force-reinstall --no-deps --no-build-isolation .` in its source folder" in text


@needs_compiler
def test_undefined_symbol(monkeypatch, tmp_path):
    library = tmp_path / "_core.so"
    compile_library(library, 'const char* info = "\\"tensorflow\\": \\"%s.1\\"";'
                    "void _ZN10tensorflow7removedEv(void); void f(void) { _ZN10tensorflow7removedEv(); }"
                    % ".".join(tf.__version__.split(".")[:2]))  # fmt: skip
    text = failure(monkeypatch, library)
    assert f"doesn't fit TensorFlow {tf.__version__}" in text and "_ZN10tensorflow7removedEv" in text


@needs_compiler
def test_mpi_is_not_there(monkeypatch, tmp_path):
    mpi, library = tmp_path / "libmpi.so.99", tmp_path / "_core.so"
    compile_library(mpi, "void MPI_Whatever(void) {}", "-Wl,-soname,libmpi.so.99")
    compile_library(library, "void MPI_Whatever(void); void f(void) { MPI_Whatever(); }", str(mpi))
    mpi.unlink()
    text = failure(monkeypatch, library)
    assert text.startswith("libmpi.so.99, the MPI library that horovod_data was built with, can't be found")
    assert "LD_LIBRARY_PATH" in text


def test_not_a_library(monkeypatch, tmp_path):
    (tmp_path / "_core.so").write_text("no library")
    assert "can't be loaded" in failure(monkeypatch, tmp_path / "_core.so")


def test_mpi_libraries_of_a_process():
    line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 1    "
    maps = [line + path for path in (
        "/x/lib/libmpi.so.40.30.4", "/x/lib/libmpi.so.40.30.4", "/y/libmpich.so.12.2.2", "/x/lib/libmpi_cxx.so.40",
        "/x/libmpi_mpifh.so.40", "/x/my libs/libmpi.so.12", "[heap]", "/x/libopen-pal.so.40", "/x/MPI.cpython-311.so",
    )] + ["7ffe0000-7fff0000 rw-p 00000000 00:00 0 "]  # fmt: skip
    found = loader.mpi_libraries(maps)
    assert found == ["/x/lib/libmpi.so.40.30.4", "/x/my libs/libmpi.so.12", "/y/libmpich.so.12.2.2"]
    assert len(loader.mpi_libraries()) == 1  # of this process


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
for use in (lambda: horovod_data.init, lambda: exec("from horovod_data import scatter")):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def test_the_core_is_loaded_when_a_name_is_first_used():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=170)
    said = done.stdout.splitlines()
    assert done.returncode == 0 and said[0] == "module 'horovod_data' has no attribute 'no_such_name'", done
    assert len(said) == 3 and all(
        line.startswith("horovod_data needs TensorFlow, which can't be imported") for line in said[1:]
    )
