"""Recomputing a component: the store is what it was until all is made, and no kill matters."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import pack, status, verify
from shardwright.cli.derive import describe
from shardwright.errors import ProvenanceError, StorageError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Lines
from shardwright.storage.files import using
from shardwright.store.journal import journal_path
from tests.derive.fakes import Chokes, Fake, Spoils, given
from tests.derive.pictures import array_path, gradient, make_images, save, sketch, store_records
from tests.derive.test_derive import arrays, balance, failures, flat, provenance
from tests.durability.soak import some
from tests.faults import Call, Killed, KillingDisk, WatchedDisk, but_for_identity, contents

SMALL = ((24, 16), (16, 24), (16, 16))


def cut(path: Path) -> None:
    """Leave a picture its head and half of its body."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def loaded(derived: Path, component: str, image_id: str) -> Any:  # noqa: ANN401 - an array
    return np.load(array_path(derived, component, image_id))


def fitted_later(images: Path, derived: Path) -> Path:
    """Make a store with fitted latents, in which dinov3 saw complete pictures."""
    sketch(images, derived, components=["dinov3"])
    sketch(images, derived, fit="bucket")
    return derived


def test_an_image_that_fails_keeps_its_array_of_the_same_settings(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 4), tmp_path / "derived"
    sketch(images, derived)
    before = arrays(derived)
    cut(images / "img001.png")
    save(images / "img002.png", gradient(80, 80, seed=9))
    summary = sketch(images, derived, recompute=["vae", "dinov3"])
    balance(summary)
    assert (summary.derived, summary.failed, summary.components["vae"].made) == (3, 1, 3)
    (failure,) = failures(derived)
    assert (failure["image_id"], failure["reason"]) == ("img001", "broken_image")
    assert failure["detail"].endswith("; kept as it was: dinov3, vae")
    after = arrays(derived)
    new = {"vae_latents/img002.npy", "dinov3/img002.npy"}
    assert {path for path in before if after[path] != before[path]} == new
    assert "recompute" not in provenance(derived)["vae"]
    assert not (derived / ".shardwright/next").exists()


@pytest.mark.parametrize("bad", [Chokes(2), Spoils(2, np.nan)], ids=["raises", "not finite"])
def test_what_an_encoder_fails_at_stays_with_the_caption_it_has(tmp_path: Path, bad: Fake) -> None:
    images, derived = flat(tmp_path / "images", 4), tmp_path / "derived"
    sketch(images, derived, encoders=given(dinov3=Fake()))
    before = arrays(derived)
    for number in range(4):
        (images / f"{number:03}.txt").write_text(f"another {number}")
    summary = sketch(images, derived, encoders=given(dinov3=bad), recompute=["dinov3", "t5"])
    assert (summary.derived, summary.failed) == (3, 1)
    assert failures(derived)[0]["detail"].endswith("; kept as it was: dinov3, t5")
    captions = [record["caption"] for record in store_records(derived)]
    assert captions == ["another 0", "another 1", "flat 2", "another 3"]
    after = arrays(derived)
    assert {path for path in before if after[path] != before[path]} == {
        f"t5_hidden/00{number}.npy" for number in (0, 1, 3)
    }


@pytest.mark.parametrize("drop", [False, True])
def test_an_image_that_fails_with_other_settings_keeps_all_old_arrays_in_use_until_it_is_dropped(
    tmp_path: Path, drop: bool
) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    sketch(images, derived)
    before = contents(derived)
    valid = (images / "img001.png").read_bytes()
    cut(images / "img001.png")
    again: dict[str, Any] = {"fit": "bucket", "recompute": ["vae"]}
    summary = sketch(images, derived, **again)
    balance(summary)
    assert (summary.derived, summary.failed, summary.unfinished) == (2, 1, ["vae"])
    assert summary.components["vae"].not_recomputed == 1
    assert [failure["image_id"] for failure in failures(derived)] == ["img001"]
    assert in_use(derived) == {**before, **failures_file(derived)}
    assert verify(derived, read_data=True).counts == {"image_changed": 1}
    assert pack(derived_dir=derived, output_dir=tmp_path / "shards").written_samples == 3
    if drop:
        summary = sketch(images, derived, **again, drop_failed=True)
        assert (summary.derived, summary.already_complete, summary.failed) == (0, 2, 1)
        left = ["img000", "img002"]
    else:
        (images / "img001.png").write_bytes(valid)
        summary = sketch(images, derived, **again)
        assert (summary.derived, summary.already_complete, summary.failed) == (1, 2, 0)
        left = ["img000", "img001", "img002"]
    assert summary.unfinished == []
    assert sorted(path.stem for path in (derived / "vae_latents").iterdir()) == left
    fresh = fitted_later(images, tmp_path / "fresh")
    assert {path: arrays(derived)[path] for path in arrays(fresh)} == arrays(fresh)
    crops = {record["image_id"]: record.get("crop") for record in store_records(derived)}
    assert [image_id for image_id, crop in crops.items() if crop] == left
    assert not (derived / ".shardwright/next").exists()


