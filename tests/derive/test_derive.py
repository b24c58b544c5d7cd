"""Deriving: what is made, what is kept, what is refused, and that the books balance."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from shardwright.deriving import DeriveSummary, derive
from shardwright.encoders.sketch import decode
from shardwright.errors import (
    InputMissingError,
    LockedError,
    ProvenanceError,
    ShardwrightError,
    TooManyFailuresError,
    UsageError,
)
from shardwright.layout import JSONL_NAME
from shardwright.packing import pack
from shardwright.progress import Lines
from shardwright.recipes import SPECIFICATION
from shardwright.storage.local import LocalPlace
from shardwright.store.provenance import Entry, require_same
from tests.derive.fakes import Chokes, Fake, SmallDevice, Spoils, given
from tests.derive.pictures import (
    array_path,
    gradient,
    make_bomb,
    make_images,
    save,
    sketch,
    store_records,
)
from tests.derive.test_sources import too_deep
from tests.faults import but_for_identity, contents


def balance(summary: DeriveSummary) -> None:
    ends = summary.derived + summary.already_complete + summary.failed
    assert ends == summary.images_found
    assert sum(reason.count for reason in summary.failed_by_reason.values()) == summary.failed


def failures(derived: Path) -> list[dict[str, Any]]:
    path = derived / ".shardwright/failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def provenance(derived: Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads((derived / ".shardwright/provenance.json").read_text())["components"]


def arrays(derived: Path) -> dict[str, bytes | None]:
    return {path: data for path, data in contents(derived).items() if path.endswith(".npy")}


def flat(folder: Path, count: int) -> Path:
    """Make pictures of one colour: number n has a red of n."""
    for number in range(count):
        picture = np.full((16, 16, 3), 100, np.uint8)
        picture[..., 0] = number
        save(folder / f"{number:03}.png", picture)
        (folder / f"{number:03}.txt").write_text(f"flat {number}")
    return folder


def test_a_latent_is_of_the_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = gradient(96, 64)
    image = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    (tmp_path / "images").mkdir()
    image.save(tmp_path / "images/turned.png", exif=exif)
    (tmp_path / "images/turned.txt").write_text("turned")
    sketch(tmp_path / "images", tmp_path / "derived")
    record = store_records(tmp_path / "derived")[0]
    assert (record["width"], record["height"], record["aspect_bucket"]) == (96, 64, "1216x832")
    back = decode(np.load(array_path(tmp_path / "derived", "vae", "turned")))
    assert back.shape == upright.shape
    assert np.abs(back.astype(int) - upright).mean() < 3


def test_original_fit_cuts_sides_down_to_full_blocks(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 1, sizes=((101, 63),))
    sketch(images, tmp_path / "derived")
    record = store_records(tmp_path / "derived")[0]
    assert (record["width"], record["height"]) == (101, 63)
    assert "crop" not in record
    latent = np.load(array_path(tmp_path / "derived", "vae", "img000"))
    assert latent.shape == (16, 63 // 8, 101 // 8)
    apart = decode(latent).astype(int) - gradient(101, 63)[:56, :96]
    assert np.abs(apart).mean() < 3


def test_bucket_fit_gives_the_bucket_s_shape_and_records_the_crop(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3, sizes=((200, 100), (100, 200), (120, 120)))
    sketch(images, tmp_path / "derived", fit="bucket")
    found = [
        (r["aspect_bucket"], r["crop"], np.load(array_path(tmp_path / "derived", "vae", i)).shape)
        for r in store_records(tmp_path / "derived")
        for i in [r["image_id"]]
    ]
    assert found == [
        ("1344x704", [pytest.approx(50 / 11), 0, pytest.approx(2150 / 11), 100], (16, 88, 168)),
        ("704x1344", [0, pytest.approx(50 / 11), 100, pytest.approx(2150 / 11)], (16, 168, 88)),
        ("1024x1024", [0, 0, 120, 120], (16, 128, 128)),
    ]
    packed = pack(derived_dir=tmp_path / "derived", output_dir=tmp_path / "shards", workers=1)
    assert packed.written_samples == 3
    assert [bucket.off_shape for bucket in packed.buckets.values()] == [0, 0, 0]


def test_captions_come_from_the_file_then_the_record_then_beside(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    derived.mkdir()
    (derived / JSONL_NAME).write_text(
        "".join(
            json.dumps({"image_id": f"img{n:03}", "caption": "on record"}) + "\n" for n in (0, 1)
        )
    )
    file = tmp_path / "captions.csv"
    file.write_text("image_path,caption\nimages/img000.png,given\n")
    sketch(images, derived, captions=file)
    found = [record["caption"] for record in store_records(derived)]
    assert found == ["given", "on record", "a soft gradient, number 2"]


def test_the_caption_of_an_array_stays_until_it_is_recomputed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived)
    before = contents(derived)
    file = tmp_path / "captions.jsonl"
    file.write_text('{"file_name": "img000.png", "text": "another"}\n')
    summary = sketch(images, derived, captions=file, progress=Lines())
    assert (summary.already_complete, summary.kept_captions) == (2, 1)
    assert "Use --update to encode the new text" in capsys.readouterr().err
    before[".shardwright/paths.json"] = (derived / ".shardwright/paths.json").read_bytes()
    assert contents(derived) == before
    summary = sketch(images, derived, captions=file, recompute=["t5"])
    assert (summary.derived, summary.kept_captions) == (2, 0)
    assert store_records(derived)[0]["caption"] == "another"
    assert sum(store_records(derived)[0]["t5_attention_mask"]) == 2
    changed = {path for path, data in contents(derived).items() if data != before[path]}
    assert changed == {"t5_hidden/img000.npy", ".shardwright/facts.jsonl", JSONL_NAME}


def test_a_user_s_own_fields_are_kept(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    derived.mkdir()
    (derived / JSONL_NAME).write_text('{"image_id":"img000","score":0.5,"tags":["a"]}\n')
    sketch(images, derived)
    (record,) = store_records(derived)
    assert (record["score"], record["tags"], record["format_version"]) == (0.5, ["a"], 2)


def test_every_image_is_derived_complete_or_failed(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 4), tmp_path / "derived"
    sketch(images, derived)
    save(images / "new.png", gradient(32, 32))
    (images / "new.txt").write_text("new")
    save(images / "silent.png", gradient(32, 32))
    save(images / "blank.png", gradient(32, 32))
    (images / "blank.txt").write_text(" \n")
    save(images / "twice.png", gradient(32, 32))
    save(images / "twice.jpg", gradient(32, 32))
    save(images / "tiny.png", gradient(1, 1))
    (images / "empty.jpg").write_bytes(b"")
    (images / "text.jpg").write_text("hello")
    make_bomb(images / "bomb.png", 30_000, 30_000)
    (images / "gone.jpg").symlink_to(images / "nowhere.jpg")
    for name in ("twice", "tiny", "empty", "text", "bomb", "gone"):
        (images / f"{name}.txt").write_text(name)
    summary = sketch(images, derived)
    balance(summary)
    assert (summary.derived, summary.already_complete) == (1, 4)
    assert {reason: found.count for reason, found in summary.failed_by_reason.items()} == {
        "no_caption": 2,
        "duplicate_id": 2,
        "too_small": 1,
        "broken_image": 2,
        "too_large": 1,
        "unreadable": 1,
    }
    assert {Path(f["image_path"]).name: f["reason"] for f in failures(derived)} == {
        "silent.png": "no_caption",
        "blank.png": "no_caption",
        "twice.png": "duplicate_id",
        "twice.jpg": "duplicate_id",
        "tiny.png": "too_small",
        "empty.jpg": "broken_image",
        "text.jpg": "broken_image",
        "bomb.png": "too_large",
        "gone.jpg": "unreadable",
    }
    assert [record["image_id"] for record in store_records(derived)][-1] == "new"
    for component in SPECIFICATION.components:
        assert len(list((derived / component.folder).iterdir())) == 5


@pytest.mark.timeout(600)
def test_pipes_and_devices_are_failures_and_not_waited_for(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    (images / "img001.png").unlink()
    os.mkfifo(images / "img001.png")
    (images / "img002.txt").unlink()
    os.mkfifo(images / "img002.txt")
    (images / "zero.png").symlink_to("/dev/zero")
    (images / "zero.txt").write_text("zero")
    summary = sketch(images, derived)
    balance(summary)
    assert {f["image_id"]: (f["reason"], f["detail"]) for f in failures(derived)} == {
        "img001": ("unreadable", "not a regular file"),
        "img002": ("caption_unreadable", f"{images}/img002.txt: not a regular file"),
        "zero": ("unreadable", "not a regular file"),
    }
    assert [record["image_id"] for record in store_records(derived)] == ["img000"]


def test_failures_are_cleared_when_the_image_is_fixed(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    full = (images / "img001.png").read_bytes()
    (images / "img001.png").write_bytes(full[:100])
    other = flat(tmp_path / "other", 1)
    save(other / "img009.png", gradient(32, 32))
    assert sketch(other, derived).failed_by_reason["no_caption"].count == 1
    assert sketch(images, derived).failed == 1
    assert [f["reason"] for f in failures(derived)] == ["no_caption", "broken_image"]
    (images / "img001.png").write_bytes(full)
    assert sketch(images, derived, components=["vae"]).failed == 0
    assert [f["components"] for f in failures(derived)] == [
        ["dinov3", "vae", "t5"],
        ["dinov3", "t5"],
    ]
    assert sketch(images, derived).failed == 0
    assert [f["reason"] for f in failures(derived)] == ["no_caption"]
    (other / "img009.txt").write_text("a caption at last")
    sketch(other, derived)
    assert failures(derived) == []


def test_an_id_that_the_store_has_for_another_image_is_a_duplicate(tmp_path: Path) -> None:
    one, other = make_images(tmp_path / "one", 1), make_images(tmp_path / "other", 1)
    derived = tmp_path / "derived"
    sketch(one, derived)
    before = contents(derived)
    summary = sketch(other, derived)
    assert summary.failed_by_reason["duplicate_id"].example == str(other / "img000.png")
    assert str(one / "img000.png") in failures(derived)[0]["detail"]
    assert {k: v for k, v in contents(derived).items() if "failures" not in k} == before
    one.rename(tmp_path / "moved")
    assert sketch(tmp_path / "moved", derived).already_complete == 1


@pytest.mark.parametrize("moved", [False, True])
def test_the_image_on_record_keeps_its_id_and_only_the_newcomer_fails(
    tmp_path: Path, moved: bool
) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    sketch(images, derived)
    if moved:
        images = images.rename(tmp_path / "moved")
    before = arrays(derived), store_records(derived)
    for name in ("img000.jpg", "img000.bmp", "img001.jpe"):
        save(images / name, gradient(48, 48), format="BMP" if "bmp" in name else "JPEG")
    (images / "img002.heic").write_bytes(b"any")
    summary = sketch(images, derived)
    balance(summary)
    assert (summary.already_complete, summary.failed) == (3, 4)
    assert summary.failed_by_reason["duplicate_id"].count == 4
    apart = "use --ids path --update to tell them apart"
    assert {f["image_path"]: f["detail"] for f in failures(derived)} == {
        str(images / newcomer): f"{images}/{newcomer[:6]}.png has the same image_id; {apart}"
        for newcomer in ("img000.jpg", "img000.bmp", "img001.jpe", "img002.heic")
    }
    assert (arrays(derived), store_records(derived)) == before


def test_an_image_that_was_taken_for_another_format_s_sake_stays_on_record(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    (images / "img000.png").rename(images / "img000.qoi")
    sketch(images, derived)
    save(images / "img000.png", gradient(48, 48))
    summary = sketch(images, derived)
    assert (summary.already_complete, summary.failed) == (1, 1)
    assert failures(derived)[0]["image_path"] == str(images / "img000.png")


def test_a_folder_of_many_formats_is_counted_to_the_last_file(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    for number, suffix in enumerate(("avif", "jp2", "jfif", "jpe", "qoi")):
        save(images / f"other{number}.{suffix}", gradient(64, 64))
        (images / f"other{number}.txt").write_text("in another format")
    for number in range(150):  # more than may fail in a row for other reasons
        name = f"phone{number:03}" + (".psd" if number < 30 else ".jpg")
        (images / name).write_bytes(b"8BPS" if number < 30 else b"\xff\x0a")
        (images / name).with_suffix(".txt").write_text("from a phone")
    summary = sketch(images, derived)
    balance(summary)
    assert (summary.images_found, summary.derived, summary.failed) == (157, 7, 150)
    assert summary.failed_by_reason["format_not_readable"].count == 150
    assert failures(derived)[0]["detail"] == "save it as PNG, TIFF or JPEG"


def test_what_is_complete_needs_no_format_to_be_readable(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    (images / "img000.png").rename(images / "img000.psd")  # by content it is a PNG
    assert sketch(images, derived).derived == 1
    (images / "img000.psd").write_bytes(b"8BPS")
    assert sketch(images, derived).already_complete == 1


def test_a_folder_that_cannot_be_read_is_a_failure_and_the_rest_goes_on(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    place = too_deep(images, "img000")
    summary = sketch(images, derived)
    balance(summary)
    assert (summary.derived, summary.failed) == (2, 1)
    (failure,) = failures(derived)
    assert (failure["image_path"], failure["reason"]) == (place, "unreadable_folder")


def test_a_stage_1_record_must_be_migrated_first(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    derived.mkdir()
    line = json.dumps({"image_path": "data/img000.png", "dinov3_embedding": [0.5] * 1024})
    (derived / JSONL_NAME).write_text(line + "\n")
    summary = sketch(images, derived)
    assert summary.failed_by_reason["not_migrated"].count == 1
    assert (derived / JSONL_NAME).read_text() == line + "\n"


def test_components_can_be_made_one_at_a_time(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    for name in ("vae", "dinov3"):
        assert sketch(images, derived, components=[name], fit="bucket").derived == 3
        assert not (derived / JSONL_NAME).exists(), "without the mask there is no full record"
        assert sketch(images, derived, components=[name], fit="bucket").already_complete == 3
    sketch(images, derived, components=["t5"])
    full = tmp_path / "full"
    sketch(images, full, fit="bucket")
    assert contents(derived) == contents(full)


def test_a_model_is_loaded_only_if_something_needs_it(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    fake = Fake()
    sketch(images, derived, encoders=given(dinov3=fake))
    assert fake.batches == [1, 2], "the trial, and then the two"
    array_path(derived, "t5", "img001").unlink()
    summary = sketch(images, derived, encoders=given(dinov3=fake))
    assert len(fake.batches) == 2
    assert summary.components["dinov3"].settings is None
    assert summary.components["t5"].made == 1
    assert summary.derived == 1


def test_batches_are_of_one_shape_and_of_the_size_asked_for(tmp_path: Path) -> None:
    fake = Fake()
    images = flat(tmp_path / "images", 7)
    sketch(images, tmp_path / "derived", encoders=given(dinov3=fake), batch_size=3)
    assert sum(fake.batches) == 1 + 7, "the trial, and each picture once"
    assert max(fake.batches) == 3
    for number in range(7):
        array = np.load(array_path(tmp_path / "derived", "dinov3", f"{number:03}"))
        assert (array == number).all(), "each picture has the array of its own"


def test_batches_are_halved_when_memory_runs_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = SmallDevice(room=3)
    images = flat(tmp_path / "images", 40)
    summary = sketch(
        images,
        tmp_path / "derived",
        encoders=given(dinov3=fake),
        batch_size=16,
        progress=Lines(),
    )
    assert (summary.derived, summary.failed) == (40, 0)
    assert max(fake.batches) == 2, "16, 8 and 4 were too many"
    assert capsys.readouterr().err.count("no memory for") == 3, "learnt once"
    for number in range(40):
        assert (np.load(array_path(tmp_path / "derived", "dinov3", f"{number:03}")) == number).all()


def test_an_image_too_large_for_the_device_alone_is_a_failure(tmp_path: Path) -> None:
    class TooLarge(Fake):
        def encode(self, batch: Any) -> Any:  # noqa: ANN401 - as the base
            if (batch[:, 0, 0] == 2).any():
                raise MemoryError
            return super().encode(batch)

    images = flat(tmp_path / "images", 5)
    summary = sketch(images, tmp_path / "derived", encoders=given(dinov3=TooLarge()))
    assert (summary.derived, summary.failed) == (4, 1)
    assert failures(tmp_path / "derived")[0]["reason"] == "out_of_memory"


@pytest.mark.parametrize(("value", "words"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_what_is_not_finite_is_a_failure_of_that_image_only(
    tmp_path: Path, value: float, words: str
) -> None:
    images, derived = flat(tmp_path / "images", 5), tmp_path / "derived"
    summary = sketch(images, derived, encoders=given(dinov3=Spoils(3, value)))
    balance(summary)
    assert summary.failed_by_reason["not_finite"].example == str(images / "003.png")
    assert words in failures(derived)[0]["detail"]
    assert not array_path(derived, "dinov3", "003").exists()
    assert array_path(derived, "vae", "003").exists(), "what is valid need not be made again"
    assert [r["image_id"] for r in store_records(derived)] == ["000", "001", "002", "004"]


def test_a_value_that_float16_cannot_hold_is_a_failure(tmp_path: Path) -> None:
    class Overflows(Fake):
        def prepare(self, caption: Any) -> Any:  # noqa: ANN401 - of captions, here
            return given()["t5"].prepare(caption)

        def encode(self, ids: Any, mask: Any = None) -> Any:  # noqa: ANN401
            return np.full((len(ids), 77, 1024), 70_000, np.float32)

    images, derived = flat(tmp_path / "images", 2), tmp_path / "derived"
    summary = sketch(images, derived, encoders=given(t5=Overflows(SPECIFICATION.components[2])))
    assert summary.failed_by_reason["not_finite"].count == 2
    assert failures(derived)[0]["detail"] == "t5: too large a value for float16"
    assert list((derived / "t5_hidden").iterdir()) == []


def test_an_encoder_that_chokes_on_one_image_fails_that_image_only(tmp_path: Path) -> None:
    images, derived = flat(tmp_path / "images", 9), tmp_path / "derived"
    summary = sketch(images, derived, encoders=given(dinov3=Chokes(4)))
    assert (summary.derived, summary.failed) == (8, 1)
    assert failures(derived)[0]["reason"] == "encoder_failed"
    assert "device-side assert" in failures(derived)[0]["detail"]


def test_an_encoder_of_the_wrong_shape_is_refused_before_any_work(tmp_path: Path) -> None:
    class Narrow(Fake):
        def encode(self, batch: Any) -> Any:  # noqa: ANN401 - as the base
            return super().encode(batch)[:, :768]

    images, derived = flat(tmp_path / "images", 2), tmp_path / "derived"
    with pytest.raises(ShardwrightError, match=r"dinov3: the encoder gave float32 \(768,\)"):
        sketch(images, derived, encoders=given(dinov3=Narrow()))
    assert not list(derived.rglob("*.npy"))
    assert not (derived / ".shardwright/provenance.json").exists()


def test_100_failures_in_a_row_stop_the_run_and_keep_what_was_made(tmp_path: Path) -> None:
    images, derived = flat(tmp_path / "images", 3), tmp_path / "derived"
    for number in range(150):
        (images / f"bad{number:03}.jpg").write_bytes(b"no picture")
        (images / f"bad{number:03}.txt").write_text("bad")
    with pytest.raises(TooManyFailuresError, match=r"broken image .* as with 100 images in a row"):
        sketch(images, derived)
    assert [r["image_id"] for r in store_records(derived)] == ["000", "001", "002"]
    assert len(failures(derived)) == 100
    assert not (derived / (JSONL_NAME + ".tmp")).exists()


def test_failures_that_are_not_in_a_row_do_not_stop_the_run(tmp_path: Path) -> None:
    images, derived = flat(tmp_path / "images", 3), tmp_path / "derived"
    for number in range(150):
        name = f"{number // 75:03}bad{number:03}"
        (images / f"{name}.jpg").write_bytes(b"no picture")
        (images / f"{name}.txt").write_text("bad")
    summary = sketch(images, derived)
    assert (summary.derived, summary.failed) == (3, 150)


def test_other_settings_stop_the_run_before_any_work(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived)
    before = contents(derived)
    make_images(tmp_path / "images", 3)
    with pytest.raises(ProvenanceError, match="fit was original, now bucket") as caught:
        sketch(images, derived, fit="bucket")
    assert "--recompute vae" in str(caught.value)
    assert contents(derived) == before


def test_all_other_settings_are_named_and_first_how_to_continue_as_before(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived, fit="bucket")
    with pytest.raises(ProvenanceError) as caught:
        derive(images, derived_dir=derived, encoders="pretrained", fit="original")
    assert str(caught.value) == (
        f"{derived}: was made with other settings, and nothing was written (dinov3, vae: encoders "
        "was sketch, now pretrained, fit was bucket, now original; t5: encoders was sketch, now "
        "pretrained); to go on as before, give --encoders sketch --fit bucket; to recompute all of "
        "it, --recompute dinov3,vae,t5; or give another --derived-dir"
    )


def test_to_go_on_as_before_may_take_fewer_components(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived, components=["vae", "t5"])
    sketch(images, derived, components=["dinov3"], encoders=given())
    with pytest.raises(ProvenanceError, match="give --encoders sketch --components vae,t5; to"):
        sketch(images, derived, encoders=given())
    with pytest.raises(ProvenanceError, match="give the settings it was made with; to"):
        sketch(images, derived)


@pytest.mark.parametrize("key", ["model", "dtype", "encoder"])
def test_what_was_before_is_listed_also_where_no_choice_restores_it(key: str) -> None:
    entry = Entry({"encoders": "pretrained", key: "old"}, "shardwright")
    with pytest.raises(ProvenanceError) as caught:
        require_same({"vae": entry}, {"vae": {"encoders": "pretrained", key: "new"}}, Path("x"))
    assert f"(vae: {key} was old, now new); to go on as before, give the settings" in str(
        caught.value
    )


def test_another_revision_of_a_model_is_refused_with_the_flag_that_goes_on() -> None:
    model = {"encoders": "pretrained", "model": "org/vae"}
    entry = Entry({**model, "revision": "abc"}, "shardwright")
    with pytest.raises(ProvenanceError, match="as before, give --model vae=org/vae@abc; to recom"):
        require_same({"vae": entry}, {"vae": {**model, "revision": "def"}}, Path("x"))


def test_another_model_is_named_with_the_one_before(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    old, new = Fake(weights="abc", dtype="float32"), Fake(weights="xyz", dtype="float32")
    sketch(images, derived, encoders=given(dinov3=old))
    make_images(tmp_path / "images", 3)
    with pytest.raises(ProvenanceError, match=r"\(dinov3: weights was abc, now xyz\)"):
        sketch(images, derived, encoders=given(dinov3=new))
    assert sketch(images, derived, encoders=given(dinov3=new), recompute=["dinov3"]).derived == 3
    assert provenance(derived)["dinov3"]["settings"]["weights"] == "xyz"


def test_other_settings_are_noticed_even_if_nothing_is_missing(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived)
    with pytest.raises(ProvenanceError, match="fit was original, now bucket"):
        sketch(images, derived, fit="bucket")
    with pytest.raises(ProvenanceError, match="encoders was sketch, now pretrained"):
        sketch(images, derived, encoders="pretrained")


def test_provenance_says_what_arrays_were_made_with(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    sketch(images, derived, fit="bucket", components=["vae", "t5"])
    found = provenance(derived)
    assert sorted(found) == ["t5", "vae"]
    assert found["vae"]["settings"] == {
        "colour": "srgb",
        "crop": "fractions",
        "encoder": "sketch",
        "encoders": "sketch",
        "fit": "bucket",
        "model": "block-dct",
        "scaling_factor": 1.0,
        "shift_factor": 0.0,
        "version": 1,
    }
    assert found["vae"]["tool"].startswith("shardwright ")
    assert "fit" not in found["t5"]["settings"]


def test_recompute_replaces_all_arrays_and_what_records_say_of_them(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 4), tmp_path / "derived"
    sketch(images, derived)
    summary = sketch(images, derived, fit="bucket", recompute=["dinov3", "vae"])
    assert (summary.derived, summary.components["vae"].made) == (4, 4)
    assert summary.components["t5"].made == 0
    full = tmp_path / "full"
    sketch(images, full, fit="bucket")
    assert but_for_identity(derived) == but_for_identity(full)
    sketch(images, derived, fit="original", recompute=["dinov3", "vae"])
    assert all("crop" not in record for record in store_records(derived))


def test_recompute_refuses_to_leave_arrays_of_the_old_make(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    sketch(images, derived)
    (images / "img002.png").unlink()
    before = contents(derived)
    with pytest.raises(
        ProvenanceError, match=r"vae_latents/img002\.npy: its image is not in the folder given"
    ):
        sketch(images, derived, fit="bucket", recompute=["vae"])
    assert contents(derived) == before
    sketch(images, derived, recompute=["vae"])  # with the same settings there is no mixture
    assert contents(derived) == before


def test_recompute_keeps_the_arrays_of_images_that_cannot_be_derived(tmp_path: Path) -> None:
    images, other = make_images(tmp_path / "images", 4), make_images(tmp_path / "other", 4)
    derived = tmp_path / "derived"
    sketch(images, derived)
    before = arrays(derived)
    summary = sketch(other, derived, recompute=["t5", "vae", "dinov3"])
    assert summary.failed_by_reason["duplicate_id"].count == 4
    assert arrays(derived) == before
    (images / "img001.png").write_bytes(b"")
    save(images / "img002.jpg", gradient(32, 32))
    summary = sketch(images, derived, recompute=["t5", "vae", "dinov3"])
    balance(summary)
    assert (summary.derived + summary.already_complete, summary.components["t5"].made) == (3, 3)
    assert {
        f["image_path"]: f["reason"] for f in failures(derived) if str(images) in f["image_path"]
    } == {
        str(images / "img001.png"): "broken_image",
        str(images / "img002.jpg"): "duplicate_id",
    }
    assert arrays(derived) == before


def test_arrays_made_elsewhere_are_accepted_and_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    path = array_path(derived, "dinov3", "img000")
    path.parent.mkdir(parents=True)
    np.save(path, np.ones(1024, np.float32))
    summary = sketch(images, derived, progress=Lines())
    assert (summary.derived, summary.components["dinov3"].made) == (2, 1)
    assert "1 dinov3 array made elsewhere; keeping it" in capsys.readouterr().err
    assert provenance(derived)["dinov3"]["unknown_arrays"] == 1
    assert (np.load(path) == 1).all()


def test_a_line_that_is_no_record_is_counted_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    sketch(images, derived)
    jsonl = derived / "approved_image_dataset.jsonl"
    with jsonl.open("a") as file:
        file.write("nonsense\n")
    assert sketch(images, derived, progress=Lines()).already_complete == 1
    assert f"{jsonl}: 1 line without a record; kept as is\n" in capsys.readouterr().err
    assert jsonl.read_text().endswith("nonsense\n")


def test_a_provenance_that_cannot_be_read_stops_the_run(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    sketch(images, derived)
    (derived / ".shardwright/provenance.json").write_text("{")
    with pytest.raises(ProvenanceError, match="cannot be read; restore it"):
        sketch(images, derived)


def test_a_dry_run_foresees_everything_and_writes_nothing(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 5), tmp_path / "derived"
    (images / "img004.txt").unlink()
    foreseen = sketch(images, derived, dry_run=True)
    assert not derived.exists()
    balance(foreseen)
    done = sketch(images, derived)
    assert (foreseen.derived, foreseen.failed) == (done.derived, done.failed) == (4, 1)
    assert {n: p.to_make for n, p in foreseen.components.items()} == {
        n: p.made for n, p in done.components.items()
    }
    written = sum(part.bytes_written for part in done.components.values())
    assert foreseen.bytes_needed == written
    assert foreseen.device == "cpu"
    assert foreseen.free_bytes > 0
    before = contents(derived)
    assert sketch(images, derived, dry_run=True).already_complete == 4
    assert contents(derived) == before


def test_the_derive_summary_is_json(tmp_path: Path) -> None:
    summary = sketch(make_images(tmp_path / "images", 1), tmp_path / "derived")
    again = msgspec.json.decode(msgspec.json.encode(summary.to_dict()))
    assert again == summary.to_dict()
    assert 0 <= again["encoder_waited"] <= 1


def test_no_captions_at_all_is_an_error_that_names_the_fix(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2)
    for path in images.glob("*.txt"):
        path.unlink()
    with pytest.raises(InputMissingError, match="no other image has one; give --captions"):
        sketch(images, tmp_path / "derived")
    assert sketch(images, tmp_path / "derived", components=["vae", "dinov3"]).derived == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fit": "stretch"}, "--fit stretch: unknown; choose from original, bucket"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"components": ["clip"]}, "--components clip: no such component"),
        ({"recompute": ["clip"]}, "--recompute clip: no such component"),
        ({"recompute": ["t5"], "components": ["vae"]}, "is not among --components"),
        ({"model": {"clip": "x"}}, "--model clip: no such component"),
        ({"model": {"vae": "x"}}, "a sketch has no model"),
        ({"encoders": "best"}, "choose from pretrained, sketch"),
        ({"device": "gpu"}, "--device gpu: unknown; choose from auto, cpu, cpu:N, cuda, cuda:N"),
        ({"dtype": "float16"}, "--dtype float16: overflows in these models"),
        ({"dtype": {"t6": "tf32"}}, "--dtype t6: no such component"),
        ({"dtype": {"t5": "int4"}}, "--dtype int4: not supported"),
        ({"dtype": "int8"}, "--dtype int8: not supported; choose from float32, tf32 and bfloat16"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    images = make_images(tmp_path / "images", 1)
    with pytest.raises(UsageError, match=message):
        sketch(images, tmp_path / "derived", **options)


def test_a_second_writer_sees_who_holds_the_store(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    with LocalPlace(derived).lease(), pytest.raises(LockedError, match="is writing here"):
        sketch(images, derived)
    assert sketch(images, derived, dry_run=True).failed == 0


def test_the_metadata_can_lie_elsewhere(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 1)
    sketch(images, tmp_path / "derived", jsonl=tmp_path / "meta/all.jsonl")
    assert len((tmp_path / "meta/all.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "derived" / JSONL_NAME).exists()
