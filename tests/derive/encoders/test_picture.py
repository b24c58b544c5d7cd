"""The picture itself as a component: kept where it already is one, written otherwise."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardwright.encoders import load
from shardwright.encoders.base import Options, Picture, PictureWriter
from shardwright.encoders.contract import picture
from shardwright.recipes import Component, Side
from shardwright.store import arrays, content
from tests.fuzz.targets import on_disk

NAMES = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}


def component(format_: str, quality: int = 95) -> Component:
    shape = (Side("height", 1), Side("width", 1), 3)
    settings = {"format": format_, "quality": quality}
    return Component("p", "p", f"p.{format_}", "|u1", shape, encoder="picture", settings=settings)


def writer(format_: str, quality: int = 95, choice: Any = "pretrained") -> PictureWriter:  # noqa: ANN401
    found: Any = load(choice, component(format_, quality), Options(), {})
    made: PictureWriter = found
    return made


def saved(pixels: Picture, name: str, **options: Any) -> bytes:  # noqa: ANN401
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, name, **options)
    return out.getvalue()


def opened(data: bytes) -> tuple[str | None, Picture]:
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "RGB"
        return image.format, np.array(image)


@pytest.mark.parametrize("choice", ["pretrained", "sketch", {}], ids=str)
@pytest.mark.parametrize("format_", NAMES)
def test_a_picture_is_written_in_its_format_with_every_set(format_: str, choice: Any) -> None:  # noqa: ANN401
    pixels = picture(67, 45)
    made = writer(format_, choice=choice)
    data = made.write(pixels, None)
    name, back = opened(data)
    assert name == NAMES[format_]
    assert np.abs(back.astype(int) - pixels).mean() < 6
    assert data == made.write(pixels, None), "written the same again"
    fd = on_disk(data)
    size, shape = content.check(fd, made.component)
    arrays.check_values(fd, size, shape, made.component)
    assert (size, shape) == (len(data), (45, 67, 3))


@pytest.mark.parametrize(("format_", "quality"), [("png", 1), ("png", 95), ("webp", 100)])
def test_a_lossless_picture_is_exact(format_: str, quality: int) -> None:
    pixels = picture(67, 45)
    assert np.array_equal(opened(writer(format_, quality).write(pixels, None))[1], pixels)


@pytest.mark.parametrize("format_", ["jpg", "webp"])
def test_a_higher_quality_is_nearer_and_longer(format_: str) -> None:
    pixels = picture(64, 64)
    coarse, fine = (writer(format_, quality).write(pixels, None) for quality in (20, 97))
    assert len(coarse) < len(fine)
    errors = [np.abs(opened(data)[1].astype(int) - pixels).mean() for data in (coarse, fine)]
    assert errors[1] < errors[0] * 0.8


def test_a_part_of_a_picture_is_written_as_it_is() -> None:
    part = picture(64, 64)[8:24, 10:50]
    assert np.array_equal(opened(writer("png").write(part, None))[1], part)


@pytest.mark.parametrize("format_", NAMES)
def test_an_original_of_the_wanted_format_is_kept_byte_for_byte(format_: str) -> None:
    original = saved(picture(64, 32), NAMES[format_], quality=31)
    assert writer(format_).write(opened(original)[1], original) == original


@pytest.mark.parametrize("format_", NAMES)
def test_an_original_is_kept_without_what_follows_it(format_: str) -> None:
    original = saved(picture(64, 32), NAMES[format_], quality=31)
    kept = writer(format_).write(opened(original)[1], original + original[:99] + b"trailer")
    assert kept == original


@pytest.mark.parametrize("format_", NAMES)
def test_an_original_of_another_format_is_written_again(format_: str) -> None:
    pixels = picture(64, 32)
    for name in {*NAMES.values(), "GIF"} - {NAMES[format_]}:
        made = writer(format_).write(pixels, saved(pixels, name))
        assert made == writer(format_).write(pixels, None)


def test_an_original_that_is_not_rgb_or_damaged_is_written_again() -> None:
    pixels = np.repeat(picture(16, 16)[..., :1], 3, axis=2)
    made = writer("png").write(pixels, None)
    for original in (
        saved(pixels[..., 0], "PNG"),
        saved(np.dstack([pixels, np.full((16, 16), 255, np.uint8)]), "PNG"),
        saved(pixels, "PNG")[:-5],
        b"",
    ):
        assert writer("png").write(pixels, original) == made


@pytest.mark.parametrize(("format_", "most"), [("webp", "16,383"), ("jpg", "65,500")])
def test_a_side_that_the_format_cannot_hold_is_named(format_: str, most: str) -> None:
    wide = np.zeros((1, 70_000, 3), np.uint8)
    with pytest.raises(ValueError, match=f"a side has more than the {most} pixels of {format_}"):
        writer(format_).write(wide, None)


def test_descriptions_name_what_the_bytes_depend_on() -> None:
    assert writer("png").describe() == {"encoder": "picture", "format": "png"}
    assert writer("webp", 80).describe() == {"encoder": "picture", "format": "webp", "quality": 80}
    lossless = {"encoder": "picture", "format": "webp", "lossless": True}
    assert writer("webp", 100).describe() == lossless
    full = {"encoder": "picture", "format": "jpg", "quality": 90, "subsampling": 0}
    assert writer("jpg", 90).describe() == full
    assert writer("jpg", 89).describe() == {**full, "quality": 89, "subsampling": 2}
