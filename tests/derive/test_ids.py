"""Where image ids come from: the file name, the path, or the captions file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright import build, pack, verify
from shardwright.deriving.sources import spelt
from shardwright.errors import ProvenanceError, UsageError
from shardwright.progress import Lines
from shardwright.storage.files import using
from shardwright.store.facts import first_ids
from shardwright.store.records import is_image_id
from shardwright.store.store import Store
from tests.derive.pictures import gradient, make_images, save, sketch, store_records
from tests.derive.updates import fresh, notes, replace_one, stamps, without_first_ids, written
from tests.faults import Killed, KillingDisk, WatchedDisk, contents

PATHS = {"a/1.png": "a%2F1.png", "b/1.png": "b%2F1.png", "100%.png": "100%25.png"}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two images of one name, and one with a percent sign."""
    for number, path in enumerate(PATHS):
        save(tmp_path / "images" / path, gradient(16, 16, seed=number))
        (tmp_path / "images" / path).with_suffix(".txt").write_text(f"number {number}")
    return tmp_path / "images"


def ids(derived: Path) -> set[str]:
    return {record["image_id"] for record in store_records(derived)}


def test_two_images_of_one_name_name_the_way_out(images: Path, tmp_path: Path) -> None:
    derived = tmp_path / "derived"
    assert sketch(images, derived).failed == 2
    log = (derived / ".shardwright/failures.jsonl").read_text().splitlines()
    assert json.loads(log[0])["detail"] == (
        f"{images}/b/1.png has the same image_id; use --ids path to tell them apart"
    )
    sketch(images, derived)
    log = (derived / ".shardwright/failures.jsonl").read_text().splitlines()
    assert json.loads(log[0])["detail"].endswith("use --ids path --update to tell them apart")
    file = tmp_path / "captions.csv"
    file.write_text("file_name,image_id\na/1.png,same\nb/1.png,same\n")
    sketch(images, tmp_path / "other", ids="captions", captions=file)
    log = (tmp_path / "other/.shardwright/failures.jsonl").read_text().splitlines()
    assert "same image_id; give each row its own image_id" in log[1]


def test_a_path_is_an_id_that_later_runs_verify_and_pack_go_on_with(
    images: Path, tmp_path: Path
) -> None:
    derived = tmp_path / "derived"
    summary = sketch(images, derived, ids="path")
    assert (summary.derived, ids(derived)) == (3, set(PATHS.values()))
    assert (derived / "vae_latents/a%2F1.png.npy").exists()
    save(images / "c/1.png", gradient(16, 16, seed=5))
    (images / "c/1.txt").write_text("one more")
    before = stamps(derived)
    replace_one(images / "a", 1).rename(images / "a/1.png")
    assert len(sketch(images, derived, update=True).updated_images) == 1
    assert written(before, derived) == {
        *(f"{folder}/a%2F1.png.npy" for folder in ("dinov3", "vae_latents")),
        *(f"{folder}/c%2F1.png.npy" for folder in ("dinov3", "vae_latents", "t5_hidden")),
    }
    assert contents(derived) == fresh(images, derived, ids="path")
    assert notes(derived) == {}
    assert pack(derived_dir=derived, output_dir=tmp_path / "shards", workers=1).written_samples == 4
    assert not verify(tmp_path / "shards", workers=1).findings


def test_an_id_from_a_path_stays_whichever_folder_is_given_later(
    images: Path, tmp_path: Path
) -> None:
    derived = tmp_path / "derived"
    sketch(images, derived, ids="path")
    before = contents(derived)
    for dry_run in (True, False):
        summary = sketch(images / "a", derived, update=True, prune=True, dry_run=dry_run)
        assert (summary.renamed, summary.derived, summary.pruned) == ({}, 0, [])
    assert contents(derived) == before
    assert sketch(tmp_path, derived).already_complete == 3
    paths = ".shardwright/paths.json"  # which names the folder
    assert contents(derived) | {paths: b""} == before | {paths: b""}
    (images / "a/1.png").rename(images / "a/2.png")
    assert sketch(images, derived, update=True).renamed == {"a%2F1.png": "a%2F2.png"}


def test_the_recipe_of_a_store_by_name_is_what_it_was(images: Path, tmp_path: Path) -> None:
    sketch(images, tmp_path / "derived", fit="bucket")
    assert b'"ids"' not in (tmp_path / "derived/.shardwright/recipe.json").read_bytes()
    sketch(images, tmp_path / "by_path", ids="path")
    assert b'"ids":"path"' in (tmp_path / "by_path/.shardwright/recipe.json").read_bytes()


