"""Shards that are there already: refused, added to, or replaced."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import (
    Progress,
    ProvenanceError,
    ShardExistsError,
    UsageError,
    derive,
    pack,
    verify,
)
from tests.building.builds import (
    RECIPE,
    Interrupting,
    build,
    interrupt,
    listed,
    records,
    spoil,
    tars,
    write_recipe,
)
from tests.building.tarsets import write_set
from tests.derive.pictures import make_images
from tests.faults import contents
from tests.tars import ids_by_shard

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 6)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_new_images_are_refused_with_the_fix_unless_they_are_appended(
    images: Path, output: Path
) -> None:
    build(images, output)
    before = contents(output)
    make_images(images, 8)
    with pytest.raises(ShardExistsError) as caught:
        build(images, output)
    assert str(caught.value) == (
        f"{output}/bucket_64x64/shard-000000.tar: already exists, so nothing was written; give "
        "--append to add what is new, --overwrite to replace all, or another --output-dir"
    )
    assert contents(output) == before


def test_append_adds_exactly_what_is_new_and_touches_no_other_shard(
    images: Path, output: Path
) -> None:
    write_set(images / "a.tar", ["a0", "a1"])
    build(images, output, shard_size=2)
    before, times = tars(output), {p: p.stat().st_mtime_ns for p in output.glob("bucket_*/*")}
    make_images(images, 9)
    write_set(images / "b.tar", ["b0"])
    summary = build(images, output, shard_size=2, append=True)
    assert (summary.inputs, summary.written_samples, summary.already_there) == (12, 4, 8)
    after = tars(output)
    assert {name: after[name] for name in before} == before
    assert {path: path.stat().st_mtime_ns for path in times} == times
    new = {name: ids for name, ids in ids_by_shard(output).items() if name not in before}
    assert new == {
        "bucket_64x64/shard-000001.tar": ["img008"],
        "bucket_64x96/shard-000001.tar": ["img007"],
        "bucket_96x64/shard-000002.tar": ["img006", "b0"],
    }
    assert [run.append for run in listed(output).runs] == [False, True]
    assert verify(output, read_data=True, workers=1).damaged == 0
    assert len(shardwright.open(output)) == 12


def test_an_append_without_anything_new_changes_no_shard_and_no_manifest(
    images: Path, output: Path
) -> None:
    spoil(images, 1)
    build(images, output)
    before, manifest = tars(output), (output / ".shardwright/manifest.json").read_bytes()
    for _ in range(2):
        summary = build(images, output, append=True)
        assert (summary.written_samples, summary.already_there, summary.failed) == (0, 5, 1)
    assert tars(output) == before
    assert (output / ".shardwright/manifest.json").read_bytes() == manifest


def test_an_image_that_failed_is_appended_once_it_is_fixed(images: Path, output: Path) -> None:
    broken = spoil(images, 1)
    build(images, output)
    broken.unlink()
    make_images(images, 6)
    summary = build(images, output, append=True)
    assert (summary.written_samples, summary.already_there, summary.left_out) == (1, 5, {})
    assert sorted(records(output)) == [f"img{n:03}" for n in range(6)]


def test_append_goes_on_after_an_interruption_as_without_one(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 6, ((96, 64),))
    outputs = [tmp_path / "out", tmp_path / "kept"]
    for output in outputs:
        build(images, output, shard_size=2, split="val=40%")
    make_images(images, 14, ((96, 64),))
    options: dict[str, Any] = {"shard_size": 2, "append": True}
    whole = build(images, outputs[1], **options)
    for shards in (1, 3):
        interrupt(images, outputs[0], shards, **options)
    with pytest.raises(KeyboardInterrupt):
        build(images, outputs[0], progress=Interrupting(1, "publish"), **options)
    summary = build(images, outputs[0], **options)
    assert (summary.inputs, summary.already_there) == (whole.inputs, whole.already_there) == (14, 6)
    for part in ("train", "val"):
        assert contents(outputs[0] / part) == contents(outputs[1] / part)
    again = build(images, outputs[0], **options)
    assert (again.inputs, again.already_there) == (14, 14)


@pytest.mark.parametrize(
    ("options", "what"),
    [({"fit": "bucket"}, "fit was original, now bucket"), ({"recipe": "longer"}, "tokens was 20")],
    ids=["fit", "tokens"],
)
def test_an_append_with_other_settings_is_refused(
    images: Path, output: Path, options: dict[str, Any], what: str
) -> None:
    build(images, output)
    make_images(images, 8)
    before = contents(output)
    if "recipe" in options:
        longer = RECIPE.replace("tokens = 20", "tokens = 24")
        options = {"recipe": write_recipe(output.parent, longer, "longer.toml")}
    with pytest.raises(ProvenanceError) as caught:
        build(images, output, append=True, **options)
    assert str(caught.value).startswith(f"{output}: its shards were made with other settings (")
    assert what in str(caught.value)
    assert contents(output) == before


@pytest.mark.parametrize("split", [None, "val=40%"])
def test_an_append_keeps_checksums_for_sha256sum_up_to_date(
    images: Path, output: Path, split: str | None
) -> None:
    build(images, output, sha256=True, split=split)
    make_images(images, 14)
    build(images, output, append=True)
    for folder in [output / "train", output / "val"] if split else [output]:
        done = listed(folder)
        assert len(done.runs) == 2
        assert (folder / ".shardwright/SHA256SUMS").read_text() == "".join(
            f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in tars(folder).items()
        )


def test_an_append_without_checksums_before_makes_none(images: Path, output: Path) -> None:
    build(images, output)
    make_images(images, 8)
    build(images, output, append=True)
    assert {entry.sha256 for entry in listed(output).shards} == {None}


def test_an_append_with_other_conditions_is_refused(images: Path, output: Path) -> None:
    banned = output.parent / "banned.txt"
    banned.write_text("img001\n")
    build(images, output, where=["width >= 64"], exclude_ids_file=banned)
    make_images(images, 9)
    before = contents(output)
    for options in ({"where": ["width > 70"]}, {"ids_file": banned}):
        with pytest.raises(UsageError) as caught:
            build(images, output, append=True, **options)
        assert str(caught.value) == (
            f"{output}: was built with --where 'width >= 64' --exclude-ids-file {banned}, so "
            "nothing was written; give the same conditions, or --overwrite, or another "
            "--output-dir"
        )
    assert contents(output) == before
    summary = build(images, output, append=True)  # as before
    assert (summary.written_samples, summary.not_chosen["--exclude-ids-file"].count) == (3, 1)
    make_images(images, 10)
    summary = build(images, output, append=True, where=["width >= 64"], exclude_ids_file=banned)
    assert summary.written_samples == 1


def test_an_append_with_a_condition_to_shards_without_one_is_refused(
    images: Path, output: Path
) -> None:
    build(images, output)
    with pytest.raises(UsageError) as caught:
        build(images, output, append=True, where=["width > 70"])
    assert str(caught.value).startswith(
        f"{output}: was built without conditions, so nothing was written; give the same"
    )


def test_an_append_to_packed_shards_asks_for_their_lists(
    images: Path, output: Path, tmp_path: Path
) -> None:
    store = tmp_path / "deep/store"
    banned = tmp_path / "banned.txt"
    banned.write_text("img001\n")
    derive(images, derived_dir=store, recipe=write_recipe(tmp_path), encoders="sketch")
    pack(derived_dir=store, output_dir=output, workers=1, exclude_ids_file=banned)
    make_images(images, 9)
    with pytest.raises(UsageError) as caught:
        build(images, output, append=True)
    assert str(caught.value) == (
        f"{output}: was packed with --exclude-ids-file, and only its store knows where that is; "
        "give --exclude-ids-file again"
    )
    with pytest.raises(UsageError, match=r"was packed with --exclude-ids-file .*same conditions"):
        build(images, output, append=True, exclude_ids_file=banned, where=["width > 0"])
    summary = build(images, output, append=True, exclude_ids_file=banned)
    assert (summary.written_samples, summary.already_there) == (3, 5)
    make_images(images, 10)
    assert build(images, output, append=True).written_samples == 1
    assert "img001" not in records(output)


def test_an_append_needs_no_recipe_and_no_flags_of_the_build(images: Path, output: Path) -> None:
    build(images, output, fit="bucket")
    make_images(images, 8)
    summary = shardwright.build(images, output_dir=output, append=True)
    assert summary.written_samples == 2
    assert summary.components["vae"]["fit"] == "bucket"
    assert summary.components["vae"]["encoders"] == "sketch"
    assert verify(output, read_data=True, workers=1).findings == []


def test_shards_that_pack_made_are_appended_to(images: Path, output: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    derive(images, derived_dir=store, recipe=write_recipe(tmp_path), encoders="sketch")
    pack(derived_dir=store, output_dir=output, workers=1)
    make_images(images, 9)
    summary = build(images, output, append=True)
    assert (summary.written_samples, summary.already_there) == (3, 6)
    assert [run.is_build for run in listed(output).runs] == [False, True]
    derive(images, derived_dir=store)
    pack(derived_dir=store, output_dir=tmp_path / "all", workers=1)
    one, other = shardwright.open(output), shardwright.open(tmp_path / "all")
    for image_id in records(output):
        assert repr(one.by_id(image_id)) == repr(other.by_id(image_id))


def test_an_append_after_an_interrupted_pack_is_refused_and_leaves_its_shards(
    images: Path, output: Path, tmp_path: Path
) -> None:
    class Stopping(Progress):
        def note(self, text: str) -> None:
            if "shard-" in text:
                raise KeyboardInterrupt

    store, recipe = tmp_path / "store", write_recipe(tmp_path)
    derive(images, derived_dir=store, recipe=recipe, encoders="sketch")
    options: dict[str, Any] = {"derived_dir": store, "output_dir": output, "workers": 1}
    pack(**options)
    make_images(images, 9)
    derive(images, derived_dir=store)
    with pytest.raises(KeyboardInterrupt):
        pack(append=True, progress=Stopping(), **options)
    before = contents(output)
    assert len(tars(output)) == 4, "one shard is new, and in no manifest"
    for dry_run in (True, False):
        with pytest.raises(UsageError) as caught:
            build(images, output, append=True, dry_run=dry_run)
        assert str(caught.value) == (
            f"{output}: its last run was an interrupted pack; finish it with shardwright pack "
            "--resume, or give --overwrite"
        )
        assert contents(output) == before
    pack(resume=True, **options)
    assert build(images, output, append=True).already_there == 9
    assert verify(output, workers=1).findings == []


def test_shards_that_only_lie_below_the_output_folder_change_nothing(
    images: Path, output: Path, tmp_path: Path
) -> None:
    build(images, output / "v1", fit="bucket")
    interrupt(images, output / "v2", 1, shard_size=1)
    summary = build(images, output)
    assert summary.components["vae"]["fit"] == "original"
    with pytest.raises(ShardExistsError):
        build(images, output, shard_size=1)
    build(images, tmp_path / "alone")
    assert tars(output) == tars(tmp_path / "alone")


def test_pack_goes_on_where_build_has_stopped(images: Path, output: Path, tmp_path: Path) -> None:
    build(images, output)
    make_images(images, 8)
    store = tmp_path / "store"
    derive(images, derived_dir=store, recipe=write_recipe(tmp_path), encoders="sketch")
    summary = pack(derived_dir=store, output_dir=output, append=True, workers=1)
    assert summary.written_samples == 2
    assert verify(output, read_data=True, workers=1).damaged == 0


def test_overwrite_replaces_all_shards_also_by_the_same_ones(images: Path, output: Path) -> None:
    build(images, output, shard_size=1)
    damaged = output / "bucket_64x64/shard-000000.tar"
    good = damaged.read_bytes()
    damaged.write_bytes(bytes(len(good)))
    summary = build(images, output, shard_size=1, overwrite=True)
    assert (summary.written_samples, summary.already_there) == (6, 0)
    assert damaged.read_bytes() == good
    summary = build(images, output, shard_size=10, limit=4, fit="bucket", overwrite=True)
    assert summary.written_samples == 4
    assert [run.append for run in listed(output).runs] == [False]
    assert len(ids_by_shard(output)) == 3
    assert verify(output, read_data=True, workers=1).findings == []


def test_an_interrupted_overwrite_keeps_the_old_shards_until_it_is_run_again(
    images: Path, output: Path, tmp_path: Path
) -> None:
    build(images, output)
    before = tars(output)
    options: dict[str, Any] = {"overwrite": True, "shard_size": 1, "fit": "bucket"}
    interrupt(images, output, 3, **options)
    assert tars(output) == before
    summary = build(images, output, **options)
    assert summary.kept_shards == 3
    build(images, tmp_path / "new", **{**options, "overwrite": False})
    assert tars(output) == tars(tmp_path / "new")


def test_an_interrupted_append_can_be_replaced_by_a_build_of_all(
    images: Path, output: Path, tmp_path: Path
) -> None:
    build(images, output, shard_size=1)
    make_images(images, 9)
    interrupt(images, output, 1, shard_size=1, append=True)
    with pytest.raises(UsageError, match="--append was given and is not given"):
        build(images, output, shard_size=1)
    build(images, output, shard_size=2, overwrite=True)
    build(images, tmp_path / "new", shard_size=2)
    assert contents(output) == contents(tmp_path / "new")


def test_an_overwrite_that_makes_nothing_keeps_the_old_shards(tmp_path: Path, output: Path) -> None:
    images = make_images(tmp_path / "images", 3, ((96, 64),))
    build(images, output)
    before, manifest = tars(output), listed(output)
    for number in range(3):
        spoil(images, number)
    summary = build(images, output, overwrite=True)
    assert (summary.written_samples, summary.failed) == (0, 3)
    assert tars(output) == before
    assert listed(output) == manifest


def test_a_shard_of_unknown_origin_is_never_replaced_quietly(images: Path, output: Path) -> None:
    loose = output / "bucket_64x64/shard-000000.tar"
    loose.parent.mkdir(parents=True)
    loose.write_bytes(b"somebody's")
    with pytest.raises(ShardExistsError):
        build(images, output)
    with pytest.raises(UsageError, match="is not in the manifest"):
        build(images, output, append=True)
    assert loose.read_bytes() == b"somebody's"
