# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that ranks make together: when it raises, and when it waits."""

import gc
import os
import signal
import threading
import weakref

import pytest

from horovod_data.ending.signals import Held, outlasted


def press():
    signal.raise_signal(signal.SIGINT)


def raising(error):
    def handler(*_):
        raise error

    return handler


@pytest.fixture(autouse=True)
def handle():
    """Sets handlers for the test, first Python's own for Ctrl-C. Held must have put each of them back."""
    before, ours = {}, {}

    def set_handler(number, handler):
        before.setdefault(number, signal.getsignal(number))
        ours[number] = handler
        signal.signal(number, handler)

    set_handler(signal.SIGINT, signal.default_int_handler)
    yield set_handler
    assert {number: signal.signal(number, before[number]) for number in ours} == ours


@pytest.fixture
def calls(handle):
    """What the handlers of SIGUSR1 and SIGUSR2 have noted."""
    noted = []
    for number in signal.SIGUSR1, signal.SIGUSR2:
        handle(number, lambda number, frame: noted.append((number, frame.f_lineno > 0)))
    return noted


def test_while_open_each_raises_at_once():
    """The program may catch it and continue, for example as a time limit for each try of a download."""
    with Held() as held:
        held.open()
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                press()
        held.close()


def test_one_that_waits_comes_next_and_a_later_one_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with Held() as held:
            held.open()  # nothing waits yet
            held.close()
            press()
            with pytest.raises(KeyboardInterrupt):
                held.open()
            held.close()
            press()
            done.append("what the others wait for")
    assert done


def test_several_of_a_signal_wait_and_come_once(calls):
    with Held():
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        assert not calls
    assert calls == [(signal.SIGUSR1, True)]


def test_neither_it_nor_an_error_is_lost():
    with pytest.raises(KeyboardInterrupt) as raised:
        with Held():
            press()
            raise ValueError("mine")
    assert str(raised.value.__context__) == "mine"


def test_each_signal_that_waits_is_handled(calls):
    with pytest.raises(KeyboardInterrupt):
        with Held():
            press()
            signal.raise_signal(signal.SIGUSR2)
    assert calls == [(signal.SIGUSR2, True)]


def test_a_program_that_ends_ends_with_its_own_status():
    with pytest.raises(SystemExit, match="3"):
        with Held():
            press()
            raise SystemExit(3)


def test_a_handler_that_returns_leaves_it_open(handle):
    calls = []
    handle(signal.SIGINT, lambda *_: calls.append("called"))
    with Held() as held:
        press()
        assert not calls
        held.open()
        assert len(calls) == 1
        press()
        press()
        held.close()
    assert len(calls) == 3


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_without_a_handler_of_python_nothing_changes(handle, handler):
    handle(signal.SIGINT, handler)
    with Held() as held:
        held.open()
        assert signal.getsignal(signal.SIGINT) == handler


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


def test_a_handler_that_ends_the_program_stands_before_ctrl_c(handle):
    handle(signal.SIGTERM, raising(SystemExit(143)))
    with pytest.raises(SystemExit, match="143"):
        with Held() as held:
            held.open()
            with pytest.raises(KeyboardInterrupt):
                press()
            signal.raise_signal(signal.SIGTERM)


class Kept:
    pass


@pytest.mark.parametrize("how", ["opened", "at the end", "while open"])
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


def test_a_forked_child_has_the_programs_handler(handle):
    handle(signal.SIGTERM, lambda *_: os._exit(7))
    with Held():
        if (pid := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_signals_that_are_outlasted_end_the_process_again_after_an_error(handle, calls, capfd):
    """serve() may raise, and the program may go on. Its own handlers stay."""
    handle(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(RuntimeError), outlasted([signal.SIGTERM, signal.SIGUSR1]):
        for number in signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1:
            signal.raise_signal(number)
        raise RuntimeError
    assert capfd.readouterr().err.count("SIGTERM came on this reader") == 1 and len(calls) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
