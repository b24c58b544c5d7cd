"""``build`` gives what ``derive`` and ``pack`` give, and every other command takes it as that."""

from __future__ import annotations

import gc
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

import shardwright
from shardwright import derive, pack, status, verify
from shardwright.building.inputs import Found
from shardwright.building.work import Work
from shardwright.deriving.captions import Captions
from shardwright.packing.start import Start
from shardwright.summary import Count
from tests.building.builds import (
    RECIPE,
    build,
    listed,
    members,
    records,
    tars,
    write_recipe,
)
from tests.building.tarsets import members_of, picture, write_set, write_tar
from tests.derive.pictures import gradient, make_images, save

TRIMMED = RECIPE.replace('shape = ["tokens", 16]', 'shape = ["tokens", 16]\ntrim = true') + (
    '[component.picture]\nencoder = "picture"\nformat = "webp"\n'
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen images of three buckets, some in a folder below; sizes vary within a bucket."""
    folder = tmp_path_factory.mktemp("build") / "images"
    sizes = ((96, 64), (64, 96), (80, 80), (104, 72), (72, 72))
    make_images(folder, 10, sizes)
    make_images(folder / "more", 14, sizes)
    for number in range(10):
        for path in (folder / "more").glob(f"img{number:03}.*"):
            path.unlink()
    return folder


@pytest.fixture(scope="module")
def built(images: Path) -> Path:
    """The shards of these images."""
    build(images, images.parent / "shards", shard_size=3, fit="bucket")
    return images.parent / "shards"


def packed(images: Path, folder: Path, recipe: Path, **options: Any) -> Path:  # noqa: ANN401
    """Derive and pack, and give the shards."""
    fit = options.pop("fit", None)
    derive(images, derived_dir=folder / "store", recipe=recipe, encoders="sketch", fit=fit)
    output = folder / "packed"
    pack(derived_dir=folder / "store", output_dir=output, workers=1, **options)
    return output


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (RECIPE, {"fit": "original"}),
        (RECIPE, {"fit": "bucket", "shuffle": True, "seed": 3}),
        (TRIMMED, {"fit": "bucket", "split": "val=30%"}),
    ],
    ids=["original", "bucket, shuffled", "trimmed, with a picture, split"],
)
def test_tars_are_byte_for_byte_those_of_derive_and_pack(
    images: Path, tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    recipe = write_recipe(tmp_path, text)
    expected = packed(images, tmp_path, recipe, **options, shard_size=2)
    parts = ("train", "val") if "split" in options else ("",)
    for device in ("cpu", "cpu:2"):
        output = tmp_path / device
        summary = build(
            images, output, recipe=recipe, device=device, shard_size=2, sha256=True, **options
        )
        assert summary.written_samples == 14
        for part in parts:
            assert tars(output / part) == tars(expected / part) != {}
            ours, theirs = listed(output / part), listed(expected / part)
            assert [(e.path, e.xxh3, e.samples) for e in ours.shards] == [
                (e.path, e.xxh3, e.samples) for e in theirs.shards
            ]
            assert (ours.recipe, ours.empty) == (theirs.recipe, theirs.empty)
            assert ours.runs[0].settings == theirs.runs[0].settings
    state = [folder / ".shardwright/index" for folder in (tmp_path / "cpu", tmp_path / "cpu:2")]
    if not parts[0]:
        one, two = ({p.name: p.read_bytes() for p in s.rglob("*.*")} for s in state)
        assert one == two


def test_samples_that_fail_leave_the_others_as_pack_has_them(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    (folder / "img003.png").write_bytes((folder / "img003.png").read_bytes()[:300])
    (folder / "more/img012.txt").unlink()
    recipe = write_recipe(tmp_path)
    expected = packed(folder, tmp_path, recipe)
    summary = build(folder, tmp_path / "built", recipe=recipe)
    assert summary.failed == 2
    assert {name: count.count for name, count in summary.left_out.items()} == {
        "no_caption": 1,
        "broken_image": 1,
    }
    assert members(tmp_path / "built") == members(expected)


def test_the_manifest_says_what_was_built_and_from_what(built: Path, images: Path) -> None:
    (run,) = listed(built).runs
    assert run.is_build
    assert run.build == {"inputs": [str(images)]}
    assert (run.samples, run.shards, run.append, run.jsonl) == (14, 5, False, None)
    assert run.settings.shard_size == 3
    assert run.provenance["components"]["vae"]["settings"]["model"] == "block-dct"


def test_verify_finds_nothing_wrong_in_shards_that_were_built(built: Path) -> None:
    report = verify(built, read_data=True, loaders=True, workers=1)
    assert report.findings == []  # of loaders too, which want one type for all crops
    assert not report.damaged


def test_verify_finds_a_flipped_bit_in_shards_that_were_built(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    tar = copy / listed(copy).shards[0].path
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 1
    tar.write_bytes(data)
    assert verify(copy, read_data=True, workers=1).damaged


def test_open_reads_samples_by_id_and_in_batches(built: Path) -> None:
    dataset = shardwright.open(built)
    assert len(dataset) == 14
    sample = dataset.by_id("img003")
    assert sample["vae.npy"].shape == (4, 8, 12)
    assert sample["json"]["caption"] == "a soft gradient, number 3"
    assert next(iter(dataset.batches(2)))["t5h.npy"].shape == (2, 20, 16)


def test_index_look_and_status_take_them_as_shards_of_pack(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    shardwright.index(copy, for_=["wids", "energon"])
    assert verify(copy, workers=1).findings == []
    seen = shardwright.look(copy, report=tmp_path / "report.html", browser=False)
    assert (seen.kind, seen.samples) == ("shards", 14)
    assert b"img003" in (tmp_path / "report.html").read_bytes()
    images = make_images(tmp_path / "few", 2)
    store, recipe = tmp_path / "store", write_recipe(tmp_path)
    derive(images, derived_dir=store, recipe=recipe, encoders="sketch", fit="bucket")
    (found,) = status(store, output_dir=copy, workers=1).packed.values()
    assert (found.samples, found.ready, found.unfinished) == (14, 2, False)


def test_an_append_names_the_index_commands_to_run_again(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2)
    build(images, tmp_path / "out")
    shardwright.index(tmp_path / "out", for_=["wids"])
    make_images(tmp_path / "images", 3)
    summary = build(images, tmp_path / "out", append=True)
    assert summary.index_commands == [f"shardwright index {tmp_path}/out --for wids"]


# Tars of images.


def test_keys_captions_and_fields_of_img2dataset_are_kept(tmp_path: Path) -> None:
    first = write_set(tmp_path / "laion/00000.tar", [f"00000{n:04}" for n in range(3)])
    second = write_set(tmp_path / "laion/00001.tar", [f"00001{n:04}" for n in range(2)])
    summary = build([first, second], tmp_path / "out")
    assert (summary.inputs, summary.written_samples, summary.failed) == (5, 5, 0)
    urls = [str(path) for path in sorted((tmp_path / "out").glob("*/*.tar"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves files for others to close
        dataset = webdataset.WebDataset(urls, shardshuffle=False).decode()
        found = list(dataset)
        del dataset
        gc.collect()
    assert sorted(sample["__key__"] for sample in found) == [
        "000000000", "000000001", "000000002", "000010000", "000010001",
    ]  # fmt: skip
    sample = next(each for each in found if each["__key__"] == "000000001")
    fields = sample["json"]
    assert fields["caption"] == "the text of 000000001", "the text goes before the JSON"
    assert fields["url"] == "https://x.org/000000001.jpg"
    assert (fields["key"], fields["sha256"]) == ("000000001", "ab" * 32)
    assert (fields["width"], fields["height"]) == (25, 16), "ours, and not those of the JSON"
    assert fields["image_id"] == "000000001"
    assert fields["image_path"] == f"{first}/000000001.jpg"
    assert np.asarray(sample["vae.npy"]).shape == (4, 2, 3)


def test_captions_are_in_the_text_else_in_the_json(tmp_path: Path) -> None:
    def text(caption: object) -> bytes:
        return json.dumps({"caption": caption, "aspect_bucket": "1x1", "crop": 5}).encode()

    tar = write_tar(
        tmp_path / "a.tar",
        [
            *[("both.png", picture()), ("both.txt", b"text"), ("both.json", text("json"))],
            *[("json.png", picture(seed=1)), ("json.json", text("of the json"))],
            *[("text.png", picture(seed=2)), ("text.txt", b" of the text\n")],
            *[("none.png", picture(seed=3)), ("none.json", text(None))],
        ],
    )
    summary = build(tar, tmp_path / "out")
    assert {i: r["caption"] for i, r in records(tmp_path / "out").items()} == {
        "both": "text",
        "json": "of the json",
        "text": "of the text",
    }
    assert list(summary.left_out) == ["no_caption"]
    assert {r["aspect_bucket"] for r in records(tmp_path / "out").values()} == {"96x64"}
    assert not any("crop" in r for r in records(tmp_path / "out").values())


def test_images_in_tars_give_the_arrays_that_their_files_give(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4)
    held = [(p.name, p.read_bytes()) for p in sorted(images.iterdir())]
    write_tar(tmp_path / "tars/a.tar", held[:4])
    write_tar(tmp_path / "tars/sub/b.tar", held[4:])
    build(images, tmp_path / "files")
    build(tmp_path / "tars", tmp_path / "members", device="cpu:2", shard_size=1)
    files, taken = shardwright.open(tmp_path / "files"), shardwright.open(tmp_path / "members")
    for image_id in records(tmp_path / "files"):
        one, other = files.by_id(image_id), taken.by_id(image_id)
        for name in ("dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy"):
            np.testing.assert_array_equal(one[name], other[name])
        assert one["json"] | {"image_path": ""} == other["json"] | {"image_path": ""}


def test_a_folder_of_images_and_tars_and_a_second_folder_are_one_build(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    make_images(one, 2)
    write_set(one / "sub/x.tar", ["x0", "x1"])
    save(two / "y.png", gradient(64, 64))
    (two / "y.txt").write_text("a y")
    summary = build([one, two], tmp_path / "out")
    assert summary.inputs == summary.written_samples == 5
    paths = {i: r["image_path"] for i, r in records(tmp_path / "out").items()}
    assert paths == {
        "img000": f"{one}/img000.png",
        "img001": f"{one}/img001.png",
        "x0": f"{one}/sub/x.tar/x0.jpg",
        "x1": f"{one}/sub/x.tar/x1.jpg",
        "y": f"{two}/y.png",
    }
    assert listed(tmp_path / "out").runs[0].build == {"inputs": [str(one), str(two)]}
    assert not verify(tmp_path / "out", read_data=True, workers=1).damaged


def test_what_only_planning_needs_is_gone_when_the_work_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 3)
    captions = tmp_path / "captions.csv"
    captions.write_text("file_name,caption\nimg001.png,one\n")
    build(images, tmp_path / "out", captions=captions)
    make_images(images, 5)
    run, alive = Work.run, list[object]()

    def running(work: Work, numbers: Any) -> Any:  # noqa: ANN401 - as of Work.run
        gc.collect()
        kinds = (Found, Captions, Start)  # by type(), as isinstance() wakes lazy modules of others
        for each in [each for each in gc.get_objects() if type(each) in kinds]:
            known = each.known if isinstance(each, Start) else {str(each.path)}
            alive.extend([each] if known & {str(images), str(captions), "img000"} else [])
        return run(work, numbers)

    monkeypatch.setattr(Work, "run", running)
    assert build(images, tmp_path / "out", captions=captions, append=True).written_samples == 2
    assert alive == []


# Captions and ids.


def test_a_captions_file_goes_before_texts_and_its_columns_are_kept(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    write_set(images / "t.tar", ["k"])
    captions = tmp_path / "captions.jsonl"
    rows: list[dict[str, object]] = [
        {"file_name": "img001.png", "caption": "from the file", "source": "web", "score": 0.5},
        {"file_name": "nobody.png", "caption": "of no image"},
    ]
    captions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = build(images, tmp_path / "out", captions=captions)
    found = records(tmp_path / "out")
    assert found["img001"]["caption"] == "from the file"
    assert (found["img001"]["source"], found["img001"]["score"]) == ("web", 0.5)
    assert found["img000"]["caption"] == "a soft gradient, number 0"
    assert found["k"]["caption"] == "the text of k"
    assert [count.count for count in summary.unused_rows.values()] == [1]


def test_a_text_that_the_captions_file_replaces_may_be_unreadable(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    for number in (1, 2):
        (images / f"img{number:03}.txt").write_bytes(b"\xff")
    captions = tmp_path / "captions.csv"
    captions.write_text("file_name,caption\nimg001.png,one\n")
    summary = build(images, tmp_path / "out", captions=captions)
    assert {n: c.count for n, c in summary.left_out.items()} == {"caption_not_utf8": 1}
    assert records(tmp_path / "out")["img001"]["caption"] == "one"


def test_rows_of_a_captions_file_match_images_that_have_moved_in_every_input(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        save(folder / f"sub/{folder.name}.png", gradient(64, 64))
    tar = write_tar(tmp_path / "t.tar", [("k.png", picture())])
    captions = tmp_path / "captions.csv"
    captions.write_text(
        "file_name,caption\n/old/one/sub/one.png,first\n/old/two/sub/two.png,second\n"
        "/old/t.tar/k.png,third\n"
    )
    summary = build([*folders, tar], tmp_path / "out", captions=captions)
    assert summary.unused_rows == summary.left_out == {}
    found = {image_id: record["caption"] for image_id, record in records(tmp_path / "out").items()}
    assert found == {"one": "first", "two": "second", "k": "third"}


def test_rows_of_images_that_are_there_or_broken_are_no_rows_without_an_image(
    tmp_path: Path,
) -> None:
    images = make_images(tmp_path / "images", 3)
    captions = tmp_path / "captions.csv"
    names = [*(f"img{number:03}" for number in range(5)), "nobody"]
    captions.write_text("file_name,caption\n" + "".join(f"{n}.png,of {n}\n" for n in names))
    build(images, tmp_path / "out", captions=captions)
    make_images(images, 4)
    (images / "img004.png").write_bytes(b"no picture")
    summary = build(images, tmp_path / "out", captions=captions, append=True)
    assert (summary.written_samples, summary.already_there, summary.failed) == (1, 3, 1)
    assert summary.unused_rows == {"no_such_image": Count(1, "nobody.png")}


def test_ids_come_from_names_paths_or_captions(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 2)
    save(images / "deep/img000.png", gradient(64, 64))
    (images / "deep/img000.txt").write_text("deep")
    write_tar(images / "t.tar", members_of("k"))
    summary = build(images, tmp_path / "name")
    assert {n: c.count for n, c in summary.left_out.items()} == {"duplicate_id": 2}
    assert sorted(records(tmp_path / "name")) == ["img001", "k"]
    build(images, tmp_path / "path", ids="path")
    assert sorted(records(tmp_path / "path")) == [
        "deep%2Fimg000.png", "img000.png", "img001.png", "t%2Fk",
    ]  # fmt: skip
    captions = tmp_path / "captions.csv"
    captions.write_text("file_name,caption,image_id\nimg001.png,one,first\nk.jpg,two,second\n")
    summary = build(images, tmp_path / "captions", ids="captions", captions=captions)
    found = records(tmp_path / "captions")
    assert {i: r["caption"] for i, r in found.items()} == {"first": "one", "second": "two"}
    assert {n: c.count for n, c in summary.left_out.items()} == {"no_image_id": 2}
