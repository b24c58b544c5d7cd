"""What the fault tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.derive.pipeline import Pipeline
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
def one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls of the disk in the same order, so that the nth is the same in every run.

    Groups grow and shrink by the time they take, and threads come in any order; here a group of a
    derive is one batch, and one thread writes its arrays. Processes of their own do as they always
    do, and tests of ``write_arrays`` kill its threads.
    """
    monkeypatch.setattr(Pipeline, "_adapt", lambda *_: None)
    monkeypatch.setattr(arrays, "_THREADS", 1)
