"""The order of the work: full batches of one shape, and records in the order of the images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks import mixed
from shardwright.deriving.pipeline import Order
from shardwright.deriving.prepare import Sample
from shardwright.deriving.sources import Source
from shardwright.recipes import SPECIFICATION
from tests.derive.encoders.models import make_vae
from tests.derive.fakes import VAE, Fake, given
from tests.derive.pictures import gradient, save, sketch, store_records
from tests.faults import contents


def samples(count: int) -> list[Sample]:
    return [
        Sample(Source(str(n), f"{n}.jpg", False), (), None, None, [], False, {}, {})
        for n in range(count)
    ]


def place(sample: Sample) -> int:
    return int(sample.source.image_id)


@drawn(
    st.lists(st.integers(0, 5), max_size=60),
    st.integers(1, 9),
    st.lists(st.floats(0, 3), min_size=1, max_size=9),
)
def test_every_sample_is_given_once_with_its_like_and_the_oldest_first(
    shapes: list[int], size: int, rates: list[float]
) -> None:
    everyone = samples(len(shapes))
    order = Order(iter(everyone), lambda sample: shapes[place(sample)])
    left = list(range(len(shapes)))
    most, early = 32, 0
    turns: list[Sample] = []
    while crew := order.crew(size):
        places = [place(sample) for sample in crew]
        assert places == [n for n in left if shapes[n] == shapes[left[0]]][: len(crew)]
        assert len(crew) <= size
        left = [n for n in left if n not in places]
        before, early = early, len(shapes) - len(left) - (left[0] if left else len(shapes))
        assert early <= max(before, most), "made before their turn"
        for sample in crew:
            sample.made = {}
        turns += order.finish(crew)
        assert [*map(place, turns)] == list(range(left[0] if left else len(shapes)))
        rate = rates[len(turns) % len(rates)]
        order.adapt(rate)
        most = int(20 * rate)
    assert not left


def test_what_waits_for_its_turn_takes_a_bounded_room() -> None:
    """Every second sample is of one shape, and each stores 200 MB: five fit into 1 GiB."""
    everyone = samples(100)
    order = Order(iter(everyone), lambda sample: place(sample) % 2)
    first = order.crew(1)
    first[0].made = {VAE: np.broadcast_to(np.uint8(0), 200_000_000)}
    order.finish(first)
    order.adapt(1000)
    assert [*map(place, order.crew(50))] == [1, 3, 5, 7, 9, 11]


def test_a_sample_that_is_missing_holds_back_those_after_it() -> None:
    order = Order(iter(samples(4)), lambda _: None)
    crew = order.crew(4)
    for number in (0, 2, 3):
        crew[number].made = {}
    assert [*map(place, order.finish(crew))] == [0]
    crew[1].made = {}
    assert [*map(place, order.finish(crew[1:2]))] == [1, 2, 3]


def test_no_sample_waits_for_one_that_is_more_than_512_away() -> None:
    shapes = [0, *[1] * 511, 0, 0]
    order = Order(iter(samples(len(shapes))), lambda sample: shapes[place(sample)])
    assert [*map(place, order.crew(8))] == [0]


@pytest.mark.parametrize(("fit", "least"), [("original", 3), ("bucket", 7.5)])
def test_400_mixed_sizes_fill_batches_of_8(fit: str, least: float) -> None:
    sizes = mixed.sizes()
    divided = [(width // 8, height // 8) for width, height in sizes]
    buckets = [SPECIFICATION.bucket_for(*size) for size in sizes]
    shapes: list[Any] = list(divided if fit == "original" else buckets)
    order = Order(iter(samples(400)), lambda sample: shapes[place(sample)])
    crews = [order.crew(8), order.crew(8)]
    order.adapt(20)
    while crew := order.crew(8):
        crews.append(crew)
    assert 400 / len(crews) >= least


class Latents(Fake):
    """Makes latents of the right shape, and counts its batches."""

    def __init__(self) -> None:
        super().__init__(VAE)
        self.shapes: list[tuple[int, ...]] = []

    def prepare(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        return picture

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        self.batches.append(len(batch))
        shape = self.component.shape_for(batch.shape[2], batch.shape[1])
        return np.broadcast_to(batch[:, :1, :1, :1] / 8, (len(batch), *shape)).astype(np.float32)


def test_pictures_of_one_size_share_batches_and_records_keep_the_order(tmp_path: Path) -> None:
    """One odd size and a broken file among pictures of three sizes that take turns."""
    images = tmp_path / "images"
    for number in range(24):
        size = ((24, 16), (16, 24), (16, 16))[number % 3] if number != 4 else (40, 16)
        save(images / f"{number:03}.png", np.full((*size[::-1], 3), number, np.uint8))
        (images / f"{number:03}.txt").write_text(f"number {number}")
    (images / "010.png").write_bytes(b"broken")
    latents = Latents()
    summary = sketch(images, tmp_path / "derived", encoders=given(vae=latents), batch_size=8)
    assert latents.batches[0] == 1, "the trial"
    assert sorted(latents.batches[1:]) == [1, 6, 8, 8]
    assert summary.components["vae"].batch_fill == 23 / 4 == 5.75
    assert summary.components["t5"].batch_fill >= 23 / 4
    ids = [record["image_id"] for record in store_records(tmp_path / "derived")]
    assert ids == [f"{number:03}" for number in range(24) if number != 10]
    for image_id in ids:
        array = np.load(tmp_path / "derived/vae_latents" / f"{image_id}.npy")
        assert (array == int(image_id) / 8).all()


def test_batches_of_one_and_of_eight_make_the_same_store_with_sketches(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for number in range(20):
        width, height = ((24, 16), (16, 24), (32, 16), (16, 16))[number * 7 % 4]
        save(images / f"{number:03}.png", gradient(width, height, number))
        (images / f"{number:03}.txt").write_text(f"number {number}")
    for size in (1, 8):
        sketch(images, tmp_path / str(size), batch_size=size)
    assert contents(tmp_path / "1") == contents(tmp_path / "8")


def test_latents_of_batches_of_one_and_of_eight_differ_by_rounding_only(tmp_path: Path) -> None:
    """By one unit in the last place of the largest value, at most."""
    images = tmp_path / "images"
    for number in range(16):
        width, height = ((96, 64), (64, 96))[number % 2]
        save(images / f"{number:03}.png", gradient(width, height, number))
        (images / f"{number:03}.txt").write_text(f"number {number}")
    model = {"vae": make_vae(tmp_path / "vae", width=64)}
    for size in (1, 8):
        made = sketch(
            images,
            tmp_path / str(size),
            components=["vae"],
            encoders=None,
            model=model,
            batch_size=size,
        )
        assert made.components["vae"].batch_fill == size
    for path in (tmp_path / "1/vae_latents").glob("*.npy"):
        alone, together = np.load(path), np.load(tmp_path / "8/vae_latents" / path.name)
        unit = float(np.spacing(np.abs(alone).max()))
        assert np.abs(alone.astype(np.float64) - together).max() <= unit


def test_no_header_is_read_where_nothing_follows_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    for number in range(4):
        save(images / f"{number}.png", gradient(16 + 8 * number, 16))
        (images / f"{number}.txt").write_text("a picture")
    monkeypatch.setattr("shardwright.deriving.images.measure", None)
    summary = sketch(images, tmp_path / "derived", components=["dinov3", "t5"])
    assert summary.failed == 0
    assert summary.components["dinov3"].batch_fill == 4
