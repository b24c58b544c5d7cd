"""Batches by the memory there is, and a warning where a CPU cannot do what it is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardwright.deriving import machine
from shardwright.progress import Lines
from tests.derive.fakes import Fake, given
from tests.derive.pictures import make_images, sketch

GB = 10**9
PICTURE = 1024 * 1024 * 3  # numbers


@pytest.mark.parametrize(
    ("device", "free", "pictures"),
    [
        ("cpu", 2 * GB, 0),  # the batcher encodes one all the same
        ("cpu", 8 * GB, 0),
        ("cpu", 16 * GB, 1),
        ("cpu", 23 * GB, 2),
        ("cpu", 128 * GB, 12),
        ("mps", 16 * GB, 1),
        ("cuda", 2 * GB, 0),
        ("cuda:1", 16 * GB, 6),
        ("cuda", 80 * GB, 30),
    ],
)
def test_the_room_for_pictures_follows_from_device_and_memory(
    device: str, free: int, pictures: int
) -> None:
    assert machine.room(device, free, 840) // PICTURE == pictures


@pytest.mark.parametrize(
    ("limits", "free"),
    [
        ({}, 4096_000),
        ({"memory.max": "max\n"}, 4096_000),
        ({"memory.max": "5000000\n"}, 4096_000),
        ({"memory.max": "3000000\n"}, 3_000_000),
        ({"memory.limit_in_bytes": "2000000\n"}, 2_000_000),
    ],
)
def test_the_limit_of_a_container_counts_where_it_is_less_than_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], free: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    assert machine.free_memory("cpu") == free


class Hungry(Fake):
    """Says that one picture takes as much memory as there is."""

    bytes_per_number = 1 << 50


def test_where_linux_does_not_report_memory_a_part_of_all_there_is_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.free_memory("cpu") == machine.free_memory("mps") == installed
    images, hungry = make_images(tmp_path / "images", 2), Hungry()
    sketch(images, tmp_path / "derived", encoders=given(dinov3=hungry))
    assert hungry.batches == [1] * 3, "the trial, and each alone"


def test_an_encoder_that_needs_all_memory_gets_one_picture_at_a_time(tmp_path: Path) -> None:
    images, hungry = make_images(tmp_path / "images", 9), Hungry()
    sketch(images, tmp_path / "derived", encoders=given(dinov3=hungry))
    assert hungry.batches == [1] * 10, "the trial, and each alone"


def test_the_size_asked_for_goes_before_what_seems_to_fit(tmp_path: Path) -> None:
    images, hungry = make_images(tmp_path / "images", 4), Hungry()
    sketch(images, tmp_path / "derived", encoders=given(dinov3=hungry), batch_size=4)
    assert hungry.batches == [1, 4]


def test_an_encoder_that_says_nothing_of_memory_gets_eight(tmp_path: Path) -> None:
    images, fake = make_images(tmp_path / "images", 8), Fake()
    sketch(images, tmp_path / "derived", encoders=given(dinov3=fake))
    assert fake.batches == [1, 8]


@pytest.mark.parametrize(
    ("flags", "device", "dtype", "warned"),
    [
        ("fpu avx2 avx512f", "cpu", "bfloat16", True),
        ("fpu avx2 avx512f", "cpu", "float32", False),
        ("fpu avx2 avx512f", "cuda", "bfloat16", False),
        ("fpu avx512f avx512_bf16", "cpu", "bfloat16", False),
        ("fpu amx_bf16", "cpu", "bfloat16", False),
        ("fp asimd bf16", "cpu", "bfloat16", False),
        ("", "cpu", "bfloat16", False),  # nobody knows
    ],
)
def test_bfloat16_on_a_cpu_without_it_is_warned_of_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: str,
    device: str,
    dtype: str,
    warned: bool,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n" if flags else "")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    fake = Fake(dtype=dtype)
    fake.device = device
    images = make_images(tmp_path / "images", 1)
    sketch(images, tmp_path / "derived", encoders=given(dinov3=fake), progress=Lines())
    line = (
        "warning: dinov3: this CPU has no bfloat16 instructions, so it is up to 150 times slower. "
        "Use --dtype float32\n"
    )
    assert capsys.readouterr().err.count(line) == (1 if warned else 0)
