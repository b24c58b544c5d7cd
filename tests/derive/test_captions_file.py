"""The captions file of a store is remembered, so that changes of it are found without the flag."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.commands import run
from tests.derive.pictures import gradient, save, store_records

STORE = ("--derived-dir", "derived", "--encoders", "sketch")
GONE = "is gone; give --captions FILE, or --captions none to forget it"


def picture(project: Path, name: str, folder: str = "photos") -> None:
    (project / folder).mkdir(parents=True, exist_ok=True)
    save(project / folder / f"{name}.png", gradient(24, 16, seed=sum(name.encode())))


def write(project: Path, file: str = "caps.csv", **captions: str) -> None:
    rows = (f"{name}.png,{caption}\n" for name, caption in captions.items())
    (project / file).write_text("file_name,caption\n" + "".join(rows))


def derive(where: Path, *words: str, exits: int = 0) -> str:
    """Derive in a working folder, and give what was written to the terminal."""
    done = run("derive", *words, *STORE, cwd=where)
    assert done.returncode == exits, done.stderr
    return done.stdout + done.stderr


def status(where: Path, *words: str) -> str:
    done = run("status", "derived", *words, cwd=where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def captions(project: Path) -> dict[str, str]:
    records = store_records(project / "derived")
    return {record["image_id"]: record["caption"] for record in records}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two images that were derived with a captions file."""
    project = tmp_path / "project"
    for name in ("a", "b"):
        picture(project, name)
    write(project, a="an apple", b="a bear")
    derive(project, "photos", "--captions", "caps.csv")
    return project


def test_an_edited_captions_file_is_seen_by_status_and_derived_and_packed(project: Path) -> None:
    pack = ("pack", "--derived-dir", "derived", "--output-dir", "shards")
    assert run(*pack, cwd=project).returncode == 0
    write(project, a="an apple", b="a brown bear")
    said = status(project)
    assert "\ncaptions: caps.csv\n" in said
    assert "encode 1 changed caption again (for example of photos/b.png)" in said
    assert "next: shardwright derive photos --update --derived-dir derived\n" in said
    said = derive(project, "photos")
    assert "1 caption changed since it was encoded; keeping the old embedding" in said
    assert captions(project) == {"a": "an apple", "b": "a bear"}
    said = derive(project, "photos", "--update")
    assert "captions: caps.csv, as in the last derive\n" in said
    assert "updated_captions: 1 (for example photos/b.png)" in said
    assert captions(project) == {"a": "an apple", "b": "a brown bear"}
    assert "would:" not in status(project)
    done = run(*pack, "--sync", "--json", cwd=project)
    assert done.returncode == 0
    records = b"".join(path.read_bytes() for path in (project / "shards").rglob("*.tar"))
    assert b"a brown bear" in records
    assert b"a bear" not in records


def test_a_new_image_gets_its_caption_from_the_remembered_file(project: Path) -> None:
    picture(project, "c")
    said = derive(project, "photos", exits=3)
    assert "no_caption: 1" in said
    assert "would:" not in status(project)
    write(project, a="an apple", b="a bear", c="a cat")
    assert "derive 1 new image (for example photos/c.png)" in status(project)
    derive(project, "photos")
    assert captions(project) == {"a": "an apple", "b": "a bear", "c": "a cat"}


def test_a_captions_file_that_is_gone_stops_derive_until_it_is_replaced_or_forgotten(
    project: Path,
) -> None:
    (project / "caps.csv").unlink()
    stop = "captions not read (derive would stop): caps.csv: "
    assert f"{stop}the captions file {GONE}\n" in status(project)
    assert (
        "\nnext: shardwright derive photos --captions none --derived-dir derived\n"
        "      (the captions file is gone: --captions FILE names another, --captions none forgets "
        "it)\n"
    ) in status(project)
    for words in ((), ("--update",), ("--dry-run",)):
        said = derive(project, "photos", *words, exits=2)
        assert f"caps.csv: the captions file {GONE}" in said
    derive(project, "photos", "--captions", "none", "--dry-run")
    derive(project, "photos", exits=2)
    picture(project, "c")
    (project / "photos/c.txt").write_text("a cat")
    said = status(project)
    assert "next: shardwright derive photos --captions none --derived-dir derived\n" in said
    derive(project, "photos", "--captions", "none", "--dry-run")
    (project / "photos/c.png").unlink()
    derive(project, "photos", "--captions", "none")
    assert captions(project) == {"a": "an apple", "b": "a bear"}
    assert "captions:" not in status(project)
    assert "next: shardwright pack" in status(project)
    assert "captions:" not in derive(project, "photos", "--update")
    write(project, "others.csv", a="an apple", b="a bee")
    derive(project, "photos", "--captions", "others.csv", "--update")
    assert captions(project) == {"a": "an apple", "b": "a bee"}
    assert "captions: others.csv\n" in status(project)


def test_a_captions_file_that_cannot_be_used_is_named_by_status(project: Path) -> None:
    (project / "caps.csv").write_text("file_name,caption\n,nothing\n")
    stop = "captions not read (derive would stop): caps.csv: "
    assert f"{stop}line 2: names no image" in status(project)
    assert "\nnext: derive would stop: " in status(project)


def test_a_dry_run_does_not_remember_a_captions_file(project: Path) -> None:
    write(project, "others.csv", a="an ant", b="a bear")
    derive(project, "photos", "--captions", "others.csv", "--dry-run")
    assert "captions: caps.csv\n" in status(project)


