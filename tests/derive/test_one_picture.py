"""All arrays of a sample show one picture, also where it was replaced between two runs."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from shardwright import status
from shardwright.deriving import plan
from shardwright.progress import Lines
from tests.derive.pictures import array_path, sketch
from tests.derive.updates import facts, fresh, notes, replace_one
from tests.faults import contents

MORE = (
    'extends = "prx"\n[component.second]\nencoder = "dinov3"\nmodel = "any"\nshape = [64]\n'
    'dtype = "float32"\n'
)


def held(derived: Path) -> dict[str, bytes | None]:
    kept = ("failures.jsonl", "recipe.toml", "provenance.json")
    return {name: data for name, data in contents(derived).items() if not name.endswith(kept)}


def test_a_recompute_of_one_of_two_arrays_of_a_picture_keeps_both_of_the_old_one(
    images: Path, derived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, replaced = contents(derived), replace_one(images)
    summary = sketch(images, derived, recompute=["vae"], progress=Lines())
    assert (summary.swapped, summary.changed_images) == (["vae"], [str(replaced)])
    assert (summary.already_complete, summary.failed) == (1, 0)
    assert "1 image changed since it was encoded" in capsys.readouterr().err
    assert contents(derived) == before, "the record has the old size, and both arrays are old"
    assert notes(derived) == {"image_changed": [str(replaced)]}
    found = status(derived_dir=derived, workers=1)
    assert found.next_command is not None
    assert "--update" in found.next_command
    summary = sketch(images, derived, update=True)
    assert (summary.updated_images, notes(derived)) == ([str(replaced)], {})
    assert contents(derived) == fresh(images, derived)


def test_a_recompute_of_all_arrays_of_a_picture_takes_the_new_one(
    images: Path, derived: Path
) -> None:
    replace_one(images)
    assert sketch(images, derived, recompute=["vae", "dinov3"]).changed_images == []
    assert contents(derived) == fresh(images, derived)


def test_a_caption_is_recomputed_together_with_an_array_of_a_picture_that_changed(
    images: Path, derived: Path
) -> None:
    replaced = replace_one(images)
    (images / "img001.txt").write_text("quite another caption")
    summary = sketch(images, derived, recompute=["vae", "t5"])
    assert (summary.changed_images, summary.replaced_captions) == ([str(replaced)], 1)
    sketch(images, derived, update=True)
    assert contents(derived) == fresh(images, derived)


def test_a_picture_that_changed_is_not_recomputed_with_other_settings_alone(
    images: Path, derived: Path
) -> None:
    before, replaced = held(derived), replace_one(images)
    summary = sketch(images, derived, recompute=["vae"], fit="bucket")
    assert (summary.unfinished, summary.changed_images) == (["vae"], [str(replaced)])
    assert summary.failed_by_reason["image_changed"].example == str(replaced)
    now = held(derived)
    assert {name: now[name] for name in before} == before
    detail = "it has changed since dinov3 was made; add --drop-failed, and then use --update"
    assert detail in (derived / ".shardwright/failures.jsonl").read_text()
    summary = sketch(images, derived, recompute=["vae"], fit="bucket", drop_failed=True)
    assert summary.swapped == ["vae"]
    assert not array_path(derived, "vae", "img001").exists()
    assert sketch(images, derived).failed == 1
    assert sketch(images, derived, update=True).updated_images == [str(replaced)]
    assert notes(derived) == {}


def test_a_new_component_is_not_made_from_another_picture_than_the_others(
    images: Path, derived: Path, tmp_path: Path
) -> None:
    replaced, recipe = replace_one(images), tmp_path / "more.toml"
    recipe.write_text(MORE)
    summary = sketch(images, derived, recipe=recipe)
    assert (summary.derived, summary.changed_images) == (3, [str(replaced)])
    assert summary.failed_by_reason["image_changed"].count == 1
    assert not (derived / "second/img001.npy").exists()
    failures = (derived / ".shardwright/failures.jsonl").read_text()
    assert "it has changed since dinov3, vae were made; use --update" in failures
    found = status(derived_dir=derived, workers=1)
    assert found.next_command is not None
    assert "--update" in found.next_command
    assert sketch(images, derived, update=True).failed == 0
    assert (derived / "second/img001.npy").exists()
    assert contents(derived) == fresh(images, derived, recipe=recipe)


def test_a_picture_that_is_replaced_while_derive_runs_is_not_mixed_with_the_old_one(
    images: Path, derived: Path
) -> None:
    array_path(derived, "vae", "img001").unlink()
    samples = plan.Plan.samples

    def late(layout: plan.Plan) -> object:
        replace_one(images)
        return samples(layout)

    before = contents(derived)
    with mock.patch.object(plan.Plan, "samples", late):
        summary = sketch(images, derived)
    assert summary.failed_by_reason["image_changed"].count == 1
    after = contents(derived)
    del after[".shardwright/failures.jsonl"]
    assert after == before
    assert facts(derived)["img001"].get("outdated") is None
