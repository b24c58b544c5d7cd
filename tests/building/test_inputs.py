"""The inputs of a build: what given paths hold, the rows of a plan, and what changes later."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from shardwright.building import measuring
from shardwright.building.inputs import (
    Found,
    Left,
    Row,
    changed,
    columns,
    differences,
    find,
    listing,
    source_of,
)
from shardwright.building.measuring import Measured, measured
from shardwright.deriving import captions, images
from shardwright.engine import Message, Task
from shardwright.engine.local import Local
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.recipes import SPECIFICATION
from shardwright.storage import extents
from shardwright.storage.extents import Part
from shardwright.summary import Count
from tests.building.tarsets import Member, encoded, members_of, picture, write_set, write_tar
from tests.derive.pictures import gradient, save


def look(paths: Iterable[Path], ids: str = "name", workers: int = 1) -> list[Measured]:
    recipe = SPECIFICATION.override(fit=None, models={}, ids=ids)
    return list(measured(find([*paths], Progress()), recipe, Local(workers), Progress()))


def rows(paths: Iterable[Path], ids: str = "name") -> list[Row | Left]:
    return [each.row for each in look(paths, ids)]


def rows_of_plan(paths: Iterable[Path]) -> list[Row | str]:
    """Give the rows, and the files of what cannot be used, as a plan has them."""
    found = look(paths)
    return [each.row if isinstance(each.row, Row) else each.tar or each.row.path for each in found]


def only(paths: Iterable[Path], ids: str = "name") -> Row:
    (row,) = rows(paths, ids)
    assert isinstance(row, Row), row
    return row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images, one with a text, and two tars, one in a folder of its own."""
    folder = tmp_path / "data"
    save(folder / "b.png", gradient(40, 30))
    save(folder / "sub" / "a.jpg", gradient(30, 50))
    (folder / "sub" / "a.txt").write_text("a soft gradient")
    write_set(folder / "00001.tar", ["1-0", "1-1"])
    write_set(folder / "more" / "00000.tar", ["0-0"])
    return folder


# Finding.


def test_a_folder_gives_its_images_and_its_tars_in_order(folder: Path) -> None:
    (folder / ".hidden.tar").touch()
    (folder / "notes.tar.gz").touch()
    (found,) = find([folder], Progress())
    assert [source.path for source in found.images] == [
        f"{folder}/b.png",
        f"{folder}/sub/a.jpg",
    ]
    assert [source.has_sidecar for source in found.images] == [False, True]
    assert list(found.tars) == [f"{folder}/00001.tar", f"{folder}/more/00000.tar"]
    assert find([folder / "00001.tar"], Progress()) == [
        Found(f"{folder}/00001.tar", [], {f"{folder}/00001.tar": None})
    ]


def test_paths_without_input_are_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.zip").touch()
    fix = "give folders of images, or tars of images"
    for name, kind, what in (
        ("gone", InputMissingError, "no such file or folder"),
        ("empty", InputMissingError, "no images and no tars"),
        ("a.zip", UsageError, "is neither a folder nor a .tar file"),
    ):
        with pytest.raises(kind) as caught:
            find([tmp_path / name], Progress())
        assert str(caught.value) == f"{tmp_path / name}: {what}; {fix}"


def test_a_path_in_another_and_a_path_given_twice_are_refused(folder: Path) -> None:
    tar = folder / "00001.tar"
    with pytest.raises(UsageError) as caught:
        find([tar, folder], Progress())
    what = f"is inside {folder}, which is given too; give only one of them"
    assert str(caught.value) == f"{tar}: {what}"
    (folder.parent / "link").symlink_to(folder)
    for again in (folder, folder.parent / "link"):
        with pytest.raises(UsageError) as caught:
            find([folder, again], Progress())
        assert str(caught.value) == f"{again}: is given twice; give it once"
    assert len(find([folder / "sub", tar], Progress())) == 2


# Rows.


