"""Image vectors in one array, and their first principal components: what the map shows.

Only the direction of a vector matters here. A vector of zeros, or one that is not finite, has none:
it is unusable, and becomes zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.interrupts import check
from shardwright.progress import Progress

Floats = NDArray[np.float32]

SMALL = 20_000  # vectors; more are kept in float16, which takes 2 GB for a million of 1,024
BLOCK = 4096  # vectors at a time
_SAMPLE = 50_000  # vectors that the principal components are computed from


def read(
    blocks: Iterable[NDArray[Any]], count: int, width: int, progress: Progress
) -> NDArray[Any]:
    """Gather ``count`` vectors as unit vectors; unusable ones are zeros."""
    found = np.zeros((count, width), np.float32 if count <= SMALL else np.float16)
    progress.phase("read vectors", count, "vectors")
    done = 0
    for block in blocks:
        check()
        found[done : done + len(block)] = unit(block)
        done += len(block)
        progress.advance(len(block))
    return found


def unit(vectors: NDArray[Any]) -> Floats:
    """Divide each vector by its length; unusable ones become zeros."""
    if vectors.dtype == np.float16:  # whose squares float32 can hold
        scaled = vectors.astype(np.float32)
    else:
        largest = np.abs(vectors).max(axis=1, initial=0, keepdims=True)
        known = np.isfinite(largest) & (largest > 0)
        scaled = np.where(known, vectors / np.where(known, largest, 1), 0).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    known = np.isfinite(lengths) & (lengths > 0)
    scaled[~known] = 0
    scaled /= np.where(known, lengths, 1)[:, None]
    return scaled


def principal(vectors: NDArray[Any]) -> Floats:
    """Compute the first two principal components of each vector; NaN for unusable ones."""
    found = np.full((len(vectors), 2), np.nan, np.float32)
    middle, axes = axes_of(vectors, 2)
    for some, block in _blocks(vectors):
        usable = block.any(axis=1)
        found[some][usable, : axes.shape[1]] = (block[usable] - middle) @ axes
        found[some][usable, axes.shape[1] :] = 0  # vectors of one number have one component
    return found


def axes_of(vectors: NDArray[Any], most: int) -> tuple[Floats, Floats]:
    """Compute the mean and the principal axes (columns) of the vectors, the widest first.

    They are those of an even sample. The largest number of an axis is positive, so that the same
    vectors always have the same axes.
    """
    numbers = even(len(vectors), _SAMPLE)
    width = vectors.shape[1]
    blocks = (block[block.any(axis=1)] for _, block in _blocks(vectors, numbers))
    if len(numbers) < width:  # there are as few axes, which is quicker
        usable = np.concatenate([np.zeros((0, width), np.float32), *blocks]).astype(np.float64)
        middle = usable.sum(axis=0) / max(len(usable), 1)
        axes = np.linalg.svd(usable - middle, full_matrices=False)[2][:most].T
    else:
        total, products, count = np.zeros(width), np.zeros((width, width)), 0
        for block in blocks:
            total += block.sum(axis=0, dtype=np.float64)
            products += block.T @ block
            count += len(block)
        middle = total / max(count, 1)
        covariance = products / max(count, 1) - np.outer(middle, middle)
        axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :most]
    peaks = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[peaks, np.arange(axes.shape[1])] < 0, -1, 1)
    return middle.astype(np.float32), axes.astype(np.float32)


def even(count: int, most: int) -> NDArray[np.int64]:
    """Choose at most so many of ``count`` numbers, evenly."""
    return np.arange(count) if count <= most else np.arange(most) * count // most


def _blocks(
    vectors: NDArray[Any], numbers: NDArray[np.int64] | None = None
) -> Iterator[tuple[slice, Floats]]:
    """Give some vectors, or all, as unit vectors, block by block."""
    count = len(vectors) if numbers is None else len(numbers)
    for start in range(0, count, BLOCK):
        check()
        some = slice(start, min(start + BLOCK, count))
        yield some, unit(vectors[some] if numbers is None else vectors[numbers[some]])
