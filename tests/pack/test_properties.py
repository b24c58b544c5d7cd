"""Whatever the records and the settings, exactly the expected samples are packed, in order."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright import pack
from tests.stores import Record, Store, line, make_store, record
from tests.tars import ids_by_shard, read_members, shards

BUCKETS = ("1024x1024", "832x1216", "1216x832", "64x64")
COUNT = 12


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with arrays for a dozen ids; each example writes its own JSONL."""
    root = tmp_path_factory.mktemp("properties") / "derived"
    return make_store(root, [record(f"img{n:02}") for n in range(COUNT)])


RECORDS = st.lists(
    st.tuples(st.integers(0, COUNT - 1), st.sampled_from(BUCKETS), st.sampled_from("rrrc")),
    unique_by=lambda entry: entry[0],
    max_size=COUNT,
)


def expected_shards(
    ready: list[Record],
    buckets: frozenset[str],
    shuffle: bool,
    seed: int,
    limit: int | None,
    shard_size: int,
) -> dict[str, list[str]]:
    """The rules of the specification, as plainly as they can be written."""
    chosen = [fields for fields in ready if not buckets or fields["aspect_bucket"] in buckets]
    if shuffle:
        draw = random.Random(seed)
        drawn = [(draw.random(), position) for position in range(len(chosen))]
        chosen = [chosen[position] for _, position in sorted(drawn)]
    chosen = chosen[:limit]
    expected = {}
    for bucket in {fields["aspect_bucket"] for fields in chosen}:
        group = [fields["image_id"] for fields in chosen if fields["aspect_bucket"] == bucket]
        for number, first in enumerate(range(0, len(group), shard_size)):
            name = f"bucket_{bucket}/shard-{number:06}.tar"
            expected[name] = group[first : first + shard_size]
    return expected


@given(
    entries=RECORDS,
    buckets=st.frozensets(st.sampled_from(BUCKETS[:3])),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
    limit=st.none() | st.integers(0, COUNT + 2),
    shard_size=st.integers(1, COUNT + 1),
)
@settings(max_examples=60, deadline=None)
def test_the_packed_samples_are_exactly_the_expected_ones(
    arrays: Store,
    entries: list[tuple[int, str, str]],
    buckets: frozenset[str],
    **options: Any,  # noqa: ANN401 - the settings, as pack takes them
) -> None:
    given = [
        record(f"img{n:02}", bucket, **({"caption": ""} if kind == "c" else {}))
        for n, bucket, kind in entries
    ]
    ready = [fields for fields in given if fields["caption"]]
    arrays.write_lines(map(line, given))
    expected = expected_shards(ready, buckets, **options)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "shards"
        summary = pack(
            derived_dir=arrays.root, output_dir=output, bucket=buckets, workers=1, **options
        )
        assert ids_by_shard(output) == expected
        by_id = {fields["image_id"]: fields for fields in given}
        for path in shards(output):
            wanted = expected[f"{path.parent.name}/{path.name}"]
            members = [m for image_id in wanted for m in arrays.members(by_id[image_id])]
            assert read_members(path) == members
    assert summary.total_records == len(given)
    assert summary.ready_records == len(ready)
    assert summary.written_samples == sum(map(len, expected.values()))
    assert summary.written_shards == len(expected)
