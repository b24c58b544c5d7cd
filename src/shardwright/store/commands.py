"""Commands to recommend, spelt with the paths and flags in force, so that they can be pasted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from shardwright.layout import JSONL_NAME
from shardwright.store import facts, provenance, records
from shardwright.store.provenance import Entry
from shardwright.store.store import Store

_STORE, _IMAGES, _SHARDS = "data/derived", "data/approved", "data/shards"  # the defaults


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


def derive(
    store: Store, *, recompute: Mapping[str, Entry] | None = None, fit_buckets: bool = False
) -> str:
    """Spell derive as this store was made, or as it is recomputed.

    With ``fit_buckets``, so that its latents become of their bucket's size.
    """
    flags = provenance.flags({**provenance.readable(store.folder), **(recompute or {})})
    names = list(recompute or ())
    if fit_buckets:
        flags += [] if "--fit" in flags else ["--fit", "bucket"]
        names = [row.name for row in store.recipe.components if row.follows_picture]
    flags += ["--recompute", ",".join(names)] if names else []
    images = _images(store)
    given = [] if images == _IMAGES else [images]
    return command("derive", *given, *flags, *store_flags(store))


def pack(store: Store, output_dir: Path, *flags: str) -> str:
    """Spell pack from this store into this folder."""
    where = [] if output_dir == Path(_SHARDS) else ["--output-dir", _spelt(output_dir)]
    return command("pack", *store_flags(store), *where, *flags)


class Commands:
    """The commands that fix a store, for the fixes of findings to name; spelt only if one does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def derive(self) -> str:
        """Spell derive; takes a look at every record."""
        return derive(self._store)

    @cached_property
    def migrate(self) -> str:
        """Spell migrate."""
        return command("migrate", *store_flags(self._store))


def _images(store: Store) -> str:
    """Name the folder that all images of the records are below, or a word in its place."""
    folders: set[str] = set()
    for path in (store.jsonl, store.journal):
        for _, names in records.walk(path, records.names):
            if isinstance(names.image_path, str):
                folders.add(os.path.dirname(names.image_path))
    if not folders and os.path.isdir(_IMAGES):
        return _IMAGES
    known = {os.path.dirname(e.image.path) for _, e in facts.read(store) if e.image is not None}
    for found in (folders, known):  # records may be relative to another working folder
        with suppress(ValueError):  # there are none, or some are relative and some are not
            common = os.path.commonpath(found)
            if os.path.isdir(common) and not store.folder.absolute().is_relative_to(common):
                return _spelt(Path(common))
    return "IMAGES"
