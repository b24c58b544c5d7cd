"""Groups of copies over time: where they are packed, they stay, whatever a later list says."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardwright import derive, look, pack, status, verify
from shardwright.cli.main import main
from shardwright.layout import JSONL_NAME
from shardwright.storage.files import using
from tests.comparing.test_copies import TRAIN, VAL, derived, few, printed, where
from tests.derive.pictures import save
from tests.faults import Killed, KillingDisk
from tests.look.pictures import RECIPE, painted

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return derived(tmp_path_factory.mktemp("groups"))


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent / "images", tmp_path / "images", copy_function=shutil.copy2)
    return Path(shutil.copytree(made, tmp_path / "store"))


def listed(path: Path, *groups: tuple[str, ...]) -> Path:
    """Write groups as look does: the first of each is kept."""
    lines = [{"image_id": name, "kept": kept} for kept, *rest in groups for name in rest]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def packed(store: Path, output: Path, groups: Path, *flags: str) -> tuple[str, ...]:
    """Pack a split by groups; give the words that pack into it again."""
    words = ("pack", "--derived-dir", str(store), "--output-dir", str(output), "--workers", "1")
    assert main([*words, "--split", "val=30%", "--split-by", str(groups), *flags]) == 0
    return words


def by_hash(output: Path, *groups: tuple[str, ...]) -> None:
    """Prove that a group is where its first image belongs."""
    found = where(output)
    for first, *rest in groups:
        part = "train" if first in TRAIN else "val"
        assert {found[name] for name in (first, *rest)} == {part}


@pytest.mark.parametrize("way", ["--sync", "--append", "--overwrite"])
def test_a_group_stays_in_its_part_when_a_later_list_keeps_another_image_of_it(
    store: Path, tmp_path: Path, capsys: Printed, way: str
) -> None:
    output, groups = tmp_path / "shards", tmp_path / "copies.jsonl"
    first = [(VAL[0], TRAIN[0]), (TRAIN[1], VAL[1])]
    listed(groups, *first)
    words = packed(store, output, groups, "--exclude-ids-file", str(few(tmp_path, VAL[2])))
    by_hash(output, *first)
    before = where(output)
    (tmp_path / "ids.txt").write_text("")  # so that one more is to be packed
    listed(groups, (TRAIN[0], VAL[0]), (VAL[1], TRAIN[1]))
    printed(capsys, *words, way)
    after = where(output)
    assert before == {name: after[name] for name in before}
    assert VAL[2] in after


def test_new_copies_go_where_the_group_is_packed_although_look_lists_them_first(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    output, groups = tmp_path / "shards", tmp_path / "copies.jsonl"
    look(store, duplicates=groups)
    words = packed(store, output, groups)
    before = where(output)
    for name in ("img998", "img999", "aaa", "aab", "aac", "aad"):  # on both sides by their ids
        shutil.copy(tmp_path / f"images/{VAL[3]}.png", tmp_path / f"images/{name}.png")
        (tmp_path / f"images/{name}.txt").write_text("once more")
    derive(tmp_path / "images", derived_dir=store, encoders="sketch")
    records = (store / JSONL_NAME).read_text().splitlines(keepends=True)
    (store / JSONL_NAME).write_text("".join(reversed(records)))
    look(store, duplicates=groups)
    printed(capsys, *words, "--sync")
    after = where(output)
    assert before == {name: after[name] for name in before}
    assert {after[name] for name in after if name not in before} == {"val"}
    assert verify(output, against=store).findings == []


def test_a_group_that_was_packed_in_two_parts_goes_to_training_and_it_says_so(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    """What was trained on never becomes validation."""
    output, groups = tmp_path / "shards", listed(tmp_path / "copies.jsonl")
    words = packed(store, output, groups)
    before = where(output)
    listed(groups, (VAL[0], TRAIN[0]), (TRAIN[1], VAL[1]))
    says = (
        f"{output}: 2 groups of copies are packed in several parts, "
        f"for example {TRAIN[0]} in train and {VAL[0]} in val"
    )
    first = "to the first of these, train before all others\n"
    text = printed_all(capsys, *words, "--append")
    assert f"{says}: new copies go {first}" in text
    assert f"run shardwright look {output} --duplicates {groups}, then pack with --sync\n" in text
    assert where(output) == before
    text = printed_all(capsys, *words, "--sync")
    assert f"{says}: each goes {first}" in text
    after = where(output)
    assert {name for name in before if before[name] != after[name]} == {VAL[0], VAL[1]}
    assert {after[VAL[0]], after[VAL[1]]} == {"train"}
    assert "packed in several parts" not in printed_all(capsys, *words, "--sync")


def printed_all(capsys: Printed, *words: object) -> str:
    """Give what a command prints, also beside its summary."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    found = capsys.readouterr()
    return found.err + found.out


