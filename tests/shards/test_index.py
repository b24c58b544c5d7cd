"""The index of a shard: what goes in comes out, and no damage passes."""

from __future__ import annotations

import tarfile
from array import array
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright import DamageError, InputMissingError, pack
from shardwright.shards.format import index
from shardwright.shards.format.index import Member, ShardIndex
from tests.fuzz.targets import signed_index
from tests.stores import Store
from tests.tars import shards

PATH = Path("x.idx")
WORDS = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0."), min_size=1)
SIZE = 4096  # of the shard


def encode(ids: list[str], table: list[int], members: tuple[str, ...] = ("json", "npy")) -> bytes:
    head = index.Head(
        version=index.VERSION,
        shard="bucket_24x16/shard-000000.tar",
        bytes=SIZE,
        xxh3="0" * 32,
        records_xxh3="0" * 16,
        members=members,
        ids=ids,
    )
    return index.encode(ShardIndex(head, array("Q", table)))


@given(st.data(), st.lists(NAMES, min_size=1, max_size=8))
@settings(deadline=None, max_examples=60)
def test_an_index_that_is_written_is_read_back(data: st.DataObject, ids: list[str]) -> None:
    table: list[int] = []
    for _ in range(len(ids) * 2):
        offset = data.draw(st.integers(512, SIZE))
        table += [offset, data.draw(st.integers(0, SIZE - offset)), data.draw(WORDS)]
    found = index.decode(encode(ids, table), PATH)
    assert found.head.ids == ids
    assert list(found.table) == table
    for sample in range(len(ids)):
        for column in range(2):
            start = (sample * 2 + column) * 3
            assert found.member(sample, column) == Member(*table[start : start + 3])
    assert list(found.spots()) == list(zip(table[::3], table[1::3], strict=True))


@pytest.mark.parametrize(
    ("ids", "member"),
    [
        ([], []),
        ([""], [512, 0, 0]),
        ([".."], [512, 0, 0]),
        (["a/b"], [512, 0, 0]),
        (["a\0"], [512, 0, 0]),
        (["a"], [511, 0, 0]),
        (["a"], [SIZE + 1, 0, 0]),
        (["a"], [512, SIZE - 511, 0]),
        (["a"], [512, 2**64 - 512, 0]),
        (["a"], [2**64 - 1, 1, 0]),
    ],
)
def test_an_index_of_members_that_cannot_be_in_its_shard_is_damaged(
    ids: list[str], member: list[int]
) -> None:
    with pytest.raises(DamageError, match=r"x\.idx: does not describe a shard"):
        index.decode(encode(ids, member * 2), PATH)


def test_any_flipped_bit_of_an_index_is_found() -> None:
    complete = encode(["a", "b"], [512, 0, 0] * 4)
    for position in range(len(complete)):
        for bit in range(8):
            damaged = bytearray(complete)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamageError, match=r"x\.idx: is damaged"):
                index.decode(bytes(damaged), PATH)


def test_any_cut_of_an_index_is_found() -> None:
    complete = encode(["a", "b"], list(range(12)))
    for length in range(len(complete)):
        with pytest.raises(DamageError):
            index.decode(complete[:length], PATH)


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=100)
def test_any_bytes_as_an_index_raise_only_our_errors(body: bytes) -> None:
    for data in (body, signed_index(body), signed_index(b'{"format":"shardwright-index",' + body)):
        with pytest.raises(DamageError):
            index.decode(data, PATH)


@pytest.mark.parametrize(
    "change",
    [
        (b'"version":1', b'"version":2'),
        (b"shardwright-index", b"shardwright-other"),
        (b'"ids":["a"]', b'"ids":["a","b"]'),
        (b'"ids":["a"]', b'"ids":[1]'),
        (b'"ids":["a"]', b'"ids":["\xff"]'),
    ],
)
def test_an_index_of_another_kind_is_refused(change: tuple[bytes, bytes]) -> None:
    body = encode(["a"], list(range(6)))[:-8]
    assert change[0] in body
    with pytest.raises(DamageError, match=r"is not an index|this version cannot read it"):
        index.decode(signed_index(body.replace(*change)), PATH)


def test_every_offset_size_and_checksum_is_that_of_the_tar(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, shard_size=3, workers=1, sha256=True)
    for path in shards(output):
        data = path.read_bytes()
        found = index.load(output, str(path.relative_to(output)))
        assert (found.head.bytes, found.head.xxh3) == (len(data), xxhash.xxh3_128_hexdigest(data))
        with tarfile.open(path) as tar:
            members = iter(tar.getmembers())
        for sample, image_id in enumerate(found.head.ids):
            for column, suffix in enumerate(found.head.members):
                header = next(members)
                place = found.member(sample, column)
                assert header.name == f"{image_id}.{suffix}"
                assert (place.offset, place.size) == (header.offset_data, header.size)
                part = data[place.offset : place.offset + place.size]
                assert place.xxh3 == xxhash.xxh3_64_intdigest(part)


def test_a_missing_index_says_how_to_get_it(output: Path) -> None:
    with pytest.raises(InputMissingError, match=r"shard-000000\.idx: .*--overwrite"):
        index.load(output, "bucket_24x16/shard-000000.tar")
