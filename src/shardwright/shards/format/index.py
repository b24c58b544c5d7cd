"""The index of one shard: its samples, and where each member is, how long, and its checksum.

A file is one line of JSON, then the table (little-endian uint64: for each sample and member its
data's offset, size and xxh3), then the xxh3 of all that. It is written beside the shard while the
bytes pass, so nobody ever needs to read a shard to index it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from shardwright.errors import DamageError, InputMissingError
from shardwright.layout import STATE_FOLDER

INDEX_FOLDER = "index"
INDEX_SUFFIX = ".idx"
_FORMAT = "shardwright-index"
_VERSION = 1
_WORD = 8


class Member(NamedTuple):
    """Where the data of one member is in its shard, and its checksum."""

    offset: int
    size: int
    xxh3: int


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON line of an index."""

    format: str
    version: int
    shard: str  # its path below the output folder
    bytes: int
    xxh3: str  # of the whole shard, 128 bits
    sha256: str | None = None
    members: tuple[str, ...]  # the suffixes, in the order of a sample's members
    longest_key: int = 89  # bytes that a key may have; longer ids are cut to that
    ids: list[str]


class ShardIndex(msgspec.Struct, frozen=True):
    """An index as it is in memory."""

    head: Head
    table: array[int]

    def member(self, sample: int, column: int) -> Member:
        """Give one member of one sample."""
        start = (sample * len(self.head.members) + column) * len(Member._fields)
        return Member(*self.table[start : start + len(Member._fields)])

    def spots(self) -> Iterator[tuple[int, int]]:
        """Give the offset and size of every member, in the order of the shard."""
        columns = len(Member._fields)
        return zip(self.table[::columns], self.table[1::columns], strict=True)


def index_path(output_dir: Path, shard: str) -> Path:
    """Give the place of a shard's index; the shard is given as its path below the output folder."""
    return output_dir / STATE_FOLDER / INDEX_FOLDER / Path(shard).with_suffix(INDEX_SUFFIX)


def shards(output_dir: Path) -> list[str]:
    """List the shards that have an index, as their paths below the output folder."""
    root = output_dir / STATE_FOLDER / INDEX_FOLDER
    found = sorted(root.rglob(f"*{INDEX_SUFFIX}"))
    return [path.relative_to(root).with_suffix(".tar").as_posix() for path in found]


def encode(
    *, shard: str, size: int, xxh3: str, sha256: str | None, members: tuple[str, ...],
    ids: list[str], table: array[int], longest_key: int,
) -> bytes:  # fmt: skip
    """Write an index."""
    head = Head(
        format=_FORMAT,
        version=_VERSION,
        shard=shard,
        bytes=size,
        xxh3=xxh3,
        sha256=sha256,
        members=members,
        longest_key=longest_key,
        ids=ids,
    )
    body = msgspec.json.encode(head) + b"\n" + _little_endian(table).tobytes()
    return body + xxhash.xxh3_64_digest(body)[::-1]


def decode(data: bytes, path: Path | str) -> ShardIndex:
    """Read an index, or say by DamageError that it is not whole."""
    body, checksum = data[:-_WORD], data[-_WORD:]
    if xxhash.xxh3_64_digest(body)[::-1] != checksum:
        raise DamageError(f"{path}: is damaged; pack again with --overwrite")
    line, _, rest = body.partition(b"\n")
    table = array("Q")
    try:
        head = msgspec.json.decode(line, type=Head)
        table.frombytes(rest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DamageError(f"{path}: is not an index ({error})") from None
    expected = len(head.ids) * len(head.members) * len(Member._fields)
    if (head.format, head.version) != (_FORMAT, _VERSION) or len(table) != expected:
        raise DamageError(f"{path}: is not an index this version can read")
    return ShardIndex(head, _little_endian(table))


def read(path: Path) -> bytes:
    """Read the file of an index."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputMissingError(f"{path}: {error.strerror}; pack again with --overwrite") from None


def load(output_dir: Path, shard: str) -> ShardIndex:
    """Read the index of a shard."""
    path = index_path(output_dir, shard)
    return decode(read(path), path)


def _little_endian(table: array[int]) -> array[int]:
    if sys.byteorder == "big":
        table = table[:]
        table.byteswap()
    return table
