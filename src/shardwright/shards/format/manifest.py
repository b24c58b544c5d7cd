"""The manifest of a shard folder: what was packed, with which settings, and what was skipped.

It is published last, so it lists only complete shards. While a run is active, or after it was
killed, an ``Unfinished`` note beside it holds what is needed to resume.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from shardwright.buckets import is_bucket
from shardwright.errors import DamageError, LockedError, SourceChangedError
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import SPECIFICATION, Recipe, require_valid
from shardwright.recipes.split import Split, is_part
from shardwright.shards.format.empty import empty_members
from shardwright.shards.format.names import bucket_folder, is_shard_path
from shardwright.shards.format.tar import BLOCK
from shardwright.storage import files
from shardwright.storage.objects import ConditionError
from shardwright.storage.paths import require_names
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, joined
from shardwright.store.commands import split_flags

MANIFEST_NAME = "manifest.json"
UNFINISHED_NAME = "unfinished.json"
SHA256_NAME = "SHA256SUMS"
_FIX = "make all shards again with --overwrite and all flags of the last run"

# What excludes samples for good besides a split, by its setting.
CONDITIONS = {
    "where": "--where",
    "ids_file": "--ids-file",
    "exclude_ids_file": "--exclude-ids-file",
}

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Several = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One shard."""

    run: int = 0  # which of the runs wrote it
    path: str
    bucket: str
    samples: Count
    bytes: Count
    xxh3: str
    sha256: str | None = None
    index_xxh3: str
    records_xxh3: str  # of its records in one file


class IdsFile(msgspec.Struct, frozen=True):
    """A list of ids, as it was when it was used."""

    path: str  # relative to the store's folder
    xxh3: str


class PackSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings that decide which samples go into which shard."""

    buckets: list[str]  # empty for all
    shuffle: bool
    seed: int | None  # None when nothing was shuffled
    limit: Count | None
    shard_size: Several
    split: Split | None = None
    part: str | None = None  # of the split, that this folder holds
    where: list[str] = []
    ids_file: IdsFile | None = None
    exclude_ids_file: IdsFile | None = None

    @property
    def is_choice(self) -> bool:
        """Whether they leave out samples for good, which an append does not add either."""
        return bool(self.part or self.where or self.ids_file or self.exclude_ids_file)

    def chosen_as(self, before: PackSettings, given: Collection[str] = ()) -> PackSettings:
        """Give them with the conditions and lists of an earlier run, where they have none.

        Those that are ``given`` stay, although none may have been given.
        """
        absent = (name for name in CONDITIONS if name not in given and not getattr(self, name))
        return msgspec.structs.replace(self, **{name: getattr(before, name) for name in absent})

    def conditions(self, store: Location) -> list[str]:
        """Spell the conditions and lists, which all runs of a folder share."""
        words = [word for text in self.where for word in ("--where", text)]
        lists = {"--ids-file": self.ids_file, "--exclude-ids-file": self.exclude_ids_file}
        for flag, file in lists.items():
            words += [flag, str(joined(store, file.path))] if file else []
        return words

    def layout(self) -> list[str]:
        """Spell the rest of them, which no later run keeps, leaving out defaults."""
        words = ["--bucket", ",".join(self.buckets)] if self.buckets else []
        if self.shuffle:
            words += ["--shuffle", *(["--seed", str(self.seed)] if self.seed else [])]
        words += [] if self.limit is None else ["--limit", str(self.limit)]
        return words if self.shard_size == 1000 else [*words, "--shard-size", str(self.shard_size)]

    def flags(self, store: Location, top: Location) -> list[str]:
        """Spell these settings as flags of pack into the folder ``top``, without defaults."""
        return [*split_flags(self.split, top), *self.conditions(store), *self.layout()]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of pack or build: its settings, its counts, and how its arrays were made."""

    tool: str
    append: bool
    settings: PackSettings
    plan: str  # a digest of the settings and of the chosen samples, in order
    total_records: Count
    ready_records: Count
    skipped_incomplete: Count
    skipped_by_reason: dict[str, Any]
    samples: Count
    shards: Count
    provenance: Any = None
    jsonl: str | None = None  # that was packed, relative to the store's folder; None: unknown
    store_id: str | UnsetType = UNSET  # the identity of the store; absent: unknown
    parts: dict[str, str] | UnsetType = UNSET  # of a split: the plan of each part in this run
    sync: bool | UnsetType = UNSET  # whether it also wrote shards of earlier runs again
    build: dict[str, Any] | UnsetType = UNSET  # what a build was made from; absent: it was a pack

    @property
    def is_build(self) -> bool:
        """Whether its shards were built, without a store."""
        return self.build is not UNSET

    @property
    def inputs(self) -> tuple[str, ...] | None:
        """Name what a build was made from, as far as it says; None of a pack."""
        if isinstance(self.build, UnsetType):
            return None
        given = self.build.get("inputs")
        return tuple(map(str, given)) if isinstance(given, list) else ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All shards of a folder and the runs that made them."""

    format: Literal["shardwright-manifest"] = "shardwright-manifest"
    version: Literal[1] = 1
    runs: list[Run]
    shards: list[ShardEntry]
    recipe: Recipe | UnsetType = UNSET  # of the samples; absent: the specification's
    empty: dict[str, str] | UnsetType = UNSET  # the xxh3 of each member for the empty caption

    def samples_of(self) -> Recipe:
        """Give the recipe of the samples."""
        return SPECIFICATION if isinstance(self.recipe, UnsetType) else self.recipe

    def empties(self) -> dict[str, str]:
        """Give the xxh3 of each member for the empty caption; none if the store had none."""
        return {} if isinstance(self.empty, UnsetType) else self.empty

    def jsonls(self) -> list[str]:
        """Name the known JSONLs that the shards were packed from."""
        names = {self.runs[number].jsonl for number in self.by_run()}
        return sorted(name for name in names if name is not None)

    def by_run(self) -> dict[int, list[ShardEntry]]:
        """Group the shards by run, in run order."""
        found: dict[int, list[ShardEntry]] = {}
        for entry in sorted(self.shards, key=lambda entry: entry.run):
            found.setdefault(entry.run, []).append(entry)
        return found


class Before(msgspec.Struct, frozen=True):
    """What a sync found: the manifest, and of each shard that does not stay its ids."""

    manifest: Manifest
    ids: dict[str, list[str]]
    changes: dict[str, dict[str, str]] = {}  # of these shards: what differed, by sample


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has started and not finished."""

    append: bool
    plan: str
    settings: PackSettings
    replaces: list[str]  # buckets whose old shards are being replaced
    base: Manifest | None  # of the shards that stay
    store: str | None = None  # that is packed, relative to the shard folder; None: unknown
    jsonl: str | None = None  # and its metadata, relative to the store's folder
    store_id: str | UnsetType = UNSET  # as of a run
    parts: dict[str, str] | UnsetType = UNSET  # as of a run
    sync: Before | UnsetType = UNSET  # what a sync needs to be finished
    groups: dict[str, str] | UnsetType = UNSET  # by the first image: the part a group was packed in
    build: dict[str, Any] | UnsetType = UNSET  # as of a run

    @property
    def is_build(self) -> bool:
        """Whether the same build finishes it, and no pack."""
        return self.build is not UNSET


