"""The empty caption is packed with the shards, survives every fault, and is verified."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardwright
from shardwright import pack, verify
from shardwright.encoders.sketch import HashedWords
from shardwright.errors import DamageError
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests import commands
from tests.derive.fakes import T5, given
from tests.derive.pictures import make_images, sketch
from tests.durability.folders import assert_manifest_speaks_true, restore
from tests.durability.soak import some
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.shards.varied import add, varied_store

EMPTY = ".shardwright/empty"
NAMES = {"t5.npy", "t5_mask.npy", "pooled.npy"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return varied_store(tmp_path / "derived", 4)


def packed(store: Path, **options: Any) -> Path:  # noqa: ANN401
    output = store.parent / "shards"
    pack(derived_dir=store, output_dir=output, shard_size=2, workers=1, **options)
    return output


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / EMPTY).iterdir()}


def kinds(path: Path, **options: Any) -> list[tuple[str, str, bool]]:  # noqa: ANN401
    return [
        (f.kind, Path(f.file).name, f.damage) for f in verify(path, workers=1, **options).findings
    ]


def change(store: Path) -> None:
    """Give the store other values for the empty caption."""
    path = store / EMPTY / "pooled.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_the_files_of_the_store_are_copied_and_listed(store: Path) -> None:
    shards = packed(store)
    assert files(shards) == files(store)
    assert files(shards).keys() == NAMES
    listed = manifest.load_manifest(shards)
    assert listed is not None
    assert list(listed.empties()) == sorted(NAMES)
    assert kinds(shards, read_data=True, against=store) == []


def test_a_store_without_them_gives_a_manifest_without_them(store: Path) -> None:
    shutil.rmtree(store / EMPTY)
    shards = packed(store)
    assert not (shards / EMPTY).exists()
    assert b'"empty"' not in (shards / ".shardwright/manifest.json").read_bytes()


def test_append_adds_what_is_missing_and_keeps_what_is_there(store: Path) -> None:
    (store / EMPTY / "t5.npy").rename(store / "kept")
    shards = packed(store)
    before = files(shards)
    assert before.keys() == NAMES - {"t5.npy"}
    (store / "kept").rename(store / EMPTY / "t5.npy")
    change(store)
    packed(store, append=True)
    assert files(shards) == before | {"t5.npy": files(store)["t5.npy"]}
    assert kinds(shards) == []
    assert kinds(shards, against=store) == [("empty_outdated", "pooled.npy", False)]
    done = commands.run("verify", shards, "--against", store)
    assert done.returncode == 3
    assert f"{shards}: OUTDATED: the empty caption; no damage\n" in done.stdout


def test_overwrite_replaces_them_and_removes_what_is_no_longer_there(store: Path) -> None:
    shards = packed(store)
    change(store)
    (store / EMPTY / "t5.npy").unlink()
    packed(store, overwrite=True)
    assert files(shards) == files(store)
    assert kinds(shards, against=store) == []
    shutil.rmtree(store / EMPTY)
    packed(store, overwrite=True)
    assert not (shards / EMPTY).exists()
    assert kinds(shards, against=store) == []


def test_a_lost_file_comes_back_with_the_next_append(store: Path) -> None:
    shards = packed(store)
    before = contents(shards)
    (shards / EMPTY / "t5.npy").unlink()
    packed(store, append=True)
    assert contents(shards) == before


def test_a_damaged_file_of_the_store_is_not_packed(store: Path) -> None:
    path = store / EMPTY / "t5.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamageError, match=r"empty/t5\.npy: is damaged \(truncated\); delete it"):
        packed(store)
    shutil.copyfile(store / "t5/img0.npy", path)  # of another caption, with another mask
    with pytest.raises(DamageError, match=r"has other rows than t5_mask\.npy keeps"):
        packed(store)
    assert not (store.parent / "shards").exists()


def test_verify_finds_lost_and_damaged_files(store: Path) -> None:
    shards = packed(store)
    (shards / EMPTY / "t5.npy").unlink()
    change(shards)
    assert sorted(kinds(shards)) == [
        ("empty_differs", "pooled.npy", True),
        ("empty_missing", "t5.npy", True),
    ]
    packed(store, append=True)
    assert kinds(shards) == []


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("t5.npy", np.nan, "not numbers (NaN)"),
        ("t5.npy", -np.inf, "infinite"),
        ("pooled.npy", 0x7FC0, "not numbers (NaN)"),  # the bits of a bfloat16
        ("pooled.npy", 0xFF80, "infinite"),
    ],
)
def test_verify_finds_values_that_are_not_finite(
    store: Path, name: str, value: float, what: str
) -> None:
    path = store / EMPTY / name
    array = np.load(path)
    array.flat[0] = value
    np.save(path, array)
    shards = packed(store)
    assert kinds(shards) == []
    (finding,) = verify(shards, read_data=True, workers=1).findings
    assert (finding.kind, finding.file) == ("empty_invalid", f"{EMPTY}/{name}")
    assert what in finding.what


def test_an_empty_caption_may_be_one_value_everywhere(store: Path) -> None:
    path = store / EMPTY / "pooled.npy"
    np.save(path, np.zeros_like(np.load(path)))
    assert kinds(packed(store), read_data=True) == []


def test_verify_names_what_the_store_has_and_the_shards_do_not(store: Path) -> None:
    shutil.move(store / EMPTY, store / "empty")
    shards = packed(store)
    shutil.move(store / "empty", store / EMPTY)
    report = verify(shards, against=store)
    assert not report.damaged
    assert {Path(f.file).name for f in report.findings} == NAMES
    assert f"shardwright pack --derived-dir {store}" in report.findings[0].fix
    assert "--append" in report.findings[0].fix


def _fresh(store: Path) -> dict[str, Any]:
    return {}


def _append(store: Path) -> dict[str, Any]:
    (store / EMPTY / "t5.npy").rename(store / "kept")
    packed(store)
    (store / "kept").rename(store / EMPTY / "t5.npy")
    add(store, range(4, 6))
    return {"append": True}


def _overwrite(store: Path) -> dict[str, Any]:
    packed(store)
    change(store)
    (store / EMPTY / "t5.npy").unlink()
    return {"overwrite": True}


@pytest.mark.parametrize("way", [_fresh, _append, _overwrite])
def test_a_kill_at_any_call_is_made_good_by_the_next_run(
    store: Path, way: Callable[[Path], dict[str, Any]]
) -> None:
    shards = store.parent / "shards"
    options = way(store)
    start = contents(shards) if shards.exists() else None
    with using(disk := WatchedDisk()):
        packed(store, **options)
    expected = contents(shards)
    touched = [number for number, call in enumerate(disk.calls, 1) if EMPTY in call.path]
    assert touched
    # Other tests kill at those before.
    for at in some(range(touched[0] - 2, len(disk.calls) + 1), 10):
        shutil.rmtree(shards)
        if start is not None:
            restore(shards, start)
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(store, **options)
        assert_manifest_speaks_true(shards)
        if manifest.load_manifest(shards):
            dict(shardwright.open(shards).empty)
        with using(WatchedDisk()):
            packed(store, **(options or {"resume": True}))
        assert contents(shards) == expected, f"killed at call {at}, {disk.calls[at - 1]}"


def test_resume_finishes_an_overwrite_that_was_killed_among_them(store: Path) -> None:
    shards = packed(store)
    before = contents(shards)
    change(store)
    with using(disk := WatchedDisk()):
        packed(store, overwrite=True)
    expected = contents(shards)
    (at,) = [n for n, c in enumerate(disk.calls, 1) if c.name == "rename" and EMPTY in c.path]
    shutil.rmtree(shards)
    restore(shards, before)
    with using(KillingDisk(at)), pytest.raises(Killed):
        packed(store, overwrite=True)
    packed(store, resume=True)
    assert contents(shards) == expected


def test_an_empty_caption_that_rotted_in_the_store_is_damage(store: Path) -> None:
    shards = packed(store)
    change(store)
    path = store / EMPTY / "pooled.npy"
    os.utime(path, (0, 0))
    # A test cannot set the time at which an inode changed, so the other's changes later.
    while (shards / EMPTY / path.name).stat().st_ctime_ns <= path.stat().st_ctime_ns:
        os.chmod(shards / EMPTY / path.name, 0o644)
    assert kinds(shards, against=store) == [("source_differs", "pooled.npy", True)]


class Doubled(HashedWords):
    """Another text encoder than the one before."""

    def encode(self, ids: NDArray[np.int64], mask: NDArray[np.uint8]) -> NDArray[Any]:
        return super().encode(ids, mask) * 2 + 1

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "encoder": "doubled"}


def test_after_a_recompute_of_the_texts_shards_are_outdated_and_not_damaged(tmp_path: Path) -> None:
    images, derived, shards = tmp_path / "images", tmp_path / "derived", tmp_path / "shards"
    sketch(make_images(images, 3), derived, encoders=given())
    pack(derived_dir=derived, output_dir=shards, workers=1)
    sketch(images, derived, encoders=given(t5=Doubled(T5)), recompute=["t5"])
    done = commands.run("verify", shards, "--against", derived)
    assert done.returncode == 3, done.stdout
    assert f"{shards}: OUTDATED: 3 samples and the empty caption; no damage" in done.stdout
