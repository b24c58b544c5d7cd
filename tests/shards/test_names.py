"""Names of shards and their folders, and what is not one."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shardwright.shards.format.names import (
    existing_buckets,
    existing_shards,
    leftovers,
    shard_name,
    shard_number,
)


@given(st.lists(st.integers(0, 999_999), unique=True))
def test_the_order_of_names_is_the_order_of_numbers(numbers: list[int]) -> None:
    assert sorted(map(shard_name, numbers)) == [shard_name(number) for number in sorted(numbers)]


@given(st.integers(0, 10**9))
def test_a_name_reads_back(number: int) -> None:
    assert shard_number(f"bucket_8x8/{shard_name(number)}") == number


def test_only_shards_are_taken_for_shards(tmp_path: Path) -> None:
    partly = [f"shard-000005.{suffix}.tmp" for suffix in ("idx", "jsonl", "tar")]
    others = ("shard-1.tar", "shard-000002.tar.idx", "shard-00000\uff13.tar", "ashard-000004.tar")
    for name in ("shard-000000.tar", "shard-1234567.tar", *partly, *others):
        (tmp_path / name).touch()
    assert existing_shards(tmp_path) == {
        0: tmp_path / "shard-000000.tar",
        1234567: tmp_path / "shard-1234567.tar",
    }
    assert leftovers(tmp_path) == [tmp_path / name for name in partly]


def test_only_buckets_are_taken_for_buckets(tmp_path: Path) -> None:
    for name in ("bucket_8x8", "bucket_1024x1024", "bucket_x", "bucket_08x8", "8x8", "bucket_"):
        (tmp_path / name).mkdir()
    assert existing_buckets(tmp_path) == ["1024x1024", "8x8"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert (existing_buckets(missing), existing_shards(missing), leftovers(missing)) == ([], {}, [])
