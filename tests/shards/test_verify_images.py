"""Samples recomputed from their images: equal, outdated, damaged, or not compared."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from PIL import Image

import shardwright
from shardwright import UsageError
from shardwright.cli.main import main
from shardwright.shards.format import index
from shardwright.store.findings import Finding, VerifyReport
from tests.building.tarsets import write_set
from tests.commands import run
from tests.derive.encoders.models import make_vae
from tests.derive.pictures import gradient, make_images, save, sketch
from tests.shards.test_resealed import put, reseal

TINY = ((24, 16), (16, 24), (32, 16))
FITTED = """
extends = "prx"
[images]
fit = "bucket"
buckets = ["64x64", "96x64", "64x96"]
[component.picture]
encoder = "picture"
"""
OLD = 1_000_000_000  # a time before all shards


def aged(folder: Path) -> Path:
    """Make images older than the shards that are made of them."""
    for path in folder.rglob("*"):
        os.utime(path, (OLD, OLD))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return aged(make_images(tmp_path / "images", 6, TINY))


@pytest.fixture
def shards(images: Path, tmp_path: Path) -> Path:
    return built(images, tmp_path / "shards")


def built(images: Path, output: Path, **options: Any) -> Path:  # noqa: ANN401 - of build
    given = {"encoders": "sketch", "shard_size": 2, **options}
    shardwright.build(images, output_dir=output, device="cpu", **given)
    return output


def verify(shards: Path, images: Path, **options: Any) -> VerifyReport:  # noqa: ANN401
    return shardwright.verify(shards, against=images, workers=1, **options)


def faults(report: VerifyReport) -> list[Finding]:
    """Leave out that the gradients in both parts of a split are alike."""
    return [one for one in report.findings if one.kind != "alike_in_two_parts"]


def equal(report: VerifyReport, recomputed: int) -> bool:
    return (faults(report), report.not_compared, report.recomputed) == ([], 0, recomputed)


def replaced(shards: Path, shard: str, sample: int, suffix: str, change: bytes) -> str:
    """Change the last bytes of a member, seal the shard again, and give the sample's id."""
    found = index.load(shards, shard)
    column = found.head.members.index(suffix)
    offset, size, _ = found.member(sample, column)
    data = bytearray((shards / shard).read_bytes())
    data[offset + size - len(change) : offset + size] = change
    (shards / shard).write_bytes(data)
    place = (sample * len(found.head.members) + column) * 3
    found.table[place + 2] = xxhash.xxh3_64_intdigest(bytes(data[offset : offset + size]))
    xxh3 = xxhash.xxh3_128_hexdigest(bytes(data))
    head = msgspec.structs.replace(found.head, xxh3=xxh3)
    written = index.encode(msgspec.structs.replace(found, head=head))
    (shards / index.index_name(shard)).write_bytes(written)

    def note(document: dict[str, Any]) -> None:
        number = [entry["path"] for entry in document["shards"]].index(shard)
        put(f"shards.{number}.xxh3", xxh3)(document)
        put(f"shards.{number}.index_xxh3", xxhash.xxh3_64_hexdigest(written))(document)

    reseal(shards, note)
    return found.head.ids[sample]


def first_shard(shards: Path) -> str:
    return index.shards(shards)[0]


def test_what_build_and_pack_have_made_is_equal_to_the_bit(images: Path, tmp_path: Path) -> None:
    assert equal(verify(built(images, tmp_path / "built"), images), 6)
    sketch(images, tmp_path / "derived")
    shardwright.pack(derived_dir=tmp_path / "derived", output_dir=tmp_path / "packed", workers=1)
    report = verify(tmp_path / "packed", images)
    assert equal(report, 6)
    assert not report.read_data


