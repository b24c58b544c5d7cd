"""A list of near-duplicates, for ``pack --exclude-ids-file``. Nothing is removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwright.errors import UsageError
from shardwright.interrupts import check
from shardwright.looking import similar
from shardwright.looking.search import read_vectors
from shardwright.looking.similar import Numbers
from shardwright.looking.sources import Source
from shardwright.looking.vectors import unit
from shardwright.progress import Progress
from shardwright.storage import files

if TYPE_CHECKING:
    from shardwright.looking import LookSummary


def write_groups(
    source: Source, path: Path, least: float, summary: LookSummary, progress: Progress
) -> None:
    """Write a line for each sample that is as similar as that to one that is not in the list."""
    vectors = read_vectors(source, progress)
    found = similar.find(vectors, progress)
    ids, groups, lines = source.table.ids, found.groups(least), []
    for group in groups:
        for number, kept, cosine in _repeated(vectors, group, least):
            line = {"image_id": ids[number], "kept": ids[kept], "similarity": round(cosine, 4)}
            lines.append(msgspec.json.encode(line) + b"\n")
    files.write(path, b"".join(lines))
    summary.duplicates, summary.groups, summary.listed = str(path), len(groups), len(lines)
    summary.approximate = found.approximate


def _repeated(
    vectors: NDArray[Any], group: Numbers, least: float
) -> Iterator[tuple[int, int, float]]:
    """Give each sample of a group that resembles an earlier one that is kept, and their cosine.

    A group may be a chain whose ends are unlike each other, so that several are kept.
    """
    kept = [int(group[0])]
    known = unit(vectors[group[:1]])
    for number in group[1:].tolist():
        check()
        own = unit(vectors[number : number + 1])
        cosines = known @ own[0]
        nearest = int(cosines.argmax())
        if cosines[nearest] >= np.float32(least):
            yield number, kept[nearest], float(min(cosines[nearest], 1.0))
        else:
            kept.append(number)
            known = np.concatenate([known, own])


def as_cosine(threshold: object) -> float:
    """Check a threshold; None for the usual one."""
    if threshold is None:
        return similar.DEFAULT
    if isinstance(threshold, int | float) and similar.FLOOR <= threshold <= 1:
        return float(threshold)
    fix = f"give a cosine from {similar.FLOOR} to 1"
    raise UsageError(f"--threshold is {threshold}", fix=fix)
