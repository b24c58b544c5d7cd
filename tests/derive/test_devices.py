"""Derive on several devices makes the store that one makes, whatever becomes of its workers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import DeriveSummary, Progress, ShardwrightError, UsageError, derive
from shardwright.deriving import request
from shardwright.encoders import devices
from shardwright.encoders.base import device_names
from shardwright.engine import DeviceLostError
from shardwright.store.store import Store
from tests.commands import children, run
from tests.derive.fallible import DEADLY, MARK, RECIPE
from tests.derive.pictures import gradient, make_images, save, sketch, store_records
from tests.faults import contents

pytestmark = pytest.mark.timeout(600)

GONE = "cpu is gone (CUDA error: uncorrectable ECC error encountered)"
ROOT = Path(__file__).parents[2]
KILLED = (
    "the worker on cpu was killed (signal 9): most often memory runs out; use a smaller "
    "--batch-size or fewer devices"
)


class Warned(Progress):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(autouse=True)
def _no_children_stay() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert children(os.getpid()) == before


def test_two_devices_make_the_store_of_one(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 40)
    one = sketch(images, tmp_path / "one", device="cpu")
    two = sketch(images, tmp_path / "two", device="cpu:2", batch_size=3)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert (one.derived, two.derived) == (40, 40)
    assert (one.device, two.device) == ("cpu", "cpu:2")
    assert sketch(images, tmp_path / "two", device="cpu:3").already_complete == 40
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_two_devices_fail_at_the_images_at_which_one_does(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 24)
    for number in (0, 5, 6, 23):
        path = images / f"img{number:03}.png"
        path.write_bytes(path.read_bytes()[: 90 * (number % 2)])
    for name, device in (("one", "cpu"), ("two", "cpu:2")):
        summary = sketch(images, tmp_path / name, device=device)
        assert (summary.derived, summary.failed) == (20, 4)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": ["vae", "t5"], "fit": "bucket"},
        {"update": True},
        {"captions": "captions.csv", "update": True},
        {"components": ["dinov3"]},
        {"trial": 4},
    ],
    ids=["recompute", "update", "captions", "components", "trial"],
)
def test_two_devices_change_a_store_as_one_does(options: dict[str, Any], tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 8)
    sketch(images, tmp_path / "one", device="cpu")
    for number in (2, 5):
        save(images / f"img{number:03}.png", gradient(64, 64, seed=90 + number))
    make_images(images / "more", 4)
    for number, path in enumerate(sorted((images / "more").iterdir())):
        path.rename(images / f"new{number // 2}{path.suffix}")
    (images / "more").rmdir()
    if "captions" in options:
        options = {**options, "captions": tmp_path / "captions.csv"}
        options["captions"].write_text("file_name,text\nimg001.png,another caption\n")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name, device in (("one", "cpu"), ("two", "cpu:2")):
        summary = sketch(images, tmp_path / name, device=device, **options)
        assert summary.derived
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_a_dry_run_for_two_devices_starts_none_and_writes_nothing(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    summary = sketch(images, tmp_path / "derived", device="cpu:2", dry_run=True)
    assert (summary.derived, summary.device) == (3, "cpu:2")
    assert not (tmp_path / "derived").exists()


def plain(folder: Path, count: int, *deadly: int) -> Path:
    """Make pictures of one colour each, whose red is their number, from 100; some are deadly."""
    for number in range(count):
        red = DEADLY if number in deadly else 100 + number
        save(folder / f"img{number:03}.png", np.full((16, 16, 3), red, np.uint8))
        (folder / f"img{number:03}.txt").write_text("plain")
    return folder


def own(folder: Path, encoder: str, images: Path, **options: Any) -> DeriveSummary:  # noqa: ANN401
    """Derive with an encoder that worker processes import."""
    recipe = folder / "own.toml"
    recipe.write_text(RECIPE.format(encoder=encoder))
    defaults = {"device": "cpu:2", "encoders": "pretrained", "derived_dir": folder / "derived"}
    return derive(images, recipe=recipe, **{**defaults, **options})


def assert_complete(derived: Path, numbers: set[int]) -> None:
    """The store has these images, in their order, with the right arrays and no other file."""
    ids = [f"img{number:03}" for number in sorted(numbers)]
    assert [record["image_id"] for record in store_records(derived)] == ids
    (mine,) = Store.at(derived).recipe.components
    for number, image_id in zip(sorted(numbers), ids, strict=True):
        array = np.load(Store.at(derived).array(mine, image_id))
        assert array[0] in (100 + number, DEADLY)
    assert len(list(derived.rglob("*.npy"))) == len(ids)
    assert not list(derived.rglob("*.tmp"))


def test_a_picture_that_kills_its_worker_fails_with_few_others(tmp_path: Path) -> None:
    images, warned = plain(tmp_path / "images", 60, 31), Warned()
    summary = own(tmp_path, "Deadly", images, progress=warned)
    failed = {failure["image_id"]: failure for failure in failures(tmp_path / "derived")}
    assert "img031" in failed
    assert len(failed) <= 8
    assert {(f["reason"], f["detail"]) for f in failed.values()} == {("worker_died", KILLED)}
    assert (summary.derived, summary.failed) == (60 - len(failed), len(failed))
    assert_complete(tmp_path / "derived", set(range(60)) - {int(name[3:]) for name in failed})
    *first, last = warned.texts
    assert set(first) == {f"{KILLED}; its images are tried again, one at a time"}
    assert last == f"{KILLED}; the images it was working on fail"
    # They are tried again by the next run.
    words = ("derive", images, "--recipe", tmp_path / "own.toml", "--device", "cpu:2")
    done = run(*words, "--derived-dir", tmp_path / "derived", PYTHONPATH=str(ROOT))
    assert done.returncode == 3, done.stderr
    assert KILLED in done.stderr
    left = {failure["image_id"] for failure in failures(tmp_path / "derived")}
    assert left <= failed.keys()


def failures(derived: Path) -> list[dict[str, str]]:
    text = (derived / ".shardwright/failures.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_death_is_not_blamed_on_a_group_that_was_encoded_beside_another(tmp_path: Path) -> None:
    images = plain(tmp_path / "images", 24, 4, 5, 9)  # in groups of one
    summary = own(tmp_path, "Deadly", images)
    failed = {failure["image_id"] for failure in failures(tmp_path / "derived")}
    assert failed == {"img004", "img005", "img009"}
    assert (summary.derived, summary.failed) == (21, 3)
    assert_complete(tmp_path / "derived", set(range(24)) - {4, 5, 9})


def test_a_worker_that_is_killed_once_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    images, warned = plain(tmp_path / "images", 24, *range(4, 20)), Warned()
    summary = own(tmp_path, "Crashing", images, progress=warned)
    assert (summary.derived, summary.failed) == (24, 0)
    assert warned.texts == [f"{KILLED}; its images are tried again, one at a time"]
    assert_complete(tmp_path / "derived", set(range(24)))
    own(tmp_path, "Crashing", images, device="cpu", derived_dir=tmp_path / "one")
    assert contents(tmp_path / "derived") == contents(tmp_path / "one")


def test_others_go_on_when_a_device_disappears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    images, warned = plain(tmp_path / "images", 24, *range(4, 20)), Warned()
    summary = own(tmp_path, "Lost", images, progress=warned)
    assert (summary.derived, summary.failed) == (24, 0)
    assert warned.texts == [f"{GONE}; going on with 1 other device"]
    assert_complete(tmp_path / "derived", set(range(24)))


def test_a_device_lost_in_the_middle_of_a_group_leaves_no_sample_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    images = plain(tmp_path / "images", 130, 5, 13, 21)  # in groups of eight
    summary = own(tmp_path, "Lost", images, batch_size=1)
    assert (summary.derived, summary.failed) == (130, 0)
    assert_complete(tmp_path / "derived", set(range(130)))


@pytest.mark.parametrize("device", ["cpu", "cpu:2"])
def test_when_no_device_is_left_the_run_ends_with_the_fix_and_keeps_what_is_made(
    device: str, tmp_path: Path
) -> None:
    images = plain(tmp_path / "images", 40, 30)
    with pytest.raises(ShardwrightError) as caught:
        own(tmp_path, "AllLost", images, device=device)
    assert str(caught.value) == (
        f"{GONE}, and no other device is left for its work; check the devices of this machine, "
        "then run the same command again"
    )
    derived = tmp_path / "derived"
    made = {int(record["image_id"][3:]) for record in store_records(derived)}
    assert made == set(range(len(made)))
    assert_complete(derived, made)
    images = plain(tmp_path / "images", 40)
    assert own(tmp_path, "AllLost", images, device=device).derived == 40 - len(made)
    assert_complete(derived, set(range(40)))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously",
        "CUDA error: device-side assert triggered",
        "CUDA error: no CUDA-capable device is detected",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: unknown error",
        "CUDA error: an illegal memory access was encountered",
        "cuDNN failed: unspecified launch failure",
    ],
)
@pytest.mark.parametrize("kind", ["RuntimeError", "AcceleratorError"])
def test_an_error_of_a_lost_device_is_told_from_others(kind: str, text: str) -> None:
    torch = pytest.importorskip("torch")
    error = getattr(torch, kind, RuntimeError)(text)
    with pytest.raises(DeviceLostError) as caught:
        devices.guard(lambda: raised(error))
    assert str(caught.value) == text.splitlines()[0]
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA error: out of memory", MemoryError),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", MemoryError),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemm", RuntimeError),
        ("CUDA error: no kernel image is available for execution on the device", RuntimeError),
        ("CUDA error: invalid configuration argument", RuntimeError),
        ("mat1 and mat2 shapes cannot be multiplied", RuntimeError),
    ],
)
def test_other_errors_of_a_device_are_not_its_loss(text: str, expected: type[Exception]) -> None:
    pytest.importorskip("torch")
    with pytest.raises(expected, match=text[:30]):
        devices.guard(lambda: raised(RuntimeError(text)))


def raised(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("auto", ("auto",)),
        ("cpu", ("cpu",)),
        ("cpu:1", ("cpu",)),
        ("cpu:3", ("cpu", "cpu", "cpu")),
        ("cuda", ("cuda",)),
        ("cuda:1", ("cuda:1",)),
        ("cuda:0,cuda:2", ("cuda:0", "cuda:2")),
        ("cuda:2, cuda:0", ("cuda:2", "cuda:0")),
        ("mps", ("mps",)),
    ],
)
def test_devices_are_read_as_they_are_given(text: str, names: tuple[str, ...]) -> None:
    assert device_names(text) == names


@pytest.mark.parametrize(
    "text", ["cuda:0,cuda:0", "cuda,cuda:1", "cuda:0,cpu", "cpu,cpu", "cpu:2,cpu:2", "auto,cuda:0"]
)
def test_devices_that_are_repeated_or_mixed_are_refused_with_the_fix(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        device_names(text)
    assert str(caught.value) == (
        f"--device {text}: not several different devices of one kind; give for example "
        "cuda:0,cuda:2, or cpu:4 for 4 processes"
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [("cpu:0", "cpu:0"), ("cpu:-1", "cpu:-1"), ("cuda:0,", ""), ("gpu", "gpu"), ("cpu:²", "cpu:²")],
)
def test_devices_that_do_not_exist_are_refused_with_the_fix(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        device_names(text)
    assert str(caught.value) == (
        f"--device {word}: unknown; choose from auto, cpu, cpu:N, cuda, cuda:N and mps"
    )


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [((), ("auto",)), (("cuda:0",), ("auto",)), (("cuda:0", "cuda:1"), ("cuda:0", "cuda:1"))],
)
def test_auto_is_every_gpu_if_there_are_several(
    gpus: tuple[str, ...],
    expected: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "every_gpu", lambda: gpus)
    components = Store.at(tmp_path).recipe.components
    assert request.all_devices(("auto",), "pretrained", components) == expected
    assert request.all_devices(("cuda:1",), "pretrained", components) == ("cuda:1",)
    assert request.all_devices(("auto",), "sketch", components) == ("auto",)
    assert request.all_devices(("auto",), "pretrained", ()) == ("auto",)
