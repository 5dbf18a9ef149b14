# SPDX-License-Identifier: Apache-2.0
"""`make test-sanitized` tests the libraries that it has built with sanitizers, and no other run does. (What they find:
tests/faults/test_sanitized_jobs.py.)"""

import os
from pathlib import Path

import pytest

from horovod_data.native import loader

pytestmark = pytest.mark.world(np=1)


@pytest.mark.parametrize("library", ["_core.so", "_tf.so"])
def test_the_library_under_test_is_the_sanitized_one_if_that_is_wanted(hvdata, library):
    loader.load_ops()
    maps = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    (core,) = [Path(path) for path in maps if path.endswith(f"/{library}")]
    calls = [
        name for name in (b"__asan_report_load8", b"__ubsan_handle_type_mismatch_v1_abort") if name in core.read_bytes()
    ]
    wanted = bool(os.environ.get("HVDATA_TEST_SANITIZED"))
    assert len(calls) == 2 * wanted, (core, calls)
    assert any("/libasan.so" in path for path in maps) == wanted, maps
    if wanted:
        assert "log_path=" + os.environ["HVDATA_TEST_DIR"] in os.environ["ASAN_OPTIONS"], os.environ["ASAN_OPTIONS"]
