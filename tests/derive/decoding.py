"""What decoders do in tests. A module of its own, because a fresh process imports it."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.deriving.images import BadImageError
from shardwright.deriving.views import Look, View, look


def give(value: object) -> object:
    return value


def who(_: object) -> int:
    return os.getpid()


def pixels(shape: tuple[int, ...]) -> NDArray[Any]:
    return np.arange(np.prod(shape), dtype=np.uint32).astype(np.uint8).reshape(shape)


def several(_: object) -> dict[str, Any]:
    fixed = np.arange(6, dtype=np.float32)
    fixed.setflags(write=False)
    slanted = np.arange(100).reshape(10, 10)
    return {
        "fixed": fixed,
        "free": np.arange(4),
        "part": slanted[2:5, 1:7],
        "columns": slanted.T,
        "none": np.empty((0, 3)),
        "file": b"\xff\xd8",
    }


def loaded(_: object) -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def threads(_: object) -> int:
    np.ones((300, 300)) @ np.ones((300, 300))
    return len(os.listdir("/proc/self/task"))


def descriptors(_: object) -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that lists them
            continue
    return found


def misbehave(how: str) -> str:
    match how:
        case "bad image":
            raise BadImageError("broken_image", "cut off")
        case "unsendable error":
            raise ValueError("said", lambda: None)
        case "unsendable result":
            return lambda: None  # type: ignore[return-value]
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(7)
        case "print":
            print("printed", flush=True)
            os.write(2, b"a warning of libtiff\n")
    return how


def die_once(mark: str) -> str:
    if not os.path.exists(mark):
        open(mark, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "well"


def hang(_: object) -> None:
    time.sleep(60)


class Unimportable:
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("no_such_module",)

    def __call__(self, _: object) -> None:
        raise AssertionError


class Deadly:
    """Ends the process that receives it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()

    def __call__(self, _: object) -> None:
        raise AssertionError


def strictness(_: object) -> tuple[bool, bool]:
    """Give whether Pillow accepts truncated files, and refuses bombs."""
    from PIL import Image, ImageFile

    refused = ("error", None, Image.DecompressionBombWarning, None, 0) in warnings.filters
    return ImageFile.LOAD_TRUNCATED_IMAGES, refused


def look_or_die(path: str, views: Sequence[View]) -> Look:
    """Die of a certain picture."""
    if path.endswith("img003.png"):
        os.kill(os.getpid(), signal.SIGKILL)
    return look(path, views)


def look_and_list(path: str, views: Sequence[View]) -> set[str]:
    """Look, and name the packages that this took."""
    look(path, views)
    return loaded(None)


def look_slowly(path: str, views: Sequence[View]) -> Look:
    """Look as one does at a picture that comes over a slow network."""
    time.sleep(0.3)
    return look(path, views)
