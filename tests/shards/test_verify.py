"""``verify`` of a shard folder: each damage is found and named.

A damage is a function named for the fault; each is done to a valid folder, and what ``verify`` then
says is compared in full.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import shardwright
from shardwright import InputMissingError, Progress, UsageError, pack
from shardwright.cli.verify import describe
from shardwright.engine.local import Local
from shardwright.progress import Lines, quantity
from shardwright.storage.files import using
from shardwright.verifying import Finding, VerifyReport
from shardwright.verifying.folder import read_folder
from shardwright.verifying.shard import ShardToCheck
from shardwright.verifying.shards import verify_shards
from tests import commands
from tests.faults import Killed, KillingDisk, contents
from tests.stores import Record, Store, line, make_store, npy, record
from tests.tars import read_members, shards

Place = tuple[str, str | None, str | None]  # kind, sample, member

FIRST = "bucket_24x16/shard-000000.tar"
SECOND = "bucket_24x16/shard-000001.tar"
OTHER = "bucket_32x16/shard-000000.tar"


def latent(fields: Record) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store whose arrays have the shapes of their buckets."""
    six = [record(f"img{number}", ("24x16", "32x16")[number % 2]) for number in range(6)]
    return make_store(tmp_path / "derived", six, latent=latent)


@pytest.fixture
def folder(store: Store, output: Path) -> Path:
    """That store in shards: img0 and img2, img4, img1 and img3, img5."""
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1, sha256=True)
    return output


def places(
    folder: Path, *, read_data: bool = False, against: Path | None = None, workers: int = 1
) -> list[tuple[str, ...]]:
    """Give what is found: the kind, the file, and where they are known the sample and member."""
    report = shardwright.verify(folder, read_data=read_data, against=against, workers=workers)
    return [
        (finding.kind, finding.file, *filter(None, (finding.sample, finding.member)))
        for finding in report.findings
        if finding.kind != "no_manifest"  # has a test of its own
    ]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def offset_of(path: Path, name: str) -> int:
    with tarfile.open(path) as tar:
        return tar.getmember(name).offset_data


# An undamaged folder


@pytest.mark.parametrize("read_data", [False, True])
def test_an_undamaged_folder_has_no_findings(read_data: bool, folder: Path) -> None:
    before = contents(folder)
    report = shardwright.verify(folder, read_data=read_data, workers=2)
    assert report.findings == []
    assert not report.damaged
    assert report.checked == {"shards": 4, "samples": 6}
    assert report.bytes == sum(path.stat().st_size for path in shards(folder))
    assert contents(folder) == before


def test_verify_of_valid_shards_exits_0(folder: Path, store: Store) -> None:
    done = commands.run("verify", folder, "--against", store.root)
    assert done.returncode == 0
    assert "OK: no damage" in done.stdout
    assert "4 shards, 6 samples" in done.stdout
    assert "every byte read" in done.stdout


def test_a_verdict_says_what_was_not_read(folder: Path, store: Store) -> None:
    flip(folder / FIRST, offset_of(folder / FIRST, "img0.vae.npy") + 200)
    done = commands.run("verify", folder)
    size = quantity(sum(path.stat().st_size for path in shards(folder)), "B")
    verdict = f"OK: structure (sizes, names, indexes); {size} not read: add --read-data"
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{folder}: {verdict}")
    assert commands.run("verify", folder, "--read-data").returncode == 12


def test_ids_of_every_kind_are_held_against_the_store(tmp_path: Path, output: Path) -> None:
    names = ["a.b", "__x__", "naïve", "k" * 200, "a b", "%41"]
    store = make_store(
        tmp_path / "derived", [record(name, "24x16") for name in names], latent=latent
    )
    pack(derived_dir=store.root, output_dir=output, workers=1)
    assert places(output, against=store.root) == []


# Names, sizes and counts


def missing(folder: Path) -> None:
    (folder / FIRST).unlink()


def short(folder: Path) -> None:
    os.truncate(folder / FIRST, 512)


def long(folder: Path) -> None:
    with (folder / FIRST).open("ab") as file:
        file.write(bytes(512))


def in_the_first_header(folder: Path) -> None:
    flip(folder / FIRST, 3)


def foreign(folder: Path) -> None:
    (folder / "bucket_24x16/shard-000009.tar").write_bytes(b"of another set")


