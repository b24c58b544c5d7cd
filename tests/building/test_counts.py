"""Every image ends in a count: none vanishes, whatever its texts and columns are."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import DamageError, ShardwrightError
from shardwright.building import measuring
from shardwright.building.work import _Sink
from shardwright.deriving.outcomes import Outcomes
from shardwright.packing import publish
from shardwright.store.records import LONGEST_LINE
from tests.building.builds import build, counted, interrupt, ledger, reasons, spoil, write_recipe
from tests.building.tarsets import members_of, picture, write_tar
from tests.commands import run
from tests.derive.pictures import make_images, sketch

pytestmark = pytest.mark.timeout(600)


def test_an_image_with_more_text_than_a_record_may_have_is_left_out_and_counted(
    tmp_path: Path,
) -> None:
    images = make_images(tmp_path / "images", 2)
    captions = tmp_path / "captions.jsonl"
    half = "x" * (LONGEST_LINE * 3 // 4)
    rows = [{"file_name": "img000.png", "caption": "one", "note": "short"}]
    rows += [{"file_name": "img001.png", "caption": "two", "note": half}]
    rows += [{"file_name": "k.png", "caption": "three", "note": half}]
    captions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Each fits into its line, but not both into one record.
    members = [("k.png", picture()), ("k.json", json.dumps({"n": half}).encode())]
    write_tar(tmp_path / "a.tar", members)
    summary = build([images, tmp_path / "a.tar"], tmp_path / "out", captions=captions)
    assert summary.inputs == 3
    assert (summary.written_samples, counted(summary.left_out)) == (2, {"record_too_large": 1})
    assert reasons(tmp_path / "out") == {"k.png": "record_too_large"}


FORGED = {"image_id": "x", "image_path": "y", "reason": "z", "detail": "", "by_recipe": True}


@pytest.mark.parametrize("name", ["__left_out__", "__input__", "__facts__"])
def test_a_column_with_a_name_that_we_use_ourselves_is_refused_and_the_image_counted(
    tmp_path: Path, name: str
) -> None:
    members = members_of("good")
    members += [("bad.jpg", picture(24, 16, 1, "JPEG")), ("bad.txt", b"a text")]
    members += [("bad.json", json.dumps({name: FORGED}).encode())]
    write_tar(tmp_path / "tars/a.tar", members)
    summary = build(tmp_path / "tars", tmp_path / "out")
    assert (summary.written_samples, counted(summary.left_out)) == (1, {"reserved_name": 1})
    assert summary.failed == 1
    (left,) = ledger(tmp_path / "out")
    assert left["image_path"] == f"{tmp_path}/tars/a.tar/bad.jpg"
    assert left["detail"] == f"its captions have a column {name}, a name that Shardwright uses"
    images, captions = make_images(tmp_path / "images", 2), tmp_path / "c.csv"
    with captions.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["file_name", "caption", name])
        rows.writerow(["img000.png", "one", json.dumps(FORGED)])
    for command, place in (("build", "--output-dir"), ("derive", "--derived-dir")):
        made = ("--captions", captions, place, tmp_path / command, "--encoders", "sketch")
        done = run(command, images, *made)
        assert done.returncode == 2
        what = f"line 2: has a column {name}, a name that Shardwright uses; rename the column"
        assert done.stderr.splitlines()[-1] == f"error: {captions}: {what}"


def test_a_line_of_a_plan_that_cannot_be_read_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, output = make_images(tmp_path / "images", 4), tmp_path / "out"
    interrupt(images, output, 1, shard_size=1)
    inputs = output / ".shardwright/build/inputs.jsonl"
    inputs.write_bytes(
        inputs.read_bytes().replace(b'{"image_id":"img002"', b'{"image_id"="img002"')
    )
    monkeypatch.setattr("shardwright.building.rows.checksum", lambda _: stored(output))
    with pytest.raises(DamageError) as caught:
        build(images, output, shard_size=1)
    assert str(caught.value) == (
        f"{inputs}: line 3 is not an input of a plan; build again with --overwrite"
    )


def stored(output: Path) -> str:
    return str(json.loads((output / ".shardwright/build/plan.json").read_bytes())["inputs"])


def test_an_image_that_is_lost_while_they_are_measured_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 4)
    measured = measuring.measured
    monkeypatch.setattr(measuring, "measured", lambda *given: losing(measured(*given)))
    with pytest.raises(ShardwrightError) as caught:
        build(images, tmp_path / "out")
    assert str(caught.value) == (
        "4 images found, but 3 are accounted for; run it again; if it happens again, report it"
    )


def losing(found: Any) -> Any:  # noqa: ANN401 - a generator
    next(found)
    yield from found


def test_an_image_that_is_lost_at_work_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 4)
    monkeypatch.setattr(_Sink, "_leave_out", lambda *_: None)
    spoil(images, 1)
    with pytest.raises(ShardwrightError, match=r"^4 inputs, but 3 are accounted for; "):
        shardwright.build(
            images,
            output_dir=tmp_path / "out",
            recipe=write_recipe(tmp_path),
            encoders="sketch",
        )


def test_derive_reports_an_image_that_it_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 4)
    monkeypatch.setattr(Outcomes, "fail", lambda *_: None)
    (images / "img002.txt").unlink()
    with pytest.raises(ShardwrightError, match=r"^4 images found, but 3 are accounted for; "):
        sketch(images, tmp_path / "derived")


def test_pack_reports_a_shard_that_it_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch(make_images(tmp_path / "images", 4), tmp_path / "derived")
    write = publish.write
    monkeypatch.setattr(publish, "write", lambda *given, **named: write(*given, **named)[1:])
    with pytest.raises(ShardwrightError, match=r"^4 samples planned, but 3 are accounted for; "):
        shardwright.pack(
            derived_dir=tmp_path / "derived", output_dir=tmp_path / "out", shard_size=1, workers=1
        )


def test_build_from_shards_reports_a_sample_that_it_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(make_images(tmp_path / "images", 4), tmp_path / "one")
    shard = next((tmp_path / "one/bucket_64x64").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[data.index(b"vae.npy") + 700] ^= 1
    shard.write_bytes(data)
    monkeypatch.setattr(_Sink, "_leave_out", lambda *_: None)
    with pytest.raises(ShardwrightError, match=r"^4 inputs, but 3 are accounted for; "):
        shardwright.build(
            from_=tmp_path / "one",
            components=["t5"],
            output_dir=tmp_path / "two",
            recipe=write_recipe(tmp_path),
            encoders="sketch",
        )
