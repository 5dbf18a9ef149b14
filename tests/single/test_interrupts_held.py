# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that ranks make together: when it raises, and when it waits."""

import os
import signal
import threading

import pytest

from horovod_data.interrupts import Held


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


def test_behind_one_that_was_raised_it_is_held_again():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with Held() as held:
            held.open()
            with pytest.raises(KeyboardInterrupt):
                press()
            press()
            done.append("what the others wait for")
    assert done


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


def test_the_second_does_not_wait():
    with pytest.raises(KeyboardInterrupt):
        with Held():
            press()
            press()
            pytest.fail("held twice")


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
                held.let_come()
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


def test_let_come_raises_what_waits():
    with Held() as held:
        held.let_come()
        press()
        with pytest.raises(KeyboardInterrupt):
            held.let_come()


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


def test_what_comes_while_a_handler_runs_is_handled_behind_it():
    calls = []

    def notes(*_):
        calls.append("noted")
        press()

    before = signal.signal(signal.SIGUSR1, notes)
    with Held() as held:
        held.open()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGUSR1)
        assert isinstance(held.raised, KeyboardInterrupt)
    assert calls == ["noted"] and signal.signal(signal.SIGUSR1, before) is notes


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
