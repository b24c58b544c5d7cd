"""How a picture too large for one pass is cut up, for every size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.encoders.vae import Tiling
from shardwright.recipes import SPECIFICATION

TILING = Tiling()


@settings(deadline=None)
@given(st.integers(1, 40_000))
def test_cuts_cover_a_side_with_full_overlapping_stretches_on_full_latents(length: int) -> None:
    cuts = TILING.cuts(length)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == length
    for start, end in cuts:
        assert start % 8 == 0
        assert min(length, TILING.side) <= end - start < TILING.side + 8
    for (_, end), (start, _) in pairwise(cuts):
        assert end - start >= TILING.overlap - 8


@settings(deadline=None)
@given(st.integers(1, 2000))
def test_a_latent_weighs_more_the_further_it_is_from_the_edge_of_its_tile(latents: int) -> None:
    weights = TILING.feather(latents)
    assert (weights > 0).all()
    assert np.array_equal(weights, weights[::-1])
    assert (np.diff(weights[: (latents + 1) // 2]) >= 0).all()
    assert weights.max() <= TILING.overlap // 8


def test_no_bucket_is_tiled() -> None:
    assert all(bucket.width * bucket.height <= TILING.above for bucket in SPECIFICATION.buckets)
