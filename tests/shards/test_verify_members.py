"""``verify`` looks into shards whose checksums all agree, and trusts nothing that it saw before."""

from __future__ import annotations

import io
import json
import tarfile
from array import array
from pathlib import Path

import numpy as np
import pytest
import xxhash

import shardwright
from shardwright import pack
from shardwright.shards.format import index
from tests.fuzz.targets import SHARD, signed_index, signed_manifest
from tests.stores import Store, make_store, npy, record
from tests.tars import Members, read_members

Found = tuple[str, str | None, str | None]  # kind, sample, member


@pytest.fixture
def store(tmp_path: Path) -> Store:
    two = [record(name, "24x16") for name in ("one", "two")]
    return make_store(tmp_path / "derived", two, latent=(16, 2, 3))


@pytest.fixture
def folder(store: Store, output: Path) -> Path:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    return output


def found(folder: Path, against: Path | None = None) -> list[Found]:
    report = shardwright.verify(folder, read_data=True, against=against, workers=1)
    return [(f.kind, f.sample, f.member) for f in report.findings if f.kind != "no_manifest"]


def rewritten(folder: Path, shard: bytes) -> Path:
    """Write a shard, and give it a manifest and an index whose checksums are all right."""
    path, listed = (folder / index.index_name(SHARD)), folder / ".shardwright/manifest.json"
    before, body = path.read_bytes(), listed.read_bytes().rpartition(b',\n  "xxh3": "')[0]
    old, new = (xxhash.xxh3_128_hexdigest(x) for x in ((folder / SHARD).read_bytes(), shard))
    after = signed_index(before[:-8].replace(old.encode(), new.encode()))
    body = body.replace(old.encode(), new.encode())
    old, new = (xxhash.xxh3_64_hexdigest(x) for x in (before, after))
    body = body.replace(old.encode(), new.encode())
    (folder / SHARD).write_bytes(shard)
    path.write_bytes(after)
    listed.write_bytes(signed_manifest(body))
    return folder


