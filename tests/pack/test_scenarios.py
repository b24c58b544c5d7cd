"""Every scenario of the Stage 3 specification, one test each, in its order."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from shardwright import pack
from tests import commands
from tests.stores import Store, line, make_store, record, records
from tests.tars import all_ids, digests, ids, ids_by_shard, listing, read_members, shards

# Load Stage 2 metadata and validate readiness


def test_scenario_complete_sample_is_identified_as_ready(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("abc123")])
    summary = pack(derived_dir=store.root, output_dir=output)
    assert (summary.total_records, summary.ready_records) == (1, 1)
    assert (summary.skipped_incomplete, summary.skipped_by_reason) == (0, {})
    assert all_ids(output) == ["abc123"]


def test_scenario_incomplete_sample_is_skipped(tmp_path: Path, output: Path) -> None:
    without_caption = record("b")
    del without_caption["caption"]
    given = [record("a"), without_caption, record("c", t5_attention_mask=[1] * 76)]
    given += [record("d"), record("e"), record("f"), record("g")]
    store = make_store(tmp_path / "derived", given)
    for component, image_id in (("dinov3", "d"), ("vae", "e"), ("t5", "f")):
        store.array(component, image_id).unlink()
    summary = pack(derived_dir=store.root, output_dir=output)
    assert all_ids(output) == ["a", "g"]
    assert (summary.total_records, summary.ready_records, summary.skipped_incomplete) == (7, 2, 5)
    assert {name: why.example for name, why in summary.skipped_by_reason.items()} == {
        "caption_missing": "b",
        "mask_invalid": "c",
        "dinov3_missing": "d",
        "vae_missing": "e",
        "t5_missing": "f",
    }


def test_scenario_malformed_jsonl_line_is_skipped_gracefully(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("a"), record("b")])
    store.write_lines([line(record("a")), b'{"image_id": "a", ', line(record("b"))])
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, "--json")
    assert done.returncode == 0
    assert f"warning: {store.jsonl}, line 2: not json; skipped" in done.stderr.splitlines()
    summary = json.loads(done.stdout)
    assert summary["skipped_incomplete"] == 1
    assert summary["skipped_by_reason"] == {"not_json": {"count": 1, "example": "line 2"}}
    assert all_ids(output) == ["a", "b"]


# Group samples by aspect ratio bucket


def test_scenario_samples_are_grouped_by_bucket(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    assert ids_by_shard(output) == {
        "bucket_1024x1024/shard-000000.tar": ["img0", "img2", "img4", "img6"],
        "bucket_832x1216/shard-000000.tar": ["img1", "img3", "img5"],
    }


def test_scenario_bucket_filter_restricts_output(store: Store, output: Path) -> None:
    summary = pack(derived_dir=store.root, output_dir=output, bucket=["1024x1024"])
    assert ids_by_shard(output) == {
        "bucket_1024x1024/shard-000000.tar": ["img0", "img2", "img4", "img6"]
    }
    assert not (output / "bucket_832x1216").exists()
    assert (summary.ready_records, summary.written_samples) == (7, 4)


# Create tar shards with WebDataset naming convention


def test_scenario_tar_entry_contains_all_five_files(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("abc123")])
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    members = read_members(shard)
    assert [name for name, _ in members] == [
        "abc123.json",
        "abc123.dinov3.npy",
        "abc123.vae.npy",
        "abc123.t5h.npy",
        "abc123.t5m.npy",
    ]
    assert members == store.members(store.records[0])


def test_scenario_json_metadata_includes_required_fields(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    by_id = {fields["image_id"]: fields for fields in store.records}
    required = ("image_id", "aspect_bucket", "caption", "image_path", "height", "width")
    for shard in shards(output):
        for name, data in read_members(shard):
            if name.endswith(".json"):
                found = json.loads(data)
                given = by_id[found["image_id"]]
                assert {field: found[field] for field in required} == {
                    field: given[field] for field in required
                }


def test_scenario_t5_attention_mask_is_saved_as_npy(tmp_path: Path, output: Path) -> None:
    mask = [(n * n) % 2 for n in range(77)]
    store = make_store(tmp_path / "derived", [record("abc123", t5_attention_mask=mask)])
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    array = np.load(io.BytesIO(dict(read_members(shard))["abc123.t5m.npy"]), allow_pickle=False)
    assert (array.dtype, array.shape) == (np.dtype(np.uint8), (77,))
    assert array.tolist() == mask


# Organize shards by bucket in output directory


def test_scenario_bucket_directory_is_created(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("a", "832x1216")])
    pack(derived_dir=store.root, output_dir=output)
    assert (output / "bucket_832x1216").is_dir()
    assert [path.parent for path in shards(output)] == [output / "bucket_832x1216"]


def test_scenario_shard_files_use_zero_padded_naming(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", records(100), share=("dinov3", "t5"))
    pack(derived_dir=store.root, output_dir=output, shard_size=1)
    names = [path.name for path in shards(output)]
    assert (names[0], names[1], names[99]) == (
        "shard-000000.tar",
        "shard-000001.tar",
        "shard-000099.tar",
    )
    assert len(names) == 100
    assert ids(output / "bucket_1024x1024" / "shard-000099.tar") == ["img00099"]


# Limit samples per shard


def test_scenario_single_shard_for_small_bucket(tmp_path: Path, output: Path) -> None:
    given = records(800)
    store = make_store(tmp_path / "derived", given, share=("dinov3", "t5"))
    summary = pack(derived_dir=store.root, output_dir=output, shard_size=1000)
    assert summary.written_shards == 1
    assert ids_by_shard(output) == {
        "bucket_1024x1024/shard-000000.tar": [fields["image_id"] for fields in given]
    }


def test_scenario_multiple_shards_for_large_bucket(tmp_path: Path, output: Path) -> None:
    given = records(2500)
    store = make_store(tmp_path / "derived", given, share=("dinov3", "t5"))
    summary = pack(derived_dir=store.root, output_dir=output, shard_size=1000)
    assert (summary.written_samples, summary.written_shards) == (2500, 3)
    expected = [fields["image_id"] for fields in given]
    assert ids_by_shard(output) == {
        "bucket_1024x1024/shard-000000.tar": expected[:1000],
        "bucket_1024x1024/shard-000001.tar": expected[1000:2000],
        "bucket_1024x1024/shard-000002.tar": expected[2000:],
    }


# Support sample count limit


@pytest.fixture(scope="module")
def five_thousand(tmp_path_factory: pytest.TempPathFactory) -> Store:
    given = records(2500, "1024x1024", "square") + records(2500, "832x1216", "tall")
    root = tmp_path_factory.mktemp("five") / "derived"
    return make_store(root, given, share=("dinov3", "vae", "t5"))


def test_scenario_limit_restricts_total_output(five_thousand: Store, output: Path) -> None:
    summary = pack(derived_dir=five_thousand.root, output_dir=output, limit=100)
    assert (summary.ready_records, summary.written_samples) == (5000, 100)
    assert all_ids(output) == [f"square{n:05}" for n in range(100)]


def test_scenario_limit_applies_after_shuffle(five_thousand: Store, output: Path) -> None:
    limited, whole = output / "limited", output / "whole"
    pack(derived_dir=five_thousand.root, output_dir=limited, limit=100, shuffle=True, seed=7)
    pack(derived_dir=five_thousand.root, output_dir=whole, limit=400, shuffle=True, seed=7)
    chosen = all_ids(limited)
    assert len(chosen) == len(set(chosen)) == 100
    # Had the limit come first, all would be among the first hundred of the JSONL.
    assert not set(chosen) <= {f"square{n:05}" for n in range(100)}
    assert {"square", "tall"} == {image_id.rstrip("0123456789") for image_id in chosen}
    # The first hundred of one and the same shuffled order: within each bucket, a prefix.
    for name, found in ids_by_shard(limited).items():
        assert ids_by_shard(whole)[name][: len(found)] == found


# Support shuffle mode


def test_scenario_shuffle_produces_different_order(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", records(30))
    pack(derived_dir=store.root, output_dir=output, shuffle=True)
    found = all_ids(output)
    assert found != sorted(found)
    assert sorted(found) == [fields["image_id"] for fields in store.records]
    # What belongs together stays together.
    by_id = {fields["image_id"]: fields for fields in store.records}
    (shard,) = shards(output)
    expected = [member for image_id in found for member in store.members(by_id[image_id])]
    assert read_members(shard) == expected


def test_scenario_seed_ensures_reproducibility(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", records(30))
    arguments = ("pack", "--derived-dir", store.root, "--shuffle")
    for name, seed in (("one", "42"), ("two", "42"), ("other", "43")):
        done = commands.run(*arguments, "--seed", seed, "--output-dir", output / name)
        assert done.returncode == 0, done.stderr
    assert all_ids(output / "one") == all_ids(output / "two") != all_ids(output / "other")
    assert digests(output / "one") == digests(output / "two")


# Prevent accidental overwrite of existing shards


def test_scenario_existing_shard_blocks_write(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, bucket="832x1216")
    before, names = digests(output), listing(output)
    with pytest.raises(FileExistsError, match=r"bucket_832x1216/shard-000000\.tar.*--overwrite"):
        pack(derived_dir=store.root, output_dir=output)
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    assert done.returncode == 1
    assert "bucket_832x1216/shard-000000.tar" in done.stderr
    assert "--overwrite" in done.stderr
    assert (digests(output), listing(output)) == (before, names)


def test_scenario_overwrite_flag_allows_replacement(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    store.write_lines(line({**fields, "caption": "another"}) for fields in store.records)
    pack(derived_dir=store.root, output_dir=output, overwrite=True)
    for shard in shards(output):
        for name, data in read_members(shard):
            if name.endswith(".json"):
                assert json.loads(data)["caption"] == "another"
    assert len(all_ids(output)) == 7


# Support dry-run mode


def test_scenario_dry_run_does_not_write_files(store: Store, output: Path, tmp_path: Path) -> None:
    before = listing(tmp_path)
    summary = pack(derived_dir=store.root, output_dir=output, dry_run=True, shard_size=3)
    assert (summary.written_samples, summary.written_shards, summary.dry_run) == (7, 3, True)
    assert listing(tmp_path) == before
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, "--dry-run")
    assert "written_samples: 7" in done.stdout.splitlines()
    assert "written_shards: 2" in done.stdout.splitlines()
    assert listing(tmp_path) == before


def test_scenario_dry_run_validates_inputs(store: Store, output: Path) -> None:
    store.jsonl.unlink()
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, "--dry-run")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {store.jsonl}: no such file")
    assert "scan" not in done.stderr
    with pytest.raises(FileNotFoundError):
        pack(derived_dir=store.root, output_dir=output, dry_run=True)


# Progress reporting


def test_scenario_progress_during_scan(five_thousand: Store, output: Path) -> None:
    done = commands.run(
        *("pack", "--derived-dir", five_thousand.root, "--output-dir", output),
        *("--limit", "1", "--progress-every", "500"),
    )
    lines = [text for text in done.stderr.splitlines() if text.startswith("scan: ")]
    counts = [
        f"scan: total_records={n} ready_records={n} skipped_incomplete=0"
        for n in [*range(500, 5001, 500), 5000]  # and where the scan ends
    ]
    assert [text.partition(" (")[0] for text in lines] == counts


def test_scenario_final_summary(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [*records(5), record("x", caption="")])
    done = commands.run(
        "pack", "--derived-dir", store.root, "--output-dir", output, "--shard-size", "2"
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for expected in (
        "total_records: 6",
        "ready_records: 5",
        "skipped_incomplete: 1",
        "written_samples: 5",
        "written_shards: 3",
    ):
        assert expected in lines


# Preserve existing .npy files verbatim


def test_scenario_npy_files_are_copied_as_is(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("abc123", "768x1024")], latent=(16, 128, 96))
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    data = dict(read_members(shard))["abc123.vae.npy"]
    assert data == store.array("vae", "abc123").read_bytes()
    array = np.load(io.BytesIO(data), allow_pickle=False)
    assert (array.dtype, array.shape) == (np.dtype(np.float16), (16, 128, 96))
