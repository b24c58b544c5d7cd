"""Samples held out of training stay out: the manifest knows which JSONL was packed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardwright import Finding, PackSummary, UsageError, pack, verify
from shardwright.progress import Progress
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests import commands
from tests.faults import Killed, KillingDisk, contents
from tests.stores import Store, line, make_store, record
from tests.tars import all_ids

TRAIN, HELD_OUT = ["img0", "img1", "img2"], ["img3", "img4"]
SECOND = "bucket_24x16/shard-000001.tar"


def small_store(root: Path) -> Store:
    five = [record(image_id, "24x16") for image_id in (*TRAIN, *HELD_OUT)]
    return make_store(root, five, latent=(16, 2, 3))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return small_store(tmp_path / "data/derived")


def split(store: Store) -> tuple[Path, Path]:
    """Write two files beside the store's own JSONL, as README says."""
    paths = store.root / "train.jsonl", store.root / "val.jsonl"
    for path, ids in zip(paths, (TRAIN, HELD_OUT), strict=True):
        given = [fields for fields in store.records if fields["image_id"] in ids]
        path.write_bytes(b"".join(line(fields) + b"\n" for fields in given))
    return paths


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(derived_dir=store.root, output_dir=output, workers=1, **options)


def recorded(output: Path) -> list[str | None]:
    made = manifest.load_manifest(output)
    assert made is not None
    return [run.jsonl for run in made.runs]


def left_out(output: Path, store: Store) -> Finding:
    (note,) = verify(output, against=store.root, workers=1).findings
    assert (note.kind, note.damage) == ("left_out", False)
    return note


def test_following_what_is_said_of_a_split_does_not_leak_the_validation_set(
    tmp_path: Path, store: Store
) -> None:
    split(store)
    packing = ("pack", "--derived-dir", "data/derived", "--output-dir", "data/shards/train")
    train = (*packing, "--jsonl", "data/derived/train.jsonl")
    assert commands.run(*train, cwd=tmp_path).returncode == 0
    shards = tmp_path / "data/shards/train"
    before = contents(shards)

    looked = ("verify", "data/shards/train", "--against", "data/derived")
    done = commands.run(*looked, cwd=tmp_path)
    assert done.returncode == 0
    assert "has 2 records without a sample in the shards, for example img3" in done.stdout
    assert "the shards were packed from data/derived/train.jsonl" in done.stdout
    assert "--append" not in done.stdout

    for more in (["--append"], ["--append", "--dry-run"], ["--sync"]):
        done = commands.run(*packing, *more, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            "error: data/shards/train: was packed from data/derived/train.jsonl, not from "
            "data/derived/approved_image_dataset.jsonl, so nothing was written; "
            "give --jsonl data/derived/train.jsonl; to replace its shards, run shardwright pack "
            "--output-dir data/shards/train --overwrite; or give another --output-dir"
        )
    assert contents(shards) == before

    with (store.root / "train.jsonl").open("ab") as file:
        file.write(line(record("new", "24x16")) + b"\n")
    make_store(store.root, [*store.records, record("new", "24x16")], latent=(16, 2, 3))
    assert commands.run(*train, "--append", cwd=tmp_path).returncode == 0
    assert all_ids(shards) == [*TRAIN, "new"]
    assert recorded(shards) == ["train.jsonl", "train.jsonl"]


def test_shards_of_a_split_are_replaced_from_another_file_only_all_at_once(
    store: Store, output: Path
) -> None:
    train, _ = split(store)
    packed(store, output, jsonl=train)
    before = contents(output)
    with pytest.raises(UsageError, match=r"was packed from .*train\.jsonl, not from "):
        packed(store, output, resume=True)
    assert contents(output) == before
    packed(store, output, overwrite=True)
    assert all_ids(output) == [*TRAIN, *HELD_OUT]
    assert recorded(output) == [store.jsonl.name]


def test_a_run_that_was_killed_before_its_first_shard_keeps_its_file(
    store: Store, output: Path
) -> None:
    train, _ = split(store)
    with using(KillingDisk(12)), pytest.raises(Killed):
        packed(store, output, jsonl=train)
    with pytest.raises(UsageError, match=r"was packed from .*train\.jsonl"):
        packed(store, output)
    packed(store, output, jsonl=train)
    assert all_ids(output) == TRAIN


def test_settings_that_only_one_side_has_on_record_are_warned_of(
    store: Store, output: Path
) -> None:
    class Warned(Progress):
        def __init__(self) -> None:
            self.said: list[str] = []

        def warn(self, text: str) -> None:
            self.said.append(text)

    packed(store, output, limit=2)
    entries = {"components": {"vae": {"settings": {"fit": "bucket"}, "tool": "x"}}}
    (store.root / ".shardwright").mkdir()
    (store.root / ".shardwright/provenance.json").write_text(json.dumps(entries))
    warned = Warned()
    packed(store, output, append=True, progress=warned)
    (said,) = warned.said
    assert "the settings of vae are recorded only for the shards or only for the store" in said


