"""Signals that are held back, and where they are heard."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from shardwright.interrupts import Held


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test sets is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_until_the_block_is_left() -> None:
    done = []

    def work() -> None:
        with Held():
            interrupt()
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]


def test_where_it_is_heard_the_first_is_raised_at_once_and_later_ones_wait() -> None:
    done = []

    def work() -> None:
        with Held() as held:
            try:
                with held.heard():
                    interrupt()
                    done.append("never")
            finally:
                interrupt()
                done.append("tidied up")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["tidied up"]


def test_one_that_waits_is_raised_as_soon_as_it_is_heard() -> None:
    done = []

    def work() -> None:
        with Held() as held:
            interrupt()
            done.append("begun")
            with held.heard():
                done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["begun"]


def test_one_held_block_may_stand_in_another() -> None:
    done = []

    def work() -> None:
        with Held() as outer, outer.heard():
            with Held():
                interrupt()
                done.append("the inner one")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the inner one"]


def test_it_is_not_lost_when_the_block_fails() -> None:
    def work() -> None:
        with Held():
            interrupt()
            raise ValueError("at work")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert isinstance(raised.value.__context__, ValueError)


def test_afterwards_the_handlers_are_those_of_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Held() as held, held.heard():
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert signal.getsignal(signal.SIGTERM) == before[1], "which has none"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_handler_of_the_caller_is_called_at_once() -> None:
    called = []

    def note(number: int, frame: FrameType | None) -> None:
        called.append(number)

    signal.signal(signal.SIGTERM, note)
    with Held() as held:
        signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM]
        with held.heard():
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):  # as none was raised so far
                interrupt()
    assert called == [signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) is note


def test_what_a_handler_sets_stays() -> None:
    def last(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGTERM, last)
    with Held():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_in_another_thread_nothing_is_held() -> None:
    def work() -> object:
        with Held() as held, held.heard():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() is signal.default_int_handler
