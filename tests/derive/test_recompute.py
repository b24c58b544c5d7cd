"""Recomputing a component: no good array is lost, none of an old make stays, no kill matters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import pack, verify
from shardwright.errors import ProvenanceError
from shardwright.storage.files import using
from tests.derive.fakes import Chokes, Fake, Spoils, given
from tests.derive.pictures import array_path, gradient, make_images, save, sketch, store_records
from tests.derive.test_derive import arrays, balance, failures, flat, provenance
from tests.faults import Call, Killed, KillingDisk, WatchedDisk, contents

SMALL = ((24, 16), (16, 24), (16, 16))


def cut(path: Path) -> None:
    """Leave a picture its head and half of its body."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def loaded(derived: Path, component: str, image_id: str) -> Any:  # noqa: ANN401 - an array
    return np.load(array_path(derived, component, image_id))


def test_an_image_that_fails_keeps_its_array_of_the_same_settings(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 4), tmp_path / "derived"
    sketch(images, derived)
    before = arrays(derived)
    cut(images / "img001.png")
    save(images / "img002.png", gradient(80, 80, seed=9))
    summary = sketch(images, derived, recompute=["vae"])
    balance(summary)
    assert (summary.derived, summary.failed, summary.components["vae"].made) == (3, 1, 3)
    (failure,) = failures(derived)
    assert (failure["image_id"], failure["reason"]) == ("img001", "broken_image")
    assert failure["detail"].endswith("; kept as it was: vae")
    after = arrays(derived)
    assert {path for path in before if after[path] != before[path]} == {"vae_latents/img002.npy"}
    assert "recompute" not in provenance(derived)["vae"]
    assert not list((derived / ".shardwright").glob("remade*"))


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


