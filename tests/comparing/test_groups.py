"""Groups of copies over time: where they are packed, they stay, whatever a later list says."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardwright import derive, look, pack, verify
from shardwright.cli.main import main
from shardwright.layout import JSONL_NAME
from shardwright.storage.files import using
from tests.comparing.test_copies import TRAIN, VAL, derived, few, printed, where
from tests.faults import Killed, KillingDisk

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
    first = "go to the first of these parts"
    text = printed_all(capsys, *words, "--append")
    assert f"{says}: new copies {first}; --sync moves the others there\n" in text
    assert where(output) == before
    text = printed_all(capsys, *words, "--sync")
    assert f"{says}: all of it goes to the first of these parts, train before all others\n" in text
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
                pack(output_dir=output, **options, **{way: True})
        except Killed:
            killed += 1
            begun = any(output.glob("*/.shardwright/unfinished.json"))
            pack(output_dir=output, **options, **{"resume" if begun else way: True})
            assert where(output) == after
        else:
            break
    assert killed > 5
    assert where(output) == after
