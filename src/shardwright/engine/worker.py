"""A worker process: it serves its parent, for as long as that lives.

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
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

from shardwright.engine.local import FAILED
from shardwright.errors import ShardwrightError


def work(parent: int, connection: int, serve: Callable[[Connection], None]) -> NoReturn:
    """Serve the parent on a file descriptor; then end this process."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == parent:  # else it died before we asked
            with suppress(BrokenPipeError, ConnectionResetError, EOFError):
                serve(Connection(connection))
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of what this process was before the fork may run


def failed(error: Exception) -> tuple[str, tuple[Exception, str]]:
    """Give what to send of an error: it and its traceback."""
    return FAILED, (portable(error), "".join(traceback.format_exception(error)))


def portable(error: Exception) -> Exception:
    """Give an error that can be sent; one that pickling would break is replaced by its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ShardwrightError(f"{type(error).__name__}: {error}")
    return error
