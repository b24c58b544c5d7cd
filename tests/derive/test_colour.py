"""Colour: profiles are applied, sRGB is left alone, and arrays made without stay apart."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from shardwright.deriving import images
from shardwright.encoders.base import Picture, pixels
from shardwright.errors import ProvenanceError
from shardwright.progress import Lines
from shardwright.store.provenance import complete
from tests.derive.pictures import gradient, make_images, save, sketch
from tests.derive.profiles import (
    ADOBE,
    ADOBE_GAMMA,
    PROPHOTO,
    PROPHOTO_GAMMA,
    SRGB,
    Matrix,
    cmyk_profile,
    encoded,
    expected,
    grey_profile,
    lab,
    linear,
    rgb_profile,
)
from tests.derive.test_derive import provenance

ADOBE_PROFILE = rgb_profile(ADOBE, ADOBE_GAMMA)
PROPHOTO_PROFILE = rgb_profile(PROPHOTO, PROPHOTO_GAMMA)
LOSSLESS: dict[str, dict[str, Any]] = {"png": {}, "tiff": {}, "webp": {"lossless": True}}


def read(path: Path) -> Picture:
    return pixels(images.read(str(path)).image)


def near(found: Picture, wanted: Matrix, levels: float = 1.5) -> None:
    assert np.abs(found - wanted).max() <= levels


@pytest.mark.parametrize("suffix", LOSSLESS)
@pytest.mark.parametrize(
    ("primaries", "gamma"), [(ADOBE, ADOBE_GAMMA), (PROPHOTO, PROPHOTO_GAMMA)], ids=["adobe", "pro"]
)
def test_a_picture_with_a_profile_becomes_srgb(
    tmp_path: Path, suffix: str, primaries: Matrix, gamma: float
) -> None:
    values, path = gradient(64, 48), tmp_path / f"a.{suffix}"
    save(path, values, icc_profile=rgb_profile(primaries, gamma), **LOSSLESS[suffix])
    wanted = expected(values, primaries, gamma)
    assert np.abs(wanted - values).mean() > 3, "the profile matters"
    near(read(path), wanted)


def srgb_table() -> list[int]:
    """Give the curve of sRGB as a table, as the profiles of old have it."""
    levels = np.linspace(0, 1, 1024)
    light = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return [round(value * 65535) for value in light]


@pytest.mark.parametrize(
    "profile",
    [
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        rgb_profile(SRGB, srgb_table()),
    ],
    ids=["of Pillow", "by a table"],
)
def test_a_picture_in_srgb_keeps_every_value(tmp_path: Path, profile: bytes) -> None:
    values = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    save(tmp_path / "a.png", values, icc_profile=profile)
    found = images.read(str(tmp_path / "a.png"))
    assert (pixels(found.image) == values).all()
    assert found.unapplied is None


def test_greys_with_the_curve_of_srgb_keep_every_value(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    save(tmp_path / "a.png", ramp, icc_profile=grey_profile(srgb_table()))
    found = images.read(str(tmp_path / "a.png"))
    assert (pixels(found.image) == ramp[..., None]).all()
    assert found.unapplied is None


def test_alpha_is_kept_and_laid_over_white_after_the_conversion(tmp_path: Path) -> None:
    values = np.dstack([gradient(32, 32), np.full((32, 32), 102, np.uint8)])  # two fifths
    save(tmp_path / "a.png", values, icc_profile=ADOBE_PROFILE)
    colours = expected(values[..., :3], ADOBE, ADOBE_GAMMA)
    near(read(tmp_path / "a.png"), colours * 0.4 + 255 * 0.6)


def test_a_palette_is_converted_with_its_transparent_colour(tmp_path: Path) -> None:
    image = Image.new("P", (16, 8), 0)
    image.putpalette([30, 200, 60, 0, 0, 255])
    image.paste(1, (8, 0, 16, 8))
    image.save(tmp_path / "a.png", transparency=1, icc_profile=ADOBE_PROFILE)
    found = read(tmp_path / "a.png")
    near(found[:, :8], expected(np.array([30, 200, 60]), ADOBE, ADOBE_GAMMA))
    assert (found[:, 8:] == 255).all()


@pytest.mark.parametrize("kind", ["L", "LA", "sixteen bits"])
def test_greys_are_converted_by_their_own_profile(tmp_path: Path, kind: str) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    picture = np.dstack([ramp, np.full_like(ramp, 255)]) if kind == "LA" else ramp
    stored = ramp.astype(np.uint16) * 257 if kind == "sixteen bits" else picture
    Image.fromarray(stored).save(tmp_path / "a.png", icc_profile=grey_profile(1.0))
    wanted = encoded(linear(ramp, 1.0))
    near(read(tmp_path / "a.png"), np.repeat(wanted[..., None], 3, axis=-1))


def test_greys_are_converted_by_a_profile_of_three_colours(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    save(tmp_path / "a.jpg", ramp, icc_profile=PROPHOTO_PROFILE, quality=100)
    with Image.open(tmp_path / "a.jpg") as image:
        stored = np.array(image)
    grey = np.repeat(stored[..., None], 3, axis=-1)
    near(read(tmp_path / "a.jpg"), expected(grey, PROPHOTO, PROPHOTO_GAMMA))


def test_inks_become_the_colours_that_their_profile_gives_them(tmp_path: Path) -> None:
    inks = {
        (0, 0, 0, 0): (255, 128, 128),
        (1, 0, 0, 0): (150, 108, 100),
        (0, 1, 0, 0): (120, 170, 130),
    }
    image = Image.new("CMYK", (48, 8), (0, 0, 0, 0))
    image.paste((255, 0, 0, 0), (16, 0, 32, 8))
    image.paste((0, 255, 0, 0), (32, 0, 48, 8))
    image.save(tmp_path / "a.tiff", icc_profile=cmyk_profile(inks))
    found = read(tmp_path / "a.tiff")
    assert (found[:, :16] == 255).all()
    near(found[:, 16:32], lab(150, 108, 100), 2)
    near(found[:, 32:], lab(120, 170, 130), 2)


@pytest.mark.parametrize(
    "profile",
    [b"nonsense", ADOBE_PROFILE[:200], b"", grey_profile(2.2), cmyk_profile({})],
    ids=["nonsense", "cut", "empty", "of greys", "of inks"],
)
def test_a_profile_that_cannot_be_used_is_no_failure(tmp_path: Path, profile: bytes) -> None:
    values = gradient(32, 32)
    save(tmp_path / "a.png", values, icc_profile=profile)
    found = images.read(str(tmp_path / "a.png"))
    assert (pixels(found.image) == values).all()
    assert found.unapplied == ("profile_not_usable" if profile else None)


def test_threads_may_read_pictures_of_one_profile_at_once(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / f"{number}.png", gradient(200, 200, number), icc_profile=ADOBE_PROFILE)
    paths = [tmp_path / f"{number % 4}.png" for number in range(32)]
    wanted = [read(path) for path in paths]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, paths))
    assert all((one == other).all() for one, other in zip(found, wanted, strict=True))


def add(folder: Path, name: str, profile: bytes) -> None:
    save(folder / f"{name}.png", gradient(80, 80, seed=7), icc_profile=profile)
    (folder / f"{name}.txt").write_text(name)


def test_the_rule_of_colour_is_in_the_provenance_of_what_is_made_from_pictures(
    tmp_path: Path,
) -> None:
    folder, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    add(folder, "broken", b"nonsense")
    summary = sketch(folder, derived, progress=Lines())
    settings = {name: entry["settings"] for name, entry in provenance(derived).items()}
    assert settings["vae"]["colour"] == settings["dinov3"]["colour"] == "srgb"
    assert "colour" not in settings["t5"]
    assert complete(settings["vae"])["colour"] == "srgb"
    assert {reason: found.count for reason, found in summary.unapplied_profiles.items()} == {
        "profile_not_usable": 1
    }


def test_a_store_whose_profiles_were_ignored_is_refused_until_it_is_recomputed(
    tmp_path: Path,
) -> None:
    folder, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(folder, derived)
    path = derived / ".shardwright/provenance.json"
    found = json.loads(path.read_text())
    for entry in found["components"].values():
        entry["settings"].pop("colour", None)
    path.write_text(json.dumps(found))
    with pytest.raises(ProvenanceError, match="colour was as_stored, now srgb"):
        sketch(folder, derived)
    summary = sketch(folder, derived, recompute=["dinov3", "vae"])
    assert summary.swapped == ["dinov3", "vae"]
    assert provenance(derived)["vae"]["settings"]["colour"] == "srgb"