Document = TypeVar("Document", Manifest, Unfinished)


def load_manifest(output_dir: Location) -> Manifest | None:
    """Read the manifest of a shard folder, if it has one."""
    path = output_dir / STATE_FOLDER / MANIFEST_NAME
    data = _read(path)
    return None if data is None else decode_manifest(data, path)


def decode_manifest(data: bytes, path: Location | str) -> Manifest:
    """Read a manifest from its bytes; raise DamageError if it is damaged."""
    found = _decode(data, path, Manifest)
    if not found.runs:
        raise DamageError("lists no run", path=path, fix=_FIX)
    _require_sound(found, path)
    return found


def load_unfinished(output_dir: Location) -> Unfinished | None:
    """Read the note of an unfinished run, if there is one."""
    path = output_dir / STATE_FOLDER / UNFINISHED_NAME
    data = _read(path)
    if data is None:
        return None
    found = _decode(data, path, Unfinished)
    require_names(found.replaces, is_bucket, "a bucket", path, _FIX)
    require_own_names(found.settings, path, _FIX)
    if found.base is not None:
        _require_sound(found.base, path)
    if found.sync:
        _require_sound(found.sync.manifest, path)
        shards = (*found.sync.ids, *found.sync.changes)
        require_names(shards, is_shard_path, "the path of a shard", path, _FIX)
    return found


def save_manifest(output_dir: Location, manifest: Manifest, *, adds: bool = True) -> None:
    """Publish the manifest; at an object store, raise if it is not over the one that it adds to.

    One that ``adds`` nothing has the same runs, of which something else is noted.
    """
    place, name = place_at(output_dir), f"{STATE_FOLDER}/{MANIFEST_NAME}"
    if place.can_replace:
        place.write(name, _encode(manifest))
        return
    etag = place.etag(name)
    before, after = _plans(load_manifest(output_dir) if etag else None), _plans(manifest)
    if adds and before == after:  # a run of the same plan was faster
        return
    try:
        if before != (after[:-1] if adds else after):
            raise ConditionError
        place.write(name, _encode(manifest), etag)
    except ConditionError:
        raise _written_to(output_dir / name) from None


