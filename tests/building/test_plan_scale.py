"""Plans of very many rows: columns instead of objects; and the figures that SCALE.md is made of."""

from __future__ import annotations

import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardwright
from benchmarks import scale
from benchmarks.__main__ import run
from benchmarks.contest import OURS
from benchmarks.planning import ARROW, LINES, PLAIN
from benchmarks.sizes import QUICK
from benchmarks.stores import planned_rows
from shardwright.building import plan
from shardwright.building.rows import INPUTS_NAME, parse
from shardwright.engine.local import Local
from shardwright.packing.choice import Choice
from shardwright.packing.scan import Ids
from shardwright.packing.select import _shuffled
from shardwright.progress import Progress
from shardwright.recipes import SPECIFICATION, Selection
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Manifest, PackSettings, ShardEntry
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Url
from tests.building.builds import write_recipe
from tests.derive.pictures import make_images
from tests.flaky import Flaky, flaky
from tests.servers import use_s3

ROOT = Path(__file__).parents[2]
ROWS = 2_000


def settings(shard_size: int, *, shuffle: bool) -> PackSettings:
    return PackSettings(buckets=[], shuffle=shuffle, seed=3, limit=None, shard_size=shard_size)


def laid_out(folder: Path, shard_size: int, *, shuffle: bool = False) -> plan.Plan:
    choice = Choice(settings(shard_size, shuffle=shuffle), Selection())
    return plan.read(folder, SPECIFICATION, choice, {}, {None: {}}, Local(1), Progress())


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan without images."""
    return planned_rows(tmp_path_factory.mktemp("scale"), ROWS)


@pytest.fixture
def store(moto: str, bucket: Url, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """What stands between us and the bucket, and counts requests."""
    with flaky(moto) as found:
        use_s3(monkeypatch, found.url)
        yield found


def counts(store: Flaky, kind: str = "") -> Counter[str]:
    """Count the requests since the last call, by method; of one kind of file."""
    found: Counter[str] = Counter()
    for request in store.requests:
        method, _, path = request.partition(" ")
        if kind in path:
            found["LIST" if "list-type" in path else method] += 1
    store.requests.clear()
    return found


def test_ids_of_a_plan_are_what_was_added_however_they_are_spelt() -> None:
    added = ["a", "", "ü" * 80, "日本語", "x" * 251, "🙂"]
    ids = Ids()
    for image_id in added:
        ids.append(image_id)
    assert (len(ids), list(ids)) == (6, added)
    assert [ids[number] for number in range(6)] == added
    with pytest.raises(IndexError):
        ids[6]


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_shuffle_sorts_by_the_numbers_of_the_seed(count: int) -> None:
    draw, expected = random.Random(5), list(range(count))
    expected.sort(key=lambda _: draw.random())
    assert list(_shuffled(array("I", range(count)), 5)) == expected


def test_ids_that_are_there_twice_are_found_and_equal_hashes_alone_do_not_count() -> None:
    ids = Ids()
    for image_id in ("a", "b", "a", "c", "d", "a", "e"):
        ids.append(image_id)
    hashes = np.array([7, 7, 7, 1, 2, 7, 2], np.int64)  # b has that of a, and e that of d
    assert plan._shared(ids, hashes) == [0, 2, 5]


def test_a_planned_layout_has_every_row_once_and_reads_the_lines_of_its_tasks(rows: Path) -> None:
    layout = laid_out(rows, 150, shuffle=True)
    assert sorted(s for shard in layout.shards for s in shard.samples) == list(range(ROWS))
    assert len(layout.shards) == 4 * 4  # buckets of 500
    lines = (rows / INPUTS_NAME).read_bytes().splitlines()
    shard = layout.shards[5]
    assert list(shard.samples) != sorted(shard.samples)
    read = list(layout.scan.excerpt(shard.samples).lines())
    assert [line for _, line in read] == [lines[sample] for sample in shard.samples]
    assert [parse(line, SPECIFICATION).row.image_id for _, line in read] == [i for i, _ in read]


def test_the_bytes_of_rows_and_manifest_entries_are_those_of_scale_md(
    rows: Path, tmp_path: Path
) -> None:
    size = (rows / INPUTS_NAME).stat().st_size / ROWS
    assert size == pytest.approx(scale.ROW_BYTES, rel=0.05)
    entries = [
        ShardEntry(
            path=f"bucket_1024x1024/shard-{number:06}.tar",
            bucket="1024x1024",
            samples=1000,
            bytes=691_200_000,
            xxh3=f"{number:032x}",
            index_xxh3=f"{number:016x}",
            records_xxh3=f"{number:016x}",
        )
        for number in range(1000)
    ]
    (tmp_path / ".shardwright").mkdir()
    manifest.save_manifest(tmp_path, Manifest(runs=[], shards=entries))
    size = (tmp_path / ".shardwright/manifest.json").stat().st_size / 1000
    assert size == pytest.approx(scale.ENTRY_BYTES, rel=0.05)


def test_scale_md_shows_the_tables_of_the_simulation() -> None:
    text = (ROOT / "SCALE.md").read_text()
    for table in scale.TABLES:
        assert "\n".join(table()) in text


def test_the_requests_of_a_shard_are_those_that_scale_md_counts(
    store: Flaky, bucket: Url, tmp_path: Path
) -> None:
    folder, recipe = make_images(tmp_path / "images", 12, ((96, 64),)), write_recipe(tmp_path)
    seen, samples = [], (6, 2)
    for size in samples:
        output = str(bucket / f"of-{size}/out")
        shardwright.build(
            folder, output_dir=output, recipe=recipe, encoders="sketch", shard_size=size
        )
        seen.append(counts(store))
    few, many = (12 // size for size in samples)
    more = seen[1] - seen[0]
    # One PUT sends a small shard, where a large one is begun and completed.
    assert more["PUT"] == (many - few) * (scale.SHARD_PUTS - 1)
    assert more["GET"] + more["HEAD"] == (many - few) * scale.SHARD_GETS
    assert more.keys() <= {"PUT", "GET", "HEAD"}
    shardwright.verify(output, read_data=True)
    one_range = 1
    assert counts(store, "shard-").total() == many * (scale.VERIFY_GETS + one_range)
    opened = shardwright.open(output)
    assert counts(store, ".idx") == {"GET": many}
    assert sum(len(batch["image_id"]) for batch in opened.batches(4, seed=0)) == 12
    assert 6 < counts(store, ".tar")["GET"] <= 12
    make_images(folder, 13, ((96, 64),))
    shardwright.build(folder, output_dir=output, recipe=recipe, encoders="sketch", append=True)
    old = Counter(re.findall(r"shard-00000[0-5]", " ".join(store.requests)))
    assert set(old.values()) == {scale.APPEND_GETS}


def test_a_large_file_takes_a_request_for_each_part_and_three_more(
    store: Flaky, bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwright.storage.remote.PART", 5 << 20)  # no store takes less
    place, data = RemotePlace(bucket), bytes(11 << 20)
    with place.create("large.tar") as file:
        file.put(data)
        file.seal(len(data))
    place.publish("large.tar")
    assert counts(store) == {"POST": 2, "PUT": 3, "HEAD": 1}


def test_planning_is_measured_against_other_ways_that_plan_the_same_rows(tmp_path: Path) -> None:
    (found,) = run("planning", replace(QUICK, planning=(800,)), tmp_path)
    assert found.runs.keys() == {OURS, PLAIN, ARROW, LINES}
    assert all(len(runs.seconds) == 1 for runs in found.runs.values())
