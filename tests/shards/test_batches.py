"""Batches: what is in them, in which order, for whom, and how to go on after one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright.shards.reader.batches import Batch, BatchSettings, plan
from tests.shards.packed import BUCKETS, assert_same, expected, packed
from tests.store.small import arrays, small_store

SAMPLES = 31  # 16 of one bucket, 15 of the other


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES)


def order(batches: object) -> list[list[str]]:
    return [batch["image_id"] for batch in batches]  # type: ignore[attr-defined]


def test_a_batch_stacks_samples_of_one_bucket(shards: Path) -> None:
    count = 0
    for batch in shardwright.open(shards).batches(5):
        ids = batch["image_id"]
        assert len(set(ids)) == 5
        assert {int(image_id[3:]) % 2 for image_id in ids} == {BUCKETS.index(batch["bucket"])}
        assert batch["caption"] == [f"a picture of {image_id}" for image_id in ids]
        assert batch["__key__"] == ids
        assert [record["image_id"] for record in batch["json"]] == ids
        for name in expected("img0"):
            assert_same(batch[name], np.stack([expected(image_id)[name] for image_id in ids]))
            assert batch[name].flags.owndata
            assert batch[name].flags.writeable
        count += 1
    assert count == 6


def test_fields_of_a_batch_are_those_asked_for(shards: Path) -> None:
    batch = next(iter(shardwright.open(shards).fields("t5m.npy").batches(4)))
    assert sorted(batch) == ["__key__", "__state__", "bucket", "t5m.npy"]
    assert batch["t5m.npy"].shape == (4, 77)


def test_the_order_is_the_same_for_ever(shards: Path) -> None:
    dataset = shardwright.open(shards)
    assert order(dataset.batches(5, seed=7, epoch=2))[:2] == [
        ["img5", "img29", "img3", "img7", "img1"],
        ["img28", "img20", "img16", "img12", "img22"],
    ]


def test_epochs_and_seeds_have_orders_of_their_own(shards: Path) -> None:
    dataset = shardwright.open(shards)
    orders = [
        order(dataset.batches(5, seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert orders[0] == order(shardwright.open(shards).batches(5))
    assert all(orders[0] != other for other in orders[1:])
    buckets = [batch["bucket"] for batch in dataset.batches(1)]
    assert buckets != sorted(buckets)
    assert buckets != sorted(buckets, reverse=True)


def test_another_epoch_begins_at_its_first_batch(shards: Path) -> None:
    dataset = shardwright.open(shards)
    batches = dataset.batches(5)
    iterator = iter(batches)
    next(iterator)
    batches.set_epoch(3)
    assert order(batches) == order(dataset.batches(5, epoch=3))
    assert order(batches) == order(batches)


def test_any_batch_can_be_resumed_from(shards: Path) -> None:
    dataset = shardwright.open(shards)
    complete = list(dataset.batches(4, seed=3, epoch=1, rank=1, world_size=2))
    assert len(complete) == 3
    for number, batch in enumerate(complete):
        state = json.loads(json.dumps(batch["__state__"]))
        resumed = dataset.batches(4, seed=3, rank=1, world_size=2)
        resumed.load_state_dict(state)
        assert resumed.epoch == 1
        resumed.set_epoch(1)  # as a loop over epochs does
        assert resumed.state_dict() == state
        assert order(resumed) == order(complete[number + 1 :])


def test_the_state_tells_where_iterating_is(shards: Path) -> None:
    batches = shardwright.open(shards).batches(5)
    assert batches.state_dict()["batch"] == 0
    for batch in batches:
        assert batches.state_dict() == batch["__state__"]
    assert batches.state_dict()["batch"] == len(batches)


def test_a_state_of_other_batches_is_refused(shards: Path) -> None:
    dataset = shardwright.open(shards)
    state = dataset.batches(5).state_dict()
    with pytest.raises(shardwright.UsageError, match=r"other batches: batch_size was 5 and is 4; "):
        dataset.batches(4).load_state_dict(state)
    with pytest.raises(shardwright.UsageError, match="other batches: samples was"):
        dataset.bucket("64x64").batches(5).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:.*has no manifest")
@pytest.mark.parametrize("manifest", [True, False])
def test_a_state_of_another_packing_of_the_same_samples_is_refused(
    shards: Path, tmp_path: Path, manifest: bool
) -> None:
    options = {"derived_dir": shards.parent / "derived", "output_dir": tmp_path / "other"}
    shardwright.pack(**options, shard_size=4, shuffle=True, seed=1, workers=1)  # type: ignore[arg-type]
    shutil.copytree(shards, tmp_path / "same")
    if not manifest:
        shutil.rmtree(tmp_path / "other" / ".shardwright")
        shutil.rmtree(tmp_path / "same" / ".shardwright")
    state = shardwright.open(shards).batches(5).state_dict()
    shardwright.open(tmp_path / "same").batches(5).load_state_dict(state)
    with pytest.raises(shardwright.UsageError, match="other batches: samples was"):
        shardwright.open(tmp_path / "other").batches(5).load_state_dict(state)


def test_small_buckets_are_dropped_with_a_warning(shards: Path) -> None:
    dataset = shardwright.open(shards)
    with pytest.warns(
        UserWarning, match="batch_size 16: 15 in 96x64; small_buckets='keep'"
    ) as said:
        batches = dataset.batches(16)
    assert said[0].filename == __file__
    assert [batch["bucket"] for batch in batches] == ["64x64"]


def test_small_buckets_are_kept_as_short_batches_if_asked(shards: Path) -> None:
    batches = shardwright.open(shards).batches(16, small_buckets="keep")
    assert sorted(len(batch["image_id"]) for batch in batches) == [15, 16]


def test_small_buckets_are_refused_if_asked(shards: Path) -> None:
    with pytest.raises(shardwright.UsageError, match="fewer samples than batch_size 16: 15 in 96x"):
        shardwright.open(shards).batches(16, small_buckets="refuse")


def test_latents_of_several_shapes_are_refused_at_once(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", 6)
    store.save("vae", "img2", arrays(64, 72, 2)["vae"])
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards", workers=1)
    dataset = shardwright.open(tmp_path / "shards")
    with pytest.raises(shardwright.UsageError, match=r"64x64: 1 of 3 vae.npy differ .*--fit b"):
        dataset.batches(2)
    assert len(list(dataset.fields("t5h.npy").batches(3))) == 2


def test_latents_of_one_size_and_two_shapes_are_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", 2)
    store.change(1, aspect_bucket="64x64")
    store.save("vae", "img0", arrays(64, 96, 2)["vae"])
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards", workers=1)
    with pytest.raises(shardwright.UsageError, match=r"vae\.npy of the same bucket is float16"):
        list(shardwright.open(tmp_path / "shards").batches(2))


def test_senseless_arguments_are_refused(shards: Path) -> None:
    dataset = shardwright.open(shards)
    for arguments, message in (
        ({"batch_size": 0}, "batch_size is 0; give 1 or more"),
        ({"batch_size": 2, "rank": 2, "world_size": 2}, "rank 2 of world_size 2; ranks count from"),
        ({"batch_size": 2, "seed": -1}, "seed is -1; give 0 or more"),
        ({"batch_size": "2"}, "batch_size is '2'; give an integer"),
        ({"batch_size": 2, "epoch": 1.5}, "epoch is 1.5; give an integer"),
        ({"batch_size": 2, "small_buckets": "lose"}, "choose from drop, keep, refuse"),
        ({"batch_size": 8, "world_size": 4}, "too few samples for a batch of 8 on 4 ranks"),
    ):
        with pytest.raises(shardwright.UsageError, match=message):
            dataset.batches(**arguments)


@pytest.mark.filterwarnings("ignore:never used")
def test_too_large_batches_are_refused_with_what_helps(shards: Path) -> None:
    dataset = shardwright.open(shards)
    with pytest.raises(shardwright.UsageError, match="smaller batches, or small_buckets='keep'"):
        dataset.batches(100)
    assert len(dataset.batches(100, small_buckets="keep")) == 2
    with pytest.raises(shardwright.UsageError, match="smaller batches, or drop_last=False"):
        dataset.batches(12, world_size=4)
    assert len(dataset.batches(12, world_size=4, drop_last=False)) == 1


@pytest.mark.parametrize("epoch", ["1", -1, 1.5, None])
def test_senseless_epochs_are_refused(shards: Path, epoch: object) -> None:
    batches = shardwright.open(shards).batches(5)
    with pytest.raises(shardwright.UsageError, match=r"epoch is .*; give"):
        batches.set_epoch(epoch)  # type: ignore[arg-type]
    with pytest.raises(shardwright.UsageError, match=r"epoch is .*; give"):
        batches.load_state_dict(batches.state_dict() | {"epoch": epoch})
    assert batches.epoch == 0


@pytest.mark.parametrize("batch", [-1, 1.5, "1", None, 7])
def test_senseless_places_are_refused(shards: Path, batch: object) -> None:
    batches = shardwright.open(shards).batches(5)
    with pytest.raises(shardwright.UsageError, match=r"batch is .*; give|after batch 7, .* has 6"):
        batches.load_state_dict(batches.state_dict() | {"batch": batch})
    batches.load_state_dict(batches.state_dict() | {"batch": 6})
    assert list(batches) == []


def test_numbers_of_numpy_are_as_good(shards: Path) -> None:
    one = np.int64(1)
    batches = shardwright.open(shards).batches(np.int64(5), seed=one, epoch=one, world_size=one)  # type: ignore[arg-type]
    assert json.loads(json.dumps(batches.state_dict()))["batch_size"] == 5
    batches.set_epoch(np.int64(2))  # type: ignore[arg-type]
    assert json.loads(json.dumps(batches.state_dict()))["epoch"] == 2
    assert order(batches) == order(shardwright.open(shards).batches(5, seed=1, epoch=2))


cases = {
    "counts": st.lists(st.integers(1, 40), min_size=1, max_size=5),
    "batch_size": st.integers(1, 12),
    "world_size": st.integers(1, 5),
    "seed": st.integers(0, 2**64),
    "epoch": st.integers(0, 5),
}


def planned(
    counts: list[int], batch_size: int, world_size: int, seed: int, epoch: int, drop_last: bool
) -> tuple[list[list[int]], dict[int, int]]:
    """Plan an epoch; give its batches, and the bucket of each sample."""
    buckets, first = {}, 0
    for bucket, count in enumerate(counts):
        buckets[str(bucket)] = np.arange(first, first + count)
        first += count
    chosen = BatchSettings(batch_size, seed, world_size, drop_last, "keep", "")
    batches = [batch.tolist() for batch in plan(buckets, chosen, epoch, {})]
    return batches, {n: int(bucket) for bucket, ns in buckets.items() for n in ns.tolist()}


@given(**cases, drop_last=st.booleans())
@settings(deadline=None, max_examples=200)
def test_every_plan_is_fair(
    counts: list[int], batch_size: int, world_size: int, seed: int, epoch: int, drop_last: bool
) -> None:
    batches, bucket = planned(counts, batch_size, world_size, seed, epoch, drop_last)
    samples = [sample for batch in batches for sample in batch]
    assert len(samples) == len(set(samples)), "a sample comes twice"
    assert len(batches) % world_size == 0, "the ranks have not equally many"
    for batch in batches:
        assert len({bucket[sample] for sample in batch}) == 1
        small = counts[bucket[batch[0]]] < batch_size
        assert len(batch) == batch_size or (0 < len(batch) < batch_size and not drop_last) or small


@given(**cases)
@settings(deadline=None, max_examples=200)
def test_nothing_is_left_out_without_drop_last(
    counts: list[int], batch_size: int, world_size: int, seed: int, epoch: int
) -> None:
    batches, _ = planned(counts, batch_size, world_size, seed, epoch, drop_last=False)
    samples = sum(map(len, batches))
    if samples != sum(counts):  # only where even single samples cannot be dealt out evenly
        assert sum(counts) - samples < world_size
        assert all(len(batch) == 1 for batch in batches)


@given(**cases)
@settings(deadline=None, max_examples=200)
def test_drop_last_leaves_out_less_than_a_batch_a_bucket_and_a_rank(
    counts: list[int], batch_size: int, world_size: int, seed: int, epoch: int
) -> None:
    batches, _ = planned(counts, batch_size, world_size, seed, epoch, drop_last=True)
    complete = sum(max(1, count // batch_size) for count in counts)
    assert len(batches) == complete - complete % world_size


def test_ranks_have_different_samples_and_equally_many_batches(shards: Path) -> None:
    dataset = shardwright.open(shards)
    seen: list[str] = []
    for rank in range(3):
        batches: list[Batch] = list(dataset.batches(4, rank=rank, world_size=3))
        assert len(batches) == len(dataset.batches(4, rank=rank, world_size=3)) == 2
        seen += [image_id for batch in batches for image_id in batch["image_id"]]
    assert len(seen) == len(set(seen)) == 24


def test_a_program_that_ends_in_the_middle_of_an_epoch_prints_no_error(shards: Path) -> None:
    open_them = f"left = iter(shardwright.open({str(shards)!r}).batches(2))"
    code = f"import shardwright\n{open_them}\nnext(left)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
