"""Ctrl-C, SIGTERM and SIGHUP: they set a flag, and work stops where it is safe to stop.

A handler that raises does so between any two steps, also between those of opening or closing a
file. So ours raise nothing: loops call ``check`` where they may end, and a wait lasts at most
``POLL`` seconds between two calls. There are two exceptions: code that holds nothing of ours may be
interrupted ``at_once``, and what must be finished is ``undisturbed``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

POLL = 0.1

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP of a lost session: ends work as Ctrl-C does, with another exit code."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.exit_code = 128 + signum


class _State(threading.local):
    """Each thread has its own. Handlers run in the main thread, so only there a signal is due."""

    handlers: Mapping[int, Any] | None = None  # the caller's, while ours are installed
    first: BaseException | None = None  # what the first signal raises
    due = False  # whether that is still to be raised
    at_once = False
    undisturbed = False
    kills = False  # whether we have let the next Ctrl-C kill


_state = _State()


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come; call it where it is safe to stop."""
    if _state.due and not _state.undisturbed:
        _state.due = False
        assert _state.first is not None
        raise _state.first


@contextmanager
def caught() -> Iterator[None]:
    """Have signals wait for ``check``; the end of the block is one too.

    A handler of the caller's own is called as ever; only what it raises waits. What is ignored
    stays ignored. After the first signal, Ctrl-C kills. In a thread, where no signal is handled,
    and within another such block, this does nothing.
    """
    if _state.handlers is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    _state.handlers = {n: h for n, h in found.items() if h not in (signal.SIG_IGN, None)}
    _state.first, _state.due, _state.kills = None, False, False
    try:
        for number in _state.handlers:
            signal.signal(number, _receive)
        yield
    finally:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until all have been restored
        for number, handler in _state.handlers.items():
            ours = number == signal.SIGINT and _state.kills
            if ours or signal.getsignal(number) is _receive:  # the caller's may have set another
                signal.signal(number, handler)
        _state.handlers = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        check()


@contextmanager
def at_once() -> Iterator[None]:
    """Let the first signal end what is done in here, wherever it is; for code without state."""
    check()
    _state.at_once = True
    try:
        yield
    finally:
        _state.at_once = False
        check()  # code in C may have taken what was raised for a fault of its own


@contextmanager
def undisturbed() -> Iterator[None]:
    """Have ``check`` raise nothing in here: what has begun is finished first."""
    _state.undisturbed = True
    try:
        yield
    finally:
        _state.undisturbed = False


def _receive(number: int, frame: FrameType | None) -> None:
    assert _state.handlers is not None
    handler = _state.handlers[number]
    try:
        if not callable(handler):
            raise Terminated(number)
        handler(number, frame)
    except BaseException as error:
        if _state.first is None:
            _state.first, _state.due = error, True
        if signal.getsignal(signal.SIGINT) is _receive:  # even if we hang
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _state.kills = True
        if _state.at_once:
            _state.at_once = False
            raise
