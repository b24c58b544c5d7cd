"""A trial derives a few images, keeps them, and forecasts what the others take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.deriving import derive
from shardwright.errors import UsageError
from shardwright.layout import JSONL_NAME
from shardwright.recipes import SPECIFICATION
from shardwright.storage.local import LocalPlace
from tests.commands import run
from tests.derive.fakes import Fake, given
from tests.derive.pictures import make_images, sketch, store_records
from tests.faults import contents

DINO, VAE, T5 = SPECIFICATION.components


class Slow(Fake):
    """Takes a known time for each picture, as a device of its own."""

    device = "cuda:7"

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        time.sleep(0.05 * len(batch))
        return super().encode(batch)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 10)


def test_a_trial_keeps_what_it_made_and_the_run_after_it_ends_as_one_without(
    images: Path, tmp_path: Path
) -> None:
    sketch(images, tmp_path / "at_once")
    summary = sketch(images, tmp_path / "tried", trial=4)
    assert (summary.derived, summary.already_complete) == (4, 0)
    assert summary.trial is not None
    assert (summary.trial.images, summary.trial.left) == (4, 6)
    assert [r["image_id"] for r in store_records(tmp_path / "tried")] == [
        f"img{number:03}" for number in range(4)
    ]
    summary = sketch(images, tmp_path / "tried")
    assert (summary.derived, summary.already_complete, summary.trial) == (6, 4, None)
    for folder in (JSONL_NAME, *(c.folder for c in SPECIFICATION.components)):
        assert contents(tmp_path / "tried" / folder) == contents(tmp_path / "at_once" / folder)


def test_the_forecast_follows_from_the_time_each_image_took(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwright.deriving.machine.peak_memory", {"cpu": 7, "cuda:7": 9}.get)
    summary = derive(images, derived_dir=tmp_path / "store", encoders=given(dinov3=Slow()), trial=2)
    trial = summary.trial
    assert trial is not None
    assert trial.encode["dinov3"] >= 0.05
    assert trial.read > 0
    assert trial.memory == {"cpu": 7, "cuda:7": 9}
    assert trial.seconds_left >= 8 * 0.05, "the device bounds the rate"
    written = sum(part.bytes_written for part in summary.components.values())
    assert trial.bytes_left == pytest.approx(4 * written, rel=0.2), "8 more images after 2"


def test_a_trial_of_as_many_images_as_there_are_is_a_run(images: Path, tmp_path: Path) -> None:
    summary = sketch(images, tmp_path / "store", trial=99)
    assert summary.derived == 10
    assert summary.trial is not None
    assert (summary.trial.left, summary.trial.seconds_left, summary.trial.bytes_left) == (0, 0, 0)
    assert sketch(images, tmp_path / "store", trial=3).trial is None, "nothing is left to try"


def test_a_trial_of_a_recompute_leaves_the_old_arrays_in_use(images: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    sketch(images, store)
    before = contents(store / VAE.folder)
    summary = sketch(images, store, recompute=["vae"], fit="bucket", trial=3)
    assert (summary.swapped, summary.unfinished) == ([], ["vae"])
    assert contents(store / VAE.folder) == before
    summary = sketch(images, store, recompute=["vae"], fit="bucket")
    assert (summary.derived, summary.swapped) == (7, ["vae"])
    assert contents(store / VAE.folder) != before


def test_a_trial_says_what_the_others_take_and_how_to_go_on(images: Path, tmp_path: Path) -> None:
    done = run("derive", images, "--derived-dir", tmp_path / "s", "--encoders", "sketch",
               "--trial", "4")  # fmt: skip
    assert done.returncode == 0
    assert "trial of 4 images, kept in the store" in done.stdout
    assert "encode vae" in done.stdout
    assert "the other 6 images: about " in done.stdout
    assert "run the same command without --trial" in done.stdout
    told = run("derive", images, "--derived-dir", tmp_path / "s", "--trial", "1", "--json")
    assert json.loads(told.stdout)["trial"]["left"] == 5


def test_a_trial_keeps_the_failures_of_images_that_it_did_not_try(
    images: Path, tmp_path: Path
) -> None:
    (images / "img009.png").write_bytes(b"broken")
    sketch(images, tmp_path / "store", components=["dinov3"])
    for kept in ("img000", "img001"):
        (tmp_path / "store" / DINO.folder / f"{kept}.npy").unlink()
    sketch(images, tmp_path / "store", components=["dinov3"], trial=1)
    lines = (tmp_path / "store/.shardwright/failures.jsonl").read_text().splitlines()
    assert [json.loads(line)["image_id"] for line in lines] == ["img009"]


def test_a_trial_of_images_that_all_fail_forecasts_nothing(images: Path, tmp_path: Path) -> None:
    for number in range(2):
        (images / f"img{number:03}.png").write_bytes(b"broken")
    done = run("derive", images, "--derived-dir", tmp_path / "s", "--encoders", "sketch",
               "--trial", "2")  # fmt: skip
    assert done.returncode == 3
    assert "no image could be derived, so nothing was measured" in done.stdout
    assert "the other" not in done.stdout
    summary = sketch(images, tmp_path / "s", trial=3)
    assert summary.trial is not None
    assert (summary.derived, summary.trial.images, summary.trial.left) == (1, 1, 7)


@pytest.mark.parametrize("flag", ["dry_run", "drop_failed"])
def test_a_trial_is_refused_together_with(flag: str, images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--trial with --"):
        sketch(images, tmp_path / "store", trial=2, **{flag: True})
    assert not (tmp_path / "store").exists()


def test_a_trial_on_a_disk_that_is_too_small_for_all_says_so(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPlace, "free_bytes", lambda _: 1)
    summary = sketch(images, tmp_path / "store", trial=2)
    assert summary.derived == 2
    assert summary.trial is not None
    assert summary.trial.bytes_left > summary.free_bytes
    assert np.load(tmp_path / "store" / VAE.folder / "img000.npy").any()