@pytest.mark.parametrize("way", ["sync", "overwrite"])
def test_groups_stay_where_they_were_after_a_kill_at_any_moment_and_resume(
    store: Path, tmp_path: Path, way: str
) -> None:
    output, groups = tmp_path / "shards", tmp_path / "copies.jsonl"
    packed(store, output, listed(groups, (VAL[0], TRAIN[0]), (TRAIN[1], VAL[1])))
    before = where(output)
    listed(groups, (TRAIN[0], VAL[0], VAL[2]), (VAL[1], TRAIN[1], TRAIN[2]))  # then a third of each
    for path in store.glob("dinov3/*.npy"):
        path.write_bytes(path.read_bytes()[:-2] + b"\0\0")  # so that all shards are written again
    options: dict[str, Any] = {"derived_dir": store, "workers": 1}
    after = {**before, VAL[2]: "val", TRAIN[2]: "train"}
    start, killed = Path(shutil.copytree(output, tmp_path / "start")), 0
    for call in count(1, 5):
        shutil.rmtree(output)
        shutil.copytree(start, output, copy_function=shutil.copy2)
        try:
            with using(KillingDisk(call)):
                pack(output_dir=output, **{**options, way: True})
        except Killed:
            killed += 1
            begun = any(output.glob("*/.shardwright/unfinished.json"))
            pack(output_dir=output, **{**options, "resume" if begun else way: True})
            assert where(output) == after
        else:
            break
    assert killed > 5
    assert where(output) == after


def next_of(store: Path, output: Path) -> tuple[str | None, str]:
    found = status(store, output_dir=output)
    return found.next_command, found.next_reason


