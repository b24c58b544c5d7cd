"""Renamed images keep their arrays, under their new id."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from shardwright import look, migrate, pack, recipe, status, verify
from shardwright.deriving.changes import find
from shardwright.deriving.sources import Source
from shardwright.errors import ProvenanceError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Lines
from shardwright.storage.files import using
from shardwright.store import facts as store_facts
from shardwright.store.facts import first_ids
from shardwright.store.renames import Name, Renames
from shardwright.store.store import Store
from tests.derive.pictures import array_path, gradient, save, sketch, store_records
from tests.derive.updates import (
    assert_as_derived_from_scratch,
    facts,
    notes,
    rename,
    replace_one,
    stamps,
)
from tests.faults import Killed, KillingDisk, WatchedDisk, contents


@pytest.mark.parametrize("flag", ["update", "prune"])
def test_a_renamed_image_keeps_its_arrays_and_its_first_id(
    images: Path, derived: Path, flag: str
) -> None:
    before = stamps(derived)
    rename(images, "img001", "new name")
    for dry_run in (True, False):
        options: dict[str, Any] = {flag: True}
        summary = sketch(images, derived, dry_run=dry_run, **options)
        assert (summary.derived, summary.already_complete) == (0, 4)
        assert summary.renamed == {"img001": "new name"}
        assert (summary.gone_images, summary.pruned) == ([], [])
        assert dry_run == (stamps(derived) == before)
    after = stamps(derived)
    for folder in ("dinov3", "vae_latents", "t5_hidden"):
        assert after[f"{folder}/new name.npy"] == before[f"{folder}/img001.npy"]
    assert_as_derived_from_scratch(images, derived)
    assert first_ids(Store.at(derived)) == {"new name": "img001"}
    assert notes(derived) == {}
    rename(images, "new name", "third")
    sketch(images, derived, update=True)
    assert first_ids(Store.at(derived)) == {"third": "img001"}
    assert sketch(images, derived).renamed == {}


def test_a_plain_run_says_that_images_were_renamed_and_derives_them_as_new(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename(images, "img001", "renamed")
    summary = sketch(images, derived, progress=Lines())
    assert (summary.derived, summary.renamed) == (1, {})
    assert summary.gone_images == [str(images / "img001.png")]
    assert first_ids(Store.at(derived)) == {"renamed": "img001"}, "its split is the same"
    line = (
        "1 image renamed, for example img001 to renamed; deriving as new. Use --update to keep the "
        "arrays"
    )
    assert line in capsys.readouterr().err


def test_a_renamed_image_with_another_caption_has_only_that_made_again(
    images: Path, derived: Path
) -> None:
    rename(images, "img001", "renamed")
    (images / "renamed.txt").write_text("another caption")
    for dry_run in (True, False):
        summary = sketch(images, derived, update=True, dry_run=dry_run)
        assert (summary.renamed, summary.updated_images) == ({"img001": "renamed"}, [])
        assert summary.updated_captions == [str(images / "renamed.png")]
    assert_as_derived_from_scratch(images, derived)


def test_content_that_two_images_have_names_neither(images: Path, derived: Path) -> None:
    data = (images / "img001.png").read_bytes()
    rename(images, "img001", "one")
    (images / "two.png").write_bytes(data)
    (images / "two.txt").write_text("two")
    summary = sketch(images, derived, update=True)
    assert (summary.renamed, summary.derived) == ({}, 2)
    assert summary.gone_images == [str(images / "img001.png")]


def test_content_that_two_images_on_record_have_names_neither(images: Path, derived: Path) -> None:
    (images / "copy.png").write_bytes((images / "img001.png").read_bytes())
    (images / "copy.txt").write_text("a copy")
    sketch(images, derived)
    rename(images, "img001", "renamed")
    assert sketch(images, derived, update=True).renamed == {}


def test_an_image_whose_old_path_exists_is_not_renamed(images: Path, derived: Path) -> None:
    (images / "copy.png").write_bytes((images / "img001.png").read_bytes())
    (images / "copy.txt").write_text("a copy")
    summary = sketch(images, derived, update=True)
    assert (summary.renamed, summary.derived) == ({}, 1)


def test_names_that_go_round_come_out_right(images: Path, derived: Path) -> None:
    for old, new in (("img001", "x"), ("img002", "img001"), ("x", "img002")):  # swapped
        rename(images, old, new)
    rename(images, "img003", "img004")  # a chain
    rename(images, "img000", "img003")
    summary = sketch(images, derived, update=True, prune=True)
    assert summary.failed == 0
    assert_as_derived_from_scratch(images, derived)


def test_a_renamed_image_whose_name_another_image_has_now(images: Path, derived: Path) -> None:
    rename(images, "img001", "renamed")
    save(images / "img001.webp", gradient(16, 16, seed=7), lossless=True)
    (images / "img001.txt").write_text("another image")
    summary = sketch(images, derived, update=True)
    assert (summary.renamed, summary.derived) == ({"img001": "renamed"}, 1)
    assert_as_derived_from_scratch(images, derived)


def test_ids_in_use_are_exchanged_in_records_arrays_and_facts(derived: Path) -> None:
    store = Store.at(derived)
    old = {c: array_path(derived, c, "img00{}").parent for c in ("vae",)}["vae"]
    arrays = {n: (old / f"img00{n}.npy").read_bytes() for n in range(4)}
    renamed = {
        "img000": Name("img001", "b.png"),
        "img001": Name("img000", "a.png"),
        "img002": Name("img003", "d.png"),
        "img003": Name("new", "n.png"),
    }
    Renames(renamed, []).apply(store)
    ids = ["img001", "img000", "img003", "new"]
    assert [record["image_id"] for record in store_records(derived)] == ids
    assert [record["image_path"] for record in store_records(derived)] == [
        "b.png",
        "a.png",
        "d.png",
        "n.png",
    ]
    assert [(old / f"{name}.npy").read_bytes() for name in ids] == list(arrays.values())
    assert {name: known["first_id"] for name, known in facts(derived).items()} == {
        "img001": "img000",
        "img000": "img001",
        "img003": "img002",
        "new": "img003",
    }
    assert len(list(old.iterdir())) == 4


def test_an_image_renamed_during_an_unfinished_update_keeps_what_was_made(
    images: Path, derived: Path
) -> None:
    replace_one(images, 1)
    replace_one(images, 2, seed=3)
    sketch(images, derived, update=True, trial=1)
    rename(images, "img000", "renamed")
    summary = sketch(images, derived, update=True)
    assert (summary.renamed, len(summary.updated_images)) == ({"img000": "renamed"}, 1)
    assert_as_derived_from_scratch(images, derived)


def test_an_image_that_an_unfinished_recompute_has_made_can_be_renamed(
    images: Path, derived: Path
) -> None:
    sketch(images, derived, recompute=["vae"], trial=2)
    rename(images, "img001", "renamed")
    assert sketch(images, derived, prune=True).renamed == {"img001": "renamed"}
    summary = sketch(images, derived, recompute=["vae"])
    assert (summary.swapped, summary.derived) == (["vae"], 2)
    assert_as_derived_from_scratch(images, derived)


def test_two_records_of_one_image_are_both_renamed_and_no_other_byte_changes(
    images: Path, derived: Path
) -> None:
    jsonl = derived / JSONL_NAME
    lines = jsonl.read_bytes().splitlines()
    jsonl.write_bytes(b"\r\n".join([lines[1], b"not json", b"", *lines]))
    rename(images, "img001", "renamed")
    sketch(images, derived, update=True)
    found = jsonl.read_bytes().split(b"\r\n")
    assert [found[0], found[4]] == [
        lines[1]
        .replace(b'"image_id":"img001"', b'"image_id":"renamed"')
        .replace(b"img001.png", b"renamed.png")
    ] * 2
    assert [found[n] for n in (1, 2, 3, 5, 6)] == [b"not json", b"", lines[0], *lines[2:]]


def test_only_files_of_the_size_of_one_that_is_gone_are_read(
    images: Path, derived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "img001.png").unlink()
    save(images / "larger.png", gradient(64, 64))
    read: list[str] = []
    monkeypatch.setattr(store_facts, "_xxh3", read.append)
    sources = [Source(path.stem, str(path), False) for path in images.glob("*.png")]
    assert find(sources, str(images), Store.at(derived)).gone == {
        "img001": str(images / "img001.png")
    }
    assert read == []


def test_a_store_in_the_middle_of_renaming_is_read_by_no_command(
    images: Path, derived: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename(images, "img001", "renamed")
    copy = shutil.copytree(derived, tmp_path / "copy")
    with using(disk := WatchedDisk()):
        sketch(images, copy, update=True)
    moved = next(n for n, call in enumerate(disk.calls, 1) if call.path.endswith("renamed.npy"))
    with using(KillingDisk(moved + 1)), pytest.raises(Killed):
        sketch(images, derived, update=True)
    before = contents(derived)
    for read in (
        lambda: pack(derived_dir=derived, output_dir=tmp_path / "shards", workers=1),
        lambda: verify(derived, workers=1),
        lambda: status(derived_dir=derived, workers=1),
        lambda: look(derived, report=tmp_path / "report.html"),
        lambda: recipe(derived_dir=derived),
        lambda: migrate(derived_dir=derived, workers=1),
    ):
        with pytest.raises(ProvenanceError) as error:
            read()
        assert f"{derived}: the renaming of 1 image was interrupted" in str(error.value)
        assert f"to finish it, run shardwright derive {images}" in str(error.value)
    with pytest.raises(ProvenanceError, match="run the same command without --dry-run"):
        sketch(images, derived, dry_run=True)
    assert contents(derived) == before
    sketch(images, derived, progress=Lines())
    assert "finished the interrupted renaming of 1 image\n" in capsys.readouterr().err
    assert contents(derived) == contents(copy)


def test_an_image_that_was_moved_to_another_folder_has_its_new_path_in_its_record(
    images: Path, derived: Path
) -> None:
    before = stamps(derived)
    shutil.move(images, moved := images.with_name("moved"))
    for dry_run in (True, False):
        summary = sketch(moved, derived, update=True, prune=True, dry_run=dry_run)
        assert (summary.already_complete, summary.renamed, summary.pruned) == (4, {}, [])
    assert {Path(r["image_path"]).parent for r in store_records(derived)} == {moved}
    assert stamps(derived) == before