def test_other_ids_are_refused_and_an_update_renames_the_images(
    images: Path, tmp_path: Path
) -> None:
    derived = tmp_path / "derived"
    shutil.rmtree(images / "b")
    sketch(images, derived)
    assert ids(derived) == {"1", "100%"}
    before = contents(derived)
    with pytest.raises(ProvenanceError, match="made with --ids name, now path") as error:
        sketch(images, derived, ids="path")
    assert "to go on as before, give --ids name; to rename the images, add --update" in str(
        error.value
    )
    assert sketch(images, derived, ids="path", update=True, dry_run=True).already_complete == 2
    assert contents(derived) == before
    summary = sketch(images, derived, ids="path", update=True)
    assert summary.renamed == {"1": "a%2F1.png", "100%": "100%25.png"}
    assert (summary.derived, summary.already_complete) == (0, 2)
    new = fresh(images, derived, ids="path")
    assert without_first_ids(contents(derived)) == without_first_ids(new)
    assert first_ids(Store.at(derived)) == {"a%2F1.png": "1", "100%25.png": "100%"}
    assert sketch(images, derived).already_complete == 2, "it is recorded"
    sketch(images, derived, ids="name", update=True)
    assert ids(derived) == {"1", "100%"}


def test_ids_that_are_in_use_are_exchanged(images: Path, tmp_path: Path) -> None:
    shutil.rmtree(images)
    for number, name in enumerate(("a.png", "a.png.png")):
        save(images / name, gradient(16, 16, seed=number))
        (images / name).with_suffix(".txt").write_text(f"number {number}")
    derived = tmp_path / "derived"
    sketch(images, derived)
    assert ids(derived) == {"a", "a.png"}
    sketch(images, derived, ids="path", update=True)
    new = fresh(images, derived, ids="path")
    assert without_first_ids(contents(derived)) == without_first_ids(new)


def test_a_store_without_facts_is_renamed_by_the_paths_of_its_records(
    images: Path, tmp_path: Path
) -> None:
    derived = tmp_path / "derived"
    shutil.rmtree(images / "b")
    sketch(images, derived)
    (derived / ".shardwright/facts.jsonl").unlink()
    summary = sketch(images, derived, ids="path", update=True)
    assert (len(summary.renamed), summary.derived) == (2, 0)
    assert first_ids(Store.at(derived)) == {"a%2F1.png": "1", "100%25.png": "100%"}


