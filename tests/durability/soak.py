"""How long to go on: ``make soak`` sets SHARDWRIGHT_SOAK, and some tests do as many times more."""

from __future__ import annotations

import os

SOAK = int(os.environ.get("SHARDWRIGHT_SOAK", "0"))


def times(count: int) -> int:
    """Say how often to do what is done this often in the normal run."""
    return count * max(SOAK, 1)
