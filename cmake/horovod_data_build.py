# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: that of setuptools, which first says what it builds.

The C++ core is always built. The TensorFlow ops are built where TensorFlow is visible. By default pip builds in an
isolated environment without the installed TensorFlow. Such a build would lack the ops, so this backend fails at once
with a clear error. HVDATA_TENSORFLOW=1 forces the ops, and 0 leaves them out. An sdist needs no TensorFlow.
"""

import os
import site
import sys
import sysconfig
from importlib.util import find_spec

from setuptools import build_meta
from setuptools.build_meta import build_sdist, get_requires_for_build_sdist  # noqa: F401

NO_TENSORFLOW = """\
horovod_data: TensorFlow is not visible to this build ({python}).
  Why: its ops are compiled against the TensorFlow that you have, and pip hides it: it builds in an empty environment.
  What to do: tell pip to build in yours, where TensorFlow is installed first:
    pip install 'setuptools>=65' wheel 'cmake>=3.20,<4' ninja
    pip install --no-build-isolation horovod_data    (or the name of the sdist, or . in a checkout)
  If TensorFlow is not installed: `pip install tensorflow-cpu` (or tensorflow, with GPU support); 2.15 and newer will do.
  To build without the ops: set HVDATA_TENSORFLOW=0."""


WITHOUT = (
    "horovod_data: builds its C++ core without the TensorFlow ops, {why}. "
    "distribute_dataset() and other names that need TensorFlow will raise ImportError."
)


def look_for_tensorflow(isolated=False):
    """Says on stderr what is built. Doesn't import TensorFlow, which takes seconds. CMake reports a broken one."""
    wanted = os.environ.get("HVDATA_TENSORFLOW") or "auto"
    if wanted not in ("auto", "0", "1"):
        sys.exit(
            f"horovod_data: HVDATA_TENSORFLOW={wanted!r} is none of auto, 0 and 1. What to do: set one of them, or unset it"
        )
    if wanted == "0":
        print(WITHOUT.format(why="because HVDATA_TENSORFLOW=0"), file=sys.stderr)
    elif find_spec("tensorflow") is not None:
        print("horovod_data: builds its C++ core and the TensorFlow ops", file=sys.stderr)
    elif wanted == "1" or isolated or _hidden():
        sys.exit(NO_TENSORFLOW.format(python=sys.executable))
    else:
        print(WITHOUT.format(why="because TensorFlow is not installed"), file=sys.stderr)


def _hidden():
    """Says whether TensorFlow is installed for this Python, and pip hides it from the build."""
    folders = [sysconfig.get_path("purelib"), site.getusersitepackages()]
    return any(os.path.isdir(os.path.join(folder, "tensorflow")) for folder in folders)


def _behind_a_look(hook, isolated=False):
    def looking(*args, **kwargs):
        look_for_tensorflow(isolated)
        return hook(*args, **kwargs)

    return looking


# With isolation a frontend calls get_requires_... first. Without isolation it does not call it.
get_requires_for_build_wheel = _behind_a_look(build_meta.get_requires_for_build_wheel, isolated=True)
prepare_metadata_for_build_wheel = _behind_a_look(build_meta.prepare_metadata_for_build_wheel)
build_wheel = _behind_a_look(build_meta.build_wheel)
get_requires_for_build_editable = _behind_a_look(build_meta.get_requires_for_build_editable, isolated=True)
prepare_metadata_for_build_editable = _behind_a_look(build_meta.prepare_metadata_for_build_editable)
build_editable = _behind_a_look(build_meta.build_editable)
