# SPDX-License-Identifier: Apache-2.0
"""The ctypes prototypes say what csrc/engine/c_api.h says."""

import re
import struct
from pathlib import Path

from horovod_data import core

HEADER = re.sub(r"//[^\n]*", "", (Path(__file__).parents[2] / "csrc" / "engine" / "c_api.h").read_text())
# Bytes with a length come back as c_void_p: c_char_p ends at the first NUL.
KINDS = {
    "void": None, "int": "c_int", "double": "c_double", "size_t": "c_ulong",
    "uint32_t": "c_uint", "uint64_t": "c_ulong", "int64_t": "c_long",
    "const char*": "c_char_p", "const void*": "c_void_p", "const char**": "LP_c_void_p",
    "const char* const*": "LP_c_char_p", "const int*": "LP_c_int", "int*": "LP_c_int", "size_t*": "LP_c_ulong",
    "uint64_t*": "LP_c_ulong", "int64_t*": "LP_c_long", "const int64_t*": "LP_c_long", "const hvdata_channel_config*": "LP__ChannelConfig",
    "const hvdata_settings*": "LP__Settings",
}  # fmt: skip


def test_every_function_has_its_prototype():
    declared = {}
    for result, name, parameters in re.findall(r"HVDATA_EXPORT\s+([^;(]*?)\s*hvdata_(\w+)\(([^)]*)\)", HEADER):
        types = [re.sub(r"\s*\w+$", "", " ".join(p.split())) for p in parameters.split(",") if p.strip() != "void"]
        declared[name] = (KINDS[result], [KINDS[t] for t in types])
    assert len(declared) > 20
    prototypes = {
        name: (result and result.__name__, [argument.__name__ for argument in arguments])
        for name, (result, arguments) in core._PROTOTYPES.items()
    }
    assert prototypes == declared


def test_the_structure_has_the_fields_in_their_order():
    body = re.search(r"typedef struct \{(.*?)\} hvdata_channel_config", HEADER, re.S)[1]
    fields = []
    for declaration in filter(None, (" ".join(part.split()) for part in body.split(";"))):
        c_type, names = re.fullmatch(r"(.*?[ *])([\w, ]+)", declaration).groups()
        fields += [(name.strip(), c_type.strip()) for name in names.split(",")]
    assert [(name, c.__name__) for name, c in core._ChannelConfig._fields_] == [(n, KINDS[t]) for n, t in fields]


def test_records():
    data = struct.pack("<Q", 3) + b"a\0b" + struct.pack("<Q", 0) + struct.pack("<Q", 1) + b"c"
    assert core._records(data) == [b"a\0b", b"", b"c"]
    assert core._records(b"") == []


def test_contributions():
    data = struct.pack("<4Q", 2, 0, 2, 2) + b"xy" + struct.pack("<3Q", 1, 1, 0)
    assert core._contributions(data) == [core.Contribution((0, 2), b"xy"), core.Contribution((1,), b"")]
