# SPDX-License-Identifier: Apache-2.0
"""Loads the core and starts MPI, or loads TensorFlow and our ops, or imports Horovod.

Runs in a separate process, because each may crash:

    python -m horovod_data.doctor.inside core|tensorflow|horovod

Before each step that may crash, it sends what it knows.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Callable

from ..native import bindings, loader
from . import children


def look_at_core() -> None:
    """Loads the C++ core, then starts MPI as a job of one process."""
    try:
        loader.load_core()
    except ImportError as failure:
        children.send(core_error=str(failure))
        return
    children.send(
        core=bindings.build_info(),
        core_path=str(loader.core_path()),
        libraries=loader.mpi_libraries(),
    )
    bindings.mpi_init()
    children.send(thread_level=bindings.mpi_query().thread_level.name)


def look_at_tensorflow() -> None:
    """Imports TensorFlow, then loads our ops."""

    def fits(tf: Any) -> dict[str, Any]:
        children.send(abi=int(tf.sysconfig.CXX11_ABI_FLAG), path=os.path.dirname(tf.__file__))
        try:
            loader.load_ops()
        except ImportError as failure:
            return {"ops_error": str(failure)}
        return {}

    _look("tensorflow", "tensorflow", fits)


def look_at_horovod() -> None:
    """Imports Horovod for TensorFlow, or for PyTorch if TensorFlow is not installed.

    If neither is installed, imports Horovod's top module alone.
    """
    of = next((one for one in ("tensorflow", "torch") if importlib.util.find_spec(one)), "")
    children.send(framework=of)

    def built(hvd: Any) -> dict[str, Any]:
        return {"built": {name: bool(getattr(hvd, f"{name}_built")()) for name in ("mpi", "gloo", "nccl", "ccl")}}

    _look("horovod", f"horovod.{of}" if of else "horovod", built if of else lambda hvd: {})


def _look(package: str, module: str, more: Callable[[Any], dict[str, Any]]) -> None:
    """Imports a package and its module, and sends what it finds in them."""
    if importlib.util.find_spec(package) is None:
        children.send(installed=False)
        return
    try:
        children.send(version=str(importlib.import_module(package).__version__))
        found = more(importlib.import_module(module))
    except Exception as failure:
        children.send(error=f"{type(failure).__name__}: {failure}")
        return
    children.send(**found, libraries=loader.mpi_libraries())


_LOOKS = {"core": look_at_core, "tensorflow": look_at_tensorflow, "horovod": look_at_horovod}

if __name__ == "__main__":
    children.end_with_parent()
    _LOOKS[sys.argv[1]]()
