"""Shards that move from the stage of a build to their places, killed at any step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import xxhash

import shardwright
from shardwright import DamageError, pack
from shardwright.shards.format import index, manifest
from shardwright.shards.format.index import ShardIndex, index_name
from shardwright.shards.format.manifest import Manifest, Run, ShardEntry
from shardwright.shards.format.moving import move_shard, remove_stage, stage_of
from shardwright.shards.format.records import records_name
from shardwright.storage.files import using
from tests.durability.powercut import RecordingDisk, replay
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import make_store, records

STAGED = "bucket_24x16/shard-000003.tar"
OTHER = "bucket_24x16/shard-000001.tar"
PATHS = {"the same number": STAGED, "another number": OTHER}


@dataclass(frozen=True)
class Case:
    """A shard in the stage of an output folder, and where it belongs."""

    output: Path
    entry: ShardEntry
    path: str
    start: dict[str, bytes | None]

    def reset(self, start: dict[str, bytes | None] | None = None) -> None:
        """Put back what was there in the beginning, or something else."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir()
        for name, data in (self.start if start is None else start).items():
            path = self.output / name
            if data is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def move(self) -> ShardEntry:
        return move_shard(stage_of(self.output), self.output, self.entry, self.path)


@pytest.fixture(params=PATHS)
def case(request: pytest.FixtureRequest, tmp_path: Path, output: Path) -> Case:
    """The fourth of four shards in the stage; in its new place may be one of an earlier run."""
    store = make_store(tmp_path / "derived", records(4, "24x16"))
    packed = tmp_path / "packed"
    pack(derived_dir=store.root, output_dir=packed, shard_size=1, workers=1)
    found = manifest.load_manifest(packed)
    assert found is not None
    (entry,) = [entry for entry in found.shards if entry.path == STAGED]
    for name in (STAGED, index_name(STAGED), records_name(STAGED)):
        path = stage_of(output) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(packed / name, path)
    return Case(output, entry, PATHS[request.param], contents(output))


def staged(case: Case, name: str) -> bytes:
    data = case.start[f".shardwright/build/{name}"]
    assert data is not None
    return data


def old_shard(case: Case) -> None:
    """Put a shard of an earlier run, which is overwritten, in the new place."""
    for name in (case.path, index_name(case.path), records_name(case.path)):
        (case.output / name).parent.mkdir(parents=True, exist_ok=True)
        (case.output / name).write_bytes(b"old")


def files_in(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if data is not None}


def test_a_shard_moves_with_its_records_and_an_index_that_names_its_new_path(case: Case) -> None:
    moved, stage = case.move(), stage_of(case.output)
    found = files_in(case.output)
    assert sorted(found) == sorted([case.path, index_name(case.path), records_name(case.path)])
    assert files_in(stage) == {}
    assert found[case.path] == staged(case, STAGED)
    assert found[records_name(case.path)] == staged(case, records_name(STAGED))
    before = index.decode(staged(case, index_name(STAGED)), STAGED)
    after = index.load(case.output, case.path)
    assert after.head.shard == case.path
    assert (after.head.ids, after.table) == (before.head.ids, before.table)
    assert moved.path == case.path
    assert moved.index_xxh3 == xxhash.xxh3_64_hexdigest(found[index_name(case.path)])
    assert (moved.xxh3, moved.samples, moved.bytes) == (
        case.entry.xxh3,
        case.entry.samples,
        case.entry.bytes,
    )
    if case.path == STAGED:
        assert moved == case.entry
        assert found[index_name(STAGED)] == staged(case, index_name(STAGED))
    assert case.move() == moved  # again, when all is done
    assert files_in(case.output) == found


def test_verify_accepts_a_shard_that_has_moved(case: Case, tmp_path: Path) -> None:
    packed = manifest.load_manifest(tmp_path / "packed")
    assert packed is not None
    entry = case.move()
    run = Run(
        tool="a test", append=False, settings=packed.runs[0].settings, plan="", total_records=1,
        ready_records=1, skipped_incomplete=0, skipped_by_reason={}, samples=1, shards=1, build={},
    )  # fmt: skip
    manifest.save_manifest(case.output, Manifest(runs=[run], shards=[entry]))
    report = shardwright.verify(case.output, read_data=True, workers=1)
    assert report.findings == []
    assert report.checked == {"shards": 1, "samples": 1}


@pytest.mark.parametrize("replaces", [False, True], ids=["a new shard", "an old one is replaced"])
def test_a_move_that_is_killed_at_any_call_is_finished_by_the_next(
    case: Case, replaces: bool
) -> None:
    if replaces:
        old_shard(case)
    start = contents(case.output)
    with using(disk := WatchedDisk()):
        expected, calls = case.move(), len(disk.calls)
    done = contents(case.output)
    for at in range(1, calls + 1):
        case.reset(start)
        with using(KillingDisk(at)), pytest.raises(Killed):
            case.move()
        tar = case.output / case.path
        if tar.exists() and tar.read_bytes() != b"old":
            head = index.load(case.output, case.path).head
            assert (head.shard, head.xxh3) == (case.path, case.entry.xxh3)
        assert case.move() == expected, f"killed at call {at}"
        assert contents(case.output) == done, f"killed at call {at}"


def test_a_move_that_is_killed_again_and_again_still_ends_right(case: Case) -> None:
    expected = case.move()
    done = contents(case.output)
    case.reset()
    for at in range(1, 30):
        with using(KillingDisk(at)):
            try:
                found = case.move()
            except Killed:
                continue
        assert found == expected
        break
    assert contents(case.output) == done


def test_a_power_cut_in_a_move_loses_nothing(case: Case) -> None:
    with using(disk := RecordingDisk()):
        expected = case.move()
    done = contents(case.output)
    cuts = 0
    for cut in replay(case.output, case.start, disk.log):
        assert cut.left is not None
        case.reset(cut.left)
        assert case.move() == expected
        assert files_in(case.output) == {k: data for k, data in done.items() if data is not None}
        cuts += 1
    assert cuts > 5


@pytest.mark.parametrize("lost", [STAGED, index_name(STAGED), records_name(STAGED)])
def test_a_file_that_is_neither_staged_nor_moved_is_damage(case: Case, lost: str) -> None:
    (stage_of(case.output) / lost).unlink()
    with pytest.raises(DamageError, match=f"{lost}: is missing; build again with --overwrite"):
        case.move()
    assert not (case.output / case.path).exists()


def test_the_index_of_an_old_shard_does_not_pass_for_one_that_has_moved(case: Case) -> None:
    name = index_name(case.path)
    other = index.decode(staged(case, index_name(STAGED)), STAGED)
    head = msgspec.structs.replace(other.head, shard=case.path, xxh3="00")
    (case.output / name).parent.mkdir(parents=True)
    (case.output / name).write_bytes(index.encode(ShardIndex(head, other.table)))
    (stage_of(case.output) / index_name(STAGED)).unlink()
    with pytest.raises(DamageError, match=r"is the index of another shard; build again with --ov"):
        case.move()


def test_a_stage_is_removed_with_all_that_is_in_it(case: Case) -> None:
    (stage_of(case.output) / "notes.json").write_bytes(b"{}")
    remove_stage(case.output)
    assert contents(case.output) == {".shardwright": None}
    with using(disk := WatchedDisk()):
        remove_stage(case.output)  # there is none
    assert disk.calls == []
