"""Captions beside images that were edited after their arrays were made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from shardwright.layout import JSONL_NAME
from shardwright.progress import Lines
from shardwright.storage.files import using
from tests.derive.fakes import Fake, Spoils, given
from tests.derive.pictures import array_path, gradient, make_images, save, sketch, store_records
from tests.derive.test_derive import flat
from tests.durability.soak import some
from tests.faults import Killed, KillingDisk, WatchedDisk, but_for_identity, contents

_KILLS = 12  # of one run; under soak at each call


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three images, of a store that has been made; then a caption is edited."""
    folder = make_images(tmp_path / "images", 3)
    sketch(folder, tmp_path / "derived")
    (folder / "img001.txt").write_text("edited since\n")
    return folder


@pytest.fixture
def derived(images: Path, tmp_path: Path) -> Path:
    return tmp_path / "derived"


def captions(derived: Path) -> list[str]:
    return [record["caption"] for record in store_records(derived)]


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_edited_caption_is_reported_with_the_fix_and_the_old_one_is_kept(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    before = contents(derived)
    summary = sketch(images, derived, dry_run=dry_run, progress=Lines())
    assert (summary.already_complete, summary.kept_captions) == (3, 1)
    assert summary.replaced_captions == 0
    line = (
        "1 caption changed since it was encoded; keeping the old embedding. Use --update to "
        "encode the new text"
    )
    assert line in capsys.readouterr().err
    assert contents(derived) == before


def test_the_caption_on_record_is_also_kept_for_an_array_that_is_missing(
    images: Path, derived: Path
) -> None:
    before = contents(derived)
    array_path(derived, "t5", "img001").unlink()
    summary = sketch(images, derived)
    assert (summary.derived, summary.kept_captions) == (1, 1)
    assert contents(derived) == before


def test_recompute_takes_an_edited_caption(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dry_run in (True, False):
        summary = sketch(images, derived, recompute=["t5"], dry_run=dry_run, progress=Lines())
        assert (summary.kept_captions, summary.replaced_captions) == (0, 1)
        assert (
            "1 caption changed since it was encoded; encoding the new text"
            in capsys.readouterr().err
        )
    assert captions(derived) == [
        "a soft gradient, number 0",
        "edited since",
        "a soft gradient, number 2",
    ]
    fresh = derived.with_name("fresh")
    sketch(images, fresh)
    assert but_for_identity(derived) == but_for_identity(fresh)


def test_recompute_of_another_component_takes_no_edited_caption(
    images: Path, derived: Path
) -> None:
    summary = sketch(images, derived, recompute=["vae"])
    assert (summary.kept_captions, summary.replaced_captions) == (1, 0)
    assert captions(derived)[1] == "a soft gradient, number 1"


def test_a_file_of_captions_goes_before_an_edited_caption(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    file = tmp_path / "captions.csv"
    file.write_text("file_name,text\nimg001.png,from the file\n")
    sketch(images, derived, recompute=["t5"], captions=file)
    assert captions(derived)[1] == "from the file"
    summary = sketch(images, derived, recompute=["t5"], captions="none", dry_run=True)
    assert summary.replaced_captions == 1, "though it is older than the array"


def test_an_update_without_the_file_of_captions_does_not_go_back_to_the_texts_beside_the_images(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    file = tmp_path / "captions.csv"
    file.write_text("file_name,text\nimg000.png,from the file\n")
    assert len(sketch(images, derived, update=True, captions=file).updated_captions) == 2
    before = contents(derived)
    array_path(derived, "t5", "img000").unlink()
    (images / "img002.txt").write_text("edited too")
    os.utime(images / "img000.txt")
    assert sketch(images, derived, dry_run=True).kept_captions == 1
    summary = sketch(images, derived, update=True)
    assert summary.updated_captions == [str(images / "img002.png")]
    assert captions(derived) == ["from the file", "edited since", "edited too"]
    assert array_path(derived, "t5", "img000").read_bytes() == before["t5_hidden/img000.npy"]
    file.write_text("file_name,text\nimg000.png,from the file again\n")
    sketch(images, derived, update=True, captions=file)
    assert captions(derived)[0] == "from the file again"


def test_where_it_is_not_known_where_a_caption_came_from_only_a_newer_text_counts(
    images: Path, derived: Path
) -> None:
    path = derived / ".shardwright/facts.jsonl"
    path.write_text(path.read_text().replace(',"caption_given":false', ""))
    (images / "img002.txt").write_text("edited, but older than the array")
    os.utime(images / "img002.txt", (1, 1))
    summary = sketch(images, derived, update=True)
    assert summary.updated_captions == [str(images / "img001.png")]


def test_a_blank_caption_leaves_the_caption_on_record(images: Path, derived: Path) -> None:
    (images / "img001.txt").write_text(" \n")
    assert sketch(images, derived).kept_captions == 0
    assert sketch(images, derived, recompute=["t5"]).failed == 0
    assert captions(derived)[1] == "a soft gradient, number 1"


def test_a_caption_that_cannot_be_read_leaves_array_and_record(images: Path, derived: Path) -> None:
    (images / "img001.txt").write_bytes(b"\xff\xfe")
    before = contents(derived)
    assert sketch(images, derived).kept_captions == 0
    summary = sketch(images, derived, recompute=["t5"])
    assert summary.failed_by_reason["caption_not_utf8"].count == 1
    after = contents(derived)
    after.pop(".shardwright/failures.jsonl")
    assert after == before


def test_texts_older_than_their_arrays_are_not_read_when_there_is_nothing_to_do(
    images: Path, derived: Path
) -> None:
    for path in images.glob("*.txt"):
        os.utime(path, (1, 1))
    assert sketch(images, derived).kept_captions == 0


def test_an_image_that_failed_has_no_array_of_a_caption_that_no_record_has(tmp_path: Path) -> None:
    images, derived = flat(tmp_path / "images", 3), tmp_path / "derived"
    assert sketch(images, derived, encoders=given(dinov3=Spoils(2, np.nan))).failed == 1
    (images / "002.txt").write_text("edited before it was mended")
    sketch(images, derived, encoders=given(dinov3=Fake()))
    fresh = tmp_path / "fresh"
    sketch(images, fresh, encoders=given(dinov3=Fake()))
    assert but_for_identity(derived) == but_for_identity(fresh)


@pytest.mark.parametrize("lost", ["record", "caption"])
def test_an_array_whose_caption_is_not_on_record_is_made_again(
    images: Path, derived: Path, lost: str
) -> None:
    lines = (derived / JSONL_NAME).read_bytes().splitlines(keepends=True)
    blank = lines[1].replace(b"a soft gradient, number 1", b" ")
    lines[1:2] = [] if lost == "record" else [blank]
    (derived / JSONL_NAME).write_bytes(b"".join(lines))
    summary = sketch(images, derived)
    assert {name: part.made for name, part in summary.components.items()} == {
        "dinov3": 0,
        "vae": 0,
        "t5": 1,
    }
    fresh = derived.with_name("fresh")
    sketch(images, fresh)
    made = contents(derived), contents(fresh)
    assert made[0].keys() == made[1].keys()
    assert made[0]["t5_hidden/img001.npy"] == made[1]["t5_hidden/img001.npy"]
    assert sorted(captions(derived)) == sorted(captions(fresh))


def test_a_caption_edited_after_a_kill_at_any_call_is_that_of_its_array(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2, ((16, 16),))
    with using(watched := WatchedDisk()):
        sketch(images, tmp_path / "full")
    (images / "img001.txt").write_text("edited after the kill")
    fresh = tmp_path / "fresh"
    sketch(images, fresh)
    old, new = (
        dict(zip(captions(store), _texts(store), strict=True))
        for store in (tmp_path / "full", fresh)
    )
    for nth in some(range(1, len(watched.calls) + 1), _KILLS):
        (images / "img001.txt").write_text("a soft gradient, number 1")
        derived = tmp_path / f"killed{nth}"
        with using(KillingDisk(nth)), pytest.raises(Killed):
            sketch(images, derived)
        (images / "img001.txt").write_text("edited after the kill")
        sketch(images, derived)
        for caption, array in zip(captions(derived), _texts(derived), strict=True):
            assert array == {**old, **new}[caption], nth


def test_a_recompute_that_goes_on_takes_every_caption_edited_since(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4, ((16, 16),))
    full, derived = tmp_path / "full", tmp_path / "derived"
    for store in (full, derived):
        sketch(images, store)
    with using(watched := WatchedDisk()):
        sketch(images, full, recompute=["t5"], batch_size=1)
    noted = [
        nth
        for nth, call in enumerate(watched.calls, 1)
        if call.name == "write" and call.path.endswith(f"next/{JSONL_NAME}.tmp")
    ]
    with using(KillingDisk(noted[1])), pytest.raises(Killed):
        sketch(images, derived, recompute=["t5"], batch_size=1)
    for number in range(4):
        (images / f"img{number:03}.txt").write_text(f"edited {number}")
    summary = sketch(images, derived, recompute=["t5"])
    assert captions(derived) == [f"edited {number}" for number in range(4)]
    assert (summary.replaced_captions, summary.kept_captions) == (4, 0)


def test_a_caption_edited_after_a_kill_of_a_recompute_with_other_settings(tmp_path: Path) -> None:
    images, before = make_images(tmp_path / "images", 2, ((16, 16),)), tmp_path / "before"
    sketch(images, before)
    again = {"encoders": given(), "components": ["t5"], "recompute": ["t5"], "batch_size": 1}
    with using(watched := WatchedDisk()):
        sketch(images, shutil.copytree(before, tmp_path / "full"), **again)
    texts = dict(zip(captions(before), _texts(before), strict=True))
    for number in range(2):
        (images / f"img00{number}.txt").write_text(f"edited {number}")
    sketch(images, tmp_path / "fresh")
    texts |= zip(captions(tmp_path / "fresh"), _texts(tmp_path / "fresh"), strict=True)
    for nth in some(range(1, len(watched.calls) + 1), _KILLS):
        make_images(images, 2, ((16, 16),))
        derived = shutil.copytree(before, tmp_path / f"killed{nth}")
        with using(KillingDisk(nth)), pytest.raises(Killed):
            sketch(images, derived, **again)
        for number in range(2):
            (images / f"img00{number}.txt").write_text(f"edited {number}")
        sketch(images, derived, **again)
        for caption, array in zip(captions(derived), _texts(derived), strict=True):
            assert array == texts[caption], f"killed at call {nth}"
        assert not (derived / ".shardwright/next").exists()


@pytest.mark.parametrize("lost", ["t5", "vae"])
def test_a_kill_at_any_call_leaves_no_array_with_a_record_of_what_was_before(
    tmp_path: Path, lost: str
) -> None:
    images, before = make_images(tmp_path / "images", 2, ((16, 16),)), tmp_path / "before"
    sketch(images, before)
    array_path(before, lost, "img001").unlink()
    options: dict[str, Path] = {}
    if lost == "t5":
        options["captions"] = tmp_path / "captions.csv"
        options["captions"].write_text("file_name,text\nimg001.png,from the file\n")
    else:
        save(images / "img001.png", gradient(32, 16))
    with using(watched := WatchedDisk()):
        full = shutil.copytree(before, tmp_path / "full")
        sketch(images, full, **options)
    assert contents(full) != contents(before)
    for nth in some(range(1, len(watched.calls) + 1), _KILLS):
        derived = shutil.copytree(before, tmp_path / f"killed{nth}")
        with using(KillingDisk(nth)), pytest.raises(Killed):
            sketch(images, derived, **options)
        if lost == "t5":  # without the file: what is made must be of the caption on record
            sketch(images, copy := shutil.copytree(derived, tmp_path / f"without{nth}"))
            here = full if "from the file" in captions(copy) else tmp_path / "unedited"
            if not here.exists():
                sketch(images, here)
            assert _texts(copy) == _texts(here), f"killed at call {nth}"
        sketch(images, derived, **options)
        assert contents(derived) == contents(full), f"killed at call {nth}"


def _texts(derived: Path) -> list[bytes]:
    ids = [record["image_id"] for record in store_records(derived)]
    return [array_path(derived, "t5", image_id).read_bytes() for image_id in ids]
