# SPDX-License-Identifier: Apache-2.0
"""Both libraries of a process see the same engine and the same variables."""

import ctypes
from pathlib import Path

import pytest

from horovod_data.native import bindings, loader

pytestmark = pytest.mark.world(np=1)


def test_both_libraries_see_one_core(hvdata):
    loader.load_ops()
    paths = {
        line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    (ops_path,) = [path for path in paths if path.endswith("/_tf.so")]
    assert len([path for path in paths if path.endswith("/_core.so")]) == 1
    ops = ctypes.CDLL(ops_path)
    ops.hvdata_ops_session.restype = ctypes.c_uint64
    ops.hvdata_ops_counters.restype = ctypes.c_void_p
    assert ops.hvdata_ops_session() == bindings.session() != 0
    counters = ctypes.c_char.in_dll(loader.load_core(), "_ZN6hvdata8countersE")
    assert ops.hvdata_ops_counters() == ctypes.addressof(counters)
