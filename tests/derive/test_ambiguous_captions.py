"""Captions that could belong to two images: reported as long as it is so, and no longer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands import run
from tests.derive.pictures import gradient, save, store_records

STORE = ("--derived-dir", "derived", "--encoders", "sketch")


def picture(project: Path, name: str) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    save(project / name, gradient(24, 16, seed=sum(name.encode())))


def derive(project: Path, *words: str) -> str:
    done = run("derive", "photos", *words, *STORE, cwd=project)
    assert done.returncode in (0, 3), done.stderr
    assert done.returncode == (3 if reasons(project) else 0)
    return done.stdout


def reasons(project: Path) -> dict[str, str]:
    path = project / "derived/.shardwright/failures.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    failures = [json.loads(line) for line in lines]
    return {Path(each["image_path"]).name: each["reason"] for each in failures}


def captions(project: Path) -> dict[str, str]:
    records = store_records(project / "derived")
    return {Path(record["image_path"]).name: record["caption"] for record in records}


def status(project: Path) -> str:
    done = run("status", "derived", cwd=project)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_row_for_two_images_is_a_failure_of_both_until_it_names_one(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png", "a/2.png"):
        picture(tmp_path, f"photos/{name}")
    table = tmp_path / "caps.csv"
    table.write_text("file_name,caption\n1.png,which one\n2.png,two\n")
    ids = ("--ids", "path")
    for words in (("--captions", "caps.csv", *ids), (), ("--update",)):
        listed = "failed: 2\n  caption_ambiguous: 2 (for example photos/a/1.png)\n"
        assert listed in derive(tmp_path, *words)
        assert captions(tmp_path) == {"2.png": "two"}
        said = status(tmp_path)
        assert "could not be derived: 2 images" in said
        assert "new image" not in said
    table.write_text("file_name,caption\na/1.png,one of a\nb/1.png,one of b\na/2.png,two\n")
    assert "derive 2 new images (for example photos/a/1.png)" in status(tmp_path)
    assert "caption_ambiguous" not in derive(tmp_path)
    assert reasons(tmp_path) == {}
    found = store_records(tmp_path / "derived")
    assert sorted(record["caption"] for record in found) == ["one of a", "one of b", "two"]
    assert "could not be derived" not in status(tmp_path)


def test_a_text_for_two_images_is_a_failure_of_both_until_one_is_gone(tmp_path: Path) -> None:
    for name in ("x.png", "x.jpg", "y.png"):
        picture(tmp_path, f"photos/{name}")
    for name in ("x", "y"):
        (tmp_path / f"photos/{name}.txt").write_text(f"the caption of {name}")
    both = {"x.png": "caption_ambiguous", "x.jpg": "caption_ambiguous"}
    for words in (("--ids", "path"), (), ("--update",)):
        assert "  caption_ambiguous: 2 (for example photos/x.jpg)\n" in derive(tmp_path, *words)
        assert reasons(tmp_path) == both
        assert captions(tmp_path) == {"y.png": "the caption of y"}
        assert "new image" not in status(tmp_path)
    (tmp_path / "photos/x.jpg").unlink()
    assert "derive 1 new image (for example photos/x.png)" in status(tmp_path)
    assert "caption_ambiguous" not in derive(tmp_path)
    assert reasons(tmp_path) == {}
    assert captions(tmp_path) == {"x.png": "the caption of x", "y.png": "the caption of y"}
