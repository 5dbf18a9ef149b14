# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that ranks make together: when it raises, and when it waits."""

import gc
import os
import signal
import threading
import weakref

import pytest

from horovod_data.ending.signals import Held


def press():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def pythons_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_while_open_it_raises_at_once():
    with Held() as held:
        held.open()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_while_open_one_that_the_program_caught_is_not_the_last():
    """As of a time limit for each try of a download."""
    with Held() as held:
        held.open()
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                press()
        held.close()


def test_held_it_waits_for_the_next_open():
    with Held() as held:
        press()
        with pytest.raises(KeyboardInterrupt):
            held.open()


def test_held_it_comes_behind_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with Held() as held:
            held.open()
            held.close()
            press()
            done.append("all of it")
    assert done


def test_the_second_waits_too_and_comes_with_it():
    """Where it would come in the middle of what is owed."""
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append("called"))
    with Held():
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        assert not calls
    assert calls == ["called"] and signal.signal(signal.SIGUSR1, before)


def test_neither_it_nor_an_error_is_lost():
    with pytest.raises(KeyboardInterrupt) as raised:
        with Held():
            press()
            raise ValueError("mine")
    assert str(raised.value.__context__) == "mine"


def test_each_that_waits_is_handled():
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append("called"))
    with pytest.raises(KeyboardInterrupt):
        with Held():
            press()
            signal.raise_signal(signal.SIGALRM)
    assert calls == ["called"]
    signal.signal(signal.SIGALRM, before)


def test_a_program_that_ends_ends_with_its_own_status():
    with pytest.raises(SystemExit, match="3"):
        with Held():
            press()
            raise SystemExit(3)


def test_other_signals_with_a_handler_are_held_too():
    def late(*_):
        raise TimeoutError("too slow")

    done = []
    before = signal.signal(signal.SIGALRM, late)
    with pytest.raises(TimeoutError, match="too slow"):
        with Held() as held:
            press()
            signal.raise_signal(signal.SIGALRM)
            with pytest.raises(KeyboardInterrupt):  # the first that came
                held.open()
            held.close()
            done.append("what the others wait for")
    assert done and signal.signal(signal.SIGALRM, before) is late


def test_a_handler_that_only_notes_it_leaves_the_door_open():
    calls = []
    signal.signal(signal.SIGINT, lambda *_: calls.append("called"))
    with Held() as held:
        held.open()
        press()
        press()
        assert calls == ["called"] * 2
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_of_the_programs_is_called_once():
    calls = []
    signal.signal(signal.SIGINT, lambda *_: calls.append("called"))
    with Held() as held:
        press()
        assert not calls
        held.open()
        assert calls == ["called"]
        held.close()
    assert calls == ["called"]
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_python_has_no_handler_nothing_changes(handler):
    signal.signal(signal.SIGINT, handler)
    with Held() as held:
        held.open()
        assert signal.getsignal(signal.SIGINT) == handler
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_in_another_thread_it_does_nothing():
    seen = []

    def run():
        with Held() as held:
            held.open()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_handler_that_ends_the_program_stands_before_ctrl_c():
    def ends(*_):
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, ends)
    with pytest.raises(SystemExit, match="143"):
        with Held() as held:
            held.open()
            with pytest.raises(KeyboardInterrupt):
                press()
            signal.raise_signal(signal.SIGTERM)
            raise KeyboardInterrupt
    assert signal.signal(signal.SIGTERM, before) is ends


def test_while_open_handlers_nest_as_ever():
    """One that saves within a time limit, say."""

    def late(*_):
        raise TimeoutError

    def saves(*_):
        try:
            signal.raise_signal(signal.SIGALRM)
            calls.append("no limit")
        except TimeoutError:
            calls.append("limited")

    calls = []
    before = signal.signal(signal.SIGUSR1, saves), signal.signal(signal.SIGALRM, late)
    with Held() as held:
        held.open()
        signal.raise_signal(signal.SIGUSR1)
        held.close()
    assert calls == ["limited"]
    assert signal.signal(signal.SIGUSR1, before[0]) is saves and signal.signal(signal.SIGALRM, before[1]) is late


class Kept:
    pass


@pytest.mark.parametrize("how", ["opened", "behind", "while open"])
def test_what_was_raised_keeps_nothing_of_the_program(how):
    def leaves():
        held_by_a_frame = Kept()
        kept.append(weakref.ref(held_by_a_frame))
        with Held() as held:
            if how == "while open":
                held.open()
            press()
            if how == "opened":
                held.open()

    kept = []
    gc.disable()
    try:
        try:
            leaves()
        except KeyboardInterrupt:
            kept.append("raised")
        assert kept[0]() is None and kept[1:] == ["raised"]
    finally:
        gc.enable()


def test_a_handler_that_is_kept_beyond_it_calls_the_programs():
    with Held():
        kept = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        kept(signal.SIGINT, None)


def test_a_handler_gets_a_frame():
    frames = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: frames.append(frame.f_lineno))
    with Held():
        signal.raise_signal(signal.SIGUSR1)
    assert len(frames) == 1
    signal.signal(signal.SIGUSR1, before)


def test_a_forked_child_has_the_programs_handler():
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    with Held():
        if (pid := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    signal.signal(signal.SIGTERM, before)
