"""Images that are deleted after their project has moved: records hold relative paths, facts not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.commands import run
from tests.derive.pictures import array_path, gradient, make_images, save, store_records
from tests.derive.updates import TINY, facts, remove

STORE = ("--derived-dir", "derived", "--encoders", "sketch")


def derive(where: Path, *words: str) -> str:
    """Derive in a working folder, and give what was written to the terminal."""
    done = run("derive", *words, *STORE, cwd=where)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def ids(project: Path) -> set[str]:
    return {record["image_id"] for record in store_records(project / "derived")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A project of which everything is below one folder."""
    make_images(tmp_path / "old/photos", 5, TINY)
    derive(tmp_path / "old", "photos")
    return tmp_path / "old"


@pytest.fixture
def new(old: Path) -> Path:
    """The same project, moved, without one of its pictures."""
    moved = old.rename(old.with_name("new"))
    remove(moved / "photos", "img001")
    return moved


LEFT = {"img000", "img002", "img003", "img004"}


def test_an_image_deleted_after_a_move_is_pruned_and_leaves_the_shards(
    old: Path, tmp_path: Path
) -> None:
    pack = ("pack", "--derived-dir", "derived", "--output-dir", "shards")
    assert run(*pack, cwd=old).returncode == 0
    new = old.rename(tmp_path / "new")
    remove(new / "photos", "img001")
    said = run("status", "derived", cwd=new).stdout
    assert "remove 1 gone image with --prune (for example photos/img001.png)" in said
    said = derive(new, "photos", "--update", "--prune")
    assert "removing the records and arrays of 1 image:\n  photos/img001.png\n" in said
    assert "pruned: 1 (for example photos/img001.png)" in said
    assert ids(new) == facts(new / "derived").keys() == LEFT
    assert not array_path(new / "derived", "vae", "img001").exists()
    done = run(*pack, "--sync", cwd=new)
    assert "1 removed" in done.stdout
    assert not any(b"img001" in shard.read_bytes() for shard in new.rglob("*.tar"))


def test_a_plain_run_after_the_move_does_not_hide_the_deleted_image(new: Path) -> None:
    derive(new, "photos")
    assert facts(new / "derived")["img001"]["image"]["path"] == str(new / "photos/img001.png")
    assert "pruned: 1 (for example photos/img001.png)" in derive(new, "photos", "--prune")
    assert ids(new) == LEFT


def test_an_image_deleted_from_a_copy_is_pruned_there_while_the_original_exists(
    old: Path, tmp_path: Path
) -> None:
    new = Path(shutil.copytree(old, tmp_path / "new"))
    remove(new / "photos", "img001")
    assert "pruned: 1 (for example photos/img001.png)" in derive(new, "photos", "--prune")
    assert ids(new) == LEFT
    assert "pruned" not in derive(old, "photos", "--prune")
    assert len(ids(old)) == 5


def test_a_subfolder_of_a_moved_project_prunes_only_what_was_in_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = make_images(tmp_path / "old/photos" / name, 4, TINY)
        for path in folder.iterdir():
            path.rename(folder / f"{name}-{path.name}")
    derive(tmp_path / "old", "photos")
    new = (tmp_path / "old").rename(tmp_path / "new")
    remove(new / "photos/a", "a-img001")
    remove(new / "photos/b", "b-img001")
    said = derive(new, "photos/a", "--prune")
    assert "pruned: 1 (for example photos/a/a-img001.png)" in said
    assert "photos/a, so it is kept:\n  photos/b/b-img001.png\n" in said
    assert "pruned: 1 (for example photos/b/b-img001.png)" in derive(new, "photos/b", "--prune")
    assert len(ids(new)) == 6


