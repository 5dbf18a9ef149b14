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
        assert "again" not in str(error.value), "the pipeline runs once"
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


MOST = 'Use 1 to 2147483647 steps, or "auto".'
NO_NUMBER = 'is not a whole number. Use 1 or more steps, or "auto".'
WRONG = [
    ({"batch": "Global"}, ValueError, "batch='Global' is not known. Use 'global' or 'per_rank'."),
    ({"batch": None}, ValueError, "batch=None is not known. Use 'global' or 'per_rank'."),
    ({"batch": 32}, ValueError, "batch=32 is not known. Use 'global' or 'per_rank'."),
    ({"batch": np.zeros(2)}, ValueError, "batch=array([0., 0.]) is not known. Use 'global' or 'per_rank'."),
    ({"schedule": "round_robin"}, ValueError, "schedule='round_robin' is not known. Use 'static' or 'dynamic'."),
    ({"remainder": "keep"}, ValueError, "remainder='keep' is not known. Use 'drop', 'partial', 'pad' or 'repeat'."),
    ({"on_reader_error": "stop"}, ValueError, "on_reader_error='stop' is not known. Use 'raise' or 'continue'."),
    ({"batch": "global", "schedule": "dynamic"}, ValueError, 'schedule="dynamic" gives a whole element to the rank that asks first, '
     'but batch="global" cuts each element for all ranks. Use batch="per_rank" with it.'),
    ({"prefetch": 0}, ValueError, f"prefetch=0 is less than 1. {MOST}"),
    ({"prefetch": -3}, ValueError, f"prefetch=-3 is less than 1. {MOST}"),
    ({"prefetch": 2**31}, ValueError, f"prefetch=2147483648 is more than 2147483647. {MOST}"),
    ({"prefetch": 2**32 + 2}, ValueError, f"prefetch=4294967298 is more than 2147483647. {MOST}"),
    ({"prefetch": 1.5}, TypeError, f"prefetch=1.5 {NO_NUMBER}"),
    ({"prefetch": True}, TypeError, f"prefetch=True {NO_NUMBER}"),
    ({"prefetch": np.True_}, TypeError, f"prefetch={np.True_!r} {NO_NUMBER}"),
    ({"prefetch": np.float64(2)}, TypeError, f"prefetch={np.float64(2)!r} {NO_NUMBER}"),
    ({"prefetch": "2"}, TypeError, f"prefetch='2' {NO_NUMBER}"),
    ({"name": 7}, TypeError, "name=7 is not a string. Pass a string, the same on every rank, or None."),
    ({"name": ""}, ValueError, "name='' is empty. Pass a name that messages can show, or None."),
    ({"name": "a\0"}, ValueError, "name='a\\x00' is no text that can be sent. Leave out NUL and lone surrogates."),
    ({"name": "\ud800"}, ValueError, "name='\\ud800' is no text that can be sent. Leave out NUL and lone surrogates."),
    ({"prefetch": "Auto"}, TypeError, "prefetch='Auto' is not a whole number. Use 1 or more steps, or \"auto\"."),
    ({"prefetch_mb": 0}, ValueError, "prefetch_mb=0 is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": float("nan")}, ValueError, "prefetch_mb=nan is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": 10**400}, ValueError, "prefetch_mb=inf is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": -(10**5000)}, ValueError, "prefetch_mb=-inf is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": "8"}, TypeError, "prefetch_mb must be a number of MiB, not '8'."),
    ({"prefetch_mb": True}, TypeError, "prefetch_mb must be a number of MiB, not True."),
    ({"prefetch_mb": 8, "prefetch": 3}, ValueError, 'prefetch_mb=8 bounds prefetch="auto", but prefetch=3 says how many steps. Give one of them.'),
    ({"verify": 1}, TypeError, "verify must be True or False, not 1."),
    ({"verify": None}, TypeError, "verify must be True or False, not None."),
    ({"cache": "job", "shuffle": 1}, TypeError, "shuffle must be True or False, not 1."),
    ({"shard": True}, ValueError, "shard=True is not known. Use None or 'auto'."),
    ({"shard": "auto, unless the dataset function takes a context"}, ValueError,
     "shard='auto, unless the dataset function takes a context' is not known. Use None or 'auto'."),
    ({"shard": "files"}, ValueError, "shard='files' is not known. Use None or 'auto'."),
    ({"weigh": "tokens"}, ValueError, "weigh='tokens' is not known. Use None, 'rows', or a function that returns the cost of each row of an element."),
    ({"weigh": "rows", "schedule": "dynamic"}, ValueError, 'weigh=\'rows\' divides the rows of a step by their cost, but schedule="dynamic" has no steps. '
     'Use schedule="static" with it.'),
]  # fmt: skip


@pytest.mark.parametrize("prefetch", [np.int64(2), np.uint8(2)])
def test_whole_numbers_of_numpy(prefetch):
    assert type(Options("global", prefetch=prefetch).prefetch) is int
    assert Options("global", prefetch=2**31 - 1).prefetch == 2**31 - 1


@pytest.mark.parametrize("wrong, kind, text", WRONG)
def test_wrong_values(wrong, kind, text):
    with pytest.raises(kind) as error:
        Options(**{"batch": "per_rank", **wrong})
    assert str(error.value) == text
