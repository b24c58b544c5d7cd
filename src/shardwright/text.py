"""Text from a disk or a record, made printable."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def shown(name: str | Path) -> str:
    """Escape what a terminal or a log cannot show."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def brief(text: str) -> str:
    """Shorten SHA-256 sums to twelve digits, which are enough to tell them apart."""
    return _SHA256.sub(r"\1", text)


def near(path: str) -> str:
    """Show a path, relative to the working folder if it is below it."""
    relative = os.path.relpath(path)
    return shown(path if relative.startswith(os.pardir) else relative)
