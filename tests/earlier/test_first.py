"""A store and shards that the first version wrote open, verify, resume and go on as they are.

``first.tar.xz`` has six images, one of them broken, the store of the others, the shards packed from
it, and a second packing that was killed after its first shard.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from msgspec import UNSET

import shardwright
from shardwright import derive, pack, status, verify
from shardwright.errors import ProvenanceError
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.records import records_name
from tests.derive.pictures import gradient, save, sketch, store_records
from tests.faults import contents


def arrays(derived: Path) -> dict[str, bytes | None]:
    found = contents(derived)
    return {path: data for path, data in found.items() if path.count("/") == 1 and "npy" in path}


@pytest.fixture(autouse=True)
def _extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(Path(__file__).with_name("first.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)


def test_store_and_shards_of_the_first_version_verify_to_the_last_byte() -> None:
    assert verify("derived", read_data=True).findings == []
    assert verify("shards", read_data=True, against="derived").counts.keys() == {"own_size"}


def test_shards_of_the_first_version_open_and_hold_the_store() -> None:
    dataset = shardwright.open("shards")
    assert len(dataset) == 5
    sample = dataset.by_id("img003")
    assert np.array_equal(sample["vae.npy"], np.load("derived/vae_latents/img003.npy"))


def without_records(folder: Path) -> dict[str, bytes | None]:
    """Give what a shard folder holds, as if there were no records beside the indexes."""
    found = contents(folder)
    listed = json.loads(found.pop(".shardwright/manifest.json") or b"")
    del listed["xxh3"], listed["runs"][0]["tool"]
    for entry in listed["shards"]:
        if entry.pop("records_xxh3", None):
            del entry["index_xxh3"]
            del found[records_name(entry["path"])]
    for name in [name for name in found if name.endswith(".idx")]:
        body = (found[name] or b"")[:-8]  # without its checksum
        found[name] = re.sub(rb'"records_xxh3":"[0-9a-f]{16}",', b"", body)
    return {**found, "manifest": json.dumps(listed).encode()}


def listed_shards(folder: str) -> list[ShardEntry]:
    listed = manifest.load_manifest(Path(folder))
    assert listed is not None
    return listed.shards


def test_a_packing_that_the_first_version_left_is_finished_to_the_same_shards() -> None:
    summary = pack(derived_dir="derived", output_dir="unfinished", shard_size=2, resume=True)
    assert summary.kept_shards == 1
    pack(derived_dir="derived", output_dir="fresh", shard_size=2)
    pairs = zip(listed_shards("unfinished"), listed_shards("fresh"), strict=True)
    (kept,) = (old for old, new in pairs if old != new)
    assert kept.records_xxh3 is UNSET  # it stays as it was
    finished, fresh = without_records(Path("unfinished")), without_records(Path("fresh"))
    assert {**finished, "manifest": None} == {**fresh, "manifest": None}
    assert verify("unfinished", read_data=True, against="derived").counts.keys() == {"own_size"}


def test_packing_to_the_specification_gives_the_same_shards_as_in_the_first_version() -> None:
    pack(derived_dir="derived", output_dir="fresh", shard_size=2, sha256=True, workers=1)
    before, now = without_records(Path("shards")), without_records(Path("fresh"))
    old, new = (json.loads(found.pop("manifest") or b"") for found in (before, now))
    assert now == before
    assert new["runs"][0].pop("jsonl") == "approved_image_dataset.jsonl"  # all that was added
    for entry in old["shards"]:
        del entry["index_xxh3"]
    assert json.dumps(new) == json.dumps(old), "fields in the same order too"


def test_shards_of_the_first_version_stay_without_records_when_they_are_gone_over() -> None:
    before, entries = contents(Path("shards")), listed_shards("shards")
    summary = pack(
        derived_dir="derived", output_dir="shards", shard_size=2, sha256=True, resume=True
    )
    assert summary.written_shards == 0
    assert listed_shards("shards") == entries
    names = [name for name in before if "manifest" not in name]
    after = contents(Path("shards"))
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    assert not list(Path("shards").rglob("*.jsonl"))


def test_shards_of_the_first_version_are_appended_to() -> None:
    save(Path("images/more.png"), gradient(24, 16, seed=9))
    Path("images/more.txt").write_text("one more")
    assert sketch(Path("images"), Path("derived")).derived == 1
    before = listed_shards("shards")
    assert pack(derived_dir="derived", output_dir="shards", append=True).written_samples == 1
    entries = {entry.path: entry for entry in listed_shards("shards")}
    (added,) = (entry for path, entry in entries.items() if path not in {e.path for e in before})
    assert added.records_xxh3
    assert [entries[entry.path] for entry in before] == before  # still without records
    assert pack(derived_dir="derived", output_dir="shards", sync=True).written_shards == 0
    assert {entry.path: entry for entry in listed_shards("shards")} == entries
    assert verify("shards", read_data=True, against="derived").counts.keys() == {"own_size"}


def test_a_store_of_the_first_version_keeps_its_colours_until_it_is_recomputed() -> None:
    before = arrays(Path("derived"))
    summary = sketch(Path("images"), Path("derived"))
    assert (summary.already_complete, summary.failed, summary.changed_images) == (5, 1, [])
    assert arrays(Path("derived")) == before
    assert {path.name for path in Path("derived/.shardwright/empty").iterdir()} == {
        "t5h.npy",
        "t5m.npy",
    }, "the empty caption is new"
    assert status(derived_dir="derived").failures == 1
    with pytest.raises(ProvenanceError, match="fit was original, now bucket"):
        derive("images", derived_dir="derived", encoders="sketch", fit="bucket")
    save(Path("images/img004.png"), gradient(24, 16))
    sketch(Path("images"), Path("derived"), recompute=["dinov3", "vae"])
    sketch(Path("images"), Path("fresh"))
    assert arrays(Path("derived")) == arrays(Path("fresh"))
    by_id = {record["image_id"]: record for record in store_records(Path("fresh"))}
    assert {record["image_id"]: record for record in store_records(Path("derived"))} == by_id