def in_use(derived: Path) -> dict[str, bytes | None]:
    """Give what a store holds beside a generation that is not in use."""
    return {k: v for k, v in contents(derived).items() if not k.startswith(".shardwright/next")}


def failures_file(derived: Path) -> dict[str, bytes | None]:
    return {k: v for k, v in contents(derived).items() if k.endswith("failures.jsonl")}


def test_a_kill_at_every_call_of_a_recompute_of_a_part_of_a_store(tmp_path: Path) -> None:
    images, before = make_images(tmp_path / "images", 4, SMALL), tmp_path / "before"
    sketch(images, before)
    save(images / "img001.png", gradient(16, 24, seed=5))
    (images / "img001.txt").write_text("quite another caption")
    cut(images / "img002.png")
    (images / "img003.png").unlink()
    again = {"recompute": ["vae", "dinov3", "t5"], "batch_size": 2}
    full = shutil.copytree(before, tmp_path / "full")
    with using(watched := WatchedDisk()):
        sketch(images, full, **again)
    old, new = arrays(before), arrays(full)
    changed = {path for path in old if old[path] != new[path]}
    assert changed == {f"{folder}/img001.npy" for folder in ("vae_latents", "dinov3", "t5_hidden")}
    kills = 0
    for nth in (calls := some(range(1, len(watched.calls) + 1), 12)):
        derived = shutil.copytree(before, tmp_path / f"killed{nth}")
        for at in (nth, 1 + nth % 25):  # and again as it resumes
            try:
                with using(KillingDisk(at)):
                    sketch(images, derived, **again)
            except Killed:
                kills += 1
            left = arrays(derived)
            assert left.keys() >= old.keys(), f"an array is gone, killed at call {nth}"
            assert all(left[path] in (old[path], new[path]) for path in old)
        with using(WatchedDisk()):
            sketch(images, derived, **again)
        assert contents(derived) == contents(full), f"killed at call {nth}"
    assert kills > len(calls)


def cut_short(images: Path, derived: Path, **options: Any) -> list[str]:  # noqa: ANN401
    """Begin to recompute, be killed when some groups are done, and name the images that are."""
    again = {"recompute": ["t5"], "batch_size": 1, **options}
    unbroken = shutil.copytree(derived, derived.with_name("unbroken"))
    with using(watched := WatchedDisk()):
        sketch(images, unbroken, **again)
    log = derived / ".shardwright/next" / JSONL_NAME
    journal = str(journal_path(log)).replace(str(derived), str(unbroken))
    written = [n for n, c in enumerate(watched.calls, 1) if c == Call("fsync", journal)]
    with using(KillingDisk(written[2])), pytest.raises(Killed):
        sketch(images, derived, **again)
    lines = journal_path(log).read_text().splitlines()
    done = [json.loads(line)["image_id"] for line in lines]
    assert 0 < len(done) < 12
    return done


def test_a_recompute_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    for path in images.glob("*.txt"):
        path.write_text(f"again: {path.stem}")
    done = cut_short(images, derived)
    foreseen = sketch(images, derived, recompute=["t5"], dry_run=True)
    summary = sketch(images, derived, recompute=["t5"])
    assert summary.components["t5"].made == foreseen.components["t5"].to_make == 12 - len(done)
    assert (summary.replaced_captions, summary.kept_captions) == (12 - len(done), 0)
    assert contents(derived) == contents(tmp_path / "unbroken")


