"""With a model, build gives what derive and pack give, within the rounding of its precision."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import shardwright
from tests.building.builds import members
from tests.derive.encoders.models import make_vae
from tests.derive.pictures import make_images


@pytest.mark.timeout(600)
def test_with_a_model_members_equal_those_of_derive_and_pack_within_rounding(
    tmp_path: Path,
) -> None:
    images, recipe = make_images(tmp_path / "images", 6, ((96, 64),)), tmp_path / "vae.toml"
    model = json.dumps(str(make_vae(tmp_path / "vae", width=64)))
    recipe.write_text(
        'extends = "prx"\ncomponents = ["vae"]\n[component.vae]\nencoder = "autoencoder"\n'
        f'shape = [16, "height/8", "width/8"]\nmodel = {model}\n'
    )
    store, packed, built = tmp_path / "store", tmp_path / "packed", tmp_path / "built"
    shardwright.derive(images, derived_dir=store, recipe=recipe, device="cpu", batch_size=1)
    shardwright.pack(derived_dir=store, output_dir=packed, recipe=recipe)
    shardwright.build(images, output_dir=built, recipe=recipe, device="cpu", batch_size=6)
    expected, found = (
        dict(one for shard in members(at).values() for one in shard) for at in (packed, built)
    )
    assert list(expected) == list(found)
    assert len(found) == 12
    for name, theirs in expected.items():
        if name.endswith(".json"):
            assert found[name] == theirs
            continue
        mine, other = (
            np.load(io.BytesIO(data)).astype(np.float32) for data in (found[name], theirs)
        )
        assert mine.shape == (16, 8, 12)
        assert np.abs(mine - other).max() <= 2.0**-10 * np.abs(other).max()
