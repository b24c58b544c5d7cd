"""Text from a disk or a record, made printable."""

from __future__ import annotations

from pathlib import Path


def shown(name: str | Path) -> str:
    """Escape what a terminal or a log cannot show."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
