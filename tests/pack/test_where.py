"""``pack --where`` and lists of ids: what is left out is counted, and stays out."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright import (
    InputMissingError,
    OutdatedError,
    PackSummary,
    UsageError,
    pack,
    status,
    verify,
)
from shardwright.progress import Lines, Progress
from shardwright.recipes import SPECIFICATION, Selection
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from shardwright.store.store import Store as OurStore
from shardwright.summary import Count
from tests import commands
from tests.derive.pictures import make_images, sketch
from tests.faults import Killed, KillingDisk, contents
from tests.stores import Record, Store, line, make_store, record
from tests.tars import all_ids

BUCKETS = ("24x16", "32x16")


def fields(number: int) -> Record:
    more = {"rating": str(number), "animal": "cat" if number % 3 else "dog"}
    return record(f"img{number}", BUCKETS[number % 2], caption=f"picture {number}", **more)


def made(root: Path, count: int) -> Store:
    given = [fields(number) for number in range(count)]
    shape = lambda one: (16, one["height"] // 8, one["width"] // 8)  # noqa: E731
    return make_store(root, given, latent=shape, share=("t5", "dinov3"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return made(tmp_path / "derived", 8)


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    summary = pack(derived_dir=store.root, output_dir=output, **{"workers": 1, **options})
    left_out = sum(left.count for left in summary.left_out.values())
    others = left_out + summary.packed_before + summary.over_limit
    assert summary.ready_records == summary.written_samples + others
    return summary


def ids(*numbers: int) -> list[str]:
    return [f"img{number}" for number in numbers]


class Warned(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.parametrize("workers", [1, 2])
def test_only_records_for_which_all_conditions_hold_are_packed_and_the_others_counted(
    workers: int, tmp_path: Path, output: Path
) -> None:
    store = make_store(
        tmp_path / "derived",
        [fields(number) for number in range(1200)],  # more than a worker takes at a time
        share=("t5", "dinov3", "vae"),
    )
    where = ['rating < 10 and animal = "cat"', r'caption !~ "\b[12]$"']
    summary = packed(store, output, where=where, workers=workers)
    assert sorted(all_ids(output)) == ids(4, 5, 7, 8)
    assert summary.left_out == {
        "rating < 10": Count(1190, "img10"),
        'animal = "cat"': Count(4, "img0"),
        r'caption !~ "\\b[12]$"': Count(2, "img1"),
    }
    assert (summary.total_records, summary.skipped_incomplete) == (1200, 0)


def test_the_command_takes_several_conditions_and_prints_the_counts(
    store: Store, output: Path
) -> None:
    folders = ("--derived-dir", store.root, "--output-dir", output)
    conditions = ("--where", "rating >= 2", "--where", 'bucket = "24x16"')
    done = commands.run("pack", *folders, *conditions)
    assert done.returncode == 0
    assert all_ids(output) == ids(2, 4, 6)
    assert (
        "left_out: 5\n"
        "  rating >= 2: 2 (for example img0)\n"
        '  aspect_bucket = "24x16": 3 (for example img3)\n'
        "written_samples: 3" in done.stdout
    )


def test_a_field_that_no_record_has_is_an_error_that_lists_the_fields(
    store: Store, output: Path
) -> None:
    with pytest.raises(UsageError) as told:
        packed(store, output, where="widht >= 512")
    assert str(told.value) == (
        "--where: no record has a field widht; there are animal, aspect_bucket, caption, "
        "format_version, height, image_id, image_path, rating, t5_attention_mask, width"
    )
    assert not output.exists()


def test_a_condition_that_is_not_one_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    make_store(tmp_path / "derived", [])
    with pytest.raises(UsageError, match="--where: expected a value at its end"):
        pack(derived_dir=tmp_path / "derived", output_dir=tmp_path / "out", where="width >")


def test_a_limit_takes_from_what_is_chosen(store: Store, output: Path) -> None:
    summary = packed(store, output, where='animal = "cat"', limit=2, bucket=["32x16"])
    assert all_ids(output) == ids(1, 5)
    assert summary.left_out == {
        "--bucket": Count(4, "img0"),
        'animal = "cat"': Count(1, "img3"),
    }
    assert summary.over_limit == 1


def test_a_record_that_is_invalid_is_skipped_and_not_left_out(store: Store, output: Path) -> None:
    deep = "[" * 200 + "]" * 200
    lines = store.jsonl.read_bytes().splitlines()
    lines[1] = lines[1][:-1] + f',"deep":{deep}}}'.encode()
    store.write_lines(lines)
    summary = packed(store, output, where="rating < 4")
    assert summary.skipped_by_reason == {"nested_too_deep": Count(1, "img1")}
    assert sorted(all_ids(output)) == ids(0, 2, 3)


def test_appending_goes_on_with_the_conditions_and_never_adds_what_was_left_out(
    store: Store, output: Path
) -> None:
    packed(store, output, where='animal = "cat"')
    assert packed(store, output, append=True).written_samples == 0
    grown = made(store.root, 12)
    (finding,) = verify(output, against=grown.root, workers=1).findings
    assert "has 3 records without a sample in the shards, for example img8" in finding.what
    command = shlex.split(finding.fix.partition("run shardwright ")[2])
    assert command[-2:] == ["--where", 'animal = "cat"']
    assert commands.run(*command).returncode == 0
    assert sorted(all_ids(output)) == sorted(ids(1, 2, 4, 5, 7, 8, 10, 11))
    assert not verify(output, against=grown.root, workers=1).findings
    advised = status(derived_dir=grown.root, output_dir=output, workers=1).next_command
    assert advised == f"shardwright verify {output} --against {grown.root}"
    packed(grown, output, sync=True, where="image_id != null")  # another one replaces it
    assert len(all_ids(output)) == 12


def test_overwriting_says_which_conditions_are_kept_and_which_are_not(
    store: Store, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed(store, output, where="rating > 1")
    packed(store, output, where="rating > 1", overwrite=True, progress=Lines())
    assert "last run" not in capsys.readouterr().err
    packed(store, output, overwrite=True, progress=Lines())
    told = capsys.readouterr().err
    assert (
        f"{output}: kept from the last run: --where 'rating > 1' (to drop it: --where none)" in told
    )
    packed(store, output, where="none", overwrite=True, progress=Lines())
    told = capsys.readouterr().err
    assert f"{output}: not as in the last run: --where was rating > 1 and is not given" in told


def test_a_resumed_run_must_have_the_same_conditions(store: Store, output: Path) -> None:
    with using(KillingDisk(40)), pytest.raises(Killed):
        packed(store, output, where="rating > 2")
    with pytest.raises(UsageError, match="--where was rating > 2 and is rating > 3"):
        packed(store, output, where="rating > 3", resume=True)
    advised = status(derived_dir=store.root, output_dir=output, workers=1).next_command
    assert advised is not None
    assert commands.run(*shlex.split(advised)[1:]).returncode == 0
    assert sorted(all_ids(output)) == ids(3, 4, 5, 6, 7)


def test_settings_without_a_choice_are_recorded_as_before(store: Store, output: Path) -> None:
    packed(store, output)
    recorded = json.loads((output / ".shardwright/manifest.json").read_bytes())
    assert recorded["runs"][0].keys().isdisjoint({"parts"})
    assert list(recorded["runs"][0]["settings"]) == [
        *("buckets", "shuffle", "seed", "limit", "shard_size"),
    ]


# -- lists of ids --


def listed(path: Path, *given: str) -> Path:
    path.write_bytes("\r\n".join(["", *given, "  "]).encode("utf-8-sig"))
    return path


def test_a_list_takes_its_ids_and_another_leaves_out_its_ids(store: Store, output: Path) -> None:
    take, leave = store.root / "take.txt", store.root / "leave.txt"
    listed(take, *ids(1, 2, 3), "nobody", "no body ", "  img4 ")
    listed(leave, *ids(2, 5))
    warned = Warned()
    options = {"ids_file": take, "exclude_ids_file": leave}
    summary = packed(store, output, progress=warned, **options)
    assert sorted(all_ids(output)) == ids(1, 3, 4)
    assert summary.left_out == {
        "--ids-file": Count(4, "img0"),
        "--exclude-ids-file": Count(1, "img2"),
    }
    assert warned.warnings == [
        "--ids-file: 2 ids without a ready record, for example 'no body '; "
        "write one image_id on a line"
    ]
    made_by = manifest.load_manifest(output)
    assert made_by
    settings = made_by.runs[0].settings
    assert settings.ids_file
    assert settings.ids_file.path == "take.txt"
    assert settings.flags(store.root, output) == [
        *("--ids-file", str(take), "--exclude-ids-file", str(leave)),
    ]


def test_a_jsonl_is_a_list_of_the_ids_of_its_objects(store: Store, output: Path) -> None:
    take, leave = store.root / "take.jsonl", store.root / "leave.jsonl"
    take.write_bytes(b"".join(line(one) + b"\r\n" for one in store.records[1:4]))
    leave.write_bytes(b'\xef\xbb\xbf{"image_id": "img2", "group": 7}\n\n{"image_id":"img3\\u0020"}')
    warned = Warned()
    packed(store, output, ids_file=take, exclude_ids_file=leave, progress=warned)
    assert sorted(all_ids(output)) == ids(1, 3)
    renamed = line({"image_id": "img1", "first_id": "before"}) + b"\n"
    (store.root / ".shardwright").mkdir()
    (store.root / ".shardwright/facts.jsonl").write_bytes(renamed)
    leave.write_bytes(b'{"image_id": "before"}')
    packed(store, output, overwrite=True, ids_file=take, exclude_ids_file=leave)
    assert sorted(all_ids(output)) == ids(2, 3)


@pytest.mark.parametrize(
    "text",
    ["img1", "{}", "[]", '"img1"', '{"image_id": 1}', '{"image_id": ""}', "\ud800", "[" * 10_000],
)
def test_a_line_of_a_jsonl_without_an_id_is_an_error(text: str, store: Store, output: Path) -> None:
    path = store.root / "take.jsonl"
    good = '{"image_id": "img1"}\n\n'
    path.write_bytes((good + text + "\n" + good).encode(errors="surrogatepass"))
    with pytest.raises(UsageError) as told:
        packed(store, output, ids_file=path)
    assert str(told.value) == (
        f"{path}: --ids-file: line 3 is not an object with a valid image_id; write "
        '{"image_id": "..."} on each line, or give a list with another ending'
    )
    assert not output.exists()


def test_a_renamed_image_is_in_a_list_by_its_first_id(store: Store, output: Path) -> None:
    facts = store.root / ".shardwright/facts.jsonl"
    facts.parent.mkdir()
    names = {"img2": "old2", "img5": "old5", "img6": "old6"}
    lines = [{"image_id": now, "first_id": first} for now, first in names.items()]
    facts.write_bytes(b"".join(line(one) + b"\n" for one in lines))
    warned = Warned()
    leave = listed(store.root / "leave.txt", "old2", "img3", "img5")
    take = listed(store.root / "take.txt", *ids(1, 2, 3, 5), "old6")
    packed(store, output, exclude_ids_file=leave, ids_file=take, progress=warned)
    assert sorted(all_ids(output)) == ids(1, 6)
    assert warned.warnings == []
    assert verify(output, against=store.root, workers=1).findings == []
    packed(store, output, sync=True)
    assert sorted(all_ids(output)) == ids(1, 6)


def test_appending_goes_on_with_a_list_as_it_is_now(store: Store, output: Path) -> None:
    leave = listed(store.root / "leave.txt", *ids(2, 5))
    packed(store, output, exclude_ids_file=leave)
    assert packed(store, output, append=True).written_samples == 0
    assert not verify(output, against=store.root, workers=1).findings
    listed(leave, *ids(2))
    assert packed(store, output, append=True).written_samples == 1
    before = contents(output)
    leave.unlink()
    with pytest.raises(InputMissingError) as told:
        packed(store, output, append=True)
    assert str(told.value) == (
        f"{leave}: --exclude-ids-file: no such file; restore it, or give another "
        "--exclude-ids-file, or --exclude-ids-file none (if there are shards, with --sync or "
        "--overwrite)"
    )
    assert contents(output) == before
    nobody = listed(store.root / "nobody.txt")
    assert packed(store, output, sync=True, exclude_ids_file=nobody).written_samples == 1


def test_a_list_that_changed_is_not_the_run_to_resume(store: Store, output: Path) -> None:
    leave = listed(store.root / "leave.txt", *ids(2, 5))
    with using(KillingDisk(40)), pytest.raises(Killed):
        packed(store, output, exclude_ids_file=leave)
    listed(leave, *ids(2))
    with pytest.raises(UsageError, match=r"--exclude-ids-file was leave.txt \(xxh3 \w+\) and is"):
        packed(store, output, exclude_ids_file=leave, resume=True)


def test_a_list_that_is_missing_or_not_text_is_an_error(store: Store, output: Path) -> None:
    with pytest.raises(InputMissingError, match="--ids-file: no such file"):
        packed(store, output, ids_file=store.root / "nowhere")
    (store.root / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="--exclude-ids-file: is not UTF-8 text; save it as UTF-8"):
        packed(store, output, exclude_ids_file=store.root / "binary")
    assert not output.exists()


def test_lists_and_conditions_hold_in_every_part_of_a_split(store: Store, output: Path) -> None:
    leave = listed(store.root / "leave.txt", *ids(2, 5))
    packed(store, output, split="val=40%", exclude_ids_file=leave, where="rating < 6")
    grown = made(store.root, 30)
    there = {*all_ids(output / "train"), *all_ids(output / "val")}
    store.write_lines(
        line(one if one["image_id"] in there else {**one, "rating": "1"}) for one in grown.records
    )
    packed(grown, output, append=True)
    both = [all_ids(output / "train"), all_ids(output / "val")]
    assert sorted(both[0] + both[1]) == sorted(ids(*(n for n in range(30) if n not in (2, 5))))


def test_a_list_outside_a_store_that_is_a_link_is_found_by_every_run(
    store: Store, output: Path, tmp_path: Path
) -> None:
    link = tmp_path / "far/away/link"
    link.parent.mkdir(parents=True)
    link.symlink_to(store.root)
    leave = listed(tmp_path / "leave.txt", *ids(2, 5))
    other = tmp_path / "other.jsonl"
    other.write_bytes(store.jsonl.read_bytes())
    linked = Store(link, store.records)
    packed(linked, output, exclude_ids_file=leave, jsonl=other)
    assert packed(linked, output, append=True, jsonl=other).written_samples == 0
    advised = f"give --jsonl {other}; to replace"
    with pytest.raises(UsageError, match=advised):
        packed(linked, output, append=True)
    assert sorted(all_ids(output)) == ids(0, 1, 3, 4, 6, 7)


# -- the limits of the recipe --

FACTS = [
    {"image_id": "img0", "enlarged": 1.2, "cropped": 0.1, "tokens_lost": {"t5": 3, "gone": 9}},
    {"image_id": "img1", "enlarged": 2.0, "cropped": 0.3, "tokens_lost": {"t5": 0}},
    {"image_id": "img2", "enlarged": 1.0, "cropped": 0.5},
    {"image_id": "img3"},
]


def limited(store: Store, **limits: float) -> None:
    """Record limits in the recipe of a store, as derive does."""
    (store.root / ".shardwright").mkdir()
    recipe = replace(SPECIFICATION, selection=Selection(**limits))  # type: ignore[arg-type]
    OurStore(store.root, store.jsonl, recipe).record(always=True)
    lines = (json.dumps(known) + "\n" for known in FACTS)
    (store.root / ".shardwright/facts.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    ("limits", "left_out"),
    [
        ({"max_upscale": 1.5}, {"max_upscale = 1.5": Count(1, "img1")}),
        ({"max_crop": 0.29996}, {"max_crop = 0.29996": Count(1, "img2")}),  # facts have 4 digits
        ({"max_tokens_lost": 3}, {}),
        ({"max_tokens_lost": 2}, {"max_tokens_lost = 2": Count(1, "img0")}),
        ({"min_side": 24}, {"min_side = 24": Count(8, "img0")}),
        (
            {"max_crop": 0.2, "max_upscale": 1.5},
            {"max_upscale = 1.5": Count(1, "img1"), "max_crop = 0.2": Count(1, "img2")},
        ),
    ],
)
def test_images_on_record_that_exceed_a_limit_of_the_recipe_are_left_out_and_taken_out(
    limits: dict[str, float], left_out: dict[str, Count], store: Store, output: Path
) -> None:
    packed(store, output)
    before = contents(output)
    limited(store, **limits)
    assert packed(store, output / "new", dry_run=True).left_out == left_out
    count = sum(left.count for left in left_out.values())
    if count in (0, 8):
        return
    told = status(derived_dir=store.root, output_dir=output, workers=1)
    assert told.packed[str(output)].outdated == count
    with pytest.raises(OutdatedError, match=f"{count} removed"):
        packed(store, output, append=True)
    assert contents(output) == before
    pack(derived_dir=store.root, output_dir=output, workers=1, sync=True)
    assert len(all_ids(output)) == 8 - count
    assert not verify(output, against=store.root, workers=1).findings
    told = status(derived_dir=store.root, output_dir=output, workers=1)
    assert told.next_command == f"shardwright verify {output} --against {store.root}"
    assert told.packed[str(output)].outdated == 0


def test_conditions_know_what_status_and_look_show_of_a_sample(tmp_path: Path) -> None:
    images, derived, output = tmp_path / "images", tmp_path / "derived", tmp_path / "shards"
    make_images(images, 3, ((1000, 1000), (1200, 1200), (3000, 1200)))
    (images / "img001.txt").write_text(" ".join(["word"] * 100))
    sketch(images, derived, fit="bucket")
    for where, kept in {
        "enlarged > 1": [0],
        "enlarged = 1 and cropped < 0.01": [1],
        "cropped > 0.1": [2],
        "tokens >= 77": [1],
        "tokens_t5 < 77": [0, 2],
        "tokens_lost > 0": [1],
        "tokens_lost_t5 = 0": [0, 2],
    }.items():
        options: dict[str, Any] = {"derived_dir": derived, "output_dir": output, "where": where}
        summary = pack(**options, overwrite=True, workers=1)
        assert sorted(all_ids(output)) == [f"img{number:03}" for number in kept], where
        assert summary.ready_records == 3
        assert verify(output, against=derived, workers=1).counts.get("left_out") is None


def test_a_column_of_the_same_name_goes_before_a_fact(store: Store, output: Path) -> None:
    store.write_lines(line({**one, "tokens": "8"}) for one in store.records)
    packed(store, output, where="tokens = 8")
    assert len(all_ids(output)) == 8


def test_build_names_the_limits_of_the_recipe_that_stand_for_a_fact(tmp_path: Path) -> None:
    images, shards = make_images(tmp_path / "images", 2), tmp_path / "shards"
    flags = ("--output-dir", shards, "--encoders", "sketch", "--where", "cropped < 0.1")
    done = commands.run("build", images, *flags)
    assert done.returncode == 2
    assert (
        "error: --where: no record has a field cropped; there are aspect_bucket, caption, height, "
        "image_id, image_path, width; build has max_upscale, max_crop and max_tokens_lost in its "
        "recipe instead\n"
    ) in done.stderr
