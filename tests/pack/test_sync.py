"""``pack --sync``: the shards follow a store that has changed, and what has not stays as it is."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from shardwright import (
    OutdatedError,
    PackSummary,
    Progress,
    SourceChangedError,
    UsageError,
    index,
    pack,
    verify,
)
from shardwright.packing.start import current_run
from shardwright.shards.format import consistency, manifest
from shardwright.shards.format.records import records_name
from shardwright.storage.files import using
from tests import commands
from tests.durability.soak import stride, times
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import Record, array, make_store, npy, record
from tests.tars import all_ids, ids_by_shard, listing

ONE, OTHER, NEW = "24x16", "32x16", "16x24"
Change = Callable[["Changing"], None]


def latent(fields: Record) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


class Changing:
    """A store whose records and arrays change."""

    def __init__(self, root: Path, records: list[Record]) -> None:
        self.records = {fields["image_id"]: fields for fields in records}
        self.root = root
        self.write()

    def write(self) -> None:
        self.store = make_store(self.root, list(self.records.values()), latent=latent)

    def add(self, *names: str, bucket: str = ONE) -> None:
        self.records |= {name: record(name, bucket) for name in names}
        self.write()

    def remove(self, *names: str) -> None:
        for name in names:
            del self.records[name]
        self.write()

    def caption(self, name: str, caption: str = "another") -> None:
        self.records[name] = {**self.records[name], "caption": caption}
        self.write()

    def recompute(self, name: str, seed: str) -> None:
        """Put another array of the same size in the place of one."""
        path, shape = self.store.array("vae", name), latent(self.records[name])
        path.with_suffix(".new").write_bytes(npy(array("vae", name + seed, shape)))
        path.with_suffix(".new").rename(path)

    def move(self, name: str, bucket: str) -> None:
        self.records[name] = record(name, bucket)
        self.store.array("vae", name).unlink()
        self.write()


def packed(changing: Changing, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(derived_dir=changing.root, output_dir=output, workers=1, **options)


def stamps(output: Path) -> dict[str, tuple[int, int]]:
    names = [name for name in listing(output) if name.endswith((".tar", ".idx", ".jsonl"))]
    return {n: ((output / n).stat().st_ino, (output / n).stat().st_mtime_ns) for n in names}


def assert_follows(changing: Changing, output: Path) -> None:
    """The shards hold exactly what is in the store, with numbers without gaps."""
    report = verify(output, against=changing.root, read_data=True, workers=1)
    assert report.findings == []
    assert sorted(all_ids(output)) == sorted(changing.records)
    numbers: dict[str, list[int]] = {}
    for path in ids_by_shard(output):
        numbers.setdefault(path.partition("/")[0], []).append(int(path[-10:-4]))
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert {path.name for path in output.glob("bucket_*")} == set(numbers)
    beside = {str(path.relative_to(output)) for path in output.rglob("*.jsonl")}
    assert beside == set(map(records_name, ids_by_shard(output)))
    listed = manifest.load_manifest(output)
    assert listed is not None
    assert list(consistency.contradictions(listed)) == []


@pytest.fixture
def seven(tmp_path: Path, output: Path) -> Changing:
    """img0 to img4 in three shards of one bucket, img5 and img6 in one of another."""
    records = [record(f"img{number}", ONE if number < 5 else OTHER) for number in range(7)]
    changing = Changing(tmp_path / "derived", records)
    packed(changing, output, shard_size=2)
    return changing


def test_only_shards_with_changed_or_removed_samples_are_written_again(
    seven: Changing, output: Path
) -> None:
    before = stamps(output)
    seven.caption("img0")
    seven.remove("img3")
    seven.add("img7", "img8", "img9")
    seven.add("img10", bucket=NEW)
    summary = packed(seven, output, sync=True)
    assert ids_by_shard(output) == {
        "bucket_16x24/shard-000000.tar": ["img10"],
        "bucket_24x16/shard-000000.tar": ["img0", "img1"],
        "bucket_24x16/shard-000001.tar": ["img2"],
        "bucket_24x16/shard-000002.tar": ["img4"],
        "bucket_24x16/shard-000003.tar": ["img7", "img8"],
        "bucket_24x16/shard-000004.tar": ["img9"],
        "bucket_32x16/shard-000000.tar": ["img5", "img6"],
    }
    after = stamps(output)
    kept = [name for name in before if "24x16/shard-000002" in name]
    kept += [name for name in before if "bucket_32x16" in name]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert len(kept) == 6
    assert after["bucket_24x16/shard-000000.tar"] != before["bucket_24x16/shard-000000.tar"]
    synced = summary.synced
    assert synced is not None
    assert {why: count.count for why, count in synced.changed.items()} == {"record": 1}
    assert {why: count.count for why, count in synced.removed.items()} == {"record_gone": 1}
    assert (synced.new_samples, synced.untouched_shards, synced.moved_shards) == (4, 2, {})
    assert summary.replaced_shards == [f"bucket_24x16/shard-00000{number}.tar" for number in (0, 1)]
    assert summary.removed_shards == []
    assert (summary.written_shards, summary.written_samples) == (5, 7)
    assert_follows(seven, output)
    listed = manifest.load_manifest(output)
    assert listed is not None
    assert [(run.sync, run.shards) for run in listed.runs] == [(UNSET, 4), (True, 5)]


def test_a_recomputed_array_of_the_same_size_is_packed_again(seven: Changing, output: Path) -> None:
    seven.recompute("img2", "again")
    summary = packed(seven, output, sync=True)
    assert summary.replaced_shards == ["bucket_24x16/shard-000001.tar"]
    assert_follows(seven, output)


def test_the_last_shard_takes_the_number_of_one_that_becomes_empty(
    seven: Changing, output: Path
) -> None:
    seven.remove("img0", "img1")
    summary = packed(seven, output, sync=True)
    assert ids_by_shard(output) == {
        "bucket_24x16/shard-000000.tar": ["img4"],
        "bucket_24x16/shard-000001.tar": ["img2", "img3"],
        "bucket_32x16/shard-000000.tar": ["img5", "img6"],
    }
    assert summary.synced is not None
    assert summary.synced.moved_shards == {
        "bucket_24x16/shard-000002.tar": "bucket_24x16/shard-000000.tar"
    }
    assert summary.removed_shards == ["bucket_24x16/shard-000002.tar"]
    assert_follows(seven, output)


def test_a_bucket_that_becomes_empty_loses_its_folder(seven: Changing, output: Path) -> None:
    seven.remove("img5", "img6")
    packed(seven, output, sync=True)
    assert not [name for name in listing(output) if "32x16" in name]
    assert_follows(seven, output)
    assert packed(seven, output, sync=True).written_shards == 0


def counts(summary: PackSummary) -> tuple[dict[str, int], dict[str, int], int]:
    """Give the changed and the removed samples by reason, and how many are new."""
    assert summary.synced is not None
    changed, removed = (
        {reason: one.count for reason, one in found.items()}
        for found in (summary.synced.changed, summary.synced.removed)
    )
    return changed, removed, summary.synced.new_samples


def test_a_sample_that_moves_to_another_bucket_is_changed_and_not_new(
    seven: Changing, output: Path
) -> None:
    seven.move("img1", OTHER)
    assert counts(packed(seven, output, sync=True)) == ({"aspect_bucket": 1}, {}, 0)
    assert ids_by_shard(output)["bucket_24x16/shard-000000.tar"] == ["img0"]
    assert ids_by_shard(output)["bucket_32x16/shard-000001.tar"] == ["img1"]
    assert_follows(seven, output)


def test_a_moved_sample_whose_place_a_limit_gives_to_another_is_removed(
    tmp_path: Path, output: Path
) -> None:
    changing = Changing(tmp_path / "derived", [record(f"img{n}", ONE) for n in range(3)])
    packed(changing, output, limit=3)
    del changing.records["img2"]
    changing.records = {"img9": record("img9", ONE), **changing.records}
    changing.move("img1", OTHER)
    summary = packed(changing, output, sync=True, limit=2)
    assert sorted(all_ids(output)) == ["img0", "img9"]
    assert counts(summary) == ({}, {"record_gone": 1, "not_selected": 1}, 1)


def test_the_table_of_a_sync_shows_the_folder_as_it_is_then(seven: Changing, output: Path) -> None:
    seven.move("img1", NEW)
    seven.remove("img4")
    flags = ("pack", "--sync", "--derived-dir", seven.root, "--output-dir", output)
    expected = [["16x24", "1", "1"], ["24x16", "3", "2"], ["32x16", "2", "1"]]
    for more in (["--dry-run"], []):
        lines = commands.run(*flags, *more).stdout.splitlines()
        at = lines.index("after the sync:")
        assert lines[at + 1].split() == ["bucket", "samples", "shards", "bytes"]
        rows = [line.split() for line in lines[at + 2 :] if line.startswith(("16x", "24x", "32x"))]
        assert [row[:3] for row in rows] == expected
    sizes = [sum(p.stat().st_size for p in output.glob(f"bucket_{row[0]}/*")) for row in expected]
    assert [row[3] for row in rows] == [f"{size:,}" for size in sizes]
    assert "after the sync" not in commands.run(*flags).stdout  # which has nothing to do


def test_the_table_of_a_sync_shows_every_part(split: Changing, output: Path) -> None:
    held = {part: len(all_ids(output / part)) for part in ("train", "val")}
    split.caption(all_ids(output / "train")[0])
    flags = ("--derived-dir", split.root, "--output-dir", output)
    lines = commands.run("pack", "--sync", *flags).stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith(("train", "val"))]
    assert {row[0]: int(row[1]) for row in rows} == held


def test_a_sync_with_nothing_to_do_says_so_and_changes_nothing(
    seven: Changing, output: Path
) -> None:
    before, times = contents(output), stamps(output)
    done = commands.run("pack", "--sync", "--derived-dir", seven.root, "--output-dir", output)
    assert done.returncode == 0
    assert "nothing to sync: 4 shards up to date" in done.stdout
    assert (contents(output), stamps(output)) == (before, times)
    flags = ("--derived-dir", seven.root, "--output-dir", output, "--shard-size", "3")
    done = commands.run("pack", "--sync", *flags)
    assert "nothing to sync: 4 shards up to date; new settings recorded\n" in done.stdout


def test_a_sync_goes_on_with_the_settings_of_the_last_run(tmp_path: Path, output: Path) -> None:
    changing = Changing(tmp_path / "derived", [record(f"img{n}", ONE) for n in range(3)])
    packed(changing, output, shard_size=2, shuffle=True, seed=3, limit=5, sha256=True)
    changing.add("img3", "img4", "img5", "img6")
    packed(changing, output, sync=True)
    listed = manifest.load_manifest(output)
    assert listed is not None
    assert listed.runs[0].settings == listed.runs[1].settings
    assert len(all_ids(output)) == 5  # the limit is of all samples
    assert all(len(ids) <= 2 for ids in ids_by_shard(output).values())
    done = subprocess.run(["sha256sum", "-c", ".shardwright/SHA256SUMS"], cwd=output, check=True)
    assert done.returncode == 0
    packed(changing, output, sync=True, limit=7, shard_size=1)
    assert_follows(changing, output)
    assert [len(ids) for ids in ids_by_shard(output).values()] == [2, 1, 2, 1, 1]


def test_samples_of_a_list_are_taken_out_and_stay_out(
    seven: Changing, output: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("img1\nimg5\nimg6\n")
    summary = packed(seven, output, sync=True, exclude_ids_file=bad)
    assert summary.synced is not None
    assert {why: count.count for why, count in summary.synced.removed.items()} == {
        "not_selected": 3
    }
    assert sorted(all_ids(output)) == ["img0", "img2", "img3", "img4"]
    seven.add("img7")
    packed(seven, output, sync=True)
    assert sorted(all_ids(output)) == ["img0", "img2", "img3", "img4", "img7"]
    bad.write_text("img6\n")
    packed(seven, output, sync=True)
    assert sorted(all_ids(output)) == ["img0", "img1", "img2", "img3", "img4", "img5", "img7"]


def test_a_list_is_remembered_even_if_no_packed_sample_is_in_it(
    seven: Changing, output: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("img7\n")
    packed(seven, output, sync=True, exclude_ids_file=bad)
    seven.add("img7")
    packed(seven, output, sync=True)
    assert "img7" not in all_ids(output)


@pytest.mark.parametrize("way", ["append", "overwrite"])
def test_a_run_of_one_bucket_neither_removes_nor_hides_the_others_from_a_sync(
    way: str, seven: Changing, output: Path
) -> None:
    seven.add("img7", bucket=OTHER)
    packed(seven, output, bucket=[OTHER], **{way: True})
    seven.add("img8", "img9")
    seven.caption("img5")
    for _ in range(2):
        packed(seven, output, sync=True)
        assert_follows(seven, output)


def test_samples_outside_the_buckets_of_a_folder_are_not_added_but_a_moved_one_stays(
    seven: Changing, tmp_path: Path
) -> None:
    output = tmp_path / "some"
    packed(seven, output, bucket=[ONE])
    seven.add("img7", bucket=OTHER)
    seven.add("img8")
    seven.move("img1", NEW)
    packed(seven, output, sync=True)
    assert sorted(all_ids(output)) == [f"img{number}" for number in (0, 1, 2, 3, 4, 8)]


def test_a_sync_of_one_bucket_is_refused(seven: Changing, output: Path) -> None:
    with pytest.raises(UsageError) as refused:
        packed(seven, output, sync=True, bucket=[ONE, OTHER])
    assert str(refused.value) == (
        "--sync follows all buckets of a folder, and --bucket names some; to keep only these, give "
        """--where 'bucket in ("24x16", "32x16")'"""
    )
    packed(seven, output, sync=True, where=f'bucket = "{OTHER}"')
    assert sorted(all_ids(output)) == ["img5", "img6"]


@pytest.mark.parametrize("way", ["append", "overwrite", "part"])
def test_other_conditions_than_those_of_the_shards_that_stay_are_refused(
    way: str, split: Changing, tmp_path: Path
) -> None:
    output, where = tmp_path / "chosen", "height < 9000"
    split.add("other", bucket=NEW)
    packed(split, output, where=where, split="val=50%")
    bad = tmp_path / "bad.txt"
    bad.write_text("img1\n")
    options: dict[str, Any] = {"append" if way == "append" else "overwrite": True}
    options |= {"bucket": [NEW]} if way == "overwrite" else {}
    target = output / "val" if way == "part" else output
    sync = f"run shardwright pack --derived-dir {split.root} --output-dir {output} --sync "
    for other, spelt in (
        ({"where": "height > 2"}, "--where 'height > 2'"),
        ({"exclude_ids_file": bad}, f"--where 'height < 9000' --exclude-ids-file {bad}"),
    ):
        with pytest.raises(UsageError) as refused:
            packed(split, target, **options, **other)
        assert str(refused.value) == (
            f"{target}: was packed with --where 'height < 9000', so nothing was written; to change "
            f"that, {sync}{spelt}"
        )
    packed(split, target, **options, where=where)


def test_what_is_appended_or_resumed_without_conditions_has_those_of_the_folder(
    seven: Changing, tmp_path: Path
) -> None:
    output = tmp_path / "chosen"
    packed(seven, output, bucket=[ONE], where='image_id !~ "[16]"')
    packed(seven, output, bucket=[OTHER])
    packed(seven, output, resume=True, bucket=[OTHER])
    packed(seven, output, overwrite=True, bucket=[ONE])
    for _ in range(2):
        assert sorted(all_ids(output)) == ["img0", "img2", "img3", "img4", "img5"]
        packed(seven, output, sync=True)


def test_a_packed_sample_that_a_list_leaves_out_now_is_outdated(
    seven: Changing, output: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("img7\n")
    packed(seven, output, sync=True, exclude_ids_file=bad)
    bad.write_text("img7\nimg2\n")
    with pytest.raises(OutdatedError, match=r"1 removed \(not_selected; for example img2\)"):
        packed(seven, output, append=True)
    packed(seven, output, sync=True)
    assert packed(seven, output, append=True).written_samples == 0


def test_a_sync_that_begins_to_shuffle_does_so_by_a_seed(seven: Changing, output: Path) -> None:
    def settings() -> tuple[bool, int | None]:
        listed = manifest.load_manifest(output)
        assert listed is not None
        return listed.runs[-1].settings.shuffle, listed.runs[-1].settings.seed

    for options, recorded in (
        ({"seed": 5}, (False, None)),
        ({"shuffle": True}, (True, 0)),
        ({"seed": 7}, (True, 7)),
        ({"shuffle": True}, (True, 7)),
        ({}, (True, 7)),
    ):
        packed(seven, output, sync=True, **options)
        assert settings() == recorded


@pytest.mark.parametrize("fault", ["missing", "invalid"])
def test_a_packed_sample_that_is_not_ready_is_not_lost(
    fault: str, seven: Changing, output: Path
) -> None:
    path = seven.store.array("vae", "img1")
    path.write_bytes(b"invalid") if fault == "invalid" else path.unlink()
    before = contents(output)
    reason = "vae_not_npy" if fault == "invalid" else "vae_missing"
    with pytest.raises(OutdatedError) as refused:
        packed(seven, output, sync=True)
    assert f"1 packed sample is not ready ({reason}; for example img1)" in str(refused.value)
    assert "run shardwright derive" in str(refused.value)
    assert contents(output) == before
    bad = output.with_name("bad.txt")
    bad.write_text("img1\n")
    packed(seven, output, sync=True, exclude_ids_file=bad)
    assert sorted(all_ids(output)) == ["img0", "img2", "img3", "img4", "img5", "img6"]


def test_a_sync_that_would_leave_nothing_is_refused(seven: Changing, output: Path) -> None:
    seven.remove(*list(seven.records))
    before = contents(output)
    with pytest.raises(UsageError, match="no sample would be left of 7 packed samples"):
        packed(seven, output, sync=True)
    assert contents(output) == before


def test_a_dry_run_of_a_sync_lists_what_it_would_do_and_does_nothing(
    seven: Changing, output: Path
) -> None:
    seven.remove("img0", "img1")
    seven.caption("img5")
    seven.add("img7", bucket=NEW)
    before = contents(output)
    flags = ("--derived-dir", seven.root, "--output-dir", output)
    done = commands.run("pack", "--sync", "--dry-run", *flags)
    assert contents(output) == before
    assert done.stdout.startswith(
        f"would sync {output} with the store: 1 changed, 2 removed, 1 new sample; 3 shards written"
    )
    assert " 1 removed, 1 kept [" in done.stdout.splitlines()[0]
    lines = [text.strip() for text in done.stdout.splitlines()]
    assert "  record: 1 (for example img5)" in done.stdout.splitlines()
    move = "bucket_24x16/shard-000002.tar becomes bucket_24x16/shard-000000.tar"
    assert move in lines
    at = lines.index("note: would remove 1 shard:")
    assert lines[at + 1] == "bucket_24x16/shard-000002.tar"
    packed(seven, output, sync=True)
    assert_follows(seven, output)


def test_index_files_of_the_shards_before_are_noted_with_the_command(
    seven: Changing, output: Path
) -> None:
    update = f"shardwright index {output} --for energon,hf"
    index(output, for_=["energon", "hf"])
    assert packed(seven, output, sync=True).index_commands == []
    seven.caption("img0")
    done = commands.run(
        *("pack", "--derived-dir", seven.root, "--output-dir", output, "--sync", "--dry-run")
    )
    assert done.stdout.endswith(
        "\n\nnote: files that shardwright index wrote for other loaders would be of the shards "
        f"before; to update them, run:\n  {update}\n"
    )
    assert packed(seven, output, sync=True).index_commands == [update]
    seven.add("z9")
    assert packed(seven, output, append=True).index_commands == [update]
    assert packed(seven, output, overwrite=True).index_commands == [update]
    assert commands.run(*update.split()[1:]).returncode == 0
    assert packed(seven, output, append=True).index_commands == []
    index(output, for_=["energon", "hf"], remove=True)
    assert packed(seven, output, overwrite=True).index_commands == []


def test_a_part_that_loses_its_shards_has_no_use_for_index_files(
    tmp_path: Path, output: Path
) -> None:
    names = [f"a{n}" for n in range(8)]
    changing = Changing(tmp_path / "derived", [record(name, ONE) for name in names])
    packed(changing, output, split="val=30%")
    index(output / "val", for_="wids")
    changing.remove(*all_ids(output / "val"))
    (remove,) = packed(changing, output, sync=True).index_commands
    assert remove == f"shardwright index {output / 'val'} --for wids --remove"
    assert commands.run(*remove.split()[1:]).returncode == 0


def test_a_sync_of_a_folder_without_shards_is_refused(seven: Changing, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="new: no shards to sync; leave out --sync"):
        packed(seven, tmp_path / "new", sync=True)
    assert not (tmp_path / "new").exists()


def test_a_sync_after_an_interrupted_append_removes_what_that_left(
    seven: Changing, output: Path
) -> None:
    seven.add("img7", "img8", "img9")
    with using(KillingDisk(30)), pytest.raises(Killed):
        packed(seven, output, append=True, shard_size=1)
    assert len(ids_by_shard(output)) > 4
    seven.remove("img7", "img8", "img9")
    seven.caption("img5")
    packed(seven, output, sync=True)
    assert_follows(seven, output)


def interrupted(changing: Changing, output: Path, call: str, **options: Any) -> None:  # noqa: ANN401
    """Sync, and be killed at the first such call after the manifest is withdrawn."""
    copy = output.with_name("copy")
    shutil.copytree(output, copy)
    with using(disk := WatchedDisk()):
        packed(changing, copy, sync=True, **options)
    shutil.rmtree(copy)
    gone = next(n for n, c in enumerate(disk.calls) if c.path.endswith("manifest.json"))
    at = next(n for n, name in enumerate(disk.names[gone + 2 :], gone + 3) if name == call)
    with using(KillingDisk(at)), pytest.raises(Killed):
        packed(changing, output, sync=True, **options)
    assert manifest.load_manifest(output) is None


@pytest.mark.parametrize(("way", "call"), [("sync", "unlink"), ("resume", "rename")])
def test_an_interrupted_sync_is_finished_by_sync_or_resume(
    way: str, call: str, seven: Changing, output: Path, tmp_path: Path
) -> None:
    shutil.copytree(output, tmp_path / "unbroken")
    seven.remove("img0", "img1")
    seven.caption("img6")
    seven.add("img7", "img8", bucket=NEW)
    bad = tmp_path / "bad.txt"
    bad.write_text("img8\n")
    unbroken = packed(seven, tmp_path / "unbroken", sync=True, exclude_ids_file=bad).synced
    interrupted(seven, output, call, exclude_ids_file=bad)
    (unfinished,) = (f for f in verify(output, workers=1).findings if f.kind == "unfinished")
    assert unfinished.fix == "if none is active, finish it with pack --sync"
    with pytest.raises(UsageError, match="interrupted; finish it with --sync"):
        packed(seven, output, append=True)
    summary = packed(seven, output, **{way: True})
    assert contents(output) == contents(tmp_path / "unbroken")
    assert summary.synced is not None
    assert unbroken is not None
    assert (summary.synced.changed, summary.synced.removed) == (unbroken.changed, unbroken.removed)
    assert (
        summary.packed_before
        <= summary.ready_records - summary.left_out["--exclude-ids-file"].count
    )


def test_an_array_that_changes_during_a_sync_is_followed_by_another_one(
    seven: Changing, output: Path
) -> None:
    class Meddling(Progress):
        def phase(self, name: str, total: int, unit: str) -> None:
            if name == "write":
                seven.recompute("img0", "meanwhile")

    seven.caption("img0")
    with pytest.raises(SourceChangedError, match=r"--resume, or if that is refused with --sync$"):
        packed(seven, output, sync=True, progress=Meddling())
    packed(seven, output, sync=True)
    assert_follows(seven, output)


def test_an_interrupted_sync_follows_a_store_that_has_changed_since(
    seven: Changing, output: Path
) -> None:
    seven.remove("img0", "img1")
    interrupted(seven, output, "unlink")
    seven.remove("img4")
    seven.add("img7")
    with pytest.raises(UsageError, match=r"--resume: this is not the run to resume: .*--sync"):
        packed(seven, output, resume=True)
    packed(seven, output, sync=True)
    assert_follows(seven, output)


def test_resume_after_a_sync_brings_back_a_shard_that_was_deleted(
    seven: Changing, output: Path
) -> None:
    seven.caption("img0")
    seven.caption("img4")
    packed(seven, output, sync=True)
    before, times = contents(output), stamps(output)
    packed(seven, output, resume=True)
    assert (contents(output), stamps(output)) == (before, times)
    (output / "bucket_24x16/shard-000002.tar").unlink()
    assert packed(seven, output, resume=True).written_shards == 1
    assert contents(output) == before


@pytest.fixture
def split(tmp_path: Path, output: Path) -> Changing:
    """Twelve samples of six persons, in two parts."""
    people = [record(f"img{n:02}", ONE, person=f"p{n % 6}") for n in range(12)]
    changing = Changing(tmp_path / "derived", people)
    packed(changing, output, split="val=50%", split_by="person", shard_size=3)
    return changing


def shuffle_people(split: Changing, output: Path) -> tuple[set[str], set[str]]:
    """Move a sample from val to train and remove one from train; give what each must hold then."""
    train, val = ({*all_ids(output / part)} for part in ("train", "val"))
    moved, gone = min(val), max(train)
    person = split.records[min(train)]["person"]
    split.records[moved] = {**split.records[moved], "person": person}
    split.remove(gone)
    return (train - {gone}) | {moved}, val - {moved}


def test_samples_follow_into_the_parts_of_a_split(split: Changing, output: Path) -> None:
    train, val = shuffle_people(split, output)
    report = verify(output, against=split.root, workers=1)
    assert (report.outdated, report.damaged) == (2, False)
    sync = f"run shardwright pack --derived-dir {split.root} --output-dir {output} --sync"
    assert {one.fix for one in report.findings if one.kind == "outdated"} == {sync}
    with pytest.raises(OutdatedError, match=f"--output-dir {output} --sync"):
        packed(split, output, append=True)
    summary = packed(split, output, sync=True)
    assert counts(summary) == ({"split": 1}, {"record_gone": 1}, 0)
    assert ({*all_ids(output / "train")}, {*all_ids(output / "val")}) == (train, val)
    assert verify(output, against=split.root, workers=1).findings == []
    before = contents(output)
    assert packed(split, output, sync=True).written_shards == 0
    assert contents(output) == before


def test_a_part_that_becomes_empty_has_a_manifest_without_shards(
    split: Changing, output: Path
) -> None:
    gone = {name: split.records[name] for name in all_ids(output / "val")}
    train = contents(output / "train")
    split.remove(*gone)
    packed(split, output, sync=True)
    assert not [name for name in listing(output / "val") if "bucket" in name]
    listed = manifest.load_manifest(output / "val")
    assert listed is not None
    assert (listed.shards, [run.samples for run in listed.runs]) == ([], [0])
    assert not (output / "val/.shardwright/SHA256SUMS").exists()
    assert contents(output / "train") == train
    assert packed(split, output, sync=True).written_shards == 0
    assert verify(output, against=split.root, workers=1).findings == []
    split.records |= gone
    split.write()
    packed(split, output, sync=True)
    assert sorted(all_ids(output / "val")) == sorted(gone)
    assert contents(output / "train") == train


def test_a_sync_that_wrote_no_shard_in_a_part_is_not_taken_for_the_last_run(
    split: Changing, tmp_path: Path
) -> None:
    output = tmp_path / "three"
    packed(split, output, split="val=30%,test=30%")
    packed(split, output, sync=True, shard_size=2)
    split.add("a00")
    packed(split, output, append=True, shard_size=3)
    (new,) = (path for path in output.iterdir() if "a00" in all_ids(path))
    assert new.name != "test"
    last = current_run(output / name for name in ("test", "train", "val"))
    assert last is not None
    assert last.settings.shard_size == 3


@pytest.mark.parametrize("way", ["sync", "resume"])
def test_an_interrupted_sync_of_a_split_is_finished(
    way: str, split: Changing, output: Path, tmp_path: Path
) -> None:
    shuffle_people(split, output)
    shutil.copytree(output, tmp_path / "unbroken")
    with using(disk := WatchedDisk()):
        packed(split, tmp_path / "unbroken", sync=True)
    for at in range(3, len(disk.calls), stride(24)):
        shutil.copytree(output, tmp_path / "copy")
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(split, tmp_path / "copy", sync=True)
        begun = any((tmp_path / "copy").rglob(manifest.UNFINISHED_NAME))
        packed(split, tmp_path / "copy", **{way if begun else "sync": True})
        assert contents(tmp_path / "copy") == contents(tmp_path / "unbroken"), at
        shutil.rmtree(tmp_path / "copy")


NAMES = [f"img{number}" for number in range(8)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("caption"), st.sampled_from(NAMES)),
        st.tuples(st.just("recompute"), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("add"), st.sampled_from(NAMES)),
        st.tuples(st.just("move"), st.sampled_from(NAMES)),
        st.tuples(st.just("sync"), st.sampled_from(["1", "2", "3"])),
        st.tuples(st.just("append"), st.sampled_from([ONE, OTHER])),
    ),
    max_size=12,
)


@settings(max_examples=times(8), deadline=None)
@given(STEPS)
def test_after_any_history_the_shards_hold_exactly_the_ready_samples(
    steps: list[tuple[str, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, using(WatchedDisk()):
        root, output = Path(folder, "derived"), Path(folder, "shards")
        changing = Changing(root, [record("first", ONE), *(record(n, ONE) for n in NAMES[:5])])
        packed(changing, output, shard_size=2)
        for number, (step, name) in enumerate([*steps, ("sync", "2")]):
            there = name in changing.records
            if step == "sync":
                held = len(all_ids(output))
                summary = packed(changing, output, sync=True, shard_size=int(name))
                _, removed, new = counts(summary)
                assert held - sum(removed.values()) + new == len(all_ids(output))
                assert_follows(changing, output)
                before = contents(output)
                packed(changing, output, sync=True)
                assert contents(output) == before
            elif step == "append":
                with suppress(OutdatedError, UsageError):  # or no sample is in that bucket
                    packed(changing, output, append=True, bucket=[name])
            elif step == "add" and not there:
                changing.add(name, bucket=(ONE, OTHER)[number % 2])
            elif step == "move" and there:
                old = changing.records[name]["aspect_bucket"]
                changing.move(name, OTHER if old == ONE else ONE)
            elif there and step == "caption":
                changing.caption(name, f"caption {number:03}")
            elif there and step == "recompute":
                changing.recompute(name, str(number))
            elif there and step == "remove":
                changing.remove(name)
