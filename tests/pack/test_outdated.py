"""Which packed samples are outdated, found by indexes, sizes and times."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright import Progress, pack
from shardwright.engine.local import Local
from shardwright.packing.outdated import Comparison, compare
from shardwright.packing.plan import Packed
from shardwright.packing.scan import scan
from shardwright.shards.format import index, manifest
from shardwright.store.store import Store as OurStore
from tests.stores import Record, Store, line, make_store, record

FIRST, SECOND = "bucket_24x16/shard-000000.tar", "bucket_24x16/shard-000001.tar"


def latent(fields: Record) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


@pytest.fixture
def store(tmp_path: Path, output: Path) -> Store:
    """Four samples in two packed shards."""
    store = make_store(
        tmp_path / "derived", [record(f"img{n}", "24x16") for n in range(4)], latent=latent
    )
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1)
    return store


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def compared(store: Store, output: Path, **options: Any) -> Comparison:  # noqa: ANN401
    found = scan(OurStore.at(store.root), Progress(), 500)
    listed = manifest.load_manifest(output)
    assert listed is not None
    packed = [Packed(entry, index.load(output, entry.path).head.ids) for entry in listed.shards]
    options = {"progress": Progress(), **options}
    return compare(output, packed, found, lambda sample: True, Local(1), **options)


def counts(result: Comparison) -> dict[str, tuple[str, int, str]]:
    kinds = {"changed": result.changed, "removed": result.removed, "not ready": result.not_ready}
    return {
        kind: (reason, count.count, count.example)
        for kind, skipped in kinds.items()
        for reason, count in skipped.items()
    }


def rewrite(store: Store, **fields: object) -> None:
    """Change the record of img1."""
    store.write_lines(
        line({**f, **fields} if f["image_id"] == "img1" else f) for f in store.records
    )


def changed_caption(store: Store) -> None:
    rewrite(store, caption="A picture of img1")  # of the same length


def changed_mask(store: Store) -> None:
    rewrite(store, t5_attention_mask=[1] * 10 + [0] * 67)


def changed_bucket(store: Store) -> None:
    rewrite(store, aspect_bucket="32x16")


def other_values(store: Store) -> None:
    path = store.array("vae", "img1")
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")


def other_values_with_an_old_time(store: Store) -> None:
    """As a copy that keeps the times of its files."""
    other_values(store)
    os.utime(store.array("vae", "img1"), (0, 0))


def other_size(store: Store) -> None:
    store.array("vae", "img1").write_bytes(b"")


def gone(store: Store) -> None:
    store.write_lines(line(fields) for fields in store.records if fields["image_id"] != "img1")


def without_an_array(store: Store) -> None:
    store.array("t5", "img1").unlink()


def blank_caption(store: Store) -> None:
    rewrite(store, caption=" ")


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (changed_caption, "changed", "record"),
        (changed_mask, "changed", "record"),
        (changed_bucket, "changed", "aspect_bucket"),
        (other_values, "changed", "vae"),
        (other_values_with_an_old_time, "changed", "vae"),
        (other_size, "changed", "vae"),
        (gone, "removed", "record_gone"),
        (without_an_array, "not ready", "t5_missing"),
        (blank_caption, "not ready", "caption_invalid"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_changed_sample_is_found_with_its_reason(
    change: Callable[[Store], None], kind: str, reason: str, store: Store, output: Path
) -> None:
    change(store)
    result = compared(store, output)
    assert counts(result) == {kind: (reason, 1, "img1")}
    assert [shard.outdated for shard in result.shards] == [True, False]
    assert result.outdated == (kind != "not ready")


def test_a_store_that_is_as_it_was_packed_has_nothing_outdated(store: Store, output: Path) -> None:
    for path in store.root.rglob("*.npy"):
        path.touch()  # newer, but the same
    result = compared(store, output)
    assert counts(result) == {}
    assert [list(shard.samples) for shard in result.shards] == [[0, 1], [2, 3]]


def test_arrays_older_than_their_shard_are_not_read(
    store: Store, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        "shardwright.packing.outdated._checksum", lambda name, folder: read.append(name)
    )
    last = max(path.stat().st_ctime_ns for path in store.root.rglob("*.npy"))
    for path in (output / FIRST, output / SECOND):
        while path.stat().st_ctime_ns <= last:
            path.touch()
    store.array("vae", "img2").touch()
    said = Said()
    compared(store, output, progress=said)
    assert read == ["img2.npy"]
    why = "because the time of its file is not before the shard's"
    assert said.lines == [f"{output}: read 1 array, {why}"]
    # A copy by links, chmod or a move changes only the ctime: status goes by the mtime.
    store.array("vae", "img3").chmod(0o600)
    for moved, names in ((False, ["img2.npy"]), (True, ["img2.npy", "img3.npy"])):
        read.clear()
        compared(store, output, moved=moved)
        assert read == names
