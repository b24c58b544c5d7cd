"""What packing does where the specification is silent or disagrees with itself."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import (
    LockedError,
    NoSpaceError,
    PackSummary,
    ShardExistsError,
    UsageError,
    pack,
)
from tests import commands
from tests.stores import Store, line, make_store, npy_header, record, records
from tests.tars import all_ids, digests, ids, ids_by_shard, listing, read_members, shards

ONES = [1] * 76


def reasons(summary: PackSummary) -> dict[str, tuple[int, str]]:
    return {name: (why.count, why.example) for name, why in summary.skipped_by_reason.items()}


# Readiness


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"aspect_bucket": None}, "aspect_bucket_missing"),
        ({"aspect_bucket": 1024}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "1024"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "1024x1024 "}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "1024x1024\n"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "01024x1024"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "0x0"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "-8x8"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "1024X1024"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "٨x٨"}, "aspect_bucket_invalid"),
        ({"aspect_bucket": "9999999x8"}, "aspect_bucket_invalid"),
        ({"caption": None}, "caption_missing"),
        ({"caption": ""}, "caption_invalid"),
        ({"caption": " \t\n\u3000"}, "caption_invalid"),
        ({"caption": ["a"]}, "caption_invalid"),
        ({"caption": 7}, "caption_invalid"),
        ({"t5_attention_mask": None}, "mask_missing"),
        ({"t5_attention_mask": []}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, 1, 1]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, 2]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, -1]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, True]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, 1.0]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, "1"]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, None]}, "mask_invalid"),
        ({"t5_attention_mask": [*ONES, [1]]}, "mask_invalid"),
        ({"t5_attention_mask": "1" * 77}, "mask_invalid"),
        ({"t5_attention_mask": {str(n): 1 for n in range(77)}}, "mask_invalid"),
        ({"image_path": 5}, "image_path_invalid"),
        ({"height": "1024"}, "size_invalid"),
        ({"height": True}, "size_invalid"),
        ({"width": 1024.0}, "size_invalid"),
        ({"width": 0}, "size_invalid"),
        ({"height": -8}, "size_invalid"),
        ({"height": 1_000_000}, "size_invalid"),
    ],
)
def test_a_record_that_is_not_ready_is_skipped_with_a_named_reason(
    fields: dict[str, Any], reason: str, tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", [record("good"), record("bad") | fields])
    summary = pack(derived_dir=store.root, output_dir=output, workers=1)
    assert reasons(summary) == {reason: (1, "bad")}
    assert all_ids(output) == ["good"]


def test_a_record_of_stage_1_is_skipped_by_that_name(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("good")])
    store.append(line({"image_path": "old.jpg", "dinov3_embedding": [0.5] * 1024}))
    summary = pack(derived_dir=store.root, output_dir=output)
    assert reasons(summary) == {"stage1_record": (1, "line 2")}


@pytest.mark.parametrize(
    "fields",
    [
        {"image_path": None},
        {"image_path": ""},
        {"height": None, "width": None},
        {"format_version": None},
        {"format_version": 1},
        {"t5_attention_mask": [0] * 77},
        {"dinov3_embedding": [0.5]},
    ],
    ids=str,
)
def test_what_no_trainer_needs_does_not_keep_a_record_from_being_packed(
    fields: dict[str, Any], tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", [record("a") | fields])
    summary = pack(derived_dir=store.root, output_dir=output)
    assert (reasons(summary), all_ids(output)) == ({}, ["a"])
    assert shardwright.verify(store.root).damaged  # verify is stricter


@pytest.mark.parametrize("field", ["caption", "t5_attention_mask", "aspect_bucket"])
def test_an_absent_field_counts_as_missing(field: str, tmp_path: Path, output: Path) -> None:
    incomplete = record("bad")
    del incomplete[field]
    store = make_store(tmp_path / "derived", [incomplete])
    summary = pack(derived_dir=store.root, output_dir=output)
    short = field.removeprefix("t5_attention_")
    assert reasons(summary) == {f"{short}_missing": (1, "bad")}


def test_a_record_that_proves_unreadable_can_be_superseded(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("a")])
    good = store.jsonl.read_bytes()
    store.jsonl.write_bytes(good.rstrip()[:-1] + b', "own": 1e999}\n' + good)
    summary = pack(derived_dir=store.root, output_dir=output)
    assert reasons(summary) == {"superseded": (1, "a")}
    assert (summary.ready_records, summary.written_samples) == (1, 1)


def test_two_images_with_one_id_are_both_skipped(tmp_path: Path, output: Path) -> None:
    given = [
        record("a", image_path="one/a.jpg"),
        record("b"),
        record("a", image_path="two/a.jpg"),
        record("a", image_path="one/a.jpg"),
    ]
    store = make_store(tmp_path / "derived", given)
    summary = pack(derived_dir=store.root, output_dir=output)
    assert reasons(summary) == {"duplicate_id": (3, "a")}
    assert (summary.total_records, summary.ready_records) == (4, 1)
    assert all_ids(output) == ["b"]


def test_of_a_repeated_record_the_later_wins_in_its_place(tmp_path: Path, output: Path) -> None:
    given = [
        record("a", caption="old"),
        record("b"),
        record("a", caption="newer", image_path="data/approved/./a.jpg"),
        record("c"),
        record("a", caption="newest"),
    ]
    store = make_store(tmp_path / "derived", given)
    summary = pack(derived_dir=store.root, output_dir=output)
    assert reasons(summary) == {"superseded": (2, "a")}
    assert (summary.total_records, summary.ready_records) == (5, 3)
    (shard,) = shards(output)
    expected = [store.members(given[n]) for n in (1, 3, 4)]
    assert read_members(shard) == [member for members in expected for member in members]


def test_a_later_record_wins_even_when_it_is_not_ready(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("a"), record("a", caption="")])
    summary = pack(derived_dir=store.root, output_dir=output)
    assert reasons(summary) == {"superseded": (1, "a"), "caption_invalid": (1, "a")}
    assert (summary.total_records, summary.ready_records) == (2, 0)


def test_total_records_are_ready_plus_skipped(tmp_path: Path, output: Path) -> None:
    given = [
        *records(6),
        record("twice"),
        record("clash", image_path="x"),
        record("blank", caption=" "),
        record("twice"),
        record("clash", image_path="y"),
        record("short"),
        record("gone"),
    ]
    store = make_store(tmp_path / "derived", given)
    store.array("vae", "short").write_bytes(b"\x93NUMPY")
    store.array("t5", "gone").unlink()
    store.append(b"not json", b"[]", b"", b"   ", line({"caption": "no id"}))
    summary = pack(derived_dir=store.root, output_dir=output)
    assert summary.total_records == 16  # blank lines are not records
    assert summary.ready_records == 7
    assert summary.skipped_incomplete == 9
    assert summary.total_records == summary.ready_records + summary.skipped_incomplete
    assert sum(count for count, _ in reasons(summary).values()) == summary.skipped_incomplete
    assert reasons(summary) == {
        "superseded": (1, "twice"),
        "duplicate_id": (2, "clash"),
        "caption_invalid": (1, "blank"),
        "vae_not_npy": (1, "short"),
        "t5_missing": (1, "gone"),
        "not_json": (1, "line 14"),
        "not_an_object": (1, "line 15"),
        "image_id_missing": (1, "line 18"),
    }
    assert all_ids(output) == [*(f"img{n:05}" for n in range(6)), "twice"]


def test_ready_records_are_counted_before_bucket_and_limit(store: Store, output: Path) -> None:
    summary = pack(derived_dir=store.root, output_dir=output, bucket=["832x1216"], limit=1)
    assert (summary.ready_records, summary.written_samples) == (7, 1)


# Order


def test_bucket_filter_comes_before_the_limit(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, bucket=["832x1216"], limit=2)
    assert ids_by_shard(output) == {"bucket_832x1216/shard-000000.tar": ["img1", "img3"]}


def test_limit_comes_before_grouping(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, limit=3)
    assert ids_by_shard(output) == {
        "bucket_1024x1024/shard-000000.tar": ["img0", "img2"],
        "bucket_832x1216/shard-000000.tar": ["img1"],
    }


def test_several_buckets_may_be_named(tmp_path: Path, output: Path) -> None:
    given = [record("a", "1024x1024"), record("b", "832x1216"), record("c", "1216x832")]
    store = make_store(tmp_path / "derived", given)
    pack(derived_dir=store.root, output_dir=output, bucket=["1216x832", "1024x1024"])
    assert ids_by_shard(output) == {
        "bucket_1024x1024/shard-000000.tar": ["a"],
        "bucket_1216x832/shard-000000.tar": ["c"],
    }


def test_shuffle_is_one_that_any_python_repeats(tmp_path: Path, output: Path) -> None:
    """random() is the only method whose sequence the language promises to keep for a seed."""
    store = make_store(tmp_path / "derived", records(12))
    pack(derived_dir=store.root, output_dir=output, shuffle=True, seed=5)
    draw = random.Random(5)
    keyed = sorted((draw.random(), fields["image_id"]) for fields in store.records)
    assert all_ids(output) == [image_id for _, image_id in keyed]


def test_an_input_order_is_kept_even_when_ids_are_not_sorted(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record(name) for name in ("m", "z", "a", "Z", "k")])
    pack(derived_dir=store.root, output_dir=output, shard_size=2)
    assert list(ids_by_shard(output).values()) == [["m", "z"], ["a", "Z"], ["k"]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_output_does_not_depend_on_workers(shuffle: bool, tmp_path: Path, output: Path) -> None:
    buckets = ("1024x1024", "832x1216", "1216x832")
    given = [record(f"img{n}", buckets[n % 3]) for n in range(40)]
    store = make_store(tmp_path / "derived", given, share=("t5",))
    store.array("vae", "img7").write_bytes(b"")
    found = []
    for workers in (1, 2, 5):
        target = output / str(workers)
        summary = pack(
            derived_dir=store.root,
            output_dir=target,
            shard_size=4,
            limit=30,
            shuffle=shuffle,
            workers=workers,
        )
        books = summary.to_dict() | {"seconds": 0, "output_dir": "", "free_bytes": 0}
        books["pack_command"] = str(books["pack_command"]).replace(str(target), "")
        found.append((digests(target), books))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0]) >= 8


# Keys and members


def test_an_odd_id_is_percent_encoded_in_names_and_true_in_the_json(
    tmp_path: Path, output: Path
) -> None:
    given = {
        "a.b": "a%2Eb",
        "with space": "with%20space",
        "50%": "50%25",
        "__meta": "%5F_meta",
        "naïve": "na%C3%AFve",
        "line\nfeed": "line%0Afeed",
        "-": "-",
        "plain_ID-9": "plain_ID-9",
    }
    store = make_store(tmp_path / "derived", [record(image_id) for image_id in given])
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    members = read_members(shard)
    names = [name for name, _ in members]
    for position, (image_id, key) in enumerate(given.items()):
        mine = members[5 * position : 5 * position + 5]
        assert [name for name, _ in mine] == [
            f"{key}.{suffix}" for suffix in ("json", "dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy")
        ]
        assert json.loads(mine[0][1])["image_id"] == image_id
        assert mine[1][1] == store.array("dinov3", image_id).read_bytes()
    assert len(set(names)) == 40


def test_a_long_id_is_cut_and_stays_unique(tmp_path: Path, output: Path) -> None:
    long = ["x" * 120 + end for end in ("1", "2")]
    store = make_store(tmp_path / "derived", [record(image_id) for image_id in long])
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    names = [name for name, _ in read_members(shard)]
    assert ids(shard) == long
    assert len(set(names)) == 10
    assert max(map(len, names)) == 100


def test_json_member_is_the_record_without_its_mask(tmp_path: Path, output: Path) -> None:
    given = record(
        "a", caption='a "quote", née\u2028x', zeta=[1, 2.5, None], alpha={"b": 1, "a": 2}
    )
    store = make_store(tmp_path / "derived", [given])
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    data = dict(read_members(shard))["a.json"]
    del given["t5_attention_mask"]
    assert json.loads(data) == given
    assert list(json.loads(data)) == sorted(given)
    compact = json.dumps(given, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert data == compact.encode()


@pytest.mark.parametrize("null", [False, True])
def test_json_member_always_has_the_six_fields(null: bool, tmp_path: Path, output: Path) -> None:
    given = record("a")
    for field in ("image_path", "height", "width", "format_version"):
        del given[field]
    if null:
        given |= dict.fromkeys(("image_path", "height", "width"))
    store = make_store(tmp_path / "derived", [given])
    pack(derived_dir=store.root, output_dir=output)
    (shard,) = shards(output)
    assert json.loads(dict(read_members(shard))["a.json"]) == {
        "image_id": "a",
        "aspect_bucket": "1024x1024",
        "caption": "a picture of a",
        "image_path": None,
        "height": None,
        "width": None,
    }


def tarfile_ustar(members: list[tuple[str, bytes]]) -> bytes:
    """The same archive as Python's tarfile writes it, without the padding after its end."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    return file.getvalue()[: end + 1024]


