# SPDX-License-Identifier: Apache-2.0
"""The ctypes prototypes say what csrc/engine/c_api.cc says."""

import re
import struct
from pathlib import Path

import pytest

from horovod_data.native import bindings

SOURCE = (Path(__file__).parents[2] / "csrc" / "engine" / "c_api.cc").read_text()
# Bytes with a length come back as c_void_p: c_char_p ends at the first NUL.
KINDS = {
    "void": None, "int": "c_int", "double": "c_double", "size_t": "c_ulong",
    "uint32_t": "c_uint", "uint64_t": "c_ulong", "int64_t": "c_long",
    "const char*": "c_char_p", "const void*": "c_void_p", "hvdata_call": "c_void_p", "const char**": "LP_c_void_p",
    "const char* const*": "LP_c_char_p", "const int*": "LP_c_int", "int*": "LP_c_int", "size_t*": "LP_c_ulong",
    "uint64_t*": "LP_c_ulong", "int64_t*": "LP_c_long", "const int64_t*": "LP_c_long",
}  # fmt: skip


def test_every_function_has_its_prototype():
    declared = {}
    for result, name, parameters in re.findall(r"^(\w[\w ]*\*?) hvdata_(\w+)\(([^)]*)\)[^;]*\{", SOURCE, re.M):
        types = [re.sub(r"\s*\w+$", "", " ".join(p.split())) for p in parameters.split(",") if p.strip() != "void"]
        declared[name] = (KINDS[result], [KINDS[t] for t in types])
    assert len(declared) > 20
    prototypes = {
        name: (result and result.__name__, [argument.__name__ for argument in arguments])
        for name, (result, arguments) in bindings._PROTOTYPES.items()
    }
    assert prototypes == declared


def test_no_function_lets_an_exception_through():
    """It would end the process. The functions that catch nothing call nothing that throws."""
    heads = list(re.finditer(r"^\w[\w ]*\*? hvdata_(\w+)\([^)]*\)[^;{]*\{", SOURCE, re.M))
    ends = [head.start() for head in heads[1:]] + [len(SOURCE)]
    open_ones = {
        head[1]
        for head, end in zip(heads, ends)
        if not re.search(r"\btry \{|\bWithEngine\(|\bWithRunning\(|\bTextOfEngine\(", SOURCE[head.start() : end])
    }
    assert open_ones == {"last_error", "state", "session", "on_finalize"}


@pytest.mark.parametrize("text, says", [
    (b"ChannelOptions 8 int32_t prefetch;", "of 8 bytes, its Python side one of 4"),
    (b"ChannelOptions 4 float prefetch;", "has a field of type float in ChannelOptions, which its Python side does not know"),
    (b"ChannelOptions 4 int32_t window;", "takes window in ChannelOptions, its Python side gives prefetch"),
])  # fmt: skip
def test_a_structure_that_does_not_fit_is_found(monkeypatch, text, says):
    monkeypatch.setattr(bindings, "_call", lambda name: text)
    monkeypatch.setattr(bindings, "_structures", bindings._structures.__wrapped__)
    with pytest.raises(ImportError, match=says):
        bindings._structure("ChannelOptions", {"prefetch": 2})


def test_records():
    data = struct.pack("<Q", 3) + b"a\0b" + struct.pack("<Q", 0) + struct.pack("<Q", 1) + b"c"
    assert bindings._records(data) == [b"a\0b", b"", b"c"]
    assert bindings._records(b"") == []


def test_contributions():
    data = struct.pack("<4Q", 2, 0, 2, 2) + b"xy" + struct.pack("<3Q", 1, 1, 0)
    assert bindings._contributions(data) == [bindings.Contribution((0, 2), b"xy"), bindings.Contribution((1,), b"")]
