"""The manifest of a shard folder: what was packed, by which settings, and why not the rest.

It is published last, so a manifest speaks only of shards that are whole. While a run is under way
(or after it was killed) an ``Unfinished`` note stands beside it, with all that is needed to go on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from shardwright.errors import DamageError, StorageError
from shardwright.layout import STATE_FOLDER
from shardwright.recipe import SPECIFICATION, Recipe
from shardwright.storage import files

MANIFEST_NAME = "manifest.json"
UNFINISHED_NAME = "unfinished.json"
SHA256_NAME = "SHA256SUMS"

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


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


class PackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which samples go where."""

    buckets: list[str]  # empty for all
    shuffle: bool
    seed: int | None  # None when nothing was shuffled
    limit: Count | None
    shard_size: Count

    def flags(self) -> list[str]:
        """Spell the flags of pack that make these settings, as far as they are not the defaults."""
        words = ["--bucket", ",".join(self.buckets)] if self.buckets else []
        if self.shuffle:
            words += ["--shuffle", *(["--seed", str(self.seed)] if self.seed else [])]
        if self.limit is not None:
            words += ["--limit", str(self.limit)]
        return words if self.shard_size == 1000 else [*words, "--shard-size", str(self.shard_size)]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One packing: its settings, its books, and what the store said of its own making."""

    tool: str
    append: bool
    settings: PackSettings
    plan: str  # a digest of the settings and of every sample chosen, in order
    total_records: Count
    ready_records: Count
    skipped_incomplete: Count
    skipped_by_reason: dict[str, Any]
    samples: Count
    shards: Count
    provenance: Any = None
    jsonl: str | None = None  # the metadata that was packed, from the store's folder; None: unknown


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All shards of a folder and the runs that made them."""

    format: Literal["shardwright-manifest"] = "shardwright-manifest"
    version: Literal[1] = 1
    runs: list[Run]
    shards: list[ShardEntry]
    recipe: Recipe | UnsetType = UNSET  # what a sample consists of; absent: the specification's

    def samples_of(self) -> Recipe:
        """Say what the samples consist of."""
        return SPECIFICATION if isinstance(self.recipe, UnsetType) else self.recipe

    def jsonls(self) -> list[str]:
        """Name the JSONLs that the shards were packed from, as far as they are known."""
        names = {self.runs[number].jsonl for number in self.by_run()}
        return sorted(name for name in names if name is not None)

    def by_run(self) -> dict[int, list[ShardEntry]]:
        """Give the shards of each run that has some left, the runs in order."""
        found: dict[int, list[ShardEntry]] = {}
        for entry in sorted(self.shards, key=lambda entry: entry.run):
            found.setdefault(entry.run, []).append(entry)
        return found


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has begun."""

    append: bool
    plan: str
    settings: PackSettings
    replaces: list[str]  # buckets whose old shards are being replaced
    base: Manifest | None  # what stays as it is
    store: str | None = None  # that is packed, from the shard folder; None: unknown
    jsonl: str | None = None  # and its metadata, from the store's folder


Document = TypeVar("Document", Manifest, Unfinished)


def relative_name(path: Path, folder: Path) -> str:
    """Spell a path as a run records it: the same wherever a tree was moved to."""
    name = os.path.relpath(path.resolve(), folder.resolve())
    return os.fsencode(name).decode(errors="backslashreplace")


def load_manifest(output_dir: Path) -> Manifest | None:
    """Read the manifest of a shard folder, if it has one."""
    path = output_dir / STATE_FOLDER / MANIFEST_NAME
    data = _read(path)
    return None if data is None else decode_manifest(data, path)


def decode_manifest(data: bytes, path: Path | str) -> Manifest:
    """Read a manifest from its bytes, or say by DamageError that it is not whole."""
    found = _decode(data, path, Manifest)
    runs, paths = range(len(found.runs)), {entry.path for entry in found.shards}
    if not runs or len(paths) < len(found.shards) or any(e.run not in runs for e in found.shards):
        what = "speaks of a shard twice or of no run"
        raise DamageError(what, path=path, fix="pack with --overwrite")
    return found


def load_unfinished(output_dir: Path) -> Unfinished | None:
    """Read the note of a run that has not ended, if there is one."""
    path = output_dir / STATE_FOLDER / UNFINISHED_NAME
    data = _read(path)
    return None if data is None else _decode(data, path, Unfinished)


def save_manifest(output_dir: Path, manifest: Manifest) -> None:
    """Publish the manifest."""
    files.write(output_dir / STATE_FOLDER / MANIFEST_NAME, _encode(manifest))


def save_unfinished(output_dir: Path, unfinished: Unfinished) -> None:
    """Note that a run has begun."""
    files.write(output_dir / STATE_FOLDER / UNFINISHED_NAME, _encode(unfinished))


def remove_manifest(output_dir: Path) -> None:
    """Withdraw the manifest, because shards it speaks of are about to be replaced."""
    files.withdraw(output_dir / STATE_FOLDER / MANIFEST_NAME)


def remove_unfinished(output_dir: Path) -> None:
    """Note that the run has ended."""
    files.withdraw(output_dir / STATE_FOLDER / UNFINISHED_NAME)


def save_sha256(output_dir: Path, manifest: Manifest) -> None:
    """Write what ``sha256sum -c`` reads in the output folder, if the digest of each is known."""
    path = output_dir / STATE_FOLDER / SHA256_NAME
    data = sha256_sums(manifest)
    if data is None:
        files.withdraw(path)
    else:
        files.write(path, data)


def sha256_sums(manifest: Manifest) -> bytes | None:
    """Give what ``sha256sum -c`` reads; None if a digest is not known."""
    if any(entry.sha256 is None for entry in manifest.shards):
        return None
    return "".join(f"{entry.sha256}  {entry.path}\n" for entry in manifest.shards).encode()


def _encode(document: Manifest | Unfinished) -> bytes:
    """Write a document as JSON that ends with the xxh3 of all before it, as its last field."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=2)[: -len("\n}")]
    return body + b',\n  "xxh3": "' + xxhash.xxh3_64_hexdigest(body).encode() + b'"\n}\n'


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot be read ({error.strerror})", path=path) from None


def _decode(data: bytes, path: Path | str, kind: type[Document]) -> Document:
    body, comma, checksum = data.rpartition(b',\n  "xxh3": "')
    if not comma or checksum != xxhash.xxh3_64_hexdigest(body).encode() + b'"\n}\n':
        raise DamageError("is damaged", path=path, fix="pack again with --overwrite")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamageError(f"this version cannot read it ({error})", path=path) from None