def test_changed_columns_are_reported_with_their_names_and_reach_the_records(project: Path) -> None:
    scores = "file_name,caption,score,source\na.png,an apple,1,web\nb.png,a bear,{},{}\n"
    (project / "caps.csv").write_text(scores.format(2, "web"))
    said = derive(project, "photos")
    assert "updated_columns: 2 (for example score, source of photos/a.png)\n" in said
    assert "would:" not in status(project)
    (project / "caps.csv").write_text(scores.format(5, "web"))
    said = status(project)
    assert "  update the record of 1 image (for example score of photos/b.png)\n" in said
    assert "next: shardwright derive photos --derived-dir derived\n      (1 changed row)\n" in said
    for words in (("--dry-run",), ("--update", "--dry-run"), ("--update",)):
        said = derive(project, "photos", *words)
        assert (
            "1 image with other columns than on record, for example photos/b.png (score); "
            "updating its record\n"
        ) in said
        assert "updated_columns: 1 (for example score of photos/b.png)\n" in said
    assert [record["score"] for record in store_records(project / "derived")] == [1, 5]
    assert "would:" not in status(project)


@pytest.mark.parametrize("how", ["moved", "copied", "store alone", "another working folder"])
def test_the_captions_file_is_found_after_a_move(project: Path, tmp_path: Path, how: str) -> None:
    where, images, shown = project, "photos", "caps.csv"
    if how == "moved":
        (tmp_path / "deep/er").mkdir(parents=True)
        where = project.rename(tmp_path / "deep/er/new")
    elif how == "copied":
        where = tmp_path / "new"
        shutil.copytree(project, where)
    elif how == "store alone":
        (tmp_path / "disk/large").mkdir(parents=True)
        where = tmp_path / "disk/large"
        (project / "derived").rename(where / "derived")
        images, shown = str(project / "photos"), str(project / "caps.csv")
    else:
        (project / "below").mkdir()
        (project / "below/derived").symlink_to("../derived")
        where, images, shown = project / "below", "../photos", str(project / "caps.csv")
    home = where if how in ("moved", "copied") else project
    write(home, a="an apple", b="a brown bear")
    said = derive(where, images, "--update")
    assert f"captions: {shown}, as in the last derive\n" in said
    assert captions(where) == {"a": "an apple", "b": "a brown bear"}


def test_each_folder_of_images_has_its_own_captions_file(project: Path) -> None:
    picture(project, "z", "drawings")
    write(project, "drawn.csv", z="a zebra")
    derive(project, "drawings", "--captions", "drawn.csv")
    write(project, "drawn.csv", z="two zebras")
    write(project, a="two apples", b="a bear")
    said = derive(project, "drawings", "--update")
    assert "captions: drawn.csv, as in the last derive" in said
    assert captions(project) == {"a": "an apple", "b": "a bear", "z": "two zebras"}
    said = derive(project, "photos", "--update")
    assert "captions: caps.csv, as in the last derive" in said
    assert captions(project) == {"a": "two apples", "b": "a bear", "z": "two zebras"}


@pytest.mark.parametrize("store", ["below", "elsewhere"])
def test_status_sees_changes_in_each_folder_of_images_that_has_a_captions_file(
    tmp_path: Path, store: str
) -> None:
    where = tmp_path / "project" if store == "below" else tmp_path
    photos, drawings = "photos", "drawings"
    if store == "elsewhere":
        photos, drawings = "project/photos", "project/drawings"
    project = tmp_path / "project"
    picture(project, "a")
    picture(project, "z", "drawings")
    write(project, a="an apple")
    write(project, "drawn.csv", z="a zebra")
    derive(where, photos, "--captions", str(project / "caps.csv"))
    derive(where, drawings, "--captions", str(project / "drawn.csv"))
    assert "would:" not in status(where)
    write(project, a="two apples")
    write(project, "drawn.csv", z="two zebras")
    said = status(where)
    assert f"derive {photos} --update would:\n" in said
    assert f"derive {drawings} --update would:\n" in said
    for folder, image in ((photos, "a"), (drawings, "z")):
        changed = f"  encode 1 changed caption again (for example of {folder}/{image}.png)\n"
        assert changed in said
        assert f"next: shardwright derive {folder} --update --derived-dir derived\n" in said
        derive(where, folder, "--update")
        said = status(where)
        assert changed not in said
    assert "would:" not in said
    assert "next: shardwright pack" in said
    assert captions(where) == {"a": "two apples", "z": "two zebras"}


def test_a_folder_below_the_images_has_their_captions_file(project: Path) -> None:
    picture(project, "c", "photos/more")
    write(project, a="an apple", b="a bear", c="a cat")
    assert "captions: caps.csv" in derive(project, "photos/more")
    assert captions(project)["c"] == "a cat"


def test_a_recipe_names_the_captions_file_and_the_flag_goes_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path, name)
    write(tmp_path, a="an apple", b="a bear")
    write(tmp_path, "others.csv", a="an ant", b="a bear")
    (tmp_path / "shardwright.toml").write_text(
        'extends = "prx"\n[paths]\nimages = "photos"\nstore = "derived"\ncaptions = "caps.csv"\n'
    )
    shown = run("recipe", "shardwright.toml", cwd=tmp_path).stdout
    assert 'captions = "caps.csv"' in shown
    assert "as in the last derive" not in derive(tmp_path)
    assert captions(tmp_path) == {"a": "an apple", "b": "a bear"}
    derive(tmp_path, "--captions", "others.csv", "--update")
    assert captions(tmp_path) == {"a": "an ant", "b": "a bear"}
    said = status(tmp_path)  # before what the store remembers
    assert "\ncaptions: caps.csv\n" in said
    assert "encode 1 changed caption again" in said
    derive(tmp_path, "--update")
    assert captions(tmp_path) == {"a": "an apple", "b": "a bear"}
    build = ("build", "--output-dir", "shards", "--encoders", "sketch", "--json")
    done = run(*build, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written_samples"] == 2
