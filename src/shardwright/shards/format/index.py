"""The index of one shard: its samples, and the offset, size and checksum of each member.

A file is one line of JSON, then the table (little-endian uint64: for each sample and member the
offset, size and xxh3 of its data), then the xxh3 of everything before. ``pack`` writes it together
with the shard, so no shard needs to be read to index it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
import xxhash

from shardwright.errors import DamageError, InputMissingError, StorageError
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import LONGEST_NAME
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.tar import BLOCK
from shardwright.storage import files
from shardwright.storage.urls import Location, names_below

INDEX_FOLDER = "index"
INDEX_SUFFIX = ".idx"
VERSION = 1
_WORD = 8
_SHORTEST_KEY = 50  # bytes that the longest suffix leaves to a key
_NO_IDS = frozenset({"", ".", ".."})
_FIX = "make all shards again with --overwrite"


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
    bytes: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    xxh3: str  # of the shard, 128 bits
    sha256: str | None = None
    records_xxh3: str  # of its records in one file
    members: tuple[str, ...]  # the suffixes, in the order of a sample's members
    # Bytes that a key may have; longer ids are cut to that.
    longest_key: Annotated[int, msgspec.Meta(ge=_SHORTEST_KEY, le=LONGEST_NAME)] = 89
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
    """Read an index; raise DamageError if it is damaged, or cannot be that of a shard."""
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
    found = ShardIndex(head, _little_endian(table))
    if not (_are_names(head) and _is_within(found)):
        raise DamageError("does not describe a shard", path=path, fix=_FIX)
    return found


def _are_names(head: Head) -> bool:
    """Whether there are members and samples, and no id could be a path; there may be millions."""
    text = "\n".join(head.ids)
    ids = bool(head.ids) and _NO_IDS.isdisjoint(head.ids) and "/" not in text and "\0" not in text
    return ids and bool(head.members) and len(set(head.members)) == len(head.members)


def _is_within(found: ShardIndex) -> bool:
    """Whether every member lies within the bytes of the shard, after a header."""
    import numpy as np  # here, to keep the start light

    table = np.frombuffer(found.table, np.uint64).reshape(-1, len(Member._fields))
    offsets, sizes, size = table[:, 0], table[:, 1], np.uint64(found.head.bytes)
    inside = (offsets >= BLOCK) & (offsets <= size) & (sizes <= size - offsets)
    return bool(inside.all())


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


def load_listed(output_dir: Location, entry: ShardEntry) -> ShardIndex:
    """Read the index of a shard that a manifest lists."""
    path = output_dir / index_name(entry.path)
    return decode_listed(read(path), path, entry)


def decode_listed(data: bytes, path: Location | str, entry: ShardEntry) -> ShardIndex:
    """Read an index; raise DamageError if it is not that of the shard in the manifest.

    Readers go by the counts of the manifest, so both must agree.
    """
    if xxhash.xxh3_64_hexdigest(data) == entry.index_xxh3:
        found = decode(data, path)
        head = found.head
        if (head.shard, len(head.ids), head.bytes) == (entry.path, entry.samples, entry.bytes):
            return found
    what = "is damaged, or not the one in the manifest"
    raise DamageError(what, path=path, fix="copy it here again, or pack again")


def _little_endian(table: array[int]) -> array[int]:
    if sys.byteorder == "big":
        table = table[:]
        table.byteswap()
    return table
