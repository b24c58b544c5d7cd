"""Ctrl-C, SIGTERM and SIGHUP: they set a flag, and work stops where it is safe to stop.

A handler that raises does so between any two steps, also while a file is opened or closed. So ours
raise nothing: loops call ``check`` where it is safe to stop, and wait at most ``POLL`` seconds
between two calls. Code that holds nothing of ours may be interrupted ``at_once``, and what must be
finished is ``undisturbed``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from shardwright.starting import Quit

POLL = 0.1

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP when a session is lost: like Ctrl-C, with another exit code."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.exit_code = 128 + signum


class _State(threading.local):
    """Each thread has its own. Handlers run in the main thread, so only there a signal is seen."""

    handlers: Mapping[int, Any] | None = None  # the caller's, while ours are installed
    pending: BaseException | None = None  # what the next check raises
    signalled = False  # whether a signal has come; only the first one raises
    at_once = False
    undisturbed = False
    kills = False  # whether we have let the next Ctrl-C kill


_state = _State()
_came = threading.Event()  # a signal, since the main thread catches them


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come; call it where it is safe to stop."""
    error = _state.pending
    if error is not None and not _state.undisturbed:
        _state.pending = None
        raise error


def check_in_threads() -> None:
    """Check, also in other threads than the main one, which it waits for after a signal.

    Only for a wait that may have no end: elsewhere, threads finish what they have begun.
    """
    check()
    if _came.is_set() and not _in_main_thread():
        raise KeyboardInterrupt


@contextmanager
def caught() -> Iterator[None]:
    """Let signals wait for ``check``, which the end of the block calls too.

    The caller's own handlers are still called; only what they raise waits. Ignored signals stay
    ignored. After the first signal, Ctrl-C kills. In another thread than the main one, and within
    another such block, this does nothing.
    """
    if _state.handlers is not None or not _in_main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    _state.handlers = {n: h for n, h in found.items() if h not in (signal.SIG_IGN, None)}
    _state.pending, _state.signalled, _state.kills = None, False, False
    _came.clear()
    try:
        for number in _state.handlers:
            signal.signal(number, _receive)
        yield
    finally:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until all have been restored
        for number, handler in _state.handlers.items():
            ours = number == signal.SIGINT and _state.kills
            if ours or signal.getsignal(number) is _receive:  # not if the caller's has set another
                signal.signal(number, handler)
        _state.handlers = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        check()


@contextmanager
def at_once() -> Iterator[None]:
    """Let the first signal raise anywhere in this block; for code without state."""
    check()
    _state.at_once = True
    try:
        yield
    finally:
        _state.at_once = False
        check()  # code in C may have swallowed what was raised


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let ``check`` raise nothing in this block: finish first what has begun."""
    _state.undisturbed = True
    try:
        yield
    finally:
        _state.undisturbed = False


@contextmanager
def kept() -> Iterator[None]:
    """Put handlers back that a library replaces in this block; one in C is not even seen."""
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in found.items():
            ours = number == signal.SIGINT and _state.kills
            if not ours and handler is not None and _in_main_thread():
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _receive(number: int, frame: FrameType | None) -> None:
    assert _state.handlers is not None
    handler = _state.handlers[number]
    if isinstance(handler, Quit):
        handler = handler.usual
    try:
        if not callable(handler):
            raise Terminated(number)
        handler(number, frame)
    except BaseException as error:
        if not _state.signalled:
            _state.pending, _state.signalled = error, True
            _came.set()
        if signal.getsignal(signal.SIGINT) is _receive:  # even if we hang
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _state.kills = True
        if _state.at_once:
            _state.at_once = False
            raise
