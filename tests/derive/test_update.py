"""derive --update: what changed is made again, and nothing else."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import status
from shardwright.cli.status import describe
from shardwright.errors import ProvenanceError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Lines
from shardwright.reporting import Outlook
from shardwright.storage.files import using
from shardwright.store import facts as store_facts
from shardwright.summary import Count
from tests.derive.pictures import array_path, gradient, make_images, save, sketch, store_records
from tests.derive.updates import (
    TINY,
    facts,
    fresh,
    killed,
    notes,
    remove,
    rename,
    replace_one,
    stamps,
    without_first_ids,
    written,
)
from tests.faults import WatchedDisk, contents


def test_exactly_the_changed_images_and_the_changed_captions_are_made_again(
    images: Path, derived: Path
) -> None:
    replaced, before = replace_one(images), stamps(derived)
    (images / "img002.txt").write_text("quite another caption")
    for dry_run in (True, False):
        summary = sketch(images, derived, update=True, dry_run=dry_run)
        assert summary.updated_images == [str(replaced)]
        assert summary.updated_captions == [str(images / "img002.png")]
        assert (summary.derived, summary.already_complete, summary.failed) == (2, 2, 0)
        assert (summary.changed_images, summary.kept_captions) == ([], 0)
        assert {name: part.to_make for name, part in summary.components.items()} == {
            "dinov3": 1,
            "vae": 1,
            "t5": 1,
        }
        if dry_run:
            assert stamps(derived) == before
    assert written(before, derived) == {
        "dinov3/img001.npy",
        "vae_latents/img001.npy",
        "t5_hidden/img002.npy",
    }
    assert contents(derived) == fresh(images, derived)
    assert notes(derived) == {}


def test_new_images_are_derived_in_the_same_run_and_missing_arrays_are_made(
    images: Path, derived: Path
) -> None:
    replace_one(images)
    save(images / "img009.png", gradient(16, 16, seed=9))
    (images / "img009.txt").write_text("one more")
    array_path(derived, "t5", "img000").unlink()
    summary = sketch(images, derived, update=True)
    assert (summary.derived, len(summary.updated_images)) == (3, 1)
    assert contents(derived) == fresh(images, derived)


def test_without_a_change_an_update_is_a_plain_run(images: Path, derived: Path) -> None:
    before = contents(derived)
    with using(disk := WatchedDisk()):
        assert sketch(images, derived, update=True).already_complete == 4
    assert "mkdir" not in disk.names, "no generation"
    assert contents(derived) == before


def test_an_edit_is_noticed_although_the_text_is_older_than_its_array(
    images: Path, derived: Path
) -> None:
    (images / "img002.txt").write_text("quite another caption")
    os.utime(images / "img002.txt", (1, 1))
    assert sketch(images, derived).kept_captions == 0
    assert len(sketch(images, derived, update=True).updated_captions) == 1
    assert contents(derived) == fresh(images, derived)


def test_an_image_that_fails_keeps_its_arrays_and_does_not_hold_up_the_others(
    images: Path, derived: Path
) -> None:
    broken, replaced = images / "img000.png", replace_one(images)
    broken.write_bytes(b"broken")
    old = array_path(derived, "vae", "img000").read_bytes()
    summary = sketch(images, derived, update=True)
    assert (summary.failed, summary.updated_images) == (1, [str(replaced)])
    assert summary.changed_images == [str(broken)]
    assert array_path(derived, "vae", "img000").read_bytes() == old
    assert notes(derived) == {"image_changed": [str(broken)]}
    save(broken, gradient(24, 16))
    assert sketch(images, derived, update=True).changed_images == []
    assert contents(derived) == fresh(images, derived)


def test_an_update_of_some_components_leaves_a_changed_picture_of_which_others_stay(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced, before = replace_one(images), contents(derived)
    (images / "img002.txt").write_text("quite another caption")
    summary = sketch(images, derived, update=True, components=["vae"], progress=Lines())
    assert (summary.changed_images, summary.kept_captions) == ([str(replaced)], 1)
    assert "Use --update without --components to derive it again" in capsys.readouterr().err
    assert contents(derived) == before
    pictures = sketch(images, derived, update=True, components=["vae", "dinov3"], dry_run=True)
    assert pictures.updated_images == [str(replaced)]
    summary = sketch(images, derived, update=True)
    assert (len(summary.updated_images), len(summary.updated_captions)) == (1, 1)
    assert contents(derived) == fresh(images, derived)


def test_columns_of_the_captions_file_arrive_in_the_records_too(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    file = tmp_path / "captions.csv"
    file.write_text("file_name,text,rating\nimg001.png,another,4\nimg002.png,more,5\n")
    replace_one(images)
    sketch(images, derived, update=True, captions=file)
    assert [record.get("rating") for record in store_records(derived)] == [None, 4, 5, None]
    file.write_text("file_name,text,rating\nimg001.png,another,1\nimg002.png,edited,5\n")
    sketch(images, derived, update=True, captions=file)
    assert [record.get("rating") for record in store_records(derived)] == [None, 1, 5, None]
    assert [r["caption"] for r in store_records(derived)[1:3]] == ["another", "edited"]


@pytest.mark.parametrize("edited", [False, True])
def test_null_in_the_captions_file_removes_a_column(
    images: Path, tmp_path: Path, edited: bool
) -> None:
    derived, file = tmp_path / "store", tmp_path / "captions.jsonl"
    row = {"file_name": "img001.png", "text": "one", "scene": "x", "rating": None}
    file.write_text(json.dumps(row))
    sketch(images, derived, captions=file)
    assert [r.get("scene") for r in store_records(derived)] == [None, "x", None, None]
    assert "rating" not in store_records(derived)[1]
    text = "another" if edited else "one"
    file.write_text(json.dumps(row | {"scene": None, "text": text}))
    sketch(images, derived, captions=file, update=True)
    record = store_records(derived)[1]
    assert (record["caption"], "scene" in record) == (text, False)
    assert contents(derived) == fresh(images, derived, captions=file)


def test_an_image_in_another_format_is_a_changed_image(images: Path, derived: Path) -> None:
    (images / "img001.png").unlink()
    save(images / "img001.webp", gradient(32, 16, seed=8), lossless=True)
    for dry_run in (True, False):
        summary = sketch(images, derived, update=True, dry_run=dry_run)
        assert (summary.failed, summary.gone_images, summary.renamed) == (0, [], {})
        assert summary.updated_images == [str(images / "img001.webp")]
    assert store_records(derived)[1]["image_path"] == str(images / "img001.webp")
    assert contents(derived) == fresh(images, derived)


def test_a_run_cannot_both_update_and_recompute(images: Path, derived: Path) -> None:
    with pytest.raises(UsageError, match="--update with --recompute"):
        sketch(images, derived, update=True, recompute=["vae"])


def calls_of_an_update(images: Path, derived: Path, **options: Any) -> list[str]:  # noqa: ANN401
    copy = shutil.copytree(derived, derived.with_name("watched"))
    with using(disk := WatchedDisk()):
        sketch(images, copy, update=True, batch_size=1, **options)
    shutil.rmtree(copy)
    return [call.path for call in disk.calls]


@pytest.fixture
def unfinished(images: Path, derived: Path) -> Path:
    """Interrupt an update of two images when one is made."""
    replace_one(images, 1)
    replace_one(images, 2)
    calls = calls_of_an_update(images, derived)
    noted = [nth for nth, path in enumerate(calls, 1) if path.endswith(f"next/{JSONL_NAME}.tmp")]
    killed(noted[3], images, derived, update=True, batch_size=1)
    assert (derived / ".shardwright/next").exists()
    return derived


def test_an_unfinished_update_is_named_by_its_flag(
    images: Path, unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sketch(images, unfinished, progress=Lines())
    err = capsys.readouterr().err
    assert "unfinished update (1 image); to continue it, run shardwright derive" in err
    assert "--update --derived-dir" in err
    found = status(derived_dir=unfinished, workers=1)
    assert "--update" in (found.next_command or "")
    assert found.next_reason.startswith("the update is unfinished; --recompute none discards it")
    with pytest.raises(ProvenanceError, match="the update is unfinished") as error:
        sketch(images, unfinished, recompute=["vae"])
    assert "to continue it, give --update; to discard it, --recompute none" in str(error.value)
    sketch(images, unfinished, recompute=["none"])
    assert len(sketch(images, unfinished, update=True).updated_images) == 2


def test_an_update_does_not_mix_with_an_unfinished_recompute(images: Path, derived: Path) -> None:
    replace_one(images)
    sketch(images, derived, recompute=["vae"], trial=1)
    with pytest.raises(ProvenanceError, match="the recompute of vae is unfinished"):
        sketch(images, derived, update=True)


def test_a_trial_of_an_update_counts_nothing_as_updated(images: Path, derived: Path) -> None:
    changed = [str(replace_one(images, number)) for number in (1, 2)]
    (images / "img003.txt").write_text("another")
    summary = sketch(images, derived, update=True, trial=1)
    assert (summary.derived, summary.updated_images, summary.updated_captions) == (1, [], [])
    assert (summary.changed_images, summary.kept_captions) == (changed, 1)
    with pytest.raises(UsageError, match="--trial with --prune"):
        sketch(images, derived, prune=True, trial=1)


def test_files_with_a_new_time_are_read_once_also_by_an_update(
    images: Path, derived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_one(images)
    (images / "img002.png").touch()
    (images / "img003.png").touch()
    (images / "img003.txt").write_text("another")
    rename(images, "img000", "renamed")
    read: list[str] = []
    hashed = store_facts._xxh3

    def watched(path: str) -> str:
        read.append(path)
        return hashed(path)

    monkeypatch.setattr(store_facts, "_xxh3", watched)
    for again in (False, True):
        assert len(sketch(images, derived, update=True).updated_images) == (not again)
        touched = [path for path in read if Path(path).stem in ("img002", "img003")]
        assert len(touched) == 2, "img003 has a new text"
    assert (
        facts(derived)["img003"]["image"]["mtime_ns"] == (images / "img003.png").stat().st_mtime_ns
    )
    new = fresh(images, derived)
    assert without_first_ids(contents(derived)) == without_first_ids(new)


@pytest.mark.parametrize("change", ["none", "back", "again", "text"])
def test_an_update_that_goes_on_makes_what_changed_meanwhile(
    images: Path, derived: Path, change: str
) -> None:
    old = {path: path.read_bytes() for path in sorted(images.glob("img001.*"))}
    replace_one(images, 1)
    replace_one(images, 2)
    (images / "img001.txt").write_text("another")
    sketch(images, derived, update=True, trial=1)
    assert (derived / ".shardwright/next/vae_latents/img001.npy").exists()
    if change == "back":
        for path, data in old.items():
            path.write_bytes(data)
    elif change == "again":
        replace_one(images, 1, seed=5)
    elif change == "text":
        (images / "img001.txt").write_text("yet another")
    sketch(images, derived, update=True)
    assert contents(derived) == fresh(images, derived)
    assert notes(derived) == {}


def test_a_text_is_updated_for_all_components_that_are_made_from_it(tmp_path: Path) -> None:
    images, recipe = make_images(tmp_path / "images", 2, TINY), tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "prx"\n[component.short]\nencoder = "t5"\nmodel = "any"\ntokens = 9\n'
        'shape = ["tokens", 64]\n'
    )
    sketch(images, tmp_path / "derived", recipe=recipe)
    (images / "img001.txt").write_text("quite another caption")
    only: dict[str, Any] = {"update": True, "components": ["t5"]}
    with pytest.raises(UsageError, match="--update without short, which is made from the same"):
        sketch(images, tmp_path / "derived", **only)
    before = stamps(tmp_path / "derived")
    sketch(images, tmp_path / "derived", update=True)
    assert written(before, tmp_path / "derived") == {"short/img001.npy", "t5_hidden/img001.npy"}
    assert contents(tmp_path / "derived") == fresh(images, tmp_path / "derived", recipe=recipe)


def test_arrays_of_changed_images_that_only_another_tool_makes_are_named(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    derived, recipe = tmp_path / "derived", tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "prx"\n[component.pose]\ndtype = "float32"\nshape = [3]\nfolder = "pose"\n'
    )
    sketch(images, derived, recipe=recipe)
    for number in range(4):
        np.save(derived / f"pose/img{number:03}.npy", np.arange(3, dtype=np.float32))
    replaced = replace_one(images)
    sketch(images, derived, update=True, recipe=recipe, progress=Lines())
    line = f"1 pose array of changed images, for example of {replaced}; make"
    assert line in capsys.readouterr().err


def test_of_arrays_of_unknown_origin_only_the_changed_are_made_again(
    images: Path, derived: Path
) -> None:
    (derived / ".shardwright/provenance.json").unlink()
    (images / "img001.txt").write_text("quite another caption")
    before = stamps(derived)
    sketch(images, derived, update=True)
    assert written(before, derived) == {"t5_hidden/img001.npy"}
    entries = json.loads((derived / ".shardwright/provenance.json").read_text())["components"]
    assert entries["t5"]["unknown_arrays"] == 4
    assert "recompute" not in entries["t5"]


def test_status_says_what_an_update_would_do_and_recommends_it(images: Path, derived: Path) -> None:
    assert status(derived_dir=derived, workers=1).next_command == (
        f"shardwright pack --derived-dir {derived}"
    )
    replaced = replace_one(images)
    (images / "img002.txt").write_text("quite another caption")
    (images / "img003.png").rename(images / "new.png")
    (images / "img000.png").unlink()
    save(images / "more.png", gradient(16, 16, seed=9))
    (images / "more.txt").write_text("one more")
    (images / "broken.png").write_bytes(b"no caption, so no update can derive it")
    before = contents(derived)
    found = status(derived_dir=derived, workers=1)
    assert found.update == Outlook(
        images=str(images),
        new=Count(1, str(images / "more.png")),
        changed=Count(1, str(replaced)),
        captions=Count(1, str(images / "img002.png")),
        renamed=Count(1, "img003 to new"),
        gone=Count(1, str(images / "img000.png")),
        elsewhere=Count(0, ""),
    )
    assert contents(derived) == before
    assert found.next_command == f"shardwright derive {images} --update --derived-dir {derived}"
    assert found.next_reason == "1 new image, 1 changed image, 1 changed caption, 1 renamed image"
    text = describe(found)
    assert (
        "derive --update would:\n"
        f"  derive 1 new image (for example {images}/more.png)\n"
        f"  derive 1 changed image again (for example {replaced})\n"
        f"  encode 1 changed caption again (for example of {images}/img002.png)\n"
        "  rename 1 image (for example img003 to new)\n"
        f"  remove 1 gone image with --prune (for example {images}/img000.png)\n" in text
    )
    sketch(images, derived, update=True, prune=True)
    assert "would" not in describe(status(derived_dir=derived, workers=1))


def planned(derived: Path) -> Outlook:
    found = status(derived_dir=derived, workers=1).update
    assert found is not None
    return found


def test_what_an_unfinished_update_has_made_is_not_in_the_outlook(
    images: Path, derived: Path
) -> None:
    replace_one(images, 1)
    left = replace_one(images, 2)
    (images / "img000.txt").write_text("another, older than its array")
    os.utime(images / "img000.txt", (1, 1))
    sketch(images, derived, update=True, trial=2)
    found = planned(derived)
    assert (found.changed, found.captions.count) == (Count(1, str(left)), 0)
    sketch(images, derived, recompute=["none"])
    found = planned(derived)
    assert (found.changed.count, found.captions.count) == (2, 1)


def test_images_that_failed_are_in_the_outlook_once_they_have_changed(
    images: Path, derived: Path
) -> None:
    (images / "new.txt").write_text("one more")
    (images / "new.png").write_bytes(b"broken")
    sketch(images, derived)
    assert planned(derived).new.count == 0
    save(images / "new.png", gradient(16, 16, seed=9))
    assert planned(derived).new == Count(1, str(images / "new.png"))


def test_images_left_out_for_their_caption_are_in_the_outlook_once_it_has_changed(
    images: Path, tmp_path: Path
) -> None:
    derived, recipe = tmp_path / "derived", tmp_path / "mine.toml"
    recipe.write_text('extends = "prx"\n[images]\nmax_tokens_lost = 0\n')
    (images / "img001.txt").write_text("boat " * 90)
    assert sketch(images, derived, recipe=recipe).derived == 3
    assert planned(derived).new.count == 0
    (images / "img001.txt").write_text("short")
    assert planned(derived).new.count == 1
    gone = remove(images, "img001")
    assert sketch(images, derived, prune=True).pruned == [gone]
    assert "img001" not in facts(derived)


def test_renamed_images_are_not_gone_and_a_folder_that_cannot_be_read_has_no_outlook(
    images: Path, derived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(images, "img001", "renamed")
    assert status(derived_dir=derived, workers=1).gone_images == []
    scandir = os.scandir

    def refused(path: Any) -> Any:  # noqa: ANN401 - of the os
        if str(path) == str(images):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    found = status(derived_dir=derived, workers=1)
    assert (found.update, found.gone_images) == (None, [str(images / "img001.png")])


def test_the_folder_that_status_names_is_the_one_that_paths_begin_at(tmp_path: Path) -> None:
    images, derived = tmp_path / "images", tmp_path / "derived"
    make_images(images / "below/it", 2, TINY)
    sketch(images, derived, ids="path")
    replace_one(images / "below/it")
    found = status(derived_dir=derived, workers=1)
    assert found.update is not None
    assert (found.update.images, found.update.changed.count) == (str(images), 1)
    assert (found.update.new.count, found.update.renamed.count) == (0, 0)


TWO_TEXTS = (
    'extends = "prx"\n[component.short]\nencoder = "t5"\nmodel = "any"\ntokens = 9\n'
    'shape = ["tokens", 64]\n'
)


def test_a_recompute_of_one_of_two_arrays_of_a_caption_keeps_the_text_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, recipe = make_images(tmp_path / "images", 3, TINY), tmp_path / "mine.toml"
    recipe.write_text(TWO_TEXTS)
    derived = tmp_path / "derived"
    sketch(images, derived, recipe=recipe)
    (images / "img001.txt").write_text("quite another caption")
    before = contents(derived)
    summary = sketch(images, derived, recompute=["t5"], progress=Lines())
    assert summary.swapped == ["t5"]
    assert (summary.kept_captions, summary.replaced_captions) == (1, 0)
    assert (
        "1 caption changed since it was encoded; keeping the old embedding. Use --update to encode "
        "the new text" in capsys.readouterr().err
    )
    assert contents(derived) == before, "record and both arrays are of the old text"
    found = status(derived_dir=derived, workers=1)
    assert found.update is not None
    assert found.update.captions.count == 1
    assert found.next_command is not None
    assert "--update" in found.next_command
    summary = sketch(images, derived, update=True)
    assert summary.updated_captions == [str(images / "img001.png")]
    assert contents(derived) == fresh(images, derived, recipe=recipe)
    (images / "img002.txt").write_text("a third caption")
    assert sketch(images, derived, recompute=["t5", "short"]).replaced_captions == 1
    assert contents(derived) == fresh(images, derived, recipe=recipe)


def test_a_missing_array_of_a_caption_is_made_from_the_text_of_the_other(tmp_path: Path) -> None:
    images, recipe = make_images(tmp_path / "images", 3, TINY), tmp_path / "mine.toml"
    recipe.write_text(TWO_TEXTS)
    derived, given = tmp_path / "derived", tmp_path / "captions.csv"
    given.write_text("file_name,caption\nimg001.png,one caption\n")
    sketch(images, derived, recipe=recipe, captions=given)
    before = contents(derived)
    given.write_text("file_name,caption\nimg001.png,quite another caption\n")
    (derived / "short/img001.npy").unlink()
    summary = sketch(images, derived, captions=given)
    assert (summary.derived, summary.kept_captions) == (1, 1)
    assert contents(derived) == before
    sketch(images, derived, captions=given, update=True)
    assert contents(derived) == fresh(images, derived, recipe=recipe, captions=given)


def test_a_partial_recompute_that_goes_on_does_not_make_edited_captions_again(
    tmp_path: Path,
) -> None:
    images, recipe = make_images(tmp_path / "images", 3, TINY), tmp_path / "mine.toml"
    recipe.write_text(TWO_TEXTS)
    derived = tmp_path / "derived"
    sketch(images, derived, recipe=recipe)
    (images / "img000.txt").write_text("quite another caption")
    sketch(images, derived, recompute=["t5"], trial=2)
    summary = sketch(images, derived, recompute=["t5"])
    assert (summary.derived, summary.swapped) == (1, ["t5"])
    sketch(images, derived, update=True)
    assert contents(derived) == fresh(images, derived, recipe=recipe)
