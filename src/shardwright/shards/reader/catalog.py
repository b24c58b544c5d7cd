"""Where every member of every sample is, for a reader: from the indexes, or from the tar headers.

Two numbers a member and one to know the sample by are held in memory, 88 bytes a sample, so that a
million samples open in about a second. Image ids are looked up only when somebody asks for one.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.errors import DamageError, InputMissingError
from shardwright.layout import STATE_FOLDER
from shardwright.progress import quantity
from shardwright.recipe import Component
from shardwright.shards.format import index, manifest, tarread
from shardwright.shards.format.index import Member, ShardIndex
from shardwright.shards.format.keys import keys
from shardwright.shards.format.names import bucket_folder, existing_buckets, existing_shards
from shardwright.shards.format.tarread import BadTarError
from shardwright.shards.reader.folder import Folder, LocalFolder, Shard

_MANIFEST = f"{STATE_FOLDER}/{manifest.MANIFEST_NAME}"
_UNFINISHED = f"{STATE_FOLDER}/{manifest.UNFINISHED_NAME}"

Numbers = NDArray[np.int64]  # of samples
Places = NDArray[np.int64]
Marks = NDArray[np.uint64]

Contents = tuple[Shard, tuple[str, ...], Places, Sequence[str]]  # with its members and keys


@dataclass(frozen=True)
class Catalog:
    """All samples of a shard folder, numbered in file order."""

    shards: tuple[Shard, ...]
    firsts: list[int]  # the number of each shard's first sample
    members: tuple[str, ...]
    places: Places  # by sample and member: the offset of its data, and its size
    marks: Marks  # by sample: the mark of its key
    keys: list[str] | None = None  # where they were scanned: not every header has the whole of it
    arrays: Mapping[str, Component] = field(default_factory=dict)  # by field; unknown if scanned

    def shard_of(self, number: int) -> Shard:
        """Find the shard of a sample."""
        return self.shards[bisect_right(self.firsts, number) - 1]

    def by_bucket(self, numbers: Numbers) -> dict[str, Numbers]:
        """Sort samples by their bucket."""
        names = list(dict.fromkeys(shard.bucket for shard in self.shards))
        codes = np.array([names.index(shard.bucket) for shard in self.shards])
        found = codes[np.searchsorted(self.firsts, numbers, side="right") - 1]
        split = {name: numbers[found == code] for code, name in enumerate(names)}
        return {name: part for name, part in split.items() if len(part)}

    def digest(self) -> str:
        """Sum up which samples there are, in which order."""
        named = [f"{shard.path} {shard.samples} {shard.bytes}\n" for shard in self.shards]
        hasher = xxhash.xxh3_64("".join(named).encode())
        hasher.update(self.marks.tobytes())
        return hasher.hexdigest()


def mark(key: bytes) -> int:
    """Give a number to know a key by."""
    return xxhash.xxh3_64_intdigest(key)


def open_catalog(folder: Folder) -> Catalog:
    """Read the indexes of a shard folder; where it has no manifest, scan the shards and say so."""
    listed, unfinished = folder.read_files([_MANIFEST, _UNFINISHED])
    if listed is None:
        if unfinished is not None:
            raise InputMissingError(
                f"{folder.name}: packing was interrupted; finish it with the same pack and --resume"
            )
        if not isinstance(folder, LocalFolder):
            raise InputMissingError(
                f"{folder.name}: no {_MANIFEST} there; a remote folder is read through its index, "
                f"so copy {STATE_FOLDER} along with the shards"
            )
        return _scan(folder)
    found = manifest.decode_manifest(listed, f"{folder.name}/{_MANIFEST}")
    shards = []
    for entry in found.shards:
        stamp = folder.stamp(entry.path)
        if stamp is not None and stamp[2] != entry.bytes:
            raise DamageError(
                f"{folder.name}/{entry.path}: has {stamp[2]} bytes where the manifest says "
                f"{entry.bytes}; copy it here again, or pack again"
            )
        shards.append(
            Shard(entry.path, entry.bucket, entry.samples, entry.bytes, entry.index_xxh3, stamp)
        )
    contents = (
        (shard, one.head.members, _places(one), keys(one.head.ids, one.head.longest_key))
        for shard, one in _indexes(folder, shards)
    )
    return replace(_catalog(folder, contents), arrays=found.samples_of().arrays)


def read_ids(folder: Folder, catalog: Catalog) -> list[str] | None:
    """Read the image ids of all samples from the indexes; None where there are none."""
    if any(shard.index_xxh3 is None for shard in catalog.shards):
        return None
    return [i for _, found in _indexes(folder, catalog.shards) for i in found.head.ids]


def _indexes(folder: Folder, shards: Sequence[Shard]) -> Iterator[tuple[Shard, ShardIndex]]:
    paths = [index.index_path(Path(), shard.path).as_posix() for shard in shards]
    for shard, path, data in zip(shards, paths, folder.read_files(paths), strict=True):
        if data is None:
            raise InputMissingError(
                f"{folder.name}/{path}: no such file, but the manifest names its shard; "
                "copy it here again, or pack again"
            )
        if xxhash.xxh3_64_hexdigest(data) != shard.index_xxh3:
            raise DamageError(
                f"{folder.name}/{path}: is damaged or not the one the manifest names; "
                "copy it here again, or pack again"
            )
        yield shard, index.decode(data, f"{folder.name}/{path}")


def _places(found: ShardIndex) -> Places:
    table = np.frombuffer(found.table, np.int64)
    return table.reshape(-1, len(found.head.members), len(Member._fields))[:, :, :2]


def _marks(keys: Iterable[str]) -> Marks:
    return np.fromiter(map(mark, map(str.encode, keys)), np.uint64)


def _catalog(folder: Folder, found: Iterable[Contents]) -> Catalog:
    shards: list[Shard] = []
    firsts, samples = [], 0
    tables, marks = [], []
    members: tuple[str, ...] = ()
    for shard, names, places, known_as in found:
        members = members or names
        if names != members:
            raise DamageError(
                f"{folder.name}/{shard.path}: its samples consist of {', '.join(names)}, and those "
                f"of {shards[0].path} of {', '.join(members)}; pack all of them alike"
            )
        shards.append(shard)
        firsts.append(samples)
        tables.append(places)
        marks.append(_marks(known_as))
        samples += shard.samples
    if not samples:
        raise InputMissingError(
            f"{folder.name}: no shards there, neither bucket_WIDTHxHEIGHT/shard-NNNNNN.tar nor "
            "*.tar; give the --output-dir of a pack"
        )
    return Catalog(tuple(shards), firsts, members, np.concatenate(tables), np.concatenate(marks))


def _scan(folder: LocalFolder) -> Catalog:
    """Make a catalog from nothing but the tar headers."""
    if not folder.path.is_dir():
        raise InputMissingError(f"{folder.name}: no such folder; give the --output-dir of a pack")
    shards = [
        (bucket, f"{bucket_folder(bucket)}/{path.name}")
        for bucket in existing_buckets(folder.path)
        for path in existing_shards(folder.path / bucket_folder(bucket)).values()
    ]
    if not shards:  # one bucket's folder, or tars that nobody sorted
        bucket = folder.path.name.removeprefix(bucket_folder(""))
        paths = [path for path in sorted(folder.path.glob("[!.]*.tar")) if path.is_file()]
        shards = [(bucket, path.name) for path in paths]
    found = [_scan_shard(folder, *shard) for shard in shards]
    catalog = replace(_catalog(folder, found), keys=[key for *_, keys in found for key in keys])
    count = quantity(len(shards), "shards")
    warnings.warn(
        f"{folder.name}: has no manifest, so the headers of its {count} were "
        "scanned; shards packed by shardwright open at once and are checked against their index",
        stacklevel=4,  # whoever called shardwright.open
    )
    return catalog


def _scan_shard(folder: LocalFolder, bucket: str, path: str) -> Contents:
    """Find the samples of one shard; refuse what no loader would read as it was meant."""
    members: tuple[str, ...] = ()
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    before = folder.stamp(path)
    assert before is not None
    fd = os.open(folder.path / path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        latest = ""
        for entry in tarread.entries(fd):
            if entry.kind == tarread.FOLDER:
                continue
            named = tarread.split(entry.name)
            if entry.kind != tarread.FILE or named is None:
                raise BadTarError(f"{entry.name!r} is no member of a sample", entry.offset)
            key, field = named
            sample = samples.setdefault(key, {})
            if field in sample or (sample and key != latest):
                raise BadTarError(f"{entry.name!r} comes a second time or too late", entry.offset)
            sample[field] = (entry.offset, entry.size)
            latest = key
        if not samples:
            raise BadTarError("no samples", 0)
        members = tuple(next(iter(samples.values())))
        for key, sample in samples.items():
            if sample.keys() != set(members):
                raise BadTarError(f"{key!r} lacks members that others have", 0)
    except BadTarError as error:
        raise DamageError(
            f"{folder.name}/{path}: {error.reason}; pack it again, or remove it"
        ) from None
    finally:
        os.close(fd)
    places = np.array([[sample[m] for m in members] for sample in samples.values()], np.int64)
    shard = Shard(path, bucket, len(samples), before[2], None, before)
    return shard, members, places, list(samples)
