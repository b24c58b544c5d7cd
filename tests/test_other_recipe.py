"""A store begun with another recipe than the specification's: every command follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import shardwright
from shardwright import derive, pack, status, verify
from shardwright.buckets import Bucket
from shardwright.encoders.base import Encoder, Tokens
from shardwright.errors import ProvenanceError, ShardwrightError
from shardwright.recipes import SPECIFICATION, Component, Mask, Recipe, Side
from shardwright.store.store import Store
from tests.derive.fakes import Fake
from tests.derive.pictures import make_images, store_records

LONG = "x" * 70  # an id that a key of this recipe cannot hold

RECIPE = Recipe(
    components=(
        *(Component(f"vector{n}", f"vector{n}", f"v{n}.npy", "<f4", (4 + n,)) for n in range(6)),
        Component("seg", "seg", "segmentation-of-the-picture.npy", "|u1", (Side("height", 8), 3)),
        Component("one", "one", "1.npy", "<f2", (5, 8), (), "caption", Mask("one_m", "1m.npy", 5)),
        Component("two", "two", "2.npy", "<f4", (9, 2), (), "caption", Mask("two_m", "2m.npy", 9)),
    ),
    buckets=(Bucket(32, 16), Bucket(16, 32)),
)


class Vector(Fake):
    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        values = np.arange(int(np.prod(self.component.shape_for(0, 0))), dtype=np.float32)
        return batch[:, :1, 0] + values


class Segments(Fake):
    """Gives integers, by the height of the picture."""

    def prepare(self, picture: NDArray[Any]) -> NDArray[Any]:
        return np.arange(picture.shape[0] // 8 * 3, dtype=np.uint8).reshape(-1, 3)

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        return batch


class Words:
    device = "cpu"

    def __init__(self, component: Component) -> None:
        self.component = component

    def prepare(self, caption: str) -> Tokens:
        length = self.component.tokens
        ids = np.array([len(word) for word in caption.split()][:length], np.int64)
        padded = np.zeros(length, np.int64)
        padded[: len(ids)] = ids
        return Tokens(padded, (padded > 0).astype(np.uint8))

    def encode(self, ids: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        width = self.component.shape_for(0, 0)[1]
        return np.repeat(ids[:, :, None], width, axis=2) + np.arange(width, dtype=np.float32)

    def describe(self) -> dict[str, Any]:
        return {"encoder": "words"}


def encoders() -> dict[str, Encoder]:
    made: dict[str, Any] = {}
    for component in RECIPE.components:
        kind: Any = Words if component.source == "caption" else Vector
        made[component.name] = (Segments if component.name == "seg" else kind)(component)
    return made


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = make_images(tmp_path / "images", 4, ((32, 16), (16, 32)))
    for suffix in (".png", ".txt"):
        (folder / f"img003{suffix}").rename(folder / f"{LONG}{suffix}")
    return folder


@pytest.fixture
def derived(images: Path, tmp_path: Path) -> Path:
    """A store of nine components, integers and two masks among them."""
    store = Store(tmp_path / "derived", tmp_path / "derived/approved_image_dataset.jsonl", RECIPE)
    store.state.mkdir(parents=True)
    (store.state / "recipe.json").write_bytes(msgspec.json.encode(RECIPE))
    summary = derive(images, derived_dir=store.folder, encoders=encoders())
    assert (summary.derived, summary.failed) == (4, 0)
    return store.folder


def test_a_recipe_is_the_same_value_after_it_was_written_and_read() -> None:
    assert msgspec.json.decode(msgspec.json.encode(RECIPE), type=Recipe) == RECIPE
    assert RECIPE != SPECIFICATION


def test_the_arrays_and_records_are_those_of_the_recipe(derived: Path) -> None:
    record = store_records(derived)[0]
    assert tuple(record) == (
        *("image_id", "image_path", "caption", "one_m", "two_m"),
        *("height", "width", "aspect_bucket", "format_version"),
    )
    assert record["one_m"] == [1, 1, 1, 1, 1]
    assert record["two_m"] == [1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert record["aspect_bucket"] == "32x16"
    assert np.load(derived / "seg/img000.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.load(derived / "two/img000.npy").dtype == np.float32
    assert not (derived / "vae_latents").exists()


def test_status_pack_verify_and_open_follow_the_recipe(derived: Path, tmp_path: Path) -> None:
    found = status(derived_dir=derived)
    assert (found.ready_records, list(found.components)) == (
        4,
        [component.name for component in RECIPE.components],
    )
    assert verify(derived).findings == []
    shards = tmp_path / "shards"
    assert pack(derived_dir=derived, output_dir=shards).written_samples == 4
    report = verify(shards, read_data=True, against=derived)
    assert (report.findings, report.checked) == ([], {"shards": 2, "samples": 4})
    dataset = shardwright.open(shards)
    assert set(dataset.field_names) == set(RECIPE.suffixes)
    sample = dataset.by_id(LONG)
    assert np.array_equal(sample["2.npy"], np.load(derived / f"two/{LONG}.npy"))
    assert sample["2m.npy"].tolist() == store_records(derived)[3]["two_m"]
    assert len(sample["__key__"]) == RECIPE.longest_key < len(LONG)


def test_shards_of_another_recipe_are_not_appended_to(derived: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    pack(derived_dir=derived, output_dir=shards, limit=2)
    (derived / ".shardwright/recipe.json").write_bytes(
        msgspec.json.encode(Recipe(RECIPE.components[::-1], RECIPE.buckets))
    )
    with pytest.raises(ProvenanceError, match="its shards were made with another recipe"):
        pack(derived_dir=derived, output_dir=shards, append=True)
    assert verify(shards, read_data=True).findings == [], "they stay readable as they are"


def test_a_recipe_that_cannot_be_read_stops_every_command(derived: Path) -> None:
    (derived / ".shardwright/recipe.json").write_text("{}")
    for command in (status, pack):
        with pytest.raises(ShardwrightError, match=r"recipe\.json: is not a recipe"):
            command(derived_dir=derived)
