"""A shard folder belongs to one store: another one cannot take the place of its samples."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright import DamageError, UsageError, derive, pack, status, verify
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from shardwright.storage.urls import Url
from tests import commands
from tests.derive.pictures import make_images, sketch
from tests.derive.updates import TINY, replace_one
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import make_store, record

NAME = ".shardwright/identity.json"


def made(folder: Path, count: int = 4, images: str = "images") -> Path:
    """A store that derive has made of pictures in a folder beside it."""
    make_images(folder.parent / images, count, TINY)
    sketch(folder.parent / images, folder)
    return folder


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return made(tmp_path / "a/derived")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """Another store, with as many samples and the same names."""
    return made(tmp_path / "b/derived", images="others")


def identity(store: Path) -> str:
    document = json.loads((store / NAME).read_bytes())
    assert (document["format"], document["version"]) == ("shardwright-identity", 1)
    return str(document["id"])


def packed(store: Path, output: Path | str, **options: Any) -> None:  # noqa: ANN401
    pack(derived_dir=store, output_dir=str(output), workers=1, **options)


def recorded(output: Path) -> list[Any]:
    found = manifest.load_manifest(output)
    assert found is not None
    return [run.store_id for run in found.runs]


@pytest.mark.parametrize("way", ["--append", "--sync", "--resume"])
def test_another_store_is_refused_and_nothing_changes(
    first: Path, second: Path, output: Path, way: str
) -> None:
    packed(first, output)
    before = contents(output)
    for more in ([], ["--dry-run"]):
        words = ["--derived-dir", str(second), "--output-dir", str(output), *way.split(), *more]
        done = commands.run("pack", *words)
        assert done.returncode == 2
        own, other = identity(first)[:12], identity(second)[:12]
        assert own != other
        assert done.stderr.splitlines()[-1] == (
            f"error: {output}: was packed from another store (identity {own}), not from {second} "
            f"(identity {other}), so nothing was written; to replace its shards, run shardwright "
            f"pack --derived-dir {second} --output-dir {output} --overwrite; or give another "
            "--output-dir"
        )
    assert contents(output) == before


def test_the_advised_command_replaces_all_shards_with_the_flags_of_the_last_run(
    first: Path, second: Path, output: Path
) -> None:
    packed(first, output, shard_size=1, where="width >= 20")
    with pytest.raises(UsageError) as refused:
        packed(second, output, sync=True)
    assert refused.value.fix is not None
    command = refused.value.fix.removeprefix("to replace its shards, run shardwright ")
    command = command.partition("; ")[0]
    assert "--where 'width >= 20' --shard-size 1" in command
    done = commands.run(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    assert recorded(output) == [identity(second)]
    found = verify(output, against=second)
    assert not found.damaged
    assert not found.changed


def test_shards_of_some_buckets_are_not_put_beside_those_of_another_store(
    first: Path, second: Path, output: Path
) -> None:
    packed(first, output, bucket=["1216x832"])
    before = contents(output)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(UsageError, match="was packed from another store"):
            packed(second, output, bucket=["832x1216"], **options)
    assert contents(output) == before


def test_every_part_of_a_split_belongs_to_the_store(
    first: Path, second: Path, output: Path
) -> None:
    packed(first, output, split="val=50%")
    before = contents(output)
    for options in ({"sync": True}, {"append": True}):
        with pytest.raises(UsageError, match="was packed from another store"):
            packed(second, output, **options)
    assert contents(output) == before
    for part in output.iterdir():
        assert recorded(part) == [identity(first)]


def test_shards_at_a_url_belong_to_the_store(first: Path, second: Path, bucket: Url) -> None:
    output = bucket / "shards"
    packed(first, str(output))
    with pytest.raises(UsageError) as refused:
        packed(second, str(output), append=True)
    assert "was packed from another store" in refused.value.what
    assert refused.value.fix == "give another --output-dir"
    packed(first, str(output), append=True)


def grow(store: Path) -> None:
    images = store.parent / "images"
    make_images(images, 6, TINY)
    replace_one(images)
    sketch(images, store, update=True)


def prune(store: Path) -> None:
    images = store.parent / "images"
    for path in images.glob("img000.*"):
        path.unlink()
    sketch(images, store, update=True, prune=True)


def recompute(store: Path) -> None:
    sketch(store.parent / "images", store, recompute=["t5"])


@pytest.mark.parametrize("change", [grow, prune, recompute])
def test_a_store_keeps_its_identity_when_its_samples_change(
    first: Path, output: Path, change: Callable[[Path], None]
) -> None:
    packed(first, output)
    before = identity(first)
    change(first)
    assert identity(first) == before
    packed(first, output, **{"overwrite" if change is recompute else "sync": True})
    assert set(recorded(output)) == {before}


def test_a_copy_and_a_moved_store_are_the_same_store(
    first: Path, output: Path, tmp_path: Path
) -> None:
    packed(first, output)
    copied = shutil.copytree(first, tmp_path / "copied")
    packed(copied, output, sync=True)
    moved = first.rename(tmp_path / "moved")
    packed(moved, output, append=True)


def test_the_same_images_give_the_same_identity_also_after_interruptions(tmp_path: Path) -> None:
    first = made(tmp_path / "derived", 2)
    images = first.parent / "images"
    sketch(images, tmp_path / "again")
    assert identity(tmp_path / "again") == identity(first)
    with using(disk := WatchedDisk()):
        sketch(images, tmp_path / "watched")
    for number in range(1, len(disk.calls) + 1):
        killed = tmp_path / f"killed{number}"
        with using(KillingDisk(number)), pytest.raises(Killed):
            sketch(images, killed)
        sketch(images, killed)
        assert identity(killed) == identity(first)


def test_a_store_without_a_record_and_a_dry_run_make_no_identity(tmp_path: Path) -> None:
    make_images(tmp_path / "images", 2, TINY)
    sketch(tmp_path / "images", tmp_path / "dry", dry_run=True)
    assert not (tmp_path / "dry").exists()
    for path in (tmp_path / "images").glob("*.png"):
        path.write_bytes(b"no picture")
    sketch(tmp_path / "images", tmp_path / "derived")
    assert not (tmp_path / "derived" / NAME).exists()


def test_stores_and_shards_of_earlier_versions_go_on(first: Path, output: Path) -> None:
    own = identity(first)
    (first / NAME).unlink()
    packed(first, output, bucket=["1216x832"])
    assert b"store_id" not in (output / ".shardwright/manifest.json").read_bytes()
    sketch(first.parent / "images", first)  # with nothing to do
    assert identity(first) == own
    packed(first, output, append=True)
    packed(first, output, sync=True)
    assert recorded(output)[-1] == own


def test_status_does_not_advise_to_sync_shards_of_another_store(
    first: Path, second: Path, output: Path
) -> None:
    packed(first, output)
    found = status(derived_dir=second, output_dir=output)
    assert found.packed[str(output)].ready == 0
    command = f"shardwright pack --derived-dir {second} --output-dir {output} --overwrite"
    why = f"{output} holds samples of another store; to replace them, run {command}"
    assert (found.next_command, found.next_reason) == (None, why)


def test_verify_does_not_advise_to_sync_or_append_to_shards_of_another_store(
    first: Path, output: Path, tmp_path: Path
) -> None:
    packed(first, output)
    second = tmp_path / "b/derived"
    make_images(tmp_path / "others", 5, TINY)
    replace_one(tmp_path / "others", 0, seed=9)
    sketch(tmp_path / "others", second)
    report = verify(output, against=second, workers=1)
    assert report.outdated
    found = [finding for finding in report.findings if finding.kind != "own_size"]
    assert {finding.kind for finding in found} > {"left_out"}
    for finding in found:
        assert finding.fix.startswith("the shards were packed from another store")
        assert "--sync" not in finding.fix
        assert "--append" not in finding.fix


def test_a_store_without_an_identity_does_not_replace_that_of_the_shards(
    first: Path, output: Path, tmp_path: Path
) -> None:
    packed(first, output)
    other = make_store(tmp_path / "other", [record("img000", "1216x832")])
    with pytest.raises(UsageError, match=r"not from .*other, which has no identity, so nothing"):
        packed(other.root, output, sync=True)


def test_a_damaged_identity_is_reported(first: Path, output: Path) -> None:
    packed(first, output)
    for data in (b"", b"{}", b'{"id": "../../x"}', b"\xff", b"[" * 100_000):
        (first / NAME).write_bytes(data)
        with pytest.raises(DamageError, match=r"identity\.json: is damaged; restore it"):
            packed(first, output, append=True)
        kinds = [each.kind for each in verify(first).findings if each.damage]
        assert kinds == ["identity_damaged"]
        derive(images=first.parent / "images", derived_dir=first, encoders="sketch")
        assert (first / NAME).read_bytes() == data
