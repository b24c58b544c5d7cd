"""Index files for other loaders, made from our own index without reading a shard.

Each function gives the files of one loader: paths below the shard folder, and their bytes. The file
that the loader looks for comes last. Files are hidden where the loader allows it, because others
open every visible file of a shard folder as a tar.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

import msgspec
import xxhash

from shardwright.errors import DamageError, InputMissingError, StorageError, UsageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.shards.format import manifest
from shardwright.shards.format.index import Member, ShardIndex, load_listed
from shardwright.shards.format.keys import key
from shardwright.shards.format.manifest import Manifest, ShardEntry
from shardwright.shards.format.parts import is_packed, parts_of
from shardwright.shards.format.tar import BLOCK, member_bytes
from shardwright.shards.loaders import IndexSummary, card
from shardwright.storage import files
from shardwright.storage.paths import is_below, require_names
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.text import shown

ENERGON_FOLDER = ".nv-meta"
DALI_FOLDER = ".dali"
WIDS_NAME = ".wids.json"
CARD_NAME = "README.md"
_RECORD = f"{STATE_FOLDER}/loaders.json"
_FORGET = "delete it, and with it the index files of loaders that are no longer needed"
_ENERGON_VERSION = "7.4.1"  # that has this layout

File = tuple[str, bytes]
# By loader and path: the xxh3 of what we wrote; while a file is replaced, of the old and the new.
Record = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Packed:
    """A shard folder with its manifest."""

    folder: Location
    manifest: Manifest

    def indexes(self) -> Iterator[tuple[ShardEntry, ShardIndex]]:
        """Read the index of each shard."""
        for entry in self.manifest.shards:
            check()
            yield entry, load_listed(self.folder, entry)


@dataclass(frozen=True)
class Loader:
    """The files that we write for a loader."""

    write: Callable[[Packed], Iterator[File]]
    owns: tuple[str, ...]  # patterns of their paths below the shard folder


def energon(packed: Packed) -> Iterator[File]:
    """Megatron-Energon: where each sample starts, the counts, and one split with everything."""
    counts = {}
    for entry, found in packed.indexes():
        columns = len(found.head.members)
        firsts = found.table[:: columns * len(Member._fields)]
        last = found.member(entry.samples - 1, columns - 1)
        end = last.offset - BLOCK + member_bytes(last.size)
        starts = array("Q", [*(offset - BLOCK for offset in firsts), end])
        yield f"{entry.path}.idx", starts.tobytes()  # in the machine's own byte order
        counts[entry.path] = entry.samples
    # JSON is YAML, and needs no other library.
    splits = {"split_parts": {"train": list(counts), "val": [], "test": []}, "exclude": []}
    yield f"{ENERGON_FOLDER}/split.yaml", _json(splits)
    dataset = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    yield f"{ENERGON_FOLDER}/dataset.yaml", _json(dataset)
    info = {"energon_version": _ENERGON_VERSION, "shard_counts": counts}
    yield f"{ENERGON_FOLDER}/.info.json", _json(info)


def dali(packed: Packed) -> Iterator[File]:
    """NVIDIA DALI: a text file for each shard, for ``index_paths``."""
    for entry, found in packed.indexes():
        lines = [
            " ".join(f"{suffix} {at} {size} {name}" for suffix, name, at, size in sample)
            for sample in _samples(found)
        ]
        path = f"{DALI_FOLDER}/{entry.path.removesuffix('.tar')}.idx"
        yield path, "\n".join([f"v1.2 {entry.samples}", *lines, ""]).encode()


def wids(packed: Packed) -> Iterator[File]:
    """Wids, which is webdataset 0.2: one list of the shards."""
    shards = [
        {"url": entry.path, "nsamples": entry.samples, "filesize": entry.bytes}
        for entry in packed.manifest.shards
    ]
    listed = {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": shown(packed.folder.resolve().name),
        "shardlist": shards,
    }
    yield WIDS_NAME, _json(listed)


def webshart(packed: Packed) -> Iterator[File]:
    """Webshart: beside each shard, the places of its members."""
    for entry, found in packed.indexes():
        members = {
            name: {"offset": offset, "length": size}
            for sample in _samples(found)
            for _, name, offset, size in sample
        }
        body = {"filesize": entry.bytes, "files": members}
        yield f"{entry.path.removesuffix('.tar')}.json", msgspec.json.encode(body)


def hf(packed: Packed) -> Iterator[File]:
    """Hugging Face datasets: a dataset card whose ``configs`` name the shards."""
    members = load_listed(packed.folder, packed.manifest.shards[0]).head.members
    yield CARD_NAME, card.make(shown(packed.folder.resolve().name), packed.manifest, members)


LOADERS: dict[str, Loader] = {
    "energon": Loader(energon, ("bucket_*/shard-*.tar.idx", f"{ENERGON_FOLDER}/*")),
    "dali": Loader(dali, (f"{DALI_FOLDER}/bucket_*/shard-*.idx",)),
    "wids": Loader(wids, (WIDS_NAME,)),
    "webshart": Loader(webshart, ("bucket_*/shard-*.json",)),
    "hf": Loader(hf, (CARD_NAME,)),
}


def write_indexes(folder: Location, chosen: list[str], remove: bool) -> IndexSummary:
    """Write the files of some loaders, or remove them; those of an earlier packing are removed too.

    The checksum of each file is recorded before the file appears, so a killed run leaves nothing
    that the next one does not know. Other files and edited files are never touched.
    """
    unknown = [f"--for {name}: no such loader" for name in chosen if name not in LOADERS]
    if unknown or not chosen:
        what = unknown[0] if unknown else "--for: no loader given"
        raise UsageError(what, fix=f"there are {', '.join(LOADERS)}")
    if not folder.is_dir():
        fix = "give the --output-dir of a pack or a build"
        raise InputMissingError("no such folder", path=folder, fix=fix)
    if not is_packed(folder) and (parts := parts_of(folder)):
        done = {name: write_indexes(part, chosen, remove) for name, part in parts.items()}
        written = [f"{name}/{path}" for name, one in done.items() for path in one.written]
        gone = [f"{name}/{path}" for name, one in done.items() for path in one.removed]
        return IndexSummary(str(folder), chosen, written, gone)
    listed = None if remove else manifest.load_manifest(folder)
    if not remove and not (listed and listed.shards):
        fix = "pack or build it, or finish that: pack with --resume, or the same build again"
        raise InputMissingError("has no manifest", path=folder, fix=fix)
    written, removed = list[str](), list[str]()
    packed = Packed(folder, listed) if listed else None
    with place_at(folder).lease():
        record = _read_record(folder)
        _remove_half_written(folder, chosen)
        try:
            made = {n: _seal(packed, n, record.get(n, {})) if packed else {} for n in chosen}
            for name, sums in made.items():
                known = record.setdefault(name, {})
                for path, checksum in sums.items():
                    known[path] = f"{known.get(path, '')} {checksum}".strip()
            _save_record(folder, record)
            for name, sums in made.items():
                written += _publish(packed, name, sums) if packed else ()
            _sync_folders(folder, written)
        except BaseException:
            with suppress(StorageError):  # the error that brought us here is the one to report
                _remove_half_written(folder, chosen)
            raise
        try:
            for name, sums in made.items():
                known = record[name]
                known |= sums
                removed += _remove(folder, sorted(known.keys() - sums.keys()), known)
        finally:
            _save_record(folder, record)
    return IndexSummary(str(folder), chosen, written, sorted(removed))


def present(folder: Location, loader: str) -> Iterator[str]:
    """Find the files that a loader would use; a card only if it is ours."""
    for name in place_at(folder).matching(LOADERS[loader].owns):
        if name != CARD_NAME or card.is_ours(files.read(folder / name)):
            yield name


def read_record(folder: Location) -> Record:
    """Read which files we wrote; none if that cannot be known."""
    try:
        return _read_record(folder)
    except DamageError:
        return {}


def _read_record(folder: Location) -> Record:
    """Read which files we wrote; raise if it names others, which would be removed as ours."""
    path = folder / _RECORD
    try:
        found = msgspec.json.decode(files.read(path), type=Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # so no file counts as ours
    require_names(found, LOADERS.__contains__, "a loader", path, _FORGET)
    for loader, known in found.items():
        require_names(known, partial(_is_file_of, loader), f"a file of {loader}", path, _FORGET)
    return found


def _is_file_of(loader: str, name: str) -> bool:
    """Whether a path is one of those that we write for a loader."""
    return is_below(name) and any(
        PurePosixPath(name).match(pattern) and name.count("/") == pattern.count("/")
        for pattern in LOADERS[loader].owns
    )


def renewed(path: Location, data: bytes) -> bytes:
    """Give the new contents of a file; in a card only our parts change."""
    if path.name != CARD_NAME or (there := _content(path)) is None:
        return data
    if not card.is_ours(there):
        raise _not_ours(path)
    return card.renewed(there, data)


def _save_record(folder: Location, record: Record) -> None:
    kept = {loader: known for loader, known in record.items() if known}
    if kept == read_record(folder):
        return
    if kept:
        files.write(folder / _RECORD, _json(kept))
    else:
        files.withdraw(folder / _RECORD)


def _content(path: Location) -> bytes | None:
    """Read a file, if there is one; a broken link is not ours."""
    try:
        return files.read(path)
    except FileNotFoundError:
        if path.is_symlink():
            raise _not_ours(path) from None
        return None


def _not_ours(path: Location) -> UsageError:
    what = "was not written by shardwright index, or was edited since"
    return UsageError(what, path=path, fix="move it away first")


def _seal(packed: Packed, loader: str, known: dict[str, str]) -> dict[str, str]:
    """Write the files of a loader under temporary names; give their checksums.

    Raise if one of them would replace somebody else's.
    """
    sums: dict[str, str] = {}
    for name, new in LOADERS[loader].write(packed):
        path = packed.folder / name
        data, there = renewed(path, new), _content(path)
        if there is not None and there != data and not _is_ours(name, there, known):
            raise _not_ours(path)
        files.prepare(path, data)
        sums[name] = xxhash.xxh3_64_hexdigest(data)
    return sums


def _publish(packed: Packed, loader: str, sealed: Iterable[str]) -> Iterator[str]:
    """Give sealed files their names; where there are no temporary ones, write them now."""
    place = place_at(packed.folder)
    if place.can_replace:
        for name in sealed:
            place.publish(name)
            yield name
        return
    for name, data in LOADERS[loader].write(packed):
        files.write(packed.folder / name, renewed(packed.folder / name, data))
        yield name


def _sync_folders(folder: Location, names: Iterable[str]) -> None:
    for parent in {(folder / name).parent for name in names}:
        files.sync_folder(parent)


def _remove_half_written(folder: Location, loaders: Iterable[str]) -> None:
    """Remove the temporary files of a killed run, where there are any."""
    place = place_at(folder)
    patterns = [_RECORD, *(pattern for loader in loaders for pattern in LOADERS[loader].owns)]
    if place.can_replace:
        for name in place.matching([pattern + files.TMP_SUFFIX for pattern in patterns]):
            files.remove(folder / name)


def _is_ours(name: str, there: bytes, known: dict[str, str]) -> bool:
    """Whether a file is as we wrote it; of a card, whether our parts are."""
    if name == CARD_NAME:
        return card.is_ours(there)
    return xxhash.xxh3_64_hexdigest(there) in known.get(name, "").split()


def _remove(folder: Location, names: Iterable[str], known: dict[str, str]) -> list[str]:
    removed = []
    for name in names:
        path = folder / name
        if (there := _content(path)) is not None:
            if not _is_ours(name, there, known) or (name == CARD_NAME and card.is_edited(there)):
                raise _not_ours(path)
            files.remove(path)
            removed.append(name)
        del known[name]
    _sync_folders(folder, removed)
    for top in (ENERGON_FOLDER, DALI_FOLDER):
        files.remove_empty_folders(folder / top)
    return removed


def _samples(found: ShardIndex) -> Iterator[list[tuple[str, str, int, int]]]:
    """List the members of each sample: suffix, name, offset and size of the data."""
    spots = found.spots()
    for image_id in found.head.ids:
        name = key(image_id, found.head.longest_key)
        yield [(suffix, f"{name}.{suffix}", *next(spots)) for suffix in found.head.members]


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
