# SPDX-License-Identifier: Apache-2.0
"""A line of ours on stderr, whatever that is."""

import sys

from horovod_data.errors import say


class Log:
    """As programs put there what print() can write to."""

    def __init__(self):
        self.texts = []

    def write(self, text):
        self.texts.append(text)


def test_an_object_of_the_programs_that_can_only_write(monkeypatch):
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    say("a line")
    assert log.texts == ["horovod_data: a line\n"]  # in one piece: others may write beside it


def test_one_that_can_not_even_that(monkeypatch):
    class Broken:
        def write(self, text):
            raise LookupError(text)

    for stream in (None, Broken(), object()):
        monkeypatch.setattr(sys, "stderr", stream)
        say("a line")
