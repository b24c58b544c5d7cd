"""``pack --append``: what is new goes to new shards; what is there is not touched."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from shardwright import DamageError, OutdatedError, PackSummary, UsageError, pack, verify
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests import commands
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import Record, Store, line, make_store, record, records
from tests.tars import all_ids, ids_by_shard, listing

ONE, OTHER, NEW = "24x16", "32x16", "16x24"


def samples(*numbers: int, bucket: str = ONE) -> list[Record]:
    return [record(f"img{number:02}", bucket) for number in numbers]


def grow(store: Store, more: list[Record]) -> Store:
    """Add samples to a store; those that are there stay as they are."""
    return make_store(store.root, [*store.records, *more], latent=latent)


def latent(fields: Record) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(
        derived_dir=store.root,
        output_dir=output,
        **{"shard_size": 2, "workers": 1, **options},
    )


@pytest.fixture
def small(tmp_path: Path) -> Store:
    """Three samples in one bucket and one in another."""
    four = [*samples(0, 1, 2), *samples(3, bucket=OTHER)]
    return make_store(tmp_path / "derived", four, latent=latent)


def test_append_puts_only_new_samples_into_shards_after_the_last_number(
    small: Store, output: Path
) -> None:
    packed(small, output)
    grown = grow(small, [*samples(4, 5, 6), *samples(7, bucket=OTHER), *samples(8, bucket=NEW)])
    summary = packed(grown, output, append=True)
    assert summary.written_samples == 5
    assert ids_by_shard(output) == {
        "bucket_16x24/shard-000000.tar": ["img08"],
        "bucket_24x16/shard-000000.tar": ["img00", "img01"],
        "bucket_24x16/shard-000001.tar": ["img02"],
        "bucket_24x16/shard-000002.tar": ["img04", "img05"],
        "bucket_24x16/shard-000003.tar": ["img06"],
        "bucket_32x16/shard-000000.tar": ["img03"],
        "bucket_32x16/shard-000001.tar": ["img07"],
    }
    made = manifest.load_manifest(output)
    assert made is not None
    assert [(run.append, run.samples) for run in made.runs] == [(False, 4), (True, 5)]
    assert [entry.run for entry in made.shards] == [1, 0, 0, 1, 1, 0, 1]
    assert not verify(output, against=grown.root, workers=1).findings


def test_append_does_not_touch_old_shards_indexes_and_records(small: Store, output: Path) -> None:
    packed(small, output)
    suffixes = (".tar", ".idx", ".jsonl")
    old = [output / name for name in listing(output) if name.endswith(suffixes)]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in old}
    packed(grow(small, samples(4, 5)), output, append=True)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in old} == before


def test_append_of_nothing_new_succeeds(small: Store, output: Path) -> None:
    packed(small, output, sha256=True)
    before = contents(output)
    summary = packed(small, output, append=True)
    assert (summary.written_samples, summary.written_shards) == (0, 0)
    assert contents(output) == before
    done = commands.run("pack", "--append", "--derived-dir", small.root, "--output-dir", output)
    assert done.returncode == 0
    assert "nothing to pack" in done.stdout
    assert contents(output) == before


@pytest.mark.parametrize("dry_run", [False, True])
def test_append_is_refused_while_packed_samples_are_changed_or_removed(
    dry_run: bool, small: Store, output: Path
) -> None:
    packed(small, output)
    grow(small, samples(4))
    small.write_lines(
        line({**fields, "caption": "another"} if number else fields)
        for number, fields in enumerate(small.records[:3])
    )
    before = contents(output)
    message = (
        f"{output}: 3 packed samples are outdated: 2 changed (record; for example img01), 1 "
        "removed (record_gone; for example img03), so nothing was written; to update the shards "
        f"and pack what is new, run shardwright pack --derived-dir {small.root} --output-dir "
        f"{output} --sync"
    )
    if dry_run:
        assert packed(small, output, append=True, dry_run=True).obstacle == message
    else:
        with pytest.raises(OutdatedError) as refused:
            packed(small, output, append=True)
        assert str(refused.value) == message
    assert contents(output) == before


def test_append_does_not_mind_a_packed_sample_that_is_not_ready(small: Store, output: Path) -> None:
    packed(small, output)
    grown = grow(small, samples(4))
    grown.array("vae", "img00").unlink()
    assert packed(grown, output, append=True).written_samples == 1


def test_append_is_shuffled_by_its_seed(small: Store, output: Path, tmp_path: Path) -> None:
    packed(small, output)
    packed(small, tmp_path / "again")
    grown = grow(small, samples(*range(10, 30)))
    packed(grown, output, append=True, shuffle=True, seed=5, shard_size=20)
    packed(grown, tmp_path / "again", append=True, shuffle=True, seed=5, shard_size=20)
    new = ids_by_shard(output)["bucket_24x16/shard-000002.tar"]
    assert sorted(new) == [f"img{number}" for number in range(10, 30)]
    assert new != sorted(new)
    assert contents(output) == contents(tmp_path / "again")


def test_append_is_limited_to_new_samples(small: Store, output: Path) -> None:
    packed(small, output)
    grown = grow(small, samples(4, 5, 6))
    assert packed(grown, output, append=True, limit=2).written_samples == 2
    assert packed(grown, output, append=True, limit=2).written_samples == 1
    assert packed(grown, output, append=True, limit=2).written_samples == 0
    assert sorted(all_ids(output)) == [f"img{number:02}" for number in range(7)]


def test_append_to_one_bucket_leaves_the_others_for_later(small: Store, output: Path) -> None:
    packed(small, output)
    grown = grow(small, [*samples(4), *samples(5, bucket=OTHER)])
    assert packed(grown, output, append=True, bucket=[OTHER]).written_samples == 1
    assert "img04" not in all_ids(output)
    assert packed(grown, output, append=True).written_samples == 1
    assert "img04" in all_ids(output)


def test_append_to_an_empty_folder_packs_everything(small: Store, output: Path) -> None:
    assert packed(small, output, append=True).written_samples == 4


def test_an_interrupted_first_append_is_finished_by_the_next(
    small: Store, output: Path, tmp_path: Path
) -> None:
    packed(small, tmp_path / "unbroken", append=True)
    with using(disk := WatchedDisk()):
        packed(small, tmp_path / "counted", append=True)
    for at in range(1, len(disk.calls), 5):
        target = tmp_path / str(at)
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(small, target, append=True)
        packed(small, target, append=True)
        assert contents(target) == contents(tmp_path / "unbroken")


def test_an_interrupted_append_can_be_resumed_too(
    small: Store, output: Path, tmp_path: Path
) -> None:
    for target in (output, tmp_path / "unbroken"):
        packed(small, target)
    grown = grow(small, samples(4, 5, 6))
    with using(KillingDisk(18)), pytest.raises(Killed):
        packed(grown, output, append=True)
    packed(grown, output, resume=True)
    packed(grown, tmp_path / "unbroken", append=True)
    assert contents(output) == contents(tmp_path / "unbroken")


def test_an_interrupted_append_starts_again_when_the_store_has_grown(
    small: Store, output: Path, tmp_path: Path
) -> None:
    for target in (output, tmp_path / "unbroken"):
        packed(small, target)
    grown = grow(small, samples(4, 5, 6))
    with using(KillingDisk(18)), pytest.raises(Killed):
        packed(grown, output, append=True, shuffle=True)
    grown = grow(grown, samples(7))
    packed(grown, output, append=True, shuffle=True)
    packed(grown, tmp_path / "unbroken", append=True, shuffle=True)
    assert contents(output) == contents(tmp_path / "unbroken")


def test_append_to_an_interrupted_pack_is_refused(small: Store, output: Path) -> None:
    with using(KillingDisk(30)), pytest.raises(Killed):
        packed(small, output)
    with pytest.raises(UsageError, match="interrupted; finish it with --resume"):
        packed(small, output, append=True)


@pytest.mark.parametrize("manifest_too", [True, False])
def test_append_beside_shards_that_nobody_listed_is_refused_and_deletes_nothing(
    manifest_too: bool, small: Store, output: Path
) -> None:
    packed(small, output)
    stranger = output / "bucket_24x16/shard-000007.tar"
    stranger.write_bytes((output / "bucket_24x16/shard-000000.tar").read_bytes())
    if not manifest_too:
        (output / ".shardwright/manifest.json").unlink()
    before = contents(output)
    with pytest.raises(UsageError, match=r"\.tar: is not in the manifest"):
        packed(grow(small, samples(4)), output, append=True)
    assert contents(output) == before


def test_append_does_not_count_the_samples_of_a_lost_shard(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    lost = sorted(output.glob("bucket_*/*.tar"))[0]
    lost.unlink()
    with pytest.raises(DamageError, match="is missing or incomplete"):
        pack(derived_dir=store.root, output_dir=output, append=True, workers=1)


def test_append_keeps_sha256sums_up(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "few", records(3))
    pack(derived_dir=store.root, output_dir=output, sha256=True, workers=1)
    more = make_store(tmp_path / "more", [*records(3), record("another")])
    pack(derived_dir=more.root, output_dir=output, append=True, workers=1)
    done = subprocess.run(
        ["sha256sum", "-c", ".shardwright/SHA256SUMS"], cwd=output, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.count(": OK") == len(list(output.glob("bucket_*/*.tar")))
