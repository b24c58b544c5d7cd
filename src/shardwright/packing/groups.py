"""The groups of a split that a file names: ``--split-by copies.jsonl``, as ``look`` writes it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

from shardwright import regular
from shardwright.errors import InputMissingError, UsageError
from shardwright.packing.start import current_run
from shardwright.recipes.split import Split
from shardwright.shards.format.parts import parts_of
from shardwright.storage.files import absence, explained
from shardwright.storage.urls import Location, joined
from shardwright.store import records
from shardwright.store.commands import command

_FLAG = "--split-by"
_FIX = "give a list that shardwright look --duplicates wrote"


class _Line(msgspec.Struct):
    image_id: str
    kept: str  # another image of its group
    all_kept: list[str] = []  # others of its group, the first of it first


_decode = msgspec.json.Decoder(_Line).decode


def read_groups(split: Split | None, top: Location) -> dict[str, str]:
    """Give the first image of the group of each image that is in one, by id.

    The file is named relative to the folder ``top`` of the split.
    """
    order: dict[str, int] = {}  # of the ids, as they are named first
    above: dict[str, str] = {}  # by id: an image of its group that was named before, or itself

    def first(name: str) -> str:
        while above[name] != name:
            above[name] = above[above[name]]  # so that the next search is shorter
            name = above[name]
        return name

    for line in _lines(split, top):
        names = [*line.all_kept, line.kept, line.image_id]
        for name in names:
            order.setdefault(name, len(order))
            above.setdefault(name, name)
            one, other = sorted((first(names[0]), first(name)), key=order.__getitem__)
            above[other] = one
    return {name: first(name) for name in order}


def checksum(split: Split | None, top: Location) -> str | None:
    """Give the xxh3 of the file, if a split has one."""
    if split is None or not split.has_groups:
        return None
    return xxhash.xxh3_64_hexdigest(_read(split, top))


def _lines(split: Split | None, top: Location) -> Iterator[_Line]:
    if split is None or not split.has_groups:
        return
    for line in records.lines(io.BytesIO(_read(split, top))):
        try:
            yield _decode(line.data or b"")
        except records.NOT_JSON:
            what = f"{_FLAG}: line {line.number} is not an object with an image_id and a kept one"
            raise UsageError(what, path=_path(split, top), fix=_FIX) from None


def _read(split: Split, top: Location) -> bytes:
    path = _path(split, top)
    if not path.is_file():
        raise InputMissingError(f"{_FLAG}: {absence(path)}", path=path, fix=_restore(top, path))
    with explained(path):
        return regular.read(path)


def _restore(top: Location, path: Path) -> str:
    """Say how to go on without the file; if a folder was split by it, also with another."""
    if (last := current_run(parts_of(top).values())) is None:
        return _FIX
    look = command("look", str(top), "--duplicates", str(path))
    other = "build --overwrite" if last.is_build else "pack --sync"
    fix = f"restore it, or write it again with {look}"
    return f"{fix}, or follow another list with {other} {_FLAG} FILE"


def _path(split: Split, top: Location) -> Path:
    return joined(top, split.by or "")
