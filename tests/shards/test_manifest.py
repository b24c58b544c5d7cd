"""The manifest: what goes in comes out, no damage passes, and ``sha256sum`` agrees."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright import DamageError, __version__, pack
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Manifest, PackSettings, Run, ShardEntry, Unfinished
from tests.fuzz.targets import signed_manifest
from tests.stores import Store
from tests.tars import shards

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNT = st.integers(0, 2**62)
BUCKET = st.sampled_from(["24x16", "1024x1024", "999999x1"])
SETTINGS = st.builds(
    PackSettings,
    buckets=st.lists(BUCKET, max_size=2),
    shuffle=st.booleans(),
    seed=st.none() | COUNT,
    limit=st.none() | COUNT,
    shard_size=st.integers(1, 2**62),
)
ENTRIES = st.builds(
    lambda bucket, number, **fields: ShardEntry(
        path=f"bucket_{bucket}/shard-{number:06}.tar", bucket=bucket, **fields
    ),
    BUCKET,
    st.integers(0, 10**18 - 1),
    run=st.just(0),
    samples=st.integers(0, 2**40),
    bytes=st.integers(2**60, 2**62),
    xxh3=TEXT,
    sha256=st.none() | TEXT,
    index_xxh3=TEXT,
    records_xxh3=TEXT,
)
RUNS = st.builds(
    Run,
    tool=TEXT,
    append=st.booleans(),
    settings=SETTINGS,
    plan=TEXT,
    total_records=COUNT,
    ready_records=COUNT,
    skipped_incomplete=COUNT,
    skipped_by_reason=st.dictionaries(TEXT, st.integers(0, 9), max_size=2),
    samples=COUNT,
    shards=COUNT,
    provenance=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    jsonl=st.none() | TEXT,
)
MANIFESTS = st.builds(
    Manifest,
    runs=st.lists(RUNS, min_size=1, max_size=2),
    shards=st.lists(ENTRIES, max_size=3, unique_by=lambda entry: entry.path),
)
UNFINISHED = st.builds(
    Unfinished,
    append=st.booleans(),
    plan=TEXT,
    settings=SETTINGS,
    replaces=st.lists(BUCKET, max_size=2),
    base=st.none() | MANIFESTS,
)


def state(folder: Path) -> Path:
    path = folder / ".shardwright"
    path.mkdir(exist_ok=True)
    return path


@given(MANIFESTS, UNFINISHED)
@settings(deadline=None, max_examples=40)
def test_a_manifest_that_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, complete: Manifest, unfinished: Unfinished
) -> None:
    folder = tmp_path_factory.getbasetemp()
    state(folder)
    manifest.save_manifest(folder, complete)
    manifest.save_unfinished(folder, unfinished)
    assert manifest.load_manifest(folder) == complete
    assert manifest.load_unfinished(folder) == unfinished


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=60)
def test_any_bytes_as_a_manifest_raise_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
) -> None:
    path = state(tmp_path_factory.getbasetemp()) / manifest.MANIFEST_NAME
    beginning = b'{"runs":[],"shards":['
    for data in (body, signed_manifest(body), signed_manifest(beginning + body)):
        with pytest.raises(DamageError, match=r"manifest\.json"):
            manifest.decode_manifest(data, path)


@pytest.mark.parametrize(
    "body",
    [
        b'{"format":"\xff","runs":[],"shards":[]',
        b'{"runs":' + b"[" * 100_000,
        b'{"runs":[],"shards":[{"path":1}]',
        b'{"runs":[{"provenance":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}]",
        b'{"runs":[],"shards":[]',
        b'{"version":2,"runs":[],"shards":[]',
        b'{"format":"another","runs":[],"shards":[]',
    ],
    ids=[
        "not UTF-8",
        "nested deep",
        "of another type",
        "provenance nested deep",
        "of no run",
        "of a later version",
        "of another format",
    ],
)
def test_a_manifest_that_only_has_the_right_checksum_is_refused(
    body: bytes, tmp_path: Path
) -> None:
    (state(tmp_path) / manifest.MANIFEST_NAME).write_bytes(signed_manifest(body))
    with pytest.raises(DamageError):
        manifest.load_manifest(tmp_path)


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert manifest.load_manifest(tmp_path) is None
    assert manifest.load_unfinished(tmp_path) is None


def test_any_flipped_bit_of_a_manifest_is_found(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    path = output / ".shardwright/manifest.json"
    complete = path.read_bytes()
    for position in range(len(complete)):
        damaged = bytearray(complete)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(DamageError):
            manifest.load_manifest(output)


def test_any_cut_of_a_manifest_is_found(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    path = output / ".shardwright/manifest.json"
    complete = path.read_bytes()
    for length in range(0, len(complete), 3):
        path.write_bytes(complete[:length])
        with pytest.raises(DamageError):
            manifest.load_manifest(output)


def test_a_manifest_is_plain_json_that_says_what_was_packed_and_why(
    store: Store, output: Path
) -> None:
    store.append(b"{}")
    (store.root / ".shardwright").mkdir()
    (store.root / ".shardwright/provenance.json").write_text(
        '{"components": {"vae": {"settings": {"model": "some"}, "tool": "one", "model": "a"}}}'
    )
    options = {"shuffle": True, "seed": 7, "limit": 5, "shard_size": 2}
    pack(derived_dir=store.root, output_dir=output, workers=1, **options)  # type: ignore[arg-type]
    made = json.loads((output / ".shardwright/manifest.json").read_bytes())
    assert (made["format"], made["version"]) == ("shardwright-manifest", 1)
    (run,) = made["runs"]
    assert run["tool"] == f"shardwright {__version__}"
    assert run["settings"] == {"buckets": [], **options}
    assert (run["total_records"], run["ready_records"]) == (8, 7)
    assert run["skipped_by_reason"] == {"image_id_missing": {"count": 1, "example": "line 8"}}
    vae = {"settings": {"model": "some"}, "tool": "one", "model": "a"}
    assert run["provenance"] == {"components": {"vae": vae}}
    assert [entry["path"] for entry in made["shards"]] == [
        str(path.relative_to(output)) for path in shards(output)
    ]
    for entry in made["shards"]:
        data = (output / entry["path"]).read_bytes()
        assert entry["bytes"] == len(data)
        assert entry["xxh3"] == xxhash.xxh3_128_hexdigest(data)
    assert sum(entry["samples"] for entry in made["shards"]) == 5


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum here")
def test_sha256sum_accepts_the_sums_and_sees_a_flipped_bit(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1, sha256=True)
    command = ["sha256sum", "--strict", "-c", ".shardwright/SHA256SUMS"]
    done = subprocess.run(command, cwd=output, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.count(": OK") == len(shards(output))
    path = shards(output)[1]
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    done = subprocess.run(command, cwd=output, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{path.relative_to(output)}: FAILED" in done.stdout


def test_a_count_that_the_bytes_of_a_shard_cannot_hold_is_refused(
    store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    done = manifest.load_manifest(output)
    assert done is not None
    entry = msgspec.structs.replace(done.shards[0], samples=300_000_000)
    manifest.save_manifest(output, msgspec.structs.replace(done, shards=[entry, *done.shards[1:]]))
    with pytest.raises(DamageError) as caught:
        shardwright.open(output)
    assert caught.value.what == (
        f"says that {entry.path} has 300,000,000 samples in {entry.bytes:,} bytes, but each has "
        "164,461 or more"
    )
