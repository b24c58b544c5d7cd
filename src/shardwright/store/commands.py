"""Commands to recommend, with the paths and flags in use, ready to paste."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from shardwright.errors import ProvenanceError
from shardwright.layout import JSONL_NAME
from shardwright.recipes.split import Split
from shardwright.storage.urls import Location, is_within, joined
from shardwright.store import paths, provenance, records
from shardwright.store.store import Store

_STORE, _IMAGES, _SHARDS = "data/derived", "data/approved", "data/shards"  # the defaults


def command(*words: str) -> str:
    """Write a command for a shell."""
    return " ".join(["shardwright", *map(quoted, words)])


def quoted(word: str) -> str:
    """Quote a word for a shell; what a terminal cannot show is escaped."""
    if word.isprintable():
        return shlex.quote(word)
    odd = (char for char in word if not char.isprintable() or char in "'\\")
    spelt = {ord(char): "".join(f"\\x{byte:02x}" for byte in os.fsencode(char)) for char in odd}
    return f"$'{word.translate(spelt)}'"


def store_flags(store: Store) -> list[str]:
    """Give the flags that name a store; none for the default store."""
    words = [] if store.folder == Path(_STORE) else ["--derived-dir", _spelt(store.folder)]
    own = store.jsonl == store.folder / JSONL_NAME
    return words if own else [*words, "--jsonl", _spelt(store.jsonl)]


def _spelt(path: Location) -> str:
    """Write a path so that it does not look like a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def derive(
    store: Store,
    *,
    begun: Mapping[str, provenance.Entry] = MappingProxyType({}),
    update: bool = False,
    fit_buckets: bool = False,
    forget_captions: bool = False,
    images: str | None = None,
) -> str:
    """Write the derive command that continues this store, or the generation that is begun.

    It starts from what the store or its generation has recorded, so no setting is repeated. With
    ``fit_buckets`` it recomputes the latents at the size of their bucket; with ``forget_captions``
    it goes on without the captions file. ``images`` is one of several folders of images.
    """
    update |= provenance.is_update(begun)
    flags, names = ["--update"] * update, [] if update else list(begun)
    if fit_buckets:
        flags = ["--fit", "bucket"]
        rows = store.recipe.components
        names = [row.name for row in rows if row.follows_picture and row.source != "elsewhere"]
    flags += ["--recompute", ",".join(names)] if names else []
    flags += ["--captions", "none"] * forget_captions
    if images is None:
        with suppress(ProvenanceError):  # it is reported where it matters
            found = images_folders(store)
            images = found[0] if len(found) == 1 else None
    given = [] if images == _IMAGES else [_spelt(Path(images)) if images else "IMAGES"]
    return command("derive", *given, *flags, *store_flags(store))


def prune_below(store: Store, images: str, paths: Iterable[str], *, update: bool) -> str:
    """Write the derive command that removes images which may not have been below the folder."""
    below = os.path.commonpath([os.path.dirname(path) for path in paths])
    if os.path.dirname(below) == below:  # nobody should prune all that was below the root
        below = "DIR"
    words = [images, *["--update"] * update, "--prune-below", below]
    return command("derive", *words, *store_flags(store))


def pack(store: Store, output_dir: Location, *flags: str) -> str:
    """Write the pack command from this store into this folder."""
    where = [] if output_dir == Path(_SHARDS) else ["--output-dir", _spelt(output_dir)]
    return command("pack", *store_flags(store), *where, *flags)


def split_flags(split: Split | None, top: Location) -> list[str]:
    """Spell a split as flags of a run into the folder ``top``, by which its groups are named."""
    if split is None:
        return []
    if split.by is not None and split.has_groups:
        split = replace(split, by=_spelt(joined(top, split.by)))
    return split.flags()


def index(shards: Location, loaders: Iterable[str], *flags: str) -> str:
    """Write the command that makes the files of other loaders."""
    return command("index", _spelt(shards), "--for", ",".join(loaders), *flags)


class Commands:
    """The commands that fix a store, written when a fix first needs them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def derive(self) -> str:
        """Write derive, which reads every record."""
        return derive(self._store)

    @cached_property
    def update(self) -> str:
        """Write derive for what changed."""
        return derive(self._store, update=True)

    @cached_property
    def migrate(self) -> str:
        """Write migrate."""
        return command("migrate", *store_flags(self._store))


def images_folders(store: Store) -> list[str]:
    """Find the folders of images that a store was made from.

    A store of another tool does not say; then it is the one that holds all images of its records,
    if there is one.
    """
    if recorded := paths.folders(store):
        return list(map(_from_here, recorded))
    named = (names.image_path for _, names in records.walk(store.jsonl, records.names))
    folders = {os.path.dirname(path) for path in named if isinstance(path, str)}
    if not folders and os.path.isdir(_IMAGES):
        return [_IMAGES]
    with suppress(ValueError):  # there are none, or some are relative and some are not
        common = os.path.commonpath(folders)
        if os.path.isdir(common) and not is_within(store.folder, Path(common)):
            return [common]
    return []


def _from_here(folder: Path) -> str:
    """Write a folder as it is from here, if it is below, as in the records of most stores."""
    relative = os.path.relpath(folder)
    return os.path.abspath(folder) if relative.startswith(os.pardir) else relative
