"""Stands in for a plug-in of Pillow, which every process that reads pictures imports.

A folder says which files fail in which way: by a file of the same name that holds the number of an
error, which opening the image then raises; with a second number, reading more than its first bytes
does. And a picture that begins with DEADLY kills whoever looks at it; one that begins with PIXELS,
whoever decodes it.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile

DEADLY = b"a deadly picture"
PIXELS = b"deadly pixels"
_FAILING = Path(os.environ["FAILING"])
_open = builtins.open


def _failing(file: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as open
    note = _FAILING / os.path.basename(file) if isinstance(file, str) else None
    if note is None or not note.is_file():
        return _open(file, *given, **named)
    number, *end = map(int, note.read_text().split())
    if not end:
        raise OSError(number, os.strerror(number), file)
    torn = _Torn(file, number, *end)
    return torn if given[1:] == (0,) else io.BufferedReader(torn)


class _Torn(io.FileIO):
    """A file of which only the first bytes can be read."""

    def __init__(self, path: str, number: int, end: int) -> None:
        super().__init__(path)
        self.number, self.end = number, end

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as FileIO
        if self.tell() + len(memoryview(buffer)) > self.end:
            raise OSError(self.number, os.strerror(self.number), self.name)
        return super().readinto(buffer)


class _Deadly(ImageFile.ImageFile):
    format = "JXL"
    format_description = "a picture that kills"

    def _open(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class _DeadlyPixels(ImageFile.ImageFile):
    format = "HEIF"
    format_description = "a picture whose pixels kill"

    def _open(self) -> None:
        self._size, self._mode = (96, 64), "RGB"

    def load(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


builtins.open = _failing
Image.register_open("JXL", _Deadly, lambda start: start.startswith(DEADLY))
Image.register_open("HEIF", _DeadlyPixels, lambda start: start.startswith(PIXELS))
