"""Derive with recipes of the user's own: what a sample consists of, and what changes mean."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright import derive, pack, status, verify
from shardwright.encoders.base import Tokens
from shardwright.errors import ProvenanceError, ShardwrightError, UsageError
from shardwright.progress import Lines
from shardwright.recipes import Component, Mask, find
from tests.derive.pictures import gradient, make_images, save, store_records

PATHS = '[paths]\nimages = "images"\nstore = "store"\nshards = "shards"\n'
SMALL = """
extends = "prx"
[images]
fit = "bucket"
buckets = ["64x64", "96x64", "64x96"]
[component.vae]
shape = [4, "height/8", "width/8"]
[component.t5]
tokens = 20
shape = ["tokens", 16]
"""


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_images(Path("images"), 4)


def write(text: str, path: str = "shardwright.toml") -> str:
    Path(path).write_text(f"{text}\n{PATHS}")
    return path


def sketch(**options: Any) -> shardwright.DeriveSummary:  # noqa: ANN401 - of derive
    return derive(**{"encoders": "sketch", **options})


def contents(*folders: str) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for folder in folders
        for path in sorted(Path("store", folder).iterdir())
    }


def checked(components: Iterable[str] = ()) -> shardwright.Dataset:
    """Pack, verify everything, and open the shards."""
    assert verify("store", read_data=True, workers=1).findings == []
    assert pack(overwrite=True, workers=1).skipped_incomplete == 0
    assert verify("shards", read_data=True, against="store", workers=1).findings == []
    return shardwright.open("shards")


def test_a_recipe_in_the_working_folder_is_followed_by_every_command() -> None:
    write(SMALL)
    assert sketch().derived == 4
    assert status().ready_records == 4
    dataset = checked()
    assert dataset.buckets == {"64x64": 1, "64x96": 1, "96x64": 2}
    sample = dataset.by_id("img000")
    assert sample["vae.npy"].shape == (4, 8, 12)
    assert sample["t5h.npy"].shape == (20, 16)
    assert sample["t5m.npy"].tolist() == [1] * 7 + [0] * 13


def test_later_commands_start_from_what_the_store_has_recorded() -> None:
    write(SMALL, "mine.toml")
    sketch(recipe="mine.toml", derived_dir="store", images="images")
    make_images(Path("images"), 6)
    again = derive("images", derived_dir="store")  # no --recipe, --encoders or --fit
    assert (again.derived, again.already_complete) == (2, 4)
    assert np.load("store/vae_latents/img005.npy").shape == (4, 8, 8)
    pack(derived_dir="store", output_dir="shards")
    assert shardwright.open("shards").buckets == {"64x64": 2, "64x96": 2, "96x64": 2}


def test_a_store_is_extended_from_three_components_to_five_and_the_old_arrays_stay() -> None:
    write(SMALL)
    sketch()
    before = contents("dinov3", "vae_latents", "t5_hidden")
    times = [Path(path).stat().st_ctime_ns for path in before]
    write(
        SMALL
        + '[component.patches]\nencoder = "dinov3"\nmodel = "x/y"\noutput = "patches"\n'
        + 'shape = [16, 12]\n[component.picture]\nencoder = "picture"\nformat = "webp"\n'
    )
    with pytest.raises(ProvenanceError, match="patches: added; picture: added"):
        pack()
    done = derive()
    assert {n: (p.there, p.made) for n, p in done.components.items()} == {
        "dinov3": (4, 0),
        "vae": (4, 0),
        "t5": (4, 0),
        "patches": (0, 4),
        "picture": (0, 4),
    }
    assert contents("dinov3", "vae_latents", "t5_hidden") == before
    assert [Path(path).stat().st_ctime_ns for path in before] == times, "not even written again"
    dataset = checked()
    assert dataset[0]["patches.npy"].shape == (16, 12)
    with Image.open(io.BytesIO(dataset.by_id("img000")["picture.webp"])) as picture:
        assert (picture.format, picture.size) == ("WEBP", (96, 64))


def test_a_component_that_is_taken_out_of_the_recipe_is_no_longer_packed() -> None:
    write(SMALL)
    sketch()
    write(SMALL.replace('"prx"', '"prx"\ncomponents = ["vae", "t5"]'))
    with pytest.raises(ProvenanceError, match="dinov3: removed"):
        pack()
    derive()
    assert "dinov3.npy" not in checked().field_names
    assert Path("store/dinov3/img000.npy").exists(), "nothing is deleted"


def test_a_component_that_comes_back_with_another_shape_does_not_mix_with_its_old_arrays() -> None:
    write(SMALL)
    sketch()
    write(SMALL.replace('"prx"', '"prx"\ncomponents = ["vae", "t5"]'))
    derive()
    write(SMALL + "[component.dinov3]\nshape = [512]\n")
    with pytest.raises(ProvenanceError, match=r"dinov3: shape was \[1024\], now \[512\]"):
        derive()
    assert derive(recompute=["dinov3"]).swapped == ["dinov3"]
    assert checked()[0]["dinov3.npy"].shape == (512,)


def test_a_text_that_comes_back_made_from_another_caption_does_not_mix() -> None:
    write(SEVERAL)
    sketch(captions=give_captions())
    write(SMALL)
    derive()
    write(SEVERAL.replace('field = "caption_short"', ""))
    with pytest.raises(ProvenanceError, match="short: field was caption_short, now caption"):
        derive(captions=give_captions())


def test_a_component_does_not_take_over_the_folder_of_another() -> None:
    write(SMALL)
    sketch()
    text = (
        'encoder = "t5"\nmodel = "x/y"\nfolder = "t5_hidden"\ntokens = 20\nshape = ["tokens", 16]'
    )
    write(
        SMALL.partition("[component.t5]")[0].replace('"prx"', '"prx"\ncomponents = ["vae", "text"]')
        + f"[component.text]\n{text}\n"
    )
    with pytest.raises(ProvenanceError, match="text: its folder holds the arrays of t5"):
        derive()
    assert derive(recompute=["text"]).swapped == ["text"]
    write(SMALL)
    with pytest.raises(ProvenanceError, match="t5: its folder holds the arrays of text"):
        derive()


def cut_short(recipe: str, **options: Any) -> None:  # noqa: ANN401 - of derive
    """Begin a recompute that one image holds up."""
    write(recipe)
    held = {path: path.read_bytes() for path in Path("images").glob("img001.*")}
    for path in held:
        path.write_bytes(b"\xff broken")
    assert derive(**options).unfinished
    for path, data in held.items():
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("tokens = 30", "tokens was 40, now 30"),
        ("tokens = 40\ntrim = true", "trim was false, now true"),
    ],
)
def test_a_recompute_is_not_continued_with_another_recipe(changed: str, named: str) -> None:
    write(SMALL)
    sketch()
    cut_short(SMALL.replace("tokens = 20", "tokens = 40"), recompute=["t5"])
    write(SMALL.replace("tokens = 20", changed))
    with pytest.raises(ProvenanceError, match=f"of t5 is unfinished, with .*t5: {named}"):
        derive(recompute=["t5"])
    write(SMALL.replace("tokens = 20", "tokens = 40"))
    assert derive(recompute=["t5"]).swapped == ["t5"]
    assert checked()[0]["t5h.npy"].shape == (40, 16)


def test_a_recompute_is_not_continued_with_other_buckets() -> None:
    write(SMALL)
    sketch()
    cut_short(SMALL.replace('"96x64"', '"112x64"'), recompute=["dinov3", "vae"])
    write(SMALL.replace('"96x64"', '"128x64"'))
    with pytest.raises(ProvenanceError, match="112x64 removed, 128x64 added"):
        derive(recompute=["dinov3", "vae"])


def test_new_buckets_wait_for_every_image_whatever_the_fit_is() -> None:
    original = SMALL.replace('fit = "bucket"', 'fit = "original"')
    write(original)
    sketch()
    cut_short(original.replace('"96x64"', '"112x64"'), recompute=["vae"])
    assert {record["aspect_bucket"] for record in store_records(Path("store"))} == {
        *("64x64", "96x64", "64x96")
    }
    assert derive(recompute=["vae"]).swapped == ["vae"]
    pack(workers=1)
    assert shardwright.open("shards").buckets == {"64x64": 1, "64x96": 1, "112x64": 2}


def test_the_fit_of_one_component_is_not_changed_for_all() -> None:
    original = SMALL.replace('fit = "bucket"', 'fit = "original"') + PICTURE.format("png")
    write(original)
    sketch(components=["vae", "t5", "dinov3"])
    write(original.replace('fit = "original"', 'fit = "bucket"'))
    with pytest.raises(ProvenanceError, match="vae: fit was original, now bucket"):
        derive(components=["picture"])


def test_pictures_that_come_back_after_other_buckets_do_not_mix() -> None:
    write(SMALL + PICTURE.format("png"))
    sketch()
    write(SMALL.replace('"96x64"', '"112x64"'))
    derive(recompute=["dinov3", "vae"])
    write(SMALL.replace('"96x64"', '"112x64"') + PICTURE.format("png"))
    with pytest.raises(ProvenanceError, match=r"picture: buckets was .*96x64.*, now .*112x64"):
        derive()
    assert derive(recompute=["picture"]).swapped == ["picture"]
    checked()


def test_everything_to_recompute_is_named_at_once() -> None:
    write(SMALL)
    sketch()
    write(SMALL.replace("tokens = 20", "tokens = 24").replace('"bucket"', '"original"'))
    with pytest.raises(ProvenanceError) as refused:
        derive()
    assert "vae: fit was bucket, now original" in str(refused.value)
    assert "dinov3: fit was bucket, now original" in str(refused.value)
    assert "--recompute dinov3,vae,t5;" in str(refused.value)
    assert derive(recompute=["dinov3", "vae", "t5"]).swapped == ["dinov3", "vae", "t5"]


def test_a_fit_that_a_flag_chose_does_not_stop_packing() -> None:
    shardwright.recipe("prx", init="shardwright.toml")
    derive("images", derived_dir="data/derived", fit="bucket", encoders="sketch")
    assert pack(workers=1).written_samples == 4
    assert status(workers=1).ready_records == 4


def test_status_and_verify_say_when_the_shards_are_of_another_recipe() -> None:
    write(SMALL)
    sketch()
    checked()
    write(SMALL + PICTURE.format("jpg"))
    derive()
    assert "other settings (picture: added)" in status(workers=1).next_reason
    (finding,) = verify("shards", against="store", workers=1).findings
    assert (finding.kind, finding.damage) == ("other_recipe", False)
    assert "(picture: added)" in finding.what


def test_a_refused_run_writes_nothing_at_all() -> None:
    write(SMALL)
    sketch()
    before = sorted(Path("store").rglob("*"))
    write(SMALL.replace("tokens = 20", "tokens = 40") + POSE)
    with pytest.raises(ProvenanceError, match="nothing was written"):
        derive()
    assert sorted(Path("store").rglob("*")) == before


def test_another_number_of_tokens_is_refused_and_then_a_new_generation() -> None:
    write(SMALL)
    sketch()
    old = contents("t5_hidden", "vae_latents")
    write(SMALL.replace("tokens = 20", "tokens = 40"))
    with pytest.raises(ProvenanceError, match="t5: tokens was 20, now 40") as refused:
        derive()
    assert "--recompute t5" in str(refused.value)
    assert contents("t5_hidden", "vae_latents") == old
    done = derive(recompute=["t5"])
    assert done.swapped == ["t5"]
    assert contents("vae_latents") == {p: d for p, d in old.items() if "vae" in p}
    sample = checked()[0]
    assert (sample["t5h.npy"].shape, sample["t5m.npy"].shape) == ((40, 16), (40,))
    assert shardwright.open("shards").empty["t5h.npy"].shape == (40, 16)
    assert derive().derived == 0


def test_the_old_arrays_can_be_packed_until_all_of_the_new_recipe_are_made() -> None:
    write(SMALL)
    sketch()
    write(SMALL.replace("tokens = 20", "tokens = 40"))
    Path("images/img001.png").rename("elsewhere.png")
    Path("images/img001.png").write_bytes(b"broken")
    every = ["dinov3", "vae", "t5"]
    assert derive(recompute=every).unfinished == every
    Path("shardwright.toml").unlink()
    pack(derived_dir="store", output_dir="old")
    assert shardwright.open("old")[0]["t5h.npy"].shape == (20, 16)
    Path("elsewhere.png").rename("images/img001.png")
    done = derive("images", derived_dir="store", recompute=every)  # as it was begun
    assert done.swapped == every
    pack(derived_dir="store", output_dir="new")
    assert shardwright.open("new")[0]["t5h.npy"].shape == (40, 16)


def test_other_buckets_are_refused_and_then_recomputed() -> None:
    write(SMALL)
    sketch()
    write(SMALL.replace('"96x64", "64x96"', '"112x64"'))
    with pytest.raises(
        ProvenanceError,
        match=r"96x64 removed, 64x96 removed, 112x64 added\); .*--recompute dinov3,vae;",
    ):
        derive()
    derive(recompute=["dinov3", "vae"])
    assert checked().buckets == {"64x64": 2, "112x64": 2}
    assert {record["aspect_bucket"] for record in store_records(Path("store"))} == {
        "64x64",
        "112x64",
    }


def test_a_failed_or_refused_run_leaves_the_recorded_recipe_as_it_was() -> None:
    write(SMALL)
    sketch()
    recorded = Path("store/.shardwright/recipe.json").read_bytes()
    write(SMALL.replace("shape = [4", "shape = [8"))
    with pytest.raises(ProvenanceError, match=r"vae: shape was \[4, height/8, width/8\], now \[8"):
        derive()
    assert Path("store/.shardwright/recipe.json").read_bytes() == recorded


def test_trimmed_text_keeps_only_the_tokens_of_the_mask() -> None:
    write(SMALL + "trim = true\n")
    sketch()
    record = store_records(Path("store"))[0]
    assert sum(record["t5_attention_mask"]) == 7
    assert np.load("store/t5_hidden/img000.npy").shape == (7, 16)
    dataset = checked()
    assert dataset.empty["t5h.npy"].shape == (1, 16)
    (batch,) = dataset.bucket("96x64").batches(2)
    assert batch["t5h.npy"].shape == (2, 7, 16)
    assert batch["t5m.npy"].tolist() == [[1] * 7] * 2


def test_trimming_saves_most_of_the_text_of_real_captions() -> None:
    words = "a quiet harbour at dawn with fishing boats in still water under pale pink clouds"
    for number in range(56):
        save(Path(f"images/long{number}.png"), gradient(16, 16, number))
        text = " ".join((words.split() * 5)[: 5 + number])
        Path(f"images/long{number}.txt").write_text(text)
    full = '[component.t5]\ntokens = 512\nshape = ["tokens", 64]\n'
    for name, more in (("full", ""), ("trimmed", "trim = true\n")):
        write(f'extends = "prx"\ncomponents = ["t5"]\n{full}{more}', f"{name}.toml")
        sketch(recipe=f"{name}.toml", derived_dir=name)
    sizes = {
        name: sum(path.stat().st_size for path in Path(name, "t5_hidden").iterdir())
        for name in ("full", "trimmed")
    }
    assert sizes["trimmed"] < 0.08 * sizes["full"], sizes


def test_bfloat16_is_stored_as_documented_and_read_as_numbers() -> None:
    write(SMALL.replace("[component.vae]", '[component.vae]\ndtype = "bfloat16"'))
    sketch()
    write(SMALL, "half.toml")
    sketch(recipe="half.toml", derived_dir="half")
    bits = np.load("store/vae_latents/img000.npy")
    assert bits.dtype == np.uint16
    values = checked().by_id("img000")["vae.npy"]
    assert values.dtype == np.float32
    assert (values.view(np.uint32) >> 16 == bits).all()
    exact = np.load("half/vae_latents/img000.npy").astype(np.float32)
    assert np.abs(values - exact).max() <= 2**-8 * np.abs(exact).max()


SEVERAL = (
    SMALL
    + '[component.short]\nencoder = "t5"\nmodel = "x/y"\nfield = "caption_short"\n'
    + 'tokens = 8\nshape = ["tokens", 16]\n'
)


def give_captions(**changes: Any) -> Path:  # noqa: ANN401 - columns
    rows = [
        {
            "file_name": f"img{n:03}.png",
            "text": f"a long text, number {n}",
            "caption_short": f"number {n}",
            "score": n / 2,
            "tags": ["soft", str(n)],
            "width": 5,
            **changes,
        }
        for n in range(4)
    ]
    path = Path("captions.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_several_captions_are_several_components_and_other_columns_are_kept() -> None:
    write(SEVERAL)
    sketch(captions=give_captions())
    record = store_records(Path("store"))[1]
    assert record["caption"] == "a long text, number 1"
    assert record["caption_short"] == "number 1"
    assert sum(record["short_mask"]) == 3
    assert (record["score"], record["tags"], record["width"]) == (0.5, ["soft", "1"], 64)
    assert "file_name" not in record
    sample = checked().by_id("img001")
    assert sample["json"]["caption_short"] == "number 1"
    assert not np.array_equal(sample["short.npy"], sample["t5h.npy"][:8])
    assert not sample["short.npy"][3:].any(), "made from the short text"


def test_components_of_two_captions_are_made_one_after_the_other() -> None:
    write(SEVERAL)
    captions = give_captions()
    for name in ("t5", "short", "vae", "dinov3"):
        done = sketch(captions=captions, components=[name])
        assert (done.derived, done.components[name].made) == (4, 4)
    assert derive().derived == 0
    checked()


def test_an_image_without_one_of_its_captions_is_a_failure_that_names_it() -> None:
    write(SEVERAL)
    captions = give_captions()
    captions.write_text(captions.read_text().replace('"number 2"', '""'))
    assert sketch(captions=captions).failed_by_reason["no_caption"].count == 1
    failure = json.loads(Path("store/.shardwright/failures.jsonl").read_text().splitlines()[0])
    assert failure["detail"] == "no caption_short in --captions or the record"


def test_new_columns_reach_records_that_are_complete() -> None:
    write(SEVERAL)
    sketch(captions=give_captions())
    arrays = contents("t5_hidden", "short")
    done = derive(captions=give_captions(score=7, licence="CC0"))
    assert (done.derived, [part.made for part in done.components.values()]) == (4, [0] * 4)
    record = store_records(Path("store"))[2]
    assert (record["score"], record["licence"], record["caption_short"]) == (7, "CC0", "number 2")
    assert contents("t5_hidden", "short") == arrays
    assert derive(captions=give_captions(score=7, licence="CC0")).derived == 0


def test_only_the_component_of_an_edited_caption_is_recomputed() -> None:
    write(SEVERAL)
    sketch(captions=give_captions())
    arrays = contents("t5_hidden")
    captions = give_captions(caption_short="something else")
    assert derive(captions=captions).kept_captions == 4
    assert derive(captions=captions, recompute=["short"]).swapped == ["short"]
    record = store_records(Path("store"))[0]
    assert (record["caption"], record["caption_short"]) == (
        "a long text, number 0",
        "something else",
    )
    assert contents("t5_hidden") == arrays
    checked()


def test_a_recipe_without_captions_needs_none_and_keeps_those_there_are() -> None:
    Path("images/img002.txt").unlink()
    write('extends = "prx"\ncomponents = ["dinov3"]\n')
    assert sketch().derived == 4
    captions = [record["caption"] for record in store_records(Path("store"))]
    assert captions == ["a soft gradient, number 0", "a soft gradient, number 1", "", captions[3]]
    assert "t5_attention_mask" not in store_records(Path("store"))[0]
    assert checked()[0].keys() == {"__key__", "json", "dinov3.npy"}
    assert derive().derived == 0


def test_a_recipe_of_captions_alone_encodes_no_picture() -> None:
    write('extends = "prx"\ncomponents = ["t5"]\n')
    sketch()
    assert checked()[0].keys() == {"__key__", "json", "t5h.npy", "t5m.npy"}
    assert store_records(Path("store"))[0]["width"] == 96
    assert not Path("store/vae_latents").exists()


POSE = '[component.pose]\ndtype = "float16"\nshape = ["any", 3]\n'


def test_arrays_of_other_tools_are_counted_checked_and_packed() -> None:
    write(SMALL + POSE)
    first = sketch()
    assert (first.components["pose"].there, first.components["pose"].elsewhere) == (0, True)
    assert status().skipped_by_reason["pose_missing"].count == 4
    assert status().next_reason == "4 pose arrays missing, which your own tool makes"
    for number in range(4):
        np.save(f"store/pose/img{number:03}.npy", np.zeros((number + 1, 3), np.float16))
    assert derive().components["pose"].there == 4
    dataset = checked()
    assert dataset.by_id("img003")["pose.npy"].shape == (4, 3)
    (batch,) = dataset.bucket("96x64").batches(2)
    assert sorted(array.shape for array in batch["pose.npy"]) == [(1, 3), (4, 3)]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((0, 3), np.float16), "pose_wrong_shape"),
        (np.zeros((2, 4), np.float16), "pose_wrong_shape"),
        (np.zeros((2, 3), np.float32), "pose_wrong_dtype"),
    ],
)
def test_an_array_of_another_tool_that_does_not_fit_is_skipped_with_its_reason(
    array: np.ndarray[Any, Any], reason: str
) -> None:
    write(SMALL + POSE)
    sketch()
    for number in range(4):
        np.save(f"store/pose/img{number:03}.npy", np.ones((1, 3), np.float16))
    np.save("store/pose/img002.npy", array)
    assert pack().skipped_by_reason[reason].count == 1
    assert [finding.kind for finding in verify("store").findings] == [reason]


def test_a_free_axis_that_claims_to_be_huge_is_damage_and_takes_no_memory() -> None:
    write(SMALL + POSE)
    sketch()
    for number in range(4):
        np.save(f"store/pose/img{number:03}.npy", np.ones((1, 3), np.float16))
    header = io.BytesIO()
    fields = {"descr": "<f2", "fortran_order": False, "shape": (10**12, 3)}
    np.lib.format.write_array_header_1_0(header, fields)
    Path("store/pose/img001.npy").write_bytes(header.getvalue() + bytes(6))
    assert pack().skipped_by_reason["pose_truncated"].count == 1


def test_derive_refuses_to_make_what_has_no_encoder() -> None:
    write(SMALL + POSE)
    with pytest.raises(UsageError, match="--components pose: the recipe has no encoder for it"):
        sketch(components=["pose"])


PICTURE = '[component.picture]\nencoder = "picture"\nformat = "{}"\n'


def test_a_picture_of_the_right_size_and_format_is_copied_byte_for_byte() -> None:
    save(Path("images/exact.jpg"), gradient(64, 96, 9), quality=80)
    save(Path("images/large.jpg"), gradient(128, 192, 9), quality=80)
    for name in ("exact", "large"):
        Path(f"images/{name}.txt").write_text(name)
    write(SMALL + PICTURE.format("jpg"))
    sketch()
    files = {path.stem: path for path in Path("store/picture").iterdir()}
    assert files["exact"].read_bytes() == Path("images/exact.jpg").read_bytes()
    assert files["large"].read_bytes() != Path("images/large.jpg").read_bytes()
    for path in files.values():
        with Image.open(path) as picture:
            assert picture.format == "JPEG"
            assert picture.size in {(64, 64), (96, 64), (64, 96)}
    assert checked().by_id("exact")["picture.jpg"] == files["exact"].read_bytes()


def test_a_lossless_picture_shows_what_the_latent_shows() -> None:
    write(SMALL + PICTURE.format("png"))
    sketch()
    with Image.open("store/picture/img002.png") as picture:
        pixels = np.array(picture)
    source = Image.fromarray(gradient(80, 80, 2)).resize((64, 64), Image.Resampling.LANCZOS)
    assert np.array_equal(pixels, np.array(source))


def test_the_selection_leaves_images_out_and_counts_the_reason() -> None:
    save(Path("images/tiny.png"), gradient(20, 20))
    save(Path("images/soft.png"), gradient(40, 40))
    save(Path("images/wide.png"), gradient(400, 64))
    for name in ("tiny", "soft", "wide"):
        Path(f"images/{name}.txt").write_text(name)
    limits = "min_side = 32\nmax_upscale = 1.5\nmax_crop = 0.5\n"
    write(SMALL.replace("[component.vae]", f"{limits}[component.vae]", 1))
    for _ in range(2):
        done = sketch()
        assert {name: count.count for name, count in done.left_out.items()} == {
            "below_min_side": 1,
            "above_max_upscale": 1,
            "above_max_crop": 1,
        }
        assert (done.images_found, done.derived + done.already_complete, done.failed) == (7, 4, 0)
    assert done.left_out["above_max_upscale"].example == (
        "images/soft.png: enlarged 1.60 times, and max_upscale is 1.5"
    )
    assert checked().buckets == {"64x64": 1, "64x96": 1, "96x64": 2}


def test_a_stricter_selection_keeps_what_is_in_the_store_but_shards_follow_it() -> None:
    write(SMALL)
    sketch()
    stricter = SMALL.replace("[component.vae]", "min_side = 70\n[component.vae]", 1)
    write(stricter.replace("tokens = 20", "tokens = 24"))
    save(Path("images/new.png"), gradient(60, 60))
    Path("images/new.txt").write_text("new")
    done = derive(recompute=["t5", "vae"])
    assert (done.swapped, done.left_out["below_min_side"].count) == (["vae", "t5"], 1)
    assert (done.derived, done.failed) == (4, 0)
    assert [sample["json"]["width"] for sample in checked()] == [80]


def test_a_selection_that_can_have_no_effect_is_refused() -> None:
    write('extends = "prx"\n[images]\nmax_crop = 0.5\n')
    with pytest.raises(UsageError, match=r"\[images\] max_crop: has no effect with fit = "):
        sketch()
    assert sketch(fit="bucket").derived == 4


def test_several_resolutions_stand_side_by_side() -> None:
    save(Path("images/big.png"), gradient(300, 280))
    Path("images/big.txt").write_text("large")
    write(
        'extends = "prx"\ncomponents = ["vae"]\n[images]\nfit = "bucket"\n'
        "resolution = [64, 128]\nstep = 16\n"
    )
    sketch()
    assert checked().buckets == {"64x64": 1, "80x48": 2, "48x80": 1, "128x128": 1}


def test_the_empty_caption_travels_with_the_store_and_the_shards() -> None:
    write(SMALL)
    sketch()
    dataset = checked()
    end = np.load("store/t5_hidden/img000.npy")[6]
    assert np.array_equal(dataset.empty["t5h.npy"][0], end)
    assert not dataset.empty["t5h.npy"][1:].any()
    assert dataset.empty["t5m.npy"].tolist() == [1] + [0] * 19
    assert dataset.components["vae"].scaling_factor == 1.0


def test_verify_finds_damage_in_the_empty_caption_of_a_store() -> None:
    write(SMALL)
    sketch()
    array = np.load("store/.shardwright/empty/t5h.npy")
    array[3, 3] = np.nan
    np.save("store/.shardwright/empty/t5h.npy", array)
    assert verify("store", workers=1).findings == []
    (finding,) = verify("store", read_data=True, workers=1).findings
    assert (finding.kind, finding.damage) == ("empty_invalid", True)
    np.save("store/.shardwright/empty/t5h.npy", array[:5])
    assert [f.kind for f in verify("store", workers=1).findings] == ["empty_invalid"]


def test_an_empty_caption_that_was_deleted_is_made_again_by_the_next_derive() -> None:
    sketch(images="images", derived_dir="store")
    for path in Path("store/.shardwright/empty").iterdir():
        path.unlink()
    done = derive("images", derived_dir="store")
    assert done.derived == 0
    assert np.load("store/.shardwright/empty/t5h.npy").shape == (77, 1024)


class Words:
    """A text encoder of one's own, which misbehaves."""

    device = "cpu"

    def __init__(self, component: Component, kept: int | None = None, value: float = 1) -> None:
        self.component, self.kept, self.value = component, kept, value

    def prepare(self, caption: str) -> Tokens:
        length = self.component.tokens
        kept = len(caption.split()) if self.kept is None else self.kept
        mask = np.array([1] * kept + [0] * (length - kept), np.uint8)
        return Tokens(np.arange(length), mask)

    def encode(self, ids: Any, mask: Any) -> Any:  # noqa: ANN401 - arrays
        made = np.repeat(ids[..., None], 16, axis=2).astype(np.float32)
        made[mask.sum(axis=1) == 0] *= self.value
        return made

    def describe(self) -> dict[str, Any]:
        return {"encoder": "words"}


