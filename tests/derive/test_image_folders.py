"""A store remembers the folders of its images: changes there are found from anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import run
from tests.derive.pictures import gradient, save, store_records

ENCODERS = ("--encoders", "sketch")


def picture(path: Path, caption: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, gradient(24, 16, seed=sum(str(path.name).encode())))
    if caption is not None:
        path.with_suffix(".txt").write_text(caption)


def table(path: Path, **captions: str) -> None:
    rows = (f"{name}.png,{caption}\n" for name, caption in captions.items())
    path.write_text("file_name,caption\n" + "".join(rows))


def derive(where: Path, *words: str, store: str = "derived", exits: int = 0) -> str:
    done = run("derive", *words, "--derived-dir", store, *ENCODERS, cwd=where)
    assert done.returncode == exits, done.stdout + done.stderr
    return done.stdout + done.stderr


def status(where: Path, store: str | Path = "derived") -> str:
    done = run("status", store, cwd=where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def captions(derived: Path) -> dict[str, str]:
    return {record["image_id"]: record["caption"] for record in store_records(derived)}


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """Two folders of images below one, which has the captions file of both."""
    for name in ("a", "b"):
        picture(tmp_path / f"data/{name}/{name}.png")
    (tmp_path / "c.csv").write_text("file_name,caption\na/a.png,an apple\nb/b.png,a bear\n")
    derive(tmp_path, "data", "--captions", "c.csv")
    return tmp_path


def test_a_folder_below_does_not_forget_the_captions_file_of_the_folder_above(nested: Path) -> None:
    for words in ((), ("--dry-run",)):
        said = derive(nested, "data/a", "--captions", "none", *words, exits=2)
        assert (
            "data/a: --captions none: it is data that uses c.csv; to forget the file, give data; "
            "to use another one here, --captions FILE"
        ) in said
    assert "captions: c.csv, as in the last derive" in derive(nested, "data/b")
    assert "no longer" not in derive(nested, "data", "--captions", "c.csv")
    said = derive(nested, "data", "--captions", "none", "--dry-run")
    assert "captions: data would no longer use c.csv\n" in said
    assert "captions: data no longer uses c.csv\n" in derive(nested, "data", "--captions", "none")
    assert "captions:" not in derive(nested, "data/b")
    assert "no longer" not in derive(nested, "data", "--captions", "none")


def test_a_file_for_all_images_replaces_those_of_folders_below_and_says_so(nested: Path) -> None:
    table(nested / "a.csv", a="an ant")
    assert "no longer" not in derive(nested, "data/a", "--captions", "a.csv", "--update")
    assert captions(nested / "derived") == {"a": "an ant", "b": "a bear"}
    said = derive(nested, "data", "--captions", "c.csv", "--update")
    assert "captions: data/a no longer uses a.csv\n" in said
    assert captions(nested / "derived") == {"a": "an apple", "b": "a bear"}
    assert "would:" not in status(nested)


@pytest.mark.parametrize("how", ["file", "beside"])
def test_status_sees_edited_captions_in_each_of_two_image_folders(tmp_path: Path, how: str) -> None:
    for name, folder in (("a", "A"), ("b", "B")):
        picture(tmp_path / folder / f"{name}.png", f"first {name}" if how == "beside" else None)
        table(tmp_path / f"{folder}.csv", **{name: f"first {name}"})
        derive(tmp_path, folder, *(("--captions", f"{folder}.csv") if how == "file" else ()))
    assert "next: shardwright pack" in status(tmp_path)
    for name, folder in (("a", "A"), ("b", "B")):
        (tmp_path / folder / f"{name}.txt").write_text(f"second {name}")
        table(tmp_path / f"{folder}.csv", **{name: f"second {name}"})
    for folder in ("A", "B"):
        said = status(tmp_path)
        assert "--update would:\n  encode 1 changed caption again" in said
        assert f"next: shardwright derive {folder} --update --derived-dir derived\n" in said
        derive(tmp_path, folder, "--update")
    assert captions(tmp_path / "derived") == {"a": "second a", "b": "second b"}
    assert "next: shardwright pack" in status(tmp_path)


def test_an_image_gone_from_one_folder_is_not_listed_for_the_other(tmp_path: Path) -> None:
    for name in ("A/a", "A/c", "B/b"):
        picture(tmp_path / f"{name}.png", name)
    derive(tmp_path, "A")
    derive(tmp_path, "B")
    (tmp_path / "A/c.png").unlink()
    said = status(tmp_path)
    assert "remove 1 gone image with --prune (for example A/c.png)\n" in said
    assert "not below" not in said


def test_a_folder_above_reads_the_captions_files_of_the_folders_below(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"im/{name}/{name}.png")
        table(tmp_path / f"{name}.csv", **{name: f"first {name}"})
        derive(tmp_path, f"im/{name}", "--captions", f"{name}.csv")
    picture(tmp_path / "im/c.png", "a cat")
    table(tmp_path / "a.csv", a="second a")
    table(tmp_path / "b.csv", b="second b")
    said = derive(tmp_path, "im", "--update")
    assert "captions: a.csv for im/a, as in the last derive\n" in said
    assert "captions: b.csv for im/b, as in the last derive\n" in said
    assert "updated_captions: 2" in said
    now = {"a": "second a", "b": "second b", "c": "a cat"}
    assert captions(tmp_path / "derived") == now
    said = status(tmp_path)
    assert "would:" not in said
    table(tmp_path / "b.csv", b="third b")
    assert "next: shardwright derive im --update --derived-dir derived\n" in status(tmp_path)
    # Also with paths that begin with a dot.
    derive(tmp_path / "im", ".", "--update", store="../derived")
    assert captions(tmp_path / "derived") == now | {"b": "third b"}
    (tmp_path / "b.csv").unlink()
    said = derive(tmp_path, "im", exits=2)
    fix = "derive im/b with --captions FILE, or --captions none to forget it"
    gone = f"b.csv: the captions file of im/b is gone; {fix}"
    assert gone in said
    assert f"\nnext: derive would stop: {gone}\n" in status(tmp_path)
    derive(tmp_path, "im/b", "--captions", "none")
    assert "next: shardwright pack" in status(tmp_path)


@pytest.mark.parametrize("given", ["im", "."])
def test_status_sees_changes_in_the_working_folder(tmp_path: Path, given: str) -> None:
    images = tmp_path / "im"
    picture(images / "a.png", "an apple")
    where = tmp_path if given == "im" else images
    derive(where, given, store=str(tmp_path / "derived"))
    assert "next: shardwright pack" in status(images, "../derived")
    (images / "a.txt").write_text("an ant")
    picture(images / "b.png", "a bear")
    said = status(images, "../derived")
    assert "encode 1 changed caption again" in said
    assert "derive 1 new image" in said
    assert "next: shardwright derive . --update --derived-dir ../derived\n" in said
    derive(images, ".", "--update", store="../derived")
    assert captions(tmp_path / "derived") == {"a": "an ant", "b": "a bear"}


def test_status_looks_for_new_images_in_the_folder_that_was_given(tmp_path: Path) -> None:
    picture(tmp_path / "im/a/a.png", "an apple")
    derive(tmp_path, "im")
    picture(tmp_path / "im/b/new.png", "a new one")
    said = status(tmp_path)
    assert "derive 1 new image (for example im/b/new.png)" in said
    assert "next: shardwright derive im --derived-dir derived\n" in said


def test_status_from_elsewhere_sees_a_moved_project(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"old/im/{name}.png", f"first {name}")
    derive(tmp_path / "old", "im")
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "new/im/a.txt").write_text("second a")
    (tmp_path / "elsewhere").mkdir()
    said = status(tmp_path / "elsewhere", tmp_path / "new/derived")
    assert "gone" not in said
    assert "encode 1 changed caption again" in said
    command = f"derive {tmp_path}/new/im --update --derived-dir {tmp_path}/new/derived"
    assert f"next: shardwright {command}\n" in said


def test_a_folder_of_images_that_is_a_link_is_named_as_it_was_given(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"disk/{name}.png", f"first {name}")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/im").symlink_to("../disk")
    derive(tmp_path / "project", "im")
    (tmp_path / "disk/a.txt").write_text("second a")
    (tmp_path / "disk/b.png").unlink()
    said = status(tmp_path / "project")
    assert "encode 1 changed caption again (for example of im/a.png)\n" in said
    assert "remove 1 gone image with --prune (for example im/b.png)\n" in said
    assert "next: shardwright derive im --update --derived-dir derived\n" in said


def test_each_jsonl_of_a_store_has_folders_of_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"{name}/{name}.png", f"first {name}")
    derive(tmp_path, "a")
    derive(tmp_path, "b", "--jsonl", "derived/second.jsonl")
    assert "would:" not in status(tmp_path)
    (tmp_path / "b/b.txt").write_text("second b")
    done = run("status", "derived", "--jsonl", "derived/second.jsonl", cwd=tmp_path)
    assert "encode 1 changed caption again (for example of b/b.png)" in done.stdout
