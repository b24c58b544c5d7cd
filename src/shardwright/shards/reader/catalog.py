"""Where every member of every sample is, for a reader: from the indexes, or from the tar headers.

Two numbers a member and one to know the sample by are held in memory, 88 bytes a sample, so that a
million samples open in about a second. Image ids are looked up only when somebody asks for one.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from shardwright.shards.reader.folder import COPY, Folder, LocalFolder, Shard
from shardwright.storage.files import explained
from shardwright.storage.local import LocalStorage
from shardwright.store.findings import Fault

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
            fix = "finish it with the same pack and --resume"
            raise InputMissingError("packing was interrupted", path=folder.name, fix=fix)
        if isinstance(folder, LocalFolder):
            return _scan(folder)
        fix = f"a remote folder is read through its index, so copy {STATE_FOLDER} along with the "
        raise InputMissingError(f"no {_MANIFEST} there", path=folder.name, fix=f"{fix}shards")
    found = manifest.decode_manifest(listed, f"{folder.name}/{_MANIFEST}")
    shards = []
    for entry in found.shards:
        stamp = folder.stamp(entry.path)
        if stamp is not None and stamp[2] != entry.bytes:
            what = f"has {stamp[2]} bytes where the manifest says {entry.bytes}"
            raise DamageError(what, path=f"{folder.name}/{entry.path}", fix=COPY)
        shards.append(
            Shard(entry.path, entry.bucket, entry.samples, entry.bytes, entry.index_xxh3, stamp)
        )
    catalog = _catalog(folder, (_contents(*one) for one in _indexes(folder, shards)))
    return replace(catalog, arrays=found.samples_of().arrays)


def read_ids(folder: Folder, catalog: Catalog) -> list[str] | None:
    """Read the image ids of all samples from the indexes; None where there are none."""
    if any(shard.index_xxh3 is None for shard in catalog.shards):
        return None
    return [i for _, found in _indexes(folder, catalog.shards) for i in found.head.ids]


def _indexes(folder: Folder, shards: Sequence[Shard]) -> Iterator[tuple[Shard, ShardIndex]]:
    names = [index.index_name(shard.path) for shard in shards]
    for shard, name, data in zip(shards, names, folder.read_files(names), strict=True):
        path = f"{folder.name}/{name}"
        if data is None:
            what = "no such file, but the manifest names its shard"
            raise InputMissingError(what, path=path, fix=COPY)
        if xxhash.xxh3_64_hexdigest(data) != shard.index_xxh3:
            what = "is damaged or not the one the manifest names"
            raise DamageError(what, path=path, fix=COPY)
        yield shard, index.decode(data, path)


def _contents(shard: Shard, found: ShardIndex) -> Contents:
    head, table = found.head, np.frombuffer(found.table, np.int64)
    places = table.reshape(-1, len(head.members), len(Member._fields))[:, :, :2]
    return shard, head.members, places, keys(head.ids, head.longest_key)


def _catalog(folder: Folder, found: Iterable[Contents]) -> Catalog:
    shards: list[Shard] = []
    firsts, samples = [], 0
    tables, marks = [], []
    members: tuple[str, ...] = ()
    for shard, names, places, known_as in found:
        members = members or names
        if names != members:
            what = f"its samples consist of {', '.join(names)}, and those of {shards[0].path} of "
            path, what = f"{folder.name}/{shard.path}", what + ", ".join(members)
            raise DamageError(what, path=path, fix="pack all of them alike")
        shards.append(shard)
        firsts.append(samples)
        tables.append(places)
        marks.append(np.fromiter(map(mark, map(str.encode, known_as)), np.uint64))
        samples += shard.samples
    if not samples:
        what = "no shards there, neither bucket_WIDTHxHEIGHT/shard-NNNNNN.tar nor *.tar"
        raise InputMissingError(what, path=folder.name, fix="give the --output-dir of a pack")
    return Catalog(tuple(shards), firsts, members, np.concatenate(tables), np.concatenate(marks))


def _scan(folder: LocalFolder) -> Catalog:
    """Make a catalog from nothing but the tar headers."""
    if not folder.path.is_dir():
        fix = "give the --output-dir of a pack"
        raise InputMissingError("no such folder", path=folder.name, fix=fix)
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
    places: list[list[tuple[int, int]]] = []
    found: list[str] = []
    stamp = folder.stamp(path)
    with explained(folder.path / path), LocalStorage(folder.path).open(path) as file:
        for sample in tarread.samples(file):
            if isinstance(sample, Fault):
                fault = sample
            else:
                members = members or tuple(sample.members)
                if sample.members.keys() == set(members):
                    entries = [sample.members[member] for member in members]
                    places.append([(entry.offset, entry.size) for entry in entries])
                    found.append(sample.key)
                    continue
                fault = Fault("not_alike", "has other members than the first", sample=sample.key)
            if fault.damage:
                finding = fault.finding(f"{folder.name}/{path}", "pack it again, or remove it")
                raise DamageError(str(finding))
        shard = Shard(path, bucket, len(found), file.size, None, stamp)
    return shard, members, np.array(places, np.int64), found
