"""The records of each shard beside its index: what pack writes there, and when it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import xxhash

import shardwright
from shardwright import SourceChangedError, pack, verify
from shardwright.packing.scan import Scan
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.records import FACTS, load, records_name
from tests.derive.pictures import make_images, sketch
from tests.derive.test_facts import LONG
from tests.derive.updates import facts
from tests.faults import contents
from tests.stores import MASK, Store, line, make_store, record
from tests.tars import ids_by_shard, listing, read_members

Lines = dict[str, list[dict[str, Any]]]


def entries(output: Path) -> dict[str, ShardEntry]:
    listed = manifest.load_manifest(output)
    assert listed is not None
    return {entry.path: entry for entry in listed.shards}


def beside(output: Path) -> Lines:
    """Read the records of each shard with json, and check what the manifest says of them."""
    found: Lines = {}
    for path, entry in entries(output).items():
        data = (output / records_name(path)).read_bytes()
        assert xxhash.xxh3_64_hexdigest(data) == entry.records_xxh3
        found[path] = [json.loads(text) for text in data.split(b"\n")[:-1]]
    there = {name for name in listing(output) if name.endswith(".jsonl")}
    assert there == set(map(records_name, found))
    return found


@pytest.fixture
def derived(tmp_path: Path) -> Path:
    images = make_images(tmp_path / "images", 5)
    (images / "img001.txt").write_text(LONG)
    sketch(images, tmp_path / "derived", fit="bucket")
    return tmp_path / "derived"


def write_facts(store: Store, *lines: dict[str, Any]) -> Path:
    path = store.root / ".shardwright/facts.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(line(one) + b"\n" for one in lines))
    return path


def test_the_file_holds_the_json_members_in_order_with_the_facts_of_the_store(
    derived: Path, output: Path
) -> None:
    pack(derived_dir=derived, output_dir=output, shard_size=2, shuffle=True, workers=1)
    on_record = facts(derived)
    for path, lines in beside(output).items():
        members = dict(read_members(output / path))
        jsons = [json.loads(data) for name, data in members.items() if name.endswith(".json")]
        assert [{k: v for k, v in one.items() if k != FACTS} for one in lines] == jsons
        for one in lines:
            expected = on_record[one["image_id"]]
            names = ("tokens_lost", "cut_at", "enlarged", "cropped")
            given = {name: expected[name] for name in names if name in expected}
            mask = members[f"{one['image_id']}.t5m.npy"][-77:]
            given["image_xxh3"] = expected["image"]["xxh3"]
            assert one[FACTS] == {**given, "tokens": {"t5": sum(mask)}}
            assert ("cut_at" in one[FACTS]) == (one["image_id"] == "img001")
        assert [found[0] for found in load(output, path, entries(output)[path].records_xxh3 or "")]
    assert sum(map(len, beside(output).values())) == 5


def test_without_facts_only_the_tokens_are_known(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    found = [one[FACTS] for lines in beside(output).values() for one in lines]
    assert found == [{"tokens": {"t5": sum(MASK)}}] * 7


def test_the_last_facts_of_an_image_count_and_no_file_is_named(store: Store, output: Path) -> None:
    image = {"path": "/somewhere/img0.png", "bytes": 5, "mtime_ns": 7, "xxh3": "ab"}
    write_facts(
        store,
        {"image_id": "img0", "enlarged": 3.0, "cropped": 0.5},
        {"image_id": "nobody", "enlarged": 4.0},
        {"image_id": "img0", "enlarged": 2.0, "image": image, "first_id": "x"},
        {"image_id": "img1", "tokens_lost": {"t5": 2, "gone": 1}, "cut_at": {"gone": 1}},
        {"image_id": "img2", "enlarged": "invalid"},
    )
    pack(derived_dir=store.root, output_dir=output, workers=1)
    found = {one["image_id"]: one[FACTS] for lines in beside(output).values() for one in lines}
    tokens = {"tokens": {"t5": sum(MASK)}}
    assert found["img0"] == {"enlarged": 2.0, "image_xxh3": "ab", **tokens}
    assert found["img1"] == {"tokens_lost": {"t5": 2}, **tokens}
    assert found["img2"] == tokens


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_bytes_for_any_workers_and_wherever_the_store_is(
    workers: int, derived: Path, output: Path, tmp_path: Path
) -> None:
    pack(derived_dir=derived, output_dir=output, shard_size=2, workers=workers)
    images = make_images(tmp_path / "elsewhere", 5)
    (images / "img001.txt").write_text(LONG)
    moved = tmp_path / "images"
    moved.rename(tmp_path / "before")
    images.rename(moved)  # the same paths in records, other times of the files
    sketch(moved, tmp_path / "again", fit="bucket")
    pack(derived_dir=tmp_path / "again", output_dir=tmp_path / "shards2", shard_size=2, workers=1)
    assert contents(output) == contents(tmp_path / "shards2")


def test_every_part_of_a_split_and_every_way_of_packing_keeps_them(
    store: Store, output: Path
) -> None:
    def run(**options: Any) -> None:  # noqa: ANN401
        pack(derived_dir=store.root, output_dir=output, shard_size=1, workers=1, **options)
        for part in ("train", "val"):
            ids = {
                path: [one["image_id"] for one in found]
                for path, found in beside(output / part).items()
            }
            assert ids == ids_by_shard(output / part)
        assert not verify(output, workers=1).findings

    run(split="val=40%")
    grown = [*store.records, *(record(f"new{number}") for number in range(4))]
    make_store(store.root, grown)
    run(append=True)
    store.write_lines(map(line, [{**grown[0], "caption": "another"}, *grown[2:]]))
    run(sync=True)
    captions = [
        one["caption"]
        for part in ("train", "val")
        for lines in beside(output / part).values()
        for one in lines
        if one["image_id"] == grown[0]["image_id"]
    ]
    assert captions == ["another"]
    store.write_lines(map(line, grown[:6]))
    run(overwrite=True)


def test_facts_that_change_while_they_are_packed_stop_the_run(store: Store, output: Path) -> None:
    lines = [{"image_id": f"img{number}", "enlarged": 1.0} for number in range(7)]
    path = write_facts(store, *lines)
    found = Scan.fact_places

    def changing(data: bytes | None) -> Any:  # noqa: ANN401
        def after(*given: Any) -> Any:  # noqa: ANN401
            places = found(*given)
            path.unlink() if data is None else path.write_bytes(data)
            return places

        return after

    for data in (b"x" + path.read_bytes(), path.read_bytes()[::-1], None):
        write_facts(store, *lines)
        with (
            mock.patch.object(Scan, "fact_places", changing(data)),
            pytest.raises(SourceChangedError, match=r"facts\.jsonl: changed while it was read"),
        ):
            pack(derived_dir=store.root, output_dir=output, workers=1)
    assert not list(output.rglob("*.tmp"))
    write_facts(store, *lines)
    pack(derived_dir=store.root, output_dir=output, workers=1, resume=True)
    assert all(one[FACTS]["enlarged"] == 1.0 for found in beside(output).values() for one in found)


def test_a_reader_of_samples_does_not_need_them(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    for path in output.rglob("*.jsonl"):
        path.unlink()
    assert len(shardwright.open(output)) == 7
    assert verify(output, workers=1).counts == {"records_damaged": 2}
