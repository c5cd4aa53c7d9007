"""Ctrl-C waits for a safe place, once."""

import os
import signal
import threading

import pytest

from jaxllm.serving.llm.interrupts import DeferredInterrupt


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_waits_for_the_check() -> None:
    with DeferredInterrupt() as interrupt:
        interrupt.check()
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        interrupt.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_not_lost_without_a_check() -> None:
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        ctrl_c()


def test_another_error_goes_first() -> None:
    def work() -> None:
        with DeferredInterrupt():
            ctrl_c()
            raise ValueError("other")

    with pytest.raises(ValueError, match="other"):
        work()


def test_the_second_does_not_wait() -> None:
    def work() -> None:
        with DeferredInterrupt():
            ctrl_c()
            reached.append(1)
            ctrl_c()
            reached.append(2)

    reached: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == [1]


def test_a_handler_of_the_programs_own_stays() -> None:
    seen = []
    previous = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with DeferredInterrupt():
            ctrl_c()
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, previous)


def test_other_threads_touch_no_signals() -> None:
    def work() -> None:
        with DeferredInterrupt() as interrupt:
            interrupt.check()
            states.append(signal.getsignal(signal.SIGINT))

    states: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert states == [signal.default_int_handler]