def renamed(folder: Path) -> None:
    (folder / FIRST).rename(folder / "bucket_24x16/shard-000009.tar")


def a_bucket_missing(folder: Path) -> None:
    shutil.rmtree(folder / "bucket_24x16")


def no_index(folder: Path) -> None:
    (folder / ".shardwright/index/bucket_24x16/shard-000000.idx").unlink()


def flipped_index(folder: Path) -> None:
    flip(folder / ".shardwright/index/bucket_24x16/shard-000000.idx", 100)


def index_of_another_shard(folder: Path) -> None:
    index = folder / ".shardwright/index/bucket_24x16"
    shutil.copy(index / "shard-000001.idx", index / "shard-000000.idx")


def no_records(folder: Path) -> None:
    (folder / ".shardwright/index/bucket_24x16/shard-000000.jsonl").unlink()


def flipped_records(folder: Path) -> None:
    flip(folder / ".shardwright/index/bucket_24x16/shard-000000.jsonl", 100)


def records_of_another_shard(folder: Path) -> None:
    index = folder / ".shardwright/index/bucket_24x16"
    shutil.copy(index / "shard-000001.jsonl", index / "shard-000000.jsonl")


def flipped_manifest(folder: Path) -> None:
    flip(folder / ".shardwright/manifest.json", 100)


def flipped_sums(folder: Path) -> None:
    flip(folder / ".shardwright/SHA256SUMS", 100)


def no_sums(folder: Path) -> None:
    (folder / ".shardwright/SHA256SUMS").unlink()


def a_link_that_leads_nowhere(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to("nowhere")


WITHOUT_READING: list[tuple[Callable[[Path], None], list[tuple[str, ...]]]] = [
    (missing, [("missing", FIRST)]),
    (short, [("short", FIRST)]),
    (long, [("long", FIRST)]),
    (in_the_first_header, [("header_differs", FIRST)]),
    (foreign, [("foreign", "bucket_24x16/shard-000009.tar")]),
    (renamed, [("renamed", "bucket_24x16/shard-000009.tar")]),
    (a_bucket_missing, [("missing", FIRST), ("missing", SECOND)]),
    (no_index, [("index_damaged", FIRST)]),
    (flipped_index, [("index_damaged", FIRST)]),
    (index_of_another_shard, [("index_damaged", FIRST)]),
    (no_records, [("records_damaged", FIRST)]),
    (flipped_records, [("records_damaged", FIRST)]),
    (records_of_another_shard, [("records_damaged", FIRST)]),
    (flipped_manifest, [("manifest_damaged", ".shardwright/manifest.json")]),
    (flipped_sums, [("sha256_differs", ".shardwright/SHA256SUMS")]),
    (no_sums, [("sha256_differs", ".shardwright/SHA256SUMS")]),
    (a_link_that_leads_nowhere, [("unreadable", FIRST)]),
]


@pytest.mark.parametrize(
    ("damage", "found"), WITHOUT_READING, ids=lambda x: getattr(x, "__name__", "")
)
def test_damage_that_is_found_without_reading(
    damage: Callable[[Path], None], found: list[tuple[str, ...]], folder: Path
) -> None:
    damage(folder)
    assert places(folder) == found


def test_a_renamed_shard_says_which_it_is(folder: Path) -> None:
    renamed(folder)
    (finding,) = shardwright.verify(folder, workers=1).findings
    assert str(finding) == (
        f"bucket_24x16/shard-000009.tar: is {FIRST} under another name; rename it to {FIRST}"
    )


def test_a_damaged_manifest_is_reported_once(folder: Path) -> None:
    flipped_manifest(folder)
    (finding,) = shardwright.verify(folder, workers=1).findings
    fix = "make all shards again with --overwrite and all flags of the last run"
    assert str(finding) == f".shardwright/manifest.json: is damaged; {fix}"


def test_a_damaged_index_is_reported_with_one_fix(folder: Path) -> None:
    flipped_index(folder)
    (finding,) = shardwright.verify(folder, workers=1).findings
    index = f"{folder}/.shardwright/index/bucket_24x16/shard-000000.idx"
    assert finding.what == f"its index cannot be used ({index}: is damaged)"
    assert finding.fix.startswith("restore it from a copy, or delete it and run the same pack")


@pytest.mark.parametrize(
    ("damage", "how"), [(no_records, "No such file or directory"), (flipped_records, "is damaged")]
)
def test_damaged_records_are_reported_with_one_fix_which_helps(
    damage: Callable[[Path], None], how: str, folder: Path, store: Store
) -> None:
    damage(folder)
    (finding,) = shardwright.verify(folder, workers=1).findings
    records = f"{folder}/.shardwright/index/bucket_24x16/shard-000000.jsonl"
    assert str(finding) == (
        f"{FIRST}: its records cannot be used ({records}: {how}); restore it from a copy, or "
        "delete it and run the same pack with --resume"
    )
    assert finding.damage
    (folder / FIRST).unlink()
    pack(derived_dir=store.root, output_dir=folder, shard_size=2, workers=1, resume=True)
    assert places(folder, read_data=True) == []


def test_a_missing_shard_says_how_many_samples_went_and_how_to_get_them_back(
    folder: Path, store: Store
) -> None:
    missing(folder)
    (finding,) = shardwright.verify(folder, workers=1).findings
    assert finding.what == "is missing, with 2 samples"
    assert finding.fix == "restore it from a copy, or run the same pack with --resume"
    pack(derived_dir=store.root, output_dir=folder, shard_size=2, workers=1, resume=True)
    assert places(folder, read_data=True) == []


def swap(one: Path, other: Path) -> None:
    one.rename(one.with_name("x"))
    other.rename(one)
    one.with_name("x").rename(other)


@pytest.mark.parametrize("read_data", [False, True])
@pytest.mark.parametrize("second", [SECOND, OTHER], ids=["one bucket", "two buckets"])
def test_shards_that_were_swapped_say_which_they_are(
    second: str, read_data: bool, tmp_path: Path, output: Path
) -> None:
    four = [record(f"img{number}", "24x16") for number in range(4)]
    # With pictures of one size, and so latents of one shape, all shards are of one size.
    two = [record(f"img{number}", "32x16", width=24, height=16) for number in range(4, 6)]
    store = make_store(tmp_path / "derived", four + two, latent=(16, 2, 3))
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1)
    swap(output / FIRST, output / second)
    found = shardwright.verify(output, read_data=read_data, workers=1).findings
    assert [str(finding) for finding in found if finding.damage] == [
        f"{FIRST}: is {second} under another name; rename it to {second}",
        f"{second}: is {FIRST} under another name; rename it to {FIRST}",
    ]


