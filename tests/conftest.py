"""What all tests share: a small store and a place for shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import Store, make_store, record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of seven samples in two buckets that take turns."""
    buckets = ("1024x1024", "832x1216")
    return make_store(tmp_path / "derived", [record(f"img{n}", buckets[n % 2]) for n in range(7)])


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where shards go; not there yet."""
    return tmp_path / "shards"
