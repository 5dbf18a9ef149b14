# SPDX-License-Identifier: Apache-2.0
"""Each argument of distribute_dataset() stands in its signature, in its docstring, and in Options with its check."""

import dataclasses
import functools
import inspect
import re

import numpy as np
import pytest

from horovod_data.channel.distribute import distribute_dataset
from horovod_data.channel.options import Options
from horovod_data.channel.reading import with_context
from horovod_data.job.cgroups import memory_bytes
from horovod_data.job.settings import cache_bytes_in, cache_folder_in, read_settings


def test_the_signature_is_that_of_options():
    parameters = list(inspect.signature(distribute_dataset).parameters.values())[1:]
    fields = dataclasses.fields(Options)
    assert [p.name for p in parameters] == [field.name for field in fields]
    for parameter, field in zip(parameters, fields):
        required = field.default is dataclasses.MISSING
        assert parameter.default is (parameter.empty if required else field.default), field.name
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert re.search(rf"^ +{field.name}: ", distribute_dataset.__doc__, re.MULTILINE), field.name


def test_the_environment_replaces_what_is_not_given(monkeypatch):
    settings = read_settings({"HOROVOD_DATA_PREFETCH_MB": "3"})
    assert Options("global").completed(settings).prefetch_mb == 3
    assert Options("global", cache="job").completed(settings).prefetch_mb == 0.375
    assert Options("global", prefetch_mb=5).completed(settings).prefetch_mb == 5
    assert Options("global", prefetch=4).completed(settings).prefetch_mb is None
    assert not Options("global").completed(settings).verify
    monkeypatch.setenv("HOROVOD_DATA_VERIFY", "1")
    assert Options("global").completed(settings).verify


def test_a_cached_channel_that_is_refused_says_what_to_do():
    for wrong, what, to_do in (
        ({"cache": "host"}, "cache='host' is not known", "Use None or 'job'"),
        ({"shuffle": True}, "shuffle=True is about the rows", 'Use cache="job" with it'),
        ({"seed": 3}, "seed=3 is about the rows", "or Dataset.shuffle()"),
        ({"cache": "job", "schedule": "dynamic", "batch": "per_rank"}, "has no steps", 'Use schedule="static"'),
        ({"cache": "job", "on_reader_error": "continue"}, "lost in all epochs", 'Use on_reader_error="raise"'),
        ({"cache": "job", "seed": 1 << 64}, "more than 64 bits", "from -2**63 to 2**64 - 1"),
        ({"cache": "job", "seed": -(1 << 63) - 1}, "more than 64 bits", "from -2**63 to 2**64 - 1"),
    ):
        with pytest.raises(ValueError) as error:
            Options(**{"batch": "global", **wrong})
        assert what in str(error.value) and to_do in str(error.value), error.value


@pytest.mark.parametrize("seed", [None, 0.5, True])
def test_a_seed_that_is_no_number_says_what_to_use(seed):
    with pytest.raises(TypeError, match="is not a whole number.*Use a number from -2"):
        Options("global", cache="job", shuffle=True, seed=seed)


@pytest.mark.parametrize("seed, bits", [(0, 0), (-1, 2**64 - 1), (np.int8(-2), 2**64 - 2), (2**64 - 1, 2**64 - 1)])
def test_the_seed_has_64_bits(seed, bits):
    """Ranks may write one seed in two ways."""
    assert Options("global", cache="job", shuffle=True, seed=seed).words()["seed"] == bits


def test_the_memory_of_a_cached_channel_is_a_size_in_gib():
    assert cache_bytes_in({"HOROVOD_DATA_CACHE_GB": "1.5"}) == 3 << 29
    assert 0.3 < cache_bytes_in({}) / memory_bytes()[1] < 0.7  # other processes allocate, too
    with pytest.raises(ValueError, match="HOROVOD_DATA_CACHE_GB='half' is not a size in GiB of 0.001 or more"):
        read_settings({"HOROVOD_DATA_CACHE_GB": "half"})


def test_the_folder_of_a_cached_channel_must_exist(tmp_path):
    assert cache_folder_in({}) == ""
    assert cache_folder_in({"HOROVOD_DATA_CACHE_DIR": str(tmp_path)}) == str(tmp_path)
    (tmp_path / "file").touch()
    for wrong in "file", "nothing":
        with pytest.raises(
            ValueError, match="is no folder in which this process can make files. Make it on every host"
        ):
            cache_folder_in({"HOROVOD_DATA_CACHE_DIR": str(tmp_path / wrong)})


def test_a_function_of_the_epoch_is_not_cached():
    with_context(lambda epoch: None, None, Options("global"))
    with pytest.raises(ValueError, match="takes the number of the epoch as `epoch`. Leave out the parameter"):
        with_context(lambda epoch: None, None, Options("global", cache="job"))
    with_context(functools.partial(lambda epoch: None, epoch=1), None, Options("global", cache="job"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"verify": 1},
        {"cache": "job", "shuffle": 1},
        {"prefetch": 1.5},
        {"prefetch_mb": True},
        {"name": 3},
    ],
)
def test_wrong_types(wrong):
    with pytest.raises(TypeError):
        Options("global", **wrong)
