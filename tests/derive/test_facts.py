"""What a store knows of its images beside the records: whether they changed, what was cut off."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import xxhash

from shardwright import derive, status
from shardwright.cli.derive import describe as derived_text
from shardwright.cli.status import describe
from shardwright.encoders.base import Options
from shardwright.encoders.sketch import load
from shardwright.recipes import SPECIFICATION
from shardwright.store import facts as store_facts
from tests.commands import run
from tests.derive.fakes import T5
from tests.derive.pictures import array_path, gradient, make_images, save, sketch, store_records
from tests.derive.test_derive import arrays, failures
from tests.derive.updates import facts, fresh, notes
from tests.faults import contents

LONG = "a boat on the sea, " * 40  # six words and commas each time


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 3)


@pytest.fixture
def derived(images: Path, tmp_path: Path) -> Path:
    sketch(images, tmp_path / "derived")
    return tmp_path / "derived"


def test_each_image_has_its_size_time_and_hash_beside_the_record_and_not_in_it(
    images: Path, derived: Path
) -> None:
    path = images / "img001.png"
    assert facts(derived)["img001"] == {
        "image_id": "img001",
        "image": {
            "path": str(path),
            "bytes": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
            "xxh3": xxhash.xxh3_64_hexdigest(path.read_bytes()),
        },
        "tokens_lost": {"t5": 0},
        "enlarged": 1.0,
        "cropped": 0.0,
        "decoded": {"width": 64, "height": 96},
        "colour_space": "RGB",
        "caption_given": False,
    }
    assert all(tuple(record) == SPECIFICATION.record_fields for record in store_records(derived))


def test_a_replaced_image_is_counted_and_named_by_derive_status_and_verify(
    images: Path, derived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, before = images / "img001.png", arrays(derived)
    save(replaced, gradient(96, 64, seed=8))
    summary = sketch(images, derived)
    assert (summary.changed_images, summary.already_complete) == ([str(replaced)], 3)
    monkeypatch.chdir(derived)
    assert status(derived_dir=derived, workers=1).changed_images == [str(replaced)]
    assert notes(derived) == {"image_changed": [str(replaced)]}
    assert arrays(derived) == before, "reporting changes nothing"
    done = run("derive", images, "--derived-dir", derived, "--encoders", "sketch")
    assert f"changed_images: 1 (for example {replaced})" in done.stdout
    assert f"1 image changed since it was encoded, for example {replaced}" in done.stderr
    assert sketch(images, derived, recompute=["dinov3", "vae"]).changed_images == []
    assert notes(derived) == {}


def test_an_image_of_the_same_size_and_time_but_other_bytes_is_not_read_again(
    images: Path, derived: Path
) -> None:
    path = images / "img001.png"
    data, times = path.read_bytes(), path.stat()
    path.write_bytes(data[:-1] + b"x")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert sketch(images, derived).changed_images == [], "as git does: only where the time differs"
    os.utime(path)
    assert sketch(images, derived).changed_images == [str(path)]


def test_images_that_were_moved_are_the_same_and_only_those_of_another_time_are_read(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    moved = images.rename(tmp_path / "moved")
    os.utime(moved / "img002.png", ns=(1, 1))
    with mock.patch.object(store_facts, "_xxh3", wraps=store_facts._xxh3) as read:
        summary = sketch(moved, derived, recompute=["t5"])
        assert (summary.changed_images, summary.gone_images) == ([], [])
        assert sketch(moved, derived).changed_images == []
        assert notes(derived) == {}
    assert [call.args for call in read.mock_calls] == [(str(moved / "img002.png"),)]
    known = facts(derived)["img002"]["image"]
    assert (known["path"], known["mtime_ns"]) == (str(moved / "img002.png"), 1)


def test_a_link_to_the_images_that_is_gone_again_raises_no_alarm(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(images)
    assert sketch(tmp_path / "link", derived).already_complete == 3
    (tmp_path / "link").unlink()
    assert notes(derived) == {}


def test_an_image_that_is_gone_is_counted_and_named_and_its_arrays_stay(
    images: Path, derived: Path
) -> None:
    gone, before = images / "img001.png", contents(derived)
    gone.unlink()
    summary = sketch(images, derived)
    assert (summary.gone_images, summary.changed_images) == ([str(gone)], [])
    assert status(derived_dir=derived, workers=1).gone_images == [str(gone)]
    assert notes(derived) == {"image_gone": [str(gone)]}
    assert contents(derived) == before


def test_a_store_that_was_taken_elsewhere_without_its_images_has_one_note(
    images: Path, derived: Path
) -> None:
    shutil.rmtree(images)
    assert notes(derived) == {"images_gone": [str(derived)]}


def test_an_image_that_was_replaced_by_one_of_another_format_is_gone(
    images: Path, derived: Path
) -> None:
    (images / "img001.png").unlink()
    save(images / "img001.webp", gradient(96, 64, seed=8))
    summary = sketch(images, derived)
    assert (summary.gone_images, summary.changed_images) == ([str(images / "img001.png")], [])
    assert failures(derived)[0]["detail"].endswith("img001.png; it does not exist: use --update")


def test_an_image_that_cannot_be_looked_at_is_neither_gone_nor_changed(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    shutil.copytree(images, tmp_path / "copy")
    shutil.rmtree(images)
    images.symlink_to(images)  # as a folder that is closed to us
    assert notes(derived) == {}
    summary = sketch(tmp_path / "copy", derived, components=["dinov3"])
    assert (summary.gone_images, summary.changed_images) == ([], [])
    assert notes(derived) == {}


def test_images_in_another_folder_than_the_one_given_are_not_gone(
    derived: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    save(other / "more.png", gradient(64, 64))
    (other / "more.txt").write_text("one more")
    assert sketch(other, derived).gone_images == []


def test_without_facts_nothing_is_said_to_have_changed(images: Path, derived: Path) -> None:
    (derived / ".shardwright/facts.jsonl").unlink()
    save(images / "img001.png", gradient(96, 64, seed=8))
    (images / "img002.png").unlink()
    summary = sketch(images, derived)
    assert (summary.changed_images, summary.gone_images) == ([], [])
    assert notes(derived) == {}
    assert status(derived_dir=derived, workers=1).unknown_images == 3
    text = describe(status(derived_dir=derived, workers=1))
    assert "unknown: 3 images encoded by an earlier version, or elsewhere" in text


def test_an_array_of_an_earlier_version_that_shows_the_old_picture_stays_reported(
    images: Path, derived: Path
) -> None:
    replaced = images / "img001.png"
    save(replaced, gradient(64, 96, seed=8))
    old = array_path(derived, "dinov3", "img001").read_bytes()
    sketch(images, derived, update=True)
    array_path(derived, "dinov3", "img001").write_bytes(old)
    path = derived / ".shardwright/facts.jsonl"
    path.write_text(path.read_text().replace('"img001",', '"img001","outdated":["dinov3"],'))
    assert sketch(images, derived).changed_images == [str(replaced)]
    assert notes(derived) == {"image_changed": [str(replaced)]}
    assert sketch(images, derived, update=True).changed_images == []
    assert "outdated" not in facts(derived)["img001"]
    assert notes(derived) == {}
    assert contents(derived) == fresh(images, derived)


def test_a_new_caption_does_not_give_the_record_the_size_of_a_picture_that_was_replaced(
    images: Path, derived: Path
) -> None:
    before = store_records(derived)[1]
    save(images / "img001.png", gradient(160, 64))
    (images / "img001.txt").write_text("quite another caption")
    assert len(sketch(images, derived, recompute=["t5"]).changed_images) == 1
    after = store_records(derived)[1]
    assert after["caption"] == "quite another caption"
    assert [after[name] for name in ("width", "height", "aspect_bucket")] == [
        before[name] for name in ("width", "height", "aspect_bucket")
    ]


def test_captions_that_are_cut_are_counted_with_an_example_by_derive_and_status(
    images: Path, tmp_path: Path
) -> None:
    derived = tmp_path / "long"
    (images / "img001.txt").write_text(LONG)
    done = derived_text(sketch(images, derived))
    assert "truncated_captions, t5: 1 (164 tokens lost, for example img001)" in done
    line = "  1 caption is cut off: longer than t5 reads (for example img001)\n"
    see = f"  to see them, run shardwright look {derived}\n"
    assert line + see in describe(status(derived_dir=derived, workers=1))
    known = facts(derived)
    assert known["img001"]["tokens_lost"] == {"t5": 240 - 76}
    assert LONG[: known["img001"]["cut_at"]["t5"]].count("boat") == 13
    assert known["img000"]["tokens_lost"] == {"t5": 0}
    assert "cut_at" not in known["img000"]
    (images / "img001.txt").write_text("short")
    assert sketch(images, derived, recompute=["t5"]).truncated["t5"].captions == 0
    assert status(derived_dir=derived, workers=1).truncated["t5"].captions == 0
    assert facts(derived)["img001"]["image"] == known["img001"]["image"]


def test_the_cut_is_in_characters_of_the_caption_also_where_lower_case_is_longer() -> None:
    encoder: Any = load(T5, Options(), {})
    caption = "a İ, " * 60
    tokens = encoder.prepare(caption)
    assert tokens.lost > 0
    again = encoder.prepare(caption[: tokens.cut_at])
    assert (again.ids == tokens.ids).all()
    assert again.lost == 0


def test_failures_stay_until_the_image_is_derived_or_gone_wherever_derive_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_images(Path("one"), 3)
    make_images(Path("one/more"), 0)
    Path("one/img001.png").write_bytes(b"broken")
    Path("one/img002.png").write_bytes(b"broken")
    derived = tmp_path / "derived"
    sketch(Path("one"), derived)
    assert store_records(derived)[0]["image_path"] == "one/img000.png", "as given"
    save(tmp_path / "two/other.png", gradient(64, 64))
    (tmp_path / "two/other.txt").write_text("another")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    sketch(Path("../two"), derived)
    listed = [str(tmp_path / f"one/img00{number}.png") for number in (1, 2)]
    assert [failure["image_path"] for failure in failures(derived)] == listed
    sketch(tmp_path / "one", derived, components=["dinov3"])
    found = status(derived_dir=derived, workers=1)
    assert found.failures == 2, "each image once, though not all was tried again"
    assert "2 images could not be derived" in found.next_reason
    (tmp_path / "one/img002.png").unlink()
    save(tmp_path / "one/img001.png", gradient(64, 64))
    derive(tmp_path / "one", derived_dir=derived, encoders="sketch")
    assert failures(derived) == []


def test_a_folder_that_could_not_be_read_is_no_failure_once_it_can_be(
    images: Path, derived: Path
) -> None:
    (images / "more").mkdir()
    failure = {
        "image_id": "more",
        "image_path": str(images / "more"),
        "reason": "unreadable_folder",
        "detail": "",
        "components": ["vae"],
    }
    listed = derived / ".shardwright/failures.jsonl"
    listed.write_text(json.dumps(failure) + "\n")
    sketch(images, derived)
    assert not listed.exists()
