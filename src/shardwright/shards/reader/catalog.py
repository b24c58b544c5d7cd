"""The place of every member of every sample, from the indexes or from the tar headers.

Memory holds two numbers per member and one per sample, 88 bytes per sample, so a million samples
open in about a second. Image ids are read only when somebody asks for one. A catalog also has what
is known besides the samples: how they were made, and the empty caption.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.errors import DamageError, InputMissingError, UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.progress import quantity
from shardwright.recipes import BFLOAT16, Recipe
from shardwright.shards.format import decode, index, manifest, tarread
from shardwright.shards.format.again import complete, overwriting, to_another_url
from shardwright.shards.format.decode import BadMemberError
from shardwright.shards.format.empty import empty_members, empty_name
from shardwright.shards.format.index import Member, ShardIndex
from shardwright.shards.format.keys import keys
from shardwright.shards.format.manifest import Manifest, Run, ShardEntry
from shardwright.shards.format.names import bucket_folder, existing_buckets, existing_shards
from shardwright.shards.format.parts import require_no_parts
from shardwright.shards.format.tarread import Fault
from shardwright.storage.files import explained
from shardwright.storage.local import LocalPlace
from shardwright.storage.pieces import COPY, Folder, Stamp
from shardwright.store import provenance
from shardwright.store.arrays import widened

_MANIFEST = f"{STATE_FOLDER}/{manifest.MANIFEST_NAME}"
_UNFINISHED = f"{STATE_FOLDER}/{manifest.UNFINISHED_NAME}"
_GIVE = "give the --output-dir of a pack"

Numbers = NDArray[np.int64]  # of samples
Places = NDArray[np.int64]
Marks = NDArray[np.uint64]


class Shard(ShardEntry, frozen=True, kw_only=True):
    """A shard when the folder was opened; without a manifest its checksums are blank."""

    stamp: Stamp | None = None  # changes when it is replaced or written to; None if unknown

    @property
    def checksum(self) -> str | None:
        """Tell it from another of the same name: by its index."""
        return self.index_xxh3 or None


Contents = tuple[Shard, tuple[str, ...], Places, Sequence[str]]  # with its members and keys


@dataclass(frozen=True)
class ComponentInfo:
    """What a component is, and how it was made as far as that is recorded."""

    name: str
    suffix: str  # of its member, which is its field in a sample
    source: str  # what it is made from: "image", "caption" or "elsewhere"
    mask: str | None  # the field with ones where its rows are tokens of the caption
    dtype: str  # of its values, for example "float16"
    shape: tuple[int | str, ...]  # as in a recipe file, for example (16, "height/8", "width/8")
    model: str | None
    scaling_factor: float | None  # of an autoencoder; not applied to the latents
    shift_factor: float | None
    settings: Mapping[str, Any]  # all that its encoder recorded


@dataclass(frozen=True)
class Catalog:
    """All samples of a shard folder, numbered in file order."""

    shards: tuple[Shard, ...]
    firsts: list[int]  # the number of each shard's first sample
    members: tuple[str, ...]
    places: Places  # by sample and member: the offset of its data, and its size
    marks: Marks  # by sample: the hash of its key
    keys: list[str] | None = None  # if scanned: a long key is not complete in its header
    recipe: Recipe | None = None  # unknown if scanned, and so is what follows
    components: Mapping[str, ComponentInfo] = field(default_factory=dict)
    empty: Mapping[str, str] = field(default_factory=dict)  # the xxh3 of each file
    last: Run | None = None  # with the settings that write all of it again

    def again(self, folder: Folder) -> str:
        """Say how to write its folder, or URL, again; nothing that was excluded comes back."""
        how = "build again" if self.last and self.last.is_build else "pack again"
        if folder.can_replace:
            return f"{how} with {overwriting('--overwrite', self.last, None)}"
        return f"{how} {to_another_url(self.last, None)}"

    def shard_of(self, number: int) -> Shard:
        """Find the shard of a sample."""
        return self.shards[bisect_right(self.firsts, number) - 1]

    def by_bucket(self, numbers: Numbers) -> dict[str, Numbers]:
        """Group samples by bucket."""
        names = list(dict.fromkeys(shard.bucket for shard in self.shards))
        codes = np.array([names.index(shard.bucket) for shard in self.shards])
        found = codes[np.searchsorted(self.firsts, numbers, side="right") - 1]
        split = {name: numbers[found == code] for code, name in enumerate(names)}
        return {name: part for name, part in split.items() if len(part)}

    def digest(self, numbers: Numbers) -> str:
        """Hash which samples there are, and which of them are meant, in which order."""
        named = [f"{shard.path} {shard.samples} {shard.bytes}\n" for shard in self.shards]
        hasher = xxhash.xxh3_64("".join(named).encode())
        hasher.update(self.marks.tobytes())
        return xxhash.xxh3_64_hexdigest(hasher.hexdigest().encode() + numbers.tobytes())


def open_catalog(folder: Folder) -> Catalog:
    """Read the indexes of a shard folder; without a manifest, scan the shards and warn."""
    listed, unfinished = folder.read_files([_MANIFEST, _UNFINISHED])
    if listed is None:
        if unfinished is not None:
            fix = "run the same pack with --resume, or the same build, to finish it"
            raise InputMissingError("its last run was interrupted", path=folder.name, fix=fix)
        if folder.path is not None:
            require_no_parts(folder.path)
            return _scan(folder, folder.path)
        fix = f"a URL is read through its index, so copy {STATE_FOLDER} along with the shards"
        raise InputMissingError(f"has no {_MANIFEST}", path=folder.name, fix=fix)
    found = manifest.decode_manifest(listed, f"{folder.name}/{_MANIFEST}")
    shards = []
    for entry in found.shards:
        stamp = folder.stamp(entry.path)
        if stamp is not None and stamp[2] != entry.bytes:
            what = f"has {stamp[2]:,} bytes, but the manifest says {entry.bytes:,}"
            raise DamageError(what, path=f"{folder.name}/{entry.path}", fix=COPY)
        shards.append(Shard(**msgspec.structs.asdict(entry), stamp=stamp))
    catalog = _catalog(folder, (_contents(*one) for one in _indexes(folder, shards)))
    recipe = found.samples_of()
    if catalog.members != recipe.suffixes:
        what = f"says that samples have {', '.join(recipe.suffixes)}, but its indexes say others"
        raise DamageError(what, path=f"{folder.name}/{_MANIFEST}", fix=COPY)
    last = found.runs[-1]
    return replace(
        catalog,
        recipe=recipe,
        components=components_of(found),
        empty=found.empties(),
        last=msgspec.structs.replace(last, settings=complete(last.settings, [found])),
    )


def read_ids(folder: Folder, catalog: Catalog) -> list[str] | None:
    """Read the image ids of all samples from the indexes; None if there are no indexes."""
    if catalog.recipe is None:
        return None
    return [i for _, found in _indexes(folder, catalog.shards) for i in found.head.ids]


def _indexes(folder: Folder, shards: Sequence[Shard]) -> Iterator[tuple[Shard, ShardIndex]]:
    names = [index.index_name(shard.path) for shard in shards]
    for shard, name, data in zip(shards, names, folder.read_files(names), strict=True):
        path = f"{folder.name}/{name}"
        if data is None:
            what = "no such file, but the manifest lists its shard"
            raise InputMissingError(what, path=path, fix=COPY)
        yield shard, index.decode_listed(data, path, shard)


def _contents(shard: Shard, found: ShardIndex) -> Contents:
    head, table = found.head, np.frombuffer(found.table, np.int64)
    places = table.reshape(-1, len(head.members), len(Member._fields))[:, :, :2]
    return shard, head.members, places, keys(head.ids, head.longest_key)


def _catalog(folder: Folder, found: Iterable[Contents]) -> Catalog:
    shards, firsts, samples = list[Shard](), list[int](), 0
    tables, marks = [], []
    members: tuple[str, ...] = ()
    for shard, names, places, known_as in found:
        members = members or names
        if names != members:
            what = f"has {', '.join(names)}, but {shards[0].path} has {', '.join(members)}"
            path, fix = f"{folder.name}/{shard.path}", "pack all with the same members"
            raise DamageError(what, path=path, fix=fix)
        shards.append(shard)
        firsts.append(samples)
        tables.append(places)
        marks.append(
            np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, known_as)), np.uint64)
        )
        samples += shard.samples
    if not samples:
        what = "has no shards (bucket_WIDTHxHEIGHT/shard-NNNNNN.tar or *.tar)"
        raise InputMissingError(what, path=folder.name, fix=_GIVE)
    return Catalog(tuple(shards), firsts, members, np.concatenate(tables), np.concatenate(marks))


def _scan(folder: Folder, place: Path) -> Catalog:
    """Make a catalog from the tar headers alone."""
    if not place.is_dir():
        raise InputMissingError("no such folder", path=folder.name, fix=_GIVE)
    shards = [
        (bucket, f"{bucket_folder(bucket)}/{path.name}")
        for bucket in existing_buckets(place)
        for path in existing_shards(place / bucket_folder(bucket)).values()
    ]
    if not shards:  # one bucket's folder, or tars without buckets
        bucket = place.name.removeprefix(bucket_folder(""))
        paths = [path for path in sorted(place.glob("[!.]*.tar")) if path.is_file()]
        shards = [(bucket, path.name) for path in paths]
    found = [_scan_shard(folder, place, *shard) for shard in shards]
    catalog = replace(_catalog(folder, found), keys=[key for *_, keys in found for key in keys])
    count = quantity(len(shards), "shards")
    what = f"{folder.name}: has no manifest; read the headers of {count} instead of their indexes"
    warnings.warn(what, stacklevel=4)  # points at the caller of shardwright.open
    return catalog


def _scan_shard(folder: Folder, place: Path, bucket: str, path: str) -> Contents:
    """Find the samples of one shard; raise if loaders would misread it."""
    members: tuple[str, ...] = ()
    places: list[list[tuple[int, int]]] = []
    found: list[str] = []
    stamp = folder.stamp(path)
    with explained(place / path), LocalPlace(place).open(path) as file:
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
                what = "has other members than the first sample"
                fault = Fault("not_alike", what, sample=sample.key)
            if fault.damage:
                which = ".".join(filter(None, (fault.sample, fault.member)))
                what = f"{which}: {fault.what}" if which else fault.what
                fix = "pack it again, or remove it"
                raise DamageError(what, path=f"{folder.name}/{path}", fix=fix)
        size = file.size
    shard = Shard(
        path=path,
        bucket=bucket,
        samples=len(found),
        bytes=size,
        xxh3="",
        index_xxh3="",
        records_xxh3="",
        stamp=stamp,
    )
    return shard, members, np.array(places, np.int64), found


def components_of(found: Manifest) -> dict[str, ComponentInfo]:
    """Describe the components of a manifest, by name."""
    made: dict[str, provenance.Settings] = {}
    for number in found.by_run():  # in which equal components have equal settings
        made |= provenance.settings_in(found.runs[number].provenance)
    described = {}
    for component in found.samples_of().components:
        settings = made.get(component.name, {})
        described[component.name] = ComponentInfo(
            name=component.name,
            suffix=component.suffix,
            source=component.source,
            mask=component.mask.suffix if component.mask else None,
            dtype=component.dtype_text,
            shape=component.shape_text,
            model=settings.get("model"),
            scaling_factor=settings.get("scaling_factor"),
            shift_factor=settings.get("shift_factor"),
            settings=settings,
        )
    return described


class EmptyCaption:
    """The arrays and masks of the empty caption, by the suffixes of their members.

    Values are as in a sample. A file is read when it is first asked for.
    """

    def __init__(self, folder: Folder, recipe: Recipe | None, checksums: Mapping[str, str]) -> None:
        self._folder, self._recipe, self._checksums = folder, recipe, checksums
        self._read: dict[str, NDArray[Any]] = {}

    def __getitem__(self, suffix: str) -> NDArray[Any]:
        if suffix not in self._read:
            self._require_listed(suffix)
            self._read[suffix] = self._load(suffix)
        return self._read[suffix]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checksums)

    def __len__(self) -> int:
        return len(self._checksums)

    def keys(self) -> Iterator[str]:
        """Name what there is, so that ``dict`` reads it all."""
        return iter(self)

    def _require_listed(self, suffix: str) -> None:
        name = self._folder.name
        if self._recipe is None:
            what = "has no manifest, so nothing is known of the empty caption"
            copy = f"copy {STATE_FOLDER} along with the shards"
            raise InputMissingError(what, path=name, fix=copy)
        if suffix not in (texts := empty_members(self._recipe)):
            there = f"there are {', '.join(texts)}" if texts else None
            raise UsageError(f"empty: {suffix} is not made from a caption", path=name, fix=there)
        if suffix not in self._checksums:
            what = f"has no {suffix} of the empty caption, because its store had none"
            fix = "run shardwright derive once more, then pack with --append"
            raise InputMissingError(what, path=name, fix=fix)

    def _load(self, suffix: str) -> NDArray[Any]:
        path = f"{self._folder.name}/{empty_name(suffix)}"
        (data,) = self._folder.read_files([empty_name(suffix)])
        if data is None:
            what = "no such file, but the manifest lists it"
            raise InputMissingError(what, path=path, fix=COPY)
        if xxhash.xxh3_64_hexdigest(data) != self._checksums[suffix]:
            raise DamageError("is damaged, or not the one in the manifest", path=path, fix=COPY)
        try:
            array = decode.array(memoryview(data))
        except BadMemberError as error:
            raise DamageError(f"is damaged ({error})", path=path, fix=COPY) from None
        half = self._recipe is not None and self._recipe.arrays[suffix].dtype == BFLOAT16
        return widened(array) if half else array.copy()
