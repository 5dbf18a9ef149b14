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

# The plan is C++; these few functions make it callable from here.
SHIM = """
#include "plan/plan.h"
using namespace hvdata::plan;
extern "C" {
void rows_of(int64_t rows, int trainers, int trainer, int remainder, int64_t* out) {
  const Rows r = RowsOf(rows, trainers, trainer, static_cast<Remainder>(remainder));
  out[0] = r.begin, out[1] = r.count, out[2] = r.padding;
}
int makes_step(int64_t rows, int trainers, int remainder) {
  return MakesStep(rows, trainers, static_cast<Remainder>(remainder));
}
int64_t dropped_rows(int64_t rows, int trainers, int remainder) {
  return DroppedRows(rows, trainers, static_cast<Remainder>(remainder));
}
int tail_makes_step(int64_t elements, int, int remainder) {
  return TailMakesStep(elements, static_cast<Remainder>(remainder));
}
int64_t steps_of(int64_t elements, int trainers, int remainder) {
  return StepsOf(elements, trainers, static_cast<Remainder>(remainder));
}
// Walks readers that have steps[r] steps each; order[k] is step k's reader.
void rotate(int readers, int64_t* steps, int64_t* order) {
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


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler: install one, or set CXX"
    folder = tmp_path_factory.mktemp("plan")
    (folder / "shim.cc").write_text(SHIM)
    sources = [folder / "shim.cc", *sorted((CSRC / "plan").glob("*.cc"))]
    library = folder / "plan.so"
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{CSRC}", "-o", str(library)]
    subprocess.run([*compiler.split(), *flags, *map(str, sources)], check=True)
    shared = ctypes.CDLL(str(library))
    i64, i32, pointer = ctypes.c_int64, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)
    shared.rows_of.argtypes = [i64, i32, i32, i32, pointer]
    shared.rows_of.restype = None
    shared.rotate.argtypes = [i32, pointer, pointer]
    shared.rotate.restype = None
    for name, result in [("makes_step", i32), ("dropped_rows", i64), ("tail_makes_step", i32), ("steps_of", i64)]:
        function = getattr(shared, name)
        function.argtypes = [i64, i32, i32]
        function.restype = result
    return shared


def int64s(values: list[int]) -> ctypes.Array:
    return (ctypes.c_int64 * len(values))(*values)


REMAINDERS = {"drop": 0, "partial": 1, "pad": 2}  # as in plan.h
numbers = st.integers(0, 300)
ranks = st.integers(1, 40)
remainders = st.sampled_from(sorted(REMAINDERS))


@settings(max_examples=500)
@given(numbers, ranks, remainders)
def test_rows(plan: ctypes.CDLL, rows: int, n: int, remainder: str) -> None:
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
def test_steps(plan: ctypes.CDLL, elements: int, n: int, remainder: str) -> None:
    steps = len(oracle.deliver([np.zeros(1)] * elements, n, "per_rank", remainder=remainder)[0])
    code = REMAINDERS[remainder]
    assert plan.steps_of(elements, n, code) == steps
    assert bool(plan.tail_makes_step(elements % n, n, code)) == (steps > elements // n)


@settings(max_examples=300)
@given(st.lists(st.integers(0, 12), max_size=6))
def test_rotation(plan: ctypes.CDLL, lengths: list[int]) -> None:
    expected = oracle.rotate([[reader] * length for reader, length in enumerate(lengths)])
    order = int64s([-1] * len(expected))
    plan.rotate(len(lengths), int64s(lengths), order)
    assert list(order) == expected
