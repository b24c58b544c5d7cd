"""Shards built from shards: named components are made again, and all others copied bit by bit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardwright
from shardwright import (
    BuildSummary,
    DamageError,
    InputMissingError,
    ProvenanceError,
    ShardExistsError,
    ShardwrightError,
    SourceChangedError,
    UsageError,
)
from shardwright.building.samples import Opened
from shardwright.cli.main import main
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests.building.builds import RECIPE, add_up, build, ledger, listed, members, write_recipe
from tests.derive.pictures import gradient, make_images, save
from tests.faults import Killed, KillingDisk, WatchedDisk, contents

PICTURE = """
[component.picture]
encoder = "picture"
format = "png"
"""
PATCHES = """
[component.patches]
encoder = "dinov3"
model = "facebook/dinov3-vitl16-pretrain-lvd1689m"
output = "patches"
shape = ["height/16", "width/16", 8]
"""
SHORT = RECIPE.replace("[images]", '[images]\nfit = "bucket"').replace("= 20", "= 4") + PICTURE
LONG = SHORT.replace("tokens = 4", "tokens = 31")
COUNT = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, recipes, and the shards of the images by each of them."""
    folder = tmp_path_factory.mktemp("again")
    images = make_images(folder / "images", COUNT)
    save(images / "large.png", gradient(200, 120, 9))
    (images / "large.txt").write_text("a picture that is cut to its bucket")
    for name, text in {"short": SHORT, "long": LONG, "more": LONG + PATCHES}.items():
        recipe = write_recipe(folder, text, f"{name}.toml")
        build(images, folder / name, recipe=recipe, shard_size=2)
    return folder


def again(folder: Path, output: Path, recipe: str | None = "long", **options: Any) -> BuildSummary:  # noqa: ANN401
    """Build from the shards that have few tokens."""
    given = {"from_": folder / "short", "components": ["t5"], **options}
    given["recipe"] = recipe and folder / f"{recipe}.toml"
    summary = shardwright.build(output_dir=output, **given)
    add_up(summary)
    return summary


def shard_files(output: Path) -> dict[str, bytes | None]:
    """Give all files of a shard folder but those that say what it was made from."""
    found = contents(output)
    ours = (".shardwright/build", ".shardwright/built", ".shardwright/manifest.json")
    return {name: data for name, data in found.items() if not name.startswith(ours)}


def changed(path: Path, member: bytes) -> None:
    """Flip a bit of a member of a tar."""
    data = bytearray(path.read_bytes())
    at = data.index(member) + 512  # its header comes first
    data[at + 200] ^= 1
    path.write_bytes(data)


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder / "short", to))


def test_another_text_length_gives_the_shards_that_the_images_give(
    folder: Path, tmp_path: Path
) -> None:
    summary = again(folder, tmp_path / "new")
    assert (summary.written_samples, summary.inputs, summary.failed) == (COUNT + 1, COUNT + 1, 0)
    assert summary.copied == ["dinov3", "vae", "picture"]
    assert shard_files(tmp_path / "new") == shard_files(folder / "long")
    before = {name: data for tar in members(folder / "short").values() for name, data in tar}
    for tar in members(tmp_path / "new").values():
        for name, data in tar:
            assert (data == before[name]) is not name.endswith((".t5h.npy", ".t5m.npy"))


def test_a_component_is_added_from_the_picture_member(folder: Path, tmp_path: Path) -> None:
    again(folder, tmp_path / "new", "more", components=["t5", "patches"])
    assert shard_files(tmp_path / "new") == shard_files(folder / "more")
    assert [c.name for c in listed(tmp_path / "new").samples_of().components][-1] == "patches"


def test_pictures_that_keep_their_size_give_the_arrays_of_the_images(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4)
    before = write_recipe(tmp_path, RECIPE + PICTURE, "before.toml")
    after = write_recipe(tmp_path, RECIPE + PICTURE + PATCHES, "after.toml")
    build(images, tmp_path / "old", recipe=before)
    build(images, tmp_path / "images-again", recipe=after)
    options: dict[str, Any] = {
        "from_": tmp_path / "old",
        "components": ["patches", "dinov3"],
        "recipe": after,
    }
    add_up(shardwright.build(output_dir=tmp_path / "new", **options))
    assert shard_files(tmp_path / "new") == shard_files(tmp_path / "images-again")


