# SPDX-License-Identifier: Apache-2.0
"""Each argument of distribute_dataset() stands in its signature, in its docstring, and in Options with its check."""

import dataclasses
import inspect
import re

import pytest

from horovod_data.channel.distribute import distribute_dataset
from horovod_data.channel.options import Options
from horovod_data.job.settings import read_settings


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
    assert Options("global", prefetch_mb=5).completed(settings).prefetch_mb == 5
    assert Options("global", prefetch=4).completed(settings).prefetch_mb is None
    assert not Options("global").completed(settings).verify
    monkeypatch.setenv("HOROVOD_DATA_VERIFY", "1")
    assert Options("global").completed(settings).verify


@pytest.mark.parametrize("wrong", [{"verify": 1}, {"prefetch": 1.5}, {"prefetch_mb": True}, {"name": 3}])
def test_wrong_types(wrong):
    with pytest.raises(TypeError):
        Options("global", **wrong)
