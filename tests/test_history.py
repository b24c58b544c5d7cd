"""The life of a data set: derived, changed in every way, updated, and packed again and again.

One history with exact counts at each step. Modification times and inodes prove that nothing is
made again that did not change, and train and val stay disjoint all the way.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardwright import ShardwrightError, pack, status, verify
from tests.derive.pictures import gradient, make_images, save, sketch, store_records
from tests.tars import all_ids

COUNT = 60


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", COUNT)


def arrays(store: Path) -> dict[str, tuple[int, int]]:
    """Give what tells whether an array is another file, or was written to."""
    found = {str(path.relative_to(store)): path.stat() for path in store.glob("*/*.npy")}
    return {name: (state.st_mtime_ns, state.st_ino) for name, state in found.items()}


def made(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> set[str]:
    """Name the arrays that were not there before; one that was moved is no new one."""
    return {name for name, state in after.items() if state not in before.values()}


def named(folders: str, *numbers: int) -> set[str]:
    return {f"{folder}/img{n:03}.npy" for folder in folders.split() for n in numbers}


def parts(shards: Path) -> dict[str, set[str]]:
    """Read which ids are in which part, from the tar files themselves."""
    found = {part.name: set(all_ids(part)) for part in sorted(shards.iterdir())}
    assert set(found) == {"train", "val"}
    assert not found["train"] & found["val"]
    return found


def shard_files(shards: Path) -> dict[str, tuple[bytes, int]]:
    files = sorted(shards.rglob("*.tar"))
    return {str(f.relative_to(shards)): (f.read_bytes(), f.stat().st_ino) for f in files}


def require_verified(shards: Path, store: Path) -> None:
    report = verify(shards, against=store, read_data=True, workers=1)
    kinds = {finding.kind for finding in report.findings}
    # The latents are as small as these pictures, some of which are alike.
    assert kinds <= {"own_size", "alike_in_two_parts"}


def change_everything(images: Path) -> None:
    """Replace 5 pictures, edit 3 captions, remove 2 images, rename 4, and add 10."""
    for number in range(5):
        save(images / f"img{number:03}.png", gradient(72, 72, seed=1000 + number))
    for number in (10, 11, 12):
        (images / f"img{number:03}.txt").write_text(f"another caption, number {number}")
    for number in (20, 21):
        (images / f"img{number:03}.png").unlink()
        (images / f"img{number:03}.txt").unlink()
    for number in (30, 31, 32, 33):
        for end in ("png", "txt"):
            (images / f"img{number:03}.{end}").rename(images / f"img{number + 100:03}.{end}")
    extra = make_images(images.parent / "extra", COUNT + 10)
    for number in range(COUNT, COUNT + 10):
        for end in ("png", "txt"):
            shutil.move(extra / f"img{number:03}.{end}", images)
    shutil.rmtree(extra)


def test_a_history_of_changes_recomputes_what_changed_and_never_mixes_train_and_val(
    images: Path, tmp_path: Path
) -> None:
    store, shards = tmp_path / "store", tmp_path / "shards"
    pictures, texts = "dinov3 vae_latents", "t5_hidden"

    first = sketch(images, store)
    assert (first.images_found, first.derived, first.failed) == (60, 60, 0)
    packed = pack(derived_dir=store, output_dir=shards, split="val=20%", shard_size=8, workers=1)
    assert packed.written_samples == 60
    before = parts(shards)
    assert len(before["train"] | before["val"]) == 60
    require_verified(shards, store)

    change_everything(images)
    outlook = status(derived_dir=store, output_dir=shards, workers=1).update
    assert outlook is not None
    counts = (outlook.changed, outlook.captions, outlook.gone, outlook.renamed, outlook.new)
    assert [found.count for found in counts] == [5, 3, 2, 4, 10]

    was = arrays(store)
    lines = (store / "approved_image_dataset.jsonl").read_bytes()
    trial = sketch(images, store, update=True, prune=True, dry_run=True)
    assert (trial.derived, len(trial.renamed), len(trial.pruned)) == (18, 4, 2)
    assert arrays(store) == was
    assert (store / "approved_image_dataset.jsonl").read_bytes() == lines

    done = sketch(images, store, update=True, prune=True)
    assert (done.images_found, done.derived, done.already_complete) == (68, 18, 50)
    assert (len(done.updated_images), len(done.updated_captions), done.failed) == (5, 3, 0)
    assert (len(done.renamed), len(done.pruned)) == (4, 2)
    new = set(range(60, 70))
    now = arrays(store)
    assert made(was, now) == named(pictures, *range(5), *new) | named(texts, 10, 11, 12, *new)
    assert set(now) == named(f"{pictures} {texts}", *(ids := _ids_after()))
    found = store_records(store)
    assert {record["image_id"] for record in found} == {f"img{n:03}" for n in ids}
    by_id = {record["image_id"]: record for record in found}
    assert by_id["img011"]["caption"] == "another caption, number 11"
    assert (by_id["img003"]["width"], by_id["img003"]["height"]) == (72, 72)
    assert by_id["img131"]["caption"] == "a soft gradient, number 31"
    assert not verify(store, read_data=True, workers=1).findings
    again = sketch(images, store, update=True, prune=True)
    assert (again.derived, again.already_complete) == (0, 68)
    assert arrays(store) == now

    untouched = shard_files(shards)
    outdated = verify(shards, against=store, workers=1)
    assert outdated.findings
    assert not outdated.damaged
    with pytest.raises(ShardwrightError, match="outdated"):
        pack(derived_dir=store, output_dir=shards, append=True, workers=1)
    assert shard_files(shards) == untouched

    pack(derived_dir=store, output_dir=shards, sync=True, workers=1)
    after = parts(shards)
    assert after["train"] | after["val"] == {f"img{n:03}" for n in ids}
    for old, renamed in ((f"img{n:03}", f"img{n + 100:03}") for n in range(30, 34)):
        assert (old in before["val"]) == (renamed in after["val"])
    for part in ("train", "val"):  # what stays keeps its part
        assert before[part] & (after["train"] | after["val"]) <= after[part]
    require_verified(shards, store)

    extra = make_images(tmp_path / "more", 76)
    for number in range(70, 76):
        for end in ("png", "txt"):
            shutil.move(extra / f"img{number:03}.{end}", images)
    added = sketch(images, store)
    assert (added.derived, added.already_complete) == (6, 68)
    kept = shard_files(shards)
    appended = pack(derived_dir=store, output_dir=shards, append=True, workers=1)
    assert appended.written_samples == 6
    assert kept.items() <= shard_files(shards).items()
    last = parts(shards)
    assert all(after[part] <= last[part] for part in after)
    assert len(last["train"] | last["val"]) == 74
    require_verified(shards, store)


def _ids_after() -> list[int]:
    gone = {20, 21, 30, 31, 32, 33}
    return [n for n in range(70) if n not in gone] + [130, 131, 132, 133]
