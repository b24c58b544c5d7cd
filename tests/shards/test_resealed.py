"""A manifest that was changed and given a right checksum again: what it says wrong is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

import shardwright
from shardwright import pack
from shardwright.shards.format import index, manifest
from tests.fuzz.targets import signed_index, signed_manifest
from tests.stores import Record, Store, make_store, record

FIRST = "bucket_24x16/shard-000000.tar"
MANIFEST = ".shardwright/manifest.json"
Document = dict[str, Any]


def latent(fields: Record) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of six samples in two buckets, and a record without a caption."""
    six = [record(f"img{number}", ("24x16", "32x16")[number % 2]) for number in range(6)]
    return make_store(tmp_path / "derived", [*six, record("x", "24x16", caption="")], latent=latent)


@pytest.fixture
def folder(store: Store, output: Path) -> Path:
    """That store in four shards."""
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1, sha256=True)
    return output


def reseal(folder: Path, change: Callable[[Document], object]) -> None:
    """Change a manifest, and make its checksum and SHA256SUMS those of what it now says."""
    path = folder / MANIFEST
    document = json.loads(path.read_bytes())
    document.pop("xxh3")
    change(document)
    body = json.dumps(document, indent=2).encode().removesuffix(b"\n}")
    path.write_bytes(signed_manifest(body))
    # Not as read by us: what cannot be right is refused there.
    complete = msgspec.convert(document, manifest.Manifest)
    manifest.save_sha256(folder, complete)


def damage(folder: Path, *, read_data: bool = False) -> list[tuple[str, str]]:
    report = shardwright.verify(folder, read_data=read_data, workers=1)
    assert report.damaged == bool(report.findings)
    return [(finding.kind, finding.file) for finding in report.findings]


def put(where: str, value: object) -> Callable[[Document], object]:
    """Put a value in a place, for example ``runs.0.samples``."""

    def change(document: Document) -> None:
        *way, last = where.split(".")
        holder: Any = document
        for key in way:
            holder = holder[int(key)] if key.isdigit() else holder[key]
        assert holder[last] != value
        holder[last] = value

    return change


WRONG: list[tuple[str, object]] = [
    ("shards.0.samples", 3),
    ("shards.0.samples", 1),
    ("shards.0.bytes", 512),
    ("shards.0.bytes", 1 << 20),
    ("shards.0.xxh3", "0" * 32),
    ("shards.0.sha256", "0" * 64),
    ("shards.0.index_xxh3", "0" * 16),
    ("shards.0.records_xxh3", "0" * 16),
    ("shards.0.bucket", "32x16"),
    ("shards.0.path", "bucket_24x16/shard-000007.tar"),
    ("runs.0.samples", 5),
    ("runs.0.samples", 7),
    ("runs.0.shards", 3),
    ("runs.0.shards", 5),
    ("runs.0.total_records", 8),
    ("runs.0.ready_records", 7),
    ("runs.0.skipped_incomplete", 0),
]


@pytest.mark.parametrize(
    ("where", "value", "read_data"),
    [(*row, read) for row in WRONG for read in (False, True) if not (read and "runs." in row[0])],
)
def test_a_wrong_value_under_a_right_checksum_is_found(
    where: str, value: object, read_data: bool, folder: Path
) -> None:
    reseal(folder, lambda _: None)
    assert damage(folder, read_data=read_data) == []
    reseal(folder, put(where, value))
    found = damage(folder, read_data=read_data)
    if where.startswith("runs."):
        assert set(found) == {("manifest_wrong", MANIFEST)}
    elif where.endswith("bucket") or value in (512, 3):  # which cannot be, whatever the shards hold
        assert ("manifest_damaged", MANIFEST) in found
    elif where.endswith(("samples", "bytes", "xxh3", "sha256")) and "index" not in where:
        assert ("manifest_wrong", FIRST) in found
    assert found


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("runs.0.skipped_by_reason.caption_invalid", "two"),
        ("runs.0.settings.limit", 5),
        ("runs.0.settings.buckets", ["24x16"]),
        ("runs.0.settings.seed", 7),
        ("runs.0.settings.shard_size", 1000),
    ],
)
def test_settings_that_another_version_may_understand_otherwise_are_not_damage(
    where: str, value: object, folder: Path
) -> None:
    reseal(folder, put(where, value))
    assert damage(folder) == []


@pytest.mark.parametrize("count", [-1, 10**400], ids=["negative", "huge"])
@pytest.mark.parametrize("where", ["runs.0.samples", "shards.0.samples", "runs.0.settings.limit"])
def test_a_count_that_cannot_be_is_damage_and_no_crash(
    where: str, count: int, folder: Path
) -> None:
    (folder / FIRST).unlink()  # then its samples are counted from the manifest
    path = folder / MANIFEST
    document = json.loads(path.read_bytes())
    document.pop("xxh3")
    put(where, count)(document)
    path.write_bytes(signed_manifest(json.dumps(document, indent=2).encode().removesuffix(b"\n}")))
    assert ("manifest_damaged", MANIFEST) in damage(folder)


