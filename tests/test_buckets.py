"""The buckets' names and which one is nearest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.buckets import Bucket, generate, is_bucket
from shardwright.recipes import SPECIFICATION, Recipe

SIDES = st.integers(1, 20_000)


def test_the_seven_buckets_are_those_of_the_specification() -> None:
    assert [str(bucket) for bucket in SPECIFICATION.buckets] == [
        "1024x1024",
        "832x1216",
        "1216x832",
        "768x1280",
        "1280x768",
        "704x1344",
        "1344x704",
    ]


@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_a_bucket_has_one_name_and_reads_back(width: int, height: int) -> None:
    bucket = Bucket(width, height)
    assert is_bucket(str(bucket))
    assert Bucket.parse(str(bucket)) == bucket


@given(st.text(alphabet="0123456789xX+-. /\n\0٣", max_size=9))
def test_what_reads_as_a_bucket_is_spelt_as_one(name: str) -> None:
    if is_bucket(name):
        assert str(Bucket.parse(name)) == name
        assert set(name) <= set("0123456789x")
    else:
        with pytest.raises(ValueError, match="WIDTHxHEIGHT"):
            Bucket.parse(name)


@given(SIDES, SIDES)
def test_the_nearest_bucket_is_the_one_of_the_smallest_difference(width: int, height: int) -> None:
    def difference(bucket: Bucket) -> float:
        return abs(width / height - bucket.width / bucket.height)

    chosen = SPECIFICATION.bucket_for(width, height)
    assert all(difference(chosen) <= difference(bucket) for bucket in SPECIFICATION.buckets)


def test_every_bucket_is_nearest_to_itself() -> None:
    for bucket in SPECIFICATION.buckets:
        assert SPECIFICATION.bucket_for(bucket.width, bucket.height) == bucket


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0), (-1, 5)])
def test_a_picture_without_size_has_no_bucket(width: int, height: int) -> None:
    with pytest.raises(ValueError, match="not the size"):
        SPECIFICATION.bucket_for(width, height)


@given(SIDES.map(lambda n: n // 10 + 64), st.sampled_from([8, 16, 32, 64]), st.floats(1, 4))
def test_generated_buckets_are_within_their_limits(side: int, step: int, aspect: float) -> None:
    found = generate(side, step, aspect)
    assert found[0] == Bucket(side // step * step, side // step * step)
    assert len(set(found)) == len(found)
    for bucket in found:
        assert bucket.width % step == bucket.height % step == 0
        assert bucket.width * bucket.height <= side**2
        assert max(bucket.width, bucket.height) <= aspect * min(bucket.width, bucket.height)
        assert Bucket(bucket.height, bucket.width) in found


def test_generated_buckets_are_those_that_trainers_make() -> None:
    def kohya(side: int, least: int, most: int, step: int) -> set[Bucket]:
        """The rule of sd-scripts: each width with the largest height, within two sides."""
        found = {Bucket(side // step * step, side // step * step)}
        for width in range(least, most + 1, step):
            height = min(most, side * side // width // step * step)
            if height >= least:
                found |= {Bucket(width, height), Bucket(height, width)}
        return found

    ours = generate(1024, 64, 2)
    assert {b for b in kohya(1024, 512, 2048, 64) if b.elongation <= 2} == set(ours)
    assert list(map(str, ours))[:5] == ["1024x1024", "960x1088", "1088x960", "896x1152", "1152x896"]


@pytest.mark.parametrize(("side", "step"), [(63, 64), (100_000, 1)])
def test_no_bucket_or_too_many_are_refused(side: int, step: int) -> None:
    with pytest.raises(ValueError, match="more than"):
        generate(side, step, 2)


LEVELS = Recipe(
    SPECIFICATION.components,
    buckets=(*generate(512, 64, 2), *generate(1024, 64, 2)),
    levels=(len(generate(512, 64, 2)), len(generate(1024, 64, 2))),
)


@pytest.mark.parametrize(
    ("width", "height", "bucket"),
    [
        (1024, 1024, "1024x1024"),
        (4000, 4000, "1024x1024"),
        (1023, 1024, "512x512"),
        (512, 512, "512x512"),
        (100, 100, "512x512"),
        (1152, 896, "1152x896"),
        (1151, 896, "576x448"),
        (9000, 500, "640x384"),
    ],
)
def test_a_picture_belongs_to_the_largest_resolution_that_does_not_enlarge_it(
    width: int, height: int, bucket: str
) -> None:
    assert str(LEVELS.bucket_for(width, height)) == bucket


@given(SIDES, SIDES)
def test_of_several_resolutions_the_chosen_one_fits_or_is_the_smallest(
    width: int, height: int
) -> None:
    chosen = LEVELS.bucket_for(width, height)
    small = replace(LEVELS, buckets=LEVELS.buckets[: LEVELS.levels[0]], levels=())
    large = replace(LEVELS, buckets=LEVELS.buckets[LEVELS.levels[0] :], levels=())
    fitting = large.bucket_for(width, height)
    fits = width >= fitting.width and height >= fitting.height
    assert chosen == (fitting if fits else small.bucket_for(width, height))


def test_the_first_of_two_buckets_that_are_equally_near_is_chosen() -> None:
    buckets = (Bucket(300, 200), Bucket(100, 200))  # a square is 0.5 from both
    recipe = Recipe(SPECIFICATION.components, buckets)
    assert recipe.bucket_for(64, 64) == buckets[0]
    assert replace(recipe, buckets=buckets[::-1]).bucket_for(64, 64) == buckets[1]