TRIMMED = """
extends = "prx"
components = ["t5"]
[component.t5]
tokens = 20
shape = ["tokens", 16]
trim = true
"""


def words(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - of Words
    return {"t5": Words(find("shardwright.toml").recipe.by_name["t5"], **options)}


def test_a_caption_of_which_no_token_is_kept_is_a_failure() -> None:
    write(TRIMMED)
    done = derive(encoders=words(kept=0))
    assert done.failed_by_reason["not_finite"].count == 4
    failure = json.loads(Path("store/.shardwright/failures.jsonl").read_text().splitlines()[0])
    assert failure["detail"] == "t5: the mask keeps no token"


@pytest.mark.parametrize(
    ("recipe", "value", "why"),
    [
        (TRIMMED, 1, "the mask keeps no token"),
        (TRIMMED.replace("trim = true", ""), np.nan, "NaN or infinity for float16"),
    ],
)
def test_an_empty_caption_that_cannot_be_stored_is_left_out_with_a_warning(
    recipe: str, value: float, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(recipe)
    derive(encoders=words(value=value), progress=Lines())
    assert f"t5: no embedding of the empty caption: {why}" in capsys.readouterr().err
    assert not Path("store/.shardwright/empty/t5h.npy").exists()
    with pytest.raises(ShardwrightError):
        checked().empty["t5h.npy"]


class Careless:
    """An image encoder of one's own, which gives what it should not."""

    device = "cpu"

    def __init__(self, component: Component, gives: object = None, says: object = None) -> None:
        self.component, self.gives = component, gives
        self.says = {"encoder": "careless"} if says is None else says

    def prepare(self, picture: Any) -> Any:  # noqa: ANN401 - arrays
        return picture

    def encode(self, batch: Any) -> Any:  # noqa: ANN401 - anything
        return self.gives

    def describe(self) -> Any:  # noqa: ANN401 - anything
        return self.says


def careless(**options: Any) -> Any:  # noqa: ANN401 - of Careless, as if it were an encoder
    write('extends = "prx"\ncomponents = ["dinov3"]\n')
    return Careless(find("shardwright.toml").recipe.by_name["dinov3"], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gives": [1, 2]}, "dinov3: encode gave list for 1 inputs"),
        ({"gives": np.zeros((2, 1024))}, r"dinov3: encode gave \(2, 1024\) for 1 inputs"),
        ({"says": {"a": object()}}, r"dinov3: describe\(\) of the encoder gave .*JSON"),
        ({"says": 5}, r"dinov3: describe\(\) of the encoder gave 5"),
    ],
)
def test_what_an_encoder_of_ones_own_may_not_give_is_an_error_of_ours(
    options: dict[str, Any], message: str
) -> None:
    encoder = careless(**options)
    with pytest.raises(ShardwrightError, match=message):
        derive(encoders={"dinov3": encoder})
    assert not Path("store").exists()


def test_an_encoder_cannot_change_the_picture_that_others_see() -> None:
    encoder = careless()
    encoder.prepare = lambda picture: picture.fill(0)
    encoder.encode = lambda batch: np.zeros((len(batch), 1024), np.float32)
    with pytest.raises(ShardwrightError, match=r"dinov3: the encoder failed: .*read-only"):
        derive(encoders={"dinov3": encoder})


def test_a_mask_of_other_values_is_an_error_before_any_work() -> None:
    write(TRIMMED)
    encoders = words()
    plain = encoders["t5"].prepare
    encoders["t5"].prepare = lambda text: replace(plain(text), mask=plain(text).mask * 2)
    with pytest.raises(ShardwrightError, match="t5: the encoder gave a mask of other values"):
        derive(encoders=encoders)


def test_a_mask_of_another_length_is_an_error_before_any_work() -> None:
    write(TRIMMED)
    other = find("shardwright.toml").recipe.by_name["t5"]
    other = replace(other, mask=Mask("t5_attention_mask", "t5m.npy", 7), shape=(7, 16))
    with pytest.raises(ShardwrightError, match="t5: the encoder gave a mask of 7 tokens, expected"):
        derive(encoders={"t5": Words(other)})
    assert not Path("store").exists()


def test_a_picture_that_its_format_cannot_hold_is_a_failure() -> None:
    save(Path("images/long.png"), gradient(17_000, 16))
    Path("images/long.txt").write_text("long")
    write('extends = "prx"\ncomponents = ["picture"]\n' + PICTURE.format("webp"))
    done = sketch()
    assert (done.derived, done.failed_by_reason["not_prepared"].count) == (4, 1)


def test_code_that_only_the_store_names_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "code")
    Path("code").mkdir()
    Path("code/trap.py").write_text("raise SystemExit('imported')")
    named = '[component.mine]\nencoder = "trap:Mine"\ndtype = "float32"\nshape = [3]\n'
    write(SMALL + named)
    sketch()
    Path("shardwright.toml").unlink()
    make_images(Path("images"), 5)
    only: dict[str, Any] = {"components": ["mine"], "recompute": ["mine"]}
    with pytest.raises(UsageError, match="encoder trap:Mine is named only by the data"):
        derive("images", derived_dir="store", encoders="pretrained", **only)
    pack(derived_dir="store", output_dir="shards")
    assert verify("shards", read_data=True, against="store", workers=1).findings == []
    assert len(shardwright.open("shards")) == 4


def test_a_sketch_of_a_component_without_a_shape_asks_for_it() -> None:
    write('extends = "prx"\n[component.vae]\nmodel = "some/model"\n')
    with pytest.raises(UsageError, match=r"shardwright.toml: \[component.vae\] shape: is missing"):
        sketch()


def test_flags_override_the_recipe() -> None:
    write(SMALL)
    sketch(fit="original")
    assert np.load("store/vae_latents/img002.npy").shape == (4, 10, 10)
    with pytest.raises(ProvenanceError, match="fit was original, now bucket"):
        derive()