def test_counts_that_do_not_add_up_are_reported_with_both_values(folder: Path) -> None:
    reseal(folder, put("runs.0.samples", 5))
    (finding,) = shardwright.verify(folder, workers=1).findings
    assert finding.what == (
        "run 1 says that it packed 5 samples in 4 shards, but the manifest lists 6 samples in 4 "
        "shards"
    )
    assert "--overwrite" in finding.fix


@pytest.mark.parametrize(
    ("field", "value"),
    [("xxh3", "0" * 32), ("samples", 1), ("sha256", "0" * 64), ("bytes", 1 << 20)],
)
def test_the_manifest_is_blamed_and_not_the_index_that_it_names(
    field: str, value: object, folder: Path
) -> None:
    reseal(folder, put(f"shards.0.{field}", value))
    head = index.load(folder, FIRST).head
    right = len(head.ids) if field == "samples" else getattr(head, field)
    (finding,) = (
        f for f in shardwright.verify(folder, read_data=True, workers=1).findings if f.file == FIRST
    )
    assert finding.kind == "manifest_wrong"
    if field == "sha256":
        value, right = "0" * 12, str(right)[:12]
    assert finding.what == f"the manifest says {field} {value}, but its index says {right}"


def test_a_sha256_that_is_made_up_in_index_and_manifest_is_found_by_reading(folder: Path) -> None:
    right = hashlib.sha256((folder / FIRST).read_bytes()).hexdigest()
    path = folder / index.index_name(FIRST)
    path.write_bytes(signed_index(path.read_bytes()[:-8].replace(right.encode(), b"0" * 64)))

    def change(document: Document) -> None:
        put("shards.0.sha256", "0" * 64)(document)
        put("shards.0.index_xxh3", xxhash.xxh3_64_hexdigest(path.read_bytes()))(document)

    reseal(folder, change)
    assert damage(folder) == []
    (finding,) = shardwright.verify(folder, read_data=True, workers=1).findings
    assert (finding.kind, finding.file) == ("sha256_differs", FIRST)
    assert finding.what == f"its sha256 is {str(right)[:12]}, but {'0' * 12} is recorded"


def test_a_sha256_that_only_the_manifest_has_is_held_against_the_bytes(
    store: Store, output: Path
) -> None:
    """As after ``--resume --sha256``: the index was written without."""
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1)
    pack(
        derived_dir=store.root, output_dir=output, shard_size=2, workers=1, resume=True, sha256=True
    )
    assert index.load(output, FIRST).head.sha256 is None
    assert damage(output, read_data=True) == []
    reseal(output, put("shards.0.sha256", "0" * 64))
    assert damage(output) == []  # not without reading
    assert damage(output, read_data=True) == [("sha256_differs", FIRST)]


def test_a_lost_sha256_is_found(folder: Path) -> None:
    reseal(folder, put("shards.0.sha256", None))
    assert damage(folder) == [("manifest_wrong", FIRST)]


# What legitimate runs leave behind is not taken for wrong


def test_runs_of_every_kind_one_after_the_other_are_valid(store: Store, output: Path) -> None:
    def packed(**options: Any) -> None:  # noqa: ANN401
        pack(derived_dir=store.root, output_dir=output, workers=1, **options)
        assert damage(output) == []

    def grow(*records: Record) -> Store:
        return make_store(store.root, [*store.records, *records], latent=latent)

    packed(shard_size=2, shuffle=True, seed=3)
    more = [record(f"new{number}", ("24x16", "32x16")[number % 2]) for number in range(4)]
    grow(*more)
    packed(shard_size=1, append=True, limit=3)
    packed(shard_size=5, append=True)
    packed(append=True)
    packed(shard_size=2, overwrite=True, bucket=["32x16"])  # takes shards from three runs
    assert manifest.load_manifest(output) is not None
    grow(*more, record("last", "16x24"), record("wide", "32x16"))
    packed(append=True, bucket=["32x16"])
    packed(bucket=["16x24"])
    packed(resume=True, bucket=["16x24"])
    packed(overwrite=True, bucket=["24x16"], limit=1)
    packed(overwrite=True, limit=1)


def test_shards_taken_from_an_older_run_must_be_explained_by_a_later_one(
    store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1)
    make_store(store.root, [*store.records, record("new", "24x16")], latent=latent)
    pack(derived_dir=store.root, output_dir=output, workers=1, append=True)
    assert damage(output) == []

    def forget(document: Document) -> None:
        entry = document["shards"].pop()
        assert entry["run"] == 0
        (output / entry["path"]).unlink()

    reseal(output, forget)
    assert damage(output) == [("manifest_wrong", MANIFEST)]