def test_rows_of_files_and_members_come_in_the_order_of_the_inputs(folder: Path) -> None:
    other = write_set(folder.parent / "other.tar", ["x"])
    found = rows([other, folder])
    assert [row.path for row in found] == [
        f"{other}/x.jpg",
        f"{folder}/b.png",
        f"{folder}/sub/a.jpg",
        f"{folder}/00001.tar/1-0.jpg",
        f"{folder}/00001.tar/1-1.jpg",
        f"{folder}/more/00000.tar/0-0.jpg",
    ]
    ours = [row for row in found if isinstance(row, Row)]
    assert [(row.width, row.height) for row in ours] == [
        (24, 16), (40, 30), (30, 50), (24, 16), (25, 16), (24, 16),
    ]  # fmt: skip
    for row in ours:
        assert (row.bytes, row.mtime_ns) == (
            os.path.getsize(row.file),
            os.stat(row.file).st_mtime_ns,
        )
    assert [row.tar for row in ours[3:5]] == [f"{folder}/00001.tar"] * 2
    assert [each.row for each in look([other, folder], workers=2)] == found


def test_a_row_is_upright_and_survives_json(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(Image.fromarray(gradient(40, 30)), "JPEG", exif=exif)
    row = only([write_tar(folder.parent / "t.tar", [("k.jpg", turned)])])
    assert (row.width, row.height) == (30, 40)
    for each in rows([folder]):
        data = msgspec.json.encode(each)
        assert msgspec.json.decode(data, type=type(each)) == each
        assert len(data) < len(each.path) + 150


def test_a_row_leads_back_to_the_bytes_of_its_image_and_its_texts(folder: Path) -> None:
    file, member = (row for row in rows([folder]) if row.path.endswith(("a.jpg", "1-1.jpg")))
    assert isinstance(file, Row)
    assert isinstance(member, Row)
    source = source_of(file)
    assert (source.place, source.image_id) == (f"{folder}/sub/a.jpg", "a")
    assert captions.beside(source) == "a soft gradient"
    source = source_of(member)
    expected = dict(
        member for member in members_of("1-1", 1, (25, 16)) if isinstance(member, tuple)
    )
    assert extents.read(source.place) == expected["1-1.jpg"]
    assert source.path == f"{folder}/00001.tar/1-1.jpg" == str(source.part)
    assert str(source.text) == f"{folder}/00001.tar/1-1.txt"
    assert captions.beside(source) == "the text of 1-1"
    kept = json.loads(expected["1-1.json"])
    del kept["width"], kept["height"]
    assert member.json is not None
    assert columns(Part(member.tar, *member.json, "1-1.json"), SPECIFICATION) == kept
    assert columns(None, SPECIFICATION) == {}


def test_texts_and_json_are_read_with_the_sizes_and_only_bad_json_is_a_problem(
    folder: Path,
) -> None:
    (folder / "b.txt").write_bytes(b"\xff")
    data = json.dumps({"text": "from the json"}).encode()
    blank: list[Member] = [("k.png", picture()), ("k.txt", b" \n"), ("k.json", data)]
    tar = write_tar(folder.parent / "x.tar", [*blank, ("l.png", picture()), ("l.json", b"[]")])
    b, a, *_, k, bad = look([folder, tar])
    assert (b.given, b.text, b.columns) == (str(folder), None, {})
    assert b.fault == ("caption_not_utf8", f"{folder}/b.txt is not UTF-8 text")
    assert (a.text, a.fault) == ("a soft gradient", None)
    assert (k.given, k.text, k.columns) == (str(tar), None, {"caption": "from the json"})
    assert isinstance(bad.row, Left)
    assert (bad.row.path, bad.row.reason, bad.tar) == (
        f"{tar}/l.png",
        "not_an_object",
        str(tar),
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ("name", ["b", "a", "deep%2Fk%25"]),
        ("path", ["b.png", "sub%2Fa.jpg", "tars%2F0%2Fdeep%2Fk%25"]),
        ("captions", ["", "", "the id"]),
    ],
)
def test_ids_come_from_names_from_paths_or_from_json(
    tmp_path: Path, ids: str, expected: list[str]
) -> None:
    save(tmp_path / "in" / "b.png", gradient(8, 8))
    save(tmp_path / "in" / "sub" / "a.jpg", gradient(8, 8))
    member = [("./deep/k%.png", picture()), ("./deep/k%.json", b'{"image_id": "the id"}')]
    write_tar(tmp_path / "in" / "tars" / "0.tar", member)
    assert [row.image_id for row in rows([tmp_path / "in"], ids)] == expected


