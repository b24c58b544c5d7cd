"""A list of near-duplicates, for ``pack --exclude-ids-file``. Nothing is removed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardwright.errors import UsageError
from shardwright.looking import similar
from shardwright.looking.search import Alike, compare
from shardwright.looking.sources import Source
from shardwright.progress import Progress
from shardwright.storage import files

if TYPE_CHECKING:
    from shardwright.looking import LookSummary


def write_groups(
    source: Source, path: Path, least: float, summary: LookSummary, progress: Progress
) -> None:
    """Write a line for each sample of a group but the first, which is kept.

    A group may be a chain: each is similar to its nearest, but perhaps not to the one that is kept.
    """
    alike = compare(source, progress)
    groups = alike.found.groups(least)
    lines = [msgspec.json.encode(line) for group in groups for line in _lines(source, alike, group)]
    files.write(path, b"".join(line + b"\n" for line in lines))
    summary.duplicates, summary.groups, summary.listed = str(path), len(groups), len(lines)
    summary.approximate = alike.found.approximate


def _lines(source: Source, alike: Alike, group: similar.Numbers) -> Iterator[dict[str, object]]:
    first, *others = group.tolist()
    for number in others:
        yield {
            "image_id": source.table.ids[number],
            "kept": source.table.ids[first],
            "nearest": source.table.ids[int(alike.found.nearest[number])],
            "similarity": round(float(alike.found.similarity[number]), 4),  # with the nearest
            "group_size": len(group),
        }


def as_cosine(threshold: object) -> float:
    """Check a threshold; None for the usual one."""
    if threshold is None:
        return similar.DEFAULT
    if isinstance(threshold, int | float) and similar.FLOOR <= threshold <= 1:
        return float(threshold)
    shown = "NaN" if isinstance(threshold, float) and math.isnan(threshold) else threshold
    fix = f"give a cosine from {similar.FLOOR} to 1"
    raise UsageError(f"--threshold is {shown}", fix=fix)