def test_status_reports_the_samples_that_a_sync_would_move_to_another_part(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    output, groups = tmp_path / "shards", listed(tmp_path / "copies.jsonl")
    words = packed(store, output, groups)
    complete = f"every sample is packed in {output}"
    assert next_of(store, output)[1] == complete
    listed(groups, (VAL[0], TRAIN[0]), (TRAIN[1], VAL[1]))
    command, why = next_of(store, output)
    assert why == f"2 packed samples in {output} belong to another part of the split"
    assert command == f"shardwright pack --derived-dir {store} --output-dir {output} --sync"
    append = f"--output-dir {output} --append"
    (tmp_path / "ids.txt").write_text(f"{TRAIN[5]}\n")
    printed(capsys, *words, "--sync", "--exclude-ids-file", tmp_path / "ids.txt")
    assert next_of(store, output)[1] == f"{complete}, except 1 that is left out"
    assert append not in str(next_of(store, output)[0])
    listed(groups, (TRAIN[0], VAL[0]), (VAL[1], TRAIN[1]))
    assert next_of(store, output)[1] == f"{complete}, except 1 that is left out"


def edit(store: Path, *names: str) -> None:
    """Add a column to records."""
    jsonl = store / JSONL_NAME
    records = [json.loads(line) for line in jsonl.read_text().splitlines()]
    records = [one | ({"note": "seen"} if one["image_id"] in names else {}) for one in records]
    jsonl.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_status_counts_moved_samples_beside_others_that_are_outdated(
    store: Path, tmp_path: Path
) -> None:
    output, groups = tmp_path / "shards", listed(tmp_path / "copies.jsonl")
    packed(store, output, groups)
    listed(groups, (VAL[0], TRAIN[0]))
    edit(store, TRAIN[5], TRAIN[6])
    what = "changed, removed or excluded since, or belong to another part of the split"
    assert next_of(store, output)[1] == f"3 packed samples in {output} {what}"


def test_when_the_list_of_groups_is_gone_every_message_names_commands_that_work(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    output, groups = tmp_path / "shards", tmp_path / "copies.jsonl"
    look(store, duplicates=groups)
    words = packed(store, output, groups)
    before = where(output)
    groups.unlink()
    edit(store, TRAIN[5])
    problem = (
        f"{groups}: --split-by: no such file; restore it, or write it again with shardwright look "
        f"{output} --duplicates {groups}, or follow another list with pack --sync --split-by FILE"
    )
    assert next_of(store, output) == (None, f"pack would stop: {problem}")
    for way in ("--sync", "--append", "--overwrite"):
        assert problem in printed(capsys, *words, way, code=2)
    assert where(output) == before
    other = tmp_path / "c2.jsonl"
    look(output, duplicates=other)
    error = printed(capsys, *words, "--append", "--split-by", other, code=2)
    was = f"--split val=30% --split-by {groups}"
    assert f"was split with {was}, so nothing was written" in error
    assert "; give --sync to follow another list, or make all shards again with --over" in error
    text = printed_all(capsys, *words, "--sync", "--split-by", other)
    assert f"--split was val=30% --split-by {groups} and is val=30% --split-by {other}" in text
    assert where(output) == before
    assert next_of(store, output)[1] == f"every sample is packed in {output}"
    other.rename(groups)
    assert main([*words, "--sync", "--split", "val=30%", "--split-by", str(groups)]) == 0
    error = printed(capsys, *words, "--sync", "--split", "val=20%", "--split-by", groups, code=2)
    assert "another split would move samples between its parts" in error


def test_a_list_of_groups_that_is_not_there_for_a_new_folder_is_to_be_written_by_look(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    groups, output = tmp_path / "copies.jsonl", tmp_path / "shards"
    words = ("pack", store, "--output-dir", output, "--split-by", groups)
    assert f"--split-by {groups}: there is no split; add --split, " in printed(
        capsys, *words, code=2
    )
    look_first = f"{groups}: --split-by: no such file; give a list that shardwright look"
    error = printed(capsys, *words, "--split", "val=30%", code=2)
    assert f"{look_first} --duplicates wrote" in error


def test_build_appends_copies_to_the_part_where_their_group_is(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    images, more, output = tmp_path / "images", tmp_path / "more", tmp_path / "built"
    groups = listed(tmp_path / "copies.jsonl", (VAL[0], TRAIN[0]))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    words = ("--recipe", tmp_path / "recipe.toml", "--output-dir", output, "--encoders", "sketch")
    split = ("--split", "val=30%", "--split-by", groups)
    printed(capsys, "build", images, *words, *split)
    before = where(output)
    assert before[TRAIN[0]] == before[VAL[0]] == "val"
    new = [f"again{number}" for number in range(6)]
    for name in new:
        save(more / f"{name}.png", painted(64, 64, seed=0) // 8 * 8 + 4)
        (more / f"{name}.txt").write_text("once more")
    listed(groups, (TRAIN[0], VAL[0], *new[:3]), (TRAIN[1], VAL[1], *new[3:]))
    text = printed_all(capsys, "build", more, *words, "--append")
    assert f"{output}: 1 group of copies is packed in several parts, for example" in text
    assert ": new copies go to the first of these, train before all others\n" in text
    after = where(output)
    assert before == {name: after[name] for name in before}
    assert [after[name] for name in new] == ["val"] * 3 + ["train"] * 3
    assert "written_samples: 0" in printed_all(capsys, "build", more, *words, "--append")


def test_a_dry_run_reports_identical_files_in_two_parts_as_the_run_does(
    store: Path, tmp_path: Path, capsys: Printed
) -> None:
    output, groups = tmp_path / "shards", tmp_path / "copies.jsonl"
    words = ("pack", "--derived-dir", store, "--output-dir", output)
    split = ("--split", "val=30%", "--shard-size", "4")
    text = printed(capsys, *words, *split, "--dry-run")
    note = (
        "note: copies of one image would be in several parts of the split:\n"
        f"  identical files: 1 group (for example {TRAIN[0]} in train and {VAL[0]} in val)\n"
        f"to keep them in one part, run shardwright look {store} --duplicates copies.jsonl, then "
    )
    by = "--split val=30% --split-by copies.jsonl --shard-size 4\n"
    assert f"{note}pack with {by}" in text
    assert "near-duplicates in several parts were not searched: this is a dry run\n" in text
    assert not output.exists()
    few(tmp_path, VAL[0])
    leave = ("--exclude-ids-file", tmp_path / "ids.txt")
    assert "copies of one image" not in printed(capsys, *words, *split, *leave, "--dry-run")
    printed(capsys, *words, *split, *leave)
    drop = ("--exclude-ids-file", "none")  # then one copy is in a shard that stays
    text = printed(capsys, *words, "--sync", *drop, "--dry-run")
    assert f"{note}pack all of it again with --overwrite {by}" in text
    printed(capsys, "look", store, "--duplicates", groups)
    words = ("pack", "--derived-dir", store, "--output-dir", tmp_path / "other")
    together = (*split, "--split-by", groups, "--dry-run")
    assert "copies of one image" not in printed(capsys, *words, *together)
    groups.write_text("")
    text = printed(capsys, *words, *together)
    assert f"run shardwright look {store} --duplicates {groups}, then pack\n" in text
