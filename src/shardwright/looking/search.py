"""Which samples of a source are alike, found in the background while the page is open."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.comparing import similar, vectors
from shardwright.comparing.copies import NO_VECTOR, vectors_of
from shardwright.comparing.similar import Similar
from shardwright.errors import ShardwrightError, UsageError
from shardwright.looking.sources import Source
from shardwright.progress import Progress
from shardwright.store.facts import NEAR_DUPLICATE, OUTLIER

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
            counts = found.pairs.reshape(_BARS, -1).sum(axis=1).tolist()
            edges = np.linspace(similar.FLOOR, 1, _BARS + 1).round(4).tolist()
            bins = zip(edges, edges[1:], counts, strict=False)
            said |= {
                "approximate": found.approximate,
                "samples": int((found.nearest >= 0).sum()),
                "histogram": [list(each) for each in bins],
            }
        return said
