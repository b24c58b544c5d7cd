"""Which samples of a source are alike: found in the background for the page, or listed in a file.

The list is for ``--exclude-ids-file`` and ``--split-by``. Nothing is removed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwright.comparing import copies, similar, vectors
from shardwright.comparing.copies import NO_VECTOR, Copies, vectors_of
from shardwright.comparing.similar import Numbers, Similar
from shardwright.comparing.vectors import unit
from shardwright.errors import ShardwrightError, UsageError
from shardwright.interrupts import check
from shardwright.looking.sources import Source
from shardwright.progress import Progress
from shardwright.storage import files
from shardwright.store.facts import NEAR_DUPLICATE, OUTLIER

if TYPE_CHECKING:
    from shardwright.looking import LookSummary

SIMILARITY = "nearest_similarity"  # the column
_BARS = 40  # of the histogram


@dataclass(frozen=True)
class Alike:
    """What follows from the vectors of a source."""

    found: Similar
    places: NDArray[np.float32]  # by sample: on a map


def read_vectors(source: Source, progress: Progress) -> NDArray[Any]:
    """Read the vectors of all images."""
    component = source.vector
    if component is None:
        fix = 'to compare images, derive one too, for example with encoder = "dinov3"'
        if possible := vectors_of(source.recipe):
            fix += f", or name one: --component {possible[0].name}"
        raise UsageError(NO_VECTOR, path=source.name, fix=fix)
    width, total = component.shape_for(0, 0)[0], len(source.table)
    if total > similar.EXACT_MOST:
        similar.require_faiss()  # now, and not after all vectors are read
    return vectors.read(source.vectors(component), total, width, progress)


def compare(source: Source, progress: Progress) -> Alike:
    """Compare the vectors of all images; the table gets the similarity and the flags."""
    read = read_vectors(source, progress)
    found = similar.find(read, progress)
    places = vectors.principal(read)
    flags = {
        NEAR_DUPLICATE: np.nan_to_num(found.similarity) >= similar.DEFAULT,
        OUTLIER: found.outliers(),
    }
    source.table.put(SIMILARITY, found.similarity.astype(np.float64), flags)
    return Alike(found, places)


@dataclass
class Search(Progress):
    """Compares in a thread of its own, and reports its progress."""

    source: Source
    state: str = "none"
    message: str = ""
    alike: Alike | None = None
    _phase: str = ""
    _total: int = 0
    _done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin, or try again, unless it is at work or done."""
        with self._lock:
            if self.state in ("none", "failed"):
                self.state, self.message = "working", ""
                threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.alike = compare(self.source, self)
            self.state, self.message = "ready", ""
        except ShardwrightError as error:
            self.state, self.message = "failed", str(error)
        except Exception as error:  # it must not look as if it were still at work
            self.state, self.message = "failed", f"{type(error).__name__}: {error}"

    def phase(self, name: str, total: int, unit: str) -> None:
        self._phase, self._total, self._done = name, total, 0

    def advance(self, count: int) -> None:
        self._done += count

    def report(self) -> dict[str, Any]:
        """Report the progress, and what was found."""
        said: dict[str, Any] = {
            "state": self.state,
            "done": self._done / self._total if self._total else 0.0,
            "message": self.message or self._phase,
            "default": similar.DEFAULT,
            "floor": similar.FLOOR,
        }
        if self.alike is not None:
            found = self.alike.found
            counts, edges = np.histogram(found.similarity, _BARS, (similar.FLOOR, 1))
            steps = edges.round(4).tolist()
            bins = zip(steps, steps[1:], counts.tolist(), strict=False)
            said |= {
                "approximate": found.approximate,
                "samples": int((found.nearest >= 0).sum()),
                "histogram": [list(each) for each in bins],
            }
        return said


def write_groups(
    source: Source, path: Path, least: float, summary: LookSummary, progress: Progress
) -> None:
    """Write a line for each sample that is a copy of one that is not in the list, or so similar."""
    read = None if source.vector is None else read_vectors(source, progress)
    found = copies.find(source.table.hashes, read, progress)
    ids, groups = source.table.ids, found.groups(least)
    lines = [line for group in groups for line in _lines(ids, found, read, group, least)]
    files.write(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    summary.duplicates, summary.groups, summary.listed = str(path), len(groups), len(lines)
    summary.identical = sum("identical" in line for line in lines)
    summary.threshold = least
    summary.approximate = found.similar is not None and found.similar.approximate
    summary.vector = None if source.vector is None else source.vector.name
    summary.other_vectors = [c.name for c in vectors_of(source.recipe) if c != source.vector]
    summary.unknown_files = int((source.table.hashes[source.table.ready] == 0).sum())
    summary.in_parts = len(found.across(source.table.parts.codes.astype(np.int64), least))


def _lines(
    ids: Sequence[str], found: Copies, vectors: NDArray[Any] | None, group: Numbers, least: float
) -> list[dict[str, Any]]:
    """Describe each sample of a group that is a copy of an earlier one that is kept, or so similar.

    A group may be a chain whose ends are unlike each other, so that several are kept. Then the
    first line names all that are kept: so the lines name the complete group, as ``--split-by``
    needs it.
    """
    lines: list[dict[str, Any]] = []
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
            line = {"image_id": ids[number], "kept": ids[other], "similarity": round(cosine, 4)}
            if file and int(found.hashes[other]) == file:
                line["identical"] = True
            lines.append(line)
        if file:
            by_file.setdefault(file, (number if other is None else other, cosine))
    if lines and len(kept) > 1:
        lines[0]["all_kept"] = [ids[number] for number in kept]
    return lines


def as_cosine(threshold: object) -> float:
    """Check a threshold; None for the usual one."""
    if threshold is None:
        return similar.DEFAULT
    if isinstance(threshold, int | float) and similar.FLOOR <= threshold <= 1:
        return float(threshold)
    fix = f"give a cosine from {similar.FLOOR} to 1"
    raise UsageError(f"--threshold is {threshold}", fix=fix)
