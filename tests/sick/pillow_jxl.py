"""Stands in for a plug-in of Pillow, which every process that reads pictures imports.

A folder says which files fail in which way: by a file of the same name that holds the number of an
error, which opening the image then raises. And a picture that begins with DEADLY kills whoever
looks at it; one that begins with PIXELS, whoever decodes it.
"""

from __future__ import annotations

import builtins
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
    if note is not None and note.is_file():
        number = int(note.read_text())
        raise OSError(number, os.strerror(number), file)
    return _open(file, *given, **named)


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
