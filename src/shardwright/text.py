"""Text from a disk or a record, made printable."""

from __future__ import annotations

import os
from pathlib import Path


def shown(name: str | Path) -> str:
    """Escape what a terminal or a log cannot show."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def near(path: str) -> str:
    """Show a path, relative to the working folder if it is below it."""
    relative = os.path.relpath(path)
    return shown(path if relative.startswith(os.pardir) else relative)
