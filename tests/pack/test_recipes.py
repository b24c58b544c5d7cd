"""Packing follows the recipe: lengths that vary, records without a caption, and appending."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardwright
from shardwright import pack, verify
from shardwright.errors import ProvenanceError
from shardwright.recipes import Recipe
from tests.shards.varied import MASK, VARIED, arrays, kept, varied_store
from tests.store.small import npy


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return varied_store(tmp_path / "derived", 6)


def packed(store: Path, **options: Any) -> Any:  # noqa: ANN401
    return pack(derived_dir=store, output_dir=store.parent / "shards", workers=1, **options)


def record_recipe(store: Path, recipe: Recipe) -> None:
    (store / ".shardwright/recipe.json").write_bytes(msgspec.json.encode(recipe))


def test_arrays_that_vary_in_length_belong_to_their_bucket(store: Path) -> None:
    summary = packed(store)
    assert summary.written_samples == 6
    assert [bucket.off_shape for bucket in summary.buckets.values()] == [0, 0]
    report = verify(store.parent / "shards", read_data=True, against=store, workers=1)
    assert report.findings == []


def test_a_trimmed_array_of_another_caption_is_skipped_with_its_reason(store: Path) -> None:
    assert kept(0) != kept(1)
    shutil.copyfile(store / "t5/img1.npy", store / "t5/img0.npy")
    summary = packed(store)
    assert summary.written_samples == 5
    skipped = {name: count.example for name, count in summary.skipped_by_reason.items()}
    assert skipped == {"t5_other_mask": "img0"}


def test_a_trimmed_array_that_is_longer_than_its_tokens_is_skipped(store: Path) -> None:
    (store / "t5/img0.npy").write_bytes(npy(np.zeros((13, 6), "<f2")))
    (store / "pose/img2.npy").write_bytes(npy(np.zeros((0, 3), "<f4")))
    assert list(packed(store).skipped_by_reason) == ["t5_wrong_shape", "pose_wrong_shape"]


def test_verify_finds_a_trimmed_array_that_is_not_of_its_mask(store: Path) -> None:
    """Such shards are not of our making: the mask is changed with everything that seals it."""
    recipe = replace(
        VARIED,
        components=tuple(replace(c, trim=False) if c.trim else c for c in VARIED.components),
    )
    t5 = recipe.by_name["t5"]
    free = replace(recipe, components=(replace(t5, shape=("any", 6)), *recipe.components[2:]))
    record_recipe(store, free)
    shutil.copyfile(store / "t5/img1.npy", store / "t5/img0.npy")
    shutil.rmtree(store / ".shardwright/empty")
    packed(store)
    shards = store.parent / "shards"
    assert verify(shards, read_data=True, workers=1).findings == []
    from shardwright.shards.format import manifest

    found = manifest.load_manifest(shards)
    assert found is not None
    trimmed = replace(free, components=(VARIED.by_name["t5"], *free.components[1:]))
    manifest.save_manifest(shards, msgspec.structs.replace(found, recipe=trimmed))
    (finding,) = verify(shards, read_data=True, workers=1).findings
    assert (finding.kind, finding.sample, finding.damage) == ("t5_other_mask", "img0", True)
    assert finding.what == f"has {kept(1)} rows, but t5_mask.npy keeps 1"
    with pytest.raises(shardwright.DamageError, match=r"img0\.t5\.npy has other rows than t5_mask"):
        list(shardwright.open(shards).batches(3))


def test_appending_samples_of_another_recipe_names_what_differs(store: Path) -> None:
    packed(store, limit=3)
    t5 = VARIED.by_name["t5"]
    mask = replace(MASK, length=16)
    longer = replace(t5, shape=(16, 6), settings={"tokens": 16}, mask=mask)
    parts = tuple(longer if c is t5 else c for c in VARIED.components if c.name != "pose")
    record_recipe(store, replace(VARIED, components=parts, fit="original"))
    shutil.rmtree(store / ".shardwright/empty")
    with pytest.raises(ProvenanceError) as raised:
        packed(store, append=True)
    assert str(raised.value) == (
        f"{store.parent}/shards: its shards were made with another recipe (t5: tokens was 12, now "
        "16; pose: removed; fit was bucket, now original), so nothing was written; to pack "
        f"all of it again, run shardwright pack --derived-dir {store} --output-dir "
        f"{store.parent}/shards --overwrite --limit 3; or run that with another --output-dir"
    )


def test_what_only_selects_images_does_not_keep_samples_apart(store: Path) -> None:
    packed(store, limit=3)
    selection = replace(VARIED.selection, min_side=10)
    record_recipe(store, replace(VARIED, selection=selection))
    assert packed(store, append=True).written_samples == 3


def test_a_recipe_of_images_alone_packs_records_with_an_empty_caption(store: Path) -> None:
    parts = tuple(c for c in VARIED.components if c.source != "caption")
    record_recipe(store, replace(VARIED, components=parts))
    jsonl = store / "approved_image_dataset.jsonl"
    records = [json.loads(line) | {"caption": ""} for line in jsonl.read_text().splitlines()]
    jsonl.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert packed(store).written_samples == 6
    shards = store.parent / "shards"
    assert verify(shards, read_data=True, against=store, loaders=True, workers=1).findings == []
    dataset = shardwright.open(shards)
    assert dataset.field_names == ("json", "vae.npy", "pose.npy", "picture.webp")
    assert next(iter(dataset.batches(3)))["caption"] == ["", "", ""]
    np.testing.assert_array_equal(dataset[0]["pose.npy"], arrays(0)["pose.npy"])
