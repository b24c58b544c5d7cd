"""``pack --split``: parts are chosen by a hash, and no later command mixes them."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright import (
    DamageError,
    PackSummary,
    ShardExistsError,
    SourceChangedError,
    UsageError,
    pack,
    recipes,
    status,
    verify,
)
from shardwright.progress import Progress
from shardwright.recipes.split import Split, choose_split, read_split
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests import commands
from tests.durability.soak import stride
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import Record, Store, make_store, record
from tests.tars import all_ids, digests

BUCKETS = ("24x16", "32x16")
SPLIT = "val=30%"


def samples(first: int, last: int, **fields: Any) -> list[Record]:  # noqa: ANN401
    return [record(f"img{n:02}", BUCKETS[n % 2], **fields) for n in range(first, last)]


def made(root: Path, given: list[Record]) -> Store:
    shape = lambda fields: (16, fields["height"] // 8, fields["width"] // 8)  # noqa: E731
    return make_store(root, given, latent=shape, share=("t5",))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return made(tmp_path / "derived", samples(0, 20))


def grow(store: Store, last: int, **fields: Any) -> Store:  # noqa: ANN401
    return made(store.root, [*store.records, *samples(len(store.records), last, **fields)])


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(
        derived_dir=store.root, output_dir=output, **{"workers": 1, "shard_size": 4, **options}
    )


def share_of(image_id: str) -> float:
    """As FORMAT.md says."""
    return xxhash.xxh3_64_intdigest(image_id.encode()) / 2**64


def parts(output: Path) -> dict[str, list[str]]:
    return {path.name: sorted(all_ids(path)) for path in sorted(output.iterdir())}


def expected(count: int) -> dict[str, list[str]]:
    ids = [f"img{n:02}" for n in range(count)]
    val = [i for i in ids if share_of(i) < 0.3]
    return {"train": sorted(set(ids) - set(val)), "val": val}


def renamed(store: Store, image_id: str, first_id: str) -> None:
    """Record that an image had another id before."""
    facts = store.root / ".shardwright/facts.jsonl"
    facts.parent.mkdir()
    facts.write_text(json.dumps({"image_id": image_id, "first_id": first_id}) + "\n")


class Warned(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


# -- which part a sample belongs to --


def test_the_hash_of_the_id_decides_and_each_part_is_a_shard_folder(
    store: Store, output: Path
) -> None:
    summary = packed(store, output, split=SPLIT)
    assert parts(output) == expected(20)
    assert {name: part.samples for name, part in summary.parts.items()} == {"train": 17, "val": 3}
    assert summary.written_samples == 20
    assert sum(part.shards for part in summary.parts.values()) == summary.written_shards
    for name in ("train", "val"):
        found = shardwright.open(output / name)
        assert sorted(sample["json"]["image_id"] for sample in found) == expected(20)[name]
    settings = manifest.load_manifest(output / "val").runs[0].settings  # type: ignore[union-attr]
    assert (settings.split, settings.part) == (Split((("val", 0.3),)), "val")
    assert not verify(output, against=store.root, workers=1).findings


@given(st.lists(st.floats(0.001, 0.2), min_size=1, max_size=5), st.text())
def test_parts_lie_one_after_the_other_from_zero(shares: list[float], image_id: str) -> None:
    split = read_split({f"p{n}": share for n, share in enumerate(shares)}, None)
    assert split
    place = xxhash.xxh3_64_intdigest(image_id.encode()) / 2**64
    ends = [sum(shares[: n + 1]) for n in range(len(shares))]
    if min(abs(place - end) for end in ends) > 1e-9:
        number = next((n for n, end in enumerate(ends) if place < end), None)
        assert split.part_of(image_id) == ("train" if number is None else f"p{number}")
    again = read_split(split.shares(), None)
    assert again == split


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("train=5%", "train: is no name for a part"),
        ("Bucket_24x16=5%", "Bucket_24x16: is no name for a part; give another name"),
        ("val", "is not a share"),
        ("val=0%", "is not a share"),
        ("val=-1%", "is not a share"),
        ("val=101%", "is not a share"),
        ("val=60%,test=50%", "more than 100% in all"),
        ("val=1%,val=2%", "names a part twice"),
        ("a/b=1%", "is not the name of a part"),
        ("..=1%", "is not the name of a part"),
        ("", "is not the name of a part"),
        ({}, "has no part"),
        ({"val": True}, "is not a share"),
        ({"val": float("nan")}, "is not a share"),
        (5, "--split is 5"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(
    given: Any,  # noqa: ANN401
    what: str,
    store: Store,
    output: Path,
) -> None:
    with pytest.raises(UsageError, match=what):
        packed(store, output, split=given)
    assert not output.exists()


def test_samples_of_one_group_stay_together_and_others_go_by_their_id(
    tmp_path: Path, output: Path
) -> None:
    given = [{**fields, "scene": number // 4} for number, fields in enumerate(samples(0, 20))]
    given[0]["scene"] = None
    del given[1]["scene"]
    given[2]["scene"] = " "
    store = made(tmp_path / "derived", given)
    warned = Warned()
    packed(store, output, split=SPLIT, split_by="scene", progress=warned)
    (said,) = warned.warnings
    assert said.startswith("3 records without scene, for example img00")
    for name, ids in parts(output).items():
        for image_id in ids:
            number = int(image_id[3:])
            text = image_id if number < 3 else str(number // 4)
            assert (name == "val") == (share_of(text) < 0.3)


def test_a_renamed_image_keeps_its_part(store: Store, output: Path) -> None:
    val, train = expected(20)["val"][0], expected(20)["train"][0]
    renamed(store, train, val)
    packed(store, output, split=SPLIT)
    assert train in parts(output)["val"]


def test_a_group_column_that_no_record_has_is_an_error(store: Store, output: Path) -> None:
    with pytest.raises(
        UsageError, match="the column of the split: no record has a field sceen; there"
    ):
        packed(store, output, split=SPLIT, split_by="sceen")
    with pytest.raises(UsageError, match="--split-by caption: there is no split"):
        packed(store, output, split_by="caption")


def test_a_limit_counts_over_all_parts(store: Store, output: Path) -> None:
    summary = packed(store, output, split=SPLIT, limit=9)
    assert summary.written_samples == 9
    assert summary.over_limit == 11
    assert sum(map(len, parts(output).values())) == 9


def test_a_part_without_samples_has_no_folder_and_is_in_the_summary(
    store: Store, output: Path
) -> None:
    summary = packed(store, output, split="val=30%,rare=0.0001%")
    assert [path.name for path in sorted(output.iterdir())] == ["train", "val"]
    assert summary.parts["rare"].samples == 0
    assert packed(store, output, append=True).written_samples == 0
    assert [path.name for path in sorted(output.iterdir())] == ["train", "val"]


def test_the_first_samples_of_a_part_are_missed_and_begin_its_folder(
    store: Store, output: Path
) -> None:
    few = made(store.root, samples(0, 2))
    packed(few, output, split=SPLIT)
    assert parts(output) == {"train": expected(2)["train"]}
    grown = made(store.root, samples(0, 20))
    found = verify(output, against=store.root, workers=1).findings
    assert [finding.kind for finding in found] == ["left_out", "left_out"]
    assert f"for example {expected(20)['val'][0]}; " in str(found[1])
    packed(grown, output, append=True)
    assert parts(output) == expected(20)


def test_a_recipe_can_hold_the_split(tmp_path: Path, store: Store, output: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "prx"\n[split]\nval = "30%"\n')
    packed(store, output, recipe=recipe)
    assert parts(output) == expected(20)
    recipe.write_text('extends = "prx"\n[split]\ntrain = "30%"\n')
    with pytest.raises(UsageError, match=r"mine.toml: \[split\] train: is no name for a part"):
        packed(store, output, recipe=recipe)
    recipe.write_text('extends = "prx"\n[split]\nval = 30\n')
    with pytest.raises(
        UsageError, match=r"mine.toml: \[split\] val: 30 is not valid; give a share"
    ):
        packed(store, output, recipe=recipe)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "[split] is empty; add a part, or remove it"),
        ('by = "scene"', '[split] has no part; write it like val = "5%"'),
        ('val = "0%"', "[split] val: '0%' is not a share above 0% and up to 100%; write it like"),
        ('val = "60%"\ntest = "50%"', "[split]: the parts are more than 100% in all; give less"),
        ('bucket_a = "5%"', "[split] bucket_a: is no name for a part; give another name"),
    ],
)
def test_a_table_of_a_recipe_that_makes_no_split_is_an_error_in_its_own_words(
    table: str, said: str, tmp_path: Path, store: Store, output: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "prx"\n[split]\n{table}\n')
    with pytest.raises(UsageError) as error:
        packed(store, output, recipe=recipe)
    assert str(error.value).startswith(f"{recipe}: {said}")
    assert "--split" not in str(error.value)
    assert not output.exists()


def test_a_recipe_may_add_the_column_to_the_parts_of_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "prx"\n[split]\nval = "5%"\n')
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\n[split]\nby = "scene"\n')
    found = recipes.find(tmp_path / "mine.toml")
    assert found.split == Split((("val", 0.05),), "scene")


def test_a_file_to_start_from_keeps_every_part(tmp_path: Path) -> None:
    mine, start = tmp_path / "mine.toml", tmp_path / "start.toml"
    mine.write_text('extends = "prx"\n[split]\ntest = "5%"\n"b.c" = 0.1\nby = "scene"\n')
    assert commands.run("recipe", mine, "--init", start).returncode == 0
    assert recipes.find(start).split == Split((("test", 0.05), ("b.c", 0.1)), "scene")


def test_other_shares_keep_the_group_column_of_the_recipe() -> None:
    recipe = read_split({"val": "5%"}, "scene")
    assert choose_split("val=10%", None, recipe) == Split((("val", 0.1),), "scene")


# -- later runs --


def test_appending_goes_on_with_the_split_and_moves_nothing(store: Store, output: Path) -> None:
    packed(store, output, split=SPLIT)
    before = digests(output)
    grown = grow(store, 40)
    summary = packed(grown, output, append=True)
    assert summary.written_samples == 20
    assert parts(output) == expected(40)
    tars = {name: digest for name, digest in before.items() if name.endswith(".tar")}
    assert {name: digests(output)[name] for name in tars} == tars
    assert not verify(output, against=store.root, workers=1).findings


def test_appending_to_one_part_adds_only_its_samples(store: Store, output: Path) -> None:
    packed(store, output, split=SPLIT)
    grown = grow(store, 40)
    packed(grown, output / "train", append=True)
    assert parts(output) == {"train": expected(40)["train"], "val": expected(20)["val"]}
    packed(grown, output, append=True)
    assert parts(output) == expected(40)


def test_a_sample_that_is_in_another_part_already_is_not_packed_again(
    store: Store, output: Path
) -> None:
    packed(store, output, split=SPLIT)
    moved = expected(20)["val"][0]
    renamed(store, moved, expected(20)["train"][0])
    for folder in (output, output / "train"):
        assert packed(store, folder, append=True).written_samples == 0
    packed(store, output / "train", overwrite=True)
    assert parts(output) == expected(20)


@pytest.mark.parametrize("way", ["append", "resume", None])
def test_another_split_than_the_recorded_one_is_refused(
    way: str | None, store: Store, output: Path
) -> None:
    packed(store, output, split=SPLIT)
    before = contents(output)
    for folder in (output, output / "train"):
        with pytest.raises(UsageError, match=r"was split with --split val=30%, so nothing was"):
            packed(store, folder, split="val=40%", **({way: True} if way else {}))
    with pytest.raises(ShardExistsError):
        packed(store, output)
    assert contents(output) == before


@pytest.mark.parametrize("part", ["", "train"])
def test_a_part_with_a_damaged_manifest_is_overwritten_as_the_part_that_it_was(
    part: str, store: Store, output: Path
) -> None:
    packed(store, output, split=SPLIT)
    (output / "train/.shardwright/manifest.json").write_text("{}")
    assert verify(output, workers=1).counts == {"manifest_damaged": 1}
    with pytest.raises(DamageError):
        packed(store, output / part, append=True)
    packed(store, output / part, overwrite=True)
    assert parts(output) == expected(20)
    assert not verify(output, against=store.root, workers=1).findings


def test_where_all_manifests_are_damaged_the_split_must_be_given(
    store: Store, output: Path
) -> None:
    packed(store, output, split=SPLIT)
    for name in ("train", "val"):
        (output / name / ".shardwright/manifest.json").write_text("{}")
    for way in ("append", "overwrite"):
        with pytest.raises(DamageError, match="give --overwrite and --split if it is a part"):
            packed(store, output, **{way: True})
    packed(store, output, overwrite=True, split=SPLIT)
    assert not verify(output, against=store.root, workers=1).findings


@pytest.mark.parametrize("new", ["test=30%", "val=0.0001%"])
def test_overwriting_with_another_split_leaves_nothing_of_the_old(
    new: str, store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, split=SPLIT, sha256=True)
    packed(store, output, split=new, overwrite=True)
    packed(store, tmp_path / "fresh", split=new)
    found = {name: data for name, data in contents(output).items() if data is not None}
    fresh = {name: data for name, data in contents(tmp_path / "fresh").items() if data is not None}
    assert found == fresh
    assert not verify(output, against=store.root, workers=1).findings


def test_an_interrupted_overwrite_with_another_split_is_finished_or_repeated(
    tmp_path: Path,
) -> None:
    store = made(tmp_path / "derived", samples(0, 8))
    packed(store, tmp_path / "start", split=SPLIT)
    packed(store, tmp_path / "expected", split="test=30%")
    wanted = {k: v for k, v in contents(tmp_path / "expected").items() if v is not None}
    shutil.copytree(tmp_path / "start", tmp_path / "counted")
    with using(disk := WatchedDisk()):
        packed(store, tmp_path / "counted", split="test=30%", overwrite=True)
    resumed = 0
    for at in range(1, len(disk.calls), stride(27)):
        target = tmp_path / str(at)
        shutil.copytree(tmp_path / "start", target)
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(store, target, split="test=30%", overwrite=True)
        try:
            packed(store, target, split="test=30%", resume=True)
            resumed += 1
        except (UsageError, ShardExistsError):  # it had not begun in every part
            packed(store, target, split="test=30%", overwrite=True)
        found = {k: v for k, v in contents(target).items() if v is not None}
        assert found == wanted, at
    assert resumed > 0


def test_an_interrupted_append_is_resumed_in_every_part(store: Store, tmp_path: Path) -> None:
    packed(store, tmp_path / "start", split=SPLIT)
    grown = grow(store, 26)
    shutil.copytree(tmp_path / "start", tmp_path / "unbroken")
    with using(disk := WatchedDisk()):
        packed(grown, tmp_path / "unbroken", append=True)
    expected_bytes = contents(tmp_path / "unbroken")
    for at in range(5, len(disk.calls), stride(51)):
        for way in ("resume", "append"):
            target = tmp_path / f"{way}{at}"
            shutil.copytree(tmp_path / "start", target)
            with using(KillingDisk(at)), pytest.raises(Killed):
                packed(grown, target, append=True)
            packed(grown, target, **{way: True})
            assert contents(target) == expected_bytes, (at, way)


def test_a_split_is_not_packed_over_shards_that_are_not_split(store: Store, output: Path) -> None:
    packed(store, output)
    for way in ("append", "overwrite", "resume"):
        with pytest.raises(UsageError, match="holds shards that are not split"):
            packed(store, output, split=SPLIT, **{way: True})


@pytest.mark.parametrize(("mine", "other"), [(SPLIT, None), (None, SPLIT)])
def test_a_folder_that_another_run_splits_or_fills_meanwhile_is_left_to_it(
    mine: str | None, other: str | None, store: Store, output: Path
) -> None:
    class Slow(Progress):
        def phase(self, name: str, total: int, unit: str) -> None:
            if name == "check":
                packed(store, output, split=other)

    with pytest.raises((SourceChangedError, UsageError), match=r"run again|are not split"):
        packed(store, output, split=mine, progress=Slow())
    folders = {path.parent.parent.name for path in output.rglob(manifest.MANIFEST_NAME)}
    assert folders == ({"train", "val"} if other else {output.name})


def test_nothing_is_written_anywhere_if_one_part_is_in_the_way(store: Store, output: Path) -> None:
    other = packed(store, output / "val", limit=3)
    assert other.written_samples == 3
    before = contents(output)
    with pytest.raises(ShardExistsError, match=r"val/bucket_24x16/shard-000000.tar: already"):
        packed(store, output, split=SPLIT)
    assert contents(output) == before


def test_a_dry_run_shows_the_parts_and_writes_nothing(store: Store, output: Path) -> None:
    folders = ("--derived-dir", store.root, "--output-dir", output)
    done = commands.run("pack", "--split", SPLIT, "--dry-run", *folders)
    assert done.returncode == 0
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    assert ["part", "samples", "shards"] in rows
    assert ["train", "17", "2"] in rows
    assert ["val", "3", "2"] in rows
    assert not output.exists()


# -- what other commands say --


def test_following_the_advice_never_puts_validation_samples_into_training(
    store: Store, output: Path
) -> None:
    packed(store, output, split=SPLIT)
    grown = grow(store, 40)
    for folder in (output, output / "train", output / "val"):
        found = verify(folder, against=grown.root, workers=1).findings
        assert {finding.kind for finding in found} == {"left_out"}
        for finding in found:
            command = shlex.split(finding.fix.partition("run shardwright ")[2])
            assert command[command.index("--output-dir") + 1] == str(output)
        advised = status(derived_dir=grown.root, output_dir=folder, workers=1).next_command
        assert advised is not None
        assert shlex.split(advised)[-5:-2] == ["--append", "--split", "val=30%"]
    missing = len(expected(40)["val"]) - len(expected(20)["val"])
    assert f"has {missing} records without a sample" in str(found[0])
    assert commands.run(*shlex.split(advised)[1:]).returncode == 0
    assert parts(output) == expected(40)
    assert not verify(output, against=grown.root, workers=1).findings
    last = status(derived_dir=grown.root, output_dir=output, workers=1).next_command
    assert last == f"shardwright verify {output} --against {grown.root}"


def test_a_sample_in_two_parts_is_damage(store: Store, output: Path, tmp_path: Path) -> None:
    packed(store, output, split=SPLIT)
    moved = expected(20)["train"][0]
    renamed(store, moved, expected(20)["val"][0])
    packed(store, tmp_path / "other", split=SPLIT)
    shutil.rmtree(output / "val")
    shutil.copytree(tmp_path / "other/val", output / "val")
    (found,) = verify(output, workers=1).findings
    assert (found.kind, found.sample, found.damage) == ("in_two_parts", moved, True)
    assert found.file == "val/bucket_24x16/shard-000000.tar"
    assert found.what == "the same sample is in train/bucket_24x16/shard-000000.tar"


def test_damage_in_a_part_and_a_part_that_is_gone_are_found(store: Store, output: Path) -> None:
    packed(store, output, split=SPLIT)
    shard = next((output / "val").glob("bucket_*/*.tar"))
    shard.unlink()
    report = verify(output, workers=1)
    assert [(f.kind, f.file) for f in report.findings] == [
        ("missing", str(shard.relative_to(output)))
    ]
    shutil.rmtree(output / "val")
    (found,) = verify(output, workers=1).findings
    assert (found.kind, found.file, found.damage) == ("part_missing", "val", True)


def test_tars_outside_the_parts_are_damage(store: Store, output: Path) -> None:
    packed(store, output, split=SPLIT)
    shard = next((output / "val").glob("bucket_*/*.tar"))
    shutil.copytree(output / "val", output / "val_copy")
    shutil.copytree(shard.parent, output / shard.parent.name)
    shutil.copy(shard, output / "one.tar")
    (output / "notes.txt").write_text("mine")
    found = verify(output, workers=1).findings
    bucket, copied = (list((output / n).rglob("*.tar")) for n in (shard.parent.name, "val_copy"))
    mixed = "loaders that read every tar would mix the parts"
    assert all(one.kind == "outside_parts" and one.damage for one in found)
    assert [str(one) for one in found] == [
        f"{name}: is outside the parts, with {count}: {mixed}; move it out of the folder"
        for name, count in (
            (shard.parent.name, f"{len(bucket)} tar file{'s' * (len(bucket) > 1)}"),
            ("one.tar", "1 tar file"),
            ("val_copy", f"{len(copied)} tar files"),
        )
    ]


def test_commands_that_take_one_part_name_the_parts(store: Store, output: Path) -> None:
    packed(store, output, split=SPLIT)
    match = f"is split into train, val; give {output}/train or {output}/val"
    with pytest.raises(UsageError, match=match):
        shardwright.open(output)


def test_index_and_the_rules_of_loaders_work_on_every_part(store: Store, output: Path) -> None:
    packed(store, output, split=SPLIT)
    before = verify(output, loaders=True, workers=1)
    assert before.loaders is not None
    assert (before.loaders["wids"], before.loaders["webdataset"]) == ("needs index", "pass")
    done = commands.run("index", output, "--for", "wids")
    assert done.returncode == 0, done.stderr
    for part in ("train", "val"):
        assert (output / part / ".wids.json").is_file()
        assert f"{part}/.wids.json" in done.stdout
    after = verify(output, loaders=True, workers=1)
    assert after.loaders is not None
    assert after.loaders["wids"] == "pass"
    (output / "val/.wids.json").unlink()
    one = verify(output, loaders=True, workers=1).loaders
    assert one is not None
    assert one["wids"] == "needs index", "of one part"
    removed = shardwright.index(output, for_=["wids"], remove=True).removed
    assert removed == ["train/.wids.json"]