def test_an_id_of_a_path_in_a_given_tar_begins_with_its_name(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "00007.tar", [("k.png", picture())])
    assert only([path], "path").image_id == "00007%2Fk"
    assert only([path], "captions").image_id == "", "without JSON"


def test_what_cannot_be_used_is_a_problem_with_the_reason_of_derive(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    save(folder / "a.png", gradient(8, 8))
    (folder / "b.png").write_bytes(b"no picture")
    (folder / "c.png").symlink_to("gone")
    write_tar(
        folder / "x.tar",
        [("bad.jpg", b"no picture"), ("no.txt", b"x"), ("ok.png", picture()), ("z.png", picture())],
    )
    (folder / "y.tar").write_bytes(b"text" * 1000)
    write_tar(folder / "z.tar", [("j.png", picture()), ("j.json", b"{")])
    complete = (folder / "x.tar").read_bytes()
    (folder / "x.tar").write_bytes(complete[: complete.index(b"z.png") + 600])
    x = f"{folder}/x.tar"
    both = [(each.row, each.tar) for each in look([folder]) if isinstance(each.row, Left)]
    found = [problem for problem, _ in both]
    assert [(p.image_id, p.path, p.reason, tar) for p, tar in both] == [
        ("b", f"{folder}/b.png", "broken_image", ""),
        ("c", f"{folder}/c.png", "unreadable", ""),
        ("bad", f"{x}/bad.jpg", "broken_image", x),
        ("no", f"{x}/no", "no_image", x),
        ("ok", f"{x}/ok", "sample_cut", x),
        ("", x, "truncated_tar", x),
        ("", f"{folder}/y.tar", "not_a_tar", f"{folder}/y.tar"),
        ("j", f"{folder}/z.tar/j.png", "not_json", f"{folder}/z.tar"),
    ]
    with images.strict(), pytest.raises(images.BadImageError) as caught:
        images.measure(f"{folder}/b.png")
    assert (found[0].reason, found[0].detail) == caught.value.args
    assert found[1].detail == "No such file or directory"
    broken = [each for each in rows([folder], "captions") if isinstance(each, Left)]
    assert (broken[-1].path, broken[-1].reason) == (f"{folder}/z.tar/j.png", "not_json")


def test_names_that_no_record_can_hold_are_problems(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    save(folder / "a.png", gradient(8, 8))
    shutil.copy(folder / "a.png", os.fsdecode(os.fsencode(folder) + b"/\xff.png"))
    write_set(folder / "t.tar", ["k" * 300])
    os.rename(folder / "t.tar", tmp_path / "long.tar")
    write_set(folder / "t.tar", ["k"])
    os.rename(folder / "t.tar", os.fsencode(folder) + b"/\xfe.tar")
    found = rows([folder, tmp_path / "long.tar"])
    assert [(each.path, isinstance(each, Row)) for each in found] == [
        (f"{folder}/a.png", True),
        (f"{folder}/\ufffd.png", False),
        (f"{folder}/\ufffd.tar", False),
        (f"{tmp_path}/long.tar/{'k' * 300}.jpg", False),
    ]
    assert {p.reason for p in found if isinstance(p, Left)} == {"image_id_invalid"}
    assert msgspec.json.decode(msgspec.json.encode(found))


def test_a_folder_that_cannot_be_read_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.png", gradient(8, 8))
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def refusing(path: str) -> Iterator[os.DirEntry[str]]:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    what = "Permission denied; the images in this folder are not used"
    assert rows([tmp_path])[1] == Left("", f"{tmp_path}/closed", "unreadable_folder", what)


def test_shards_of_embeddings_are_no_input_and_every_sample_says_so(tmp_path: Path) -> None:
    members: list[Member] = [("k.json", b"{}"), ("k.vae.npy", b"x"), ("k.t5h.npy", b"x")]
    (problem,) = rows([write_tar(tmp_path / "shard-000000.tar", members)])
    assert isinstance(problem, Left)
    assert (problem.image_id, problem.reason) == ("k", "no_image")
    assert problem.detail == "its members are json, vae.npy, t5h.npy"


class Backwards:
    """An engine whose first task is slow: it ends when all others have, or may not begin."""

    def __init__(self) -> None:
        self.before_first = 0  # tasks that were done before it

    def run(
        self,
        function: Callable[[Task], Iterator[Message]],
        tasks: Iterable[Task],
        instead: object = None,
    ) -> Generator[Message, None, None]:
        waiting = iter(tasks)
        first = next(waiting)
        for task in waiting:
            messages = list(function(task))
            if not messages:  # it is to wait
                break
            self.before_first += 1
            yield from messages
        yield from function(first)
        for task in waiting:
            yield from function(task)


def test_rows_are_in_order_and_few_wait_however_slow_the_first_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_AHEAD", 10)
    monkeypatch.setattr(measuring, "_AT_ONCE", 4)
    monkeypatch.setattr(measuring, "POLL", 0)
    for number in range(12):
        write_set(tmp_path / f"{number:02}.tar", [f"{number:02}-{n}" for n in range(5)])
    engine = Backwards()
    found = measured(find([tmp_path], Progress()), SPECIFICATION, engine, Progress())
    ids = [each.row.image_id for each in found]
    assert ids == [f"{number:02}-{n}" for number in range(12) for n in range(5)]
    assert engine.before_first == 3, "then more than ten rows wait"


def test_workers_give_the_same_rows_as_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_AHEAD", 3)
    monkeypatch.setattr(measuring, "_FILES", 2)
    monkeypatch.setattr(measuring, "_AT_ONCE", 2)
    for number in range(9):
        write_set(tmp_path / f"{number}.tar", [f"{number}-{n}" for n in range(number % 4 + 1)])
        save(tmp_path / f"{number}.png", gradient(8 + number, 8))
    alone = look([tmp_path])
    assert len(alone) == 9 + sum(number % 4 + 1 for number in range(9))
    assert look([tmp_path], workers=3) == alone


# Changes.


def test_an_unchanged_input_is_not_called_changed(folder: Path) -> None:
    found = rows([folder])
    assert [changed(row) for row in found if isinstance(row, Row)] == [None] * 5


def test_a_file_that_was_only_copied_has_not_changed(folder: Path) -> None:
    row = next(row for row in rows([folder]) if isinstance(row, Row))
    os.utime(folder / "b.png", ns=(1, 1))
    assert changed(row) is None


@pytest.mark.parametrize("how", ["longer", "edited", "gone"])
def test_a_file_that_has_changed_is_noticed(folder: Path, how: str) -> None:
    row = next(row for row in rows([folder]) if isinstance(row, Row))
    path = folder / "b.png"
    if how == "gone":
        path.unlink()
        assert changed(row) == ("gone", "its file is gone")
        return
    before = path.stat()
    if how == "longer":
        path.write_bytes(path.read_bytes() + b"\0")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))
    assert changed(row) == ("changed", "its file has changed since it was planned")


