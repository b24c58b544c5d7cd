"""Copies: identical files and near-duplicates, listed, and in several parts of a split."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardwright import derive, look
from shardwright.cli.main import main
from shardwright.recipes.split import Split
from tests.derive.pictures import save
from tests.look.pictures import RECIPE, painted

SPLIT = Split((("val", 0.3),))
COLOURS = """\
[component.colours]
encoder = "mine:Colours"
source = "image"
dtype = "float32"
shape = [24]
"""
NO_VECTOR = """\
[images]
fit = "bucket"
buckets = ["64x64"]
[component.vae]
encoder = "autoencoder"
model = "black-forest-labs/FLUX.1-dev"
dtype = "float16"
shape = [16, "height/8", "width/8"]
"""
ALIKE = "nearly alike by dinov3 (cosine 0.95 or more)"
NEXT = (
    "to leave them out, give it to shardwright pack --exclude-ids-file\n"
    "to keep each group in one part of a split, give it to shardwright pack --split-by\n"
)


def names_in(part: str, many: int) -> list[str]:
    """Find ids that a split puts into a part."""
    found = (f"img{n:03}" for n in count() if SPLIT.part_of(f"img{n:03}") == part)
    return [next(found) for _ in range(many)]


TRAIN, VAL = names_in("train", 8), names_in("val", 4)


def paint(images: Path) -> Path:
    """Paint pictures: two in training have a copy in validation, identical and painted over."""
    for number, name in enumerate([*TRAIN, *VAL]):
        save(images / f"{name}.png", painted(64, 64, seed=number))
        (images / f"{name}.txt").write_text(f"picture {number}")
    shutil.copy(images / f"{TRAIN[0]}.png", images / f"{VAL[0]}.png")
    save(images / f"{VAL[1]}.png", painted(64, 64, seed=1) // 8 * 8 + 4)
    return images


def derived(tmp_path: Path, recipe: str = RECIPE) -> Path:
    (tmp_path / "recipe.toml").write_text(recipe)
    images, store = paint(tmp_path / "images"), tmp_path / "store"
    derive(images, recipe=tmp_path / "recipe.toml", derived_dir=store, encoders="sketch")
    return store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return derived(tmp_path_factory.mktemp("copies"))


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def printed(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def pairs(listed: list[dict[str, Any]]) -> set[frozenset[str]]:
    return {frozenset((line["image_id"], line["kept"])) for line in listed}


def test_identical_files_and_near_duplicates_are_listed_and_the_vector_is_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "copies.jsonl"
    assert printed(capsys, "look", store, "--duplicates", listed) == (
        f"listed 2 samples of 2 groups in {listed}: 1 identical file, 1 {ALIKE}\n{NEXT}"
    )
    found = lines(listed)
    assert pairs(found) == {frozenset((TRAIN[0], VAL[0])), frozenset((TRAIN[1], VAL[1]))}
    same = [line for line in found if line.get("identical")]
    assert pairs(same) == {frozenset((TRAIN[0], VAL[0]))}
    assert same[0]["similarity"] == 1


def test_without_a_vector_of_an_image_identical_files_are_listed_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, listed = derived(tmp_path, NO_VECTOR), tmp_path / "copies.jsonl"
    why = "only identical files are found: no component of the recipe describes an image"
    assert printed(capsys, "look", store, "--duplicates", listed) == (
        f"listed 1 sample of 1 group in {listed}: 1 identical file\n{why} by one vector\n{NEXT}"
    )
    assert pairs(lines(listed)) == {frozenset((TRAIN[0], VAL[0]))}


def test_a_vector_of_the_user_is_compared_only_if_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, listed = derived(tmp_path, NO_VECTOR + COLOURS), tmp_path / "copies.jsonl"
    text = printed(capsys, "look", store, "--duplicates", listed)
    assert "by one vector; to use one of your own, add --component colours\n" in text
    assert pairs(lines(listed)) == {frozenset((TRAIN[0], VAL[0]))}
    summary = look(store, duplicates=listed, component="colours")
    assert (summary.vector, summary.identical) == ("colours", 1)
    assert frozenset((TRAIN[1], VAL[1])) in pairs(lines(listed))
    named = printed(capsys, "look", store, "--duplicates", listed, "--component", "colours")
    assert "nearly alike by colours (cosine 0.95 or more)\n" in named


def test_a_vector_of_the_user_goes_after_that_of_a_model_wherever_it_is_in_the_recipe(
    tmp_path: Path,
) -> None:
    recipe = RECIPE.replace("[images]", COLOURS + "[images]")
    summary = look(derived(tmp_path, recipe), duplicates=tmp_path / "copies.jsonl")
    assert (summary.vector, summary.other_vectors) == ("dinov3", ["colours"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vae", "--component vae: is not one vector for each image; choose from dinov3"),
        ("t5", "--component t5: describes the caption, and not the image; choose from dinov3"),
        ("colours", "--component colours: no such component; choose from dinov3"),
    ],
)
def test_what_is_not_a_vector_of_an_image_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    words = ("look", store, "--duplicates", tmp_path / "x.jsonl", "--component", name)
    assert message in printed(capsys, *words, code=2)
    assert not (tmp_path / "x.jsonl").exists()