def test_a_folder_of_several_files_is_packed_again_from_one(store: Store, output: Path) -> None:
    train, _ = split(store)
    packed(store, output, jsonl=train)
    made = manifest.load_manifest(output)
    assert made is not None
    runs = [*made.runs, msgspec.structs.replace(made.runs[0], jsonl=store.jsonl.name)]
    shards = [*made.shards, msgspec.structs.replace(made.shards[0], path=SECOND, run=1)]
    (output / SECOND).write_bytes((output / made.shards[0].path).read_bytes())
    manifest.save_manifest(output, msgspec.structs.replace(made, runs=runs, shards=shards))
    index = output / ".shardwright/index"
    (index / SECOND).with_suffix(".idx").write_bytes(
        (index / made.shards[0].path).with_suffix(".idx").read_bytes()
    )
    with pytest.raises(UsageError, match=r"train\.jsonl, not only from .*--overwrite"):
        packed(store, output, sync=True)
    packed(store, output, overwrite=True)
    assert recorded(output) == [store.jsonl.name]


def test_shards_of_another_tool_are_not_advised_to_be_appended_to(
    store: Store, output: Path
) -> None:
    packed(store, output, limit=3)
    shutil.rmtree(output / ".shardwright")
    found = verify(output, against=store.root, workers=1).findings
    assert [finding.kind for finding in found] == ["no_manifest", "left_out"]
    assert "--append" not in str(found[1])


def test_the_name_is_that_below_the_store_however_it_is_given(
    store: Store, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(store)
    (tmp_path / "link").symlink_to(store.root)
    monkeypatch.chdir(store.root.parent)
    shutil.copy(store.jsonl, tmp_path / "elsewhere.jsonl")
    for given, name in {
        "derived/val.jsonl": "val.jsonl",
        str(store.root / "val.jsonl"): "val.jsonl",
        "../link/val.jsonl": "val.jsonl",
        "../elsewhere.jsonl": "../../elsewhere.jsonl",
    }.items():
        pack(derived_dir="../link", jsonl=given, output_dir=output, workers=1, overwrite=True)
        assert recorded(output) == [name]


def test_a_tree_that_was_moved_is_appended_to_and_gives_the_same_bytes(tmp_path: Path) -> None:
    for root in (tmp_path / "one", tmp_path / "two/deeper"):
        store = small_store(root / "derived")
        packed(store, root / "shards", jsonl=split(store)[0])
    assert contents(tmp_path / "one/shards") == contents(tmp_path / "two/deeper/shards")
    moved = (tmp_path / "one").rename(tmp_path / "moved")
    again = packed(
        Store(moved / "derived", []),
        moved / "shards",
        jsonl=moved / "derived/train.jsonl",
        append=True,
    )
    assert again.written_samples == 0


def test_a_name_that_is_no_text_is_recorded_all_the_same(store: Store, output: Path) -> None:
    odd = Path(os.fsdecode(bytes(store.root) + b"/\xff.jsonl"))
    split(store)[0].rename(odd)
    packed(store, output, jsonl=odd)
    assert recorded(output) == ["\\xff.jsonl"]
    assert packed(store, output, jsonl=odd, append=True).written_samples == 0
    with pytest.raises(UsageError, match=r"was packed from .*, not from "):
        packed(store, output, append=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_packing_another_bucket_from_another_file_is_refused_too(
    overwrite: bool, tmp_path: Path, output: Path
) -> None:
    buckets = {"24x16": TRAIN, "16x24": HELD_OUT}
    given = [record(name, bucket) for bucket, names in buckets.items() for name in names]
    store = make_store(tmp_path / "derived", given)
    packed(store, output, jsonl=split(store)[0], bucket=["24x16"])
    before = contents(output)
    with pytest.raises(
        UsageError, match=r"was packed from .*, not from .*, so nothing was written"
    ):
        packed(store, output, bucket=["16x24"], overwrite=overwrite)
    assert contents(output) == before
    packed(store, output, overwrite=True)  # nothing of the other file stays
    assert recorded(output) == [store.jsonl.name]


def test_shards_that_exist_are_reported_before_their_file(store: Store, output: Path) -> None:
    packed(store, output, jsonl=split(store)[0])
    with pytest.raises(FileExistsError):
        packed(store, output)


def test_where_the_same_file_has_more_the_whole_command_is_advised(
    tmp_path: Path, store: Store
) -> None:
    output = tmp_path / "my shards"
    packed(store, output, limit=3)
    note = left_out(output, store)
    assert note.fix == (
        f"to pack those that are ready, run shardwright pack --derived-dir {store.root} "
        f"--output-dir '{output}' --append"
    )
    command = shlex.split(note.fix.partition("run shardwright ")[2])
    assert commands.run(*command).returncode == 0
    assert all_ids(output) == [*TRAIN, *HELD_OUT]
    assert verify(output, against=store.root, workers=1).findings == []
