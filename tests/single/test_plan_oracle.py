# SPDX-License-Identifier: Apache-2.0
"""csrc/plan against the plain-Python oracle."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CSRC = pathlib.Path(__file__).parents[2] / "csrc"

# The plan is C++. These functions make it callable from here. All their numbers are int64_t.
SHIM = """
#include "plan/plan.h"
using namespace hvdata::plan;
using Int = int64_t;
extern "C" {
void rows_of(Int rows, Int trainers, Int trainer, Int remainder, Int* out) {
  const Rows r = RowsOf(rows, trainers, trainer, static_cast<Remainder>(remainder));
  out[0] = r.begin, out[1] = r.count, out[2] = r.padding;
}
Int makes_step(Int rows, Int trainers, Int remainder) {
  return MakesStep(rows, trainers, static_cast<Remainder>(remainder));
}
Int dropped_rows(Int rows, Int trainers, Int remainder) {
  return DroppedRows(rows, trainers, static_cast<Remainder>(remainder));
}
Int tail_makes_step(Int elements, Int remainder) { return TailMakesStep(elements, static_cast<Remainder>(remainder)); }
Int steps_of(Int elements, Int trainers, Int remainder) {
  return StepsOf(elements, trainers, static_cast<Remainder>(remainder));
}
// Walks readers that have steps[r] steps each; order[k] is step k's reader.
void rotate(Int readers, Int* steps, Int* order) {
  Rotation rotation(readers);
  while (!rotation.Done()) {
    if (steps[rotation.Reader()]-- == 0) {
      rotation.Retire(rotation.Reader());
    } else {
      *order++ = rotation.Reader();
      rotation.Advance(rotation.Reader());
    }
  }
}
}
"""


class Plan:
    """The library's functions, which take and return whole numbers and arrays of them."""

    def __init__(self, library: pathlib.Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __getattr__(self, name: str):
        function = getattr(self._library, name)
        function.restype = ctypes.c_int64
        return lambda *given: function(*(ctypes.c_int64(one) if isinstance(one, int) else one for one in given))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler: install one, or set CXX"
    folder = tmp_path_factory.mktemp("plan")
    (folder / "shim.cc").write_text(SHIM)
    sources = [folder / "shim.cc", *sorted((CSRC / "plan").glob("*.cc"))]
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{CSRC}", "-o", str(folder / "plan.so")]
    subprocess.run([*compiler.split(), *flags, *map(str, sources)], check=True)
    return Plan(folder / "plan.so")


def int64s(values: list[int]) -> ctypes.Array:
    return (ctypes.c_int64 * len(values))(*values)


REMAINDERS = {"drop": 0, "partial": 1, "pad": 2}  # as in plan.h
numbers = st.integers(0, 300)
ranks = st.integers(1, 40)
remainders = st.sampled_from(sorted(REMAINDERS))


@settings(max_examples=500)
@given(numbers, ranks, remainders)
def test_rows(plan: Plan, rows: int, n: int, remainder: str) -> None:
    batch = np.arange(1, rows + 1)  # no row is 0, as padding is
    expected = oracle.deliver([batch], n, "global", remainder=remainder)
    code = REMAINDERS[remainder]
    assert plan.dropped_rows(rows, n, code) == oracle.dropped([batch], n, "global", remainder)
    assert bool(plan.makes_step(rows, n, code)) == (len(expected[0]) == 1)
    for rank in range(n if expected[0] else 0):
        out = int64s([-1, -1, -1])
        plan.rows_of(rows, n, rank, code, out)
        begin, count, padding = out
        share = expected[rank][0]
        if remainder == "pad":
            share, weight = share
            assert weight.tolist() == [1.0] * count + [0.0] * padding
        assert share.tolist() == [*range(begin + 1, begin + count + 1), *[0] * padding]


@settings(max_examples=500)
@given(numbers, ranks, remainders)
def test_steps(plan: Plan, elements: int, n: int, remainder: str) -> None:
    steps = len(oracle.deliver([np.zeros(1)] * elements, n, "per_rank", remainder=remainder)[0])
    code = REMAINDERS[remainder]
    assert plan.steps_of(elements, n, code) == steps
    assert bool(plan.tail_makes_step(elements % n, code)) == (steps > elements // n)


@settings(max_examples=300)
@given(st.lists(st.integers(0, 12), max_size=6))
def test_rotation(plan: Plan, lengths: list[int]) -> None:
    expected = oracle.rotate([[reader] * length for reader, length in enumerate(lengths)])
    order = int64s([-1] * len(expected))
    plan.rotate(len(lengths), int64s(lengths), order)
    assert list(order) == expected
