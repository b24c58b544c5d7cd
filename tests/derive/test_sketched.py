"""Any recipe without models: everything is sketched, packed and verified to the last byte."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright.encoders.contract import picture
from shardwright.encoders.sketch import decode
from shardwright.recipes import find
from tests.derive.pictures import save

RECIPE = """
[images]
fit = "bucket"
buckets = ["64x64", "96x64"]

[component.latent]
encoder = "autoencoder"
model = "nobody/nothing"
dtype = "bfloat16"
shape = [32, "height/16", "width/16"]

[component.patches]
encoder = "siglip2"
model = "nobody/nothing"
output = "patches"
dtype = "float16"
shape = [196, 384]

[component.segments]
encoder = "nobody:Nothing"
dtype = "uint8"
shape = ["height/4", "width/4"]

[component.people]
encoder = "nobody:Nothing"
dtype = "float32"
shape = ["any", 17, 3]

[component.text]
encoder = "t5"
model = "nobody/nothing"
tokens = 20
trim = true
dtype = "bfloat16"
shape = ["tokens", 96]

[component.pooled]
encoder = "clip"
model = "nobody/nothing"
output = "pooled"
dtype = "float32"
shape = [768]

[component.preview]
encoder = "picture"
format = "webp"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sketched")
    (folder / "recipe.toml").write_text(RECIPE)
    for number in range(6):
        size = (64, 64) if number % 2 else (96, 64)
        kind = "webp" if number < 2 else "png"
        save(folder / "images" / f"img{number}.{kind}", picture(*size, number))
        (folder / "images" / f"img{number}.txt").write_text("a kite " * (number + 1))
    images, store, shards = folder / "images", folder / "store", folder / "shards"
    recipe = folder / "recipe.toml"
    made = shardwright.derive(images, recipe=recipe, derived_dir=store, encoders="sketch")
    assert (made.derived, made.failed) == (6, 0)
    assert shardwright.pack(derived_dir=store, output_dir=shards).written_samples == 6
    return folder


def test_a_sketched_store_and_its_shards_verify_to_the_last_byte(folder: Path) -> None:
    store, shards = folder / "store", folder / "shards"
    assert shardwright.verify(store, read_data=True).findings == []
    assert shardwright.verify(shards, read_data=True, against=store).findings == []


def test_sketched_samples_have_the_shapes_of_the_recipe(folder: Path) -> None:
    dataset = shardwright.open(folder / "shards")
    latent = find(str(folder / "recipe.toml")).recipe.by_name["latent"]
    people = set()
    for number in range(6):
        sample = dataset.by_id(f"img{number}")
        width, height = (64, 64) if number % 2 else (96, 64)
        source = picture(width, height, number)
        coarse = decode(sample["latent.npy"], latent)
        assert np.abs(coarse.astype(int) - source).mean() < 12
        assert sample["patches.npy"].shape == (196, 384)
        assert sample["segments.npy"].shape == (height // 4, width // 4)
        assert sample["segments.npy"].dtype == np.uint8
        assert sample["people.npy"].shape[1:] == (17, 3)
        people.add(len(sample["people.npy"]))
        assert sample["text.npy"].shape == (2 * number + 3, 96)
        assert sample["text_mask.npy"].sum() == 2 * number + 3
        assert sample["pooled.npy"].shape == (768,)
    assert len(people) > 1, "a free axis varies"


def test_a_picture_that_fits_is_kept_and_others_are_written(folder: Path) -> None:
    for number in range(6):
        stored = (folder / "store" / "preview" / f"img{number}.webp").read_bytes()
        if number < 2:
            assert stored == (folder / "images" / f"img{number}.webp").read_bytes()
        with Image.open(io.BytesIO(stored)) as image:
            assert image.format == "WEBP"
            assert image.size == ((64, 64) if number % 2 else (96, 64))


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda data: data[:-4], "preview_truncated"),
        (lambda data: data + b"\0\0", "preview_trailing_bytes"),
        (lambda data: b"", "preview_empty"),
        (lambda data: b"\xff\xd8" + data, "preview_not_a_picture"),
        (lambda data: data[:20] + b"\xfe\xff\xff" + data[23:], "preview_unreadable_picture"),
    ],
)
def test_damage_to_a_stored_picture_is_named(
    folder: Path, damage: Callable[[bytes], bytes], kind: str
) -> None:
    path = folder / "store" / "preview" / "img3.webp"
    before = path.read_bytes()
    try:
        path.write_bytes(damage(before))
        report = shardwright.verify(folder / "store", read_data=True)
        assert report.counts == {kind: 1}
        assert report.findings[0].file == str(path)
    finally:
        path.write_bytes(before)