def test_crops_and_pictures_are_recomputed_as_they_were_made(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(images / "photo.jpg", gradient(200, 130, 9))
    (images / "photo.txt").write_text("a photograph")
    recipe = tmp_path / "fitted.toml"
    recipe.write_text(FITTED)
    shards = built(aged(images), tmp_path / "shards", recipe=recipe, decode="fast")
    monkeypatch.chdir(tmp_path)  # no recipe is given: the manifest has it
    assert equal(verify(shards, images), 7)
    shard = next(name for name in index.shards(shards) if "photo" in ids_of(shards, name))
    number = ids_of(shards, shard).index("photo")
    suffix = index.load(shards, shard).head.members[-1]
    replaced(shards, shard, number, suffix, b"\0" * 40)
    found = verify(shards, images).findings
    assert [(one.kind, one.member) for one in found] == [("image_differs", suffix)]


def ids_of(shards: Path, shard: str) -> list[str]:
    return index.load(shards, shard).head.ids


def test_samples_are_spread_over_shards_and_parts(tmp_path: Path) -> None:
    images = aged(make_images(tmp_path / "images", 40, TINY))
    shards = built(images, tmp_path / "shards", split="val=30%")
    assert equal(verify(shards, images, samples=10), 10)
    assert equal(verify(shards, images), 16)
    assert equal(verify(shards, images, samples=1000), 40)
    changed = images / f"{ids_of(shards / 'val', first_shard(shards / 'val'))[0]}.png"
    save(changed, gradient(24, 16, 99))
    (finding,) = faults(verify(shards, images, samples=1000))
    assert (finding.kind, finding.sample) == ("outdated", changed.stem)
    assert finding.file.startswith("val/bucket_")


def test_tars_are_read_where_they_are_or_under_another_folder(tmp_path: Path) -> None:
    for number in range(2):
        keys = [f"{number}{key:04}" for key in range(3)]
        write_set(tmp_path / f"tars/some/{number:05}.tar", keys)
    tars = aged(tmp_path / "tars")
    shards = built(tars, tmp_path / "shards")
    assert equal(verify(shards, tars), 6)
    shutil.move(tars / "some", tmp_path / "moved")
    assert equal(verify(shards, tmp_path / "moved"), 6)
    report = verify(shards, tmp_path / "moved/00001.tar")
    assert report.recomputed == 3
    assert report.not_compared == 9
    (finding,) = report.findings
    assert finding.what == (
        f"has no image of 3 samples, for example {tars}/some/00000.tar/00000.jpg"
    )


def test_an_image_with_an_id_of_its_path_is_found_by_how_that_ends(
    tmp_path: Path,
) -> None:
    images = tmp_path / "images"
    make_images(images / "a", 2, TINY)
    make_images(images / "b", 2, TINY[1:])
    shards = built(aged(images), tmp_path / "shards", ids="path")
    shutil.copytree(images, tmp_path / "elsewhere/copy")
    shutil.rmtree(images / "a")
    assert equal(verify(shards, tmp_path / "elsewhere/copy"), 4)
    report = verify(shards, tmp_path / "elsewhere")  # where two have each name
    assert (report.recomputed, report.not_compared) == (0, 12)
    shutil.rmtree(tmp_path / "elsewhere/copy/b")
    for against in ("elsewhere", "elsewhere/copy", "elsewhere/copy/a"):
        report = verify(shards, tmp_path / against)  # those of b are not taken for those of a
        assert (report.recomputed, report.not_compared, report.outdated) == (2, 6, 0)


def test_an_image_at_its_recorded_path_is_taken_before_others_that_end_alike(
    tmp_path: Path,
) -> None:
    images = make_images(tmp_path / "images", 2, TINY)
    for number, path in enumerate(sorted(images.glob("*.png"))):
        save(images / "images" / path.name, gradient(40, 30, 7 + number))
        (images / "images" / path.with_suffix(".txt").name).write_text("one below")
    assert equal(verify(built(aged(images), tmp_path / "shards", ids="path"), images), 4)


def test_images_that_were_moved_into_other_folders_are_found_by_name(
    shards: Path, images: Path
) -> None:
    for path in images.glob("*.png"):
        (images / path.stem).mkdir()
        path.rename(images / path.stem / path.name)
    assert equal(verify(shards, images), 6)
    shutil.copytree(images / "img000", images / "copy")
    report = verify(shards, images)
    assert (report.recomputed, report.not_compared) == (5, 3)


def test_a_changed_image_makes_its_sample_outdated(
    shards: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(images / "img002.png", gradient(32, 16, 77))
    report = verify(shards, images)
    assert (report.damaged, report.outdated, report.recomputed) == (False, 1, 6)
    (finding,) = report.findings
    assert (finding.kind, finding.sample) == ("outdated", "img002")
    assert finding.what.startswith(f"{images}/img002.png has changed since (dinov3.npy differs by")
    assert finding.fix == "build again with --overwrite --shard-size 2"
    assert main(["verify", str(shards), "--against", str(images), "--workers", "1"]) == 3
    said = capsys.readouterr().out
    assert "to update them, build again with --overwrite --shard-size 2" in said
    assert "OUTDATED: 1 sample; no damage" in said
    assert "\n  recomputed 6 of 6 samples from images: 1 differs\n" in said


def test_an_image_of_another_size_is_outdated_whatever_its_time(shards: Path, images: Path) -> None:
    save(images / "img001.png", gradient(24, 32, 1))
    os.utime(images / "img001.png", (OLD, OLD))
    (finding,) = verify(shards, images).findings
    assert finding.kind == "outdated"
    assert "json differs: height is 24, not 32" in finding.what


@pytest.mark.parametrize("packed", [False, True])
def test_another_file_than_the_one_on_record_is_outdated_whatever_its_time(
    shards: Path, images: Path, tmp_path: Path, packed: bool
) -> None:
    if packed:
        sketch(images, tmp_path / "store")
    save(images / "img001.png", gradient(16, 24, 77))
    os.utime(images / "img001.png", (OLD, OLD))
    if packed:  # after the change
        shards = tmp_path / "packed"
        shardwright.pack(derived_dir=tmp_path / "store", output_dir=shards, workers=1)
    report = verify(shards, images)
    assert (report.damaged, report.outdated, report.recomputed) == (False, 1, 6)
    (finding,) = report.findings
    assert (finding.kind, finding.sample) == ("outdated", "img001")


def test_other_pictures_of_the_same_names_and_sizes_are_no_damage(
    images: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"  # which is older than the shards
    for number, path in enumerate(sorted(images.glob("*.png"))):
        save(other / path.name, gradient(*TINY[number % 3], seed=50 + number))
    shards = built(images, aged(other).parent / "shards")
    done = run("verify", shards, "--against", other, "--workers", "1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "\n\n" + f"{shards}: OUTDATED: 6 samples; no damage" in done.stdout
    what = f"{other}/img000.png is not the image that this sample was made from (dinov3.npy differs"
    assert what in done.stdout
    assert (
        "\nto update them, build again with --overwrite --shard-size 2; if these are other images, "
        "give --against the images that the shards were made from\n"
    ) in done.stdout
    save(images / "img002.png", gradient(*TINY[2], seed=77))
    os.utime(images / "img002.png", (OLD, OLD))  # as a copy that keeps its time
    (finding,) = verify(shards, images).findings
    assert (finding.kind, finding.sample) == ("outdated", "img002")
    assert finding.what.startswith(f"{images}/img002.png has changed since (dinov3.npy differs")


def test_an_array_that_the_same_image_does_not_give_is_damage_whatever_its_time(
    shards: Path, images: Path
) -> None:
    changed = np.array([3], np.float16).tobytes()
    name = replaced(shards, first_shard(shards), 1, "vae.npy", changed)
    (images / f"{name}.png").touch()
    (finding,) = verify(shards, images).findings
    assert (finding.kind, finding.sample, finding.damage) == ("image_differs", name, True)


def test_an_array_that_its_image_does_not_give_is_damage_under_right_checksums(
    shards: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = replaced(shards, first_shard(shards), 1, "vae.npy", np.array([3], np.float16).tobytes())
    assert not shardwright.verify(shards, read_data=True, workers=1).damaged
    report = verify(shards, images)
    assert report.damaged
    (finding,) = report.findings
    assert finding == Finding(
        "image_differs",
        first_shard(shards),
        None,
        finding.what,
        "if the image is right, build again with --overwrite --shard-size 2",
        sample=name,
        member="vae.npy",
    )
    assert finding.what.startswith("differs by up to ")
    assert finding.what.endswith(f", compared with {images}/{name}.png")
    assert main(["verify", str(shards), "--against", str(images), "--json"]) == 12
    said = json.loads(capsys.readouterr().out)
    assert (said["recomputed"], said["counts"]) == (6, {"image_differs": 1})


def test_a_mask_is_compared_to_the_bit(shards: Path, images: Path) -> None:
    replaced(shards, first_shard(shards), 0, "t5m.npy", b"\1")
    found = verify(shards, images).findings
    assert [(one.kind, one.member) for one in found] == [("image_differs", "t5m.npy")]


def test_damaged_bytes_of_a_recomputed_sample_are_damage_once(shards: Path, images: Path) -> None:
    shard = first_shard(shards)
    found = index.load(shards, shard)
    for suffix in ("json", "vae.npy"):
        offset = found.member(0, found.head.members.index(suffix)).offset
        data = bytearray((shards / shard).read_bytes())
        data[offset + 140] ^= 1
        (shards / shard).write_bytes(data)
        for read_data in (False, True):
            report = verify(shards, images, read_data=read_data)
            kinds = [(f.kind, f.member) for f in report.findings if f.sample]
            assert kinds.count(("data_differs", suffix)) == 1
        data[offset + 140] ^= 1
        (shards / shard).write_bytes(data)


def test_a_missing_and_an_unreadable_image_are_not_compared_and_no_damage(
    shards: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "img000.png").unlink()
    (images / "img001.png").write_bytes(b"not a picture")
    report = verify(shards, images)
    assert (report.damaged, report.recomputed, report.not_compared) == (False, 4, 6)
    kinds = {finding.kind for finding in report.findings}
    assert kinds == {"not_compared"}
    broken = images / "img001.png"
    assert [finding.what for finding in report.findings] == [
        f"has no image of 1 sample, for example {images}/img000.png",
        f"1 image cannot be used: broken_image, for example {broken} "
        f"(cannot identify image file '{broken}')",
    ]
    assert main(["verify", str(shards), "--against", str(images)]) == 3
    said = capsys.readouterr().out
    assert "NOT COMPARED: 6 arrays; no damage" in said
    assert "\n  recomputed 4 of 6 samples from images: all equal\n" in said


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ("nowhere", "no such file or folder"),
        ("empty", "is no store, and has no images and no tars of images"),
        ("shards", "is a shard folder"),
        ("images/img000.txt", "is neither a folder nor a .tar file"),
    ],
)
def test_a_path_without_images_is_refused(
    against: str, said: str, shards: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(shardwright.ShardwrightError) as error:
        verify(shards, tmp_path / against)
    assert str(error.value) == (
        f"{tmp_path / against}: {said}; give --against the store that the shards were packed "
        "from, or the images they show"
    )
    assert error.value.exit_code == 2


def test_flags_of_recomputing_are_refused_without_images(
    shards: Path, images: Path, tmp_path: Path
) -> None:
    sketch(images, tmp_path / "derived")
    for options in ({"samples": 3}, {"device": "cpu"}):
        for against in (None, tmp_path / "derived"):
            with pytest.raises(UsageError, match="is for samples that are recomputed; give --aga"):
                shardwright.verify(shards, against=against, **options)
    with pytest.raises(UsageError, match="--samples is 0; give 1 or more"):
        verify(shards, images, samples=0)
    with pytest.raises(UsageError, match="--device cpu:2: verify uses one device; give cpu"):
        verify(shards, images, device="cpu:2")


def test_shards_without_a_manifest_cannot_be_recomputed(shards: Path, images: Path) -> None:
    shutil.rmtree(shards / ".shardwright")
    with pytest.raises(UsageError, match="has no manifest, so it is not known how its samples"):
        verify(shards, images)


def test_what_the_manifest_does_not_explain_is_not_compared(shards: Path, images: Path) -> None:
    def forget(document: dict[str, Any]) -> None:
        components = document["runs"][0]["provenance"]["components"]
        del components["dinov3"]
        components["vae"]["settings"]["encoders"] = "given"

    reseal(shards, forget)
    report = verify(shards, images)
    assert (report.recomputed, report.not_compared, report.damaged) == (6, 12, False)
    assert [finding.what for finding in report.findings] == [
        "dinov3 of 6 samples was not recomputed: the manifest does not say how it was made",
        "vae of 6 samples was not recomputed: it was made by an encoder that no recipe names",
    ]


def test_code_that_only_the_shards_name_is_never_run(
    shards: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange.py").write_text("raise SystemExit('run')")
    monkeypatch.syspath_prepend(str(tmp_path))

    def name(document: dict[str, Any]) -> None:
        document["recipe"] = json.loads(msgspec.json.encode(shardwright.recipes.SPECIFICATION))
        document["recipe"]["components"][0]["encoder"] = "strange:Encoder"
        made = document["runs"][0]["provenance"]["components"]["dinov3"]
        made["settings"]["encoders"] = "pretrained"

    reseal(shards, name)
    for recipe in (None, "prx"):
        with pytest.raises(UsageError, match="because code named in data is never run"):
            verify(shards, images, recipe=recipe)


def test_models_are_compared_within_their_rounding_and_others_are_refused(tmp_path: Path) -> None:
    images, recipe = tmp_path / "images", tmp_path / "vae.toml"
    for number in range(6):
        save(images / f"{number}.png", gradient(*((96, 64), (64, 96))[number % 2], number))
        (images / f"{number}.txt").write_text("a gradient")
    model = make_vae(tmp_path / "vae", width=64)
    recipe.write_text(
        '[component.vae]\nencoder = "autoencoder"\nshape = [16, "height/8", "width/8"]\n'
        f"model = {json.dumps(str(model))}\n"
    )
    options = {"encoders": "pretrained", "recipe": recipe, "batch_size": 1}
    shards = built(aged(images), tmp_path / "shards", **options)
    assert equal(verify(shards, images), 6)  # in batches of three
    shard = first_shard(shards)
    latent = shardwright.open(shards)[0]["vae.npy"]
    last = latent.ravel()[-1]
    unit = np.spacing(np.abs(latent).max())
    near, far = (np.array([last + n * unit], np.float16).tobytes() for n in (1, 3))
    replaced(shards, shard, 0, "vae.npy", near)
    assert equal(verify(shards, images), 6)
    replaced(shards, shard, 0, "vae.npy", far)
    (finding,) = verify(shards, images).findings
    assert finding.kind == "image_differs"
    assert " times the rounding of float32, compared with " in finding.what

    shutil.move(model, tmp_path / "moved/vae")
    with pytest.raises(shardwright.InputMissingError, match="give --recipe FILE that names the mo"):
        verify(shards, images)
    recipe.write_text(recipe.read_text().replace(str(model), str(tmp_path / "moved/vae")))
    assert verify(shards, images, recipe=recipe).recomputed == 6
    make_vae(model, width=64, quantized=True)
    with pytest.raises(UsageError) as error:
        verify(shards, images)
    assert "another model is here (vae: sha256 was " in str(error.value)
    assert error.value.fix == (
        "give --recipe FILE that names the model they were made with, or leave out --against"
    )


def test_a_picture_of_another_encoder_version_may_differ_by_two_levels(tmp_path: Path) -> None:
    from shardwright.recipes import Component
    from shardwright.verifying.recomputation import difference

    component = Component("picture", "p", "picture.png", "|u1", ("any", "any", 3))
    pixels = gradient(24, 16)
    files = []
    for change in (0, 2, 3):
        shifted = pixels.copy()
        shifted[0, 0, 0] = pixels[0, 0, 0] + change
        Image.fromarray(shifted).save(tmp_path / "one.png")
        files.append((tmp_path / "one.png").read_bytes())
    same, near, far = files
    assert difference(component, same, same, {}) is None
    assert difference(component, near, same, {}) is None
    assert difference(component, far, same, {}) == "differs by up to 3 of 256 levels"
    assert difference(component, far[:60], same, {}) is not None
