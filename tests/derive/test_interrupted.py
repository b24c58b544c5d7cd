"""Runs that are cut short: the next one ends in the same bytes as one that never was."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from shardwright import pack, verify
from shardwright.errors import InputMissingError
from shardwright.layout import JSONL_NAME
from shardwright.storage.files import using
from tests.commands import run, start, wait_until
from tests.derive.pictures import make_images, sketch, store_records
from tests.faults import Killed, KillingDisk, WatchedDisk, contents

SMALL = ((24, 16), (16, 24), (16, 16))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough pictures for a run to be caught at work, with one that is broken among them.

    Their sizes are mixed, so that they are encoded in another order than committed.
    """
    sizes = ((512, 384), (384, 512), (512, 384), (448, 448), (384, 512), (512, 376), (448, 448))
    folder = make_images(tmp_path_factory.mktemp("pictures") / "images", 60, sizes)
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
    _, err = process.communicate(timeout=150)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert not list(derived.glob("*.tmp")), "merged and deleted"
    kept = store_records(derived)
    assert 0 < len(kept) < 59
    line = f"Interrupted; {len(kept)} images saved. Run the same command to continue"
    assert err.splitlines()[-1] == line
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
        process.communicate(timeout=150)
    assert [record["image_id"] for record in store_records(derived)][:2] == ["before", "img000"]
    assert not journal.exists()


def test_a_recompute_that_was_cut_short_goes_on_and_does_not_begin_again(tmp_path: Path) -> None:
    images, before = make_images(tmp_path / "images", 8, SMALL), tmp_path / "before"
    sketch(images, before, fit="bucket")
    with using(watched := WatchedDisk()):
        full = shutil.copytree(before, tmp_path / "full")
        sketch(images, full, recompute=["vae"], batch_size=1)
    published = [
        nth
        for nth, call in enumerate(watched.calls, 1)
        if call.name == "fsync" and call.path.endswith(f"next/{JSONL_NAME}.tmp")
    ]
    derived = shutil.copytree(before, tmp_path / "derived")
    with using(KillingDisk(published[2])), pytest.raises(Killed):
        sketch(images, derived, recompute=["vae"], batch_size=1)
    left = len((derived / f".shardwright/next/{JSONL_NAME}.tmp").read_text().splitlines())
    assert 0 < left < 8
    summary = sketch(images, derived, recompute=["vae"])
    assert summary.components["vae"].made == 8 - left
    assert contents(derived) == contents(full)


def test_a_killed_first_run_is_reported_by_what_needs_its_records(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2, SMALL), tmp_path / "derived"
    with using(watched := WatchedDisk()):
        sketch(images, tmp_path / "full")
    merged = [call.path.endswith(JSONL_NAME) for call in watched.calls].index(True)
    with using(KillingDisk(merged + 1)), pytest.raises(Killed):
        sketch(images, derived)
    for look in (verify, lambda path: pack(derived_dir=path, output_dir=tmp_path / "shards")):
        with pytest.raises(InputMissingError, match=r"left its records .* run shardwright derive"):
            look(derived)
    sketch(images, derived)
    assert verify(derived).findings == []
