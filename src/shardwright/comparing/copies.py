"""Copies among samples: identical files by their hash, near-duplicates by one vector of each image.

``look``, ``pack``, ``build`` and ``verify`` all find them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.comparing import similar
from shardwright.comparing.similar import Numbers, Similar
from shardwright.errors import UsageError
from shardwright.progress import Progress
from shardwright.recipes import Component, Recipe
from shardwright.recipes.keys import ENCODERS

NO_VECTOR = "no component of the recipe describes an image by one vector"

_IDENTICAL = 2.0  # in place of a cosine

Hashes = NDArray[np.uint64]  # by sample: of its image's file; 0 if that is not on record


class Pair(NamedTuple):
    """Two samples of one group that are in different parts of a split."""

    one: int
    other: int
    similarity: float | None  # None of identical files


@dataclass(frozen=True)
class Copies:
    """What the hashes of files and the vectors of images say about samples, by their numbers."""

    hashes: Hashes
    similar: Similar | None  # None if there are no vectors

    def groups(self, least: float) -> list[Numbers]:
        """Join samples with identical files, or at least so similar; the largest group first."""
        first, second, _ = self._joined(least)
        return similar.grouped(first, second)

    def across(self, parts: Numbers, least: float) -> list[Pair]:
        """Give a pair of each group that is in several parts: identical files, then the others."""
        first, second, strength = self._joined(least)
        labels = np.full(len(parts), -1)
        for label, group in enumerate(similar.grouped(first, second)):
            labels[group] = label
        identical: dict[int, Pair] = {}  # by the hash: a group may have several such files
        near: dict[int, Pair] = {}  # by the group: the most similar pair, which comes first
        known: set[int] = set()  # groups with identical files in several parts
        for place in np.flatnonzero(parts[first] != parts[second]).tolist():
            one, other, cosine = int(first[place]), int(second[place]), float(strength[place])
            label = int(labels[one])
            if cosine == _IDENTICAL:
                identical.setdefault(int(self.hashes[one]), Pair(one, other, None))
                known.add(label)
            elif label not in known:
                near.setdefault(label, Pair(one, other, cosine))
        return [*identical.values(), *near.values()]

    def _joined(self, least: float) -> tuple[Numbers, Numbers, NDArray[np.floating[Any]]]:
        """Give pairs that join each group: identical files first, then the most similar."""
        order = np.argsort(self.hashes, kind="stable")
        ordered = self.hashes[order]
        same = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)
        first, second = order[:-1][same], order[1:][same]
        strength = np.full(len(first), _IDENTICAL)
        if self.similar is None:
            return first, second, strength
        near = self.similar.strength >= np.float32(least)
        return (
            np.concatenate([first, self.similar.first[near]]),
            np.concatenate([second, self.similar.second[near]]),
            np.concatenate([strength, self.similar.strength[near]]),
        )


def hashes_of(texts: Iterable[str | None]) -> Hashes:
    """Give the hashes of files as numbers, whatever their text is."""
    return np.fromiter((0 if text is None else _number(text) for text in texts), np.uint64)


def _number(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass")) or 1


def find(hashes: Hashes, vectors: NDArray[Any] | None, progress: Progress) -> Copies:
    """Find identical files and, if there are vectors, those that are similar."""
    return Copies(hashes, None if vectors is None else similar.find(vectors, progress))


def image_vector(recipe: Recipe) -> Component | None:
    """Find the component that is known to describe an image by one vector.

    It has an encoder of ours. What the numbers of others mean is not known: they may be a
    histogram, by which most images are alike. A user may name one of these.
    """
    return next(
        (c for c in vectors_of(recipe) if c.source == "image" and c.encoder in ENCODERS), None
    )


def vectors_of(recipe: Recipe) -> list[Component]:
    """Find the components that may describe an image by one vector."""
    return [
        c
        for c in recipe.components
        if c.source != "caption" and c.is_array and c.is_float and len(c.shape) == 1
        if isinstance(c.shape[0], int)
    ]


def named_vector(recipe: Recipe, name: str) -> Component:
    """Give the component that a user has named; raise if it is not a vector of an image."""
    choices = {component.name: component for component in vectors_of(recipe)}
    if name in choices:
        return choices[name]
    what = "no such component"
    if (component := recipe.by_name.get(name)) is not None:
        what = "is not one vector for each image"
        if component.source == "caption":
            what = f"describes the {component.field}, and not the image"
    fix = f"choose from {', '.join(choices)}" if choices else "leave it out: there is none"
    raise UsageError(f"--component {name}: {what}", fix=fix)
