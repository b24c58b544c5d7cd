"""Every Python process imports this at its start, if this folder is on its path.

``GOLDEN_AT`` ends or stops the process at the nth call that changes something in the folder it was
started in, or at the nth such call for a path that ends so, where ``*`` stands for anything:
``kill before 7``, ``kill after 7``, ``stop before 3``, ``kill after 1 shard-*.tar``.
``GOLDEN_LOG`` names a file that gets a line for each such call; the name of one that raises is
``failed``. It knows only ``os``, so it works for any way to write files.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

_CALLS = ("fsync", "fdatasync", "rename", "replace", "link", "unlink", "remove", "mkdir", "rmdir")
_TWO = ("rename", "replace", "link")  # that take two paths
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def _install(at: str, log: str) -> None:
    what, when, number, *suffix = at.split() or ("kill", "before", "0")
    folder, ends, count = os.getcwd() + "/", "".join(suffix), itertools.count(1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC) if log else None

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*given: Any, **options: Any) -> Any:  # noqa: ANN401 - any call of os
            paths = [_path(each) for each in given[: 1 + (name in _TWO)]]
            if not f"{paths[0]}/".startswith(folder):
                return call(*given, **options)
            is_it = fnmatchcase(paths[-1], f"*{ends}") and next(count) == int(number)
            if is_it and when == "before":
                os.kill(os.getpid(), _SIGNALS[what])
            done = "failed"
            try:
                result = call(*given, **options)
                done = name
            finally:
                if is_it and when == "after":
                    os.kill(os.getpid(), _SIGNALS[what])
                if file is not None:
                    os.write(file, "\t".join([done, *paths]).encode() + b"\n")
            return result

        return replacement

    for name in _CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))


def _path(given: Any) -> str:  # noqa: ANN401 - a path or the number of an open file
    if isinstance(given, int):
        return os.readlink(f"/proc/self/fd/{given}")
    return os.path.abspath(os.fsdecode(given))


if "GOLDEN_AT" in os.environ or "GOLDEN_LOG" in os.environ:
    _install(os.environ.get("GOLDEN_AT", ""), os.environ.get("GOLDEN_LOG", ""))
