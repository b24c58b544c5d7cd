"""Index files for other loaders, made from our own index without reading a shard.

Each function gives the files that one loader wants, as paths below the shard folder and their
bytes, the file that makes the loader take notice last. Where the loader lets us choose the place it
is a hidden one, because others open every visible file of a shard folder as a tar.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from shardwright.errors import InputMissingError, StorageError, UsageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.shards.format import manifest
from shardwright.shards.format.index import Member, ShardIndex, load
from shardwright.shards.format.keys import key
from shardwright.shards.format.manifest import Manifest, ShardEntry
from shardwright.shards.format.tar import BLOCK, member_bytes
from shardwright.shards.loaders import card
from shardwright.shards.loaders.indexing import IndexSummary
from shardwright.storage import files
from shardwright.storage.local import LocalStorage
from shardwright.text import shown

ENERGON_FOLDER = ".nv-meta"
DALI_FOLDER = ".dali"
WIDS_NAME = ".wids.json"
CARD_NAME = "README.md"
_RECORD = f"{STATE_FOLDER}/loaders.json"
_ENERGON_VERSION = "7.4.1"  # whose layout this is

File = tuple[str, bytes]
# By loader and path: the xxh3 of what we wrote; while a file is replaced, those of old and new.
Record = dict[str, dict[str, str]]


class _Member(NamedTuple):
    suffix: str
    name: str
    offset: int  # of its data
    size: int


@dataclass(frozen=True)
class Packed:
    """A shard folder and what its manifest says."""

    folder: Path
    manifest: Manifest

    def indexes(self) -> Iterator[tuple[ShardEntry, ShardIndex]]:
        """Read the index of each shard."""
        for entry in self.manifest.shards:
            check()
            yield entry, load(self.folder, entry.path)


@dataclass(frozen=True)
class Loader:
    """What we write for a loader, and which files are its own."""

    write: Callable[[Packed], Iterator[File]]
    owns: tuple[str, ...]  # patterns, of the path below the shard folder


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
            " ".join(f"{m.suffix} {m.offset} {m.size} {m.name}" for m in sample)
            for sample in _samples(found)
        ]
        path = Path(DALI_FOLDER, entry.path).with_suffix(".idx").as_posix()
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
    """Webshart: beside each shard where its members are."""
    for entry, found in packed.indexes():
        members = {
            member.name: {"offset": member.offset, "length": member.size}
            for sample in _samples(found)
            for member in sample
        }
        body = {"filesize": entry.bytes, "files": members}
        yield Path(entry.path).with_suffix(".json").as_posix(), msgspec.json.encode(body)


def hf(packed: Packed) -> Iterator[File]:
    """Hugging Face datasets: a dataset card whose ``configs`` name the shards."""
    members = load(packed.folder, packed.manifest.shards[0].path).head.members
    yield CARD_NAME, card.make(shown(packed.folder.resolve().name), packed.manifest, members)


LOADERS: dict[str, Loader] = {
    "energon": Loader(energon, ("bucket_*/shard-*.tar.idx", f"{ENERGON_FOLDER}/*")),
    "dali": Loader(dali, (f"{DALI_FOLDER}/bucket_*/shard-*.idx",)),
    "wids": Loader(wids, (WIDS_NAME,)),
    "webshart": Loader(webshart, ("bucket_*/shard-*.json",)),
    "hf": Loader(hf, (CARD_NAME,)),
}


def write_indexes(folder: Path, chosen: list[str], remove: bool) -> IndexSummary:
    """Write the files of some loaders, or remove them; those of an earlier packing go as well.

    What we wrote is on record with its checksum, before it appears, so that a run that is killed
    leaves nothing that the next does not know. No other file is replaced or removed, nor one of
    these that somebody has changed since.
    """
    if not chosen:
        raise UsageError(f"--for: name at least one loader of {', '.join(LOADERS)}")
    for name in chosen:
        if name not in LOADERS:
            raise UsageError(f"--for {name}: no such loader; there are {', '.join(LOADERS)}")
    packed = _packed(folder, needed=not remove)
    written: list[str] = []
    removed: list[str] = []
    with LocalStorage(folder).lease():
        if "hf" in chosen and not remove:
            _require_card_of_ours(folder)
        record = read_record(folder)
        try:
            for name in chosen:
                _remove_half_written(folder, name)
                known = record.setdefault(name, {})
                old = set(known)
                if packed is not None and not remove:
                    sealed = _write(packed, name, known)
                    for path, checksum in sealed.items():
                        known[path] = f"{known.get(path, '')} {checksum}".strip()
                    _save_record(folder, record)
                    _publish(folder, sealed, known)
                    written += sealed
                    old.difference_update(sealed)
                removed += _remove(folder, sorted(old), known)
        finally:
            _save_record(folder, record)
    return IndexSummary(str(folder), chosen, written, sorted(removed))


def _packed(folder: Path, needed: bool) -> Packed | None:
    if not folder.is_dir():
        fix = "give the --output-dir of a pack"
        raise InputMissingError("no such folder", path=folder, fix=fix)
    listed = manifest.load_manifest(folder)
    if listed is not None and listed.shards:
        return Packed(folder, listed)
    if not needed:
        return None
    fix = "pack it, or finish its packing with --resume"
    raise InputMissingError("has no manifest to make indexes from", path=folder, fix=fix)


def present(folder: Path, loader: str) -> Iterator[str]:
    """Find the files that a loader would take for its own; a card only if it is ours."""
    for pattern in LOADERS[loader].owns:
        for path in folder.glob(pattern):
            if path.name != CARD_NAME or card.is_ours(path.read_bytes()):
                yield path.relative_to(folder).as_posix()


def read_record(folder: Path) -> Record:
    """Read which files we wrote."""
    try:
        data = (folder / _RECORD).read_bytes()
        return msgspec.json.decode(data, type=Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}  # then we touch nothing


def renewed(path: Path, data: bytes) -> bytes:
    """Give what a file is to hold now: of a card only our parts change."""
    if path.name != CARD_NAME or (there := _content(path)) is None:
        return data
    return card.renewed(there, data)


def _save_record(folder: Path, record: Record) -> None:
    kept = {loader: known for loader, known in record.items() if known}
    if kept == read_record(folder):
        return
    if kept:
        files.write(folder / _RECORD, _json(kept))
    else:
        files.withdraw(folder / _RECORD)


def _require_card_of_ours(folder: Path) -> None:
    there = _content(folder / CARD_NAME)
    if there is not None and not card.is_ours(there):
        raise _not_ours(folder / CARD_NAME)


def _content(path: Path) -> bytes | None:
    """Give what a file holds, if there is one. A link to nowhere is somebody's, and not ours."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise _not_ours(path) from None
        return None


