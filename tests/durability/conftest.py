"""What the fault tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place: thousands of runs need no real disk."""
    if not _MEMORY.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="shardwright-", dir=_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)
