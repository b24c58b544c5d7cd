"""Runs that are cut short: the next one ends in the same bytes as one that never was."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import NoSpaceError
from shardwright.files import Disk, using
from shardwright.schema import JSONL_NAME
from tests.commands import run, start, wait_until
from tests.derive.pictures import make_images, sketch, store_records
from tests.faults import Counting, FailsAt, FullFrom, Killed, KilledAt, contents

SMALL = ((24, 16), (16, 24), (16, 16))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough pictures for a run to be caught at work, with one that is broken among them."""
    folder = make_images(
        tmp_path_factory.mktemp("pictures") / "images", 60, ((512, 384), (384, 512))
    )
    (folder / "img007.png").write_bytes(b"broken")
    return folder


@pytest.fixture(scope="module")
def unbroken(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | None]:
    """What a run leaves behind that nobody disturbed."""
    derived = tmp_path_factory.mktemp("unbroken") / "derived"
    sketch(images, derived)
    return contents(derived)


def arrays(derived: Path) -> int:
    folder = derived / "t5_hidden"
    return sum(path.suffix == ".npy" for path in folder.iterdir()) if folder.is_dir() else 0


def cut_short(disk: Disk, images: Path, derived: Path, **options: Any) -> bool:  # noqa: ANN401
    """Derive on a disk that fails; say whether it did before the run was through.

    Groups are as large as the threads happen to make them, so no two runs have the same calls.
    """
    try:
        with using(disk):
            sketch(images, derived, **options)
    except (Killed, NoSpaceError):
        return True
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_scenario_graceful_shutdown_merges_temporary_file(
    tmp_path: Path,
    images: Path,
    unbroken: dict[str, bytes | None],
    number: signal.Signals,
    code: int,
) -> None:
    derived = tmp_path / "derived"
    command = (
        "derive",
        images,
        "--derived-dir",
        derived,
        "--encoders",
        "sketch",
        "--batch-size",
        "2",
    )
    process = start(*command)
    wait_until(lambda: arrays(derived) > 4)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not list(derived.glob("*.tmp")), "merged and deleted"
    kept = store_records(derived)
    assert 0 < len(kept) < 59
    for record in kept:
        for folder in ("dinov3", "vae_latents", "t5_hidden"):
            assert (derived / folder / f"{record['image_id']}.npy").is_file()
    done = run(*command, "--json")
    assert done.returncode == 3, done.stderr
    assert contents(derived) == unbroken


def test_scenario_updates_are_written_to_temporary_file_first(tmp_path: Path, images: Path) -> None:
    derived = tmp_path / "derived"
    sketch(make_images(tmp_path / "first", 1), derived)
    # Renamed, as the ids of the first image and of one of the others would be the same.
    (derived / JSONL_NAME).write_text('{"image_id":"before","caption":"x"}\n')
    for path in derived.rglob("*.npy"):
        path.unlink()
    before = (derived / JSONL_NAME).read_bytes()
    process = start("derive", images, "--derived-dir", derived, "--encoders", "sketch")
    journal = derived / (JSONL_NAME + ".tmp")
    try:
        wait_until(lambda: journal.exists() and b"\n" in journal.read_bytes())
        process.send_signal(signal.SIGSTOP)
        assert (derived / JSONL_NAME).read_bytes() == before
        assert b'"image_id":"img000"' in journal.read_bytes()
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=30)
    assert [record["image_id"] for record in store_records(derived)][:2] == ["before", "img000"]
    assert not journal.exists()


def test_killed_runs_resume_to_the_bytes_of_an_unbroken_one(
    tmp_path: Path, images: Path, unbroken: dict[str, bytes | None]
) -> None:
    derived = tmp_path / "derived"
    draw = random.Random(4)
    command = (
        "derive",
        images,
        "--derived-dir",
        derived,
        "--encoders",
        "sketch",
        "--batch-size",
        "2",
    )
    killed = 0
    for _ in range(6):
        before = arrays(derived)
        process = start(*command)
        wait_until(lambda: arrays(derived) > before or process.poll() is not None)  # noqa: B023
        time.sleep(draw.uniform(0, 0.15))
        process.kill()
        process.communicate(timeout=30)
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 3
    assert run(*command).returncode == 3
    assert contents(derived) == unbroken


