"""Near-duplicates and outliers: which vectors have nearly the same direction.

Up to ``EXACT_MOST`` vectors each is compared with all others. More are first sorted into cells
around the centres that k-means finds among their main principal components; a vector is then
compared with those of its own cell and of the next cells, in all dimensions. So similarities are
always right, but a pair may be missed.

Of all similar pairs only a maximum spanning forest is kept, at most one pair a vector. It joins the
same vectors as all pairs do, at every threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.comparing.vectors import BLOCK, SMALL, Floats, axes_of, even, unit
from shardwright.errors import MissingExtraError
from shardwright.interrupts import check
from shardwright.progress import Progress

FLOOR = 0.8  # less similar pairs are not kept: they show the same kind of thing at most
DEFAULT = 0.95
EXACT_MOST = SMALL

Numbers = NDArray[np.int64]

_EQUAL = 1 - 1e-6  # more is the rounding of float32
_ROWS = 256  # compared with all others at a time
_BUFFER = 4_000_000  # pairs, until they are reduced to a forest
_DIMENSIONS = 128  # in which cells are made
_SMALLEST = 128  # vectors in a cell on average; the calls for smaller ones would take longer
_PROBES = 8  # cells that a vector is compared with
_TRAINING = 40  # vectors for each centre of a cell
_ROUNDS = 8  # of k-means
_CROWDED = 4096  # vectors compared at a time in a cell that holds more than EXACT_MOST


@dataclass(frozen=True)
class Similar:
    """The most similar other vector of each, and what groups follow from all similar pairs.

    The same vectors give the same result, if ``approximate`` with the same number of threads.
    """

    nearest: Numbers  # by sample: its most similar other one; -1 without a usable vector or other
    similarity: Floats  # the cosine with it; NaN if there is none
    first: Numbers  # pairs of a maximum spanning forest, the most similar first
    second: Numbers
    strength: Floats  # the cosine of each
    approximate: bool  # whether pairs may be missing

    def groups(self, threshold: float) -> list[Numbers]:
        """Join samples that are at least so similar to one of their group; the largest first."""
        count = int(np.count_nonzero(self.strength >= np.float32(threshold)))
        return grouped(self.first[:count], self.second[:count])

    def outliers(self) -> NDArray[np.bool_]:
        """Find samples whose nearest is unusually far: beyond Tukey's far fence.

        That is a similarity of more than three interquartile ranges below the lower quartile.
        """
        known = self.similarity[self.nearest >= 0]
        if not len(known):
            return np.zeros(len(self.nearest), bool)
        lower, upper = np.quantile(known, (0.25, 0.75)).tolist()
        far: NDArray[np.bool_] = self.similarity < lower - 3 * (upper - lower)
        return far


def grouped(first: Numbers, second: Numbers) -> list[Numbers]:
    """Join the ends of pairs to groups, in order; the largest first."""
    members, ends = np.unique(np.concatenate([first, second]), return_inverse=True)
    _, labels = _join(np.arange(len(members)), *ends.reshape(2, len(first)))
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    found = np.split(members[order], starts) if len(members) else []
    return sorted(found, key=lambda group: (-len(group), group[0]))


def find(vectors: NDArray[Any], progress: Progress) -> Similar:
    """Compare all vectors; for more than ``EXACT_MOST`` different ones this needs faiss."""
    rows, originals = _distinct(vectors, progress)
    usable = np.flatnonzero(originals >= 0)
    found = _Found(vectors, rows, progress)
    approximate = len(rows) > EXACT_MOST
    if approximate:
        _compare_in_cells(found)
    else:
        progress.phase("compare vectors", len(rows), "vectors")
        found.compare(np.arange(len(rows)), len(rows))
    found.reduce()

    nearest = np.full(len(vectors), -1)
    similarity = np.full(len(vectors), np.nan, np.float32)
    known = np.flatnonzero(found.nearest >= 0)
    nearest[rows[known]] = rows[found.nearest[known]]
    similarity[rows[known]] = found.similarity[known]
    repeated = usable[rows[originals[usable]] != usable]  # the first of equal ones stands for all
    firsts = rows[originals[repeated]]
    nearest[repeated] = firsts
    nearest[firsts[::-1]] = repeated[::-1]  # of several the last that is assigned counts
    similarity[repeated] = similarity[firsts] = 1
    first = np.concatenate([firsts, rows[found.first]])
    second = np.concatenate([repeated, rows[found.second]])
    strength = np.concatenate([np.ones(len(repeated), np.float32), found.strength])
    order = np.argsort(-strength, kind="stable")
    return Similar(nearest, similarity, first[order], second[order], strength[order], approximate)


def _distinct(vectors: NDArray[Any], progress: Progress) -> tuple[Numbers, Numbers]:
    """Find the first of equal vectors, and for each vector which of them it equals; -1 if unusable.

    Thousands of equal ones cannot be told apart by cells, and would be compared in vain.
    """
    progress.phase("find equal vectors", len(vectors), "vectors")
    hashes = np.zeros(len(vectors), np.uint64)
    usable = np.zeros(len(vectors), bool)
    for start in range(0, len(vectors), BLOCK):
        check()
        block = np.ascontiguousarray(vectors[start : start + BLOCK])
        hashes[start : start + BLOCK] = [xxhash.xxh3_64_intdigest(row) for row in block]
        usable[start : start + BLOCK] = unit(block).any(axis=1)
        progress.advance(len(block))
    numbers = np.flatnonzero(usable)
    _, firsts, which = np.unique(hashes[numbers], return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # by number, not by hash
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    originals = np.full(len(vectors), -1)
    originals[numbers] = places[which]
    return numbers[firsts[order]], originals


class _Found:
    """What comparing has found so far, about distinct vectors by their place in ``rows``."""

    def __init__(self, vectors: NDArray[Any], rows: Numbers, progress: Progress) -> None:
        self.vectors, self.rows, self.progress = vectors, rows, progress
        self.nearest = np.full(len(rows), -1)
        self.similarity = np.full(len(rows), -np.inf, np.float32)
        self.first, self.second = np.zeros((2, 0), np.int64)
        self.strength = np.zeros(0, np.float32)
        self._waiting: list[tuple[Numbers, Numbers, Floats]] = []
        self._count = 0

    def units(self, places: Numbers) -> Floats:
        """Give some of the vectors as unit vectors."""
        return unit(self.vectors[self.rows[places]])

    def compare(self, places: Numbers, own: int) -> None:
        """Compare the first ``own`` of some vectors with each other and with the rest of them."""
        units = self.units(places)
        for start in range(0, own, _ROWS):
            check()
            count = min(_ROWS, own - start)
            self._compare(places[start:], units[start:], count)
            self.progress.advance(count)

    def _compare(self, places: Numbers, units: Floats, own: int) -> None:
        cosines = units[:own] @ units.T
        np.fill_diagonal(cosines, -np.inf)
        self._note_nearest(places[:own], places, cosines)
        self._note_nearest(places[own:], places[:own], cosines[:, own:].T)
        cosines[:, :own][np.tri(own, dtype=bool)] = -np.inf  # each pair once
        first, second = np.nonzero(cosines >= np.float32(FLOOR))
        strength = _rounded(cosines[first, second])
        if len(first) > len(places):
            kept = _spanning(len(places), first, second, strength)
            first, second, strength = first[kept], second[kept], strength[kept]
        self._waiting.append((places[first], places[second], strength))
        self._count += len(first)
        if self._count > _BUFFER:
            self.reduce()

    def _note_nearest(self, places: Numbers, others: Numbers, cosines: Floats) -> None:
        if not cosines.size:
            return
        best = cosines.argmax(axis=1)
        highest = _rounded(cosines[np.arange(len(best)), best])
        better = highest > self.similarity[places]
        self.nearest[places[better]] = others[best[better]]
        self.similarity[places[better]] = highest[better]

    def reduce(self) -> None:
        """Reduce the pairs to a forest."""
        edges = [(self.first, self.second, self.strength), *self._waiting]
        first, second, strength = (np.concatenate(column) for column in zip(*edges, strict=True))
        kept = _spanning(len(self.rows), first, second, strength)
        self.first, self.second, self.strength = first[kept], second[kept], strength[kept]
        self._waiting.clear()
        self._count = 0


def _rounded(cosines: Floats) -> Floats:
    """Make those of equal vectors 1, as rounding did not."""
    return np.where(cosines > _EQUAL, np.float32(1), cosines)


def _spanning(count: int, first: Numbers, second: Numbers, strength: Floats) -> Numbers:
    """Choose the edges of a maximum spanning forest of ``count`` nodes, the strongest first.

    If there are many, the strongest of them join most nodes, so that few of the others are left.
    """
    labels, chosen = np.arange(count), [np.zeros(0, np.int64)]
    left = np.arange(len(first))
    while len(left):
        some, rest, most = left, left[:0], 4 * count
        if len(left) > 2 * most:
            order = np.argpartition(strength[left], -most)
            some, rest = left[order[-most:]], left[order[:-most]]
        some = some[np.argsort(-strength[some], kind="stable")]
        taken, labels = _join(labels, first[some], second[some])
        chosen.append(some[taken])
        left = rest[labels[first[rest]] != labels[second[rest]]]
    return np.concatenate(chosen)


def _join(labels: Numbers, first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    """Join nodes by edges, of which earlier ones go first; give the edges that did, and new labels.

    This is Boruvka's way: every part takes its first edge to another part, all at once.
    """
    taken = [np.zeros(0, np.int64)]
    edges, one, other = np.arange(len(first)), labels[first], labels[second]
    while True:
        apart = one != other
        edges, one, other = edges[apart], one[apart], other[apart]
        if not len(edges):
            return np.sort(np.concatenate(taken)), labels
        best = np.full(len(labels), len(first))
        np.minimum.at(best, one, edges)
        np.minimum.at(best, other, edges)
        parts = np.flatnonzero(best < len(first))
        places = np.searchsorted(edges, best[parts])
        onto = one[places] + other[places] - parts  # the other end
        parent = np.arange(len(labels))
        parent[parts] = onto
        roots = parts[(parent[onto] == parts) & (parts < onto)]  # two parts that took one edge
        parent[roots] = roots
        while not np.array_equal(above := parent[parent], parent):
            parent = above
        taken.append(np.unique(best[parts]))
        labels, one, other = parent[labels], parent[one], parent[other]


def _compare_in_cells(found: _Found) -> None:
    """Compare each vector with those of its own cell and of the next ones."""
    reduced, probes = _cells(found)
    home = probes[:, 0]
    count = int(probes.max()) + 1
    homes = np.bincount(home, minlength=count)
    visits = np.bincount(probes[:, 1:].ravel(), minlength=count)
    at_home = np.split(np.argsort(home, kind="stable"), np.cumsum(homes)[:-1])
    visitors = np.argsort(probes[:, 1:].ravel(), kind="stable") // max(1, probes.shape[1] - 1)
    visiting = np.split(visitors, np.cumsum(visits)[:-1])
    crowded = homes + visits > EXACT_MOST
    total = len(home) + int(visits[crowded].sum())
    found.progress.phase("compare vectors", total, "vectors")
    for cell in range(count):
        places = np.concatenate([at_home[cell], visiting[cell]])
        if not crowded[cell]:
            found.compare(places, len(at_home[cell]))
            continue
        # So close to each other that k-means could not separate them: along their widest axis
        # each is compared with the next ones.
        coordinates = reduced[places]
        places = places[np.argsort(coordinates[:, coordinates.std(axis=0).argmax()], kind="stable")]
        for start in range(0, len(places), _CROWDED):
            some = places[start : start + 2 * _CROWDED]
            found.compare(some, min(_CROWDED, len(some)))


def _cells(found: _Found) -> tuple[Floats, NDArray[np.int32]]:
    """Reduce the vectors to their main components, and find the nearest cells of each."""
    faiss = require_faiss()
    count = len(found.rows)
    found.progress.phase("sort vectors into cells", 2 * count, "vectors")
    middle, axes = axes_of(found.vectors, _DIMENSIONS)
    reduced = np.empty((count, axes.shape[1]), np.float32)
    for start in range(0, count, BLOCK):
        check()
        some = np.arange(start, min(start + BLOCK, count))
        reduced[some] = (found.units(some) - middle) @ axes
        found.progress.advance(len(some))
    cells = max(1, round(min(4 * count**0.5, count / _SMALLEST)))
    sample = reduced[even(count, _TRAINING * cells)]
    centres = sample[even(len(sample), cells)]
    for _ in range(_ROUNDS):  # one by one, so that Ctrl-C need not wait for all
        check()
        kmeans = faiss.Kmeans(
            reduced.shape[1], cells, niter=1, seed=1, min_points_per_centroid=1,
            max_points_per_centroid=len(sample),
        )  # fmt: skip
        kmeans.train(sample, init_centroids=centres)
        centres = kmeans.centroids
    index = faiss.IndexFlatL2(reduced.shape[1])
    index.add(centres)
    probes = np.empty((count, min(_PROBES, cells)), np.int32)
    for start in range(0, count, BLOCK):
        check()
        block = reduced[start : start + BLOCK]
        probes[start : start + BLOCK] = index.search(block, probes.shape[1])[1]
        found.progress.advance(len(block))
    return reduced, probes


def require_faiss() -> Any:  # noqa: ANN401
    """Give faiss, or raise if it is not installed."""
    try:
        import faiss
    except ImportError as error:
        what = f"comparing more than {EXACT_MOST:,} vectors needs faiss ({error})"
        fix = "run pip install '.[look]' in the checkout of shardwright"
        raise MissingExtraError(what, fix=fix) from error
    return faiss
