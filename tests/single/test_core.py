# SPDX-License-Identifier: Apache-2.0
"""The ctypes prototypes say what csrc/engine/c_api*.cc say."""

import ast
import re
from pathlib import Path

import pytest

from horovod_data.native import calls as c_calls

ROOT = Path(__file__).parents[2]
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "csrc" / "engine").glob("c_api*.cc"), reverse=True))
KINDS = {
    "void": None, "int": "c_int", "double": "c_double",
    "uint32_t": "c_uint", "uint64_t": "c_ulong", "int64_t": "c_long",
    "const char*": "c_char_p", "const void*": "c_void_p", "hvdata_call": "c_void_p", "const char**": "LP_c_char_p",
    "const char* const*": "LP_c_char_p", "const int*": "LP_c_int", "int*": "LP_c_int", "size_t": "c_ulong",
    "size_t*": "LP_c_ulong", "hvdata_iterator*": "c_void_p", "hvdata_iterator**": "LP_c_void_p", "void*": "c_void_p",
    "hvdata_column**": "LP_LP_Column", "const hvdata_input*": "c_void_p", "const void**": "LP_c_void_p",
    "uint64_t*": "LP_c_ulong", "int64_t*": "LP_c_long", "const int64_t*": "LP_c_long", "const double*": "LP_c_double",
}  # fmt: skip


def test_every_function_has_its_prototype():
    declared = {}
    for result, name, parameters in re.findall(r"^(\w[\w ]*\*?) hvdata_(\w+)\(([^)]*)\)[^;]*\{", SOURCE, re.M):
        types = [re.sub(r"\s*\w+$", "", " ".join(p.split())) for p in parameters.split(",") if p.strip() != "void"]
        declared[name] = (KINDS[result], [KINDS[t] for t in types])
    assert len(declared) > 20
    prototypes = {
        name: (result and result.__name__, [argument.__name__ for argument in arguments])
        for name, (result, arguments) in c_calls._PROTOTYPES.items()
    }
    assert prototypes == declared


def test_no_function_lets_an_exception_through():
    """An exception would end the process. Functions without a handler call only functions that do not throw."""
    heads = list(re.finditer(r"^\w[\w ]*\*? hvdata_(\w+)\([^)]*\)[^;{]*\{", SOURCE, re.M))
    ends = [head.start() for head in heads[1:]] + [len(SOURCE)]
    open_ones = {
        head[1]
        for head, end in zip(heads, ends)
        if not re.search(
            r"\btry \{|\b(Run|RunPlaced|RunInterruptible|Text|WithEngine|WithRunning|TextOfEngine)\(",
            SOURCE[head.start() : end],
        )
    }
    assert open_ones == {"last_error", "last_place", "state", "session", "on_finalize"}


@pytest.mark.parametrize("header, caller", [
    ("engine/engine.h", "start.py"), ("channel/channel_config.h", "channel/create.py")
])  # fmt: skip
def test_python_gives_every_number_that_the_library_takes(header, caller):
    taken = set(re.findall(r"^  FIELD\([\w:]+, (\w+), ", (ROOT / "csrc" / header).read_text(), re.M))
    calls = [
        {word.arg for word in node.keywords}
        for node in ast.walk(ast.parse((ROOT / "horovod_data" / caller).read_text()))
        if isinstance(node, ast.Call)
    ]
    assert len(taken) > 5 and taken in calls
