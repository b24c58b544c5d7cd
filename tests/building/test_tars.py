"""Tars of images: which samples they hold, where their bytes are, and what is left out."""

from __future__ import annotations

import json
import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features
from webdataset.tariterators import group_by_keys, tar_file_expander

from shardwright.building.tars import Flaw, TarSample, given_id, row, samples
from shardwright.deriving import captions, images
from shardwright.deriving.captions import CaptionError
from shardwright.deriving.images import BadImageError
from shardwright.deriving.sources import Source
from shardwright.deriving.views import View, look
from shardwright.encoders.picture import Writer
from shardwright.recipes import SPECIFICATION, Component
from shardwright.recipes.values import PIXELS
from shardwright.storage import extents
from shardwright.storage.extents import HEAD, Part
from shardwright.store import facts
from tests.building.tarsets import (
    LAYOUTS,
    Member,
    encoded,
    members_of,
    picture,
    special,
    write_set,
    write_tar,
)
from tests.derive.pictures import gradient

FORMATS = {
    "jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP", "tif": "TIFF",
    "jp2": "JPEG2000", "ppm": "PPM", "tga": "TGA", "avif": "AVIF",
}  # fmt: skip
ORIENTATION = 0x0112
Contents = dict[str, dict[str, bytes]]  # by key and field


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with images.strict():
        yield


def good(path: Path) -> list[TarSample]:
    found = list(samples(str(path)))
    assert not any(isinstance(sample, Flaw) for sample in found), found
    return [sample for sample in found if isinstance(sample, TarSample)]


def flaws(path: Path) -> list[tuple[str, str]]:
    return [(f.key, f.reason) for f in samples(str(path)) if isinstance(f, Flaw)]


def keys(path: Path) -> list[str]:
    return [s.key for s in samples(str(path)) if isinstance(s, TarSample)]


def contents(path: Path) -> Contents:
    """Read the samples that are found, with all their bytes."""
    found: Contents = {}
    for sample in samples(str(path)):
        if isinstance(sample, TarSample):
            parts = [part for part in sample[1:] if isinstance(part, Part)]
            found[sample.key] = {p.name[len(sample.key) + 1 :]: extents.read(p) for p in parts}
    return found


def placed(tmp_path: Path, data: bytes, name: str) -> Part:
    """Put an image into a tar, between others."""
    path = write_tar(tmp_path / "one.tar", [("0.txt", b"-"), (name, data), ("z.txt", b"-")])
    return next(s.image for s in samples(str(path)) if isinstance(s, TarSample))


# Samples.


def test_the_samples_of_img2dataset_are_found_with_all_their_bytes(tmp_path: Path) -> None:
    path = write_set(tmp_path / "00000.tar", ["000000000", "000000007"])
    assert [sample.key for sample in good(path)] == ["000000000", "000000007"]
    expected = {key: members_of(key, n, (24 + n, 16)) for n, key in enumerate(contents(path))}
    assert contents(path) == {
        key: {str(name)[len(key) + 1 :]: data for name, data in members}  # type: ignore[misc]
        for key, members in expected.items()
    }


IMAGES = st.sampled_from(["jpg", "png", "webp", "jpeg", "PNG"])
BESIDE = st.dictionaries(
    st.sampled_from(["txt", "json", "cls", "vae.npy", "seg.png"]), st.binary(max_size=600)
)
PLAIN = st.text("abcXYZ019_- ", min_size=1, max_size=12)
ANY = st.text(
    st.characters(exclude_characters="./\0", exclude_categories=["Cs"]), min_size=1, max_size=8
)
LONG = st.builds(lambda text, times: text * times, ANY, st.integers(1, 40))


def keys_for(layout: int) -> st.SearchStrategy[str]:
    names = PLAIN if layout == tarfile.USTAR_FORMAT else PLAIN | ANY | LONG
    return names | st.builds("{}/{}".format, names, names)


