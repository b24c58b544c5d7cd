"""A list of copies, for ``--exclude-ids-file`` and ``--split-by``. Nothing is removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwright.comparing import copies, similar
from shardwright.comparing.copies import Copies
from shardwright.comparing.similar import Numbers
from shardwright.comparing.vectors import unit
from shardwright.errors import UsageError
from shardwright.interrupts import check
from shardwright.looking.search import read_vectors
from shardwright.looking.sources import Source
from shardwright.progress import Progress
from shardwright.storage import files

if TYPE_CHECKING:
    from shardwright.looking import LookSummary


def write_groups(
    source: Source, path: Path, least: float, summary: LookSummary, progress: Progress
) -> None:
    """Write a line for each sample that is a copy of one that is not in the list, or so similar."""
    vectors = None if source.vector is None else read_vectors(source, progress)
    found = copies.find(source.table.hashes, vectors, progress)
    ids, groups = source.table.ids, found.groups(least)
    listed = [_repeated(found, vectors, group, least) for group in groups]
    lines = [msgspec.json.encode(line) + b"\n" for each in listed for line in _lines(ids, each)]
    files.write(path, b"".join(lines))
    summary.duplicates, summary.groups, summary.listed = str(path), len(groups), len(lines)
    summary.identical = sum(one.identical for each in listed for one in each.repeated)
    summary.threshold = least
    summary.approximate = found.similar is not None and found.similar.approximate
    summary.vector = None if source.vector is None else source.vector.name
    summary.other_vectors = [c.name for c in copies.vectors_of(source.recipe) if c != source.vector]
    summary.unknown_files = int((source.table.hashes[source.table.ready] == 0).sum())
    summary.in_parts = len(found.across(source.table.parts.codes.astype(np.int64), least))


class _Repeated(NamedTuple):
    number: int
    kept: int
    cosine: float  # of both
    identical: bool


class _Group(NamedTuple):
    repeated: list[_Repeated]
    kept: list[int]  # the first, and of a chain also others


def _lines(ids: Sequence[str], group: _Group) -> Iterator[dict[str, Any]]:
    """Write the lines of a group; of a chain the first names all that are kept.

    So the lines name the complete group, as ``--split-by`` needs it.
    """
    for one in group.repeated:
        line: dict[str, Any] = {"image_id": ids[one.number], "kept": ids[one.kept]}
        line["similarity"] = round(one.cosine, 4)
        if one.identical:
            line["identical"] = True
        if one is group.repeated[0] and len(group.kept) > 1:
            line["all_kept"] = [ids[number] for number in group.kept]
        yield line


def _repeated(found: Copies, vectors: NDArray[Any] | None, group: Numbers, least: float) -> _Group:
    """Find each sample of a group that is a copy of an earlier one that is kept, or resembles it.

    A group may be a chain whose ends are unlike each other, so that several are kept.
    """
    repeated: list[_Repeated] = []
    kept: list[int] = []
    by_file: dict[int, tuple[int, float]] = {}  # by hash: the sample that is kept, and the cosine
    known = None if vectors is None else unit(vectors[group[:0]])
    for number in group.tolist():
        check()
        file, other, cosine = int(found.hashes[number]), None, 1.0
        if file in by_file:
            other, cosine = by_file[file]
        elif vectors is not None and known is not None:
            own = unit(vectors[number : number + 1])
            cosines = known @ own[0]
            if kept and (highest := cosines.max()) >= np.float32(least):
                other, cosine = kept[int(cosines.argmax())], float(min(highest, 1.0))
            else:
                known = np.concatenate([known, own])
        if other is None:
            kept.append(number)
        else:
            same = file != 0 and int(found.hashes[other]) == file
            repeated.append(_Repeated(number, other, cosine, same))
        if file:
            by_file.setdefault(file, (number if other is None else other, cosine))
    return _Group(repeated, kept)


def as_cosine(threshold: object) -> float:
    """Check a threshold; None for the usual one."""
    if threshold is None:
        return similar.DEFAULT
    if isinstance(threshold, int | float) and similar.FLOOR <= threshold <= 1:
        return float(threshold)
    fix = f"give a cosine from {similar.FLOOR} to 1"
    raise UsageError(f"--threshold is {threshold}", fix=fix)
