# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: that of setuptools, which first checks that TensorFlow is visible.

By default pip builds in an isolated environment without the installed TensorFlow. Such a build would fail late, deep in CMake's output. This
backend fails at once with a clear error. An sdist needs no TensorFlow.
"""

import sys
from importlib.util import find_spec

from setuptools import build_meta
from setuptools.build_meta import build_sdist, get_requires_for_build_sdist  # noqa: F401

NO_TENSORFLOW = """\
horovod_data: TensorFlow is not visible to this build ({python}).
  Why: the library is compiled against the TensorFlow that you have, and pip hides it: it builds in an empty environment.
  What to do: tell pip to build in yours, where TensorFlow is installed first:
    pip install 'setuptools>=65' wheel 'cmake>=3.20,<4' ninja
    pip install --no-build-isolation horovod_data    (or the name of the sdist, or . in a checkout)
  If TensorFlow is not installed: `pip install tensorflow-cpu` (or tensorflow, with GPU support); 2.15 and newer will do."""


def look_for_tensorflow():
    """Doesn't import TensorFlow, which takes seconds. CMake reports a broken one."""
    if find_spec("tensorflow") is None:
        sys.exit(NO_TENSORFLOW.format(python=sys.executable))


def _behind_a_look(hook):
    def looking(*args, **kwargs):
        look_for_tensorflow()
        return hook(*args, **kwargs)

    return looking


# With isolation pip calls the first of these first, and without it the second.
get_requires_for_build_wheel = _behind_a_look(build_meta.get_requires_for_build_wheel)
prepare_metadata_for_build_wheel = _behind_a_look(build_meta.prepare_metadata_for_build_wheel)
build_wheel = _behind_a_look(build_meta.build_wheel)
get_requires_for_build_editable = _behind_a_look(build_meta.get_requires_for_build_editable)
prepare_metadata_for_build_editable = _behind_a_look(build_meta.prepare_metadata_for_build_editable)
build_editable = _behind_a_look(build_meta.build_editable)
