"""Which images go into which shard: limits, lists, conditions, splits; and what happens to few."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import UsageError, derive, pack, verify
from tests.building.builds import (
    Interrupting,
    build,
    interrupt,
    ledger,
    members,
    records,
    spoil,
    tars,
    write_recipe,
)
from tests.derive.pictures import make_images
from tests.tars import ids_by_shard

BROKEN = (1, 4, 5, 9)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images in three buckets."""
    return make_images(tmp_path_factory.mktemp("plan") / "images", 12)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of one bucket, four of which fail at work."""
    folder = make_images(tmp_path_factory.mktemp("failing") / "images", 12, ((96, 64),))
    for number in BROKEN:
        spoil(folder, number)
    return folder


def numbers(output: Path) -> list[int]:
    return sorted(int(image_id[3:]) for image_id in records(output))


# Limits.


def test_a_limit_is_exact_because_others_take_the_place_of_those_that_fail(
    failing: Path, tmp_path: Path
) -> None:
    progress = Interrupting()
    summary = build(failing, tmp_path / "out", limit=6, shard_size=2, progress=progress)
    assert summary.written_samples == 6
    assert {n: c.count for n, c in summary.left_out.items()} == {"broken_image": 3}
    assert {n: c.count for n, c in summary.not_chosen.items()} == {"--limit": 3}
    assert numbers(tmp_path / "out") == [0, 2, 3, 6, 7, 8]
    assert "3 images left out; trying 3 other images" in progress.said


def test_a_limit_that_cannot_be_met_takes_all_that_can_be_used(
    failing: Path, tmp_path: Path
) -> None:
    summary = build(failing, tmp_path / "out", limit=10)
    assert (summary.written_samples, summary.failed, summary.not_chosen) == (8, 4, {})


def test_a_limit_with_failures_is_the_same_after_interruptions(
    failing: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"limit": 6, "shard_size": 2, "shuffle": True, "seed": 4}
    build(failing, tmp_path / "once", **options)
    for shards in (1, 3, 4):
        interrupt(failing, tmp_path / "often", shards, **options)
    assert build(failing, tmp_path / "often", **options).kept_shards > 2
    assert tars(tmp_path / "often") == tars(tmp_path / "once")
    assert ledger(tmp_path / "often") == ledger(tmp_path / "once")


def test_a_task_whose_samples_all_fail_makes_no_shard_and_leaves_no_gap(
    failing: Path, tmp_path: Path
) -> None:
    for device in ("cpu", "cpu:2"):
        output = tmp_path / device
        summary = build(failing, output, shard_size=2, device=device)
        assert ids_by_shard(output) == {
            "bucket_96x64/shard-000000.tar": ["img000"],
            "bucket_96x64/shard-000001.tar": ["img002", "img003"],
            "bucket_96x64/shard-000002.tar": ["img006", "img007"],
            "bucket_96x64/shard-000003.tar": ["img008"],
            "bucket_96x64/shard-000004.tar": ["img010", "img011"],
        }
        assert summary.written_shards == 5
        assert verify(output, read_data=True, workers=1).findings == []
        assert len(shardwright.open(output)) == 8


# Choosing and ordering.


def test_conditions_lists_and_buckets_choose_as_pack_does(images: Path, tmp_path: Path) -> None:
    store, chosen, banned = (tmp_path / name for name in ("store", "chosen.txt", "banned.txt"))
    chosen.write_text("".join(f"img{n:03}\n" for n in range(8)))
    banned.write_text("img002\nimg003\n")
    derive(images, derived_dir=store, recipe=write_recipe(tmp_path), encoders="sketch")
    ways: list[dict[str, Any]] = [
        {"bucket": ["64x96", "64x64"], "shuffle": True, "seed": 1},
        {"where": ["width >= 80", "height < 80"]},
        {"ids_file": chosen, "exclude_ids_file": banned, "shard_size": 2},
        {"limit": 5, "shuffle": True, "seed": 2},
    ]
    for number, options in enumerate(ways):
        output, expected = tmp_path / f"built{number}", tmp_path / f"packed{number}"
        summary = build(images, output, **options)
        packed = pack(derived_dir=store, output_dir=expected, workers=1, **options)
        assert members(output) == members(expected)
        assert sum(count.count for count in summary.not_chosen.values()) == 12 - (
            packed.written_samples
        )


def test_what_is_not_chosen_is_counted_by_the_condition(images: Path, tmp_path: Path) -> None:
    banned = tmp_path / "banned.txt"
    banned.write_text("img001\n")
    summary = build(
        images,
        tmp_path / "out",
        where=["width < 96"],
        exclude_ids_file=banned,
        bucket=["64x96", "96x64"],
        limit=2,
    )
    assert {n: c.count for n, c in summary.not_chosen.items()} == {
        "width < 96": 4,
        "--exclude-ids-file": 1,
        "--bucket": 4,
        "--limit": 1,
    }
    assert numbers(tmp_path / "out") == [4, 7]


def test_another_seed_gives_another_order_and_the_same_seed_the_same(
    images: Path, tmp_path: Path
) -> None:
    made = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build(images, tmp_path / name, shuffle=True, seed=seed)
        made[name] = ids_by_shard(tmp_path / name)
    assert made["a"] == made["b"] != made["c"]


def test_a_split_puts_the_ids_into_the_parts_that_pack_gives_them(
    images: Path, tmp_path: Path
) -> None:
    store, split = tmp_path / "store", "val=25%,test=20%"
    derive(images, derived_dir=store, recipe=write_recipe(tmp_path), encoders="sketch")
    pack(derived_dir=store, output_dir=tmp_path / "packed", split=split, workers=1)
    summary = build(images, tmp_path / "built", split=split, device="cpu:2", shard_size=2)
    parts = {"train", "val", "test"}
    assert set(summary.parts) <= parts
    for part in parts:
        assert set(records(tmp_path / "built" / part)) == set(records(tmp_path / "packed" / part))
    assert sum(len(records(tmp_path / "built" / part)) for part in parts) == 12
    again = build(images, tmp_path / "built", split=split, device="cpu:2", shard_size=2)
    assert (again.written_samples, again.already_there) == (0, 12)


def test_a_split_by_a_column_keeps_its_groups_together(images: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    rows = [{"file_name": f"img{n:03}.png", "caption": "x", "artist": n // 3} for n in range(12)]
    captions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(images, tmp_path / "out", captions=captions, split="val=50%", split_by="artist")
    sides = {
        part: {record["artist"] for record in records(tmp_path / "out" / part).values()}
        for part in ("train", "val")
    }
    assert not sides["train"] & sides["val"]
    assert len(sides["train"] | sides["val"]) == 4


def test_a_part_without_samples_is_no_reason_to_build_again(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2)
    summary = build(images, tmp_path / "out", split="val=0.001%")
    assert {name: part.samples for name, part in summary.parts.items()} == {"train": 2}
    again = build(images, tmp_path / "out", split="val=0.001%")
    assert (again.written_samples, again.already_there) == (0, 2)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shard_size": 0}, "--shard-size is 0"),
        ({"limit": -1}, "--limit is -1"),
        ({"bucket": ["7x7"]}, "--bucket 7x7: unknown; choose from 64x64, 96x64, 64x96"),
        ({"where": ["colour == 1"]}, "--where: no record has a field colour"),
        ({"split": "val=200%"}, "val"),
        ({"split_by": "artist"}, "--split-by"),
        ({"seed": "three"}, "--seed"),
        ({"fit": "square"}, "--fit"),
        ({"ids": "number"}, "--ids"),
        ({"decode": "half"}, "--decode"),
        ({"device": "tpu"}, "tpu"),
        ({"device": "cpu:0"}, "cpu:0"),
        ({"dtype": "int3"}, "int3"),
        ({"dtype": {"clip": "bfloat16"}}, "--dtype"),
        ({"model": {"vae": "x/y"}}, "a sketch has no model"),
        ({"encoders": "crayon"}, "crayon"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"append": True, "overwrite": True}, "use only one of --append and --overwrite"),
        ({"ids": "captions"}, "--ids captions without --captions"),
        ({"dry_run": "yes"}, "dry_run"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_before_anything_is_written(
    images: Path, tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build(images, tmp_path / "out", **options)
    assert what.replace("_", "-") in str(caught.value).replace("_", "-")
    assert not list((tmp_path / "out").rglob("*.tar"))


# The plan.


def test_a_dry_run_writes_nothing_and_says_what_would_come(images: Path, tmp_path: Path) -> None:
    before = sorted(path for path in images.parent.rglob("*") if path.name != "small.toml")
    plan = build(images, tmp_path / "out", shard_size=3, dry_run=True)
    assert not (tmp_path / "out").exists()
    after = sorted(path for path in images.parent.rglob("*") if path.name != "small.toml")
    assert after == before
    assert plan.seconds_needed is not None
    assert plan.seconds_needed > 0
    done = build(images, tmp_path / "out", shard_size=3)
    assert (plan.inputs, plan.written_samples, plan.written_shards) == (12, 12, 6)
    assert plan.written_bytes == pytest.approx(done.written_bytes, rel=0.2)
    for bucket, found in done.buckets.items():
        planned = plan.buckets[bucket]
        assert (planned.samples, planned.shards) == (found.samples, found.shards)


def test_a_dry_run_over_other_shards_names_the_obstacle(images: Path, tmp_path: Path) -> None:
    build(images, tmp_path / "out", limit=3)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    plan = build(images, tmp_path / "out", dry_run=True)
    assert plan.obstacle is not None
    assert "already exists, so nothing was written; give --append" in plan.obstacle
    plan = build(images, tmp_path / "out", dry_run=True, append=True)
    assert (plan.obstacle, plan.written_samples, plan.already_there) == (None, 9, 3)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before
