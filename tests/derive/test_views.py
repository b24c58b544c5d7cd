"""What encoders see of a picture: the part, the size, the scale it was decoded at, the pixels."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardwright.deriving import images
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.views import View, look
from shardwright.recipes import SPECIFICATION
from shardwright.store.provenance import FRACTIONS

VAE = next(component for component in SPECIFICATION.components if component.follows_picture)
BUCKETS = SPECIFICATION.buckets
ORIGINAL = View(divisors=(8, 8), name="vae")
PIXEL_CROP = View(fit="bucket", buckets=BUCKETS)
FITTED = View(fit="bucket", crop=FRACTIONS, buckets=BUCKETS)
sides = st.integers(1, 40_000)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with images.strict():
        yield


@settings(deadline=None, max_examples=200)
@given(sides, sides, st.sampled_from([PIXEL_CROP, FITTED]))
def test_a_bucket_s_frame_lies_within_and_has_its_shape(
    width: int, height: int, view: View
) -> None:
    found = view.frame(Size(width, height))
    left, top, right, bottom = found.box
    bucket = SPECIFICATION.bucket_for(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert found.size == (bucket.width, bucket.height)
    assert right - left == width or bottom - top == height, "the largest part there is"
    assert abs(left - (width - right)) <= 1, "centred"
    assert abs(top - (height - bottom)) <= 1, "centred"
    # Within half a pixel of the bucket's own shape.
    scale = min(width / bucket.width, height / bucket.height)
    assert abs(right - left - bucket.width * scale) <= 1
    assert abs(bottom - top - bucket.height * scale) <= 1


@settings(deadline=None, max_examples=200)
@given(sides, sides)
def test_a_crop_in_fractions_is_centred_and_of_exactly_the_bucket_s_shape(
    width: int, height: int
) -> None:
    found = FITTED.frame(Size(width, height))
    left, top, right, bottom = found.box
    if not found.is_resized:
        assert all(type(side) is int for side in found.box), "pixels stay as they are"
        return
    assert (left, top) == pytest.approx((width - right, height - bottom), abs=1e-9)
    shape = (right - left) / (bottom - top)
    assert shape == pytest.approx(Fraction(found.size.width, found.size.height), rel=1e-9)
    assert all(type(side) is int for side in found.box if side == int(side))


@settings(deadline=None, max_examples=100)
@given(st.integers(8, 5000), st.integers(8, 5000))
def test_the_original_frame_is_the_picture_in_full_blocks(width: int, height: int) -> None:
    found = ORIGINAL.frame(Size(width, height))
    assert found.box == (0, 0, width // 8 * 8, height // 8 * 8)
    assert VAE.shape_for(*found.size) == (16, height // 8, width // 8)


def test_a_picture_smaller_than_a_block_is_too_small() -> None:
    with pytest.raises(BadImageError) as caught:
        ORIGINAL.frame(Size(7, 100))
    assert caught.value.args == ("too_small", "7x100 pixels are too few for vae")


@pytest.mark.parametrize("view", [PIXEL_CROP, FITTED], ids=["pixels", "fractions"])
def test_framing_cuts_about_the_centre(tmp_path: Path, view: View) -> None:
    picture = np.zeros((100, 400, 3), np.uint8)
    picture[:, 180:220] = 255
    Image.fromarray(picture).save(tmp_path / "a.png")
    (part,) = look(str(tmp_path / "a.png"), [view]).made
    assert part.shape == (704, 1344, 3)
    white = np.flatnonzero(part[352, :, 0] > 127)
    one_pixel = 1344 / 191  # the part is that many pixels wide
    allowed = one_pixel if view is PIXEL_CROP else 1
    assert abs(white[0] + white[-1] - 1343) <= allowed
    assert len(white) == pytest.approx(40 * one_pixel, abs=allowed)