@pytest.mark.parametrize("read_data", [False, True])
def test_a_shard_of_another_size_in_the_place_of_one_says_which_it_is(
    read_data: bool, folder: Path
) -> None:
    shutil.copy(folder / SECOND, folder / FIRST)
    assert places(folder, read_data=read_data) == [("renamed", FIRST)]


# Every byte


def in_data(folder: Path) -> None:
    flip(folder / FIRST, offset_of(folder / FIRST, "img2.t5h.npy") + 100_000)


def in_header(folder: Path) -> None:
    flip(folder / FIRST, offset_of(folder / FIRST, "img2.vae.npy") - 512 + 300)


def in_padding(folder: Path) -> None:
    flip(folder / FIRST, offset_of(folder / FIRST, "img0.dinov3.npy") - 1 - 512)


def in_the_end(folder: Path) -> None:
    flip(folder / FIRST, (folder / FIRST).stat().st_size - 700)


def cut_in_the_middle(folder: Path) -> None:
    os.truncate(folder / FIRST, offset_of(folder / FIRST, "img2.t5h.npy") + 100)


def in_two_places(folder: Path) -> None:
    in_data(folder)
    in_header(folder)


BY_READING: list[tuple[Callable[[Path], None], list[tuple[str, ...]]]] = [
    (in_data, [("data_differs", FIRST, "img2", "t5h.npy")]),
    (in_header, [("header_differs", FIRST, "img2", "vae.npy")]),
    (in_padding, [("padding_differs", FIRST, "img0", "json")]),
    (in_the_end, [("end_differs", FIRST)]),
    (
        cut_in_the_middle,
        [
            ("cut_off", FIRST, "img2", "t5h.npy"),
            ("cut_off", FIRST, "img2", "t5m.npy"),
            ("end_differs", FIRST),
        ],
    ),
    (
        in_two_places,
        [("header_differs", FIRST, "img2", "vae.npy"), ("data_differs", FIRST, "img2", "t5h.npy")],
    ),
    (long, [("end_differs", FIRST)]),
]


