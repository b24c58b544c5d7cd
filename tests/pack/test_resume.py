"""``pack --resume``: the rest of an interrupted run, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from shardwright import PackSummary, ShardExistsError, UsageError, pack
from shardwright.errors import DamageError
from shardwright.packing import start
from shardwright.packing.start import Target
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Manifest, PackSettings, Run, ShardEntry
from shardwright.storage.files import using
from tests import commands
from tests.faults import Killed, KillingDisk, contents
from tests.stores import Store, line, make_store, record, records

OPTIONS: dict[str, Any] = {"shard_size": 2, "workers": 1}


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(derived_dir=store.root, output_dir=output, **{**OPTIONS, **options})


def interrupted(store: Store, output: Path, calls: int = 55, **options: Any) -> None:  # noqa: ANN401
    """Pack, and be killed after some shards."""
    with using(KillingDisk(calls)), pytest.raises(Killed):
        packed(store, output, **options)


def stamps(output: Path) -> dict[str, tuple[int, int]]:
    """Tell files apart that were written again."""
    found = sorted(output.glob("bucket_*/*.tar"))
    return {str(p.relative_to(output)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


def test_resume_keeps_finished_shards_and_writes_the_rest(
    store: Store, output: Path, tmp_path: Path
) -> None:
    interrupted(store, output)
    before = stamps(output)
    assert len(before) == 2
    summary = packed(store, output, resume=True)
    after = stamps(output)
    assert summary.kept_shards == 2
    assert summary.written_shards == len(after) - 2
    assert {name: after[name] for name in before} == before
    packed(store, tmp_path / "unbroken")
    assert contents(output) == contents(tmp_path / "unbroken")


def test_the_error_for_an_existing_shard_mentions_resume_only_when_it_applies(
    store: Store, output: Path
) -> None:
    interrupted(store, output)
    with pytest.raises(ShardExistsError, match="give --resume to finish the interrupted run"):
        packed(store, output)
    packed(store, output, resume=True)
    with pytest.raises(ShardExistsError) as told:
        packed(store, output)
    assert "--resume" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"shard_size": 3}, "--shard-size was 2 and is 3"),
        ({"shuffle": True}, "--shuffle was not given and is given"),
        ({"limit": 5}, "--limit was not given and is 5"),
        ({"bucket": ["832x1216"]}, "--bucket was not given and is 832x1216"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_resume_of_another_plan_is_refused_saying_what_differs(
    options: dict[str, Any], difference: str, finished: bool, store: Store, output: Path
) -> None:
    if finished:
        packed(store, output)
    else:
        interrupted(store, output)
    before = contents(output)
    with pytest.raises(UsageError, match=difference):
        packed(store, output, resume=True, **options)
    assert contents(output) == before


def test_resume_with_another_seed_is_refused(store: Store, output: Path) -> None:
    interrupted(store, output, shuffle=True, seed=1)
    with pytest.raises(UsageError, match="--seed was 1 and is 2"):
        packed(store, output, resume=True, shuffle=True, seed=2)


def test_resume_from_a_store_that_has_changed_is_refused(store: Store, output: Path) -> None:
    interrupted(store, output)
    changed = [{**fields, "caption": "another"} for fields in store.records]
    store.write_lines(map(line, changed))
    with pytest.raises(UsageError, match="the records or arrays of the store have changed"):
        packed(store, output, resume=True)


@pytest.mark.parametrize(
    "damage", ["short", "no index", "damaged index", "gone", "no records", "damaged records"]
)
def test_resume_rewrites_a_damaged_shard(
    damage: str, store: Store, output: Path, tmp_path: Path
) -> None:
    interrupted(store, output)
    shard = sorted(output.glob("bucket_*/*.tar"))[0]
    name = shard.relative_to(output).with_suffix(".idx")
    index = output / ".shardwright/index" / name
    if damage == "short":
        shard.write_bytes(shard.read_bytes()[:-512])
    elif damage == "no index":
        index.unlink()
    elif damage == "damaged index":
        index.write_bytes(index.read_bytes()[:-1] + b"x")
    elif damage == "no records":
        index.with_suffix(".jsonl").unlink()
    elif damage == "damaged records":
        lines = index.with_suffix(".jsonl")
        lines.write_bytes(lines.read_bytes().replace(b"a picture", b"a drawing"))
    else:
        shard.unlink()
    assert packed(store, output, resume=True).kept_shards == 1
    packed(store, tmp_path / "unbroken")
    assert contents(output) == contents(tmp_path / "unbroken")


def test_resume_rewrites_a_shard_whose_array_was_recomputed(
    store: Store, output: Path, tmp_path: Path
) -> None:
    interrupted(store, output)
    bucket = sorted(stamps(output))[0].split("/")[0].removeprefix("bucket_")
    image_id = next(r["image_id"] for r in store.records if r["aspect_bucket"] == bucket)
    path = store.root / "dinov3" / f"{image_id}.npy"
    other = path.read_bytes()
    path.with_suffix(".new").write_bytes(other[:-4] + bytes(4))
    path.with_suffix(".new").rename(path)
    assert packed(store, output, resume=True).kept_shards == 1
    packed(store, tmp_path / "unbroken")
    assert contents(output) == contents(tmp_path / "unbroken")


def test_resuming_what_is_finished_changes_nothing(store: Store, output: Path) -> None:
    packed(store, output, sha256=True)
    before, written = contents(output), stamps(output)
    summary = packed(store, output, resume=True)
    assert (summary.written_shards, summary.kept_shards) == (0, len(written))
    assert contents(output) == before
    assert stamps(output) == written


def test_resuming_brings_back_a_shard_that_was_deleted(store: Store, output: Path) -> None:
    packed(store, output)
    before = contents(output)
    (output / "bucket_1024x1024/shard-000001.tar").unlink()
    assert packed(store, output, resume=True).written_shards == 1
    assert contents(output) == before


def test_resuming_nothing_packs_everything(store: Store, output: Path, tmp_path: Path) -> None:
    packed(store, output, resume=True)
    packed(store, tmp_path / "unbroken")
    assert contents(output) == contents(tmp_path / "unbroken")


def test_an_interrupted_run_is_finished_by_any_number_of_workers(tmp_path: Path) -> None:
    store = make_store(tmp_path / "derived", records(12))
    interrupted(store, tmp_path / "shards")
    packed(store, tmp_path / "shards", resume=True, workers=3)
    packed(store, tmp_path / "unbroken")
    assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")


def test_a_run_that_begins_elsewhere_does_not_forget_the_interrupted_one(
    store: Store, output: Path
) -> None:
    interrupted(store, output, bucket=["1024x1024"], calls=30)
    before = contents(output)
    with pytest.raises(ShardExistsError, match="--resume to finish the interrupted run"):
        packed(store, output, bucket=["832x1216"])
    with pytest.raises(ShardExistsError, match="--resume to finish the interrupted run"):
        packed(store, output, bucket=["832x1216"], overwrite=True)
    assert contents(output) == before


def test_a_damaged_note_of_the_interrupted_run_is_told(store: Store, output: Path) -> None:
    interrupted(store, output)
    path = output / ".shardwright" / manifest.UNFINISHED_NAME
    path.write_bytes(path.read_bytes().replace(b"false", b"true "))
    with pytest.raises(DamageError, match=r"unfinished\.json: is damaged; .*--overwrite"):
        packed(store, output, resume=True)
    packed(store, output, overwrite=True)
    assert not path.exists()


def test_the_pack_command_resumes(store: Store, output: Path) -> None:
    interrupted(store, output)
    arguments = ("pack", "--derived-dir", store.root, "--output-dir", output, "--shard-size", "2")
    done = commands.run(*arguments)
    assert done.returncode == 1
    assert "--resume" in done.stderr
    done = commands.run(*arguments, "--resume")
    assert done.returncode == 0
    assert "2 shards kept" in done.stdout


def test_append_overwrite_and_resume_exclude_one_another(store: Store, output: Path) -> None:
    for flags in ({"resume", "append"}, {"resume", "overwrite"}, {"append", "overwrite"}):
        with pytest.raises(UsageError, match="use only one of"):
            packed(store, output, **dict.fromkeys(flags, True))
    assert not output.exists()


def test_an_unready_record_is_told_by_the_manifest(tmp_path: Path) -> None:
    bad = record("bad", caption="")
    store = make_store(tmp_path / "derived", [*records(3), bad])
    packed(store, tmp_path / "shards", limit=2)
    made = manifest.load_manifest(tmp_path / "shards")
    assert made is not None
    (run,) = made.runs
    assert (run.total_records, run.ready_records, run.samples) == (4, 3, 2)
    assert run.skipped_by_reason == {"caption_invalid": {"count": 1, "example": "bad"}}
    assert run.settings.limit == 2


def test_a_resume_with_other_settings_says_them_as_they_were_given(
    store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output, shuffle=True, limit=3)
    with pytest.raises(UsageError) as refused:
        pack(derived_dir=store.root, output_dir=output, bucket=["832x1216"], limit=0, resume=True)
    assert (
        "--bucket was not given and is 832x1216, --shuffle was given and is not given, "
        "--seed was 0 and is not given, --limit was 3 and is 0"
    ) in str(refused.value)


def test_resume_does_not_replace_shards_of_others(store: Store, output: Path) -> None:
    theirs = output / f"bucket_{store.records[0]['aspect_bucket']}" / "shard-000000.tar"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"precious")
    with pytest.raises(ShardExistsError, match="nothing was written"):
        pack(derived_dir=store.root, output_dir=output, resume=True)
    assert theirs.read_bytes() == b"precious"


def test_a_run_of_very_many_shards_is_gone_over_again_in_a_moment(tmp_path: Path) -> None:
    settings = PackSettings(buckets=[], shuffle=False, seed=None, limit=None, shard_size=1)
    count, runs, shards = 30_000, list[Run](), list[ShardEntry]()
    for number in range(2):
        run = Run(
            tool="",
            append=False,
            settings=settings,
            plan=str(number),
            total_records=count,
            ready_records=count,
            skipped_incomplete=0,
            skipped_by_reason={},
            samples=count,
            shards=count,
        )
        runs.append(run)
    for number in range(2 * count):
        entry = ShardEntry(
            run=number // count,
            path=f"bucket_64x64/shard-{number:06}.tar",
            bucket="64x64",
            samples=1,
            bytes=1 << 20,
            xxh3="",
            index_xxh3="",
            records_xxh3="",
        )
        shards.append(entry)
    (tmp_path / ".shardwright").mkdir()
    manifest.save_manifest(tmp_path, Manifest(runs=runs, shards=shards))
    began = time.process_time()
    found = start.resume(Target(tmp_path))
    assert time.process_time() - began < 4
    assert len(found.base.shards) == count
