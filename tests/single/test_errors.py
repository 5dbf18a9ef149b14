# SPDX-License-Identifier: Apache-2.0
"""Our lines on stderr, also if the program has put another object there."""

import sys
import types

import pytest

from horovod_data.errors import say


def test_an_object_that_can_only_write(monkeypatch):
    """The line comes in one piece, because others may write beside it."""
    texts = []
    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(write=texts.append))
    say("a line")
    assert texts == ["horovod_data: a line\n"]


@pytest.mark.parametrize("stream", [None, object(), types.SimpleNamespace(write={}.__getitem__)])
def test_an_object_that_can_not_write(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    say("a line")
