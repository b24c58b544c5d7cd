"""Images that have the names of those on record: the same ones only if they are at their place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run
from tests.derive.pictures import gradient, make_images, save, store_records
from tests.derive.updates import TINY, facts, replace_one
from tests.faults import contents


def derive(where: Path, *words: str | Path, fails: int = 0) -> dict[str, Any]:
    """Derive in a working folder, and give the summary."""
    done = run("derive", *words, "--encoders", "sketch", "--json", cwd=where)
    assert done.returncode == (3 if fails else 0), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failed"] == fails
    assert fails == 0 or list(found["failed_by_reason"]) == ["duplicate_id"]
    return found


def held(store: Path) -> dict[str, bytes | None]:
    return {name: data for name, data in contents(store).items() if "failures" not in name}


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """Two data sets of the same names, and a store of the first."""
    make_images(tmp_path / "set1/images", 3, TINY)
    other = make_images(tmp_path / "set2/images", 3, TINY)
    for number in range(3):
        save(other / f"img{number:03}.png", gradient(24, 16, seed=50 + number))
        (other / f"img{number:03}.txt").write_text(f"of the second set, number {number}")
    derive(tmp_path / "set1", "images", "--derived-dir", "../store")
    return tmp_path


@pytest.mark.parametrize("flags", [[], ["--update"], ["--update", "--prune"], ["--dry-run"]])
@pytest.mark.parametrize("place", ["images", "{}/set2/images", "./images/../images"])
def test_another_data_set_is_not_taken_for_the_one_on_record(
    sets: Path, place: str, flags: list[str]
) -> None:
    before = held(sets / "store")
    images = place.format(sets)
    found = derive(sets / "set2", images, "--derived-dir", "../store", *flags, fails=3)
    assert found["changed_images"] == found["updated_images"] == []
    assert (found["kept_captions"], found["updated_captions"]) == (0, [])
    assert held(sets / "store") == before
    if "--dry-run" not in flags:
        failures = (sets / "store/.shardwright/failures.jsonl").read_text().splitlines()
        detail = f"the store has this image_id for {sets}/set1/images/img000.png"
        assert json.loads(failures[0])["detail"] == detail


def test_another_data_set_of_ids_by_path_is_not_taken_for_the_one_on_record(sets: Path) -> None:
    shutil.rmtree(sets / "store")
    store = ("--derived-dir", "../store")
    derive(sets / "set1", "images", *store, "--ids", "path")
    before = held(sets / "store")
    derive(sets / "set2", "images", *store, "--update", fails=3)
    assert held(sets / "store") == before


def test_a_recompute_does_not_take_the_pictures_of_another_data_set(sets: Path) -> None:
    before = held(sets / "store")
    words = ("images", "--derived-dir", "../store", "--recompute", "vae")
    derive(sets / "set2", *words, fails=3)
    derive(sets / "set1", *words)
    assert held(sets / "store") == before


def test_the_same_images_are_the_same_from_any_working_folder(sets: Path) -> None:
    store, before = sets / "store", held(sets / "store")
    # In two of these, the path on record names a file of the other set.
    for where, images in (
        (sets, "set1/images"),
        (sets / "set2", "../set1/images"),
        (sets / "set2", sets / "set1/images"),
        (sets / "set1/images", "."),
    ):
        found = derive(where, images, "--derived-dir", store, "--update")
        assert found["already_complete"] == 3
    assert held(store) == before
    replaced = replace_one(sets / "set1/images")
    found = derive(sets / "set2", "../set1/images", "--derived-dir", store, "--update")
    assert found["updated_images"] == ["../set1/images/img001.png"]
    assert facts(store)["img001"]["image"]["path"] == str(replaced)


def test_of_two_images_with_one_id_the_one_on_record_keeps_it_from_any_working_folder(
    sets: Path,
) -> None:
    images = sets / "set1/images"
    shutil.copytree(sets / "set2/images", images / "more")
    for where, given in ((sets / "set1", "images"), (images, ".")):
        found = derive(where, given, "--derived-dir", sets / "store", "--update", fails=3)
        assert found["already_complete"] == 3


def test_an_edited_picture_of_a_moved_project_is_a_changed_image_in_every_run(
    sets: Path,
) -> None:
    new = (sets / "set1").rename(sets / "new")
    replace_one(new / "images")
    for _ in range(2):
        found = derive(new, "images", "--derived-dir", "../store")
        assert found["changed_images"] == ["images/img001.png"]
    found = derive(new, "images", "--derived-dir", "../store", "--update")
    assert found["updated_images"] == ["images/img001.png"]


@pytest.mark.parametrize("edited", [2, 3])
def test_more_than_half_of_the_pictures_decide_whether_a_folder_has_moved_without_its_store(
    tmp_path: Path, edited: int
) -> None:
    old = make_images(tmp_path / "old", 5, TINY)
    derive(tmp_path, "old", "--derived-dir", "elsewhere/store")
    new = old.rename(tmp_path / "new")
    paths = [f"new/{replace_one(new, number).name}" for number in range(edited)]
    few = 2 * edited < 5
    words = ("new", "--derived-dir", "elsewhere/store")
    found = derive(tmp_path, *words, fails=0 if few else edited)
    assert found["changed_images"] == (paths if few else [])
    assert found["already_complete"] == (5 if few else 5 - edited)
    assert derive(tmp_path, *words, "--update")["updated_images"] == paths


def test_an_edited_picture_of_a_copied_project_is_a_changed_image_there(tmp_path: Path) -> None:
    old = tmp_path / "old"
    make_images(old / "images", 3, TINY)
    derive(old, "images", "--derived-dir", "store")
    new = Path(shutil.copytree(old, tmp_path / "new"))
    replaced = replace_one(new / "images")
    before = held(old / "store")
    found = derive(new, "images", "--derived-dir", "store")
    assert (found["changed_images"], found["already_complete"]) == (["images/img001.png"], 3)
    derive(new, "images", "--derived-dir", "store", "--update")
    assert facts(new / "store")["img001"]["image"]["path"] == str(replaced)
    assert held(old / "store") == before


def test_copies_with_other_captions_are_not_the_images_on_record(sets: Path) -> None:
    shutil.rmtree(sets / "set2/images")
    copied = Path(shutil.copytree(sets / "set1/images", sets / "set2/images"))
    for text in copied.glob("*.txt"):
        text.write_text("another caption")
    derive(sets / "set2", "images", "--derived-dir", "../store", "--update", fails=3)
    assert all("soft" in record["caption"] for record in store_records(sets / "store"))


def test_other_pictures_take_the_place_of_those_that_are_gone_only_with_update(sets: Path) -> None:
    before = held(sets / "store")
    shutil.rmtree(sets / "set1")
    store = ("--derived-dir", "../store")
    derive(sets / "set2", "images", *store, fails=3)
    assert held(sets / "store") == before
    failures = (sets / "store/.shardwright/failures.jsonl").read_text()
    assert "img000.png; it does not exist: use --update" in failures
    assert len(derive(sets / "set2", "images", *store, "--update")["updated_images"]) == 3


def test_captions_of_images_that_are_not_in_the_store_are_not_said_to_have_changed(
    sets: Path,
) -> None:
    for flags in ([], ["--update"]):
        words = ("set2/images", "--derived-dir", "store", "--encoders", "sketch", *flags)
        done = run("derive", *words, cwd=sets)
        assert done.returncode == 3
        assert "changed since" not in done.stderr
        assert "captions" not in done.stdout


def test_a_broken_link_in_the_place_of_an_image_of_another_set_is_a_duplicate(sets: Path) -> None:
    for number in range(3):
        path = sets / f"set2/images/img{number:03}.png"
        path.unlink()
        path.symlink_to("nowhere.png")
    before = held(sets / "store")
    derive(sets / "set2", "images", "--derived-dir", "../store", "--update", fails=3)
    assert held(sets / "store") == before