def test_a_kill_at_every_call_of_a_run_and_of_its_recovery(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 5, SMALL)
    (images / "img003.txt").unlink()
    whole = tmp_path / "whole"
    counting = Counting()
    with using(counting):
        sketch(images, whole, batch_size=2)
    calls = len(counting.calls)
    assert calls > 60
    kills = 0
    for nth in range(1, calls + 1):
        derived = tmp_path / f"killed{nth}"
        kills += cut_short(KilledAt(nth), images, derived, batch_size=2)
        kills += cut_short(KilledAt(1 + nth % 25), images, derived, batch_size=2)  # as it resumes
        with using(Counting()):
            sketch(images, derived, batch_size=2)
        assert contents(derived) == contents(whole), f"killed at call {nth}"
    assert kills > calls


def test_a_kill_at_every_call_of_a_recompute(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3, SMALL)
    captions = tmp_path / "captions.csv"
    captions.write_text("file_name,text\nimg001.png,quite another caption\n")
    before = tmp_path / "before"
    sketch(images, before, fit="bucket")
    again = {"recompute": ["vae", "t5"], "captions": captions, "batch_size": 2}
    whole = shutil.copytree(before, tmp_path / "whole")
    counting = Counting()
    with using(counting):
        sketch(images, whole, **again)
    assert [r["caption"] for r in store_records(whole)][1] == "quite another caption"
    assert all("crop" not in record for record in store_records(whole))
    kills = 0
    for nth in range(1, len(counting.calls) + 1):
        derived = shutil.copytree(before, tmp_path / f"killed{nth}")
        kills += cut_short(KilledAt(nth), images, derived, **again)
        with using(Counting()):
            sketch(images, derived, **again)
        assert contents(derived) == contents(whole), f"killed at call {nth}"
    assert kills > len(counting.calls) // 2


def test_a_recompute_that_was_cut_short_goes_on_and_does_not_begin_again(tmp_path: Path) -> None:
    images, before = make_images(tmp_path / "images", 8, SMALL), tmp_path / "before"
    sketch(images, before, fit="bucket")
    counting = Counting()
    with using(counting):
        whole = shutil.copytree(before, tmp_path / "whole")
        sketch(images, whole, recompute=["vae"], batch_size=1)
    first_record = counting.calls.index("append")  # by then the first group's arrays are there
    derived = shutil.copytree(before, tmp_path / "derived")
    with using(KilledAt(first_record + 1)), pytest.raises(Killed):
        sketch(images, derived, recompute=["vae"], batch_size=1)
    left = len(list((derived / "vae_latents").glob("*.npy")))
    assert 0 < left < 8
    summary = sketch(images, derived, recompute=["vae"])
    assert summary.components["vae"].made == 8 - left
    assert contents(derived) == contents(whole)


def test_a_full_disk_loses_nothing_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 5, SMALL)
    whole = tmp_path / "whole"
    counting = Counting()
    with using(counting):
        sketch(images, whole, batch_size=2)
    times = 0
    for nth in range(1, len(counting.calls), 4):
        derived = tmp_path / f"full{nth}"
        times += cut_short(FullFrom(nth, errno.ENOSPC), images, derived, batch_size=2)
        assert not [p for p in derived.rglob("*.tmp") if p.parent != derived], "temporary files"
        with using(Counting()):
            sketch(images, derived, batch_size=2)
        assert contents(derived) == contents(whole), f"full from call {nth}"
    assert times > len(counting.calls) // 8


def test_a_failed_sync_stops_the_run(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2, SMALL)
    counting = Counting()
    with using(counting):
        sketch(images, tmp_path / "whole")
    nth = counting.calls.index("fsync", counting.calls.index("fsync") + 1) + 1
    with using(FailsAt(nth, errno.EIO)), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sketch(images, tmp_path / "derived")
    assert not (tmp_path / "derived" / JSONL_NAME).exists()
    with using(Counting()):
        sketch(images, tmp_path / "derived")
    assert contents(tmp_path / "derived") == contents(tmp_path / "whole")