def test_a_caption_edited_while_a_recompute_is_unfinished_is_encoded_again(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    done = cut_short(images, derived)
    (images / f"{done[0]}.txt").write_text("edited between the two")
    summary = sketch(images, derived, recompute=["t5"])
    assert (summary.components["t5"].made, summary.kept_captions) == (13 - len(done), 0)
    fresh = tmp_path / "fresh"
    sketch(images, fresh)
    assert but_for_identity(derived) == but_for_identity(fresh)


def test_an_image_replaced_while_a_recompute_is_unfinished_is_encoded_again(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    done = cut_short(images, derived, fit="bucket", recompute=["vae", "dinov3"])
    save(images / f"{done[0]}.png", gradient(24, 16, seed=99))
    summary = sketch(images, derived, fit="bucket", recompute=["vae", "dinov3"])
    assert summary.components["vae"].made == 13 - len(done)
    assert summary.changed_images == []
    fresh = tmp_path / "fresh"
    sketch(images, fresh, fit="bucket")
    assert loaded(derived, "vae", done[0]).tobytes() == loaded(fresh, "vae", done[0]).tobytes()
    assert store_records(derived) == store_records(fresh)


def test_an_image_replaced_while_a_recompute_of_some_arrays_is_unfinished_stays_as_it_was(
    tmp_path: Path,
) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    done = cut_short(images, derived, fit="bucket", recompute=["vae"])
    fresh = tmp_path / "fresh"
    sketch(images, fresh, fit="bucket")
    save(images / f"{done[0]}.png", gradient(24, 16, seed=99))
    summary = sketch(images, derived, fit="bucket", recompute=["vae"])
    assert summary.components["vae"].made == 12 - len(done)
    assert [Path(path).stem for path in summary.changed_images] == [done[0]]
    assert loaded(derived, "vae", done[0]).tobytes() == loaded(fresh, "vae", done[0]).tobytes()
    assert store_records(derived) == store_records(fresh)


@pytest.mark.parametrize("torn", [1, 3])
def test_a_torn_record_costs_no_more_than_making_its_arrays_again(
    tmp_path: Path, torn: int
) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    done = cut_short(images, derived)
    path = journal_path(derived / ".shardwright/next" / JSONL_NAME)
    path.write_bytes(path.read_bytes()[:-torn])
    assert sketch(images, derived, recompute=["t5"]).components["t5"].made == 13 - len(done)
    assert contents(derived) == contents(tmp_path / "unbroken")


def test_a_store_with_an_unfinished_recompute_is_what_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    before = contents(derived)
    for path in images.glob("*.txt"):
        path.write_text(f"again: {path.stem}")
    done = cut_short(images, derived)
    assert in_use(derived) == before
    assert verify(derived, read_data=True).findings == []
    assert pack(derived_dir=derived, output_dir=tmp_path / "shards").written_samples == 12
    found = status(derived_dir=derived, output_dir=tmp_path / "other")
    assert found.unfinished == {"t5": len(done)}
    assert found.next_command is not None
    assert " --recompute t5 " in found.next_command
    save(images / "new.png", gradient(24, 16))
    (images / "new.txt").write_text("new")
    summary = sketch(images, derived, progress=Lines())
    assert (summary.derived, summary.already_complete, summary.kept_captions) == (1, 12, 12)
    line = (
        f"unfinished recompute of t5 ({len(done)} images); to continue it, run shardwright derive"
    )
    assert line in capsys.readouterr().err
    assert [record["caption"] for record in store_records(derived)][::12] == [
        "a soft gradient, number 0",
        "new",
    ]
    sketch(images, derived, recompute=["t5"])
    fresh = tmp_path / "fresh"
    sketch(images, fresh)
    assert but_for_identity(derived) == but_for_identity(fresh)


def test_a_recompute_can_be_discarded(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    before = contents(derived)
    cut_short(images, derived, fit="bucket", recompute=["vae"])
    foreseen = contents(derived)
    sketch(images, derived, recompute=["none"], dry_run=True)
    assert contents(derived) == foreseen
    shutil.copytree(derived, again := tmp_path / "again")
    assert sketch(images, derived, recompute=["none"]).already_complete == 12
    assert contents(derived) == before
    with pytest.raises(ProvenanceError, match="fit was original, now bucket"):
        sketch(images, again, recompute=["none"], fit="bucket")
    assert not (again / ".shardwright/next").exists()


def test_an_unfinished_recompute_with_other_settings_or_components_is_not_mixed_with(
    tmp_path: Path,
) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    before = contents(derived)
    done = cut_short(images, derived, fit="bucket", recompute=["vae"])
    with pytest.raises(
        ProvenanceError,
        match=r"the recompute of vae is unfinished, with other settings \(vae: fit was bucket, now "
        r"original\); to continue it, give --recompute vae and --fit bucket; to discard it, "
        "--recompute none",
    ):
        sketch(images, derived, recompute=["vae"], fit="original")
    with pytest.raises(ProvenanceError, match="unfinished; to continue it, give --recompute vae;"):
        sketch(images, derived, recompute=["vae", "t5"])
    assert in_use(derived) == before
    assert status(derived_dir=derived).unfinished == {"vae": len(done)}


def test_arrays_whose_images_are_gone_are_recomputed_only_by_dropping_them(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 4, SMALL), tmp_path / "derived"
    sketch(images, derived)
    for name in ("img001", "img002"):
        (images / f"{name}.png").unlink()
    with pytest.raises(ProvenanceError, match=r"2 vae arrays cannot be recomputed; .*-failed"):
        sketch(images, derived, fit="bucket", recompute=["vae"])
    summary = sketch(images, derived, fit="bucket", recompute=["vae"], drop_failed=True)
    assert (summary.swapped, summary.components["vae"].not_recomputed) == (["vae"], 2)
    assert "the new vae arrays are in use; 2 old vae arrays deleted" in describe(summary)
    left = sorted(path.stem for path in (derived / "vae_latents").iterdir())
    assert left == ["img000", "img003"]


def test_images_that_are_new_come_into_use_with_what_is_recomputed(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 4), tmp_path / "derived"
    new = (images / "img003.png").rename(tmp_path / "img003.png")
    array = array_path(derived, "dinov3", "img001")
    sketch(images, derived)
    array.unlink()
    new.rename(images / "img003.png")
    summary = sketch(images, derived, recompute=["t5", "vae"], fit="bucket")
    made = {name: part.made for name, part in summary.components.items()}
    assert made == {"dinov3": 2, "vae": 4, "t5": 4}
    fresh = fitted_later(images, tmp_path / "fresh")
    assert but_for_identity(derived) == but_for_identity(fresh)


def test_fields_that_a_user_adds_while_a_recompute_is_unfinished_are_kept(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    cut_short(images, derived, fit="bucket", recompute=["vae"])
    path = derived / JSONL_NAME
    path.write_text(path.read_text().replace("{", '{"score":0.5,', 1))
    sketch(images, derived, fit="bucket", recompute=["vae"])
    first, second = store_records(derived)[:2]
    assert (first["score"], first["crop"]) == (
        0.5,
        [pytest.approx(4 / 13), 0, pytest.approx(308 / 13), 16],
    )
    assert "score" not in second


def test_a_component_whose_arrays_are_deleted_may_be_made_with_any_settings(
    tmp_path: Path,
) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    sketch(images, derived)
    shutil.rmtree(derived / "vae_latents")
    assert sketch(images, derived, fit="bucket").components["vae"].made == 3
    fresh = fitted_later(images, tmp_path / "fresh")
    assert but_for_identity(derived) == but_for_identity(fresh)


def test_components_without_records_are_recomputed_too(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    sketch(images, derived, components=["vae"])
    summary = sketch(images, derived, components=["vae"], fit="bucket", recompute=["vae"])
    assert (summary.derived, summary.unfinished) == (3, [])
    sketch(images, derived, fit="bucket")
    fresh = tmp_path / "fresh"
    sketch(images, fresh, fit="bucket")
    assert contents(derived) == contents(fresh)


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="there is no second file system")
def test_arrays_on_another_file_system_are_not_begun_to_be_recomputed(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        shutil.move(derived / "vae_latents", other)
        (derived / "vae_latents").symlink_to(Path(other) / "vae_latents")
        before = contents(derived)
        with pytest.raises(StorageError, match="vae_latents: is on another file system"):
            sketch(images, derived, recompute=["vae"])
        assert contents(derived) == before


def test_arrays_made_elsewhere_are_of_other_settings(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    path = array_path(derived, "dinov3", "img000")
    path.parent.mkdir(parents=True)
    np.save(path, np.ones(1024, np.float32))
    sketch(images, derived)
    cut(images / "img000.png")
    assert sketch(images, derived, recompute=["dinov3"]).unfinished == ["dinov3"]
    assert path.exists()
    assert sketch(images, derived, recompute=["dinov3"], drop_failed=True).failed == 1
    assert not path.exists()
    assert "unknown_arrays" not in provenance(derived)["dinov3"]


@pytest.mark.parametrize("mode", ["fresh", "dry_run", "append", "resume"])
def test_a_store_in_the_middle_of_a_swap_is_read_by_no_command(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images, derived = make_images(tmp_path / "images", 3, SMALL), tmp_path / "derived"
    sketch(images, derived)
    pack(derived_dir=derived, output_dir=tmp_path / "shards")
    (images / "img001.txt").write_text("edited")
    with using(watched := WatchedDisk()):
        sketch(images, shutil.copytree(derived, tmp_path / "full"), recompute=["t5"])
    swapped = [n for n, c in enumerate(watched.calls, 1) if "full/t5_hidden" in c.path]
    with using(KillingDisk(swapped[2])), pytest.raises(Killed):
        sketch(images, derived, recompute=["t5"])
    output = tmp_path / ("other" if mode == "fresh" else "shards")
    flags: dict[str, Any] = {} if mode == "fresh" else {mode: True}
    before = contents(tmp_path)
    for read in (
        lambda: verify(derived),
        lambda: status(derived_dir=derived),
        lambda: pack(derived_dir=derived, output_dir=output, **flags),
    ):
        with pytest.raises(ProvenanceError, match=f"{derived}: the recompute of t5 .* derive"):
            read()
    assert contents(tmp_path) == before
    sketch(images, derived, progress=Lines())
    assert "finished the interrupted recompute of t5\n" in capsys.readouterr().err
    assert not verify(derived).damaged
    assert pack(derived_dir=derived, output_dir=tmp_path / "new").written_samples == 3
