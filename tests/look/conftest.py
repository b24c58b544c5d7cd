from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardwright.looking.viewer import Viewer
from tests.look.pictures import Folders, Served, make, previews


@pytest.fixture(scope="package")
def at(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return make(tmp_path_factory.mktemp("look"))


@pytest.fixture(scope="package")
def shards(at: Folders) -> Iterator[Served]:
    """The shards, behind a server."""
    with Served(Viewer(previews(at.shards, at.images))) as served:
        yield served


@pytest.fixture(scope="package")
def store(at: Folders) -> Iterator[Served]:
    """The store, behind a server."""
    with Served(Viewer(previews(at.store))) as served:
        yield served