@pytest.mark.parametrize(("damage", "found"), BY_READING, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("workers", [1, 3])
def test_damage_is_named_down_to_the_member(
    damage: Callable[[Path], None], found: list[tuple[str, ...]], workers: int, folder: Path
) -> None:
    damage(folder)
    reported = places(folder, read_data=True, workers=workers)
    if damage in (cut_in_the_middle, long):
        assert reported.pop(0) == ("short" if damage is cut_in_the_middle else "long", FIRST)
    assert reported == [("differs", FIRST), *found]


@pytest.mark.parametrize("damage", [in_data, in_header, in_padding, in_the_end])
def test_a_flip_is_found_also_when_the_manifest_is_lost(
    damage: Callable[[Path], None], folder: Path
) -> None:
    """The index of the shard speaks for it then."""
    damage(folder)
    (folder / ".shardwright/manifest.json").unlink()
    assert ("differs", FIRST) in places(folder, read_data=True)


def test_verify_of_damage_exits_12_and_names_shard_sample_member_and_fix(folder: Path) -> None:
    in_data(folder)
    done = commands.run("verify", folder, "--read-data")
    assert done.returncode == 12
    assert (
        f"{FIRST}, sample img2, member t5h.npy: its data is damaged; restore it from a copy, "
        "or delete it and run the same pack with --resume"
    ) in done.stdout
    report = json.loads(commands.run("verify", folder, "--read-data", "--json").stdout)
    assert report["damaged"] is True
    assert report["counts"] == {"differs": 1, "data_differs": 1}
    assert report["findings"][1]["sample"] == "img2"
    assert report["findings"][1]["member"] == "t5h.npy"


def test_a_shard_all_of_which_is_damaged_does_not_flood_the_report(
    tmp_path: Path, output: Path
) -> None:
    forty = [record(f"img{number:02}", "24x16") for number in range(40)]
    store = make_store(tmp_path / "derived", forty, latent=latent, share=["t5", "dinov3"])
    pack(derived_dir=store.root, output_dir=output, workers=1)
    path = output / FIRST
    path.write_bytes(
        bytes(byte ^ 1 for byte in path.read_bytes()[:2_000_000]) + path.read_bytes()[2_000_000:]
    )
    found = places(output, read_data=True)
    assert len(found) == 101
    assert found[-1] == ("more", FIRST)


def test_an_interrupted_run_is_reported_with_resume(store: Store, output: Path) -> None:
    with using(KillingDisk(37)), pytest.raises(Killed):
        pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1)
    report = shardwright.verify(output, read_data=True, workers=1)
    assert [finding.kind for finding in report.findings] == ["unfinished", "leftover"]
    assert "--resume" in report.findings[0].fix
    assert report.damaged
    flip(output / FIRST, 5000)
    assert ("data_differs", FIRST, "img0", "dinov3.npy") in places(output, read_data=True)
    (output / FIRST).unlink()
    pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1, resume=True)
    assert places(output, read_data=True) == []


def test_an_interrupted_append_leaves_the_old_shards_provable(store: Store, folder: Path) -> None:
    grown = make_store(store.root, [*store.records, record("new", "24x16")], latent=latent)
    with using(KillingDisk(12)), pytest.raises(Killed):
        pack(derived_dir=grown.root, output_dir=folder, append=True, workers=1)
    kinds = [place[0] for place in places(folder, read_data=True)]
    assert kinds in (["unfinished"], ["unfinished", "leftover"])
    (folder / FIRST).unlink()
    assert ("missing", FIRST) in places(folder)


def test_progress_has_a_rate_and_the_time_left(folder: Path) -> None:
    stream = io.StringIO()
    shardwright.verify(folder, read_data=True, workers=1, progress=Lines(stream))
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("verify: bucket_32x16/shard-000001.tar OK, 4/4 shards (")
    assert last.endswith("B/s, 0s left)")


