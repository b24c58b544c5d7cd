"""The status of a store: what is ready, what is missing, and the next step."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

import shardwright
from shardwright import BucketStatus, ComponentStatus, verify
from shardwright.errors import InputMissingError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.store import provenance
from tests.commands import run
from tests.derive.pictures import array_path, make_images, sketch
from tests.store.small import FOLDERS, SmallStore, small_store


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return small_store(tmp_path / "derived")


def sizes(store: SmallStore, component: str) -> int:
    return sum(path.stat().st_size for path in (store.root / FOLDERS[component]).iterdir())


def next_command(derived_dir: Path) -> str:
    command = shardwright.status(derived_dir=derived_dir).next_command
    assert command is not None
    return command


def dry_run(store: SmallStore, jsonl: Path | None = None) -> shardwright.PackSummary:
    return shardwright.pack(
        derived_dir=store.root, jsonl=jsonl, output_dir=store.root.parent / "shards", dry_run=True
    )


def test_a_small_store_is_complete_and_ready(store: SmallStore) -> None:
    status = shardwright.status(derived_dir=store.root)
    assert (status.total_records, status.ready_records, status.skipped_incomplete) == (4, 4, 0)
    assert status.components == {
        name: ComponentStatus(complete=4, bytes=sizes(store, name)) for name in FOLDERS
    }
    packed = dry_run(store)
    assert status.buckets == {
        name: BucketStatus(ready=2, shard_bytes=packed.buckets[name].bytes)
        for name in ("64x64", "96x64")
    }
    assert status.jsonl_bytes == store.jsonl.stat().st_size
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert status.store_bytes == sum(path.stat().st_size for path in files)
    assert status.leftovers == []
    assert status.next_command == f"shardwright pack --derived-dir {store.root}"


def test_the_store_may_be_given_as_a_path_as_for_verify(
    store: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = shardwright.status(store.root)
    assert (given.derived_dir, given.ready_records) == (str(store.root), 4)
    done = run("status", store.root, "--json")
    assert json.loads(done.stdout)["ready_records"] == 4
    monkeypatch.chdir(store.root)
    assert run("status", ".").stdout.startswith(".: 4 records, 4 ready")
    with pytest.raises(UsageError, match="PATH with --derived-dir; give one of them"):
        shardwright.status(store.root, derived_dir=store.root)
    with pytest.raises(UsageError, match="path is ''; give a path"):
        shardwright.status("")


def test_a_shard_folder_given_as_a_path_is_refused(store: SmallStore, tmp_path: Path) -> None:
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards")
    with pytest.raises(UsageError, match="shards: is a shard folder; give the store"):
        shardwright.status(tmp_path / "shards")


@pytest.mark.parametrize("split", [None, "val=50%"])
def test_no_store_is_looked_for_or_made_in_a_folder_of_shards(
    tmp_path: Path, split: str | None
) -> None:
    images, derived, shards = tmp_path / "images", tmp_path / "derived", tmp_path / "shards"
    make_images(images, 4)
    sketch(images, derived)
    shardwright.pack(derived_dir=derived, output_dir=shards, split=split)
    before = sorted(shards.rglob("*"))
    done = run("status", shards)
    assert done.returncode == 2
    fix = f"give the store it was packed from, or run shardwright verify {shards}"
    assert f"{shards}: is a shard folder; {fix}\n" in done.stderr
    assert "is a shard folder" in run("status", "--derived-dir", shards).stderr
    done = run("derive", images, "--derived-dir", shards, "--encoders", "sketch")
    assert done.returncode == 2
    assert f"{shards}: holds shards; give --derived-dir the store, or a new folder" in done.stderr
    assert sorted(shards.rglob("*")) == before
    # A store that has its shards below it is a store.
    shardwright.pack(derived_dir=derived, output_dir=derived / "shards", split=split)
    shardwright.pack(derived_dir=derived, output_dir=derived / "part", split=split)
    assert run("status", derived).returncode == 0


def test_the_predicted_bytes_are_those_that_packing_writes(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", samples=7)
    store.array("t5", "img3").unlink()
    store.change(5, caption=" ")
    status = shardwright.status(derived_dir=store.root)
    packed = shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards")
    shards = list((tmp_path / "shards").rglob("*.tar"))
    assert status.shard_bytes == sum(path.stat().st_size for path in shards)
    assert status.shards == len(shards)
    assert status.skipped_by_reason == packed.skipped_by_reason
    assert status.ready_records == packed.written_samples == 5


def test_more_samples_than_a_shard_holds_are_predicted_too(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", samples=1)
    first = store.records()[0]
    store.write([{**first, "image_id": f"s{n}", "image_path": f"{n}.jpg"} for n in range(1001)])
    for component in FOLDERS:
        for n in range(1001):
            os.link(store.array(component, "img0"), store.array(component, f"s{n}"))
    status, planned = shardwright.status(derived_dir=store.root), dry_run(store)
    assert (status.shards, status.shard_bytes) == (2, planned.written_bytes)
    assert planned.written_shards == 2


def test_missing_invalid_and_orphaned_arrays_are_counted_apart(store: SmallStore) -> None:
    store.array("dinov3", "img0").unlink()
    store.array("vae", "img0").write_bytes(b"half")  # of a sample that is not ready anyhow
    os.truncate(store.array("t5", "img1"), 1000)  # the first that is wrong with its sample
    store.array("t5", "stranger").write_bytes(b"12345")
    store.save("vae", "stranger", np.zeros((16, 8, 8), "<f2"))
    status = shardwright.status(derived_dir=store.root)
    assert status.components == {
        "dinov3": ComponentStatus(complete=3, missing=1, bytes=sizes(store, "dinov3")),
        "vae": ComponentStatus(complete=3, invalid=1, orphaned=1, bytes=sizes(store, "vae")),
        "t5": ComponentStatus(complete=3, invalid=1, orphaned=1, bytes=sizes(store, "t5")),
    }
    assert {reason: s.count for reason, s in status.skipped_by_reason.items()} == {
        "dinov3_missing": 1,
        "t5_truncated": 1,
    }
    assert {name: (b.ready, b.not_ready) for name, b in status.buckets.items()} == {
        "64x64": (1, 1),
        "96x64": (1, 1),
    }


def test_a_store_whose_arrays_are_still_to_be_made_shows_its_buckets(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived")
    for image in range(4):
        store.array("t5", f"img{image}").unlink()
    (store.root / "t5_hidden").rmdir()
    status = shardwright.status(derived_dir=store.root)
    assert status.components["t5"] == ComponentStatus(missing=4)
    assert status.components["vae"].complete == 4
    assert status.buckets == {"64x64": BucketStatus(0, 2, 0), "96x64": BucketStatus(0, 2, 0)}
    assert status.shard_bytes == 0
    assert status.next_command == f"shardwright derive IMAGES --derived-dir {store.root}"
    assert status.next_reason == "4 arrays missing"


def test_two_records_of_one_image_count_as_one(store: SmallStore) -> None:
    store.write([*store.records(), store.records()[0]])
    status = shardwright.status(derived_dir=store.root)
    assert (status.total_records, status.ready_records) == (5, 4)
    assert status.components["vae"].complete == 4
    assert status.skipped_by_reason["superseded"].count == 1
    assert status.next_command == f"shardwright verify {store.root}"


def test_stage_1_records_call_for_migration(tmp_path: Path) -> None:
    fields = {"image_path": "data/approved/a.jpg", "dinov3_embedding": [0.5] * 1024}
    jsonl = tmp_path / "approved_image_dataset.jsonl"
    jsonl.write_text(json.dumps(fields) + "\n" + json.dumps(fields | {"image_path": "b.jpg"}))
    status = shardwright.status(derived_dir=tmp_path)
    assert (status.stage1_records, status.total_records, status.ready_records) == (2, 2, 0)
    assert status.components == dict.fromkeys(FOLDERS, ComponentStatus())
    assert status.next_command == f"shardwright migrate --derived-dir {tmp_path}"
    assert status.next_reason == ("2 records in Stage 1 format; fix or delete what it reports")


def test_a_journal_calls_for_a_run_that_merges_it(store: SmallStore) -> None:
    journal = store.root / "approved_image_dataset.jsonl.tmp"
    journal.write_bytes(b"{}\n")
    half = store.array("vae", "img9").with_suffix(".npy.tmp")
    half.write_bytes(b"half")
    status = shardwright.status(derived_dir=store.root)
    assert status.leftovers == [str(journal), str(half)]
    assert status.next_command == f"shardwright derive IMAGES --derived-dir {store.root}"
    assert status.next_reason == "an interrupted run left records to merge"


def test_an_invalid_array_calls_for_verify(store: SmallStore) -> None:
    os.truncate(store.array("vae", "img1"), 200)
    status = shardwright.status(derived_dir=store.root)
    assert status.next_command == f"shardwright verify {store.root}"


def test_a_folder_without_metadata_calls_for_derive(tmp_path: Path) -> None:
    (tmp_path / "dinov3").mkdir()
    (tmp_path / "dinov3" / "a.npy").write_bytes(b"123")
    status = shardwright.status(derived_dir=tmp_path)
    assert status.total_records == 0
    assert status.components["dinov3"] == ComponentStatus(orphaned=1, bytes=3)
    assert status.next_command == f"shardwright derive IMAGES --derived-dir {tmp_path}"


def test_status_reads_a_jsonl_elsewhere(store: SmallStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "some records.jsonl"
    elsewhere.write_bytes(b"".join(store.jsonl.read_bytes().splitlines(keepends=True)[:3]))
    status = shardwright.status(derived_dir=store.root, jsonl=elsewhere)
    assert (status.total_records, status.jsonl) == (3, str(elsewhere))
    assert status.components["t5"].orphaned == 1
    assert status.shard_bytes == dry_run(store, jsonl=elsewhere).written_bytes
    assert status.next_command == (
        f"shardwright pack --derived-dir {store.root} --jsonl '{elsewhere}'"
    )


def test_status_of_the_default_store_recommends_no_flags(
    store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    store.root.rename(tmp_path / "data/derived")
    monkeypatch.chdir(tmp_path)
    assert shardwright.status().next_command == "shardwright pack"


def test_status_of_what_is_no_store_is_refused(store: SmallStore, tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match=r"nothing: no such folder; .* shardwright derive"):
        shardwright.status(derived_dir=tmp_path / "nothing")
    with pytest.raises(InputMissingError, match=r"no\.jsonl: no such file"):
        shardwright.status(derived_dir=store.root, jsonl=tmp_path / "no.jsonl")
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards")
    with pytest.raises(UsageError, match="shards: is a shard folder; give the store"):
        shardwright.status(derived_dir=tmp_path / "shards")
    with pytest.raises(UsageError, match=r"jsonl: is a file; give the folder of a store"):
        shardwright.status(derived_dir=store.jsonl)
    with pytest.raises(UsageError, match="--workers is -1"):
        shardwright.status(derived_dir=store.root, workers=-1)


def test_hostile_metadata_is_counted_and_does_no_harm(store: SmallStore) -> None:
    for line in (b"[" * 100_000, b'{"image_id": "../x"}', b"{", b'{"image_id": 1e999}'):
        store.append(line + b"\n")
    status = shardwright.status(derived_dir=store.root)
    assert (status.total_records, status.ready_records) == (8, 4)
    assert {reason: s.count for reason, s in status.skipped_by_reason.items()} == {
        "not_json": 3,
        "image_id_invalid": 1,
    }
    assert status.components["vae"].missing == 0


def test_status_changes_nothing(store: SmallStore) -> None:
    store.array("t5", "img0").unlink()
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    shardwright.status(derived_dir=store.root)
    after = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert after == before


def test_the_next_command_needs_no_flag_for_what_the_store_has_recorded(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "data/approved", 2), tmp_path / "data/derived"
    sketch(images, derived, fit="bucket")
    array_path(derived, "vae", "img001").unlink()
    command = next_command(derived)
    assert command == f"shardwright derive {images} --derived-dir {derived}"
    done = run(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert next_command(derived).startswith("shardwright pack")
    assert verify(derived, read_data=True).findings == [], "made as the others were"


def test_the_next_command_finds_the_images_also_in_a_journal(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "my images", 2), tmp_path / "derived"
    sketch(images, derived)
    (derived / JSONL_NAME).rename(derived / (JSONL_NAME + ".tmp"))
    command = next_command(derived)
    assert shlex.split(command)[:3] == ["shardwright", "derive", str(images)]
    done = run(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    images.rename(tmp_path / "moved")
    array_path(derived, "vae", "img001").unlink()
    assert " IMAGES " in next_command(derived)


def test_status_counts_images_that_failed(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    (images / "img001.png").write_bytes(b"broken")
    sketch(images, derived)
    status = shardwright.status(derived_dir=derived)
    listed = derived / ".shardwright/failures.jsonl"
    assert (status.failures, status.failures_file) == (1, str(listed))
    assert status.next_reason == "every record is ready; but 1 image could not be derived"
    done = run("status", "--derived-dir", derived)
    assert f"could not be derived: 1 image, listed in {listed}" in done.stdout
    assert f"{derived}: 1 record, 1 ready" in done.stdout


def test_a_provenance_that_cannot_be_read_does_not_stop_status(store: SmallStore) -> None:
    provenance.write(store.root, {})
    (store.root / ".shardwright/provenance.json").write_text("{")
    assert next_command(store.root).startswith("shardwright pack")


def test_samples_that_conditions_leave_out_are_not_counted_as_left_by_a_limit(
    store: SmallStore, tmp_path: Path
) -> None:
    names = [json.loads(line)["image_id"] for line in store.jsonl.read_text().splitlines()]
    (tmp_path / "no.txt").write_text(f"{names[0]}\n")
    output = tmp_path / "shards"
    where = [f'image_id != "{names[1]}"']
    shardwright.pack(
        derived_dir=store.root, output_dir=output, limit=1, where=where,
        exclude_ids_file=tmp_path / "no.txt",
    )  # fmt: skip
    status = shardwright.status(derived_dir=store.root, output_dir=output)
    decision = f"whether to add to {output} is your decision"
    assert status.next_reason == f"1 ready sample not packed yet; {decision}"
    shardwright.pack(derived_dir=store.root, output_dir=output, append=True)
    status = shardwright.status(derived_dir=store.root, output_dir=output)
    assert status.next_reason == f"every sample is packed in {output}, except 2 that are left out"