@st.composite
def sets(draw: st.DrawFn) -> tuple[int, dict[str, tuple[str, bytes, dict[str, bytes]]]]:
    """A layout, and for each key its image and what lies with it."""
    layout = draw(st.sampled_from(LAYOUTS))
    sample = st.tuples(IMAGES, st.binary(max_size=1500), BESIDE)
    return layout, draw(st.dictionaries(keys_for(layout), sample, min_size=1, max_size=6))


@settings(deadline=None, max_examples=150)
@given(drawn=sets())
def test_any_samples_that_tarfile_writes_are_found_again_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[int, dict[str, tuple[str, bytes, dict[str, bytes]]]],
) -> None:
    layout, given_ = drawn
    path = tmp_path_factory.mktemp("tars") / "x.tar"
    write_tar(
        path,
        [
            (f"{key}.{field}", data)
            for key, (suffix, image, beside) in given_.items()
            for field, data in {suffix: image, **beside}.items()
        ],
        layout,
    )
    assert contents(path) == {
        key: {suffix: image} | {f: beside[f] for f in ("txt", "json") if f in beside}
        for key, (suffix, image, beside) in given_.items()
    }
    assert flaws(path) == []
    assert keys(path) == list(given_), "in their order"
    path.unlink()


def test_samples_are_those_that_webdataset_sees(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "x.tar",
        [
            special("sub", tarfile.DIRTYPE),
            *members_of("sub/a"),
            ("README", b"no sample"),
            (".hidden.jpg", b"no sample"),
            ("b.JPG", picture()),
            ("b.Txt", b"upper case"),
        ],
    )
    with path.open("rb") as stream:
        expanded = tar_file_expander([{"url": str(path), "stream": stream}])
        seen = {sample["__key__"]: sample for sample in group_by_keys(expanded)}
    assert list(seen) == keys(path) == ["sub/a", "b"]
    for sample in good(path):
        assert seen[sample.key]["txt"] == extents.read(sample.text or "")
        assert seen[sample.key]["jpg"] == extents.read(sample.image)


# What is left out.


@pytest.mark.parametrize(
    ("members", "expected"),
    {
        "no image": ([("k.txt", b"x"), ("k.vae.npy", b"x")], ("no_image", "txt, vae.npy")),
        "only a compound name": ([("k.seg.png", picture())], ("no_image", "seg.png")),
        "two images": (
            [("k.jpg", picture()), ("k.png", picture())],
            ("several_images", "jpg, png"),
        ),
        "apart": (
            [("k.jpg", picture()), ("good.png", picture()), ("k.txt", b"x")],
            ("key_apart", "not next to each other"),
        ),
        "repeated": (
            [*members_of("k"), ("good.png", picture()), *members_of("k")],
            ("key_apart", "not next to each other"),
        ),
        "a field twice": (
            [("k.jpg", picture()), ("k.txt", b"x"), ("k.TXT", b"y")],
            ("repeated_member", "txt appears twice"),
        ),
        "a link": (
            [special("k.jpg", tarfile.SYMTYPE), ("k.txt", b"x")],
            ("not_a_file", "jpg is a symbolic link"),
        ),
        "a hard link": (
            [("k.jpg", picture()), special("k.txt", tarfile.LNKTYPE)],
            ("not_a_file", "txt is a hard link"),
        ),
        "a pipe": ([special("k.jpg", tarfile.FIFOTYPE)], ("not_a_file", "jpg is a pipe")),
        "a device": ([special("k.jpg", tarfile.CHRTYPE)], ("not_a_file", "jpg is a device")),
    }.values(),
)
def test_a_key_with_unclear_members_is_left_out_in_all_places_with_one_reason(
    tmp_path: Path, members: list[Member], expected: tuple[str, str]
) -> None:
    sure: list[Member] = [("first.png", picture(seed=1)), *members, ("last.png", picture(seed=2))]
    path = write_tar(tmp_path / "x.tar", sure)
    found = list(samples(str(path)))
    (flaw,) = [each for each in found if isinstance(each, Flaw)]
    assert (flaw.key, flaw.reason) == ("k", expected[0])
    assert expected[1] in flaw.detail
    assert set(contents(path)) - {"good"} == {"first", "last"}
    assert ("good" in contents(path)) == any("good.png" in str(m) for m in members)
    assert contents(path)["last"] == {"png": picture(seed=2)}


