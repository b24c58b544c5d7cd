"""Reading the headers of tars that anybody may have made: all is reported, nothing is trusted."""

from __future__ import annotations

import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.shards.format import tarread
from shardwright.shards.format.tarread import BadTarError, Entry
from shardwright.storage.local import LocalFile
from tests.durability.soak import times
from tests.fuzz.targets import made_tar, tar_members

LONG = "folder/" * 20 + "key.json"


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def read(data: bytes, path: Path) -> list[Entry]:
    path.write_bytes(data)
    with LocalFile(path) as file:
        return list(tarread.entries(file))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.tar"


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_where_tarfile_finds_them(layout: int, path: Path) -> None:
    data = made_tar(
        ("a.json", b"{}"), ("a.npy", bytes(513)), (LONG, b"x"), ("b.json", b""), layout=layout
    )
    found = read(data, path)
    with tarfile.open(path) as tar:
        expected = [(info.name, info.offset_data, info.size) for info in tar]
    assert [(entry.name, entry.offset, entry.size) for entry in found] == expected
    assert {entry.kind for entry in found} == {tarread.FILE}


def test_a_float_time_makes_pax_headers_and_they_are_reported(path: Path) -> None:
    info = tarfile.TarInfo("a.json")
    info.mtime = 1.5
    (entry,) = read(made_tar(info, layout=tarfile.PAX_FORMAT), path)
    assert (entry.name, entry.extended) == ("a.json", True)


def test_a_name_too_long_for_a_header_is_read_from_its_extension(path: Path) -> None:
    for layout in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        (entry,) = read(made_tar(("k" * 300 + ".json", b"{}"), layout=layout), path)
        assert (entry.name, entry.extended) == ("k" * 300 + ".json", True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
        (tarfile.DIRTYPE, "folder"),
        (b"Z", "member of unknown type b'Z'"),
    ],
)
def test_what_is_not_a_file_is_never_followed(kind: bytes, name: str, path: Path) -> None:
    data = made_tar(special("a.json", kind, "/etc/passwd"), ("b.json", b"{}"))
    odd, plain = read(data, path)
    assert (odd.kind, odd.size) == (name, 0)
    assert (plain.kind, plain.size) == (tarread.FILE, 2)


def test_a_tar_cut_anywhere_is_reported(path: Path) -> None:
    data = made_tar(("a.json", b"{}"), ("a.npy", bytes(700)))
    complete = 512 + 512 + 512 + 1024
    for length in range(0, complete + 1023, 7):
        with pytest.raises(BadTarError):
            read(data[:length], path)
    assert len(read(data[: complete + 1024], path)) == 2


@pytest.mark.parametrize(
    "data",
    [b"", b"not a tar", bytes(100), b"\x1f\x8b" + bytes(2000), b"x" * 4096],
    ids=["empty", "text", "short", "gzip", "garbage"],
)
def test_what_is_no_tar_is_reported(data: bytes, path: Path) -> None:
    with pytest.raises(BadTarError):
        read(data, path)


def test_bytes_after_the_end_are_reported(path: Path) -> None:
    with pytest.raises(BadTarError, match=r"data after its end"):
        read(made_tar(("a.json", b"{}")) + b"more", path)


@pytest.mark.parametrize(
    "size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\x80" + bytes(7) + b"\x7f\xff\xff\xff"]
)
@pytest.mark.parametrize("kind", [b"0", b"x", b"L"])
def test_a_size_that_lies_allocates_nothing(size: bytes, kind: bytes, path: Path) -> None:
    header = bytearray(made_tar(("a.json", b"{}"))[:512])
    header[124:136], header[156:157] = size, kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    tracemalloc.start()
    try:
        with pytest.raises(BadTarError):
            read(bytes(header) + bytes(2048), path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.json", ("a", "json")),
        ("a.vae.npy", ("a", "vae.npy")),
        ("x/y.z/a.JSON", ("x/y.z/a", "json")),
        ("a", None),
        (".a", None),
        ("x/.json", ("x/", "json")),
        ("a/", None),
    ],
)
def test_names_split_as_webdataset_splits_them(name: str, parts: tuple[str, str] | None) -> None:
    from webdataset.tariterators import base_plus_ext

    assert tarread.split(name) == parts
    key, field = base_plus_ext(name)
    assert (None if key is None else (key, field.lower())) == parts


TAR = made_tar(("a.json", b'{"a":1}'), (LONG, bytes(600)), layout=tarfile.PAX_FORMAT)[:8192]


@given(st.lists(st.tuples(st.integers(0, len(TAR) - 1), st.integers(0, 255)), max_size=20))
@settings(deadline=None, max_examples=times(150))
def test_nothing_but_our_error_comes_of_any_damage(changes: list[tuple[int, int]]) -> None:
    data = bytearray(TAR)
    for position, value in changes:
        data[position] = value
    tar_members(bytes(data))


@given(st.binary(max_size=2048), st.sampled_from([b"0", b"x", b"g", b"L", b"K", b"5"]))
@settings(deadline=None, max_examples=times(150))
def test_nothing_but_our_error_comes_of_any_member(content: bytes, kind: bytes) -> None:
    member = special("a.json", kind)
    member.size = len(content)
    header = member.tobuf(tarfile.USTAR_FORMAT)
    data = header + content + bytes(-len(content) % 512) + made_tar(("b.json", b"{}"))
    tar_members(data)
