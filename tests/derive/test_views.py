"""What encoders see of a picture: the part, the size, the scale it was decoded at, the pixels."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, JpegImagePlugin

from shardwright.buckets import Bucket
from shardwright.deriving import images
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.views import View, look
from shardwright.encoders.base import Options, Picture, Pixels, Preprocessing, preparing
from shardwright.encoders.picture import Writer
from shardwright.encoders.sketch import load
from shardwright.recipes import SPECIFICATION, Component
from shardwright.recipes.values import PIXELS
from shardwright.store.provenance import FAST
from tests.derive.pictures import gradient, save

VAE = next(component for component in SPECIFICATION.components if component.follows_picture)
BUCKETS = SPECIFICATION.buckets
ORIGINAL = View(divisors=(8, 8), name="vae")
PIXEL_CROP = View(fit="bucket", buckets=BUCKETS)
FITTED = View(fit="bucket", buckets=BUCKETS)
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
    assert all(type(side) is float for side in found.box)
    if not found.is_resized:
        assert all(side.is_integer() for side in found.box), "pixels stay as they are"
        return
    assert (left, top) == pytest.approx((width - right, height - bottom), abs=1e-9)
    shape = (right - left) / (bottom - top)
    assert shape == pytest.approx(Fraction(found.size.width, found.size.height), rel=1e-9)


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


def test_a_crop_of_the_bucket_s_own_size_keeps_every_pixel(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (1024, 1027, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "a.png", compress_level=0)
    (found,) = look(str(tmp_path / "a.png"), [FITTED]).made
    assert (found == picture[:, 1:1025]).all()


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Make a picture with the soft shapes, the edges and the noise of a photograph."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    values = np.full((height, width, 3), 120, np.float32)
    for _ in range(12):
        centre_x, centre_y = random.uniform(0, width), random.uniform(0, height)
        distance = np.hypot(x - centre_x, y - centre_y) / random.uniform(0.05, 0.4) / width
        soft = 1 / (1 + np.exp(random.choice([4, 40]) * (distance - 1)))
        values += soft[..., None] * random.uniform(-90, 90, 3).astype(np.float32)
    values += random.normal(0, 3, values.shape)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def as_before(path: Path, view: View) -> Picture:
    """Give what a view shows by arrays of the complete picture, as earlier versions did."""
    with Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened)
        picture = np.array(upright.convert("RGB"))
    frame = view.frame(Size(picture.shape[1], picture.shape[0]))
    left, top, right, bottom = map(int, frame.box)
    part = picture[top:bottom, left:right]
    if (right - left, bottom - top) == frame.size:
        return part
    image = Image.fromarray(np.ascontiguousarray(part))
    return np.array(image.resize(frame.size, Image.Resampling.LANCZOS))


DINO = Preprocessing(
    *(224, 224, 2, 1 / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), rounded=False
)
CROPPED = Preprocessing(None, None, 3, 1 / 255, [0.5] * 3, [0.5] * 3, 256, [224, 224])


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_exact_pixels_are_bit_for_bit_those_of_earlier_versions(
    tmp_path: Path, mode: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    photograph(333, 251).convert(mode).save(path, exif=exif)
    views = [ORIGINAL, View(), View(prepare=DINO)]
    *shown, prepared = look(str(path), views).made
    for view, found in zip(views, shown, strict=False):
        assert (found == as_before(path, view)).all()
    planes = np.moveaxis(as_before(path, View()), 2, 0).astype(np.float32)
    sized = [Image.fromarray(plane).resize((224, 224), 2) for plane in planes]
    mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (DINO.mean, DINO.std))
    before = (np.stack([np.asarray(s) for s in sized]) * np.float32(1 / 255) - mean) / std
    assert (prepared == before).all()


def test_nothing_of_a_picture_is_copied_that_is_not_turned_or_converted(tmp_path: Path) -> None:
    photograph(64, 48).save(tmp_path / "a.jpg")
    found = images.read(str(tmp_path / "a.jpg"))
    assert isinstance(found.image, JpegImagePlugin.JpegImageFile), "as it was opened"


@pytest.mark.parametrize(
    ("view", "size", "scale"),
    [
        (FITTED, (4000, 3000), 2),
        (FITTED, (2048, 2048), 2),
        (FITTED, (2047, 2047), 1),
        (FITTED, (500, 500), 1),
        (View(), (4000, 3000), 1),
        (ORIGINAL, (4000, 3000), 1),
        (View(prepare=Pixels()), (4000, 3000), 1),
        (View(prepare=DINO), (4000, 3000), 8),
        (View(prepare=DINO), (1000, 895), 2),
        (View(prepare=CROPPED), (4000, 1024), 4),
        (replace(FITTED, prepare=DINO), (4000, 3000), 2),
    ],
)
def test_a_picture_is_never_decoded_below_the_size_needed(
    view: View, size: tuple[int, int], scale: int
) -> None:
    assert view.scale(Size(*size)) == scale


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("prepared", [False, True], ids=["fitted", "complete"])
def test_a_fast_picture_differs_little_from_the_exact_one_at_every_orientation(
    tmp_path: Path, orientation: int, prepared: bool
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    photograph(1037, 771).save(path, exif=exif, quality=92)  # sides that 8 does not divide
    exact = View(prepare=replace(DINO, height=72, width=96, rounded=True))
    if not prepared:
        exact = View(fit="bucket", buckets=(Bucket(96, 64), Bucket(64, 96)))
    fast = replace(exact, decode=FAST)
    size = images.measure(str(path))
    assert fast.scale(size) == 8
    slow, quick = (look(str(path), [view]) for view in (exact, fast))
    assert slow.size == quick.size == size, "of the complete picture"
    levels = 255 * 0.225 if prepared else 1
    differs = np.abs(slow.made[0].astype(float) - quick.made[0]) * levels
    assert 0 < differs.mean() < 1
    shifted = np.abs(slow.made[0].astype(float) - np.roll(quick.made[0], 1, -2)) * levels
    assert differs.mean() < shifted.mean() / 3, "in place"


def test_a_fast_view_does_not_depend_on_the_other_views(tmp_path: Path) -> None:
    photograph(2100, 1500).save(tmp_path / "a.jpg")
    path = str(tmp_path / "a.jpg")
    fitted = View(fit="bucket", decode=FAST, buckets=(Bucket(512, 512),))
    views = [
        fitted,
        View(decode=FAST, prepare=DINO),
        View(decode=FAST),
        replace(fitted, decode=None),
    ]
    together = look(path, views).made
    for view, found in zip(views, together, strict=True):
        assert (look(path, [view]).made[0] == found).all()
    assert (together[0] != together[3]).any()


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_a_file_that_is_no_jpeg_is_decoded_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    photograph(300, 200).save(path)
    fitted = View(fit="bucket", buckets=(Bucket(64, 64),))
    exact, fast = look(str(path), [fitted, replace(fitted, decode=FAST)]).made
    assert (exact == fast).all()


def test_views_and_what_is_seen_can_be_sent_to_another_process(tmp_path: Path) -> None:
    photograph(300, 200).save(tmp_path / "a.jpg")
    path = str(tmp_path / "a.jpg")
    sketches = [
        replace(view, prepare=preparing(load(component, Options(), {})))
        for component, view in ((VAE, ORIGINAL), (SPECIFICATION.components[0], FITTED))
    ]
    jpg = {"format": "jpg", "quality": 95}
    writer = Writer(Component("p", "p", "p.jpg", "|u1", PIXELS, settings=jpg))
    views = [*sketches, View(prepare=DINO), View(writer=writer)]
    assert all(view.is_portable for view in views)
    sent = pickle.loads(pickle.dumps(views))
    here, there = look(path, views), pickle.loads(pickle.dumps(look(path, sent)))
    assert here[:-1] == there[:-1]
    for one, other in zip(here.made, there.made, strict=True):
        assert np.array_equal(one, other)
        assert isinstance(one, bytes) or one.flags.c_contiguous
    assert here.made[-1] == (tmp_path / "a.jpg").read_bytes(), "kept as it is"


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("fit", ["original", "bucket"])
def test_the_first_page_of_a_tiff_is_the_picture(
    fit: str, compression: str | None, tmp_path: Path
) -> None:
    pages = [Image.fromarray(gradient(300, 200, seed=seed)) for seed in (1, 2)]
    path = tmp_path / "pages.tif"
    pages[0].save(path, save_all=True, append_images=pages[1:], compression=compression)
    buckets = SPECIFICATION.buckets if fit == "bucket" else ()
    view = View(fit=fit, buckets=buckets)
    pages[0].save(tmp_path / "one.png")
    (many,), (one,) = (look(str(p), [view]).made for p in (path, tmp_path / "one.png"))
    np.testing.assert_array_equal(many, one)
    assert not images.read(str(path)).plain


def test_what_one_picture_does_to_pillow_is_a_failure_of_that_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.png", gradient(64, 48))
    view = View(fit="bucket", buckets=SPECIFICATION.buckets, name="latent")

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Image.Image, "resize", fail)
    with pytest.raises(BadImageError) as caught:
        look(str(tmp_path / "a.png"), [view])
    assert caught.value.args == ("not_prepared", "latent: AssertionError")