def test_a_tar_that_was_only_copied_or_grew_has_not_changed(tmp_path: Path) -> None:
    path = write_set(tmp_path / "x.tar", ["a", "b"])
    found = [row for row in rows([path]) if isinstance(row, Row)]
    os.utime(path, ns=(1, 1))
    assert [changed(row) for row in found] == [None, None]
    write_set(path, ["a", "b", "c"])
    assert [changed(row) for row in found] == [None, None]


@pytest.mark.parametrize("what", ["image", "text", "json", "name", "end", "gone"])
def test_a_member_that_has_changed_is_noticed_and_others_in_its_tar_are_not(
    tmp_path: Path, what: str
) -> None:
    path = write_set(tmp_path / "x.tar", ["a", "b"])
    first, second = (row for row in rows([path]) if isinstance(row, Row))
    data = bytearray(path.read_bytes())
    spans = {"image": second.image, "text": second.text, "json": second.json}
    if what == "gone":
        path.unlink()
        assert changed(second) == ("gone", "its tar is gone")
        return
    if what == "end":
        assert second.text is not None
        del data[second.text[0] + second.text[1] - 1 :]
    elif what == "name":
        data[data.index(b"b.jpg")] = ord("c")
    else:
        offset, size = spans[what] or (0, 0)
        data[offset + size // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    now = "its tar was changed after planning, and this image or its text is different now"
    assert (changed(first), changed(second)) == (None, ("changed", now))


def test_a_long_image_whose_end_is_cut_off_has_changed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.bmp", picture(200, 100, kind="BMP"))])
    row = only([path])
    os.truncate(path, 50_000)
    assert changed(row) is not None


def test_a_member_in_another_folder_has_changed(tmp_path: Path) -> None:
    name = f"{'d' * 60}/{'k' * 60}.png"
    path = write_tar(tmp_path / "x.tar", [(name, picture())], tarfile.USTAR_FORMAT)
    row = only([path])
    path.write_bytes(path.read_bytes().replace(b"d" * 60, b"e" * 60))
    assert changed(row) is not None


# Listings.


def test_a_listing_looks_at_no_image_and_differs_by_names_only(folder: Path) -> None:
    (found,) = find([folder], Progress())
    before = listing(found)
    assert (before.path, before.images, before.tars) == (str(folder), 2, 2)
    (folder / "b.png").unlink()
    (folder / "b.png").symlink_to("gone")
    (found,) = find([folder], Progress())
    assert listing(found) == before
    assert differences([found], rows_of_plan([folder])) == {str(folder): {}}
    assert msgspec.json.decode(msgspec.json.encode(before), type=type(before)) == before


def add_an_image(folder: Path) -> None:
    save(folder / "c.png", gradient(8, 8))
    save(folder / "d.png", gradient(8, 8))


def add_a_text(folder: Path) -> None:
    (folder / "b.txt").write_text("new")


def add_a_tar(folder: Path) -> None:
    write_set(folder / "2.tar", ["x"])


@pytest.mark.parametrize(
    ("change", "kind", "count", "name"),
    [
        (add_an_image, "new", 2, "c.png"),
        (lambda folder: (folder / "b.png").unlink(), "missing", 1, "b.png"),
        (add_a_text, "changed", 1, "b.png"),
        (add_a_tar, "new", 1, "2.tar"),
        (lambda folder: (folder / "00001.tar").unlink(), "missing", 1, "00001.tar"),
        (lambda folder: os.utime(folder / "00001.tar", ns=(1, 1)), "changed", 1, "00001.tar"),
        (lambda folder: write_set(folder / "00001.tar", "abc"), "changed", 1, "00001.tar"),
    ],
)
def test_a_listing_shows_every_change_of_a_given_path_with_an_example(
    folder: Path, change: Callable[[Path], object], kind: str, count: int, name: str
) -> None:
    (folder / "broken.png").write_bytes(b"no picture")
    other = write_set(folder.parent / "other.tar", ["x"])
    before = [listing(found) for found in find([other, folder], Progress())]
    planned = rows_of_plan([other, folder])
    change(folder)
    same, found = find([other, folder], Progress())
    assert [listing(same) == before[0], listing(found) == before[1]] == [True, False]
    assert differences([same, found], planned) == {
        str(other): {},
        str(folder): {kind: Count(count, f"{folder}/{name}")},
    }
