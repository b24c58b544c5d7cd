"""The samples of a shard: where its index has them, or where loaders would find them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardwright.recipe import Recipe
from shardwright.shards.format import tar, tarread
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.tarread import BadTarError
from shardwright.verifying.sample import START, Fault, Place


class Sample(NamedTuple):
    """The members of a sample."""

    name: str
    places: dict[str, Place]


def header(name: str, size: int) -> bytes:
    """Give the header that a member must have; if none can say this, one that no file has."""
    try:
        return tar.header(name, size)
    except ValueError:
        return b"\xff" * tar.BLOCK


def indexed(
    fd: int, shard: ShardIndex, keys: Sequence[str]
) -> Iterator[Sample | tuple[str | None, Fault]]:
    """Give the samples of a shard by its index, which must speak of this very tar."""
    spots = shard.spots()
    for image_id, key in zip(shard.head.ids, keys, strict=True):
        places = {}
        for suffix in shard.head.members:
            offset, size = next(spots)
            data = os.pread(fd, tar.BLOCK + min(size, START), offset - tar.BLOCK)
            if not data.startswith(header(f"{key}.{suffix}", size)):
                what = "is not where the index has it"
                yield image_id, Fault("index_wrong", suffix, what)
            places[suffix] = Place(offset, size, data[tar.BLOCK :])
        yield Sample(image_id, places)


def walked(fd: int, keys: list[str], recipe: Recipe) -> Iterator[Sample | tuple[str | None, Fault]]:
    """Give the samples of any tar as loaders see them, and all that would make them stumble.

    Their keys are added to the list, which is empty.
    """
    suffixes = set(recipe.suffixes)
    before: set[str] = set()
    current: Sample | None = None
    extended = 0
    try:
        for entry in tarread.entries(fd):
            extended += entry.extended
            if entry.kind != tarread.FILE:
                damage = entry.kind != tarread.FOLDER
                yield None, Fault("not_a_file", entry.name, f"is a {entry.kind}", damage)
                continue
            parts = tarread.split(entry.name)
            if parts is None:
                what = "has no key that ends at a dot, so loaders pass it over"
                yield None, Fault("no_key", entry.name, what)
                continue
            name, suffix = parts
            if current is None or name != current.name:
                if current is not None:
                    yield current
                if name in before:
                    what = "comes again in the same shard, apart from its other members"
                    yield name, Fault("key_apart", None, what)
                before.add(name)
                keys.append(name)
                current = Sample(name, {})
            true_suffix = next((s for s in suffixes if suffix.endswith(f".{s}")), None)
            if true_suffix is not None and suffix not in suffixes:
                what = f"{entry.name} splits at its first dot, so loaders see the field {suffix}"
                yield name, Fault("splits_wrongly", true_suffix, what)
            if suffix in current.places:
                yield name, Fault("repeated_member", suffix, "is there twice")
            start = os.pread(fd, min(entry.size, START), entry.offset)
            current.places[suffix] = Place(entry.offset, entry.size, start)
        if current is None:
            yield None, Fault("no_samples", None, "has no samples, at which some loaders fail")
    except BadTarError as error:
        yield None, Fault("not_a_tar", None, error.reason)
    if current is not None:
        yield current
    if extended:
        what = f"{extended} members have PAX or GNU headers, which slow loaders or stop them"
        yield None, Fault("extended_headers", None, what, damage=False)
