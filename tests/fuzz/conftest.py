"""One world for each module of tests, as it was before each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import worlds


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give where it is, in memory if there is such a place; a copy as it was lies beside it."""
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() else tmp_path_factory.mktemp("fuzz")
    with tempfile.TemporaryDirectory(prefix="shardwright-", dir=folder) as made:
        worlds.make(world := Path(made, "world"))
        yield world


@pytest.fixture
def world(pristine: Path) -> Iterator[Path]:
    """Give it to one test, and put back what that has changed anywhere."""
    yield pristine
    shutil.rmtree(pristine)
    shutil.copytree(pristine.with_name("pristine"), pristine, symlinks=True)
