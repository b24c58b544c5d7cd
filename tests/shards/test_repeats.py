"""Samples that come more or less often than once in an epoch."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright import Dataset
from shardwright.shards.reader.batches import BatchSettings, plan
from shardwright.shards.reader.repeats import Shares, draw_shares
from tests.shards.packed import file_order
from tests.store.small import arrays, small_store

SAMPLES = 31  # 16 of one bucket, 15 of the other
STYLES = ("drawing", "photo", None)
LEVELS = (1, 1.0, True, "1", [1, 2])


def style(image_id: str) -> str | None:
    return STYLES[int(image_id[3:]) % 3]


def level(image_id: str) -> Any:  # noqa: ANN401 - any JSON
    return LEVELS[int(image_id[3:]) % 5]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    store = small_store(root / "derived", SAMPLES)
    records = store.records()
    for record in records:
        record["level"] = level(record["image_id"])
        if style(record["image_id"]):
            record["style"] = style(record["image_id"])
    store.write(records)
    shardwright.pack(derived_dir=store.root, output_dir=root / "shards", shard_size=4, workers=1)
    return root / "shards"


@pytest.fixture
def dataset(shards: Path) -> Dataset:
    return shardwright.open(shards)


def order(batches: object) -> list[list[str]]:
    return [batch["image_id"] for batch in batches]  # type: ignore[attr-defined]


def counts(dataset: Dataset, *epochs: int, **options: Any) -> Counter[str]:  # noqa: ANN401
    """Count how often each image comes in some epochs, with nothing dropped."""
    found: Counter[str] = Counter()
    for epoch in epochs or (0,):
        for ids in order(dataset.batches(4, epoch=epoch, drop_last=False, **options)):
            found.update(ids)
    return found


def test_a_column_has_a_value_for_each_sample_in_file_order(dataset: Dataset) -> None:
    assert dataset.column("image_id") == file_order(SAMPLES)
    assert dataset.column("style") == list(map(style, file_order(SAMPLES)))
    levels = dataset.column("level")
    assert levels == list(map(level, file_order(SAMPLES)))
    truth = [
        image_id
        for image_id, value in zip(file_order(SAMPLES), levels, strict=True)
        if value is True
    ]
    assert truth == [image_id for image_id in file_order(SAMPLES) if level(image_id) is True]
    wide = dataset.bucket("96x64").fields("vae.npy")
    assert wide.column("style") == [style(f"img{number}") for number in range(1, SAMPLES, 2)]


def test_the_records_are_read_once(tmp_path: Path) -> None:
    shardwright.pack(
        derived_dir=small_store(tmp_path / "derived").root, output_dir=tmp_path / "out", workers=1
    )
    dataset = shardwright.open(tmp_path / "out")
    sizes = dataset.column("width")
    for shard in tmp_path.rglob("*.tar"):
        shard.unlink()
    assert dataset.column("width") == sizes == [64, 64, 96, 96]


def test_a_column_that_no_sample_has_is_refused_with_those_there_are(dataset: Dataset) -> None:
    there = "aspect_bucket, caption, .*, level, style, width$"
    with pytest.raises(shardwright.UsageError, match=f"column stile: no .* there are {there}"):
        dataset.column("stile")
    with pytest.raises(shardwright.UsageError, match="column stile: no sample has it"):
        dataset.batches(4, repeats={"style": {"photo": 2}, "stile": {"photo": 3}})


def test_a_value_of_a_column_decides_how_often_its_samples_come(dataset: Dataset) -> None:
    found = counts(dataset, repeats={"style": {"drawing": 3, "photo": 0}})
    times = {"drawing": 3, "photo": 0, None: 1}
    assert found == Counter({name: times[style(name)] for name in file_order(SAMPLES)})


def test_a_fraction_comes_in_its_share_of_the_epochs(dataset: Dataset) -> None:
    repeats = {"style": {"drawing": 2.5, "photo": 0.25, None: 0}}
    found = counts(dataset, *range(4), repeats=repeats)
    times = {"drawing": 10, "photo": 1, None: 0}
    assert found == Counter({name: times[style(name)] for name in file_order(SAMPLES)})
    assert set(counts(dataset, repeats=repeats).values()) == {1, 2, 3}


def test_columns_multiply(dataset: Dataset) -> None:
    found = counts(dataset, repeats={"style": {"drawing": 2}, "width": {64: 3, 96: 0.5}}, seed=4)
    for name in file_order(SAMPLES):
        wide, drawing = int(name[3:]) % 2, style(name) == "drawing"
        if wide and not drawing:
            assert found[name] in (0, 1)
        else:
            assert found[name] == (1 if wide else 3) * (2 if drawing and not wide else 1)


def test_values_are_compared_as_json(dataset: Dataset) -> None:
    for value, same in (
        (1, (0, 1)),
        (1.0, (0, 1)),
        (np.int64(1), (0, 1)),
        (True, (2,)),
        ("1", (3,)),
    ):
        found = counts(dataset, repeats={"level": {value: 0}})
        gone = {name for name in file_order(SAMPLES) if not found[name]}
        assert gone == {name for name in file_order(SAMPLES) if int(name[3:]) % 5 in same}


def test_numbers_for_each_sample_do_what_their_column_does(dataset: Dataset) -> None:
    times = {"drawing": 1.5, "photo": 0.0, None: 1.0}
    numbers = [times[value] for value in dataset.column("style")]
    by_column = dataset.batches(4, epoch=3, repeats={"style": {"drawing": 1.5, "photo": 0}})
    for given_ in (numbers, tuple(numbers), np.array(numbers), np.array(numbers, np.float32)):
        batches = dataset.batches(4, epoch=3, repeats=given_)
        assert order(batches) == order(by_column)
        batches.load_state_dict(by_column.state_dict())


def test_parts_of_a_dataset_repeat_their_own_samples(dataset: Dataset) -> None:
    wide = dataset.bucket("96x64")
    numbers = [2] + [0] * 10 + [1] * 4
    assert counts(wide, repeats=numbers) == {
        "img1": 2,
        **dict.fromkeys(wide.column("image_id")[11:], 1),
    }
    narrow = wide.fields("t5m.npy")
    keys = [key for batch in narrow.batches(2, repeats=numbers) for key in batch["__key__"]]
    assert sorted(keys) == ["img1", "img1", "img23", "img25", "img27", "img29"]


def test_once_each_is_the_order_without_repeats(dataset: Dataset) -> None:
    plain = dataset.batches(5, seed=7, epoch=2)
    assert order(dataset.batches(5, seed=7, epoch=2, repeats=[1] * SAMPLES)) == order(plain)
    assert list(plain.state_dict()) == [
        *("epoch", "batch", "batch_size", "seed", "world_size", "drop_last", "small_buckets"),
        "samples",
    ]


def test_the_order_of_repeats_is_the_same_for_ever(dataset: Dataset) -> None:
    repeats = {"style": {"drawing": 2.5, "photo": 0.5}}
    assert order(dataset.batches(5, seed=7, epoch=2, repeats=repeats))[:2] == [
        ["img5", "img29", "img21", "img15", "img3"],
        ["img23", "img25", "img27", "img17", "img3"],
    ]


def test_a_state_of_other_repeats_is_refused(dataset: Dataset) -> None:
    plain, double = dataset.batches(5), dataset.batches(5, repeats=[2] * SAMPLES)
    for batches, state in ((plain, double.state_dict()), (double, plain.state_dict())):
        with pytest.raises(shardwright.UsageError, match=r"other batches: repeats was \w+ and is"):
            batches.load_state_dict(state)


def test_ranks_share_the_plan_and_resume_anywhere(dataset: Dataset) -> None:
    options: dict[str, Any] = {"seed": 1, "repeats": np.linspace(0, 2, SAMPLES)}
    lengths = set()
    for epoch in range(6):
        complete = order(dataset.batches(3, epoch=epoch, drop_last=True, **options))
        ranks = [
            list(dataset.batches(3, epoch=epoch, rank=rank, world_size=3, **options))
            for rank in range(3)
        ]
        assert len({*map(len, ranks)}) == 1
        dealt = [ids for together in zip(*map(order, ranks), strict=True) for ids in together]
        assert dealt == complete[: len(complete) - len(complete) % 3]
        lengths.add(len(complete))
        for at, batch in enumerate(ranks[1]):
            resumed = dataset.batches(3, rank=1, world_size=3, **options)
            resumed.load_state_dict(json.loads(json.dumps(batch["__state__"])))
            assert (resumed.epoch, len(resumed)) == (epoch, len(ranks[1]))
            assert order(resumed) == order(ranks[1][at + 1 :])
    assert len(lengths) > 1, "the epochs have one length, so nothing was tested"


def test_repeats_decide_which_buckets_are_small(dataset: Dataset) -> None:
    wide = dataset.bucket("96x64")
    batches = wide.batches(30, repeats=[2] * 15)
    assert len(batches) == 1
    with pytest.warns(UserWarning, match="never used: .* batch_size 10: 7.5 in 96x64"):
        found = dataset.batches(10, repeats={"width": {96: 0.5}})
    assert {batch["bucket"] for batch in found} == {"64x64"}
    options: dict[str, Any] = {"small_buckets": "keep", "repeats": {"width": {96: 0.5}}}
    short = [len(ids) for ids in order(dataset.batches(10, **options)) if len(ids) < 10]
    assert short in ([7], [8])
    # A bucket that is left out on purpose is not reported.
    assert len(dataset.batches(16, repeats={"width": {96: 0}})) == 1


def test_left_out_samples_need_not_stack(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", 6)
    store.save("vae", "img2", arrays(64, 72, 2)["vae"])
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards", workers=1)
    dataset = shardwright.open(tmp_path / "shards")
    with pytest.raises(shardwright.UsageError, match=r"1 of 3 vae\.npy differ"):
        dataset.batches(2)
    assert counts(dataset, repeats={"image_id": {"img2": 0}})["img2"] == 0


def test_a_value_that_no_sample_has_is_refused_with_the_known_values(dataset: Dataset) -> None:
    with pytest.raises(shardwright.UsageError) as told:
        dataset.batches(4, repeats={"style": {"drawnig": 3}})
    what = "repeats of style: no sample has 'drawnig'; there are "
    assert str(told.value).startswith(what)
    known = str(told.value).removeprefix(what).split(", ")
    assert sorted(known) == sorted(map(repr, {*dataset.column("style")}))
    with pytest.raises(shardwright.UsageError) as told:
        dataset.batches(4, repeats={"image_id": {"nobody": 3}})
    assert str(told.value).endswith(f", {SAMPLES - 20} more")


@pytest.mark.parametrize(
    ("repeats", "message"),
    [
        ({"style": {"photo": -1}}, "^repeats of style, 'photo': -1; give a number from 0 to 1,000"),
        ({"style": {"photo": float("nan")}}, "^repeats of style, 'photo': nan; give"),
        ({"style": {"photo": float("inf")}}, "^repeats of style, 'photo': inf; give"),
        ({"style": {"photo": "2"}}, "^repeats of style: not numbers; give"),
        ({"style": 2}, "^repeats of style is 2; give a mapping of values to numbers"),
        ({"style": {"photo": 1e6}, "width": {64: 2}}, "^repeats, sample 2: 2e"),
        ({"style": {"photo": 0, "drawing": 0, None: 0}}, "^repeats leaves out every sample; give"),
        ([0] * SAMPLES, "^repeats leaves out every sample"),
        ([1] * 30, "^repeats has 30 numbers, but there are 31 samples; give one for each"),
        ([1] * 30 + [-0.5], "^repeats, sample 30: -0.5; give"),
        (["1"] * SAMPLES, "^repeats: not numbers"),
        ("drawing", "^repeats: not numbers"),
        (2, "^repeats: not numbers"),
    ],
)
def test_senseless_repeats_are_refused(dataset: Dataset, repeats: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(shardwright.UsageError, match=message):
        dataset.batches(4, repeats=repeats)


numbers = st.one_of(
    st.floats(0, 5, exclude_min=True), st.sampled_from([1.0, 2.0, 0.5, 0.1, 1 / 3, 2.5])
)


@given(
    repeats=st.lists(numbers, min_size=1, max_size=20),
    seed=st.integers(0, 2**64),
    first=st.one_of(st.integers(0, 50), st.integers(2**64 - 5, 2**64 + 5)),
    epochs=st.integers(1, 30),
)
@settings(deadline=None, max_examples=100)
def test_over_any_epochs_each_sample_gets_its_share(
    repeats: list[float], seed: int, first: int, epochs: int
) -> None:
    (shares,) = draw_shares({"": np.array(repeats)}, seed).values()
    found = sum(shares.times(epoch) for epoch in range(first, first + epochs))
    for times, number in zip(np.asarray(found).tolist(), repeats, strict=True):
        exact = Fraction(number) * epochs
        assert math.floor(exact) <= times <= math.ceil(exact)


@given(number=st.floats(0.01, 3), count=st.integers(1, 2000), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=50)
def test_epochs_are_about_equally_long(number: float, count: int, seed: int) -> None:
    shares = Shares(np.full(count, number), np.random.PCG64(seed))
    lengths = [int(shares.times(epoch).sum()) for epoch in range(20)]
    assert all(abs(length - shares.mean) < 5 for length in lengths)


@given(
    repeats=st.lists(st.lists(numbers, min_size=1, max_size=30), min_size=1, max_size=4),
    batch_size=st.integers(1, 12),
    world_size=st.integers(1, 4),
    epoch=st.integers(0, 9),
    drop_last=st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_a_plan_holds_every_sample_as_often_as_its_share(
    repeats: list[list[float]], batch_size: int, world_size: int, epoch: int, drop_last: bool
) -> None:
    split = {str(at): np.array(part) for at, part in enumerate(repeats)}
    firsts = np.cumsum([0, *map(len, repeats)]).tolist()
    buckets = {
        name: np.arange(first, first + len(part))
        for (name, part), first in zip(split.items(), firsts, strict=False)
    }
    shares = draw_shares(split, 0)
    chosen = BatchSettings(batch_size, 0, world_size, drop_last, "keep", "")
    batches = [batch.tolist() for batch in plan(buckets, chosen, epoch, shares)]
    assert len(batches) % world_size == 0
    wanted: Counter[int] = Counter()
    for name, numbers_ in buckets.items():
        wanted.update(dict(zip(numbers_.tolist(), shares[name].times(epoch).tolist(), strict=True)))
    found = Counter(sample for batch in batches for sample in batch)
    missing = wanted.total() - found.total()
    assert found <= wanted
    if drop_last:
        assert missing < (len(buckets) + world_size) * batch_size
    else:
        assert missing < world_size
    assert all(
        sum(bool({*batch} & {*part.tolist()}) for part in buckets.values()) == 1
        for batch in batches
    )


@given(times=st.integers(1, 6), count=st.integers(2, 40), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_copies_of_a_sample_are_in_different_batches(times: int, count: int, seed: int) -> None:
    (shares,) = draw_shares({"": np.full(count, float(times))}, seed).values()
    chosen = BatchSettings(count, seed, 1, False, "keep", "")
    for batch in plan({"": np.arange(count)}, chosen, 0, {"": shares}):
        assert sorted(batch.tolist()) == list(range(count))
