# SPDX-License-Identifier: Apache-2.0
"""`make test-sanitized` finds an error in our library, and reports nothing in Python and TensorFlow.

The ranks of a job load a library with one error, which is built in the same way.
"""

import os
import shutil
import subprocess

import pytest
from jobs import run_program
from ranks import sanitized

BROKEN = r"""
#include <vector>
extern "C" long read_behind(long n) { std::vector<long> v(n, 1); return *(v.data() + n); }
extern "C" long after_free(long n) { long* v = new long[n](); delete[] v; return v[n - 1]; }
extern "C" long shift(long n) { return static_cast<int>(n) << (28 + n); }
"""

SCRIPT = """
import ctypes
assert len(list(train(tf.data.Dataset.range(8)))) == 4
library = ctypes.CDLL(os.path.join(sys.argv[1], "_core.so"))
getattr(library, sys.argv[2])(ctypes.c_long(8))
say("went on")
"""

FOUND = {
    "read_behind": ("heap-buffer-overflow", "in read_behind at core.cc:3"),
    "after_free": ("heap-use-after-free", "in after_free at core.cc:4"),
    "shift": ("runtime error: shift exponent 36 is too large", "core.cc:5"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The folder of a library with these functions, which has the name of ours."""
    compiler = shutil.which("g++")
    if compiler is None or not sanitized.libraries():
        pytest.skip("needs g++ with AddressSanitizer")
    folder = tmp_path_factory.mktemp("broken")
    (folder / "core.cc").write_text(BROKEN)
    options = "-shared -fPIC -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
    subprocess.run([compiler, *options.split(), "core.cc", "-o", "_core.so"], cwd=folder, check=True)
    return str(folder)


@pytest.mark.slow
@pytest.mark.skipif(bool(os.environ.get("HVDATA_TEST_SANITIZED")), reason="sanitized already")
@pytest.mark.limit(180)
@pytest.mark.parametrize("what", FOUND)
def test_an_error_in_our_library_is_found_and_nothing_of_others(broken, what):
    env = {**sanitized.environment(), "HOROVOD_DATA_PAYLOAD": "message"}
    job = run_program(SCRIPT, 2, broken, what, env=env, timeout=170, status=None)
    said, where = FOUND[what]
    assert job.returncode != 0, job.describe() + job.findings()
    assert "went on" not in job.stdout[0] + job.stdout[1], job.describe()
    assert said in job.findings() and where in job.findings(), job.describe() + job.findings()
