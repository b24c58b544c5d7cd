"""Names from a disk or a record, spelt for people."""

from __future__ import annotations

from pathlib import Path


def shown(name: str | Path) -> str:
    """Spell a name from a disk or a record so that terminals and logs can take it."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