def test_progress_counts_every_byte(folder: Path) -> None:
    class Counter(Progress):
        total = done = 0

        def phase(self, name: str, total: int, unit: str) -> None:
            self.total = total

        def advance(self, count: int) -> None:
            self.done += count

    counter = Counter()
    report = shardwright.verify(folder, read_data=True, workers=2, progress=counter)
    assert counter.done == counter.total == report.bytes


# Against the store


def changed_array(store: Store) -> None:
    flip(store.array("vae", "img0"), 200)


def longer_array(store: Store) -> None:
    with store.array("t5", "img0").open("ab") as file:
        file.write(b"x")


def array_gone(store: Store) -> None:
    store.array("dinov3", "img0").unlink()


def changed_caption(store: Store) -> None:
    store.write_lines(
        line({**f, "caption": "another"} if f["image_id"] == "img0" else f) for f in store.records
    )


def changed_mask(store: Store) -> None:
    mask = [1] * 10 + [0] * 67
    store.write_lines(
        line({**f, "t5_attention_mask": mask} if f["image_id"] == "img0" else f)
        for f in store.records
    )


def record_gone(store: Store) -> None:
    store.write_lines(line(f) for f in store.records if f["image_id"] != "img0")


def later_record(store: Store) -> None:
    store.append(line({**store.records[0], "caption": "a later one"}))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (changed_array, ("outdated", FIRST, "img0")),
        (longer_array, ("source_differs", FIRST, "img0", "t5h.npy")),
        (changed_caption, ("outdated", FIRST, "img0")),
        (changed_mask, ("outdated", FIRST, "img0")),
        (record_gone, ("outdated", FIRST, "img0")),
        (later_record, ("outdated", FIRST, "img0")),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_differs_from_its_source_is_named(
    change: Callable[[Store], None], found: tuple[str, ...], folder: Path, store: Store
) -> None:
    change(store)
    assert places(folder, read_data=True) == []
    assert places(folder, against=store.root) == [found]


def test_arrays_that_are_missing_in_the_store_are_no_damage_of_the_shards(
    folder: Path, store: Store
) -> None:
    array_gone(store)
    store.array("vae", "img5").unlink()
    report = shardwright.verify(folder, against=store.root, workers=1)
    (found,) = report.findings
    assert (found.kind, found.damage, report.not_compared) == ("not_compared", False, 2)
    assert str(found).startswith(
        f"{store.root}: lacks 2 arrays of packed samples, for example "
        f"{store.array('dinov3', 'img0')}; restore them, or make them again with "
        "shardwright derive "
    )
    done = commands.run("verify", folder, "--against", store.root)
    assert (done.returncode, "NOT COMPARED: 2 arrays; no damage\n" in done.stdout) == (3, True)
    changed_caption(store)
    done = commands.run("verify", folder, "--against", store.root)
    assert "OUTDATED: 1 sample; no damage, 2 arrays NOT COMPARED\n" in done.stdout
    flip(folder / FIRST, 700)
    assert commands.run("verify", folder, "--against", store.root).returncode == 12


def test_an_array_that_rotted_is_damage_and_not_outdated(folder: Path, store: Store) -> None:
    path = store.array("vae", "img0")
    flip(path, 200)
    os.utime(path, (0, 0))
    # A test cannot set the time at which an inode changed, so the shard's changes later.
    while (folder / FIRST).stat().st_ctime_ns <= path.stat().st_ctime_ns:
        os.chmod(folder / FIRST, 0o644)
    assert places(folder, against=store.root) == [("source_differs", FIRST, "img0", "vae.npy")]
    done = commands.run("verify", folder, "--against", store.root)
    assert (done.returncode, "DAMAGED: 1 finding" in done.stdout) == (12, True)


def test_outdated_samples_are_counted_with_the_reason_and_the_command_and_are_no_damage(
    folder: Path, store: Store
) -> None:
    changed_caption(store)
    flip(store.array("vae", "img0"), 200)
    flip(store.array("t5", "img5"), 200)
    report = shardwright.verify(folder, against=store.root, workers=1)
    assert (report.damaged, report.outdated, report.counts) == (False, 2, {"outdated": 2})
    assert [(finding.sample, finding.damage) for finding in report.findings] == [
        ("img0", False),
        ("img5", False),
    ]
    assert report.findings[0].what == (
        f"json differs from the record in {store.jsonl}, "
        f"vae.npy differs from {store.array('vae', 'img0')}"
    )
    command = f"pack --derived-dir {store.root} --output-dir {folder} --sync"
    assert report.findings[1].fix == f"run shardwright {command}"
    done = commands.run("verify", folder, "--against", store.root)
    assert done.returncode == 3
    assert f"{folder}: OUTDATED: 2 samples; no damage\n" in done.stdout
    assert done.stdout.count("--sync") == 1
    assert f"\nto update them, run shardwright {command}\n" in done.stdout
    assert f"{FIRST} outdated, " in done.stderr


