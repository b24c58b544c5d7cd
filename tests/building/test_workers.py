"""A worker that is killed costs the images that it died at, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardwright
from shardwright import ShardwrightError, UsageError, verify
from shardwright.encoders.base import Options
from shardwright.encoders.sketch import load
from shardwright.recipes import find
from tests.building.builds import Interrupting, build, ledger, records, write_recipe
from tests.building.deadly import DEADLY, RECIPE
from tests.derive.pictures import make_images, save

pytestmark = pytest.mark.timeout(600)
WARNED = (
    "warning: the worker on cpu was killed (signal 9): most often memory runs out; use a smaller "
    "--batch-size or fewer devices; "
)


def plain(folder: Path, count: int, deadly: int) -> Path:
    """Make pictures of one colour each, whose red is their number, from 100; one is deadly."""
    for number in range(count):
        red = DEADLY if number == deadly else 100 + number
        size = ((96, 64), (64, 96))[number % 2]
        save(folder / f"img{number:03}.png", np.full((*size[::-1], 3), red, np.uint8))
        (folder / f"img{number:03}.txt").write_text("plain")
    return folder


def test_a_picture_that_kills_its_worker_is_left_out_with_few_others(tmp_path: Path) -> None:
    images = plain(tmp_path / "images", 60, deadly=31)
    recipe = write_recipe(tmp_path, RECIPE, "deadly.toml")
    progress = Interrupting()
    options = {"recipe": recipe, "encoders": "pretrained", "device": "cpu:2", "shard_size": 15}
    summary = build(images, tmp_path / "out", progress=progress, **options)
    left = {line["image_id"]: line for line in ledger(tmp_path / "out")}
    assert "img031" in left
    assert len(left) <= 8
    assert {line["reason"] for line in left.values()} == {"worker_died"}
    assert left["img031"]["detail"].startswith("the worker on cpu was killed (signal 9)")
    assert summary.written_samples == 60 - len(left)
    *first, last = (text for text in progress.said if text.startswith("warning"))
    assert set(first) == {WARNED + "its images are tried again, one at a time"}
    assert last == WARNED + "the images it was working on fail"
    dataset = shardwright.open(tmp_path / "out")
    for image_id in records(tmp_path / "out"):
        assert dataset.by_id(image_id)["mine.npy"].tolist() == [100 + int(image_id[3:])] * 3
    assert verify(tmp_path / "out", read_data=True, workers=1).findings == []
    again = build(images, tmp_path / "out", **options)
    assert (again.written_samples, again.already_there) == (0, summary.written_samples)


def test_own_encoder_objects_run_on_one_device_only(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    components = find(write_recipe(tmp_path)).recipe.components
    own = {c.name: load(c, Options(), {}) for c in components}
    with pytest.raises(UsageError) as caught:
        build(images, tmp_path / "out", encoders=own, device="cpu:2")
    assert str(caught.value) == (
        "--device: encoders that are objects run in this process, on one device; name their class "
        "in the recipe (package.module:Class), or give one device"
    )
    assert build(images, tmp_path / "out", encoders=own).written_samples == 3


def test_an_encoder_that_cannot_be_loaded_stops_the_build_before_it_writes(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    recipe = write_recipe(tmp_path, RECIPE.replace("deadly:", "nowhere:"), "none.toml")
    with pytest.raises(ShardwrightError, match=r"tests\.building\.nowhere"):
        build(images, tmp_path / "out", recipe=recipe, encoders="pretrained")
    assert not (tmp_path / "out").exists()


def test_a_component_from_elsewhere_is_refused_with_the_fix(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    text = RECIPE.replace('encoder = "tests.building.deadly:Deadly"\n', 'folder = "mine"\n')
    recipe = write_recipe(tmp_path, text, "elsewhere.toml")
    with pytest.raises(UsageError) as caught:
        build(images, tmp_path / "out", recipe=recipe)
    assert "component.mine" in str(caught.value)
    assert str(caught.value).endswith(
        "has no encoder, so build cannot make it; give it an encoder, or use shardwright derive "
        "and pack"
    )
    assert not (tmp_path / "out").exists()