def test_a_shard_is_what_tarfile_writes_byte_for_byte(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    for shard, turn in zip(shards(output), (0, 1), strict=True):
        members = [m for fields in store.records[turn::2] for m in store.members(fields)]
        assert shard.read_bytes() == tarfile_ustar(members)
    with tarfile.open(shards(output)[0]) as tar:
        for member in tar:
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
            assert (member.uname, member.gname, member.pax_headers) == ("", "", {})


def test_the_same_records_give_the_same_bytes_anywhere(store: Store, tmp_path: Path) -> None:
    pack(derived_dir=store.root, output_dir=tmp_path / "one")
    elsewhere = tmp_path / "else" / "where"
    shutil.copytree(store.root, elsewhere, copy_function=shutil.copyfile)
    for path in elsewhere.rglob("*.npy"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    pack(derived_dir=elsewhere, output_dir=tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


# Overwrite


def test_overwrite_removes_a_bucket_that_has_no_samples_any_more(
    store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output)
    store.write_lines(line(fields) for fields in store.records[::2])
    pack(derived_dir=store.root, output_dir=output, overwrite=True)
    assert list(ids_by_shard(output)) == ["bucket_1024x1024/shard-000000.tar"]


def test_overwrite_touches_nothing_but_shards(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    foreign = [
        output / "README.md",
        output / "bucket_832x1216" / "shard-000000.tar.idx",
        output / "bucket_832x1216" / "notes.tmp",
        output / "bucket_832x1216" / "shard-1.tar",
        output / "bucket_extra" / "shard-000000.tar",
    ]
    foreign[-1].parent.mkdir()
    for path in foreign:
        path.write_text("mine")
    store.write_lines(line(fields) for fields in store.records[::2])
    pack(derived_dir=store.root, output_dir=output, overwrite=True)
    assert [path.read_text() for path in foreign] == ["mine"] * 5


def test_existing_shards_are_found_before_anything_is_written(store: Store, output: Path) -> None:
    other_number = output / "bucket_832x1216" / "shard-000041.tar"
    other_number.parent.mkdir(parents=True)
    other_number.write_text("an old shard")
    before = listing(output)
    with pytest.raises(ShardExistsError) as caught:
        pack(derived_dir=store.root, output_dir=output)
    assert str(other_number) in str(caught.value)
    assert "--overwrite" in str(caught.value)
    assert listing(output) == before  # not even a lock


def test_shards_of_buckets_that_are_not_packed_are_in_nobodys_way(
    store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output, bucket="832x1216")
    pack(derived_dir=store.root, output_dir=output, bucket="1024x1024")
    assert sorted(all_ids(output)) == [f"img{n}" for n in range(7)]


def test_leftovers_of_a_killed_run_are_removed(store: Store, output: Path) -> None:
    half = output / "bucket_1024x1024" / "shard-000007.tar.tmp"
    empty_bucket = output / "bucket_512x512" / "shard-000000.tar.tmp"
    for path in (half, empty_bucket):
        path.parent.mkdir(parents=True)
        path.write_text("half a shard")
    pack(derived_dir=store.root, output_dir=output)  # no shard, so nothing to overwrite
    assert not half.exists()
    assert not empty_bucket.exists()
    assert len(all_ids(output)) == 7


def test_whatever_is_not_a_shard_lives_in_the_dot_folder(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    visible = [name for name in listing(output) if not name.startswith(".shardwright")]
    assert visible == [
        "bucket_1024x1024",
        "bucket_1024x1024/shard-000000.tar",
        "bucket_832x1216",
        "bucket_832x1216/shard-000000.tar",
    ]


# Arrays


@pytest.mark.parametrize("broken", [[0], [2], [0, 1, 2], [0, 2, 4], [0, 1, 3, 4, 5, 7]])
def test_a_sample_with_a_bad_array_gives_its_place_to_the_next(
    broken: list[int], tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", records(9))
    for number in broken:
        store.array("t5", f"img{number:05}").write_bytes(b"")
    summary = pack(derived_dir=store.root, output_dir=output, limit=3)
    sound = [f"img{number:05}" for number in range(9) if number not in broken]
    assert all_ids(output) == sound[:3]
    assert reasons(summary) == {"t5_empty": (len(broken), f"img{broken[0]:05}")}
    assert summary.written_samples == 3


def test_latents_off_their_buckets_shape_are_reported_with_the_cure(
    tmp_path: Path, output: Path
) -> None:
    given = [record("right", "64x128"), record("wrong", "64x128"), record("other", "128x64")]
    shapes = {"right": (16, 16, 8), "wrong": (16, 8, 16), "other": (16, 8, 16)}
    store = make_store(
        tmp_path / "derived", given, latent=lambda fields: shapes[fields["image_id"]]
    )
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    assert done.returncode == 0
    assert "(1 in 64x128)" in done.stdout
    assert "--fit bucket" in done.stdout
    summary = pack(derived_dir=store.root, output_dir=output, dry_run=True)
    assert {name: found.off_shape for name, found in summary.buckets.items()} == {
        "64x128": 1,
        "128x64": 0,
    }


# Space


def test_dry_run_sizes_are_exact(store: Store, output: Path) -> None:
    dry = pack(derived_dir=store.root, output_dir=output, shard_size=2, dry_run=True)
    pack(derived_dir=store.root, output_dir=output, shard_size=2)
    sizes = {
        folder.name.removeprefix("bucket_"): {
            path.name: path.stat().st_size for path in sorted(folder.iterdir())
        }
        for folder in output.glob("bucket_*")
    }
    assert {name: found.shard_bytes for name, found in dry.buckets.items()} == sizes
    assert {name: found.bytes for name, found in dry.buckets.items()} == {
        name: sum(found.values()) for name, found in sizes.items()
    }
    assert dry.written_bytes == sum(sum(found.values()) for found in sizes.values())


def too_large_for_the_disk(root: Path) -> Store:
    """A store of sparse latents, each just below what a tar header can say."""
    shape = (16, 1, 250_000_000)
    size = 2 * 16 * 250_000_000
    count = shutil.disk_usage(root.parent).free // size + 2
    store = make_store(root, records(count), share=("dinov3", "vae", "t5"))
    header = npy_header("<f2", shape)
    with store.array("vae", "img00000").open("r+b") as file:  # all of them: they are hard links
        file.write(header)
        file.truncate(len(header) + size)
    return store


def test_a_run_that_cannot_fit_ends_before_it_starts(tmp_path: Path, output: Path) -> None:
    store = too_large_for_the_disk(tmp_path / "derived")
    with pytest.raises(NoSpaceError, match=r"need .* free"):
        pack(derived_dir=store.root, output_dir=output)
    assert not output.exists()
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, "--dry-run")
    assert done.returncode == 1
    assert "NOT ENOUGH" in done.stdout
    assert "the run itself would stop: " in done.stdout


# Sources that change while they are packed


def test_a_store_is_only_read(store: Store, output: Path) -> None:
    def state() -> list[tuple[str, bytes, int]]:
        return [
            (name, (store.root / name).read_bytes(), (store.root / name).stat().st_mtime_ns)
            for name in listing(store.root)
            if (store.root / name).is_file()
        ]

    before = state()
    pack(derived_dir=store.root, output_dir=output)
    assert state() == before


def test_jsonl_may_be_elsewhere(store: Store, output: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "subset.jsonl"
    elsewhere.write_bytes(line(store.records[4]) + b"\n")
    done = commands.run(
        *("pack", "--derived-dir", store.root, "--input-jsonl", elsewhere, "--output-dir", output)
    )
    assert done.returncode == 0
    assert all_ids(output) == ["img4"]


@pytest.mark.parametrize("flag", ["append", "overwrite", "resume", None])
def test_a_second_run_is_told_of_the_first_before_anything_else(
    flag: str | None, store: Store, output: Path
) -> None:
    pack(derived_dir=store.root, output_dir=output)
    lock = output / ".shardwright" / "lock"
    with lock.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        options: dict[str, Any] = {flag: True} if flag else {}
        with pytest.raises(LockedError):
            pack(derived_dir=store.root, output_dir=output, **options)


@pytest.mark.parametrize("below", [".", "vae_latents", "vae_latents/s", "t5_hidden/../dinov3"])
def test_shards_are_kept_out_of_the_store(below: str, store: Store) -> None:
    with pytest.raises(UsageError, match="belongs to the store; give another --output-dir"):
        pack(derived_dir=store.root, output_dir=store.root / below)