def test_a_damaged_shard_is_damage_even_if_the_store_has_changed(
    folder: Path, store: Store
) -> None:
    changed_caption(store)
    flip(folder / SECOND, 700)
    report = shardwright.verify(folder, against=store.root, workers=1)
    assert (report.damaged, report.outdated) == (True, 1)
    done = commands.run("verify", folder, "--against", store.root)
    assert done.returncode == 12
    assert "DAMAGED: 2 findings, 1 sample OUTDATED" in done.stdout


def test_every_outdated_sample_is_counted_where_only_the_first_hundred_are_listed(
    tmp_path: Path, output: Path
) -> None:
    many = [record(f"img{number}", "24x16") for number in range(120)]
    store = make_store(tmp_path / "many", many, latent=(16, 2, 3), share=("dinov3", "vae", "t5"))
    pack(derived_dir=store.root, output_dir=output, workers=1)
    store.write_lines(line({**fields, "caption": "another"}) for fields in many)
    report = shardwright.verify(output, against=store.root, workers=1)
    assert (report.damaged, report.outdated, report.counts) == (False, 120, {"outdated": 100})
    told = describe(report)
    assert told.startswith("outdated: 120\n")
    assert "\n  and 100 more (--json lists 100 in all)\nto update them, run shardwright" in told


def test_against_sends_a_worker_only_the_records_of_its_shard(folder: Path, store: Store) -> None:
    sent: list[ShardToCheck] = []

    class Recording(Local):
        def run(self, function: Any, tasks: Any, instead: Any = None) -> Any:  # noqa: ANN401 - see Engine
            sent.extend(tasks)
            return super().run(function, sent, instead)

    report = VerifyReport(str(folder), read_data=False)
    folders = [read_folder("", folder)]
    verify_shards(report, folder, folders, store.root, Recording(1), Progress())
    assert report.findings == []
    found = [sorted(task.source.lines) for task in sent if task.source]
    assert found == [["img0", "img2"], ["img4"], ["img1", "img3"], ["img5"]]


def test_against_compares_all_records_where_an_index_is_of_another_shard(
    folder: Path, store: Store
) -> None:
    index_of_another_shard(folder)
    assert places(folder, against=store.root) == [("index_damaged", FIRST)]


def test_against_works_without_a_manifest_too(folder: Path, store: Store) -> None:
    shutil.rmtree(folder / ".shardwright")
    assert places(folder, against=store.root) == []
    changed_array(store)
    assert places(folder, against=store.root) == [("source_differs", FIRST, "img0", "vae.npy")]


def test_against_what_is_no_store_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="--against"):
        shardwright.verify(folder, against=tmp_path)


def test_against_is_not_for_a_store(store: Store) -> None:
    with pytest.raises(UsageError, match="--against is for a shard folder"):
        shardwright.verify(store.root, against=store.root)


# What is in a sample, in shards that are as they were packed


def test_a_latent_of_its_pictures_own_size_is_only_noted(tmp_path: Path, output: Path) -> None:
    two = [record(f"img{number}", "24x16", width=40, height=24) for number in range(2)]
    store = make_store(tmp_path / "derived", two, latent=(16, 3, 5))
    pack(derived_dir=store.root, output_dir=output, workers=1)
    report = shardwright.verify(output, read_data=True, workers=1)
    (note,) = report.findings
    assert (note.kind, note.sample, note.member, note.damage) == (
        "own_size",
        "img0",
        "vae.npy",
        False,
    )
    assert "(2 such arrays in this shard)" in note.what
    assert "--fit bucket" in note.fix
    assert not report.damaged