def test_a_text_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    info = tarfile.TarInfo("k.txt")
    info.size = 1 << 27
    path.write_bytes(info.tobuf())
    os.truncate(path, 512 + info.size)  # a hole
    with path.open("ab") as file:
        file.write(write_tar(tmp_path / "y.tar", [("k.jpg", picture())]).read_bytes())
    assert list(samples(str(path))) == [Flaw("k", "member_too_large", "txt has 134 MB")]


def test_every_cut_of_a_tar_gives_a_true_beginning_of_it_and_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    names = ("short", "k" * 120, "last")
    write_tar(path, [member for key in names for member in members_of(key)])
    whole, complete = contents(path), path.read_bytes()
    with tarfile.open(path) as tar:
        extended = [member.offset for member in tar if len(member.name) > 100]
        first, *_ = sizes = [(member.offset_data, member.size) for member in tar]
    ends = [offset + -(-size // 512) * 512 for offset, size in sizes]
    last_of = [sum(each) for each in sizes[2::3]]  # where each sample ends
    assert len(complete) > ends[-1] + 1024
    positions = {end + near for end in (0, *ends, *last_of) for near in (-1, 0, 1, 511, 512)}
    positions |= set(range(0, ends[-1] + 1024, 97))
    for at in sorted(p for p in positions if 0 <= p < ends[-1] + 1024):
        path.write_bytes(complete[:at])
        found = contents(path)
        assert found == {key: whole[key] for key in list(whole)[: len(found)]}, at
        sure = sum(end <= at for end in last_of)
        assert max(sure - 1, 0) <= len(found) <= sure, at
        *cut, tar_flaw = [each for each in samples(str(path)) if isinstance(each, Flaw)]
        in_pax = any(long < at < long + 1024 and at % 512 for long in extended)
        if not in_pax or tar_flaw.reason == "truncated_tar":
            detail = f"truncated at byte {at}: end-of-archive blocks are missing"
            assert tar_flaw == Flaw("", "truncated_tar", detail)
        else:  # what is left of a long name is no such header
            assert tar_flaw == Flaw(
                "", "damaged_tar", f"damaged PAX header at byte {at // 512 * 512 - 512}"
            )
        assert [flaw.reason for flaw in cut] == ["sample_cut"] * (at >= sum(first))
    path.write_bytes(complete[: ends[-1] + 1024])
    assert (contents(path), flaws(path)) == (whole, [])


def test_a_damaged_header_ends_the_tar_and_leaves_out_the_sample_before_it(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"{n}.png", picture(seed=n)) for n in range(3)])
    data = bytearray(path.read_bytes())
    at = data.index(b"2.png")
    data[at + 130] ^= 1  # a digit of its size
    path.write_bytes(data)
    assert keys(path) == ["0"]
    *_, damage = samples(str(path))
    assert damage == Flaw("", "damaged_tar", f"damaged header at byte {at}")
    assert flaws(path) == [("1", "sample_cut"), ("", "damaged_tar")]


def test_what_is_no_tar_is_one_problem(tmp_path: Path) -> None:
    text, empty, pipe = tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "c.tar"
    text.write_bytes(b"not a tar at all. " * 100)
    write_tar(empty, [("README", b"no samples")])
    os.mkfifo(pipe)
    assert list(samples(str(text))) == [Flaw("", "not_a_tar", "is not a tar")]
    assert flaws(empty) == [("", "no_samples")]
    assert list(samples(str(pipe))) == [Flaw("", "unreadable_tar", "not a regular file")]
    gone = Flaw("", "unreadable_tar", "No such file or directory")
    assert list(samples(str(tmp_path / "gone.tar"))) == [gone]


# JSON members.

