"""What was excluded stays excluded, however a folder is packed again, until somebody drops it."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import DamageError, ProvenanceError, UsageError, pack, status, verify
from shardwright.progress import Lines
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests import commands
from tests.faults import Killed, KillingDisk, contents
from tests.stores import Record, Store, make_store, record
from tests.tars import all_ids, ids_by_shard

BUCKETS = ("24x16", "32x16")
LAYOUT: dict[str, Any] = {"shuffle": True, "seed": 5, "shard_size": 3}
CONDITIONS = ("where", "ids_file", "exclude_ids_file", "split")


def fields(number: int) -> Record:
    return record(f"img{number:02}", BUCKETS[number % 2], rating=number % 4)


def made(root: Path, count: int) -> Store:
    shape = lambda one: (16, one["height"] // 8, one["width"] // 8)  # noqa: E731
    given = [fields(number) for number in range(count)]
    return make_store(root, given, latent=shape, share=("t5", "dinov3"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """24 records, and two lists beside them that name some that are not there yet."""
    (tmp_path / "good.txt").write_text("".join(f"img{n:02}\n" for n in range(0, 40, 2)))
    (tmp_path / "bad.txt").write_text("".join(f"img{n:02}\n" for n in range(0, 40, 5)))
    return made(tmp_path / "derived", 24)


def condition(name: str, folder: Path) -> dict[str, Any]:
    known = {
        "where": "rating > 0",
        "ids_file": folder / "good.txt",
        "exclude_ids_file": folder / "bad.txt",
        "split": "val=30%",
    }
    return known if name == "all" else {name: known[name]}


def packed(store: Store, output: Path, **options: Any) -> str:  # noqa: ANN401
    """Pack, and give what was reported meanwhile."""
    log = io.StringIO()
    pack(derived_dir=store.root, output_dir=output, progress=Lines(log), **options)
    return log.getvalue()


def parts(output: Path) -> dict[str, list[str]]:
    """Give the ids by part; without a split, by the part ``""``."""
    folders = {path.name: path for path in output.iterdir() if path.name in ("train", "val")}
    return {name: sorted(all_ids(path)) for name, path in (folders or {"": output}).items()}


def again(store: Store, output: Path, way: str, given: dict[str, Any]) -> str:
    """Pack a folder again without its conditions."""
    if way == "overwrite each bucket":
        logs = [packed(store, output, overwrite=True, bucket=one, **LAYOUT) for one in BUCKETS]
        return "".join(logs)
    if way.startswith("resume"):  # of a run that was killed
        with using(KillingDisk(25)), pytest.raises(Killed):
            packed(store, output, overwrite=True, **given, **LAYOUT)
        assert any(output.rglob("unfinished.json"))
        return packed(store, output, resume=True, **LAYOUT)
    if way == "overwrite what was killed":
        with using(KillingDisk(25)), pytest.raises(Killed):
            packed(store, output, overwrite=True, **given, **LAYOUT)
        return packed(store, output, overwrite=True, **LAYOUT)
    return packed(store, output, **{way: True}, **({} if way == "sync" else LAYOUT))


@pytest.mark.parametrize("name", [*CONDITIONS, "all"])
@pytest.mark.parametrize(
    "way",
    [
        "overwrite",
        "overwrite each bucket",
        "append",
        "sync",
        "resume",
        "overwrite what was killed",
    ],
)
def test_every_way_of_packing_again_keeps_what_excludes_and_prints_it(
    way: str, name: str, store: Store, output: Path, tmp_path: Path
) -> None:
    given = condition(name, tmp_path)
    packed(store, output, **given, **LAYOUT)
    grown = made(store.root, 30)
    log = again(grown, output, way, given)
    packed(grown, tmp_path / "fresh", **given, **LAYOUT)
    assert parts(output) == parts(tmp_path / "fresh")
    kept = next(line for line in log.splitlines() if "kept from the last run" in line)
    for flag in given:
        assert f"--{flag.replace('_', '-')} " in kept
    assert kept.startswith(f"{output}: ")
    if way == "overwrite":
        assert contents(output) == contents(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["where", "ids_file", "exclude_ids_file"])
@pytest.mark.parametrize("way", ["overwrite", "sync"])
def test_none_drops_a_condition_and_keeps_the_others(
    way: str, name: str, store: Store, output: Path, tmp_path: Path
) -> None:
    given = condition("all", tmp_path)
    del given["split"]
    packed(store, output, **given)
    log = packed(store, output, **{way: True, name: "none"})
    del given[name]
    packed(store, tmp_path / "fresh", **given)
    assert parts(output) == parts(tmp_path / "fresh")
    assert re.search(rf"not as in the last run: --{name.replace('_', '-')} was .* given", log)


def test_the_command_takes_none_for_all_that_excludes(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, **condition("all", tmp_path))
    none = [word for name in CONDITIONS for word in (f"--{name.replace('_', '-')}", "none")]
    places = ("--derived-dir", store.root, "--output-dir", output)
    done = commands.run("pack", "--overwrite", *none, *places)
    assert done.returncode == 0, done.stderr
    assert len(all_ids(output)) == 24
    assert not list(output.glob("*/bucket_*"))
    assert "--split was val=30% and is not given" in done.stderr
    assert not verify(output, against=store.root).findings


def test_dropping_a_split_that_is_killed_can_be_resumed(store: Store, tmp_path: Path) -> None:
    for at in range(10, 60, 7):
        output = tmp_path / str(at)
        packed(store, output, split="val=30%")
        with using(KillingDisk(at)), pytest.raises(Killed):
            packed(store, output, split="none", overwrite=True)
        if (output / ".shardwright/unfinished.json").exists():
            packed(store, output, resume=True)
            assert sorted(all_ids(output)) == [f"img{n:02}" for n in range(24)]
            assert not list(output.glob("*/bucket_*/*.tar"))
            assert not verify(output, against=store.root).findings


@pytest.mark.parametrize("way", [None, "append", "sync"])
def test_a_split_is_dropped_only_by_overwriting_all(
    way: str | None, store: Store, output: Path
) -> None:
    packed(store, output, split="val=30%")
    before = contents(output)
    with pytest.raises(UsageError, match="is split into train, val, so nothing was written"):
        packed(store, output, split="none", **({way: True} if way else {}))
    assert contents(output) == before


def test_none_beside_a_condition_is_refused(store: Store, output: Path) -> None:
    with pytest.raises(UsageError, match="--where none drops all conditions, and others are given"):
        packed(store, output, where=["none", "rating > 0"])


def test_dropping_a_condition_with_append_is_refused_and_the_advice_drops_it(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, **condition("where", tmp_path), exclude_ids_file=tmp_path / "bad.txt")
    with pytest.raises(UsageError) as refused:
        packed(store, output, where="none", append=True)
    advised = str(refused.value).partition("run shardwright ")[2]
    assert "--sync --where none --exclude-ids-file" in advised
    assert commands.run(*shlex.split(advised)).returncode == 0
    assert len(all_ids(output)) == 24 - 5


def test_limit_bucket_and_layout_are_as_given_and_what_differs_is_listed_before_writing(
    store: Store, output: Path
) -> None:
    packed(store, output, limit=10, bucket=BUCKETS[0], **LAYOUT)
    log = packed(store, output, overwrite=True, limit=8)
    listed = next(line for line in log.splitlines() if "not as in the last run" in line)
    assert listed == (
        f"{output}: not as in the last run: --bucket was 24x16 and is not given, --shuffle was "
        "given and is not given, --seed was 5 and is not given, --limit was 10 and is 8, "
        "--shard-size was 3 and is 1000"
    )
    assert log.index(listed) < log.index("write: ")
    assert len(all_ids(output)) == 8
    assert "last run" not in packed(store, output, overwrite=True, limit=8)


def test_a_list_whose_file_has_changed_is_reported(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, exclude_ids_file=tmp_path / "bad.txt")
    (tmp_path / "bad.txt").write_text("img00\n")
    log = packed(store, output, overwrite=True)
    assert re.search(
        r"not as in the last run: --exclude-ids-file was (.*bad.txt) .* and is \1 ", log
    )
    assert len(all_ids(output)) == 23


@pytest.mark.parametrize("state", ["damaged", "missing"])
def test_overwriting_without_a_good_manifest_warns_that_its_conditions_are_unknown(
    store: Store, output: Path, state: str
) -> None:
    assert "warning" not in packed(store, output, where="rating > 0", overwrite=True)
    path = output / ".shardwright/manifest.json"
    if state == "damaged":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    log = packed(store, output, overwrite=True)
    assert (
        f"warning: {output}: its manifest is {state}, so the conditions, lists and split of the "
        "last run are unknown, and only those given now apply" in log
    )


def recomputed(store: Store, model: str) -> None:
    """Record that the arrays were made by a model."""
    state = store.root / ".shardwright"
    state.mkdir(exist_ok=True)
    entry = {"settings": {"model": model}, "tool": "a test"}
    names = ("dinov3", "vae", "t5")
    (state / "provenance.json").write_text(json.dumps({"components": dict.fromkeys(names, entry)}))


def change_array(store: Store, image_id: str) -> None:
    path = store.array("vae", image_id)
    path.write_bytes(path.read_bytes()[:-2] + b"\1\1")


def advised_by_pack(store: Store, output: Path) -> str:
    with pytest.raises(ProvenanceError) as refused:
        packed(store, output, sync=True)
    return str(refused.value).partition("run shardwright ")[2].partition(";")[0]


def advised_by_verify(store: Store, output: Path) -> str:
    found = verify(output, against=store.root).findings
    return next(
        one.fix.partition("run shardwright ")[2] for one in found if "--overwrite" in one.fix
    )


def advised_by_status(store: Store, output: Path) -> str:
    reason = status(derived_dir=store.root, output_dir=output).next_reason
    return reason.partition("run shardwright ")[2]


@pytest.mark.parametrize("advised", [advised_by_pack, advised_by_verify, advised_by_status])
@pytest.mark.parametrize("limit", [None, 7])
def test_the_command_recommended_after_a_recompute_leads_to_the_same_samples_in_the_same_shards(
    limit: int | None,
    advised: Callable[[Store, Path], str],
    store: Store,
    output: Path,
    tmp_path: Path,
) -> None:
    recomputed(store, "before")
    packed(store, output, limit=limit, **condition("all", tmp_path), **LAYOUT)
    before = {name: ids_by_shard(output / name) for name in ("train", "val")}
    recomputed(store, "after")
    change_array(store, next(iter(before["train"].values()))[0])
    command = advised(store, output)
    done = commands.run(*shlex.split(command))
    assert done.returncode == 0, f"{command}: {done.stderr}"
    assert {name: ids_by_shard(output / name) for name in ("train", "val")} == before
    made_by = manifest.load_manifest(output / "train")
    assert made_by is not None
    assert made_by.runs[-1].provenance["components"]["vae"]["settings"] == {"model": "after"}


def test_the_recommended_limit_covers_what_was_appended_too(store: Store, output: Path) -> None:
    recomputed(store, "before")
    packed(store, output, limit=5)
    packed(store, output, limit=4, append=True)
    recomputed(store, "after")
    change_array(store, "img00")
    assert "--overwrite --limit 9" in advised_by_pack(store, output)


def test_verify_without_the_store_recommends_the_layout_of_the_last_run(
    store: Store, output: Path
) -> None:
    packed(store, output, **LAYOUT)
    shard = next(output.glob("bucket_*/*.tar"))
    packed(made(store.root, 30), output, append=True, **LAYOUT)
    shard.unlink()
    (finding,) = verify(output).findings
    assert finding.fix == (
        "restore it from a copy, or pack again with --overwrite --shuffle --seed 5 --shard-size 3"
    )


def test_a_sync_of_another_jsonl_gives_the_command_that_packs_it_again_as_it_was(
    store: Store, output: Path
) -> None:
    second = store.root / "second.jsonl"
    second.write_bytes(store.jsonl.read_bytes())
    packed(store, output, jsonl=second, where="rating > 0", **LAYOUT)
    with pytest.raises(UsageError) as refused:
        packed(store, output, sync=True)
    assert refused.value.fix == (
        f"give --jsonl {second}; to replace its shards, run shardwright pack --derived-dir "
        f"{store.root} --output-dir {output} --overwrite --where 'rating > 0' --shuffle --seed 5 "
        "--shard-size 3; or give another --output-dir"
    )


def test_a_shard_that_is_not_its_index_is_packed_again_with_the_flags_of_the_last_run(
    store: Store, output: Path
) -> None:
    packed(store, output, shard_size=4)
    first, second = sorted(output.glob("bucket_24x16/*.tar"))[:2]
    first.write_bytes(second.read_bytes())
    with pytest.raises(DamageError, match=r"or pack again with --overwrite --shard-size 4 \("):
        list(shardwright.open(output))


def test_what_was_packed_from_a_jsonl_of_its_own_is_packed_again_from_that(
    store: Store, output: Path
) -> None:
    second, layout = store.root / "second.jsonl", "--shuffle --seed 5 --shard-size 3"
    second.write_bytes(store.jsonl.read_bytes())
    packed(store, output, jsonl=second, **LAYOUT)
    first, other = sorted(output.glob("bucket_24x16/*.tar"))[:2]
    before = first.read_bytes()
    first.write_bytes(other.read_bytes())
    again = f"pack again with --overwrite --jsonl DERIVED_DIR/second.jsonl {layout}"
    with pytest.raises(DamageError, match=re.escape(f"or {again} (")):
        list(shardwright.open(output))
    first.write_bytes(before)
    second.write_bytes(made(store.root, 30).jsonl.read_bytes())
    packed(store, output, jsonl=second, append=True, **LAYOUT)
    first.unlink()
    (finding,) = verify(output).findings
    assert finding.fix == f"restore it from a copy, or {again}"
    (finding, *_) = verify(output, against=store.root).findings
    known = again.replace("DERIVED_DIR", str(store.root))
    assert finding.fix == f"restore it from a copy, or {known}"


def test_a_list_that_is_gone_is_reported_by_status_and_by_the_error_that_would_name_it(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, where="rating > 0", exclude_ids_file=tmp_path / "bad.txt")
    (tmp_path / "bad.txt").unlink()
    gone = f"{tmp_path}/bad.txt: --exclude-ids-file: no such file; restore it, or give another"
    found = status(derived_dir=store.root, output_dir=output)
    assert found.next_command is None
    assert found.next_reason.startswith(f"pack would stop: {gone}")
    where = ("--derived-dir", store.root, "--output-dir", output)
    done = commands.run("status", *where)
    assert f"\nnext: pack would stop: {gone}" in done.stdout
    done = commands.run("pack", *where, "--append", "--where", "none")
    assert (done.returncode, gone in done.stderr) == (2, True)
    done = commands.run("pack", *where, "--sync", "--exclude-ids-file", "none")
    assert done.returncode == 0, done.stderr
    assert len(all_ids(output)) == 18


def test_status_counts_what_is_left_out_and_says_that_a_list_may_have_changed(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, exclude_ids_file=tmp_path / "bad.txt")
    found = status(derived_dir=store.root, output_dir=output)
    assert found.next_reason == f"every sample is packed in {output}, except 5 that are left out"
    (tmp_path / "bad.txt").write_text("img01\n" + (tmp_path / "bad.txt").read_text())
    found = status(derived_dir=store.root, output_dir=output)
    assert found.next_reason == f"1 packed sample in {output} changed, removed or excluded since"


def test_shards_of_arrays_that_were_recomputed_are_named_as_such(
    store: Store, output: Path
) -> None:
    recomputed(store, "before")
    packed(store, output)
    recomputed(store, "after")
    said = commands.run("status", "--derived-dir", store.root, "--output-dir", output).stdout
    assert f"\n  {output}: 24 samples, arrays made with other settings (" in said
    assert f"\nnext: {output} holds arrays made with other settings (" in said


def test_another_list_is_reported_with_the_paths_from_here(
    store: Store, output: Path, tmp_path: Path
) -> None:
    packed(store, output, exclude_ids_file=tmp_path / "bad.txt")
    (tmp_path / "worse.txt").write_text("img01\n")
    done = commands.run(
        *("pack", "--derived-dir", "derived", "--output-dir", output, "--overwrite"),
        *("--exclude-ids-file", "worse.txt"),
        cwd=tmp_path,
    )
    assert "not as in the last run: --exclude-ids-file was bad.txt (" in done.stderr
    assert " and is worse.txt (" in done.stderr


def test_a_sync_says_that_a_lower_limit_has_no_effect(store: Store, output: Path) -> None:
    packed(store, output, limit=11)
    log = packed(store, output, sync=True, limit=4)
    assert (
        "warning: --limit 4: 11 samples are packed and stay; --sync adds none beyond the limit. "
        "To pack fewer, use --overwrite\n"
    ) in log
    assert len(all_ids(output)) == 11
    assert "warning" not in packed(store, output, sync=True, limit=12)
    assert len(all_ids(output)) == 12


def test_a_column_that_has_the_name_of_something_else_is_reported_once(
    tmp_path: Path, output: Path
) -> None:
    given = [fields(n) | {"bucket": "own", "tokens": 3, "score": n} for n in range(4)]
    store = make_store(tmp_path / "derived", given)
    log = packed(store, output, where=['bucket = "24x16"', "tokens > 2"], dry_run=True)
    assert (
        "warning: --where: bucket means the aspect_bucket of a sample. For the column of that "
        "name, write `bucket`\n"
    ) in log
    assert (
        "warning: --where: tokens is a column of the records here, and not what Shardwright "
        "computes. Rename the column to use that\n"
    ) in log
    assert "warning" not in packed(store, output, where='`bucket` = "own"', dry_run=True)
    packed(store, output, where='score ~ "[12]"')
    assert sorted(all_ids(output)) == ["img01", "img02"]