def test_a_latent_of_neither_size_is_damage(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("img0", "24x16")], latent=(16, 9, 9))
    pack(derived_dir=store.root, output_dir=output, workers=1)
    report = shardwright.verify(output, read_data=True, workers=1)
    (finding,) = report.findings
    assert (finding.kind, finding.sample, finding.damage) == ("vae_wrong_size", "img0", True)
    assert finding.what == "its shape (16, 9, 9) fits neither its picture nor its bucket"
    assert report.damaged
    assert "fix the sample in the store" in finding.fix


def test_a_manifest_cannot_lead_out_of_its_folder(folder: Path) -> None:
    path = folder / ".shardwright/manifest.json"
    body = (
        path.read_bytes().rpartition(b',\n  "xxh3": "')[0].replace(FIRST.encode(), b"../../x.tar")
    )
    path.write_bytes(body + b',\n  "xxh3": "' + xxhash.xxh3_64_hexdigest(body).encode() + b'"\n}\n')
    (finding,) = shardwright.verify(folder, workers=1).findings
    assert (finding.kind, finding.file) == ("manifest_damaged", ".shardwright/manifest.json")
    assert finding.what == "names '../../x.tar', which is not the path of a shard"


# Shards that other tools made


def other_tool(folder: Path, *members: tuple[str, bytes], name: str = "00000.tar") -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as tar:
        for member, data in members:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return folder


@pytest.fixture
def members(folder: Path) -> list[tuple[str, bytes]]:
    """The members of one valid sample, img4."""
    return read_members(folder / SECOND)


def findings(folder: Path) -> list[Finding]:
    """Give what is found in shards that have no manifest, but for the note that they have none."""
    note, *found = shardwright.verify(folder, workers=1).findings
    assert note.kind == "no_manifest"
    return found