def _not_ours(path: Path) -> UsageError:
    what = "was not written by shardwright index, or was changed since"
    return UsageError(what, path=path, fix="move it away first")


def _write(packed: Packed, loader: str, known: dict[str, str]) -> dict[str, str]:
    """Write the files of a loader under temporary names, and give their checksums."""
    folder, sealed = packed.folder, dict[str, str]()
    try:
        for name, new in LOADERS[loader].write(packed):
            path = folder / name
            data = renewed(path, new)
            there = _content(path)
            ours = there in (None, data) or _is_ours(there, known.get(name, ""))
            if name != CARD_NAME and not ours:
                raise _not_ours(path)
            files.make_folder(path.parent)
            with LocalStorage(folder).create(name) as file:
                file.put(data)
                file.seal(len(data))
            sealed[name] = xxhash.xxh3_64_hexdigest(data)
    except BaseException:
        with suppress(StorageError):  # the error that brought us here is the one to report
            _remove_half_written(folder, loader)
        raise
    return sealed


def _publish(folder: Path, sealed: dict[str, str], known: dict[str, str]) -> None:
    for name, checksum in sealed.items():
        LocalStorage(folder).publish(name)
        known[name] = checksum
    for parent in {(folder / name).parent for name in sealed}:
        files.sync_folder(parent)


def _remove_half_written(folder: Path, loader: str) -> None:
    """Remove what a run that was killed left under temporary names."""
    for pattern in (_RECORD, *LOADERS[loader].owns):
        for path in list(folder.glob(pattern + files.TMP_SUFFIX)):
            files.remove(path)


def _is_ours(there: bytes, checksums: str) -> bool:
    return xxhash.xxh3_64_hexdigest(there) in checksums.split()


def _remove(folder: Path, names: Iterable[str], known: dict[str, str]) -> list[str]:
    removed = []
    for name in names:
        path = folder / name
        if (there := _content(path)) is not None:
            ours = _is_ours(there, known[name])
            if not (card.is_untouched(there) if name == CARD_NAME else ours):
                raise _not_ours(path)
            files.remove(path)
            removed.append(name)
        del known[name]
    for parent in {(folder / name).parent for name in removed}:
        files.sync_folder(parent)
    for top in (ENERGON_FOLDER, DALI_FOLDER):
        files.remove_empty_folders(folder / top)
    return removed


def _samples(found: ShardIndex) -> Iterator[list[_Member]]:
    """Give the members of each sample."""
    spots = found.spots()
    for image_id in found.head.ids:
        name = key(image_id, found.head.longest_key)
        yield [_Member(suffix, f"{name}.{suffix}", *next(spots)) for suffix in found.head.members]


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
