"""What people run into when they use pack for real, each as it happened to somebody."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import (
    DamageError,
    Finding,
    LockedError,
    ShardExistsError,
    UsageError,
    pack,
    verify,
)
from shardwright.shards.format import manifest
from tests import commands
from tests.stores import Store, make_store, record, records


def findings(path: Path, **options: Any) -> list[Finding]:  # noqa: ANN401
    """Verify; the small latents of our stores are not what these tests are about."""
    return [f for f in verify(path, **options).findings if f.kind != "vae_wrong_size"]


def test_resume_does_not_replace_shards_of_others(store: Store, output: Path) -> None:
    theirs = output / f"bucket_{store.records[0]['aspect_bucket']}" / "shard-000000.tar"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"precious")
    with pytest.raises(ShardExistsError, match="nothing was written"):
        pack(derived_dir=store.root, output_dir=output, resume=True)
    assert theirs.read_bytes() == b"precious"


def test_an_array_replaced_by_rename_while_packing_stops_the_run(
    store: Store, output: Path
) -> None:
    class Replacing(shardwright.Progress):
        def phase(self, name: str, total: int, unit: str) -> None:
            if name == "write":
                path = store.array("dinov3", store.records[-1]["image_id"])
                shutil.copyfile(path, path.with_suffix(".new"))
                path.with_suffix(".new").rename(path)

    with pytest.raises(shardwright.SourceChangedError, match="written to or replaced"):
        pack(derived_dir=store.root, output_dir=output, workers=1, progress=Replacing())


def test_records_that_an_interrupted_derive_left_are_told(store: Store, output: Path) -> None:
    journal = store.jsonl.with_name(store.jsonl.name + ".tmp")
    journal.write_bytes(b"{}\n")
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    assert done.returncode == 0
    assert f"note: {journal} holds records of an interrupted run" in done.stdout


def test_what_a_limit_left_unopened_is_told(store: Store, output: Path) -> None:
    flags = ("--derived-dir", store.root, "--output-dir", output)
    left = len(store.records) - 1
    assert (
        f"note: {left} records already packed, or left out by --limit or --bucket; not checked"
        in commands.run("pack", *flags, "--dry-run", "--limit", "1").stdout
    )
    assert "left out" not in commands.run("pack", *flags, "--dry-run").stdout


def test_verify_against_notes_what_was_left_out(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, limit=1)
    (note,) = findings(output, against=store.root)
    assert (note.kind, note.damage) == ("left_out", False)
    count = len(store.records) - 1
    assert note.what.startswith(f"has {count} records of which no shard holds a sample")


def test_a_lost_manifest_is_damage(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    (output / ".shardwright" / manifest.MANIFEST_NAME).unlink()
    report = verify(output)
    assert [finding.kind for finding in report.findings] == ["manifest_missing"]
    assert report.damaged


def test_verifying_one_bucket_says_that_it_is_a_part(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    bucket = next(output.glob("bucket_*"))
    (note,) = findings(bucket)
    assert (note.kind, note.damage) == ("part", False)
    assert note.cure.startswith(f"verify {output}")


def test_packings_below_a_folder_are_verified_on_their_own(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    pack(derived_dir=store.root, output_dir=output / "validation", limit=1)
    assert findings(output) == []
    assert findings(output / "validation") == []


def test_a_bucket_on_another_disk_is_followed(store: Store, output: Path, tmp_path: Path) -> None:
    name = f"bucket_{store.records[0]['aspect_bucket']}"
    (tmp_path / "elsewhere").mkdir()
    output.mkdir(parents=True)
    (output / name).symlink_to(tmp_path / "elsewhere")
    pack(derived_dir=store.root, output_dir=output)
    assert findings(output, read_data=True) == []


@pytest.mark.parametrize("flag", ["append", "overwrite", "resume", None])
def test_a_second_run_is_told_of_the_first_before_anything_else(
    flag: str | None, store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output)
    lock = output / ".shardwright" / "lock"
    with lock.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        options: dict[str, Any] = {flag: True} if flag else {}
        with pytest.raises(LockedError):
            pack(derived_dir=store.root, output_dir=output, **options)


def test_append_does_not_count_the_samples_of_a_lost_shard(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    lost = sorted(output.glob("bucket_*/*.tar"))[0]
    lost.unlink()
    with pytest.raises(DamageError, match="is missing or not whole"):
        pack(derived_dir=store.root, output_dir=output, append=True)


def test_append_keeps_sha256sums_up(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "few", records(3))
    pack(derived_dir=store.root, output_dir=output, sha256=True)
    more = make_store(tmp_path / "more", [*records(3), record("another")])
    pack(derived_dir=more.root, output_dir=output, append=True)
    done = subprocess.run(
        ["sha256sum", "-c", ".shardwright/SHA256SUMS"], cwd=output, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.count(": OK") == len(list(output.glob("bucket_*/*.tar")))


@pytest.mark.parametrize("below", [".", "vae_latents", "vae_latents/s", "t5_hidden/../dinov3"])
def test_shards_are_kept_out_of_the_store(below: str, store: Store) -> None:
    with pytest.raises(UsageError, match="belongs to the store; give another folder"):
        pack(derived_dir=store.root, output_dir=store.root / below)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_does_not_stop_the_work(closed: str, store: Store, output: Path) -> None:
    redirect = {"stdout": ">&-", "stderr": "2>&-"}[closed]
    words = f"{sys.executable} -m shardwright pack --derived-dir {store.root} --output-dir {output}"
    done = subprocess.run(f"{words} {redirect}", shell=True, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert findings(output, read_data=True, against=store.root) == []


def test_progress_that_cannot_be_written_does_not_stop_the_work(store: Store, output: Path) -> None:
    with open("/dev/full", "w") as full:
        flags = ["pack", "--derived-dir", str(store.root), "--output-dir", str(output)]
        command = [sys.executable, "-m", "shardwright", *flags]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full)
    assert done.returncode == 0
    assert findings(output, against=store.root) == []


def test_a_slip_does_not_become_overwrite(store: Store, output: Path) -> None:
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, "--over")
    assert done.returncode == 2
    assert not os.path.lexists(output)