def test_what_cannot_be_decided_is_listed_with_the_command_that_decides_it(
    new: Path, old: Path
) -> None:
    for name in ("img002", "img003"):
        remove(new / "photos", name)
    said = derive(new, "photos", "--update", "--prune")
    listed = "".join(f"  {old}/photos/img00{n}.png\n" for n in (1, 2, 3))
    command = f"derive photos --update --prune-below {old}/photos --derived-dir derived"
    assert (
        "3 images on record are not found. They may not have been below photos, so they are kept:\n"
        f"{listed}to remove them, run shardwright {command}\n" in said
    )
    assert "pruned:" not in said
    assert len(ids(new)) == 5
    done = run(*command.split(), "--dry-run", "--json", cwd=new)
    assert json.loads(done.stdout)["pruned"] == [f"{old}/photos/img00{n}.png" for n in (1, 2, 3)]
    assert len(ids(new)) == 5
    done = run(*command.split(), cwd=new)
    assert "pruned: 3" in done.stdout
    assert ids(new) == {"img000", "img004"}
    assert "not found" not in derive(new, "photos", "--prune")


def test_a_folder_that_is_not_there_is_not_taken_for_one_that_holds_few_of_its_images(
    old: Path, tmp_path: Path
) -> None:
    (old / "photos").rename(tmp_path / "unmounted")
    save(tmp_path / "other/more.png", gradient(16, 16, seed=9))
    (tmp_path / "other/more.txt").write_text("one more")
    for suffix in (".png", ".txt"):
        shutil.copy(tmp_path / f"unmounted/img001{suffix}", tmp_path / "other")
    said = derive(old, str(tmp_path / "other"), "--update", "--prune")
    assert "pruned:" not in said
    assert "4 images on record are not found" in said
    assert len(ids(old)) == 6


def test_other_pictures_of_the_same_names_are_not_the_moved_ones(new: Path, tmp_path: Path) -> None:
    for number in (0, 2, 3, 4):
        save(new / f"photos/img{number:03}.png", gradient(40, 24, seed=50 + number))
    said = derive(new, "photos", "--prune", "--update")
    assert "1 image on record is not found" in said
    assert len(ids(new)) == 5


def test_images_that_were_divided_among_two_folders_are_not_pruned(
    old: Path, tmp_path: Path
) -> None:
    for number in (3, 4):
        for suffix in (".png", ".txt"):
            moved = tmp_path / f"val/img{number:03}{suffix}"
            moved.parent.mkdir(exist_ok=True)
            (old / f"photos/img{number:03}{suffix}").rename(moved)
    (old / "photos").rename(tmp_path / "train")
    said = derive(old, str(tmp_path / "train"), "--update", "--prune")
    assert "2 images on record are not found" in said
    assert f"  {old}/photos/img003.png\n" in said or "  photos/img003.png\n" in said
    assert len(ids(old)) == 5


def test_records_without_facts_are_listed_with_the_command_too(new: Path) -> None:
    (new / "derived/.shardwright/facts.jsonl").unlink()
    said = derive(new, "photos", "--prune")
    command = f"derive photos --prune-below {new}/photos --derived-dir derived"
    assert f"  photos/img001.png\nto remove it, run shardwright {command}\n" in said
    assert len(ids(new)) == 5
    assert "pruned: 1" in run(*command.split(), cwd=new).stdout
    assert ids(new) == LEFT


def test_images_of_another_folder_are_found_by_the_paths_in_their_records(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    make_images(old / "photos", 2, TINY)
    make_images(old / "others", 4, TINY)
    for number in range(2):
        remove(old / "others", f"img{number:03}")
    words = ("--derived-dir", "../store", "--encoders", "sketch")
    for folder in ("photos", "others"):
        assert run("derive", folder, *words, cwd=old).returncode == 0
    new.mkdir()
    (old / "others").rename(new / "others")
    remove(new / "others", "img003")
    done = run("derive", "../old/photos", *words, "--json", cwd=new)
    assert json.loads(done.stdout)["gone_images"] == [str(old / "others/img003.png")]
    paths = {name: entry["image"]["path"] for name, entry in facts(tmp_path / "store").items()}
    assert paths["img002"] == str(new / "others/img002.png")
    assert paths["img003"] == str(old / "others/img003.png")
