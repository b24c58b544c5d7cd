"""How a picture too large for one pass is cut up, for every size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.encoders.autoencoder import Tiling
from shardwright.recipes import SPECIFICATION

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
