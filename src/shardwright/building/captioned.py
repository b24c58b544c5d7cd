"""Between measuring and the plan: the rows of the captions file find the images they name.

That takes the names of all images. Those in tars are known when all have been measured, which is
kept in a file until then.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec

from shardwright.building.inputs import Found
from shardwright.building.measuring import Measured
from shardwright.deriving.captions import Captions, named
from shardwright.deriving.matching import Named
from shardwright.storage import files


def matched(
    measured: Iterable[Measured], found: Sequence[Found], captions: Captions | None, folder: Path
) -> Iterator[Measured]:
    """Give what was measured, once the captions know all images; ``given`` is then their root."""
    if captions is None:
        yield from measured
        return
    roots = {each.path: each.root for each in found}
    if not any(each.tars for each in found):
        captions.match(lambda: _files(found))
        yield from measured
        return
    with (
        files.explained(folder),
        tempfile.TemporaryFile(dir=folder) as kept,
        tempfile.TemporaryFile(dir=folder) as names,
    ):
        for one in measured:
            one = one._replace(given=roots[one.given])
            pickle.dump(one, kept)
            if member := _member(one):
                names.write(msgspec.json.encode(Named(one.given, *member)) + b"\n")
        captions.match(lambda: chain(_files(found), _members(names)))
        kept.seek(0)
        yield from _read(kept)


def _files(found: Sequence[Found]) -> Iterator[Named]:
    for each in found:
        for source in each.images:
            if not source.fault:
                yield named(source, each.root)


def _member(one: Measured) -> tuple[str, str] | None:
    """Give the path of an image in a tar, and its name there."""
    row = one.row
    return (row.path, row.path[len(row.tar) + 1 :]) if row.tar and row.path != row.tar else None


def _members(names: IO[bytes]) -> Iterator[Named]:
    decode = msgspec.json.Decoder(Named).decode
    names.seek(0)
    for line in names:
        yield decode(line)


def _read(kept: IO[bytes]) -> Iterator[Measured]:
    while True:
        try:
            yield pickle.load(kept)
        except EOFError:
            return