def test_a_valid_tar_of_another_tool_has_only_a_warning(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    report = shardwright.verify(other_tool(tmp_path / "x", *members), workers=1)
    assert report.counts == {"no_manifest": 1}
    assert report.checked == {"shards": 1, "samples": 1}


def test_shards_without_their_manifest_are_not_called_undamaged(folder: Path) -> None:
    """As after ``cp -r shards/* elsewhere/``: a lost shard and a flipped value leave no trace."""
    shutil.rmtree(folder / ".shardwright")
    (folder / SECOND).unlink()
    in_data(folder)
    done = commands.run("verify", folder, "--read-data")
    assert done.returncode == 0
    assert "has no manifest, so missing shards and changed bytes cannot be detected" in done.stdout
    assert "copy .shardwright along with the shards, or pack again" in done.stdout
    verdict = "OK, as far as can be checked without a manifest, 1 warning"
    assert f"{folder}: {verdict}" in done.stdout


def test_members_that_a_sample_does_not_have_are_named(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    (finding,) = findings(other_tool(tmp_path / "x", members[0], members[1], members[3]))
    assert str(finding) == (
        "00000.tar, sample img4: has no vae.npy, t5m.npy; "
        "pack the samples again with shardwright pack"
    )


def test_a_key_with_a_dot_splits_wrongly(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    dotted = [(f"v1.{name}", data) for name, data in members]
    found = findings(other_tool(tmp_path / "x", *dotted))
    assert [(f.kind, f.sample, f.member) for f in found if f.kind == "splits_wrongly"] == [
        ("splits_wrongly", "v1", suffix)
        for suffix in ("json", "dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy")
    ]
    assert "field img4.json" in found[0].what


def test_a_name_that_loaders_skip_is_reported(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    (finding,) = findings(other_tool(tmp_path / "x", *members, ("README", b"")))
    assert (finding.kind, finding.member) == ("no_key", "README")


def test_a_repeated_member_is_reported(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    (finding,) = findings(other_tool(tmp_path / "x", *members, members[2]))
    assert (finding.kind, finding.sample, finding.member) == ("repeated_member", "img4", "vae.npy")


def test_a_key_in_two_places_of_a_shard_is_reported(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    between = [(name.replace("img4", "img9"), data) for name, data in members]
    found = findings(other_tool(tmp_path / "x", *members[:2], *between, *members[2:]))
    assert ("key_apart", "img4") in [(f.kind, f.sample) for f in found]


def test_a_key_in_two_shards_is_reported(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    other_tool(tmp_path / "x", *members)
    (finding,) = findings(other_tool(tmp_path / "x", *members, name="00001.tar"))
    assert (finding.kind, finding.file, finding.sample) == ("repeated_key", "00001.tar", "img4")
    assert "of 00000.tar" in finding.what


@pytest.mark.parametrize(
    ("suffix", "data", "kind"),
    [
        ("vae.npy", b"not an array", "vae_not_npy"),
        ("vae.npy", npy(np.zeros((16, 2, 3), np.float32)), "vae_wrong_dtype"),
        ("vae.npy", npy(np.zeros((2, 3), np.float16)), "vae_wrong_shape"),
        ("vae.npy", npy(np.zeros((16, 2, 3), np.float16))[:-1], "vae_truncated"),
        ("dinov3.npy", npy(np.zeros(1024, np.float32)) + b"x", "dinov3_trailing_bytes"),
        ("t5h.npy", b"", "t5_empty"),
        ("t5m.npy", npy(np.full(77, 2, np.uint8)), "mask_invalid"),
        ("t5m.npy", npy(np.zeros(76, np.uint8)), "mask_wrong_shape"),
        ("json", b"{", "json_not_json"),
        ("json", b"[]", "json_not_an_object"),
    ],
)
def test_a_member_that_does_not_parse_is_reported(
    suffix: str, data: bytes, kind: str, members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    changed = [(name, data if name == f"img4.{suffix}" else old) for name, old in members]
    (finding,) = findings(other_tool(tmp_path / "x", *changed))
    assert (finding.kind, finding.sample, finding.member) == (kind, "img4", suffix)


def test_a_pickled_array_is_reported_and_nothing_runs(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    bad = npy(np.array([Trap()], dtype=object), allow_pickle=True)
    changed = [(name, bad if name.endswith("vae.npy") else old) for name, old in members]
    (finding,) = findings(other_tool(tmp_path / "x", *changed))
    assert finding.kind == "vae_pickled"
    assert not (tmp_path / "sprung").exists()


def test_a_record_that_names_a_path_is_not_followed(
    members: list[tuple[str, bytes]], tmp_path: Path, store: Store
) -> None:
    fields = {**json.loads(members[0][1]), "image_id": "../../etc/passwd"}
    changed = [(members[0][0], json.dumps(fields).encode()), *members[1:]]
    found = places(other_tool(tmp_path / "x", *changed), against=store.root)
    assert ("image_id_invalid", "00000.tar", "img4", "json") in found
    assert [kind for kind, *_ in found] == ["image_id_invalid", "left_out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_or_device_is_reported(
    kind: bytes, members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    folder = other_tool(tmp_path / "x", *members)
    with tarfile.open(folder / "00000.tar", "a") as tar:
        info = tarfile.TarInfo("img5.json")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    (finding,) = findings(folder)
    assert (finding.kind, finding.member) == ("not_a_file", "img5.json")


def test_webdatasets_own_writer_gets_a_note_for_its_pax_headers(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    import webdataset

    (tmp_path / "x").mkdir()
    with webdataset.TarWriter(str(tmp_path / "x/00000.tar")) as writer:
        fields = {name.split(".", 1)[1]: data for name, data in members}
        writer.write({"__key__": "img4", **fields})
    report = shardwright.verify(tmp_path / "x", workers=1)
    assert report.counts == {"no_manifest": 1, "extended_headers": 1}
    assert not report.damaged


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", "not_a_tar"), (b"garbage" * 300, "not_a_tar"), (bytes(1024), "no_samples")],
    ids=["empty file", "garbage", "empty tar"],
)
def test_what_is_no_tar_of_samples_is_reported(data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    assert [place[0] for place in places(tmp_path)] == [kind]


def test_a_tar_cut_anywhere_is_reported(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    folder = other_tool(tmp_path / "x", *members)
    path = folder / "00000.tar"
    complete = path.read_bytes()
    end = 512 * sum(1 + -(-len(data) // 512) for _, data in members) + 1024
    for length in range(end - 1, 0, -5003):
        path.write_bytes(complete[:length])
        assert "not_a_tar" in [place[0] for place in places(folder)], length


def test_a_file_is_not_taken_for_a_folder(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"shard-000000\.tar: is a file; give the .* it is in"):
        shardwright.verify(folder / FIRST)
