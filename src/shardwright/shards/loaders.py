"""Index files for other loaders, made from our own index without reading a shard.

Each function gives the files that one loader wants, as paths below the shard folder and their
bytes, the file that makes the loader take notice last. Where the loader lets us choose the place it
is a hidden one, because others open every visible file of a shard folder as a tar.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from shardwright import files
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import quantity, size
from shardwright.shards import manifest
from shardwright.shards.index import Member, ShardIndex, load
from shardwright.shards.indexing import IndexSummary
from shardwright.shards.keys import key
from shardwright.shards.manifest import Manifest, ShardEntry
from shardwright.shards.tar import BLOCK, member_bytes

ENERGON_FOLDER = ".nv-meta"
DALI_FOLDER = ".dali"
WIDS_NAME = ".wids.json"
CARD_NAME = "README.md"
CARD_MARK = "<!-- written by shardwright index; --remove removes it -->"
_ENERGON_VERSION = "7.4.1"  # whose layout this is

StrPath = str | os.PathLike[str]
File = tuple[str, bytes]


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
            yield entry, load(self.folder, entry.path)


@dataclass(frozen=True)
class Loader:
    """What we write for a loader, and which files are ours to remove again."""

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
        "name": packed.folder.resolve().name,
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
    shards = packed.manifest.shards
    buckets = {bucket: list(group) for bucket, group in groupby(shards, key=lambda e: e.bucket)}
    configs = [_config("default", "bucket_*/*.tar")]
    configs += [_config(bucket, f"bucket_{bucket}/*.tar") for bucket in buckets]
    total = sum(entry.samples for entry in shards)
    rows = [
        f"| {bucket} | {sum(e.samples for e in group):,} | {len(group):,} | "
        f"{size(sum(e.bytes for e in group))} |"
        for bucket, group in buckets.items()
    ]
    members = load(packed.folder, shards[0].path).head.members
    card = [
        "---",
        "configs:",
        *configs,
        "tags:",
        "- webdataset",
        "- text-to-image",
        "---",
        CARD_MARK,
        f"# {packed.folder.resolve().name}",
        "",
        f"{quantity(total, 'samples')} of {', '.join(f'`{name}`' for name in members)} in "
        f"{quantity(len(shards), 'WebDataset shards')} "
        f"({size(sum(entry.bytes for entry in shards))}), by aspect bucket.",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        f'load_dataset("PATH", "{shards[0].bucket}", split="train", streaming=True)  # one bucket',
        'load_dataset("PATH", split="train", streaming=True)  # all',
        "```",
        "",
        "| bucket | samples | shards | bytes |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        "## How it was made",
        "",
        *_provenance(packed.manifest),
    ]
    yield CARD_NAME, "\n".join(card).encode() + b"\n"


LOADERS: dict[str, Loader] = {
    "energon": Loader(energon, ("bucket_*/shard-*.tar.idx", f"{ENERGON_FOLDER}/*")),
    "dali": Loader(dali, (f"{DALI_FOLDER}/bucket_*/shard-*.idx",)),
    "wids": Loader(wids, (WIDS_NAME,)),
    "webshart": Loader(webshart, ("bucket_*/shard-*.json",)),
    "hf": Loader(hf, (CARD_NAME,)),
}


def write_indexes(folder: Path, names: Iterable[str], remove: bool) -> IndexSummary:
    """Write the files of some loaders, or remove them; those of an earlier packing go as well."""
    chosen = _chosen(names)
    packed = _packed(folder, needed=not remove)
    with files.lock(folder):
        old = {path for name in chosen for path in owned(folder, name)}
        written: list[str] = []
        if packed is not None and not remove:
            _require_no_other_card(folder, chosen)
            for name in chosen:
                written += _write(folder, LOADERS[name].write(packed))
        removed = sorted(old.difference(written))
        _remove(folder, removed)
    return IndexSummary(str(folder), chosen, written, removed)


def _chosen(names: Iterable[str]) -> list[str]:
    chosen = list(dict.fromkeys([names] if isinstance(names, str) else names))
    if not chosen:
        raise UsageError(f"--for: name at least one loader of {', '.join(LOADERS)}")
    for name in chosen:
        if name not in LOADERS:
            raise UsageError(f"--for {name}: no such loader; there are {', '.join(LOADERS)}")
    return chosen


def _packed(folder: Path, needed: bool) -> Packed | None:
    if not folder.is_dir():
        raise InputMissingError(f"{folder}: no such folder; give the --output-dir of a pack")
    listed = manifest.load_manifest(folder)
    if listed is not None and listed.shards:
        return Packed(folder, listed)
    if not needed:
        return None
    raise InputMissingError(
        f"{folder}: has no manifest to make indexes from; pack it, or finish its packing with "
        "--resume"
    )


def owned(folder: Path, loader: str) -> Iterator[str]:
    """Find the files of a loader that we wrote, now or when there were other shards."""
    for pattern in LOADERS[loader].owns:
        for path in folder.glob(pattern):
            if path.name != CARD_NAME or _is_our_card(path):
                yield path.relative_to(folder).as_posix()


def _is_our_card(path: Path) -> bool:
    return CARD_MARK.encode() in path.read_bytes()


def _require_no_other_card(folder: Path, chosen: Iterable[str]) -> None:
    path = folder / CARD_NAME
    if "hf" in chosen and path.exists() and not _is_our_card(path):
        raise UsageError(f"{path}: was not written by shardwright; move it away first")


def _write(folder: Path, made: Iterable[File]) -> list[str]:
    written = []
    for name, data in made:
        path = folder / name
        files.make_folder(path.parent)
        with files.NewFile(path) as file:
            file.write(data)
            file.seal(len(data))
        files.publish(file.tmp, path)
        written.append(name)
    for parent in {(folder / name).parent for name in written}:
        files.sync_folder(parent)
    return written


def _remove(folder: Path, names: Iterable[str]) -> None:
    parents = set()
    for name in names:
        files.remove(folder / name)
        parents.add((folder / name).parent)
    for parent in parents:
        files.sync_folder(parent)
    for top in (ENERGON_FOLDER, DALI_FOLDER):
        files.remove_empty_folders(folder / top)


def _samples(found: ShardIndex) -> Iterator[list[_Member]]:
    """Give the members of each sample."""
    step = len(Member._fields)
    offsets, sizes = iter(found.table[0::step]), iter(found.table[1::step])
    for image_id in found.head.ids:
        name = key(image_id)
        yield [
            _Member(suffix, f"{name}.{suffix}", next(offsets), next(sizes))
            for suffix in found.head.members
        ]


def _config(name: str, pattern: str) -> str:
    return f'- config_name: "{name}"\n  data_files:\n  - split: train\n    path: "{pattern}"'


def _provenance(listed: Manifest) -> Iterator[str]:
    for number, run in enumerate(listed.runs):
        yield (
            f"- run {number} ({run.tool}{', appended' if run.append else ''}): "
            f"{quantity(run.samples, 'samples')} in {quantity(run.shards, 'shards')} from "
            f"{quantity(run.total_records, 'records')} ({run.skipped_incomplete:,} skipped)"
        )
        yield f"  - settings: `{msgspec.json.encode(run.settings).decode()}`"
        if run.provenance is not None:
            yield f"  - provenance: `{msgspec.json.encode(run.provenance).decode()}`"


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
