"""derive --prune: records, arrays and facts of images that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardwright import status
from shardwright.errors import DamageError, ProvenanceError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Lines, Progress
from shardwright.reporting.outlook import outlook
from shardwright.storage.files import using
from shardwright.store.store import Store
from tests.commands import run
from tests.derive.pictures import array_path, gradient, make_images, save, sketch, store_records
from tests.derive.updates import TINY, facts, fresh, notes, remove, replace_one, stamps, written
from tests.faults import Killed, KillingDisk, WatchedDisk, contents


def test_gone_images_are_listed_and_then_removed_and_nothing_else_is_touched(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = [remove(images, name) for name in ("img001", "img003")]
    before = stamps(derived)
    for dry_run in (True, False):
        summary = sketch(images, derived, prune=True, dry_run=dry_run, progress=Lines())
        assert (summary.pruned, summary.gone_images) == (gone, [])
        assert (summary.already_complete, summary.derived) == (2, 0)
        err = capsys.readouterr().err
        verb = "would remove" if dry_run else "removing"
        assert f"{verb} the records and arrays of 2 images:\n  {gone[0]}\n  {gone[1]}\n" in err
        assert (written(before, derived) == set()) is dry_run
    assert written(before, derived) == {
        f"{folder}/{name}.npy"
        for folder in ("dinov3", "vae_latents", "t5_hidden")
        for name in ("img001", "img003")
    }
    assert contents(derived) == fresh(images, derived)
    assert notes(derived) == {}


def test_without_prune_nothing_is_removed_and_the_warning_names_it(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, before = remove(images, "img001"), contents(derived)
    sketch(images, derived, update=True, progress=Lines())
    assert contents(derived) == before
    assert (
        f"1 image no longer there, for example {gone}; keeping the records and arrays. Use --prune "
        "to remove them" in capsys.readouterr().err
    )
    done = run("derive", images, "--derived-dir", derived, "--prune", "--update")
    assert f"pruned: 1 (for example {gone})" in done.stdout


def test_an_update_with_a_prune_ends_as_if_derived_from_scratch(
    images: Path, derived: Path
) -> None:
    remove(images, "img000")
    replace_one(images, 2)
    (images / "img003.txt").write_text("another caption")
    summary = sketch(images, derived, update=True, prune=True)
    assert (len(summary.pruned), len(summary.updated_images)) == (1, 1)
    assert contents(derived) == fresh(images, derived)


def test_images_that_exist_elsewhere_are_not_gone(derived: Path, tmp_path: Path) -> None:
    save(tmp_path / "other/more.png", gradient(16, 16, seed=9))
    (tmp_path / "other/more.txt").write_text("one more")
    before = contents(derived)
    summary = sketch(tmp_path / "other", derived, prune=True, dry_run=True)
    assert summary.pruned == []
    assert contents(derived) == before


def test_images_that_were_not_below_the_folder_given_are_kept_and_counted(
    images: Path, derived: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "other/more.png", gradient(16, 16, seed=9))
    (tmp_path / "other/more.txt").write_text("one more")
    sketch(tmp_path / "other", derived)
    (tmp_path / "other").rename(tmp_path / "unmounted")
    gone = remove(images, "img001")
    planned = outlook(Store.at(derived), str(images), Progress())
    assert planned is not None
    found, listed = planned
    assert listed == [gone, str(tmp_path / "other/more.png")]
    assert (found.gone.example, found.elsewhere.count) == (gone, 1)
    for dry_run in (True, False):
        summary = sketch(images, derived, prune=True, dry_run=dry_run, progress=Lines())
        assert (summary.pruned, summary.gone_images) == ([gone], [str(tmp_path / "other/more.png")])
        assert (
            f"1 image on record is not found. It may not have been below {images}, so it is kept:\n"
            f"  {tmp_path}/other/more.png\nto remove it, run shardwright derive "
            f"{images} --prune-below {tmp_path}/other --derived-dir {derived}\n"
            in capsys.readouterr().err
        )
    images.rename(tmp_path / "moved")
    gone = remove(tmp_path / "moved", "img002")
    summary = sketch(tmp_path / "moved", derived, prune=True)
    assert (summary.pruned, len(summary.gone_images)) == ([gone], 1)
    assert {r["image_id"] for r in store_records(derived)} == {"img000", "img003", "more"}
    assert array_path(derived, "vae", "more").exists()


def test_images_that_cannot_be_looked_at_are_not_gone(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    shutil.copytree(images, tmp_path / "copy")
    shutil.rmtree(images)
    images.symlink_to(images)  # as a folder that is closed to us
    (tmp_path / "copy/img001.png").unlink()
    assert sketch(tmp_path / "copy", derived, prune=True).pruned == []
    assert len(store_records(derived)) == 4


def test_records_whose_file_is_not_known_are_counted_and_kept(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (derived / ".shardwright/facts.jsonl").unlink()
    gone = remove(images, "img001")
    assert sketch(images, derived, prune=True, progress=Lines()).pruned == []
    assert len(store_records(derived)) == 4
    assert "1 image on record is not found" in (err := capsys.readouterr().err)
    assert (
        f":\n  {gone}\nto remove it, run shardwright derive {images} --prune-below {images}" in err
    )


def test_arrays_and_facts_without_a_record_are_removed_too(images: Path, derived: Path) -> None:
    gone = remove(images, "img001")
    lines = (derived / JSONL_NAME).read_bytes().splitlines(keepends=True)
    (derived / JSONL_NAME).write_bytes(b"".join(lines[:1] + lines[2:]))
    assert sketch(images, derived, prune=True).pruned == [gone]
    assert not array_path(derived, "vae", "img001").exists()
    assert facts(derived).keys() == {"img000", "img002", "img003"}


def test_what_is_pruned_does_not_come_back_with_an_unfinished_recompute(
    images: Path, derived: Path
) -> None:
    sketch(images, derived, recompute=["vae"], trial=2)
    gone = remove(images, "img001")
    assert sketch(images, derived, prune=True).pruned == [gone]
    assert sketch(images, derived, recompute=["vae"]).swapped == ["vae"]
    assert contents(derived) == fresh(images, derived)


def test_an_interrupted_run_is_finished_in_a_jsonl_elsewhere_only_if_it_is_given_again(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    derived, jsonl = tmp_path / "derived", tmp_path / "mine.jsonl"
    sketch(images, derived, jsonl=jsonl)
    remove(images, "img001")
    held = jsonl.read_bytes(), shutil.copytree(derived, tmp_path / "copy")
    with using(disk := WatchedDisk()):
        sketch(images, derived, jsonl=jsonl, prune=True)
    pruned = jsonl.read_bytes()
    jsonl.write_bytes(held[0])
    shutil.rmtree(derived)
    held[1].rename(derived)
    noted = next(
        n for n, call in enumerate(disk.calls, 1) if call.path.endswith("dinov3/img001.npy")
    )
    with using(KillingDisk(noted)), pytest.raises(Killed):
        sketch(images, derived, jsonl=jsonl, prune=True)
    (tmp := derived / "vae_latents/img001.npy.tmp").write_bytes(b"left by a kill")
    with pytest.raises(DamageError, match=r"steps\.jsonl: names '\.\./mine\.jsonl"):
        sketch(images, derived, components=["dinov3"])  # a file must not decide what is rewritten
    assert jsonl.read_bytes() == held[0]
    sketch(images, derived, jsonl=jsonl, components=["dinov3"], progress=Lines())
    assert jsonl.read_bytes() == pruned != held[0]
    err = capsys.readouterr().err
    assert "finished the interrupted removal of 1 image\n" in err
    assert not tmp.exists()


def test_records_in_another_jsonl_of_the_store_keep_their_arrays(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    jsonl = Path(shutil.copy(derived / JSONL_NAME, tmp_path / "mine.jsonl"))
    remove(images, "img001")
    before = contents(derived)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="has records too") as error:
            sketch(images, derived, jsonl=jsonl, prune=True, dry_run=dry_run)
        assert "leave out --jsonl, or move this file away" in str(error.value)
    assert contents(derived) == before
    sketch(images, derived, jsonl=jsonl, update=True)


def test_a_run_that_is_refused_for_its_settings_prunes_nothing(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(images, "img001")
    before = contents(derived)
    with pytest.raises(ProvenanceError, match="was made with other"):
        sketch(images, derived, prune=True, fit="bucket", progress=Lines())
    assert "removing" not in capsys.readouterr().err
    assert contents(derived) == before


@pytest.mark.parametrize("first", ["real", "link"])
@pytest.mark.parametrize("given", ["real", "link"])
def test_an_image_gone_from_a_folder_and_so_from_a_link_to_it_is_gone_by_either_path(
    tmp_path: Path, first: str, given: str
) -> None:
    derived = tmp_path / "derived"
    make_images(tmp_path / "real", 4, TINY)
    (tmp_path / "link").symlink_to("real")
    for name in (first, *{"real", "link"} - {first}):
        sketch(tmp_path / name, derived)
    remove(tmp_path / "real", "img001")
    found = status(derived).update
    assert found is not None
    assert (found.gone.count, found.elsewhere.count) == (1, 0)
    assert sketch(tmp_path / given, derived, prune=True).pruned == [
        str(tmp_path / first / "img001.png")
    ]
