"""Writes one shard, sample by sample: the tar, the file of its records beside it, and its index.

``pack`` copies array files into it, ``build`` adds what it has just made. All three files keep
temporary names until the caller publishes them.
"""

from __future__ import annotations

import hashlib
from array import array
from contextlib import ExitStack
from typing import Self

import xxhash

from shardwright.errors import StorageError
from shardwright.layout import BUCKET_PREFIX
from shardwright.recipes import JSON_SUFFIX, Component, Recipe
from shardwright.shards.format import index, records, tar
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.keys import key
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.record_members import json_member, mask_member
from shardwright.storage.place import Place
from shardwright.storage.sinks import Hasher, Sink
from shardwright.store.facts import Facts
from shardwright.store.npy import BadArrayError
from shardwright.store.records import Record


class ShardWriter:
    """A shard that is being written, in existing folders.

    ``begin`` a sample, ``add`` each component in the order of the recipe, and ``finish`` after the
    last sample. Leaving the block before that discards the shard.
    """

    def __init__(self, output: Place, path: str, recipe: Recipe, *, sha256: bool = False) -> None:
        self._output, self._path, self._recipe = output, path, recipe
        self._fast, self._beside = xxhash.xxh3_128(), xxhash.xxh3_64()
        self._secure = hashlib.sha256() if sha256 else None
        self._ids: list[str] = []
        self._table = array("Q")
        self._position = self._beside_bytes = 0
        self._record: Record = {}  # of the sample that was begun
        self._key = ""
        hashers: list[Hasher] = [self._fast, self._secure] if self._secure else [self._fast]
        with ExitStack() as stack:
            shard: Sink = output.create(path, hashers)
            self._tar = stack.enter_context(shard)
            lines: Sink = output.create(records.records_name(path), [self._beside])
            self._lines = stack.enter_context(lines)
            self._opened = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def written(self) -> int:
        """Count the bytes of the tar that are on their way to the disk, for progress."""
        return self._tar.written

    def begin(self, image_id: str, record: Record, known: Facts | None) -> None:
        """Begin a sample with its record; ``known`` are its facts."""
        self._record, self._key = record, key(image_id, self._recipe.longest_key)
        self._ids.append(image_id)
        self._add(JSON_SUFFIX, json_member(record, self._recipe))
        line = records.line(record, self._recipe, known)
        self._lines.put(line)
        self._beside_bytes += len(line)

    def add(self, component: Component, *pieces: bytes | memoryview) -> None:
        """Add a component's file, which may be in several pieces of bytes, and its mask."""
        self._add(component.suffix, *pieces)
        self._add_mask(component)

    def add_file(self, component: Component, fd: int, size: int) -> None:
        """Add a component's file as it is on disk, which must have this size, and its mask."""
        self._tar.put(tar.header(f"{self._key}.{component.suffix}", size))
        hasher = xxhash.xxh3_64()
        try:
            count = self._tar.put_from(fd, size, hasher)
        except StorageError:  # of the shard, not of the array
            raise
        except OSError:
            raise BadArrayError("unreadable") from None
        if count != size:
            raise BadArrayError("truncated")
        self._end(size, hasher.intdigest())
        self._add_mask(component)

    def finish(self, planned: int | None = None) -> ShardEntry:
        """Seal all three files and give the shard's entry; ``planned`` is its size, if known."""
        size = self._position + len(tar.END) if planned is None else planned
        self._tar.put(tar.END)
        self._tar.seal(size)
        self._lines.seal(self._beside_bytes)
        self._opened.close()
        head = index.Head(
            version=index.VERSION,
            shard=self._path,
            bytes=size,
            xxh3=self._fast.hexdigest(),
            sha256=self._secure.hexdigest() if self._secure else None,
            records_xxh3=self._beside.hexdigest(),
            members=self._recipe.suffixes,
            longest_key=self._recipe.longest_key,
            ids=self._ids,
        )
        data = index.encode(ShardIndex(head, self._table))
        with self._output.create(index.index_name(self._path)) as file:
            file.put(data)
            file.seal(len(data))
        return entry_of(head, data)

    def _add_mask(self, component: Component) -> None:
        if component.mask is not None:
            self._add(component.mask.suffix, mask_member(self._record, component.mask))

    def _add(self, suffix: str, *pieces: bytes | memoryview) -> None:
        size, hasher = sum(map(len, pieces)), xxhash.xxh3_64()
        self._tar.put(tar.header(f"{self._key}.{suffix}", size))
        for piece in pieces:
            hasher.update(piece)
            self._tar.put(piece)
        self._end(size, hasher.intdigest())

    def _end(self, size: int, checksum: int) -> None:
        """End a member, and note it in the table."""
        self._tar.put(bytes(tar.padding(size)))
        self._table.extend((self._position + tar.BLOCK, size, checksum))
        self._position += tar.member_bytes(size)


def publish(output: Place, path: str) -> None:
    """Give a finished shard and what belongs to it their names: the shard last."""
    for name in names_of(path):
        output.publish(name)


def names_of(path: str) -> tuple[str, str, str]:
    """Name the files of a shard: its records, its index, and the shard itself."""
    return records.records_name(path), index.index_name(path), path


def entry_of(head: index.Head, data: bytes) -> ShardEntry:
    """Make the entry of a shard from its index, and the bytes of that."""
    return ShardEntry(
        path=head.shard,
        bucket=head.shard.partition("/")[0].removeprefix(BUCKET_PREFIX),
        samples=len(head.ids),
        bytes=head.bytes,
        xxh3=head.xxh3,
        sha256=head.sha256,
        index_xxh3=xxhash.xxh3_64_hexdigest(data),
        records_xxh3=head.records_xxh3,
    )
