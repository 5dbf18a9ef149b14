# SPDX-License-Identifier: Apache-2.0
"""Builds horovod_data/_core.so with CMake against the MPI that is there, and _tf.so against TensorFlow; see CMakeLists.txt.

Environment: HVDATA_TENSORFLOW (1: build _tf.so, 0: don't, default: auto, where TensorFlow is), MPICC (MPI compiler
wrapper, default: mpicc), MPI_HOME, HVDATA_WERROR (1: warnings are errors).
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
TENSORFLOW = os.environ.get("HVDATA_TENSORFLOW") or "auto"


def tensorflow_version() -> str:
    """Without importing TensorFlow, which takes seconds."""
    if TENSORFLOW == "0":
        return "none"
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "unknown"


def build_directory() -> Path:
    """One for each combination that gives another library, so that going back and forth rebuilds nothing."""
    mpicc = os.path.realpath(shutil.which(os.environ.get("MPICC") or "mpicc") or "none")
    mark = hashlib.sha1(f"{mpicc} {os.environ.get('MPI_HOME')}".encode()).hexdigest()[:6]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return ROOT / "build" / f"{python}-tf{tensorflow_version()}-{Path(mpicc).name}-{mark}"


class CleanPy(build_py):
    """Setuptools never removes a deleted module from its staging folder, and would pack it into the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(os.path.join(self.build_lib, "horovod_data"), ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"  # no Python ABI tag: the library doesn't use Python's C API

    def build_extension(self, ext: Extension) -> None:
        build = build_directory()
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        cmake = shutil.which("cmake", path=path)
        if cmake is None:
            sys.exit("horovod_data: CMake (3.20 or newer) was not found. What to do: pip install 'cmake<4'")
        configure = [
            cmake, "-S", str(ROOT), "-B", str(build),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DHVDATA_TENSORFLOW={TENSORFLOW}",
            f"-DHVDATA_WERROR={'ON' if os.environ.get('HVDATA_WERROR') == '1' else 'OFF'}",
        ]  # fmt: skip
        ninja = shutil.which("ninja", path=path)
        if ninja and not (build / "Makefile").exists():  # a folder that was made with make stays with make
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        for command in (
            configure,
            [cmake, "--build", str(build), "--parallel", str(os.cpu_count())],
        ):
            status = subprocess.run(command).returncode
            if status:
                sys.exit(f"horovod_data: `{' '.join(command)}` failed with status {status}; the reason is above.")
        for folder in {Path(self.get_ext_fullpath(ext.name)).parent, ROOT / "horovod_data"}:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "_tf.so").unlink(missing_ok=True)  # one of another build would not be loaded
            for library in build.glob("_*.so"):
                # By rename: a process that has the old one mapped keeps it whole.
                partial = folder / f"{library.name}.part"
                shutil.copy2(library, partial)
                os.replace(partial, folder / library.name)


setup(
    ext_modules=[Extension("horovod_data._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": CleanPy},
)
