"""The index of one shard: its samples, and the offset, size and checksum of each member.

A file is one line of JSON, then the table (little-endian uint64: for each sample and member the
offset, size and xxh3 of its data), then the xxh3 of everything before. ``pack`` writes it together
with the shard, so no shard needs to be read to index it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import xxhash

from shardwright.errors import DamageError, InputMissingError, StorageError
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.storage.urls import Location, names_below

INDEX_FOLDER = "index"
INDEX_SUFFIX = ".idx"
VERSION = 1
_WORD = 8
_FIX = "pack again with --overwrite"


class Member(NamedTuple):
    """The place of a member's data in its shard, and its checksum."""

    offset: int
    size: int
    xxh3: int


class Head(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True,
    tag_field="format", tag="shardwright-index",
):  # fmt: skip
    """The JSON line of an index."""

    version: int
    shard: str  # its path below the output folder
    bytes: int
    xxh3: str  # of the shard, 128 bits
    sha256: str | None = None
    records_xxh3: str | None = None  # of its records in one file; None where there is none
    members: tuple[str, ...]  # the suffixes, in the order of a sample's members
    longest_key: int = 89  # bytes that a key may have; longer ids are cut to that
    ids: list[str]


class ShardIndex(msgspec.Struct, frozen=True):
    """An index in memory."""

    head: Head
    table: array[int]

    def member(self, sample: int, column: int) -> Member:
        """Look up one member of one sample."""
        start = (sample * len(self.head.members) + column) * len(Member._fields)
        return Member(*self.table[start : start + len(Member._fields)])

    def columns(self) -> tuple[array[int], array[int]]:
        """Give the size and the checksum of every member, in shard order."""
        return self.table[1 :: len(Member._fields)], self.table[2 :: len(Member._fields)]

    def spots(self) -> Iterator[tuple[int, int]]:
        """List the offset and size of every member, in shard order."""
        columns = len(Member._fields)
        return zip(self.table[::columns], self.table[1::columns], strict=True)


def index_name(shard: str) -> str:
    """Name the index of a shard; both are paths below the output folder."""
    return f"{STATE_FOLDER}/{INDEX_FOLDER}/{shard.removesuffix('.tar')}{INDEX_SUFFIX}"


def shards(output_dir: Location) -> list[str]:
    """List the shards that have an index, as paths below the output folder."""
    root = output_dir / STATE_FOLDER / INDEX_FOLDER
    found = (name for name in names_below(root) if name.endswith(INDEX_SUFFIX))
    return [f"{name.removesuffix(INDEX_SUFFIX)}.tar" for name in found]


def encode(found: ShardIndex) -> bytes:
    """Write an index."""
    body = msgspec.json.encode(found.head) + b"\n" + _little_endian(found.table).tobytes()
    return body + xxhash.xxh3_64_digest(body)[::-1]


def decode(data: bytes, path: Location | str) -> ShardIndex:
    """Read an index; raise DamageError if it is damaged."""
    body, checksum = data[:-_WORD], data[-_WORD:]
    if xxhash.xxh3_64_digest(body)[::-1] != checksum:
        raise DamageError("is damaged", path=path, fix=_FIX)
    line, _, rest = body.partition(b"\n")
    table = array("Q")
    try:
        head = msgspec.json.decode(line, type=Head)
        table.frombytes(rest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamageError(f"is not an index ({error})", path=path, fix=_FIX) from None
    expected = len(head.ids) * len(head.members) * len(Member._fields)
    if head.version != VERSION or len(table) != expected:
        raise DamageError("this version cannot read it", path=path, fix=_FIX)
    return ShardIndex(head, _little_endian(table))


def read(path: Location) -> bytes:
    """Read the file of an index."""
    try:
        return files.read(path)
    except StorageError:
        raise
    except OSError as error:
        raise InputMissingError(str(error.strerror), path=path, fix=_FIX) from None


def load(output_dir: Location, shard: str) -> ShardIndex:
    """Read the index of a shard."""
    path = output_dir / index_name(shard)
    return decode(read(path), path)


def _little_endian(table: array[int]) -> array[int]:
    if sys.byteorder == "big":
        table = table[:]
        table.byteswap()
    return table
