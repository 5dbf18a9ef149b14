# SPDX-License-Identifier: Apache-2.0
"""The place of an error beside its message. Our lines on stderr, also if the program has put another object there."""

import sys
import types

import pytest
import tensorflow as tf

from horovod_data.ending import exit_status
from horovod_data.errors import explain_again, explained, message_of, names_place, say


def test_the_message_of_an_error_that_names_its_place():
    error = explained(KeyError, "odd", "Fix it", where="rank 1 on a")
    assert names_place(error) and error.args == ("[rank 1 on a] odd. Fix it.",) and message_of(error) == "odd. Fix it."
    explain_again(error, "even")
    assert error.args == ("even.",) and message_of(error) == "even."
    payload = {b"horovod_data.message": b"odd"}
    of_core = tf.errors.DataLossError(None, None, "{{node}} [rank 1 on a] odd [Op:Next]", payload)
    assert names_place(of_core) and message_of(of_core) == "odd"


def test_the_message_of_any_other_error_is_its_text():
    for error in ValueError("[rank 1 on a] odd"), explained(ValueError, "odd", where=""):
        assert not names_place(error) and message_of(error) == str(error)


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


def test_the_message_of_an_error_that_a_tf1_session_raises_anew():
    payload = {b"horovod_data.message": b"odd"}
    error = tf.errors.DataLossError(None, None, "Graph execution error: [rank 1 on a] odd")
    error.__context__ = tf.errors.DataLossError(None, None, "[rank 1 on a] odd", payload)
    assert names_place(error) and message_of(error) == "odd"
    for own in tf.errors.UnknownError(None, None, "[rank 1 on a] odd"), tf.errors.DataLossError(None, None, "my own"):
        own.__context__ = error.__context__
        assert not names_place(own) and message_of(own) == str(own), "an error of the program, raised in a handler"


def test_the_status_of_an_exit_on_the_reader():
    text = "SystemExit: 3\nTraceback (most recent call last):\n"
    assert exit_status._status_of_uncaught(tf.errors.UnknownError(None, None, text)) == 3
    assert exit_status._status_of_uncaught(tf.errors.UnknownError(None, None, "no SystemExit: 3")) == 1
    for call in "distribute_dataset()", "loader(name='train')", "predict()":
        assert exit_status._status_of_uncaught(RuntimeError(f"{call} failed: SystemExit: 3")) == 3