ROWS: list[dict[str, object]] = [
    {"caption": " a cat \n", "url": "u", "width": 5, "height": 6, "image_id": "x"},
    {"text": "a dog", "other": None, "nested": {"a": [1, 2.5]}, "crop": [0, 0, 1, 1]},
    {"caption": "", "text": "from text", "aspect_bucket": "1x1"},
    {"caption": "both", "text": "kept"},
    {"caption": ["a", "list"], "score": 0.5},
    {"caption": 5},
    {},
]


@pytest.mark.parametrize("given_", ROWS)
def test_a_json_member_becomes_the_columns_that_a_row_of_captions_becomes(
    tmp_path: Path, given_: dict[str, object]
) -> None:
    # A row of a file is dropped if it has no caption; one of a tar may have a text beside it.
    usable = given_ if isinstance(given_.get("caption", ""), str) and given_ else None
    data = msgspec.json.encode(given_)
    found = row(data, SPECIFICATION)
    if usable is not None:
        file = tmp_path / "captions.jsonl"
        file.write_bytes(msgspec.json.encode(given_ | {"file_name": "a.jpg"}))
        read = captions.read(file, tmp_path, SPECIFICATION)
        image = Source("a", str(tmp_path / "a.jpg"), False)
        read.match_sources([image])
        assert found == read.of(image) != {}
    assert row(b"\xef\xbb\xbf" + data, SPECIFICATION) == found


def test_fields_of_the_record_are_dropped_from_json_and_all_others_are_kept() -> None:
    assert row(json.dumps(ROWS[0]).encode(), SPECIFICATION) == {"caption": "a cat", "url": "u"}
    assert row(json.dumps(ROWS[1]).encode(), SPECIFICATION) == {
        "caption": "a dog",
        "other": None,
        "nested": {"a": [1, 2.5]},
    }
    assert row(json.dumps(ROWS[4]).encode(), SPECIFICATION) == {"score": 0.5}
    assert (given_id(b'{"image_id": "x"}'), given_id(b'{"image_id": 5}')) == ("x", "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"{", "not_json"), (b"", "not_json"), (b"\xff{}", "not_json"), (b"[1]", "not_an_object")],
)
def test_json_that_is_no_object_is_a_fault_of_the_caption(data: bytes, reason: str) -> None:
    for read in (lambda: row(data, SPECIFICATION), lambda: given_id(data)):
        with pytest.raises(CaptionError) as caught:
            read()
        assert caught.value.args[0] == reason
        assert caught.value.args[1].startswith("its json is unusable: not ")


# Pictures in tars.


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_picture_in_a_tar_is_read_as_from_a_file_of_its_own(tmp_path: Path, suffix: str) -> None:
    if suffix == "avif" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    data = encoded(Image.fromarray(gradient(150, 110)), FORMATS[suffix])
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(data)
    part = placed(tmp_path, data, path.name)
    assert images.head(part) == images.head(str(path))
    assert images.measure(part) == (150, 110)
    here, there = (images.read(place) for place in (part, str(path)))
    assert here[1:] == there[1:]
    assert here.image.tobytes() == there.image.tobytes()


def test_looking_at_a_part_gives_its_own_bytes_and_hash(tmp_path: Path) -> None:
    data = picture(64, 48, kind="JPEG")
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    part = placed(tmp_path, data, "sub/a.jpg")
    settings = {"format": "jpg", "quality": 90}
    writer = Writer(Component("jpg", "jpg", "jpg", "|u1", PIXELS, settings=settings))
    views = [View(name="a"), View(name="b", decode="fast"), View(name="jpg", writer=writer)]
    here, there = look(part, views), look(str(path), views)
    for one, other in zip(here.made, there.made, strict=True):
        assert np.array_equal(one, other)
    assert here.made[2] == data, "the file as it is"
    assert here._replace(file=None, made=()) == there._replace(file=None, made=())
    assert here.file == facts.ImageFile(
        f"{tmp_path}/one.tar/sub/a.jpg",
        len(data),
        (tmp_path / "one.tar").stat().st_mtime_ns,
        xxhash.xxh3_64_hexdigest(data),
    )


def test_measuring_reads_16_kib_of_a_jpeg_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 700, 3), np.uint8)
    part = placed(tmp_path, encoded(Image.fromarray(noise), "JPEG"), "a.jpg")
    assert part.size > 10 * HEAD
    counts: list[int] = []
    real = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        counts.append(size)
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert images.measure(part) == (700, 900)
    assert counts == [HEAD]
    images.read(part)
    assert counts[1:] in ([part.size], [part.size, 0]), "in one piece"


