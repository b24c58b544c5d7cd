"""The writer of one shard: the bytes that pack writes, from memory and from files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import StorageError, pack
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import index, manifest
from shardwright.shards.format.index import INDEX_FOLDER, index_name
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.records import records_name
from shardwright.shards.format.writer import ShardWriter
from shardwright.storage.files import using
from shardwright.storage.local import LocalPlace
from shardwright.store.npy import BadArrayError
from tests.faults import WatchedDisk, contents
from tests.stores import Record, Store, make_store, records
from tests.tars import read_members

BUCKET = "bucket_24x16"
SHARD = f"{BUCKET}/shard-000000.tar"
FILES = (SHARD, index_name(SHARD), records_name(SHARD))


@pytest.fixture
def small(tmp_path: Path) -> Store:
    return make_store(tmp_path / "derived", records(3, "24x16"))


@pytest.fixture
def place(tmp_path: Path) -> LocalPlace:
    """A folder with the folders of one bucket."""
    return storage(tmp_path / "written")


def storage(folder: Path) -> LocalPlace:
    (folder / BUCKET).mkdir(parents=True)
    (folder / STATE_FOLDER / INDEX_FOLDER / BUCKET).mkdir(parents=True)
    return LocalPlace(folder)


def files_in(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if data is not None}


def arrays(store: Store, record: Record) -> Iterator[Path]:
    for component in SPECIFICATION.components:
        yield store.array(component.name, record["image_id"])


def add_sample(shard: ShardWriter, store: Store, record: Record, cut: int = 128) -> None:
    """Add a sample from memory, each array in two pieces."""
    shard.begin(record["image_id"], record, None)
    for component, path in zip(SPECIFICATION.components, arrays(store, record), strict=True):
        data = path.read_bytes()
        shard.add(component, data[:cut], memoryview(data)[cut:])


def publish(place: LocalPlace) -> None:
    for name in FILES:
        place.publish(name)


def by_pack(store: Store, output: Path, *, sha256: bool) -> ShardEntry:
    pack(derived_dir=store.root, output_dir=output, workers=1, sha256=sha256)
    packed = manifest.load_manifest(output)
    assert packed is not None
    (entry,) = packed.shards
    return entry


@pytest.mark.parametrize("sha256", [False, True])
def test_samples_from_memory_give_the_bytes_and_the_entry_that_pack_writes(
    sha256: bool, small: Store, output: Path, place: LocalPlace
) -> None:
    expected = by_pack(small, output, sha256=sha256)
    with ShardWriter(place, SHARD, SPECIFICATION, sha256=sha256) as shard:
        for record in small.records:
            add_sample(shard, small, record)
        entry = shard.finish()
    assert sorted(files_in(place.folder)) == sorted(f"{name}.tmp" for name in FILES)
    publish(place)
    assert entry == expected
    assert (entry.sha256 is not None) is sha256
    packed = contents(output)
    assert files_in(place.folder) == {name: packed[name] for name in FILES}


def test_samples_from_files_give_the_same_bytes_as_from_memory(
    small: Store, tmp_path: Path, place: LocalPlace
) -> None:
    with ShardWriter(place, SHARD, SPECIFICATION) as shard:
        for record in small.records:
            add_sample(shard, small, record)
        expected = shard.finish()
    other = storage(tmp_path / "other")
    with ShardWriter(other, SHARD, SPECIFICATION) as shard:
        for record in small.records:
            shard.begin(record["image_id"], record, None)
            for component, path in zip(
                SPECIFICATION.components, arrays(small, record), strict=True
            ):
                with path.open("rb") as file:
                    shard.add_file(component, file.fileno(), path.stat().st_size)
        assert shard.finish() == expected
    assert files_in(other.folder) == files_in(place.folder)


@given(cut=st.integers(0, 5000))
def test_an_array_in_any_two_pieces_gives_the_same_member(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    store, place = make_store(folder / "derived", records(1, "24x16")), storage(folder / "out")
    with using(WatchedDisk()), ShardWriter(place, SHARD, SPECIFICATION) as shard:
        add_sample(shard, store, store.records[0], cut)
        shard.finish()
        publish(place)
    assert read_members(place.folder / SHARD) == store.members(store.records[0])


def test_the_index_has_the_ids_and_the_place_of_every_member(
    small: Store, place: LocalPlace
) -> None:
    with ShardWriter(place, SHARD, SPECIFICATION) as shard:
        for record in small.records:
            add_sample(shard, small, record)
        entry = shard.finish()
    publish(place)
    found, data = index.load(place.folder, SHARD), (place.folder / SHARD).read_bytes()
    assert found.head.ids == [record["image_id"] for record in small.records]
    assert (found.head.shard, found.head.bytes) == (SHARD, len(data))
    members = [data[offset : offset + size] for offset, size in found.spots()]
    expected = [small.members(record) for record in small.records]
    assert members == [member for sample in expected for _, member in sample]
    assert (entry.path, entry.bucket, entry.samples) == (SHARD, "24x16", 3)
    assert entry.bytes == len(data)


def test_a_shard_of_another_size_than_planned_is_refused_and_leaves_no_file(
    small: Store, place: LocalPlace
) -> None:
    with ShardWriter(place, SHARD, SPECIFICATION) as shard:
        add_sample(shard, small, small.records[0])
        with pytest.raises(StorageError, match=r"shard-000000\.tar\.tmp: wrote 512 bytes, but"):
            shard.finish(512)
    assert files_in(place.folder) == {}


@pytest.mark.parametrize("samples", [0, 2])
def test_a_writer_that_is_left_without_finishing_leaves_no_file(
    samples: int, small: Store, place: LocalPlace
) -> None:
    with ShardWriter(place, SHARD, SPECIFICATION) as shard:
        for record in small.records[:samples]:
            add_sample(shard, small, record)
    assert files_in(place.folder) == {}


def test_a_writer_that_cannot_create_its_records_leaves_no_tar(place: LocalPlace) -> None:
    (place.folder / records_name(SHARD)).parent.rmdir()
    with pytest.raises(StorageError, match=r"shard-000000\.jsonl\.tmp"):
        ShardWriter(place, SHARD, SPECIFICATION)
    assert files_in(place.folder) == {}


def test_a_file_that_is_shorter_than_its_size_or_cannot_be_read_is_no_member(
    small: Store, place: LocalPlace
) -> None:
    component, record = SPECIFICATION.components[0], small.records[0]
    path = next(arrays(small, record))
    for flags, reason in ((os.O_RDONLY, "truncated"), (os.O_WRONLY, "unreadable")):
        fd = os.open(path, flags)
        with ShardWriter(place, SHARD, SPECIFICATION) as shard:
            shard.begin(record["image_id"], record, None)
            with pytest.raises(BadArrayError) as told:
                shard.add_file(component, fd, path.stat().st_size + 1)
        os.close(fd)
        assert told.value.reason == reason
        assert files_in(place.folder) == {}


def test_the_bytes_on_their_way_to_the_disk_grow_to_the_size_of_the_tar(
    small: Store, place: LocalPlace
) -> None:
    with ShardWriter(place, SHARD, SPECIFICATION) as shard:
        assert shard.written == 0
        add_sample(shard, small, small.records[0])
        entry = shard.finish()
        assert shard.written == entry.bytes