def test_an_image_that_fails_keeps_no_array_of_other_settings(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    sketch(images, derived)
    whole = (images / "img001.png").read_bytes()
    cut(images / "img001.png")
    (images / "img002.png").write_bytes(b"")
    summary = sketch(images, derived, fit="bucket", recompute=["vae"])
    balance(summary)
    assert (summary.derived, summary.failed) == (1, 2)
    assert [path.stem for path in (derived / "vae_latents").iterdir()] == ["img000"]
    assert loaded(derived, "vae", "img000").shape == (16, 832 // 8, 1216 // 8)
    assert [failure["image_id"] for failure in failures(derived)] == ["img001", "img002"]
    (images / "img001.png").write_bytes(whole)
    summary = sketch(images, derived, fit="bucket")
    assert (summary.derived, summary.already_complete, summary.failed) == (1, 1, 1)
    assert loaded(derived, "vae", "img001").shape == (16, 1216 // 8, 832 // 8)


def test_a_kill_at_every_call_of_a_recompute_of_a_part_of_a_store(tmp_path: Path) -> None:
    images, before = make_images(tmp_path / "images", 4, SMALL), tmp_path / "before"
    sketch(images, before)
    save(images / "img001.png", gradient(16, 24, seed=5))
    (images / "img001.txt").write_text("quite another caption")
    cut(images / "img002.png")
    (images / "img003.png").unlink()
    again = {"recompute": ["vae", "t5"], "batch_size": 2}
    whole = shutil.copytree(before, tmp_path / "whole")
    with using(watched := WatchedDisk()):
        sketch(images, whole, **again)
    old, new = arrays(before), arrays(whole)
    changed = {path for path in old if old[path] != new[path]}
    assert changed == {"vae_latents/img001.npy", "t5_hidden/img001.npy"}
    kills = 0
    for nth in range(1, len(watched.calls) + 1):
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
        assert contents(derived) == contents(whole), f"killed at call {nth}"
    assert kills > len(watched.calls)


class KilledOnce(WatchedDisk):
    """Dies when the next file is begun after there is something in this one, and stays dead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.dead = path, False

    def before(self, call: Call) -> None:
        written = self.path.exists() and self.path.stat().st_size > 0
        self.dead = self.dead or (written and call.name == "create")
        if self.dead:
            raise Killed


def cut_short(images: Path, derived: Path) -> None:
    """Begin a recompute of the captions, and have it killed when the first group is done."""
    again = {"recompute": ["t5"], "batch_size": 1}
    with using(WatchedDisk()):
        sketch(images, shutil.copytree(derived, derived.with_name("unbroken")), **again)
    done = derived / ".shardwright/remade-t5.jsonl"
    with using(KilledOnce(done)), pytest.raises(Killed):
        sketch(images, derived, **again)
    assert provenance(derived)["t5"]["recompute"] == "replacing"


def remade(derived: Path) -> list[str]:
    lines = (derived / ".shardwright/remade-t5.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_recompute_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    for path in images.glob("*.txt"):
        path.write_text(f"anew: {path.stem}")
    cut_short(images, derived)
    done = remade(derived)
    assert 0 < len(done) < 12
    summary = sketch(images, derived)  # --recompute or not: it is under way
    assert summary.components["t5"].made == 12 - len(done)
    assert contents(derived) == contents(tmp_path / "unbroken")


def test_a_caption_edited_while_a_recompute_lies_still_stays_with_its_array(
    tmp_path: Path,
) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    cut_short(images, derived)
    done = remade(derived)[0]
    (images / f"{done}.txt").write_text("too late for this recompute")
    sketch(images, derived, recompute=["t5"])
    assert store_records(derived)[0]["caption"] == "a soft gradient, number 0"
    sketch(images, derived, recompute=["t5"])
    assert store_records(derived)[0]["caption"] == "too late for this recompute"


def test_a_torn_list_costs_no_more_than_making_those_again(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    sketch(images, derived)
    cut_short(images, derived)
    path = derived / ".shardwright/remade-t5.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    left = len(path.read_text().splitlines()) - 1
    assert sketch(images, derived, recompute=["t5"]).components["t5"].made == 12 - left
    assert contents(derived) == contents(tmp_path / "unbroken")


def test_other_settings_put_an_end_to_a_recompute_that_was_cut_short(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 12, SMALL), tmp_path / "derived"
    encoders = given(t5=given()["t5"])
    sketch(images, derived)
    cut_short(images, derived)
    with pytest.raises(ProvenanceError, match="encoders was sketch, now given"):
        sketch(images, derived, encoders=encoders, components=["t5"])
    summary = sketch(images, derived, encoders=encoders, components=["t5"], recompute=["t5"])
    assert summary.components["t5"].made == 12
    assert not list((derived / ".shardwright").glob("remade*"))
    assert "recompute" not in provenance(derived)["t5"]


def test_arrays_made_elsewhere_are_of_other_settings(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    path = array_path(derived, "dinov3", "img000")
    path.parent.mkdir(parents=True)
    np.save(path, np.ones(1024, np.float32))
    sketch(images, derived)
    cut(images / "img000.png")
    assert sketch(images, derived, recompute=["dinov3"]).failed == 1
    assert not path.exists()
    assert "unknown_arrays" not in provenance(derived)["dinov3"]


@pytest.mark.parametrize("mode", ["fresh", "dry_run", "append", "resume"])
def test_a_store_in_the_midst_of_one_is_neither_packed_nor_called_whole(
    tmp_path: Path, mode: str
) -> None:
    images, derived = make_images(tmp_path / "images", 3, SMALL), tmp_path / "derived"
    sketch(images, derived)
    pack(derived_dir=derived, output_dir=tmp_path / "shards")
    (images / "img001.txt").write_text("edited")
    with using(watched := WatchedDisk()):
        sketch(images, shutil.copytree(derived, tmp_path / "whole"), recompute=["t5"])
    journal = watched.names.index("append", watched.names.index("rename"))
    with using(KillingDisk(journal + 1)), pytest.raises(Killed):
        sketch(images, derived, recompute=["t5"])
    (finding,) = [f for f in verify(derived).findings if f.damage]
    assert finding.kind == "recompute_unfinished"
    assert "recompute of t5" in finding.what
    assert finding.cure.startswith("to finish it, run shardwright derive ")
    output = tmp_path / ("other" if mode == "fresh" else "shards")
    flags: dict[str, Any] = {} if mode == "fresh" else {mode: True}
    before = contents(tmp_path)
    with pytest.raises(ProvenanceError, match=f"{derived}: a recompute of t5 .* derive"):
        pack(derived_dir=derived, output_dir=output, **flags)
    assert contents(tmp_path) == before
    sketch(images, derived)
    assert not verify(derived).damaged
    assert pack(derived_dir=derived, output_dir=tmp_path / "new").written_samples == 3