def test_a_head_that_is_far_from_the_beginning_is_found(tmp_path: Path) -> None:
    image = Image.fromarray(gradient(300, 200))
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    turned = encoded(image, "JPEG", exif=exif)
    comment = b"\xff\xfe" + struct.pack(">H", 60_000) + bytes(59_998)
    late = placed(tmp_path, turned[:2] + comment + turned[2:], "late.jpg")
    assert images.measure(late) == (200, 300), "its orientation is behind a long comment"
    tiff = encoded(image, "TIFF")
    at = struct.unpack("<I", tiff[4:8])[0]
    length = 2 + 12 * struct.unpack("<H", tiff[at : at + 2])[0] + 4
    # With its directory behind the pixels, as most programs write it.
    moved = tiff[:4] + struct.pack("<I", len(tiff)) + tiff[8:] + tiff[at : at + length]
    assert len(tiff) > HEAD
    cleared = moved[:at] + bytes(length) + moved[at + length :]
    assert images.measure(placed(tmp_path, cleared, "moved.tif")) == (300, 200)


def test_a_part_that_its_tar_no_longer_holds_is_unreadable(tmp_path: Path) -> None:
    part = placed(tmp_path, picture(400, 300, kind="BMP"), "a.bmp")
    os.truncate(part.path, part.offset + part.size - 1)
    with pytest.raises(BadImageError) as caught:
        images.read(part)
    assert caught.value.args == ("unreadable", "its tar ends before it does")
    os.truncate(part.path, part.offset + 10)
    with pytest.raises(BadImageError) as caught:
        images.measure(part)
    assert caught.value.args == ("unreadable", "its tar ends before it does")
    source = Source("a", str(part), True, part=part, text=part)
    assert source.place is part
    with pytest.raises(CaptionError, match="its tar ends before it does"):
        captions.beside(source)
    Path(part.path).unlink()
    with pytest.raises(BadImageError) as caught:
        images.measure(part)
    assert caught.value.args == ("unreadable", "No such file or directory")


def test_a_part_that_is_no_picture_has_the_reason_that_a_file_has(tmp_path: Path) -> None:
    broken = placed(tmp_path, b"no picture", "a.jpg")
    with pytest.raises(BadImageError) as caught:
        images.measure(broken)
    what = f"cannot identify image file '{tmp_path}/one.tar/a.jpg'"
    assert caught.value.args == ("broken_image", what)
    with pytest.raises(BadImageError, match="format_not_readable"):
        images.measure(placed(tmp_path, picture(kind="TIFF"), "a.dng"))
    cut = picture(200, 200, kind="JPEG")[:-100]
    with pytest.raises(BadImageError, match="broken_image"):
        images.read(placed(tmp_path, cut, "a.jpg"))


def test_the_text_member_is_the_caption_beside_an_image(tmp_path: Path) -> None:
    members: list[Member] = [("k.jpg", picture()), ("k.txt", "\ufeffein Käfer\r\nhier ".encode())]
    (sample,) = good(write_tar(tmp_path / "x.tar", members))
    source = Source("k", str(sample.image), True, part=sample.image, text=sample.text)
    assert captions.beside(source) == "ein Käfer\nhier"
    latin = write_tar(tmp_path / "y.tar", [("k.jpg", picture()), ("k.txt", b"K\xe4fer")])
    (sample,) = good(latin)
    source = Source("k", str(sample.image), True, part=sample.image, text=sample.text)
    with pytest.raises(CaptionError) as caught:
        captions.beside(source)
    assert caught.value.args == ("caption_not_utf8", f"{latin}/k.txt is not UTF-8 text")
