"""How a picture too large for one pass is cut up, for every size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright import recipes
from shardwright.encoders import load
from shardwright.encoders.autoencoder import Tiling
from shardwright.encoders.base import Options
from shardwright.encoders.contract import picture
from shardwright.recipes import SPECIFICATION
from tests.derive.encoders.models import make_vae, with_model
from tests.derive.encoders.plain import encoded

TILING = Tiling()
FACTORS = st.sampled_from([4, 8, 16, 32])


@settings(deadline=None)
@given(st.integers(1, 40_000), FACTORS)
def test_cuts_cover_a_side_with_full_overlapping_stretches_on_full_latents(
    length: int, factor: int
) -> None:
    cuts = TILING.cuts(length, factor)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == length
    for start, end in cuts:
        assert start % factor == 0
        assert min(length, TILING.side) <= end - start < TILING.side + factor
    for (_, end), (start, _) in pairwise(cuts):
        assert end - start >= TILING.overlap - factor


@settings(deadline=None)
@given(st.integers(1, 2000), FACTORS)
def test_a_latent_weighs_more_the_further_it_is_from_the_edge_of_its_tile(
    latents: int, factor: int
) -> None:
    weights = TILING.feather(latents, factor)
    assert (weights > 0).all()
    assert np.array_equal(weights, weights[::-1])
    assert (np.diff(weights[: (latents + 1) // 2]) >= 0).all()
    assert weights.max() <= TILING.overlap // factor


def test_no_bucket_is_tiled() -> None:
    assert all(bucket.width * bucket.height <= TILING.above for bucket in SPECIFICATION.buckets)


def test_the_size_above_which_a_picture_is_tiled_is_a_key_of_the_recipe(tmp_path: Path) -> None:
    path, folder = tmp_path / "tiles.toml", make_vae(tmp_path / "vae")
    path.write_text(
        f'extends = "prx"\n[component.vae]\nmodel = "{folder}"\ntile_above = 6000\n'
        'shape = [16, "height/8", "width/8"]\n'
    )
    vae = recipes.find(str(path)).recipe.by_name["vae"]
    made: Any = load("pretrained", vae, Options(), {})
    assert made.describe()["tiling"] == {"above": 6000, "side": 1024, "overlap": 256}
    cut: list[int] = []

    def tiled(size: tuple[int, int], *rest: Any) -> Any:  # noqa: ANN401
        cut.append(size[1])
        return rest[-1](slice(None), slice(None))

    made._tiled = tiled
    for width in (93, 94):
        encoded(made, picture(width, 64))
    assert cut == [94], "6,016 pixels are more than 6,000, and 5,952 are not"


def test_components_that_are_tiled_differently_share_the_model_and_not_the_pass(
    tmp_path: Path,
) -> None:
    folder, models = make_vae(tmp_path / "vae"), dict[Any, Any]()
    vae = SPECIFICATION.by_name["vae"]
    one, other = (
        load("pretrained", with_model(vae, folder, **more), Options(), models)
        for more in ({}, {"tile_above": 64})
    )
    assert one._shared is other._shared  # type: ignore[union-attr]
    assert one.shares is not other.shares  # type: ignore[union-attr]
