"""The checkpoints, made once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.derive.encoders.models import make_dino, make_t5, make_vae


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per component."""
    root = tmp_path_factory.mktemp("models")
    return {
        "dinov3": make_dino(root / "tiny-dino"),
        "vae": make_vae(root / "tiny-vae"),
        "t5": make_t5(root / "tiny-t5"),
    }
