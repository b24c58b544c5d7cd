"""Vectors are gathered as unit vectors, and their principal components are the right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.comparing import vectors
from shardwright.progress import Progress


class Phases(Progress):
    """Keeps what was counted towards which total."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []

    def phase(self, name: str, total: int, unit: str) -> None:
        self.seen.append([name, total, 0])

    def advance(self, count: int) -> None:
        self.seen[-1][2] += count


def random(count: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, width), np.float32)


def test_vectors_are_gathered_as_unit_vectors_and_progress_is_reported() -> None:
    given, phases = random(10, 4), Phases()
    found = vectors.read([given[:3], given[3:]], 10, 4, phases)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, given / np.linalg.norm(given, axis=1)[:, None], rtol=1e-6)
    assert phases.seen == [["read vectors", 10, 10]]


def test_many_vectors_are_kept_in_half_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "SMALL", 9)
    found = vectors.read([random(10, 64) * 1e6], 10, 64, Progress())  # more than float16 can hold
    assert found.dtype == np.float16
    np.testing.assert_allclose(np.linalg.norm(found.astype(float), axis=1), 1, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_vectors_without_a_direction_become_zeros(dtype: type[np.floating[Any]]) -> None:
    largest, smallest = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    rows = [[3, 4], [0, 0], [np.nan, 1], [np.inf, 1], [-np.inf, np.nan]]
    rows += [[largest, largest], [smallest, 0], [0, -smallest]]
    found = vectors.unit(np.array(rows, dtype))
    root = np.sqrt(0.5)
    expected = [[0.6, 0.8], *[[0, 0]] * 4, [root, root], [1, 0], [0, -1]]
    np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=1e-6)


def test_principal_components_are_those_of_a_singular_value_decomposition() -> None:
    given = random(300, 8) * np.arange(8, 0, -1) + 3
    found = vectors.principal(given)
    units = vectors.unit(given)
    _, _, axes = np.linalg.svd(units - units.mean(axis=0), full_matrices=False)
    expected = (units - units.mean(axis=0)) @ axes[:2].T
    assert found.dtype == np.float32
    for column in range(2):
        sign = np.sign(axes[column, np.abs(axes[column]).argmax()])
        np.testing.assert_allclose(found[:, column], expected[:, column] * sign, atol=1e-4)


def test_principal_components_show_two_clusters_on_two_sides() -> None:
    given = random(6000, 16) * 0.1
    given[::2, 5] += 1
    given[1::2, 9] += 1
    found = vectors.principal(given.astype(np.float16))
    assert (found[::2, 0] > 0).all() != (found[1::2, 0] > 0).all()
    assert ((found[::2, 0] > 0) == (found[0, 0] > 0)).all()
    np.testing.assert_array_equal(found, vectors.principal(given.astype(np.float16)))


def test_unusable_vectors_have_no_place_and_move_no_other() -> None:
    given = random(100, 8)
    unlike = np.array([[0.0] * 8, [np.nan] * 8, [np.inf] * 8])
    hostile = np.insert(given, [0, 50, 100], unlike, axis=0)
    found = vectors.principal(hostile)
    unusable = [0, 51, 102]
    assert np.isnan(found[unusable]).all()
    np.testing.assert_allclose(
        np.delete(found, unusable, axis=0), vectors.principal(given), atol=1e-5
    )


@pytest.mark.parametrize(("count", "width"), [(0, 4), (1, 4), (5, 1), (3, 2)])
def test_few_or_narrow_vectors_have_two_components_too(count: int, width: int) -> None:
    found = vectors.principal(np.ones((count, width), np.float32))
    np.testing.assert_allclose(found, np.zeros((count, 2)), atol=1e-6)


def test_an_even_sample_covers_all() -> None:
    np.testing.assert_array_equal(vectors.even(3, 5), [0, 1, 2])
    np.testing.assert_array_equal(vectors.even(10, 5), [0, 2, 4, 6, 8])
