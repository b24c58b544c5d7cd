"""What a worker process does: one task after the other, for as long as its parent lives.

On Linux the kernel kills it with its parent; elsewhere it ends when its connection closes. So no
forgotten process writes into a folder that a later run has locked. Ctrl-C and similar signals are
blocked from the start: the parent decides what they do.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

from shardwright.engine.local import DONE, FAILED, MESSAGE
from shardwright.errors import ShardwrightError


def work(parent: int, connection: int) -> NoReturn:
    """Run each task that comes from a file descriptor, with its function; then end this process."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == parent:  # else it died before we asked
            with suppress(BrokenPipeError, ConnectionResetError):
                _serve(Connection(connection))
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of what this process was before the fork may run


def _serve(connection: Connection) -> None:
    try:
        while True:
            function, task = connection.recv()
            for message in function(task):
                connection.send((MESSAGE, message))
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