def save_unfinished(output_dir: Location, unfinished: Unfinished) -> bool:
    """Record that a run has started, and say whether that was not on record.

    Where no lock keeps others out, only if no other run has started.
    """
    place, name = place_at(output_dir), f"{STATE_FOLDER}/{UNFINISHED_NAME}"
    while not place.claim(name, _encode(unfinished)):
        found = load_unfinished(output_dir)
        if found is None:  # it has just been removed
            continue
        if found.plan != unfinished.plan:
            fix = "wait until it has finished, or give another --output-dir"
            raise LockedError("another run has begun here", path=output_dir, fix=fix)
        return False
    if place.can_replace:
        return True
    before, done = _plans(unfinished.base), _plans(load_manifest(output_dir))
    resumed = not unfinished.is_build and done == [*before, unfinished.plan]  # a finished pack
    if done != before and not resumed:
        files.remove(output_dir / name)  # another run has finished since this one has looked
        raise _written_to(output_dir)
    return True


def _plans(manifest: Manifest | None) -> list[str]:
    """Name the plans whose shards a manifest lists."""
    return [manifest.runs[number].plan for number in manifest.by_run()] if manifest else []


def _written_to(path: Location) -> SourceChangedError:
    what, fix = "another run has written here in the meantime", "run the same command again"
    return SourceChangedError(what, path=path, fix=fix)


def remove_manifest(output_dir: Location) -> None:
    """Remove the manifest, because shards it lists are about to be replaced."""
    files.withdraw(output_dir / STATE_FOLDER / MANIFEST_NAME)


def remove_unfinished(output_dir: Location, plan: str) -> None:
    """Record that the run of a plan has finished; without a lock, another may have started."""
    note = load_unfinished(output_dir)
    if note is not None and note.plan == plan:
        files.withdraw(output_dir / STATE_FOLDER / UNFINISHED_NAME)


def _encode(document: Manifest | Unfinished) -> bytes:
    """Encode a document as JSON whose last field is the xxh3 of everything before it."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=2)[: -len("\n}")]
    return body + b',\n  "xxh3": "' + xxhash.xxh3_64_hexdigest(body).encode() + b'"\n}\n'


def _read(path: Location) -> bytes | None:
    with files.explained(path), suppress(FileNotFoundError, NotADirectoryError):
        return files.read(path)
    return None


def _decode(data: bytes, path: Location | str, kind: type[Document]) -> Document:
    body, comma, checksum = data.rpartition(b',\n  "xxh3": "')
    if not comma or checksum != xxhash.xxh3_64_hexdigest(body).encode() + b'"\n}\n':
        raise DamageError("is damaged", path=path, fix=_FIX)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamageError(f"this version cannot read it ({error})", path=path, fix=_FIX) from None


def _require_sound(found: Manifest, path: Location | str) -> None:
    """Raise if a manifest, which may come from anybody, names files elsewhere or cannot be right.

    What it lists is read by count, and its names become paths.
    """
    paths, recipe = [entry.path for entry in found.shards], found.samples_of()
    require_names(paths, is_shard_path, "the path of a shard", path, _FIX)
    require_valid(recipe, path)
    for what in _contradictions(found, recipe):
        raise DamageError(what, path=path, fix=_FIX)
    for run in found.runs:
        require_own_names(run.settings, path, _FIX)
        require_names(run.parts or (), is_part, "the name of a part", path, _FIX)


def _contradictions(found: Manifest, recipe: Recipe) -> Iterator[str]:
    paths, runs = {entry.path for entry in found.shards}, range(len(found.runs))
    if len(paths) < len(found.shards) or any(entry.run not in runs for entry in found.shards):
        yield "lists a shard twice or without its run"
    # Bytes of a sample: each member has a header. What is made of shards has the same shapes.
    least = sum(BLOCK + array.least_bytes for array in recipe.arrays.values()) + BLOCK
    for entry in found.shards:
        if entry.path.partition("/")[0] != bucket_folder(entry.bucket):
            yield f"says that {entry.path} is in bucket {entry.bucket}"
        if entry.samples * least > entry.bytes:
            held = f"{entry.samples:,} samples in {entry.bytes:,} bytes"
            yield f"says that {entry.path} has {held}, but each has {least:,} or more"
    if not found.empties().keys() <= set(empty_members(recipe)):
        yield "lists an empty caption of no component"


def require_own_names(settings: PackSettings, path: Location | str, fix: str) -> None:
    """Raise if recorded settings name buckets or parts that would be other folders."""
    require_names(settings.buckets, is_bucket, "a bucket", path, fix)
    parts = [*(settings.split.names if settings.split else ())]
    parts += [] if settings.part is None else [settings.part]
    require_names(parts, is_part, "the name of a part", path, fix)


def save_sha256(output_dir: Location, manifest: Manifest) -> None:
    """Write the file for ``sha256sum -c``, or remove it if a digest is unknown."""
    path = output_dir / STATE_FOLDER / SHA256_NAME
    data = sha256_sums(manifest)
    if data is None:
        files.withdraw(path)
    else:
        files.write(path, data)


def sha256_sums(manifest: Manifest) -> bytes | None:
    """List the digests as ``sha256sum -c`` reads them; None if one is unknown, or none is there."""
    if not manifest.shards or any(entry.sha256 is None for entry in manifest.shards):
        return None
    return "".join(f"{entry.sha256}  {entry.path}\n" for entry in manifest.shards).encode()
