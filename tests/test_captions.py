"""Which image gets which caption of a captions file: the same rule in ``build`` and ``derive``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import UsageError
from tests.building.builds import build, ledger, records, write_recipe
from tests.building.tarsets import picture, write_tar
from tests.commands import run
from tests.derive.pictures import gradient, save, sketch, store_records

Texts = dict[str, str]  # captions, by the ends of the paths of their images


def built(images: Path, output: Path, **options: Any) -> tuple[Any, Texts]:  # noqa: ANN401
    summary = build(images, output, **options)
    return summary, {r["image_path"]: r["caption"] for r in records(output).values()}


def derived(images: Path, output: Path, **options: Any) -> tuple[Any, Texts]:  # noqa: ANN401
    summary = sketch(images, output, **options)
    return summary, {r["image_path"]: r["caption"] for r in store_records(output)}


both = pytest.mark.parametrize("make", [built, derived])
Make = Callable[..., tuple[Any, Texts]]


def paint(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        save(folder / name, gradient(64, 64, seed=number))
    return folder


def write(file: Path, *rows: str, head: str = "file_name,caption") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([head, *rows]) + "\n")
    return file


def ends(texts: Texts, folder: Path) -> Texts:
    return {os.path.relpath(path, folder): text for path, text in texts.items()}


def failed(summary: Any) -> dict[str, int]:  # noqa: ANN401 - of build or derive
    counts = getattr(summary, "failed_by_reason", None)
    counts = summary.left_out if counts is None else counts
    return {reason: count.count for reason, count in counts.items()}


def numbers(summary: Any) -> tuple[int, int, int]:  # noqa: ANN401 - of build or derive
    rows = summary.caption_rows
    return rows.rows_used, rows.rows_unused, rows.images_without_row


@both
def test_a_row_of_another_folder_captions_no_image_of_the_same_name(
    make: Make, tmp_path: Path
) -> None:
    cats = paint(tmp_path / "ph/cats", "001.png", "002.png")
    rows = ("cats/001.png,a cat", "dogs/001.png,a dog", "dogs/002.png,another dog")
    summary, texts = make(cats, tmp_path / "out", captions=write(tmp_path / "all.csv", *rows))
    assert ends(texts, cats) == {"001.png": "a cat"}
    assert failed(summary) == {"no_caption": 1}
    assert numbers(summary) == (1, 2, 1)
    assert summary.caption_rows.base == f"paths from {tmp_path}/ph"
    assert summary.unused_rows["no_such_image"].count == 2


@both
@pytest.mark.parametrize("rows", [("cats/001.png,a cat",), ()])
def test_an_absolute_row_of_another_folder_captions_no_image_of_the_same_name(
    make: Make, rows: tuple[str, ...], tmp_path: Path
) -> None:
    cats = paint(tmp_path / "ph/cats", "001.png", "002.png")
    (cats / "001.txt").write_text("beside it")
    file = write(tmp_path / "all.csv", *rows, "/mnt/elsewhere/dogs/002.png,a dog")
    summary, texts = make(cats, tmp_path / "out", captions=file)
    assert ends(texts, cats) == {"001.png": "a cat" if rows else "beside it"}
    assert failed(summary) == {"no_caption": 1}


@both
def test_a_name_without_a_folder_is_that_of_one_image(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "1.jpg", "a/1.jpg", "b/1.jpg")
    file = write(tmp_path / "c.csv", "1.jpg,the first")
    summary, texts = make(images, tmp_path / "out", captions=file, ids="path")
    assert ends(texts, images) == {"1.jpg": "the first"}
    assert failed(summary) == {"no_caption": 2}
    assert numbers(summary) == (1, 0, 2)


@both
def test_a_row_for_two_images_is_used_for_none(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "a/1.jpg", "b/1.jpg", "b/2.jpg")
    file = write(tmp_path / "c.csv", "1.jpg,one", "2.jpg,two")
    summary, texts = make(images, tmp_path / "out", captions=file, ids="path")
    assert ends(texts, images) == {"b/2.jpg": "two"}
    assert failed(summary) == {"caption_ambiguous": 2}
    assert numbers(summary) == (1, 1, 0)
    assert summary.unused_rows["several_images"].example == "1.jpg"


@both
def test_a_text_file_beside_two_images_is_used_for_none(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "x.jpg", "x.jpeg", "y.jpg")
    for name in "xy":
        (images / f"{name}.txt").write_text(f"of {name}")
    options: dict[str, Any] = {"ids": "path"}
    assert failed(make(images, tmp_path / "out", **options, dry_run=True)[0]
                  if make is built else sketch(images, tmp_path / "dry", **options, dry_run=True)
                  ) == {"caption_ambiguous": 2}  # fmt: skip
    summary, texts = make(images, tmp_path / "out", **options)
    assert ends(texts, images) == {"y.jpg": "of y"}
    assert failed(summary) == {"caption_ambiguous": 2}
    file = write(tmp_path / "c.csv", "x.jpg,one", "x.jpeg,two")
    _, texts = make(images, tmp_path / "rows", **options, captions=file)
    assert sorted(texts.values()) == ["of y", "one", "two"]


@both
def test_rows_of_the_layout_of_the_specification_begin_at_the_project_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = paint(tmp_path / "data/approved", "p0.png", "sub/p1.png")
    rows = ("data/approved/p0.png,zero", "data/approved/sub/p1.png,one")
    file = write(tmp_path / "data/captions.csv", *rows)
    summary, texts = make(images, tmp_path / "out", captions=file)
    assert ends(texts, images) == {"p0.png": "zero", "sub/p1.png": "one"}
    monkeypatch.chdir(tmp_path)
    summary, texts = make(Path("data/approved"), tmp_path / "here", captions="data/captions.csv")
    assert sorted(texts.values()) == ["one", "zero"]
    assert summary.caption_rows.base == "paths from the working folder"
    assert numbers(summary) == (2, 0, 0)


@both
def test_file_names_in_metadata_csv_begin_at_its_folder(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "train/1.png", "train/2.png", "test/1.png")
    file = write(images / "train/metadata.csv", "1.png,one", "2.png,two")
    summary, texts = make(images, tmp_path / "out", captions=file, ids="path")
    assert ends(texts, images) == {"train/1.png": "one", "train/2.png": "two"}
    assert summary.caption_rows.base == f"paths from {images}/train"


@both
@pytest.mark.parametrize("old", ["/old/data/approved", "old/approved", "C:\\me\\approved"])
def test_rows_name_the_images_of_a_tree_that_has_moved(
    make: Make, old: str, tmp_path: Path
) -> None:
    images = paint(tmp_path / "data/approved", "p0.png", "p1.png", "p2.png")
    slash = "\\" if "\\" in old else "/"
    file = write(tmp_path / "c.csv", *(f"{old}{slash}p{n}.png,number {n}" for n in range(2)))
    (images / "p2.txt").write_text("beside it")
    summary, texts = make(images, tmp_path / "out", captions=file)
    assert ends(texts, images) == {
        "p0.png": "number 0",
        "p1.png": "number 1",
        "p2.png": "beside it",
    }
    assert " is now " in summary.caption_rows.base
    assert numbers(summary) == (2, 0, 1)


@both
def test_backslashes_separate_folders_if_no_row_has_a_slash(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "a/1.png", "b/1.png")
    file = write(tmp_path / "c.csv", "a\\1.png,one", "b\\1.png,two")
    _, texts = make(images, tmp_path / "out", captions=file, ids="path")
    assert ends(texts, images) == {"a/1.png": "one", "b/1.png": "two"}


@both
def test_rows_that_fit_two_bases_equally_well_are_refused(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "x", "1.png", "x/1.png")
    file = write(tmp_path / "c.csv", "x/1.png,which one?")
    with pytest.raises(UsageError, match="can be read in two ways") as caught:
        make(images, tmp_path / "out", captions=file, ids="path")
    message = str(caught.value)
    assert f"paths from {tmp_path}/x, or paths from {tmp_path}; write absolute paths" in message
    assert not (tmp_path / "out/.shardwright/manifest.json").exists()
    file = write(tmp_path / "c.csv", f"{images}/x/1.png,the inner")
    (images / "1.txt").write_text("beside it")
    summary, texts = make(images, tmp_path / "absolute", captions=file, ids="path")
    assert ends(texts, images) == {"1.png": "beside it", "x/1.png": "the inner"}
    assert summary.caption_rows.base == "absolute paths"


def test_one_file_captions_several_folders(tmp_path: Path) -> None:
    one, two = paint(tmp_path / "one", "1.png", "2.png"), paint(tmp_path / "two", "1.png", "3.png")
    options: dict[str, Any] = {"ids": "path", "recipe": write_recipe(tmp_path)}
    rows = ("one/1.png,a", "one/2.png,b", "two/1.png,c", "two/3.png,d")
    file = write(tmp_path / "c.csv", *rows)
    save(two / "1.png", gradient(64, 64, seed=9))
    os.rename(two / "1.png", two / "4.png")
    file = write(tmp_path / "c.csv", *rows[:2], "two/4.png,c", rows[3])
    summary = shardwright.build(
        [one, two], output_dir=tmp_path / "out", encoders="sketch", captions=file, **options
    )
    found = {r["image_path"]: r["caption"] for r in records(tmp_path / "out").values()}
    assert ends(found, tmp_path) == {
        "one/1.png": "a", "one/2.png": "b", "two/4.png": "c", "two/3.png": "d",
    }  # fmt: skip
    assert numbers(summary) == (4, 0, 0)
    bare = write(tmp_path / "c.csv", "2.png,b", "3.png,d")
    summary = shardwright.build(
        [one, two], output_dir=tmp_path / "bare", encoders="sketch", captions=bare, **options
    )
    assert sorted(r["caption"] for r in records(tmp_path / "bare").values()) == ["b", "d"]


@pytest.mark.parametrize(
    "rows", [("k.png,one", "m.png,two"), ("t.tar/k.png,one", "u.tar/m.png,two")]
)
def test_rows_name_members_of_tars_with_and_without_their_tar(
    rows: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    write_tar(folder / "t.tar", [("k.png", picture()), ("both.png", picture())])
    write_tar(folder / "u.tar", [("m.png", picture()), ("both.png", picture(seed=1))])
    file = write(tmp_path / "c.csv", *rows)
    summary, texts = built(folder, tmp_path / "out", captions=file)
    assert ends(texts, folder) == {"t.tar/k.png": "one", "u.tar/m.png": "two"}
    assert numbers(summary) == (2, 0, 2)
    file = write(tmp_path / "c.csv", *rows, "both.png,of which?")
    summary = build(folder, tmp_path / "both", captions=file)
    assert failed(summary) == {"caption_ambiguous": 2}


def test_numbers_of_a_csv_are_numbers_where_a_column_has_nothing_else(tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "1.png", "2.png", "3.png")
    head = "file_name,caption,score,year,code,mixed,long"
    rows = (
        "1.png,1,9,1999,007,1,12345678901234567890",
        "2.png,2,10.5,,8,x,2",
        "3.png,3,-1e2,2001,9,3,3",
    )
    file = write(tmp_path / "c.csv", *rows, head=head)
    sketch(images, tmp_path / "store", captions=file)
    found = {r["image_id"]: r for r in store_records(tmp_path / "store")}
    assert [found[n]["score"] for n in "123"] == [9, 10.5, -100.0]
    assert [found[n].get("year") for n in "123"] == [1999, None, 2001]
    assert [found[n]["code"] for n in "123"] == ["007", "8", "9"]
    assert [found[n]["mixed"] for n in "123"] == ["1", "x", "3"]
    assert found["2"]["long"] == "2"
    assert found["1"]["caption"] == "1"
    build(images, tmp_path / "out", captions=file, where="score > 9.5")
    assert list(records(tmp_path / "out")) == ["2"]


@both
def test_a_csv_may_have_blanks_after_its_commas(tmp_path: Path, make: Make) -> None:
    images = paint(tmp_path / "images", "1.png", "2.png", "3.png")
    rows = ("1.png, one, 9, a b", "2.png, two, 10.5, c", "3.png, three, , 7")
    file = write(tmp_path / "c.csv", *rows, head="file_name, caption, score, note")
    _, texts = make(images, tmp_path / "out", captions=file)
    assert ends(texts, images) == {"1.png": "one", "2.png": "two", "3.png": "three"}
    found = records(tmp_path / "out").values() if make is built else store_records(tmp_path / "out")
    assert [each.get("score") for each in found] == [9, 10.5, None]
    assert [each["note"].strip() for each in found] == ["a b", "c", "7"]


@both
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", "file_name;prompt;n\n1.png;one, two;5\n"),
        ("c.tsv", "file_name\ttext\tn\n1.png\tone, two\t5\n"),
        ("c.csv", "file_name\tcaption\tn\n1.png\tone, two\t5\n"),
        ("c.csv", '"file_name","caption","n"\n"1.png","one, two","5"\n'),
        ("c.csv", '"file_name";"caption";"n"\n"1.png";"one, two";"5"\n'),
        ("c.csv", '"n"\t"file_name"\t"caption"\n"5"\t"1.png"\t"one, two"\n'),
        ("c.jsonl", '{"file_name": "1.png", "prompt": "one, two", "n": 5}\n'),
    ],
)
def test_captions_with_other_separators_and_names_are_read(
    make: Make, name: str, text: str, tmp_path: Path
) -> None:
    images = paint(tmp_path / "images", "1.png")
    (tmp_path / name).write_text(text)
    _, texts = make(images, tmp_path / "out", captions=tmp_path / name)
    assert list(texts.values()) == ["one, two"]
    kept = records(tmp_path / "out").values() if make is built else store_records(tmp_path / "out")
    assert [each["n"] for each in kept] == [5]


def test_captions_in_parquet_are_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    images = paint(tmp_path / "images", "1.png", "2.png")
    columns = {"image_path": ["1.png", "2.png"], "text": ["one", "two"], "score": [0.5, None]}
    parquet.write_table(pa.table(columns), tmp_path / "c.parquet")
    sketch(images, tmp_path / "store", captions=tmp_path / "c.parquet")
    found = store_records(tmp_path / "store")
    assert [(r["caption"], r.get("score")) for r in found] == [("one", 0.5), ("two", None)]
    parquet.write_table(pa.table({**columns, "image": [b"x", b"y"]}), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match='the column "image" holds bytes, which no record can'):
        sketch(images, tmp_path / "other", captions=tmp_path / "c.parquet")


@both
def test_a_text_file_that_is_too_large_is_a_reason(make: Make, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "1.png", "2.png")
    (images / "1.txt").write_text("one")
    with (images / "2.txt").open("wb") as file:
        file.truncate((64 << 20) + 1)
    for _ in range(2 if make is derived else 1):
        summary, texts = make(images, tmp_path / "out")
        assert list(texts.values()) == ["one"]
        assert failed(summary) == {"caption_too_large": 1}
    if make is built:
        assert [line["reason"] for line in ledger(tmp_path / "out")] == ["caption_too_large"]


@pytest.mark.parametrize("command", ["build", "derive"])
def test_the_summary_counts_rows_and_images_without_one(command: str, tmp_path: Path) -> None:
    images = paint(tmp_path / "images", "1.png", "2.png")
    (images / "2.txt").write_text("two")
    write(tmp_path / "c.csv", "1.png,first", "1.png,one", "gone.png,none")
    where = {"build": "--output-dir", "derive": "--derived-dir"}[command]
    words = (command, "images", where, "out", "--encoders", "sketch", "--captions", "c.csv")
    planned = run(*words, "--dry-run", cwd=tmp_path)
    done = run(*words, cwd=tmp_path)
    for each in (planned, done):
        assert each.returncode == 0, each.stderr
        assert "c.csv: 1 of 3 rows used (paths from images)\n" in each.stderr
        lines = "rows_used: 1 (paths from images)\nrows_unused: 2\nimages_without_row: 1\n"
        assert lines in each.stdout
    found = json.loads(run(*words, "--json", "--dry-run", cwd=tmp_path).stdout)
    if command == "derive":
        assert found["caption_rows"] == {
            "file": "c.csv",
            "base": "paths from images",
            "rows_used": 1,
            "rows_unused": 2,
            "images_without_row": 1,
        }


def test_rows_of_a_captions_file_below_the_images_may_go_up_again(tmp_path: Path) -> None:
    images = paint(tmp_path / "data", "approved/1.png", "approved/2.png")
    file = write(images / "meta/c.csv", "../approved/1.png,one", "../approved/2.png,two")
    _, texts = derived(images, tmp_path / "out", captions=file)
    assert ends(texts, images) == {"approved/1.png": "one", "approved/2.png": "two"}


@both
@pytest.mark.parametrize("start", ["", "{}/data/"])
def test_rows_of_files_that_are_there_caption_no_images_of_another_folder(
    make: Make, start: str, tmp_path: Path
) -> None:
    for name in ("train", "val"):
        paint(tmp_path / "data" / name, "cats/1.png", "cats/2.png")
        (tmp_path / "data" / name / "cats/1.txt").write_text("beside it")
    begin = start.format(tmp_path)
    rows = [f"{begin}train/cats/{number}.png,of train" for number in (1, 2)]
    file = write(tmp_path / "data/c.csv", *rows)
    summary, texts = make(tmp_path / "data/val", tmp_path / "out", captions=file)
    assert list(texts.values()) == ["beside it"]
    assert failed(summary) == {"no_caption": 1}
    assert numbers(summary) == (0, 2, 2)
    assert summary.unused_rows["elsewhere"].example == f"{begin}train/cats/1.png"
    # Also where one of the files is gone: the folder is there.
    (tmp_path / "data/train/cats/2.png").unlink()
    _, texts = make(tmp_path / "data/val", tmp_path / "again", captions=file)
    assert list(texts.values()) == ["beside it"]


@both
def test_names_of_files_beside_the_captions_caption_no_images_of_another_folder(
    make: Make, tmp_path: Path
) -> None:
    for name in ("s1", "s2"):
        paint(tmp_path / name, "1.png", "2.png")
    (tmp_path / "s2/1.txt").write_text("beside it")
    file = write(tmp_path / "s1/c.csv", "1.png,of s1", "2.png,of s1")
    summary, texts = make(tmp_path / "s2", tmp_path / "out", captions=file)
    assert list(texts.values()) == ["beside it"]
    assert numbers(summary) == (0, 2, 2)
    for number in (1, 2):  # in a folder of their own, captions are for any images
        (tmp_path / f"s1/{number}.png").unlink()
    summary, texts = make(tmp_path / "s2", tmp_path / "again", captions=file)
    assert list(texts.values()) == ["of s1", "of s1"]
    assert numbers(summary) == (2, 0, 0)


@both
def test_captions_beside_some_of_the_images_are_not_for_those_in_other_folders(
    make: Make, tmp_path: Path
) -> None:
    images = paint(tmp_path / "d", "s1/1.png", "s2/2.png")
    file = write(images / "s1/c.csv", "1.png,one", "2.png,two")
    summary, texts = make(images, tmp_path / "out", captions=file)
    assert ends(texts, images) == {"s1/1.png": "one"}
    assert failed(summary) == {"no_caption": 1}
    assert numbers(summary) == (1, 1, 1)
    assert summary.caption_rows.base == f"paths from {images}/s1"
    file = write(images / "meta/c.csv", "1.png,one", "2.png,two")
    _, texts = make(images, tmp_path / "names", captions=file)
    assert ends(texts, images) == {"s1/1.png": "one", "s2/2.png": "two"}


def test_rows_of_a_tar_that_is_there_caption_no_members_of_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        members = [("k.png", picture()), ("k.txt", b"in the tar")]
        write_tar(tmp_path / name / "0.tar", members)
    file = write(tmp_path / "c.csv", "a/0.tar/k.png,of a")
    summary, texts = built(tmp_path / "b", tmp_path / "out", captions=file)
    assert list(texts.values()) == ["in the tar"]
    assert numbers(summary) == (0, 1, 1)
    (tmp_path / "a/0.tar").unlink()
    _, texts = built(tmp_path / "b", tmp_path / "moved", captions=file)
    assert list(texts.values()) == ["of a"]


@pytest.mark.parametrize("command", ["build", "derive"])
def test_rows_of_files_elsewhere_are_reported(command: str, tmp_path: Path) -> None:
    for name in ("train", "val"):
        paint(tmp_path / name, "cats/1.png")
    (tmp_path / "val/cats/1.txt").write_text("beside it")
    write(tmp_path / "c.csv", "train/cats/1.png,of train")
    where = {"build": "--output-dir", "derive": "--derived-dir"}[command]
    done = run(
        *(command, "val", where, "out", "--encoders", "sketch", "--captions", "c.csv"), cwd=tmp_path
    )
    assert done.returncode == 0
    assert "c.csv: 1 row whose file is elsewhere, for example train/cats/1.png\n" in done.stderr
