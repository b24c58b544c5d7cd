"""Copies: identical files and near-duplicates, listed, and in several parts of a split."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import Progress, ShardExistsError, build, derive, look, pack, verify
from shardwright.cli.main import main
from shardwright.comparing import copies, similar
from shardwright.recipes.split import Split
from tests.derive.pictures import save
from tests.look.pictures import RECIPE, painted
from tests.tars import all_ids

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


def packed(store: Path, output: Path, **options: Any) -> Path:  # noqa: ANN401
    pack(derived_dir=store, output_dir=output, split="val=30%", workers=1, **options)
    return output


def note(output: Path, flags: str = "") -> str:
    return (
        "note: copies of one image are in several parts of the split:\n"
        f"  identical files: 1 group (for example {TRAIN[0]} in train and {VAL[0]} in val)\n"
        "  near-duplicates by dinov3 (cosine 0.95 or more): 1 group "
        f"(for example {TRAIN[1]} in train and {VAL[1]} in val)\n"
        f"to keep them in one part, run shardwright look {output} --duplicates copies.jsonl, "
        f"then pack all of it again with --overwrite --split val=30% --split-by copies.jsonl{flags}"
    )


def test_pack_reports_copies_in_training_and_validation_with_all_flags_of_the_fix(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "shards"
    words = ("pack", "--derived-dir", store, "--output-dir", output, "--split", "val=30%")
    text = printed(capsys, *words, "--shuffle", "--seed", "3", "--shard-size", "4")
    assert note(output, " --shuffle --seed 3 --shard-size 4") in text
    again = ("pack", "--derived-dir", store, "--output-dir", output, "--sync")
    assert "copies of one image are in several parts" in printed(capsys, *again)


def test_verify_warns_of_copies_in_two_parts_and_look_counts_them(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = packed(store, tmp_path / "shards")
    report = verify(output)
    assert not report.damaged
    assert {(one.kind, one.file, one.sample, one.what) for one in report.findings} >= {
        ("identical_in_two_parts", "val", VAL[0], f"the same file as {TRAIN[0]} in train")
    }
    assert report.counts == {"identical_in_two_parts": 1, "alike_in_two_parts": 1}
    text = printed(capsys, "verify", output)
    assert "identical_in_two_parts: 1 (warning)" in text
    assert "2 warnings" in text
    listed, page = tmp_path / "copies.jsonl", tmp_path / "page.html"
    text = printed(capsys, "look", output, "--duplicates", listed)
    assert "1 identical file, 1 nearly alike by dinov3" in text
    assert "\n2 groups are in several parts of the split\n" in text
    text = printed(capsys, "look", output, "--report", page)
    places = f"for example {TRAIN[0]} in train and {VAL[0]} in val"
    assert "  2 samples are identical files\n" in text
    assert f"  1 group of identical files is in several parts, {places}\n" in text
    assert "  1 group of near-duplicates is in several parts, for example" in text


def test_of_a_group_each_file_that_is_in_two_parts_is_a_pair() -> None:
    vectors = np.array([[1, 0], [1, 0], [0.99, 0.1], [0.99, 0.1], [0, 1], [0.01, 1]])
    found = copies.find(np.array([7, 7, 5, 5, 0, 0], np.uint64), vectors, Progress())
    parts = np.array([0, 1, 0, 1, 0, 1])
    assert [len(group) for group in found.groups(0.95)] == [4, 2]
    pairs = [(pair.one, pair.other, pair.similarity is None) for pair in found.across(parts, 0.95)]
    assert sorted(pairs[:2]) == [(0, 1, True), (2, 3, True)]
    assert pairs[2:] == [(4, 5, False)]


def test_without_copies_in_two_parts_nothing_is_reported(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "copies.jsonl"
    look(store, duplicates=listed)
    output = tmp_path / "shards"
    words = ("pack", "--derived-dir", store, "--output-dir", output, "--split", "val=30%")
    assert "copies" not in printed(capsys, *words, "--exclude-ids-file", listed).replace(
        str(tmp_path), ""
    )
    assert verify(output).findings == []


def test_identical_files_in_two_parts_are_found_without_any_vector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = packed(derived(tmp_path, NO_VECTOR), tmp_path / "shards")
    assert verify(output).counts == {"identical_in_two_parts": 1}
    output = tmp_path / "built"
    words = ("build", tmp_path / "images", "--recipe", tmp_path / "recipe.toml")
    text = printed(
        capsys, *words, "--output-dir", output, "--encoders", "sketch", "--split", "val=30%"
    )
    assert (
        f"  identical files: 1 group (for example {TRAIN[0]} in train and {VAL[0]} in val)\n"
        in text
    )
    assert "then build all of it again with --overwrite --split val=30% --split-by" in text
    assert verify(output).counts == {"identical_in_two_parts": 1}


def test_copies_of_shards_are_known_by_their_hash_after_a_component_was_made_again(
    tmp_path: Path,
) -> None:
    recipe = NO_VECTOR + '[component.picture]\nencoder = "picture"\nformat = "png"\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    images, first, again = paint(tmp_path / "images"), tmp_path / "first", tmp_path / "again"
    settings: dict[str, Any] = {"recipe": tmp_path / "recipe.toml", "encoders": "sketch"}
    build(images, output_dir=first, split="val=30%", **settings)
    build(from_=first, output_dir=again, components=["vae"], **settings)
    assert verify(again).counts == {"identical_in_two_parts": 1}


def test_more_samples_than_are_compared_with_all_others_are_not_searched_and_it_says_so(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(similar, "EXACT_MOST", 5)
    output = tmp_path / "shards"
    words = ("pack", "--derived-dir", store, "--output-dir", output, "--split", "val=30%")
    text = printed(capsys, *words)
    assert "  identical files: 1 group (for" in text
    why = "there are more than 5 samples"
    assert f"note: near-duplicates in several parts were not searched: {why}" in text
    assert f"near-duplicates in two parts not searched: {why}" in printed(capsys, "verify", output)


def where(output: Path) -> dict[str, str]:
    """Give the part of each sample."""
    return {name: part for part in ("train", "val") for name in all_ids(output / part)}


def test_the_groups_that_look_writes_keep_copies_in_one_part_as_the_advice_says(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    output = packed(store, Path("shards"), shard_size=4)
    before = where(output)
    main(["look", "shards", "--duplicates", "copies.jsonl"])
    words = ["--derived-dir", str(store), "--output-dir", "shards", "--shard-size", "4"]
    by = ["--split", "val=30%", "--split-by", "copies.jsonl"]
    text = printed(capsys, "pack", *words, "--overwrite", *by)
    assert "copies of one image" not in text
    after = where(output)
    assert after[TRAIN[0]] == after[VAL[0]] == before[TRAIN[0]], "where the first of the group is"
    assert after[TRAIN[1]] == after[VAL[1]] == before[TRAIN[1]]
    moved = {VAL[0], VAL[1]}
    assert {name for name in before if before[name] != after[name]} == moved
    assert verify(output, against=store).findings == []


def test_later_runs_go_on_with_the_groups_and_follow_the_file_from_anywhere(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "lists").mkdir()
    groups = tmp_path / "lists/groups.jsonl"
    groups.write_text(json.dumps({"image_id": VAL[0], "kept": TRAIN[0]}) + "\n")
    output = packed(store, tmp_path / "shards", split_by=str(groups))
    assert where(output)[VAL[0]] == "train"
    (finding,) = verify(output, against=store).findings
    assert finding.kind == "alike_in_two_parts"
    fix = f"run shardwright look {output} --duplicates {groups}, then pack with --sync"
    assert finding.fix == f"to keep them in one part, {fix}"
    look(store, duplicates=groups)
    monkeypatch.chdir(tmp_path / "lists")
    words = ("pack", "--derived-dir", store, "--output-dir", output)
    printed(capsys, *words, "--sync")
    found = where(output)
    assert (found[VAL[0]], found[VAL[1]]) == (found[TRAIN[0]], found[TRAIN[1]])
    assert verify(output, against=store).findings == []
    other = ("--split", "val=30%", "--split-by", "caption")
    error = printed(capsys, *words, "--sync", *other, code=2)
    assert f"was split with --split val=30% --split-by {groups}, so nothing was written" in error
    (tmp_path / "lists").rename(tmp_path / "moved")
    error = printed(capsys, *words, "--sync", code=2)
    assert f"{groups}: --split-by: no such file; restore it, or write it again with" in error


def test_a_chain_of_near_duplicates_is_one_group_although_its_ends_are_unlike(
    tmp_path: Path,
) -> None:
    one, two = painted(64, 64, seed=1).astype(float), painted(64, 64, seed=2).astype(float)
    images = tmp_path / "images"
    for number in range(12):
        share = number / 11
        mixed = (one * (1 - share) + two * share).round().astype("uint8")
        save(images / f"mix{number:02}.png", mixed)
        (images / f"mix{number:02}.txt").write_text("a mix")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    store, listed, output = tmp_path / "store", tmp_path / "copies.jsonl", tmp_path / "shards"
    derive(images, recipe=tmp_path / "recipe.toml", derived_dir=store, encoders="sketch")
    summary = look(store, duplicates=listed)
    assert summary.groups == 1
    assert summary.listed < 11, "several are kept"
    packed(store, output, split_by=str(listed))
    assert len(set(where(output).values())) == 1


def test_a_file_of_groups_that_is_something_else_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = tmp_path / "groups.jsonl"
    groups.write_text('{"image_id": "a", "kept": "b"}\n{"image_id": "c"}\n')
    words = ("pack", "--derived-dir", store, "--output-dir", tmp_path / "shards")
    error = printed(capsys, *words, "--split", "val=30%", "--split-by", groups, code=2)
    assert f"{groups}: --split-by: line 2 is not an object with an image_id and a kept one" in error
    assert not (tmp_path / "shards").exists()


def test_build_keeps_groups_together_and_notices_that_their_file_has_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    images, output = paint(tmp_path / "images"), tmp_path / "shards"
    groups = tmp_path / "groups.jsonl"
    groups.write_text(json.dumps({"image_id": VAL[0], "kept": TRAIN[0]}) + "\n")
    settings: dict[str, Any] = {"recipe": tmp_path / "recipe.toml", "encoders": "sketch"}
    settings |= {"output_dir": output, "split": "val=30%", "split_by": str(groups)}
    build(images, **settings)
    assert where(output)[VAL[0]] == "train"
    assert where(output)[VAL[1]] == "val"
    assert build(images, **settings).written_samples == 0
    look(output, duplicates=groups)
    with pytest.raises(ShardExistsError):
        build(images, **settings)
    build(images, overwrite=True, **settings)
    assert where(output)[VAL[1]] == "train"
    assert verify(output).findings == []


def test_shards_without_hashes_are_synced_and_appended_to_and_found_by_their_vectors(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an earlier version wrote them: its records have no hash of a file."""
    output, facts = tmp_path / "shards", store / ".shardwright/facts.jsonl"
    known = facts.read_bytes()
    facts.unlink()
    packed(store, output, exclude_ids_file=few(tmp_path, VAL[2]))
    assert verify(output).counts == {"alike_in_two_parts": 2}
    text = printed(capsys, "look", output, "--duplicates", tmp_path / "copies.jsonl")
    assert "no hash of the image file is on record for 11 samples: not compared as files" in text
    facts.write_bytes(known)
    pack(derived_dir=store, output_dir=output, sync=True, exclude_ids_file="none", workers=1)
    assert sorted(where(output)) == sorted([*TRAIN, *VAL])
    assert verify(output, against=store).counts == {"alike_in_two_parts": 2}
    pack(derived_dir=store, output_dir=output, append=True, workers=1)
    packed(store, output, overwrite=True)
    found = {"identical_in_two_parts": 1, "alike_in_two_parts": 1}
    assert verify(output, against=store).counts == found


def few(folder: Path, *names: str) -> Path:
    """Write a list of ids."""
    (folder / "ids.txt").write_text("\n".join(names))
    return folder / "ids.txt"


def test_the_name_of_a_column_may_be_anything_that_a_manifest_holds() -> None:
    assert Split(SPLIT.parts, "groups.jsonl").has_groups
    assert not Split(SPLIT.parts, "scene").has_groups
    assert not Split(SPLIT.parts, "no\0file.jsonl").has_groups