def test_several_devices_give_the_same_shards(folder: Path, tmp_path: Path) -> None:
    summary = again(folder, tmp_path / "new", device="cpu:2", sha256=True)
    assert summary.device == "cpu:2"
    found = shard_files(tmp_path / "new")
    assert found.pop(".shardwright/SHA256SUMS")
    indexes = {name for name in found if name.endswith(".idx")}  # which have the SHA-256 too
    expected = shard_files(folder / "long")
    assert {n: d for n, d in found.items() if n not in indexes} == {
        n: d for n, d in expected.items() if n not in indexes
    }


def test_without_a_recipe_components_are_made_as_before(folder: Path, tmp_path: Path) -> None:
    again(folder, tmp_path / "new", None, components=["t5", "vae"])
    assert shard_files(tmp_path / "new") == shard_files(folder / "short")


def test_a_run_that_is_killed_anywhere_ends_as_one_without_a_break(
    folder: Path, tmp_path: Path
) -> None:
    with using(disk := WatchedDisk()):
        again(folder, tmp_path / "whole", device="cpu")
    expected = contents(tmp_path / "whole")
    calls = len(disk.calls)
    for at in range(3, calls, calls // 12):
        output = tmp_path / f"killed-{at}"
        with pytest.raises(Killed), using(KillingDisk(at)):
            again(folder, output, device="cpu")
        again(folder, output, device="cpu")
        assert contents(output) == expected, at


def test_an_interrupted_run_goes_on_only_as_it_began(folder: Path, tmp_path: Path) -> None:
    source = copy(folder, tmp_path / "source")
    with using(disk := WatchedDisk()):
        again(folder, tmp_path / "whole", from_=source)
    with pytest.raises(Killed), using(KillingDisk(len(disk.calls) // 2)):
        again(folder, tmp_path / "new", from_=source)
    with pytest.raises(UsageError) as refused:
        again(folder, tmp_path / "new", from_=source, components=["t5", "vae"])
    assert refused.value.what == (
        "holds an interrupted build with other settings (--components was t5 and is vae,t5)"
    )
    done = listed(source)
    runs = [msgspec.structs.replace(done.runs[0], tool="another")]
    manifest.save_manifest(source, msgspec.structs.replace(done, runs=runs))
    with pytest.raises(UsageError, match=r"--from was \.\./source \(xxh3 .*\) and is \.\./source"):
        again(folder, tmp_path / "new", from_=source)


def test_all_parts_of_a_split_are_built(folder: Path, tmp_path: Path) -> None:
    for name in ("short", "long"):
        options = {"recipe": folder / f"{name}.toml", "split": "val=40%", "shard_size": 2}
        build(folder / "images", tmp_path / name, **options)
    summary = again(folder, tmp_path / "new", from_=tmp_path / "short")
    assert set(summary.parts) == {"train", "val"}
    for part in ("train", "val"):
        found = shard_files(tmp_path / "new" / part)
        assert found == shard_files(tmp_path / "long" / part)
        settings = listed(tmp_path / "new" / part).runs[0].settings
        assert settings == listed(tmp_path / "long" / part).runs[0].settings
    with pytest.raises(UsageError) as refused:
        again(folder, tmp_path / "newer", from_=tmp_path / "short/val")
    assert str(refused.value) == (
        f"{tmp_path}/short/val: is the part val of a split, and --from takes all of it; give the "
        "folder above it"
    )


def test_several_runs_become_one_and_an_append_goes_on(folder: Path, tmp_path: Path) -> None:
    images, new = tmp_path / "images", tmp_path / "new"
    make_images(images, 3)
    build(images, tmp_path / "old", recipe=folder / "short.toml", shard_size=2)
    make_images(images, COUNT)
    build(images, tmp_path / "old", recipe=folder / "short.toml", shard_size=2, append=True)
    again(folder, new, from_=tmp_path / "old")
    (run,) = listed(new).runs
    assert (run.samples, run.append, run.build) == (COUNT, False, {"from": "../old"})
    make_images(images, COUNT + 2)
    summary = build(images, new, recipe=folder / "long.toml", append=True)
    assert (summary.written_samples, summary.already_there) == (2, COUNT)
    assert shardwright.verify(new, workers=1).findings == []


def test_a_damaged_member_leaves_its_sample_out(folder: Path, tmp_path: Path) -> None:
    source = copy(folder, tmp_path / "source")
    changed(source / "bucket_96x64/shard-000000.tar", b"img000.vae.npy")
    changed(source / "bucket_96x64/shard-000001.tar", b"img006.json")
    changed(source / "bucket_64x96/shard-000000.tar", b"img004.t5h.npy")  # which is not copied
    summary = again(folder, tmp_path / "new", from_=source)
    assert (summary.inputs, summary.written_samples, summary.failed) == (COUNT + 1, COUNT - 1, 2)
    damaged = "its bytes have changed since they were written"
    assert ledger(tmp_path / "new") == [
        {
            "image_id": "img000",
            "image_path": str(folder / "images/img000.png"),
            "reason": "damaged",
            "detail": f"vae.npy: {damaged}",
        },
        {
            "image_id": "img006",
            "image_path": f"{source}/bucket_96x64/shard-000001.tar/img006.json",
            "reason": "damaged",
            "detail": f"json: {damaged}",
        },
    ]
    assert shardwright.verify(tmp_path / "new", read_data=True, workers=1).findings == []


def test_a_damaged_picture_is_not_encoded(folder: Path, tmp_path: Path) -> None:
    source = copy(folder, tmp_path / "source")
    changed(source / "bucket_96x64/shard-000000.tar", b"img000.picture.png")
    again(folder, tmp_path / "new", "short", from_=source, components=["dinov3"])
    (left,) = ledger(tmp_path / "new")
    assert (left["image_id"], left["reason"]) == ("img000", "damaged")
    assert left["detail"] == "picture.png: its bytes have changed since they were written"


def test_samples_without_a_caption_are_left_out(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4)
    (images / "img001.txt").unlink()
    wordless = 'components = ["dinov3", "picture"]' + SHORT.partition("[component.vae]")[0]
    recipe = write_recipe(tmp_path, wordless + PICTURE, "wordless.toml")
    text = wordless.replace('"picture"]', '"picture", "t5"]') + PICTURE
    text += '[component.t5]\ntokens = 4\nshape = ["tokens", 16]\n'
    write_recipe(tmp_path, text, "worded.toml")
    build(images, tmp_path / "short", recipe=recipe)
    summary = again(tmp_path, tmp_path / "new", "worded")
    assert (summary.written_samples, summary.failed) == (3, 1)
    (left,) = ledger(tmp_path / "new")
    assert left == {
        "image_id": "img001",
        "image_path": str(images / "img001.png"),
        "reason": "no_caption",
        "detail": "its record has no caption",
    }


def test_the_limit_of_lost_tokens_leaves_out_as_in_a_build_from_images(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4)
    (images / "img002.txt").write_text("word " * 30)
    for name, text in {"old": LONG, "few": SHORT}.items():
        limited = text.replace("[images]", "[images]\nmax_tokens_lost = 20")
        build(images, tmp_path / name, recipe=write_recipe(tmp_path, limited, f"{name}.toml"))
    summary = again(tmp_path, tmp_path / "new", "few", from_=tmp_path / "old")
    assert (summary.written_samples, summary.failed) == (3, 0)
    assert [each["reason"] for each in ledger(tmp_path / "new")] == ["above_max_tokens_lost"]
    assert ledger(tmp_path / "new") == ledger(tmp_path / "few")
    assert shard_files(tmp_path / "new") == shard_files(tmp_path / "few")


def test_a_shard_that_changes_under_the_run_is_noticed(folder: Path, tmp_path: Path) -> None:
    source = copy(folder, tmp_path / "source")
    done = listed(source)
    opened = Opened(source, done.shards[0], done.samples_of())
    path = source / done.shards[0].path
    changed(path, f"{opened.index.head.ids[0]}.vae.npy".encode())
    with pytest.raises(SourceChangedError) as noticed:
        opened.read(0, "vae.npy")
    assert str(noticed.value) == f"{path}: changed while it was read (written to); run again"
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(SourceChangedError, match=r"another size"):
        Opened(source, done.shards[0], done.samples_of())
    with pytest.raises(DamageError) as damaged:
        again(folder, tmp_path / "new", from_=source)
    assert str(damaged.value) == (
        f"{path}: is missing or incomplete; copy it here again, or pack again"
    )


def test_what_is_made_from_a_picture_that_lost_says_so(folder: Path, tmp_path: Path) -> None:
    text = SHORT.replace('format = "png"', 'format = "jpg"')
    recipe = write_recipe(tmp_path, text, "jpg.toml")
    build(folder / "images", tmp_path / "jpg", recipe=recipe)
    options = {"from_": tmp_path / "jpg", "components": ["dinov3", "t5"]}
    again(tmp_path, tmp_path / "new", "jpg", **options)
    made = {
        n: e["settings"]
        for n, e in listed(tmp_path / "new").runs[0].provenance["components"].items()
    }
    assert made["dinov3"]["from"] == "picture.jpg"
    assert "from" not in made["t5"] | made["vae"] | made["picture"]
    others = make_images(tmp_path / "others", 1)
    with pytest.raises(ProvenanceError, match=r"dinov3: from was picture\.jpg, now none"):
        build(others, tmp_path / "new", recipe=recipe, append=True)


def test_verify_open_and_the_command_take_the_result(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, source = tmp_path / "new", folder / "short"
    words = ["build", "--from", str(source), "--components", "t5", "--output-dir", str(new)]
    assert main([*words, "--recipe", str(folder / "long.toml"), "--dry-run"]) == 0
    assert not new.exists()
    said = capsys.readouterr().out
    assert f"from {source}: made t5; copied dinov3, vae, picture" in said
    assert main([*words, "--recipe", str(folder / "long.toml")]) == 0
    assert main([*words, "--recipe", str(folder / "long.toml")]) == 0
    assert f"nothing to build: 8 samples are already in {new}" in capsys.readouterr().out
    assert shardwright.verify(new, read_data=True, workers=1).findings == []
    dataset = shardwright.open(new)
    sample = dataset.by_id("large")
    assert sample["t5h.npy"].shape == dataset.empty["t5h.npy"].shape == (31, 16)
    assert sample["t5m.npy"].sum() > 4


def test_what_does_not_go_together_is_refused(folder: Path, tmp_path: Path) -> None:
    new, short = tmp_path / "new", folder / "short"
    keeps = "--from keeps the samples as they are in its shards; leave it out"
    write_recipe(folder, LONG.replace("[4, ", "[8, "), "vae.toml")
    write_recipe(folder, LONG.replace('"64x64", ', ""), "buckets.toml")
    write_recipe(folder, LONG.replace('"bucket"', '"original"', 1), "fit.toml")
    write_recipe(folder, LONG.replace("[images]", "[images]\nmin_side = 8"), "limit.toml")
    complete = PATCHES.replace("patches", "seen", 1).replace('"patches"', '"pooled"')
    complete = complete.replace('"height/16", "width/16", 8', "8") + 'fit = "original"\n'
    write_recipe(folder, LONG + complete, "seen.toml")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"images": folder / "images"}, f"IMAGES: {keeps}"),
        ({"captions": "captions.jsonl"}, f"--captions: {keeps}"),
        ({"ids": "path"}, f"--ids: {keeps}"),
        ({"fit": "bucket"}, f"--fit: {keeps}"),
        ({"bucket": ["64x64"]}, f"--bucket: {keeps}"),
        ({"split": "val=5%"}, f"--split: {keeps}"),
        ({"limit": 0}, f"--limit: {keeps}"),
        ({"shuffle": True}, f"--shuffle: {keeps}"),
        ({"append": True}, f"--append: {keeps}"),
        ({"overwrite": True}, f"--overwrite: {keeps}"),
        (
            {"from_": None},
            "--components without --from; give the shards to build from",
        ),
        (
            {"components": []},
            "--from without --components; name the components to make again with --components",
        ),
        (
            {"components": ["clip"]},
            "--components clip: unknown; choose from dinov3, vae, t5, picture",
        ),
        ({"model": {"vae": "x"}}, "--model vae: unknown; choose from t5"),
        (
            {"recipe": "vae"},
            f"{folder}/vae.toml: has other components than the shards of --from (vae: shape was "
            "[4, height/8, width/8], now [8, height/8, width/8]); add them: --components t5,vae; "
            "or leave them as they are",
        ),
        (
            {"recipe": "more"},
            f"{folder}/more.toml: has other components than the shards of --from (patches: added); "
            "add them: --components t5,patches; or leave them as they are",
        ),
        (
            {"recipe": "buckets"},
            f"{folder}/buckets.toml: has another [images] than the shards of --from (buckets: "
            "64x64 removed); leave it as it is, or build from the images",
        ),
        (
            {"recipe": "fit"},
            f"{folder}/fit.toml: has another [images] than the shards of --from (fit was bucket, "
            "now original); leave it as it is, or build from the images",
        ),
        (
            {"recipe": "limit"},
            f"{folder}/limit.toml: has another [images] than the shards of --from (min_side was "
            "not given, now 8); leave it as it is, or build from the images",
        ),
        (
            {"recipe": "seen", "components": ["t5", "seen"]},
            f"{short}: seen sees complete pictures, and picture.png shows only what fits the "
            "bucket; build from the images",
        ),
    ]
    for options, text in cases:
        with pytest.raises(UsageError) as refused:
            again(folder, new, **options)
        assert str(refused.value) == text
    assert not new.exists()


def test_shards_that_cannot_be_built_from_are_refused(folder: Path, tmp_path: Path) -> None:
    new, source = tmp_path / "new", copy(folder, tmp_path / "source")
    with pytest.raises(InputMissingError) as missing:
        again(folder, new, from_=tmp_path / "none")
    give = "give the folder of finished shards"
    assert str(missing.value) == f"{tmp_path}/none: no such folder; {give}"
    for output, how in ((source, "is"), (source / "new", "is in"), (tmp_path, "holds")):
        with pytest.raises(UsageError) as refused:
            again(folder, output, from_=source)
        assert str(refused.value) == (
            f"{output}: {how} the folder of --from, which stays as it is; give another --output-dir"
        )
    with pytest.raises(ShardExistsError) as exists:
        again(folder, folder / "long", from_=source)
    assert str(exists.value) == (
        f"{folder}/long/bucket_64x64/shard-000000.tar: already exists, so nothing was written; "
        "give another --output-dir"
    )
    (source / ".shardwright/manifest.json").unlink()
    with pytest.raises(UsageError) as refused:
        again(folder, new, from_=source)
    assert str(refused.value) == f"{source}: has no manifest; {give}"
    os.mkfifo(source / ".shardwright/manifest.json")
    with pytest.raises(ShardwrightError, match=r"manifest\.json: is a pipe, not a regular file"):
        again(folder, new, from_=source)
    plain = write_recipe(tmp_path, SHORT.removesuffix(PICTURE), "plain.toml")
    build(folder / "images", tmp_path / "plain", recipe=plain)
    with pytest.raises(UsageError) as refused:
        again(tmp_path, new, "plain", from_=tmp_path / "plain", components=["dinov3"])
    assert str(refused.value) == (
        f"{tmp_path}/plain: dinov3 is made from pictures, and the shards have no picture member; "
        "build from the images"
    )
    assert not new.exists()


def test_components_made_in_two_ways_are_not_copied_as_one(folder: Path, tmp_path: Path) -> None:
    source = copy(folder, tmp_path / "source")
    done = listed(source)
    components = json.loads(json.dumps(done.runs[0].provenance))
    components["components"]["vae"]["settings"]["version"] = 2
    other = msgspec.structs.replace(done.runs[0], provenance=components, samples=0, shards=0)
    entries = [msgspec.structs.replace(e, run=int(n == 0)) for n, e in enumerate(done.shards)]
    manifest.save_manifest(
        source, msgspec.structs.replace(done, runs=[*done.runs, other], shards=entries)
    )
    with pytest.raises(ProvenanceError) as refused:
        again(folder, tmp_path / "new", from_=source)
    assert str(refused.value) == (
        f"{source}: its runs made components in different ways (vae: version was 1, now 2); add "
        "them to --components, or build from the images"
    )
