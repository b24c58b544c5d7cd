"""``pack --overwrite``: the old shards go once the new are whole, and never mix with them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from shardwright import NoSpaceError, PackSummary, ShardExistsError, pack, verify
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests.durability.folders import shard_names
from tests.durability.soak import some
from tests.faults import Call, FailingDisk, Killed, KillingDisk, WatchedDisk, contents
from tests.stores import Store, make_store, records
from tests.tars import ids_by_shard

ONE, OTHER = "1024x1024", "832x1216"


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(
        derived_dir=store.root, output_dir=output, **{"shard_size": 2, "workers": 1, **options}
    )


class Watcher(WatchedDisk):
    """Looks at the folder before every call."""

    def __init__(self, output: Path, old: dict[str, bytes | None]) -> None:
        super().__init__()
        self.output, self.old = output, old
        self.mixed: list[str] = []

    def before(self, call: Call) -> None:
        held = contents(self.output)
        for bucket in (ONE, OTHER):
            names = {name for name in shard_names(held) if bucket in name}
            states = {held[name] == self.old.get(name) for name in names}
            if ".shardwright/manifest.json" in held and len(states) > 1:
                self.mixed.append(f"{bucket} before {call}")


def test_at_no_time_do_old_and_new_shards_mix_under_one_manifest(
    store: Store, output: Path
) -> None:
    packed(store, output, shard_size=1)
    old = contents(output)
    with using(watcher := Watcher(output, old)):
        packed(store, output, shard_size=2, overwrite=True)
    assert len(watcher.calls) > 50
    assert watcher.mixed == []
    assert contents(output) != old


def test_overwrite_ends_as_a_run_into_an_empty_folder(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, shard_size=1, sha256=True)
    packed(store, output, overwrite=True)
    packed(store, tmp_path / "fresh")
    assert contents(output) == contents(tmp_path / "fresh")


def test_an_overwrite_killed_anywhere_can_be_resumed(store: Store, tmp_path: Path) -> None:
    packed(store, tmp_path / "fresh")
    with using(disk := WatchedDisk()):
        packed(store, tmp_path / "counted", shard_size=1)
        first = len(disk.calls)
        packed(store, tmp_path / "counted", overwrite=True)
    for at in some(range(1, len(disk.calls) - first), 12):
        target = tmp_path / str(at)
        with using(WatchedDisk()):
            packed(store, target, shard_size=1)
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(store, target, overwrite=True)
        if manifest.load_unfinished(target) is None:
            continue  # it had not begun, so there is nothing to resume
        with using(WatchedDisk()):
            packed(store, target, resume=True)
        assert contents(target) == contents(tmp_path / "fresh"), at


def test_overwriting_one_bucket_keeps_the_others_in_the_manifest(
    store: Store, output: Path
) -> None:
    packed(store, output)
    before = contents(output)
    packed(store, output, bucket=[OTHER], shard_size=3, overwrite=True)
    made = manifest.load_manifest(output)
    assert made is not None
    assert [(entry.bucket, entry.run) for entry in made.shards] == [(ONE, 0), (ONE, 0), (OTHER, 1)]
    after = contents(output)
    kept = {name for name in before if ONE in name}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    # The latents of this store are tiny, whatever their bucket; that is all there is to find.
    assert verify(output, against=store.root, workers=1).counts == {"vae_wrong_size": 7}


def test_a_run_of_which_nothing_is_left_leaves_the_manifest(store: Store, output: Path) -> None:
    packed(store, output, bucket=[ONE])
    packed(store, output, bucket=[OTHER])
    for _ in range(3):
        packed(store, output, bucket=[OTHER], overwrite=True)
    made = manifest.load_manifest(output)
    assert made is not None
    assert [run.settings.buckets for run in made.runs] == [[ONE], [OTHER]]


def test_overwrite_replaces_shards_of_another_tool(
    store: Store, output: Path, tmp_path: Path
) -> None:
    folder = output / f"bucket_{ONE}"
    folder.mkdir(parents=True)
    for number in (0, 5):
        (folder / f"shard-{number:06}.tar").write_bytes(b"of another tool")
    packed(store, output, overwrite=True)
    packed(store, tmp_path / "fresh")
    assert contents(output) == contents(tmp_path / "fresh")


def test_overwrite_replaces_a_damaged_manifest(store: Store, output: Path, tmp_path: Path) -> None:
    packed(store, output)
    path = output / ".shardwright/manifest.json"
    path.write_bytes(path.read_bytes()[:100])
    packed(store, output, overwrite=True)
    packed(store, tmp_path / "fresh")
    assert contents(output) == contents(tmp_path / "fresh")


def test_an_overwrite_that_fails_leaves_the_old_shards(store: Store, output: Path) -> None:
    packed(store, output)
    before = contents(output)

    class Full(WatchedDisk):
        def before(self, call: Call) -> None:
            if call.name == "fsync" and "shard-000001.tar" in call.path:
                raise OSError(28, "No space left on device")

    with using(Full()), pytest.raises(OSError, match="the disk is full"):
        packed(store, output, overwrite=True)
    after = contents(output)
    assert after.pop(".shardwright/unfinished.json", None) is not None
    assert after == before


def test_overwrite_adds_new_samples_and_removes_old_ones(store: Store, output: Path) -> None:
    packed(store, output, shard_size=9)
    store.append(b"not json")
    fewer = store.jsonl.read_bytes().splitlines(keepends=True)[2:4]
    store.jsonl.write_bytes(b"".join(fewer))
    packed(store, output, shard_size=9, overwrite=True)
    assert ids_by_shard(output) == {
        f"bucket_{ONE}/shard-000000.tar": ["img2"],
        f"bucket_{OTHER}/shard-000000.tar": ["img3"],
    }


def gone(summary: PackSummary) -> tuple[list[str], list[str]]:
    return summary.replaced_shards, summary.removed_shards


def test_overwrite_names_what_it_removes_before_and_after(store: Store, output: Path) -> None:
    """The store has four samples in one bucket and three in the other."""
    assert gone(packed(store, output)) == ([], [])
    names = [
        f"bucket_{bucket}/shard-00000{number}.tar" for bucket in (ONE, OTHER) for number in (0, 1)
    ]
    options: dict[str, Any] = {"shard_size": 3, "bucket": [OTHER], "overwrite": True}
    for dry_run in (True, False):
        assert sorted(shard_names(contents(output))) == names
        summary = packed(store, output, dry_run=dry_run, **options)
        assert gone(summary) == ([names[2]], [names[3]])
    assert gone(packed(store, output, overwrite=True, limit=1)) == ([names[0]], names[1:3])
    assert sorted(shard_names(contents(output))) == names[:1]


def test_a_bucket_that_a_limit_leaves_without_samples_is_emptied_if_it_was_named(
    store: Store, output: Path
) -> None:
    packed(store, output)
    summary = packed(store, output, bucket=[ONE, OTHER], limit=1, overwrite=True)
    assert ids_by_shard(output) == {f"bucket_{ONE}/shard-000000.tar": ["img0"]}
    assert len(summary.removed_shards) == 3
    assert verify(output, workers=1).findings == []


def test_the_refusal_of_a_bucket_says_which_shards_would_go(store: Store, output: Path) -> None:
    packed(store, output)
    with pytest.raises(ShardExistsError, match=f"removes all 2 shards of {OTHER} once the new"):
        packed(store, output, bucket=[OTHER], limit=1)


def test_a_resumed_overwrite_tells_what_goes_too(store: Store, output: Path) -> None:
    packed(store, output, shard_size=1)
    with using(KillingDisk(15)), pytest.raises(Killed):
        packed(store, output, overwrite=True)
    dry = packed(store, output, resume=True, dry_run=True)
    before = shard_names(contents(output))
    done = packed(store, output, resume=True)
    after = shard_names(contents(output))
    assert gone(dry) == gone(done)
    assert set(done.removed_shards) == set(before) - set(after)


def test_a_full_disk_while_buckets_are_replaced_promises_no_finished_shards(
    tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", records(4))
    for folder in (output, tmp_path / "copy"):
        pack(derived_dir=store.root, output_dir=folder, workers=1)
    with using(disk := WatchedDisk()):
        pack(derived_dir=store.root, output_dir=tmp_path / "copy", workers=1, overwrite=True)
    at = 1 + next(n for n, c in enumerate(disk.calls) if c.name == "write" and ".tar" in c.path)
    with (
        using(FailingDisk(at, errno.ENOSPC, once=False)),
        pytest.raises(NoSpaceError, match=r"make room and run the same pack with --resume$"),
    ):
        pack(derived_dir=store.root, output_dir=output, workers=1, overwrite=True)