def test_the_captions_file_gives_the_ids(images: Path, tmp_path: Path) -> None:
    derived, file = tmp_path / "derived", tmp_path / "captions.jsonl"
    rows = [
        {"file_name": "a/1.png", "image_id": "first", "rating": 3},
        {"file_name": "b/1.png", "image_id": 2, "caption": "from the file"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = sketch(images, derived, ids="captions", captions=file)
    assert (summary.derived, ids(derived)) == (2, {"first", "2"})
    assert summary.failed_by_reason["no_image_id"].example == str(images / "100%.png")
    records = {record["image_id"]: record for record in store_records(derived)}
    assert (records["first"]["rating"], records["first"]["caption"]) == (3, "number 0")
    assert sketch(images, derived).already_complete == 2, "those on record keep their ids"


@pytest.mark.parametrize("update", [False, True])
def test_an_id_on_record_stays_when_the_captions_file_has_another_one_later(
    images: Path, tmp_path: Path, update: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    derived, file = tmp_path / "derived", tmp_path / "captions.csv"
    file.write_text("file_name,image_id\na/1.png,A\nb/1.png,B\n100%.png,C\n")
    sketch(images, derived, ids="captions", captions=file)
    before = contents(derived)
    (images / "a/1.png").unlink()
    file.write_text("file_name,image_id\nb/1.png,A\n100%.png,C\n")
    summary = sketch(images, derived, captions=file, update=update, progress=Lines())
    assert (summary.renamed, summary.derived, summary.failed) == ({}, 0, 0)
    assert (
        "1 image with another image_id on record, for example B, now A" in capsys.readouterr().err
    )
    assert summary.gone_images == [str(images / "a/1.png")]
    assert contents(derived) == before


def test_other_ids_never_take_that_of_another_image_on_record(images: Path, tmp_path: Path) -> None:
    derived, file = tmp_path / "derived", tmp_path / "captions.csv"
    shutil.rmtree(images / "b")
    sketch(images, derived)
    assert ids(derived) == {"1", "100%"}
    (images / "a/1.png").unlink()
    file.write_text("file_name,image_id\n100%.png,1\n")
    for prune in (False, True):
        summary = sketch(images, derived, ids="captions", captions=file, update=True, prune=prune)
        assert (summary.renamed, summary.derived, summary.failed) == ({}, 0, 0)
        assert ids(derived) == ({"100%"} if prune else {"1", "100%"})


def test_ids_of_a_captions_file_need_one(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ids captions without --captions"):
        sketch(images, tmp_path / "derived", ids="captions")


@pytest.mark.parametrize("copies", [1, 2])
def test_a_renamed_image_whose_row_has_the_old_name_keeps_its_id(
    images: Path, tmp_path: Path, copies: int
) -> None:
    derived, file = tmp_path / "derived", tmp_path / "captions.csv"
    file.write_text("file_name,image_id\na/1.png,first\nb/1.png,second\n100%.png,third\n")
    sketch(images, derived, ids="captions", captions=file)
    before = stamps(derived)
    for number in range(copies):
        shutil.copy(images / "a/1.png", images / f"a/new{number}.png")
    (images / "a/1.png").unlink()
    failed = sketch(images, derived, captions=file, dry_run=True).failed_by_reason
    assert failed["duplicate_id"].example == str(images / "a/new0.png")
    for dry_run in (True, False):
        summary = sketch(images, derived, captions=file, update=True, prune=True, dry_run=dry_run)
        assert (summary.pruned, summary.derived, summary.failed) == ([], 0, copies - 1)
    assert stamps(derived) == before
    records = {record["image_id"]: record["image_path"] for record in store_records(derived)}
    assert records["first"] == str(images / "a/new0.png")
    assert sketch(images, derived).already_complete == 3


def test_an_unknown_way_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--ids stem: unknown"):
        sketch(images, tmp_path / "derived", ids="stem")


def test_a_recipe_may_say_it(images: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "prx"\n[images]\nids = "path"\n')
    sketch(images, tmp_path / "derived", recipe=recipe)
    assert ids(tmp_path / "derived") == set(PATHS.values())
    assert sketch(images, tmp_path / "derived", recipe="prx").already_complete == 3


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1)))
def test_every_path_has_an_id_of_its_own(parts: list[str]) -> None:
    parts = [f"{part}x" for part in parts] or ["x"]
    path = "/".join(parts)
    image_id = spelt(f"root/{path}", "root")
    assert "/" not in image_id
    assert image_id.replace("%2F", "/").replace("%25", "%") == path
    assert is_image_id(image_id) or len(image_id.encode()) > 251


def test_after_a_kill_no_run_goes_on_with_the_old_ids(images: Path, tmp_path: Path) -> None:
    derived = tmp_path / "derived"
    shutil.rmtree(images / "b")
    sketch(images, derived)
    with using(disk := WatchedDisk()):
        sketch(images, shutil.copytree(derived, tmp_path / "full"), ids="path", update=True)
    noted = next(n for n, call in enumerate(disk.calls, 1) if call.path.endswith("/steps.jsonl"))
    with using(KillingDisk(noted + 4)), pytest.raises(Killed):
        sketch(images, derived, ids="path", update=True)
    assert (derived / ".shardwright/steps.jsonl").exists()
    assert sketch(images, derived).already_complete == 2
    assert contents(derived) == contents(tmp_path / "full")


def test_the_path_comes_back_from_the_id_and_from_the_key_of_a_sample(tmp_path: Path) -> None:
    images, shards = tmp_path / "images", tmp_path / "shards"
    make_images(images / "nature", 1)
    (images / "nature/img000.png").rename(images / "nature/50% Green.png")
    (images / "nature/img000.txt").rename(images / "nature/50% Green.txt")
    build(images, output_dir=shards, encoders="sketch", ids="path")
    (sample,) = shardwright.open(shards)
    assert sample["__key__"] == "nature%252F50%2525%20Green%2Epng"
    assert unquote(sample["json"]["image_id"]) == "nature/50% Green.png"
    assert unquote(unquote(sample["__key__"])) == "nature/50% Green.png"
