"""What the fault tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.deriving.pipeline import Pipeline
from shardwright.store import arrays

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


@pytest.fixture(autouse=True)
def one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls of the disk in every run, in some order: a group of a derive is one batch.

    Otherwise groups grow and shrink by the time they take. Processes of their own do as always.
    """
    monkeypatch.setattr(Pipeline, "_adapt", lambda *_: None)


@pytest.fixture
def one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which the nth call must be the same in every run: one thread writes arrays."""
    monkeypatch.setattr(arrays, "_THREADS", 1)
