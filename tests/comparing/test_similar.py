"""Near-duplicates: the same pairs and groups as by comparing all, and outliers."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardwright.comparing import similar
from shardwright.comparing.similar import FLOOR, Similar, find
from shardwright.errors import MissingExtraError
from shardwright.progress import Progress
from tests.comparing.test_vectors import Phases, random

Array = NDArray[np.float32]


def cosines(vectors: Array) -> NDArray[np.float64]:
    """Compare all by all, with more digits."""
    units = vectors.astype(np.float64)
    units /= np.linalg.norm(units, axis=1)[:, None]
    found: NDArray[np.float64] = units @ units.T
    np.fill_diagonal(found, -2)
    return found


def linked(close: NDArray[np.bool_]) -> list[list[int]]:
    """Group by single linkage: whoever is reached."""
    left, groups = set(range(len(close))), []
    while left:
        group, ahead = set(), [min(left)]
        while ahead:
            one = ahead.pop()
            if one in left:
                left.remove(one)
                group.add(one)
                ahead += np.flatnonzero(close[one]).tolist()
        if len(group) > 1:
            groups.append(sorted(group))
    return sorted(groups, key=lambda group: (-len(group), group[0]))


def clumps(sizes: Sequence[int], width: int, spread: float, seed: int = 0) -> Array:
    """Make clumps around random centres, one behind the other."""
    centres = random(len(sizes), width, seed) / np.float32(width**0.5)
    noise = random(sum(sizes), width, seed + 1) * np.float32(spread / width**0.5)
    found: Array = np.repeat(centres, sizes, axis=0) + noise
    return found


def as_lists(groups: Sequence[NDArray[np.int64]]) -> list[list[int]]:
    return [group.tolist() for group in groups]


def recall(groups: Sequence[NDArray[np.int64]], planted: Sequence[NDArray[np.int64]]) -> float:
    """Give the part of the planted samples that are in one group with their mates."""
    group_of = {one: number for number, group in enumerate(groups) for one in group.tolist()}
    together = 0
    for mates in planted:
        found = [group_of[one] for one in mates.tolist() if one in group_of]
        most = max(map(found.count, set(found)), default=0)
        together += most if most > 1 else 0
    return together / sum(map(len, planted))


def same(one: Similar, other: Similar) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_every_nearest_is_found_and_how_similar_it_is() -> None:
    vectors = clumps([1] * 300 + [2] * 100 + [40] * 5, 16, 0.25)
    expected = cosines(vectors)
    phases = Phases()
    found = find(vectors, phases)
    assert not found.approximate
    np.testing.assert_array_equal(found.nearest, expected.argmax(axis=1))
    np.testing.assert_allclose(found.similarity, expected.max(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.strength, expected[found.first, found.second], atol=1e-6)
    assert (np.diff(found.strength) <= 0).all()
    assert [done == total for _, total, done in phases.seen] == [True, True]


@pytest.mark.parametrize("threshold", [0.8, 0.9, 0.95, 0.99, 1.0])
def test_groups_are_those_of_single_linkage(threshold: float) -> None:
    vectors = clumps([1] * 100 + [3] * 50 + [30] * 10, 8, 0.3)
    vectors[200:210] = vectors[20]
    groups = find(vectors, Progress()).groups(threshold)
    expected = linked(cosines(vectors) >= threshold - 1e-6)
    assert as_lists(groups) == expected
    assert expected


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 60),
    width=st.integers(1, 5),
    spread=st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    threshold=st.floats(FLOOR, 0.999),
)
def test_groups_of_any_vectors_are_those_of_single_linkage(
    seed: int, count: int, width: int, spread: float, threshold: float
) -> None:
    random = np.random.default_rng(seed)
    centres = random.standard_normal((4, width))
    noise = random.standard_normal((count, width)) * spread
    vectors = (centres[random.integers(0, 4, count)] + noise).astype(np.float32)
    found, expected = find(vectors, Progress()), cosines(vectors)
    if count > 1 and np.abs(expected - threshold).min() > 1e-5:  # not a matter of rounding
        assert as_lists(found.groups(threshold)) == linked(expected > threshold)
    if count > 1:
        np.testing.assert_allclose(found.similarity, expected.max(axis=1), atol=2e-6)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(1, 30), degree=st.floats(0, 30),
    levels=st.sampled_from([2, 1000]),
)  # fmt: skip
def test_a_spanning_forest_joins_what_all_edges_join(
    seed: int, count: int, degree: float, levels: int
) -> None:
    random = np.random.default_rng(seed)
    first, second = random.integers(0, count, (2, round(count * degree)))
    strength = (random.integers(0, levels, len(first)) / levels).astype(np.float32)
    kept = similar._spanning(count, first, second, strength)
    assert len(kept) == len(set(kept.tolist()))
    for threshold in np.unique(strength):
        joined = []
        for edges in (np.arange(len(first)), kept):
            strong = edges[strength[edges] >= threshold]
            close = np.zeros((count, count), bool)
            close[first[strong], second[strong]] = close[second[strong], first[strong]] = True
            joined.append(linked(close))
        assert joined[0] == joined[1]
        assert np.count_nonzero(strength[kept] >= threshold) == sum(len(g) - 1 for g in joined[0])


@pytest.mark.parametrize("most", [similar.EXACT_MOST, 100])
def test_unusable_vectors_are_near_to_none(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar, "EXACT_MOST", most)
    vectors = random(500, 8)
    vectors[7] = vectors[3] * 1e-30
    vectors[8] = vectors[3] * 1e30
    vectors[[10, 11]] = 0
    vectors[20, 2], vectors[21, 2], vectors[22, 2] = np.nan, np.inf, -np.inf
    found = find(vectors, Progress())
    assert found.approximate == (most == 100)
    unusable = [10, 11, 20, 21, 22]
    np.testing.assert_array_equal(np.flatnonzero(found.nearest < 0), unusable)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found.similarity)), unusable)
    assert not np.isin(unusable, found.nearest).any()
    assert not found.outliers()[unusable].any()
    assert [3, 7, 8] in as_lists(found.groups(1.0))


@pytest.mark.parametrize("vectors", [np.zeros((0, 4)), np.zeros((3, 4)), np.eye(1, 4)])
def test_too_few_usable_vectors_have_no_nearest(vectors: NDArray[np.float64]) -> None:
    found = find(vectors, Progress())
    assert (found.nearest == -1).all()
    assert len(found.nearest) == len(found.outliers()) == len(vectors)
    assert found.groups(FLOOR) == []


def test_equal_vectors_are_one_group() -> None:
    vectors = np.repeat(np.eye(3, dtype=np.float32), [5, 1, 30_000], axis=0)
    found = find(vectors, Progress())
    assert not found.approximate, "only three are different"
    assert as_lists(found.groups(1.0)) == [list(range(6, 30_006)), [0, 1, 2, 3, 4]]
    assert found.nearest[:8].tolist() == [1, 0, 0, 0, 0, 0, 7, 6]
    assert found.similarity[[0, 4, 6]].tolist() == [1, 1, 1]
    assert found.similarity[5] == 0


def test_a_set_in_which_all_are_similar_needs_little_memory() -> None:
    vectors = clumps([4000], 16, 0.3)  # eight million pairs, which would take 160 MB
    tracemalloc.start()
    try:
        found = find(vectors, Progress())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (cosines(vectors) > FLOOR).sum() > 0.9 * 4000 * 3999
    assert len(found.first) == 3999
    assert as_lists(found.groups(FLOOR)) == [list(range(4000))]
    assert peak < 100e6


def planted(
    count: int, width: int, sizes: Sequence[int], cosine: float
) -> tuple[NDArray[np.float16], list[NDArray[np.int64]]]:
    """Put groups, whose members have a cosine of this with their mates, anywhere among others."""
    vectors = random(count, width)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    places = np.random.default_rng(1).permutation(count)[: sum(sizes)]
    groups = np.split(places, np.cumsum(sizes)[:-1])
    for group in groups:
        centre, noise = vectors[group[0]].copy(), vectors[group]
        noise[0] = vectors[group[0] - 1]
        noise -= (noise @ centre)[:, None] * centre
        noise /= np.linalg.norm(noise, axis=1)[:, None]
        vectors[group] = cosine**0.5 * centre + (1 - cosine) ** 0.5 * noise
    return vectors.astype(np.float16), groups


def test_planted_groups_are_found_among_many() -> None:
    sizes = [2] * 200 + [3] * 50 + [10, 30, 100, 300, 1000]
    vectors, groups = planted(21_000, 64, sizes, 0.97)
    phases = Phases()
    found = find(vectors, phases)
    assert found.approximate
    joined = found.groups(0.95)
    assert recall(joined, groups) >= 0.99
    assert sum(map(len, joined)) <= sum(sizes), "nothing else is that similar"
    assert [done == total for _, total, done in phases.seen] == [True, True, True]
    mates = np.concatenate(groups)
    exact = find(vectors[mates], Progress())
    np.testing.assert_allclose(found.similarity[mates], exact.similarity, atol=0.02)
    strength = cosines(vectors[np.concatenate([found.first[:9], found.second[:9]])])
    np.testing.assert_allclose(found.strength[:9], strength[range(9), range(9, 18)], atol=1e-6)


def test_what_is_approximate_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar, "EXACT_MOST", 1000)
    vectors = clumps([1] * 800 + [5] * 80, 32, 0.2)
    assert same(find(vectors, Progress()), find(vectors, Progress()))


def test_cells_find_what_comparing_all_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clumps([1] * 1000 + [2] * 200 + [100] * 3, 32, 0.2)
    vectors[50:60] = vectors[40]
    exact = find(vectors, Progress())
    monkeypatch.setattr(similar, "EXACT_MOST", 1000)
    found = find(vectors, Progress())
    assert found.approximate
    for threshold in (0.9, 0.95):
        assert as_lists(found.groups(threshold)) == as_lists(exact.groups(threshold))
    assert (found.similarity <= exact.similarity + 1e-6).all()
    assert (found.similarity >= exact.similarity - 1e-6).mean() > 0.95


def test_one_cluster_that_holds_everything_is_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar, "EXACT_MOST", 2000)
    vectors = clumps([3000], 32, 0.1)
    found = find(vectors, Progress())
    assert found.approximate
    assert [len(group) for group in found.groups(0.95)] == [3000]


def test_vectors_that_no_cell_can_separate_are_compared_with_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(similar, "EXACT_MOST", 500)
    monkeypatch.setattr(similar, "_CROWDED", 100)
    vectors = np.ones((1200, 64), np.float32)
    for number, row in enumerate(vectors):  # only the last digit of some numbers differs
        row[[bit for bit in range(11) if number >> bit & 1]] = np.nextafter(np.float32(1), 2)
    found = find(vectors, Progress())
    assert found.approximate
    assert [len(group) for group in found.groups(1.0)] == [1200]


def test_outliers_are_far_from_their_nearest() -> None:
    vectors = clumps([50] * 20, 64, 0.3)
    vectors[[17, 400]] = random(2, 64, seed=5)
    found = find(vectors, Progress())
    assert np.flatnonzero(found.outliers()).tolist() == [17, 400]
    assert found.similarity[[17, 400]].max() < np.delete(found.similarity, [17, 400]).min()


def test_without_faiss_many_vectors_are_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(similar, "EXACT_MOST", 100)
    assert not find(random(100, 4), Progress()).approximate
    with pytest.raises(MissingExtraError) as caught:
        find(random(101, 4), Progress())
    assert caught.value.what.startswith("comparing more than 100 vectors needs faiss (")
    assert caught.value.fix == "run pip install '.[look]' in the checkout of shardwright"
