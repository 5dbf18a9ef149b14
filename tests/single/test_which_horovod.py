# SPDX-License-Identifier: Apache-2.0
"""What the program has imported decides which Horovod a job has. Modules of these names stand in for the packages."""

import importlib
import sys
import types

import pytest

from horovod_data.ending import horovod

OF_TENSORFLOW, OF_TORCH = "horovod.tensorflow", "horovod.torch"


@pytest.fixture
def imported(monkeypatch):
    """A function that simulates a program with these imported packages: {name: is Horovod initialised}.

    Of Horovod's modules, only those in `there` can be imported.
    """
    for name in list(sys.modules):
        if name.partition(".")[0] in ("horovod", "tensorflow", "torch"):
            monkeypatch.delitem(sys.modules, name)

    def run(packages: dict, there: tuple = (OF_TENSORFLOW, OF_TORCH)) -> None:
        modules = {}
        for name in {*packages, *there}:
            modules[name] = types.ModuleType(name)
            if name.startswith("horovod."):
                modules[name].is_initialized = lambda name=name: packages.get(name, False)
        for name in packages:
            monkeypatch.setitem(sys.modules, name, modules[name])
            monkeypatch.setitem(sys.modules, name.partition(".")[0], modules[name])

        def import_module(name: str) -> types.ModuleType:
            if name not in modules:
                raise ImportError(name)
            return modules[name]

        monkeypatch.setattr(importlib, "import_module", import_module)

    return run


@pytest.mark.parametrize("packages, chosen", [
    ({}, None),
    ({"torch": None}, None),  # most programs with PyTorch use no Horovod
    ({"tensorflow": None}, OF_TENSORFLOW),
    ({"horovod": None}, OF_TENSORFLOW),
    ({"horovod": None, "torch": None}, OF_TORCH),
    ({"horovod": None, "torch": None, "tensorflow": None}, OF_TENSORFLOW),
    ({OF_TORCH: False}, OF_TORCH),
    ({OF_TORCH: False, "torch": None, "tensorflow": None}, OF_TORCH),  # TensorFlow runs the pipeline
    ({OF_TENSORFLOW: False, "torch": None, "tensorflow": None}, OF_TENSORFLOW),
    ({OF_TENSORFLOW: False, OF_TORCH: True}, OF_TORCH),
    ({OF_TENSORFLOW: True, OF_TORCH: False}, OF_TENSORFLOW),
])  # fmt: skip
def test_the_horovod_of_a_program(imported, packages, chosen):
    imported(packages)
    found = horovod.load()
    assert (found and found.__name__) == chosen
    assert horovod.wanted() == (chosen is not None)


@pytest.mark.parametrize("packages", [{"tensorflow": None}, {"horovod": None, "torch": None}])
def test_a_horovod_that_is_not_installed(imported, packages):
    imported(packages, there=())
    assert horovod.load() is None


def test_a_horovod_without_its_library(imported):
    """horovod.torch can be imported without its library, but then it has no functions."""
    imported({OF_TORCH: False})
    del sys.modules[OF_TORCH].is_initialized
    assert horovod.load() is None


@pytest.mark.parametrize("initialised", [False, True])
def test_both(imported, initialised):
    imported({OF_TENSORFLOW: initialised, OF_TORCH: initialised})
    with pytest.raises(RuntimeError, match="has imported horovod.tensorflow and horovod.torch.* Import the one"):
        horovod.load()


@pytest.mark.parametrize("name, other", [(OF_TORCH, OF_TENSORFLOW), (OF_TENSORFLOW, OF_TORCH)])
def test_the_other_one_is_imported_later(imported, monkeypatch, name, other):
    imported({name: True})
    monkeypatch.setattr(sys, "meta_path", [])
    horovod.refuse_other(sys.modules[name], "rank 0 on here")
    [finder] = sys.meta_path
    assert finder.find_spec(f"{name}.mpi_ops") is None and finder.find_spec(other) is None
    with pytest.raises(
        ImportError, match=rf"\[rank 0 on here\] {other} is imported after .* has initialised {name}\. "
    ):
        finder.find_spec(f"{other}.mpi_ops")


def test_its_c_functions():
    """horovod.torch has a shutdown() of its own, which calls the shutdown() of the object with the library."""

    class Basics:
        MPI_LIB_CTYPES = types.SimpleNamespace(horovod_shutdown=lambda: None)

        def mpi_built(self) -> bool:
            return True

    basics, module = Basics(), types.ModuleType(OF_TORCH)
    module.mpi_built, module.shutdown = basics.mpi_built, lambda: None
    assert horovod.end_before(module, hears=list, ends=lambda: True)
    assert vars(basics.MPI_LIB_CTYPES)["horovod_shutdown"].__module__ == horovod.__name__
    module.mpi_built = lambda: True  # another version of Horovod
    assert not horovod.end_before(module, hears=list, ends=lambda: True)
