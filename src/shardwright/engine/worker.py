"""What a worker process does: one task after the other, for as long as its parent lives.

Idle it sees its connection close, busy it is killed by the kernel, so that no forgotten process
writes into a folder that a later run has locked. It starts with Ctrl-C and similar signals blocked,
and leaves them so: what becomes of them is for the parent to decide.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from shardwright.engine.local import DONE, FAILED, SAID
from shardwright.errors import ShardwrightError

Function = Callable[[Any], Iterator[object]]


def work(parent: int, connection: int = 0, function: Function | None = None) -> NoReturn:
    """Run a function on each task that comes, then end this process.

    The connection is that of a file descriptor. A function that is not given comes first.
    """
    code = 1
    try:
        _die_with(parent)
        with suppress(BrokenPipeError, ConnectionResetError):
            _serve(Connection(connection), function)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of what this process was before the fork may run


def _serve(connection: Connection, function: Function | None) -> None:
    try:
        function = function or connection.recv()
        while True:
            for message in function(connection.recv()):
                connection.send((SAID, message))
            connection.send((DONE, None))
    except Exception as error:  # of the task; or the parent is gone, and this goes nowhere
        connection.send_bytes(_failed(error))


def _failed(error: Exception) -> bytes:
    """Pack an error with its traceback; one that pickling would break is replaced by its text."""
    trace = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps((FAILED, (error, trace)))
        pickle.loads(data)
    except Exception:
        text = ShardwrightError(f"{type(error).__name__}: {error}")
        data = pickle.dumps((FAILED, (text, trace)))
    return data


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
