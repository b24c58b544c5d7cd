"""Ctrl-C and its like, held back where a block must be left in good order.

Python lets a signal's handler raise between any two steps, also between those of entering and
leaving a block. In a ``Held`` block what it raises waits until the block is left; only within
``heard`` is it raised at once, and then only once, so that nothing disturbs the leaving::

    with Held() as held, Journal(path) as journal, held.heard():
        work()  # Ctrl-C ends this, and then the journal's own end is undisturbed

So are imports that come late: code in C has crashed, or taken what was raised for its own fault.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check() -> None:
    """Raise KeyboardInterrupt if a signal came."""


class Held:
    """A block that signals do not disturb.

    Their handlers, whosever they are, are called as ever; it is what they raise that waits. A
    signal without a handler does what it always does. Handlers run in the main thread alone, so in
    any other there is nothing to hold back.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._holds = False
        self._heard = False
        self._waiting: BaseException | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._receive)
        self._holds = True  # and until here, or from there on, ``_receive`` just passes on
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._holds = False
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._receive:  # the handler may have set another
                signal.signal(number, handler)
        if self._waiting is not None and not isinstance(error, KeyboardInterrupt):
            raise self._waiting

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Let the first signal end what is done in here."""
        self._heard = True
        try:
            if self._waiting is not None:
                waited, self._waiting = self._waiting, None
                raise waited
            yield
        finally:
            self._heard = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            if self._holds and not self._heard:
                self._waiting = self._waiting or error
                return
            self._heard = False
            raise
