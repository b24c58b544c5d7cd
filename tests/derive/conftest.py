"""What the tests of deriving share: four small images, and their store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.derive.pictures import make_images, sketch
from tests.derive.updates import TINY


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 4, TINY)


@pytest.fixture
def derived(images: Path, tmp_path: Path) -> Path:
    sketch(images, tmp_path / "derived")
    return tmp_path / "derived"