def of_another_tool(folder: Path, members: Members) -> Path:
    folder.mkdir()
    with tarfile.open(folder / "00000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return folder


def replaced(folder: Path, **datas: bytes) -> Members:
    """Give the members of a shard, some with other data; the names are spelt with _ for a dot."""
    return [(name, datas.get(name.replace(".", "_"), old)) for name, old in read_members(folder)]


HEADER = {
    "name": 0, "end of name": 99, "mode": 106, "uid": 114, "gid": 122, "size": 134, "mtime": 146,
    "checksum": 153, "space after it": 155, "type": 156, "link": 157, "magic": 257, "version": 264,
    "uname": 265, "gname": 297, "device": 329, "prefix": 345, "last byte": 511,
}  # fmt: skip


@pytest.mark.parametrize("sample", ["one", "two"])
@pytest.mark.parametrize("position", HEADER.values(), ids=HEADER)
def test_a_header_with_one_wrong_byte_is_found_though_all_checksums_agree(
    position: int, sample: str, folder: Path
) -> None:
    with tarfile.open(folder / SHARD) as tar:
        start = tar.getmember(f"{sample}.vae.npy").offset
    shard = bytearray((folder / SHARD).read_bytes())
    shard[start + position] ^= 1
    assert found(rewritten(folder, bytes(shard))) == [("index_wrong", sample, "vae.npy")]


def test_data_that_was_signed_again_is_judged_by_the_schema_alone(folder: Path) -> None:
    with tarfile.open(folder / SHARD) as tar:
        mask = tar.getmember("two.t5m.npy").offset_data
    shard = bytearray((folder / SHARD).read_bytes())
    shard[mask + 128 + 76] = 2
    assert found(rewritten(folder, bytes(shard))) == [("mask_invalid", "two", "t5m.npy")]


def test_a_header_that_is_right_for_one_component_is_not_so_for_another(
    folder: Path, tmp_path: Path
) -> None:
    one = dict(read_members(folder / SHARD))
    changed = replaced(
        folder / SHARD,
        two_vae_npy=one["one.dinov3.npy"],
        two_t5h_npy=one["one.vae.npy"],
        two_t5m_npy=one["one.t5h.npy"],
    )
    assert found(of_another_tool(tmp_path / "x", changed)) == [
        ("vae_wrong_dtype", "two", "vae.npy"),
        ("t5_wrong_shape", "two", "t5h.npy"),
        ("mask_wrong_dtype", "two", "t5m.npy"),
    ]


def test_a_header_that_was_right_before_does_not_speak_for_the_size(
    folder: Path, tmp_path: Path
) -> None:
    one = dict(read_members(folder / SHARD))
    changed = replaced(
        folder / SHARD,
        two_vae_npy=one["one.vae.npy"][:-1],
        two_t5h_npy=one["one.t5h.npy"] + b"x",
        two_t5m_npy=one["one.t5m.npy"][:-1],
    )
    assert found(of_another_tool(tmp_path / "x", changed)) == [
        ("vae_truncated", "two", "vae.npy"),
        ("t5_trailing_bytes", "two", "t5h.npy"),
        ("mask_truncated", "two", "t5m.npy"),
    ]


def test_the_same_latent_fits_one_bucket_and_not_another(tmp_path: Path, output: Path) -> None:
    both = [record("one", "24x16"), record("two", "32x16")]
    store = make_store(tmp_path / "derived", both, latent=(16, 2, 3))
    pack(derived_dir=store.root, output_dir=output, workers=1)
    assert found(output) == [("vae_wrong_size", "two", "vae.npy")]


def padded(array: bytes, length: int) -> bytes:
    """Give an array file a header of this length, as another writer might."""
    text = array[10:128].rstrip().ljust(length - 11) + b"\n"
    return array[:8] + len(text).to_bytes(2, "little") + text + array[128:]


@pytest.mark.parametrize("length", [129, 1023, 1024, 1025, 4096])
def test_array_headers_of_any_length_are_read(length: int, folder: Path, tmp_path: Path) -> None:
    one = dict(read_members(folder / SHARD))
    bad = npy(np.full(77, 2, np.uint8))
    changed = replaced(
        folder / SHARD,
        one_vae_npy=padded(one["one.vae.npy"], length),
        one_t5m_npy=padded(one["one.t5m.npy"], length),
        two_vae_npy=padded(one["one.vae.npy"], length)[:-1],
        two_t5m_npy=padded(bad, length),
    )
    assert found(of_another_tool(tmp_path / "x", changed)) == [
        ("vae_truncated", "two", "vae.npy"),
        ("mask_invalid", "two", "t5m.npy"),
    ]


@pytest.mark.parametrize("length", [600, 1000, 1100, 9000])
def test_records_of_any_length_are_read_to_their_end(
    length: int, tmp_path: Path, output: Path
) -> None:
    two = [record(name, "24x16", caption="x" * length) for name in ("one", "two")]
    store = make_store(tmp_path / "derived", two, latent=(16, 2, 3))
    pack(derived_dir=store.root, output_dir=output, workers=1)
    assert found(output, against=store.root) == []
    fields = json.loads(dict(read_members(output / SHARD))["two.json"])
    del fields["width"]  # the last field
    changed = replaced(output / SHARD, two_json=json.dumps(fields).encode())
    assert found(of_another_tool(tmp_path / "x", changed)) == [("field_missing", "two", "json")]
    cut = replaced(output / SHARD, two_json=json.dumps(fields).encode()[:-1])
    assert found(of_another_tool(tmp_path / "y", cut)) == [("json_not_json", "two", "json")]
    changed_store = [two[0], {**two[1], "caption": "x" * (length - 1) + "y"}]
    other = make_store(tmp_path / "other", changed_store, latent=(16, 2, 3))
    assert found(output, against=other.root) == [("outdated", "two", None)]


@pytest.mark.parametrize(
    ("huge", "kinds"),
    [
        (2**63, [("index_damaged", None, None), ("no_samples", None, None)]),  # no file has that
        (
            2**62,
            [
                ("short", None, None),
                ("differs", None, None),
                ("cut_off", "one", "json"),
                ("cut_off", "one", "t5m.npy"),
                ("end_differs", None, None),
            ],
        ),
    ],
)
def test_an_index_that_claims_more_than_a_file_can_have_is_not_followed(
    huge: int, kinds: list[object], tmp_path: Path
) -> None:
    path, shard = tmp_path / "x/0.tar", bytes(2048)
    path.parent.mkdir()
    path.write_bytes(shard)
    listed = tmp_path / index.index_name("x/0.tar")
    listed.parent.mkdir(parents=True)
    listed.with_suffix(".jsonl").touch()
    head = index.Head(
        version=index.VERSION,
        shard="x/0.tar",
        bytes=huge + 2560,
        xxh3=xxhash.xxh3_128_hexdigest(shard),
        records_xxh3=xxhash.xxh3_64_hexdigest(b""),
        members=("json", "t5m.npy"),
        ids=["one"],
    )
    table = array("Q", [512, huge, 0, huge + 1024, 512, 0])
    listed.write_bytes(index.encode(index.ShardIndex(head, table)))
    assert found(tmp_path) == [("manifest_missing", None, None), *kinds]
