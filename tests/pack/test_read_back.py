"""Shards read back with other people's tools: tarfile, GNU tar and the webdataset library."""

from __future__ import annotations

import gc
import io
import json
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from shardwright import pack
from tests import commands
from tests.stores import FOLDERS, Record, Store, make_store, record, records
from tests.tars import read_members, shards

ODD_IDS = ("a.b", "with space", "naïve", "__meta", "50%", "x" * 130, "-dash", "Upper")
SUFFIXES = ("json", "dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy")


def read_with_webdataset(output: Path) -> list[dict[str, Any]]:
    """Read all samples as a trainer would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves files for others to close
        dataset = webdataset.WebDataset([str(p) for p in shards(output)], shardshuffle=False)
        found = list(dataset)
        del dataset
        gc.collect()
    return found


def by_id(store: Store) -> dict[str, Record]:
    return {fields["image_id"]: fields for fields in store.records}


@pytest.fixture
def odd_store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "derived", [*records(5), *map(record, ODD_IDS)])


def expected_arrays(store: Store, image_id: str) -> list[bytes]:
    return [store.array(component, image_id).read_bytes() for component in FOLDERS]


def test_webdataset_reads_the_same_keys_order_and_bytes(odd_store: Store, output: Path) -> None:
    pack(derived_dir=odd_store.root, output_dir=output, shard_size=4)
    found = read_with_webdataset(output)
    names = [name for path in shards(output) for name, _ in read_members(path)]
    assert [sample["__key__"] for sample in found] == [
        name.removesuffix(".json") for name in names[::5]
    ]
    ids = []
    for sample in found:
        assert tuple(name for name in sample if not name.startswith("__")) == SUFFIXES
        fields = json.loads(sample["json"])
        ids.append(fields["image_id"])
        arrays = [sample[suffix] for suffix in SUFFIXES[1:4]]
        assert arrays == expected_arrays(odd_store, fields["image_id"])
        assert fields["caption"] == by_id(odd_store)[fields["image_id"]]["caption"]
    assert ids == [fields["image_id"] for fields in odd_store.records]


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
def test_gnu_tar_lists_and_extracts_the_same(
    odd_store: Store, output: Path, tmp_path: Path
) -> None:
    pack(derived_dir=odd_store.root, output_dir=output)
    (shard,) = shards(output)
    members = read_members(shard)
    listed = subprocess.run(["tar", "-tf", shard], capture_output=True, text=True, timeout=150)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines() == [name for name, _ in members]
    target = tmp_path / "extracted"
    target.mkdir()
    # -i off, so that tar would complain of anything but a proper end.
    done = subprocess.run(["tar", "-xf", shard, "-C", target], capture_output=True, timeout=150)
    assert (done.returncode, done.stderr) == (0, b"")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == dict(members)


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
def test_gnu_tar_finds_plain_ustar_with_fixed_owner_and_time(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, limit=1)
    (shard,) = shards(output)
    done = subprocess.run(
        ["tar", "--numeric-owner", "--utc", "--full-time", "-tvf", shard],
        capture_output=True,
        text=True,
        timeout=150,
    )
    for text in done.stdout.splitlines():
        assert text.startswith("-rw-r--r-- 0/0 ")
        assert " 1970-01-01 00:00:00 " in text


def test_the_migration_plan_step_by_step(tmp_path: Path) -> None:
    """The plan of the design: run in a project folder with the paths it names."""
    given = [
        *records(90, "1024x1024", "square"),
        *records(60, "832x1216", "tall"),
        record("unready", caption=""),
    ]
    make_store(tmp_path / "data" / "derived", given, share=("t5",))

    # 1. Dry run with a limit, to verify readiness.
    done = commands.run("pack", "--dry-run", "--limit", "100", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("would pack 100 samples")
    assert "ready_records: 150" in done.stdout.splitlines()
    assert not (tmp_path / "data" / "shards").exists()

    # 2. A validation set of 100 samples.
    validation = tmp_path / "data" / "shards" / "validation"
    done = commands.run(
        *("pack", "--limit", "100", "--shuffle", "--output-dir", "data/shards/validation"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {path.parent.name for path in shards(validation)} == {
        "bucket_1024x1024",
        "bucket_832x1216",
    }

    # 3. Look at the contents.
    first = "data/shards/validation/bucket_1024x1024/shard-000000.tar"
    listed = subprocess.run(
        f"tar -tf {first} | head", shell=True, cwd=tmp_path, capture_output=True, text=True
    ).stdout.splitlines()
    assert len(listed) == 10
    key = listed[0].removesuffix(".json")
    assert listed[:5] == [f"{key}.{suffix}" for suffix in SUFFIXES]

    # 4. The loader.
    samples = read_with_webdataset(validation)
    assert len(samples) == len({sample["__key__"] for sample in samples}) == 100
    latents = np.load(io.BytesIO(samples[0]["vae.npy"]))
    assert (latents.dtype, latents.shape) == (np.dtype(np.float16), (16, 2, 3))

    # 5. The full training set, its samples counted as the plan counts them.
    done = commands.run("pack", "--output-dir", "data/shards/train", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counted = subprocess.run(
        r"for f in data/shards/train/bucket_*/shard-*.tar; do tar -tf $f; done"
        r" | grep '\.json$' | wc -l",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    ).stdout
    assert int(counted) == 150
    assert "ready_records: 150" in done.stdout.splitlines()

    # Roll back: the shards are pure artifacts.
    shutil.rmtree(tmp_path / "data" / "shards")
    done = commands.run("pack", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(shards(tmp_path / "data" / "shards")) == 2
