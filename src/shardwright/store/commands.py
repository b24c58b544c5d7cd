"""Commands to recommend, spelt with the paths and flags in force, so that they can be pasted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from shardwright.interrupts import check
from shardwright.layout import JSONL_NAME
from shardwright.storage.files import explained
from shardwright.store import facts, provenance, records
from shardwright.store.findings import Finding
from shardwright.store.store import Store

_STORE, _IMAGES, _SHARDS = "data/derived", "data/approved", "data/shards"  # the defaults
_DERIVE, _MIGRATE = "shardwright derive", "shardwright migrate"


class _Image(msgspec.Struct, gc=False):
    """All that finding the images needs to know of a record."""

    image_path: str


_read_image = msgspec.json.Decoder(_Image).decode


def command(*words: str) -> str:
    """Spell a command for a shell."""
    return " ".join(["shardwright", *map(quoted, words)])


def quoted(word: str) -> str:
    """Quote a word for a shell, with escapes that it takes back for what no terminal can show."""
    if word.isprintable():
        return shlex.quote(word)
    odd = (char for char in word if not char.isprintable() or char in "'\\")
    spelt = {ord(char): "".join(f"\\x{byte:02x}" for byte in os.fsencode(char)) for char in odd}
    return f"$'{word.translate(spelt)}'"


def store_flags(store: Store) -> list[str]:
    """Say where a store is, as far as it is not where it is by default."""
    words = [] if store.folder == Path(_STORE) else ["--derived-dir", _spelt(store.folder)]
    own = store.jsonl == store.folder / JSONL_NAME
    return words if own else [*words, "--jsonl", _spelt(store.jsonl)]


def _spelt(path: Path) -> str:
    """Spell a path so that it is not taken for a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def derive(store: Store, *, fit_buckets: bool = False) -> str:
    """Spell derive as this store was made; or so that its latents become of their bucket's size."""
    flags = provenance.flags(provenance.readable(store.folder))
    if fit_buckets:
        flags += [] if "--fit" in flags else ["--fit", "bucket"]
        flags += [
            "--recompute",
            ",".join(row.name for row in store.recipe.components if row.follows_picture),
        ]
    images = _images(store)
    given = [] if images == _IMAGES else [images]
    return command("derive", *given, *flags, *store_flags(store))


def pack(store: Store, output_dir: Path, *flags: str) -> str:
    """Spell pack from this store into this folder."""
    where = [] if output_dir == Path(_SHARDS) else ["--output-dir", _spelt(output_dir)]
    return command("pack", *store_flags(store), *where, *flags)


def in_full(findings: Iterable[Finding], store: Store) -> list[Finding]:
    """Spell the commands in the fixes of findings out; what that takes is read only if it does."""

    @cache
    def spelt(fix: str) -> str:
        if _DERIVE in fix:
            fix = fix.replace(_DERIVE, derive_here())
        return fix.replace(_MIGRATE, command("migrate", *store_flags(store)))

    @cache
    def derive_here() -> str:
        return derive(store)

    return [replace(finding, cure=spelt(finding.cure)) for finding in findings]


def _images(store: Store) -> str:
    """Name the folder that all images of the records are below, or a word in its place."""
    folders: set[str] = set()
    for path in (store.jsonl, store.journal):
        if path.is_file():
            with explained(path), path.open("rb", buffering=1 << 20) as file:
                for line in records.lines(file):
                    check()
                    # What is no record has no image.
                    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        folders.add(os.path.dirname(_read_image(line.data or b"").image_path))
    if not folders and os.path.isdir(_IMAGES):
        return _IMAGES
    known = {os.path.dirname(e.image.path) for _, e in facts.read(store) if e.image is not None}
    for found in (folders, known):  # records may be relative to another working folder
        with suppress(ValueError):  # there are none, or some are relative and some are not
            common = os.path.commonpath(found)
            if os.path.isdir(common) and not store.folder.absolute().is_relative_to(common):
                return _spelt(Path(common))
    return "IMAGES"
