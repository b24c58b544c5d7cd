"""``pack`` into a folder that ``shardwright build`` has written, or has not finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from shardwright import Progress, UsageError, pack, verify
from shardwright.shards.format import consistency, manifest
from shardwright.shards.format.manifest import Manifest, Run, Unfinished
from shardwright.shards.format.moving import stage_of
from shardwright.storage.files import using
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import Record, Store, make_store, record
from tests.tars import all_ids, ids_by_shard

ONE, OTHER = "24x16", "32x16"
FIRST = f"bucket_{ONE}/shard-000000.tar"
BUILD = {"inputs": ["images"]}
INTERRUPTED = (
    "its last run was an interrupted build; run the same shardwright build again to finish it, or "
    "give another --output-dir"
)


def latent(fields: Record) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


def make(root: Path, *numbers: int) -> Store:
    """Make a store in which every third sample is in another bucket."""
    samples = [record(f"img{n}", OTHER if n % 3 == 2 else ONE) for n in numbers]
    return make_store(root, samples, latent=latent)


def packed(store: Store, output: Path, **options: Any) -> None:  # noqa: ANN401
    options = {"shard_size": 2, "workers": 1, **options}
    pack(derived_dir=store.root, output_dir=output, **options)


def listed(output: Path) -> Manifest:
    found = manifest.load_manifest(output)
    assert found is not None
    return found


def as_built(run: Run) -> Run:
    return msgspec.structs.replace(run, build=BUILD, jsonl=None)


def built(store: Store, output: Path) -> None:
    """Leave what a finished build leaves: the same shards, and another run in the manifest."""
    packed(store, output)
    found = listed(output)
    runs = [as_built(run) for run in found.runs]
    manifest.save_manifest(output, msgspec.structs.replace(found, runs=runs))


def interrupted(store: Store, output: Path, *, append: bool = False) -> None:
    """Leave what a build leaves that was killed: some shards are in place, others in the stage."""
    built(store, output)
    found = listed(output)
    note = Unfinished(
        append=append,
        plan="",
        settings=found.runs[0].settings,
        replaces=[],
        base=found if append else None,
        build=BUILD,
    )
    if not append:
        manifest.remove_manifest(output)
    manifest.save_unfinished(output, note)
    for name in ("bucket_16x24/shard-000000.tar", "bucket_16x24/shard-000001.tar.tmp"):
        path = stage_of(output) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a shard")


@pytest.fixture
def small(tmp_path: Path) -> Store:
    return make(tmp_path / "derived", *range(6))


@pytest.fixture
def grown(tmp_path: Path) -> Store:
    """Another store, with the same samples and more."""
    return make(tmp_path / "grown", *range(9))


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "append": {"append": True},
    "resume": {"resume": True},
    "sync": {"sync": True},
    "overwrite of a bucket": {"overwrite": True, "bucket": [ONE]},
    "dry run": {"append": True, "dry_run": True},
}


@pytest.mark.parametrize("append", [False, True], ids=["a first build", "one that appended"])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_packing_goes_on_after_an_interrupted_build(
    way: str, append: bool, small: Store, output: Path
) -> None:
    interrupted(small, output, append=append)
    before = contents(output)
    with pytest.raises(UsageError) as told:
        packed(small, output, **WAYS[way])
    assert str(told.value) == f"{output}: {INTERRUPTED}"
    assert contents(output) == before


def test_overwrite_replaces_an_interrupted_build_and_removes_its_stage(
    small: Store, grown: Store, output: Path, tmp_path: Path
) -> None:
    interrupted(grown, output)
    packed(small, output, overwrite=True)
    packed(small, tmp_path / "new")
    assert contents(output) == contents(tmp_path / "new")
    assert all_ids(output) == ["img0", "img1", "img3", "img4", "img2", "img5"]


def test_overwrite_that_is_killed_before_the_stage_is_gone_is_finished_by_the_next(
    small: Store, grown: Store, output: Path, tmp_path: Path
) -> None:
    packed(small, tmp_path / "new")
    expected, start = contents(tmp_path / "new"), tmp_path / "start"
    interrupted(grown, start)
    shutil.copytree(start, output)
    with using(disk := WatchedDisk()):
        packed(small, output, overwrite=True)
    kills = max(n for n, call in enumerate(disk.calls, 1) if str(stage_of(output)) in call.path)
    for at in range(1, kills + 2):
        shutil.rmtree(output)
        shutil.copytree(start, output)
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(small, output, overwrite=True)
        note = manifest.load_unfinished(output)
        assert note is not None
        with using(WatchedDisk()):
            packed(small, output, **{"overwrite" if note.is_build else "resume": True})
        assert contents(output) == expected, f"killed at call {at}"


def test_sync_does_not_follow_a_store_for_shards_that_were_built(
    small: Store, grown: Store, output: Path
) -> None:
    built(small, output)
    before = contents(output)
    told = (
        f"{output}: was made by shardwright build, and --sync follows a store; build with "
        "--append, or pack with --overwrite --shard-size 2"
    )
    with pytest.raises(UsageError) as error:
        packed(small, output, sync=True)
    assert str(error.value) == told
    assert contents(output) == before
    packed(grown, output, append=True)
    with pytest.raises(UsageError) as error:  # also if other shards there were packed
        packed(grown, output, sync=True)
    assert str(error.value) == told


def test_resume_of_a_finished_build_is_refused(small: Store, output: Path) -> None:
    built(small, output)
    before = contents(output)
    with pytest.raises(UsageError) as told:
        packed(small, output, resume=True)
    assert str(told.value) == (
        f"{output}: its last run was a build, which is finished; pack with --append, or with "
        "--overwrite --shard-size 2"
    )
    assert contents(output) == before


class Warnings(Progress):
    def __init__(self) -> None:
        self.found: list[str] = []

    def warn(self, text: str) -> None:
        self.found.append(text)


def test_append_adds_to_built_shards_what_they_do_not_have(
    small: Store, grown: Store, output: Path
) -> None:
    built(small, output)
    shards = {name: data for name, data in contents(output).items() if name.endswith(".tar")}
    packed(grown, output, append=True, progress=(warnings := Warnings()))
    assert ids_by_shard(output) == {
        f"bucket_{ONE}/shard-000000.tar": ["img0", "img1"],
        f"bucket_{ONE}/shard-000001.tar": ["img3", "img4"],
        f"bucket_{ONE}/shard-000002.tar": ["img6", "img7"],
        f"bucket_{OTHER}/shard-000000.tar": ["img2", "img5"],
        f"bucket_{OTHER}/shard-000001.tar": ["img8"],
    }
    assert contents(output).items() >= shards.items()
    assert warnings.found == []
    first, second = listed(output).runs
    assert (first.build, second.build) == (BUILD, UNSET)
    assert (second.append, second.samples, second.shards) == (True, 3, 2)
    assert verify(output, read_data=True, workers=1).findings == []


def test_append_does_not_compare_built_samples_with_a_store_they_are_not_from(
    small: Store, tmp_path: Path, output: Path
) -> None:
    built(small, output)
    others = [record(f"img{n}", ONE, caption="other words") for n in (0, 1, 7)]
    packed(make_store(tmp_path / "others", others, latent=latent), output, append=True)
    assert ids_by_shard(output)[f"bucket_{ONE}/shard-000002.tar"] == ["img7"]
    assert ids_by_shard(output)[FIRST] == ["img0", "img1"]


def test_a_pack_says_nothing_of_builds_in_its_manifest(small: Store, output: Path) -> None:
    packed(small, output)
    text = (output / ".shardwright/manifest.json").read_text()
    assert "build" not in json.loads(text)["runs"][0]
    assert not listed(output).runs[0].is_build


def test_what_a_build_was_made_from_is_read_back(small: Store, output: Path) -> None:
    interrupted(small, output, append=True)
    note = manifest.load_unfinished(output)
    assert note is not None
    assert note.is_build
    assert note.build == {"inputs": ["images"]}
    assert listed(output).runs[0].build == {"inputs": ["images"]}
    text = (output / ".shardwright/manifest.json").read_text()
    assert json.loads(text)["runs"][0]["build"] == {"inputs": ["images"]}


def test_counts_of_a_build_that_appends_must_add_up(
    small: Store, grown: Store, output: Path
) -> None:
    built(small, output)
    packed(grown, output, append=True)
    found = listed(output)
    first, second = found.runs[0], as_built(found.runs[1])
    right = msgspec.structs.replace(found, runs=[first, second])
    assert list(consistency.contradictions(right)) == []
    changes = {"samples": 9, "shards": 5, "skipped_incomplete": 1}
    wrong = msgspec.structs.replace(second, **changes)
    told = list(consistency.contradictions(msgspec.structs.replace(found, runs=[first, wrong])))
    assert told == [
        "run 2 says that it packed 9 samples in 5 shards, but the manifest lists 3 samples in 2 "
        "shards",
        "run 2 says 9 records, but 9 ready and 1 skipped",
    ]


def findings(output: Path, **options: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401
    report = verify(output, workers=1, **options)
    return [(finding.kind, finding.file, finding.fix) for finding in report.findings]


def test_verify_of_an_interrupted_build_says_to_run_it_again(small: Store, output: Path) -> None:
    interrupted(small, output)
    note = ".shardwright/unfinished.json"
    again = "if none is active, run the same shardwright build again"
    assert findings(output, read_data=True) == [("unfinished", note, again)]


def test_verify_of_built_shards_says_to_build_again(small: Store, output: Path) -> None:
    built(small, output)
    assert findings(output, read_data=True) == []
    (output / FIRST).unlink()
    again = "restore it from a copy, or build again with --overwrite --shard-size 2"
    assert findings(output) == [("missing", FIRST, again)]


def test_verify_compares_built_shards_with_a_store(
    small: Store, grown: Store, output: Path
) -> None:
    built(small, output)
    assert findings(output, against=small.root) == []
    made = "the shards were made by shardwright build, not from this store"
    assert findings(output, against=grown.root) == [("left_out", str(grown.jsonl), made)]
    changed = [*small.records[1:], {**small.records[0], "caption": "other words"}]
    make_store(small.root, changed, latent=latent)
    ((kind, path, fix),) = findings(output, against=small.root)
    assert (kind, path) == ("outdated", FIRST)
    assert fix.endswith("pack again with --overwrite --shard-size 2")
