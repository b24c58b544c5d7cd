"""Finding images and their captions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardwright.cli import derive
from shardwright.deriving import captions, sources
from shardwright.deriving.captions import CaptionError
from shardwright.deriving.sources import Source, problems
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Lines, Progress
from shardwright.recipes import SPECIFICATION

_APART = "use --ids path to tell them apart"


def find(folder: Path) -> list[Source]:
    return sources.find(folder, Progress())


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def too_deep(folder: Path, name: str) -> str:
    """Make a folder whose path is too long to be read, by root or anybody; give that path."""
    path, place = str(folder), os.open(folder, os.O_RDONLY)
    while len(path) <= 4096:
        path = os.path.join(path, name := name.ljust(200, "x"))
        os.mkdir(name, dir_fd=place)
        inner = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    return path


def test_all_images_below_a_folder_are_found_in_the_order_of_their_paths(tmp_path: Path) -> None:
    names = ["b.JPG", "a.png", "sub/c.webp", "sub/deeper/d.gif", "e.bmp", "f.tiff", "g.jpeg"]
    touch(*(tmp_path / name for name in names))
    touch(tmp_path / "notes.md", tmp_path / "a.txt", tmp_path / ".hidden.jpg")
    touch(tmp_path / ".trash/h.jpg")
    found = find(tmp_path)
    assert [s.path for s in found] == sorted(str(tmp_path / name) for name in names)
    assert {s.image_id: s.has_sidecar for s in found}["a"]
    assert sum(s.has_sidecar for s in found) == 1


def test_every_file_that_is_plainly_an_image_is_found(tmp_path: Path) -> None:
    suffixes = "jpg JPG jpeg jpe jfif png webp gif bmp tif tiff avif heic heif hif jxl jp2 j2k jpx"
    suffixes += " ppm tga qoi psd svg dng CR2 nef arw exr ico"
    names = [f"{number}.{suffix}" for number, suffix in enumerate(suffixes.split())]
    touch(*(tmp_path / name for name in names))
    touch(*(tmp_path / f"x.{suffix}" for suffix in ("txt", "json", "mp4", "pdf", "npy", "")))
    assert {os.path.basename(source.path) for source in find(tmp_path)} == set(names)


def test_a_folder_below_that_cannot_be_read_stands_for_its_images(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "x.jpg")
    place = too_deep(tmp_path, "x")
    found = find(tmp_path)
    assert [source.path for source in found][:2] == [
        str(tmp_path / "a.jpg"),
        str(tmp_path / "x.jpg"),
    ]
    assert found[2].path == place
    assert problems(found, SPECIFICATION) == {
        2: (
            "unreadable_folder",
            "File name too long; the images in this folder are not derived",
        )
    }


def test_a_link_that_leads_to_itself_is_no_folder(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [source.image_id for source in find(tmp_path)] == ["a"]


def test_links_to_files_are_followed_and_links_to_folders_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(tmp_path / "raw/x.jpg")
    approved = tmp_path / "approved"
    approved.mkdir()
    (approved / "y.jpg").symlink_to(tmp_path / "raw/x.jpg")
    (approved / "more").symlink_to(tmp_path / "raw")
    (approved / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    found = sources.find(approved, Lines())
    assert [s.image_id for s in found] == ["dangling", "y"]
    assert f"{approved}/more: skipped, because it is a link to a folder" in capsys.readouterr().err


def test_an_id_ends_at_the_last_dot(tmp_path: Path) -> None:
    touch(tmp_path / "v1.2.final.jpg")
    assert find(tmp_path)[0].image_id == "v1.2.final"


def test_an_empty_folder_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    touch(tmp_path / "readme.md")
    with pytest.raises(InputMissingError, match="no images; looked for jpg, jpeg, png"):
        find(tmp_path)
    with pytest.raises(InputMissingError, match="no such folder"):
        find(tmp_path / "gone")


def test_two_images_with_one_id_are_both_problems(tmp_path: Path) -> None:
    touch(tmp_path / "a.jpg", tmp_path / "a.png", tmp_path / "b.jpg", tmp_path / "sub/b.jpg")
    touch(tmp_path / "c.jpg")
    found = find(tmp_path)
    bad = problems(found, SPECIFICATION)
    assert [found[n].path for n in bad] == [s.path for s in found if s.image_id != "c"]
    assert {reason for reason, _ in bad.values()} == {"duplicate_id"}
    assert bad[0][1] == f"{tmp_path}/a.png has the same image_id; {_APART}"


def test_the_only_image_in_a_usual_format_keeps_its_id(tmp_path: Path) -> None:
    touch(tmp_path / "a.heic", tmp_path / "a.jpg", tmp_path / "a.NEF")
    touch(tmp_path / "b.heic", tmp_path / "b.avif")
    found = find(tmp_path)
    by_name = {
        os.path.basename(found[n].path): detail
        for n, (_, detail) in problems(found, SPECIFICATION).items()
    }
    assert by_name == {
        "a.heic": f"{tmp_path}/a.jpg has the same image_id; {_APART}",
        "a.NEF": f"{tmp_path}/a.jpg has the same image_id; {_APART}",
        "b.avif": f"{tmp_path}/b.heic has the same image_id; {_APART}",
        "b.heic": f"{tmp_path}/b.avif has the same image_id; {_APART}",
    }


def test_a_name_that_is_not_unicode_is_a_problem(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff\xfe.jpg", "wb"):
        pass
    assert problems(find(tmp_path), SPECIFICATION) == {
        0: ("image_id_invalid", "its name is not a valid image_id")
    }


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def matched(file: Path, root: Path, *paths: Path) -> captions.Captions:
    found = captions.read(file, root, SPECIFICATION)
    found.match_sources([Source(path.stem, str(path), False) for path in paths])
    return found


def caption_of(file: Path, root: Path, path: Path, *others: Path) -> str | None:
    row = matched(file, root, path, *others).of(Source(path.stem, str(path), False))
    return row.get("caption")


@pytest.mark.parametrize("given", ["a.jpg", "in/a.jpg", "./in/a.jpg", "root/in/a.jpg"])
def test_rows_may_be_relative_to_any_folder_above(tmp_path: Path, given: str) -> None:
    file = write_jsonl(tmp_path / "c.jsonl", [{"file_name": given, "text": " a cat \n"}])
    root = tmp_path / "root"
    assert caption_of(file, root, root / "in/a.jpg") == "a cat"


def test_the_later_of_two_rows_of_one_image_wins(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"image_path": "in/a.jpg", "caption": "old"},
        {"image_path": "in/a.jpg", "caption": "new"},
        {"image_path": str(tmp_path / "in/a.jpg"), "caption": "newest"},
    ]
    file = write_jsonl(tmp_path / "c.jsonl", rows)
    assert caption_of(file, tmp_path, tmp_path / "in/a.jpg") == "newest"
    found = matched(file, tmp_path, tmp_path / "in/a.jpg")
    assert found.unused()["repeated"].count == 2
    assert (found.summed().rows_used, found.summed().rows_unused) == (1, 2)


def test_csv_is_read_with_its_quotes_and_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_bytes('\ufefffile_name,text\na.jpg,"a cat, ""Tom"",\nasleep"\nb.jpg,\n'.encode())
    assert caption_of(file, tmp_path, tmp_path / "a.jpg") == 'a cat, "Tom",\nasleep'
    assert caption_of(file, tmp_path, tmp_path / "b.jpg") is None


def test_a_caption_that_is_a_list_is_called_so(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"file_name": "a.jpg", "caption": ["one", "two"]},
        {"file_name": "b.jpg", "caption": ["one"]},
        {"file_name": "c.jpg", "text": {"en": "one"}},
        {"file_name": "d.jpg", "text": ""},
        {"file_name": "e.jpg"},
    ]
    found = matched(write_jsonl(tmp_path / "c.jsonl", rows), tmp_path).unused()
    assert {reason: (rows.count, rows.example) for reason, rows in found.items()} == {
        "caption_is_list": (2, "a.jpg"),
        "caption_not_string": (1, "c.jpg"),
        "no_caption": (2, "d.jpg"),
    }


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.jsonl", b'{"file_name": "a.jpg", "text": "x"}\nnonsense\n', "line 2: not json"),
        ("c.jsonl", b'{"caption": "x"}\n', "line 1: names no image"),
        ("c.csv", b"picture,text\na.jpg,x\n", "its columns are picture, text"),
        ("c.csv", b"file_name,text\n\xff\xfe,x\n", "not UTF-8"),
        ("c.csv", b"file_name,text\na.jpg,x\nb.jpg,a cat, asleep\n", "line 3: has more cells"),
        ("c.csv", b'file_name,text\na.jpg,x\nb.jpg,"y\nc.jpg,z\n', "line 3: unexpected end"),
        ("c.csv", b'file_name,text\na.jpg,"x\nb.jpg,"y"\n', "line 2: .* expected after"),
        ("c.csv", b'file_name,"text\na.jpg,x\n', "line 1: unexpected end"),
        ("c.csv", b"file_name,text,tag,tag\na.jpg,x,1,2\n", 'the column "tag" is there twice'),
        ("c.csv", "file_name,text\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        ("c.xlsx", b"PK\x03\x04rest", "is a spreadsheet or a zip file; save it as CSV"),
        ("c.csv.gz", b"\x1f\x8brest", "is compressed; unpack it with gunzip first"),
        ("c.json", b'[{"file_name": "a.jpg"}]', "is a JSON array, not JSONL"),
        ("c.txt", b"file_name,text\na.jpg,x\n", "is not JSONL; give --captions a JSONL, CSV"),
        ("c.parquet", b"no parquet", "cannot be read as Parquet"),
    ],
)
def test_a_captions_file_that_cannot_be_used_stops_the_run(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        captions.read(tmp_path / name, tmp_path, SPECIFICATION)


def test_a_sidecar_is_text_in_utf8(tmp_path: Path) -> None:
    source = Source("a", str(tmp_path / "a.jpg"), True)
    (tmp_path / "a.txt").write_bytes("\ufeffein Käfer\r\n".encode())
    assert captions.beside(source) == "ein Käfer"
    (tmp_path / "a.txt").write_bytes(b" \n")
    assert captions.beside(source) is None
    (tmp_path / "a.txt").write_bytes("Käfer".encode("latin-1"))
    with pytest.raises(CaptionError, match="caption_not_utf8"):
        captions.beside(source)


def test_the_help_gives_the_status_of_a_model_that_is_not_there() -> None:
    (line,) = [line for line in str(derive.__doc__).splitlines() if "no such model" in line]
    assert line.split()[0] == str(InputMissingError.exit_code)
