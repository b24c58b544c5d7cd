"""What arrays do not show of their pictures and captions: on record, counted, and selectable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from PIL import Image, ImageCms

import shardwright
from shardwright import Count, derive, encoders, status, verify
from shardwright.cli.derive import describe as derived_text
from shardwright.cli.status import describe
from shardwright.errors import UsageError
from shardwright.recipes import Selection
from shardwright.store.facts import Most
from tests.commands import run
from tests.derive.pictures import array_path, gradient, store_records
from tests.derive.profiles import ADOBE, ADOBE_GAMMA, rgb_profile
from tests.derive.test_derive import failures
from tests.derive.test_facts import LONG
from tests.derive.updates import facts

STORE = Path("store")
FITTED = 'extends = "prx"\n[images]\nfit = "bucket"\nbuckets = ["64x64", "128x64"]\n'
LIMITED = 'extends = "prx"\n[images]\nmax_tokens_lost = {}\n'
LOST = 240 - 76  # tokens of the long caption


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()


def painted(width: int, height: int) -> Image.Image:
    return Image.fromarray(gradient(width, height))


def add(name: str, picture: Image.Image, text: str = "soft", **options: Any) -> None:  # noqa: ANN401
    picture.save(f"images/{name}", **options)
    Path("images", name).with_suffix(".txt").write_text(text)


def sketch(text: str = "", **options: Any) -> shardwright.DeriveSummary:  # noqa: ANN401 - of derive
    if text:
        Path("recipe.toml").write_text(text)
        options["recipe"] = "recipe.toml"
    return derive("images", derived_dir="store", **{"encoders": "sketch", **options})


def quality(image_id: str) -> dict[str, Any]:
    names = ("enlarged", "cropped", "decoded", "colour_space")
    known = facts(STORE)[image_id]
    return {name: known[name] for name in names if name in known}


def test_enlargement_crop_size_and_colours_are_beside_the_record_and_not_in_it() -> None:
    add("small.png", painted(40, 40))
    add("wide.png", painted(300, 64).convert("L"))
    add(
        "turned.jpg",
        painted(64, 128),
        exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0",
    )
    sketch(FITTED)
    assert quality("small") == {
        "enlarged": 1.6,
        "cropped": 0.0,
        "decoded": {"width": 40, "height": 40},
        "colour_space": "RGB",
    }
    assert quality("wide") == {
        "enlarged": 1.0,
        "cropped": round(1 - 128 / 300, 4),
        "decoded": {"width": 300, "height": 64},
        "colour_space": "L",
    }
    assert quality("turned")["decoded"] == {"width": 128, "height": 64}, "upright"
    for record in store_records(STORE):
        assert not record.keys() & quality("small").keys()


def test_with_the_original_size_only_the_remainder_is_cropped_and_nothing_enlarged() -> None:
    add("a.png", painted(70, 64))
    sketch()
    assert (quality("a")["enlarged"], quality("a")["cropped"]) == (1.0, round(6 / 70, 4))


def test_a_picture_that_is_decoded_smaller_has_its_size_and_scale_on_record() -> None:
    add("large.jpg", painted(301, 256))
    add("small.jpg", painted(100, 100))
    done = sketch(FITTED, decode="fast")
    assert quality("large")["decoded"] == {"width": 76, "height": 64, "scale": 4}
    assert quality("small")["decoded"] == {"width": 100, "height": 100}
    assert done.quality.decoded_smaller == Most(1, 4, "large")


def test_a_component_that_needs_less_does_not_hide_that_another_was_decoded_in_full() -> None:
    add("large.jpg", painted(1024, 1024))
    sketch(decode="fast")
    assert quality("large")["decoded"] == {"width": 1024, "height": 1024}


def test_the_colour_space_names_the_profile_whatever_it_calls_itself() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    add("named.png", painted(64, 64), icc_profile=srgb)
    add("unnamed.png", painted(64, 64), icc_profile=rgb_profile(ADOBE, ADOBE_GAMMA))
    add("broken.png", painted(64, 64), icc_profile=b"no profile")
    add("print.jpg", painted(64, 64).convert("CMYK"))
    found = sketch().quality.colour_spaces
    assert quality("named")["colour_space"] == "RGB, sRGB built-in", "which is not counted"
    assert found == {
        "RGB, broken profile": Count(1, "broken"),
        "CMYK": Count(1, "print"),
        "RGB, profile without a name": Count(1, "unnamed"),
    }


def test_derive_counts_its_own_pictures_and_status_all_with_the_most_extreme() -> None:
    add("a.png", painted(40, 40))
    add("b.png", painted(32, 32).convert("L"))
    sketch(FITTED)
    add("c.png", painted(96, 64))
    done = derived_text(sketch())
    assert "cropped_images: 1 (at most 33.3%, for example c)" in done
    assert "enlarged_images" not in done, "not by this run"
    found = describe(status("store", workers=1))
    assert "2 images enlarged more than 1.25 times, up to 2.00 (for example b)" in found
    assert "1 image cropped by more than 25%, up to 33% (for example c)" in found
    assert "colour_space L: 1 (for example b)" in found
    assert json.loads(run("status", "store", "--json").stdout)["quality"] == {
        "enlarged": {"images": 2, "most": 2.0, "example": "b"},
        "cropped": {"images": 1, "most": 0.3333, "example": "c"},
        "much_enlarged": 2,
        "much_cropped": 1,
        "decoded_smaller": {"images": 0, "most": 0.0, "example": ""},
        "colour_spaces": {"L": {"count": 1, "example": "b"}},
        "animated": {"count": 0, "example": ""},
    }


def test_of_an_animated_picture_it_is_said_that_the_first_frame_was_taken() -> None:
    more = [painted(64, 64).rotate(90), painted(64, 64).rotate(180)]
    add("gif.gif", painted(64, 64), save_all=True, append_images=more)
    add("webp.webp", painted(64, 64), save_all=True, append_images=more, lossless=True)
    add("png.png", painted(64, 64), save_all=True, append_images=more)
    add("still.webp", painted(64, 64), lossless=True)
    add("mpo.jpg", painted(64, 64), save_all=True, append_images=more[:1], format="MPO")
    done = run("derive", "images", "--derived-dir", "store", "--encoders", "sketch")
    line = "animated_images: 3 (only the first frame, for example gif)"
    assert line in done.stdout.splitlines(), done.stdout
    assert line in run("status", "store").stdout.splitlines()
    assert {name for name, known in facts(STORE).items() if "animated" in known} == {
        "gif", "png", "webp",
    }  # fmt: skip
    vae = [array_path(STORE, "vae", name).read_bytes() for name in ("webp", "png", "still")]
    assert len(set(vae)) == 1, "the first frame"
    built = run("build", "images", "--output-dir", "shards", "--encoders", "sketch")
    assert line in built.stdout.splitlines(), built.stdout


@pytest.mark.parametrize("command", ["derive --derived-dir", "build --output-dir"])
def test_a_bucket_that_is_no_multiple_of_the_latents_is_warned_of(command: str) -> None:
    add("a.png", painted(40, 40))
    verb, flag = command.split()
    for buckets, warned in (('"60x64", "128x64"', True), ('"64x64", "128x64"', False)):
        Path("recipe.toml").write_text(
            f'extends = "prx"\n[images]\nfit = "bucket"\nbuckets = [{buckets}]\n'
        )
        where = (flag, f"out{warned}", "--encoders", "sketch", "--recipe", "recipe.toml")
        done = run(verb, "images", *where)
        assert done.returncode == 0
        assert warned is (
            "warning: 1 bucket has a side that is no multiple of 8, for example 60x64: vae leaves "
            "out the last pixels there. Choose multiples of 8 in [images] buckets or "
            "step\n" in done.stderr
        ), done.stderr


def test_of_many_colour_spaces_the_most_frequent_are_listed() -> None:
    for mode in ("L", "LA", "RGBA", "P", "1", "I;16"):
        add(f"{mode}.png", painted(64, 64).convert("L" if mode == "I;16" else mode).convert(mode))
    add("L2.png", painted(64, 64).convert("L"))
    sketch()
    found = status("store", workers=1)
    lines = [line for line in describe(found).splitlines() if "colour_space" in line]
    assert lines[0] == "colour_space L: 2 (for example L)"
    assert "and 1 more colour space (--json lists all)" in describe(found)
    assert len(found.quality.colour_spaces) == 6


def test_facts_of_an_earlier_version_stay_as_they_are_and_count_as_unknown() -> None:
    add("old.png", painted(40, 40).convert("L"))
    sketch(FITTED)
    path = STORE / ".shardwright/facts.jsonl"
    old = {name: value for name, value in facts(STORE)["old"].items() if name not in quality("old")}
    line = msgspec.json.encode(old)
    path.write_bytes(line + b"\n")
    add("new.png", painted(32, 32))
    sketch()
    assert path.read_bytes().startswith(line + b"\n")
    assert status("store").quality.enlarged == Most(1, 2.0, "new")
    assert sketch(recompute=["dinov3"]).swapped == ["dinov3"]
    assert quality("old").keys() == {"decoded", "colour_space"}, "the latent is as it was"


def test_the_facts_say_what_the_limits_of_the_recipe_compare() -> None:
    add("a.png", painted(40, 70))
    sketch(FITTED)
    at = quality("a")
    assert (at["enlarged"], at["cropped"]) == (1.6, round(3 / 7, 4))
    for key, value, reason in (
        ("max_upscale", 1.6, None),
        ("max_upscale", 1.59, "above_max_upscale"),
        ("max_crop", 0.4286, None),
        ("max_crop", 0.4285, "above_max_crop"),
    ):
        limits = f"{FITTED}{key} = {value}\n"
        Path("recipe.toml").write_text(limits)
        done = derive(
            "images", derived_dir="other", recipe="recipe.toml", encoders="sketch", dry_run=True
        )
        assert list(done.left_out) == ([reason] if reason else [])


def test_a_caption_that_loses_too_many_tokens_leaves_its_image_out_without_a_trace() -> None:
    add("long.png", painted(64, 64), LONG)
    add("short.png", painted(64, 64))
    done = sketch(LIMITED.format(LOST - 1))
    assert (done.images_found, done.derived, done.failed) == (2, 1, 0)
    example = f"images/long.png: {LOST} tokens lost by t5, and max_tokens_lost is {LOST - 1}"
    assert done.left_out == {"above_max_tokens_lost": Count(1, example)}
    assert done.truncated["t5"].captions == 0
    assert [record["image_id"] for record in store_records(STORE)] == ["short"]
    assert not any(array_path(STORE, name, "long").exists() for name in ("dinov3", "vae", "t5"))
    assert failures(STORE) == []
    assert verify(STORE).findings == []
    assert status("store").total_records == 1


def test_a_picture_that_is_left_out_for_its_caption_is_not_decoded() -> None:
    Path("images/long.png").write_bytes(b"broken")
    Path("images/long.txt").write_text(LONG)
    done = sketch(LIMITED.format(0))
    assert (list(done.left_out), done.failed) == (["above_max_tokens_lost"], 0)


def test_a_caption_at_the_limit_is_taken() -> None:
    add("long.png", painted(64, 64), LONG)
    assert sketch(LIMITED.format(LOST)).derived == 1


def test_the_next_run_needs_no_encoder_to_leave_the_same_image_out() -> None:
    add("long.png", painted(64, 64), LONG)
    add("short.png", painted(64, 64))
    limited = LIMITED.format(0)
    assert sketch(limited, dry_run=True).derived == 2, "not known before the first run"
    first = sketch(limited)
    with mock.patch.object(encoders, "load", side_effect=AssertionError):
        for again in (sketch(dry_run=True), sketch()):
            assert again.left_out == first.left_out
            assert (again.already_complete, again.derived, again.failed) == (1, 0, 0)


@pytest.mark.parametrize("change", ["caption", "limit", "tokens", "row", "no limit"])
def test_an_image_that_was_left_out_is_looked_at_again_when_its_reason_may_be_gone(
    change: str,
) -> None:
    add("long.png", painted(64, 64), LONG)
    limited, given = LIMITED.format(0), {}
    assert sketch(limited).derived == 0
    if change == "caption":
        Path("images/long.txt").write_text("short")
    elif change == "limit":
        limited = LIMITED.format(LOST)
    elif change == "no limit":
        limited = 'extends = "prx"\n'
    elif change == "tokens":
        limited += '[component.t5]\ntokens = 300\nshape = ["tokens", 1024]\n'
    else:
        Path("captions.jsonl").write_text('{"file_name": "long.png", "text": "short"}\n')
        given["captions"] = "captions.jsonl"
    done = sketch(limited, **given)
    assert (done.derived, done.left_out) == (1, {})
    assert "left_out" not in facts(STORE)["long"]
    assert sketch(**given).already_complete == 1


def test_another_caption_that_is_too_long_leaves_it_out_again() -> None:
    add("long.png", painted(64, 64), LONG)
    sketch(LIMITED.format(0))
    Path("images/long.txt").write_text(LONG + LONG)
    done = sketch()
    assert f"{LOST + 240} tokens lost" in done.left_out["above_max_tokens_lost"].example
    assert facts(STORE)["long"]["tokens_lost"] == {"t5": LOST + 240}


def test_an_image_on_record_stays_whatever_its_caption_loses() -> None:
    add("long.png", painted(64, 64), LONG)
    sketch()
    done = sketch(LIMITED.format(0), recompute=["t5"])
    assert (done.swapped, done.left_out) == (["t5"], {})


def test_a_limit_of_tokens_without_a_component_that_reads_captions_is_refused() -> None:
    add("a.png", painted(64, 64))
    with pytest.raises(UsageError, match=r"\[images\] max_tokens_lost: has no effect, because no"):
        sketch('extends = "prx"\ncomponents = ["vae"]\n[images]\nmax_tokens_lost = 3\n')


def test_a_recipe_without_a_limit_of_tokens_is_written_as_earlier_versions_did() -> None:
    plain = b'{"max_upscale":null,"max_crop":null,"min_side":5}'
    assert msgspec.json.encode(Selection(min_side=5)) == plain
    limited = Selection(min_side=5, max_tokens_lost=0)
    assert msgspec.json.encode(limited) == plain[:-1] + b',"max_tokens_lost":0}'
    for one in (limited, Selection(min_side=5)):
        assert msgspec.json.decode(msgspec.json.encode(one), type=Selection) == one
    assert replace(limited, max_tokens_lost=None) == Selection(min_side=5) != limited
