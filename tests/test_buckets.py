"""The buckets' names and which one is nearest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.buckets import Bucket, is_bucket
from shardwright.recipes import SPECIFICATION

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
