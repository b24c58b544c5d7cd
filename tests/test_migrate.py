"""Stage 1 to Stage 2: every value arrives, every line stays, nothing that is there is replaced."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import shardwright
from shardwright.buckets import Bucket
from shardwright.errors import (
    InputMissingError,
    LockedError,
    SourceChangedError,
    StorageError,
    UsageError,
)
from shardwright.layout import JSONL_NAME
from shardwright.migrating.run import _migrate_part
from shardwright.recipes import SPECIFICATION
from shardwright.storage import files
from shardwright.storage.disk import Disk
from shardwright.storage.local import LocalPlace
from shardwright.store.journal import Recovered, Rewrite, journal_path
from tests import stage1
from tests.commands import wait_until
from tests.faults import contents
from tests.stage1 import DINO, embedding, read, record

DERIVED = "data/derived"
VARYING = {"jsonl", "backup", "seconds"}
COMMAND = (sys.executable, "-m", "shardwright", "migrate", "--derived-dir")


@pytest.fixture
def derived(tmp_path: Path) -> Path:
    """Where a store is to be; not there yet."""
    return tmp_path / DERIVED


def migrate(derived: Path, **arguments: Any) -> shardwright.MigrateSummary:  # noqa: ANN401
    summary = shardwright.migrate(derived_dir=derived, **arguments)
    assert summary.total_records == (
        summary.migrated_records + summary.already_migrated + summary.unmigrated_records
    )
    assert summary.unmigrated_records == sum(map(len, summary.unmigrated_by_reason.values()))
    assert summary.jsonl_bytes_after == os.path.getsize(summary.jsonl) or summary.dry_run
    return summary


def run(derived: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(derived), *flags], capture_output=True, text=True, timeout=300
    )


def test_a_store_that_cannot_be_a_folder_is_known_before_reading(tmp_path: Path) -> None:
    jsonl = stage1.write(tmp_path / "old", record("a"))
    (tmp_path / "file").write_text("mine")
    done = run(tmp_path / "file", "--jsonl", str(jsonl))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path}/file: is not a folder; give another to write to\n"


def array(derived: Path, folder: str, name: str) -> np.ndarray[Any, Any]:
    loaded: np.ndarray[Any, Any] = np.load(derived / folder / f"{name}.npy", allow_pickle=False)
    return loaded


# The scenarios of the specification that a migration shows.


def test_scenario_output_directories_are_created(derived: Path) -> None:
    stage1.write(derived)
    migrate(derived)
    assert all((derived / name).is_dir() for name in ("dinov3", "vae_latents", "t5_hidden"))


def test_scenario_jsonl_metadata_is_stored_separately_from_embeddings(derived: Path) -> None:
    jsonl = stage1.write(derived, record("abc"), record("def"))
    migrate(derived)
    assert jsonl == derived / "approved_image_dataset.jsonl"
    assert [found["image_id"] for found in read(jsonl)] == ["abc", "def"]
    assert sorted(os.listdir(derived / "dinov3")) == ["abc.npy", "def.npy"]


def test_scenario_image_id_is_derived_consistently(derived: Path) -> None:
    jsonl = stage1.write(
        derived,
        record("", image_path="data/approved/abc123xyz.jpg"),
        record("", image_path="elsewhere/a.b c.PNG"),
        record("", image_path="no_extension"),
    )
    migrate(derived)
    assert [found["image_id"] for found in read(jsonl)] == ["abc123xyz", "a.b c", "no_extension"]


def test_scenario_embedding_files_use_image_id_naming(derived: Path) -> None:
    latent = np.zeros((16, 152, 104)).tolist()
    hidden = np.ones((77, 1024)).tolist()
    stage1.write(derived, record("abc123xyz", vae_latent=latent, t5_hidden_states=hidden))
    migrate(derived)
    for folder in ("dinov3", "vae_latents", "t5_hidden"):
        assert os.listdir(derived / folder) == ["abc123xyz.npy"]


def test_scenario_metadata_record_contains_required_fields(derived: Path) -> None:
    jsonl = stage1.write(derived, record("abc"))
    migrate(derived)
    (found,) = read(jsonl)
    assert found == {
        "image_id": "abc",
        "image_path": "data/approved/abc.jpg",
        "caption": "a picture of abc",
        "t5_attention_mask": [1] * 9 + [0] * 68,
        "height": 1216,
        "width": 832,
        "aspect_bucket": "832x1216",
        "format_version": 2,
    }
    assert tuple(found) == SPECIFICATION.record_fields


def test_scenario_format_version_identifies_stage_2_records(derived: Path) -> None:
    jsonl = stage1.write(derived, record("abc"), record("old", format_version=1))
    migrate(derived)
    assert [found["format_version"] for found in read(jsonl)] == [2, 2]


def test_scenario_inline_embeddings_are_removed(derived: Path) -> None:
    latent = np.zeros((16, 8, 8)).tolist()
    jsonl = stage1.write(derived, record("abc", vae_latents=latent), record("def", t5_hidden=None))
    migrate(derived)
    for found in read(jsonl):
        assert set(found) == set(SPECIFICATION.record_fields)


def test_scenario_dinov3_file_has_correct_shape(derived: Path) -> None:
    stage1.write(derived, record("abc", seed=3))
    migrate(derived)
    loaded = array(derived, "dinov3", "abc")
    assert (loaded.shape, loaded.dtype) == ((1024,), np.float32)
    assert loaded.tolist() == embedding(3)


def test_scenario_dinov3_file_size_is_approximately_4kb(derived: Path) -> None:
    stage1.write(derived, record("abc"))
    migrate(derived)
    assert (derived / "dinov3/abc.npy").stat().st_size == 128 + 4096


def test_scenario_bucket_assignment_is_based_on_aspect_ratio(derived: Path) -> None:
    jsonl = stage1.write(
        derived,
        record("square", width=3000, height=2999),
        record("tall", width=500, height=1000),
        record("wide", width=1000, height=500),
        record("chosen", width=1000, height=500, aspect_bucket="1024x1024"),
    )
    migrate(derived)
    buckets = [found["aspect_bucket"] for found in read(jsonl)]
    assert buckets == ["1024x1024", "704x1344", "1344x704", "1024x1024"]


@settings(deadline=None)
@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_scenario_all_images_are_assigned_to_a_bucket(width: int, height: int) -> None:
    names = ["1024x1024", "832x1216", "1216x832", "768x1280", "1280x768", "704x1344", "1344x704"]
    chosen = SPECIFICATION.bucket_for(width, height)
    assert str(chosen) in names
    distances = {name: abs(width / height - _ratio(name)) for name in names}
    assert distances[str(chosen)] == min(distances.values())


def _ratio(name: str) -> float:
    bucket = Bucket.parse(name)
    return bucket.width / bucket.height


def test_scenario_bucket_dimensions_are_divisible_by_64() -> None:
    assert len(SPECIFICATION.buckets) == 7
    assert all(bucket.width % 64 == bucket.height % 64 == 0 for bucket in SPECIFICATION.buckets)


def test_scenario_existing_embedding_file_is_not_regenerated(derived: Path) -> None:
    stage1.write(derived, record("same", seed=1), record("other", seed=2))
    (derived / "dinov3").mkdir()
    for name in ("same", "other"):
        np.save(derived / "dinov3" / name, np.array(embedding(1), np.float32))
    before = {path: path.stat() for path in (derived / "dinov3").iterdir()}
    summary = migrate(derived)
    for path, state in before.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (state.st_ino, state.st_mtime_ns)
    assert summary.arrays_written == {}
    assert summary.arrays_found == {"dinov3": 1}
    assert summary.arrays_differing == {"dinov3": [2]}
    assert summary.migrated_records == 2
    assert array(derived, "dinov3", "other").tolist() == embedding(1)


def test_scenario_partial_completion_can_be_resumed(derived: Path) -> None:
    lines = [record(f"img{n}", seed=n) for n in range(6)]
    stage1.write(derived, *lines[:3])
    migrate(derived)
    before = (derived / "dinov3/img0.npy").stat()
    jsonl = derived / JSONL_NAME
    with jsonl.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines[3:])
    summary = migrate(derived)
    assert (summary.already_migrated, summary.migrated_records) == (3, 3)
    assert summary.arrays_written == {"dinov3": 3}
    assert (derived / "dinov3/img0.npy").stat().st_mtime_ns == before.st_mtime_ns
    assert [array(derived, "dinov3", f"img{n}").tolist() for n in range(6)] == [
        embedding(n) for n in range(6)
    ]


def test_scenario_jsonl_size_is_reduced_significantly(derived: Path) -> None:
    jsonl = stage1.write(derived, *(record(f"img{n}", seed=n) for n in range(10)))
    before = jsonl.stat().st_size
    summary = migrate(derived)
    assert jsonl.stat().st_size <= before / 10
    assert (summary.jsonl_bytes_before, summary.jsonl_bytes_after) == (
        before,
        jsonl.stat().st_size,
    )


# Values.


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30))
def test_migrate_keeps_every_float32_exactly(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    derived = tmp_path_factory.mktemp("derived")
    values = values + [0.0] * (1024 - len(values))
    stage1.write(derived, record("abc", dinov3_embedding=values))
    migrate(derived)
    assert array(derived, "dinov3", "abc").tobytes() == struct.pack("<1024f", *values)


def test_integers_and_long_decimals_are_rounded_as_python_rounds_them(derived: Path) -> None:
    text = "[" + "3,-0,0.1000000000000000055511151231257827,1e-46,16777217" + ",0" * 1019 + "]"
    stage1.write(
        derived, json.dumps(record("abc", dinov3_embedding="HERE")).replace('"HERE"', text)
    )
    migrate(derived)
    expected = np.array(json.loads(text), np.float64).astype(np.float32)
    assert array(derived, "dinov3", "abc").tobytes() == expected.tobytes()


def test_the_help_says_that_values_are_rounded() -> None:
    text = subprocess.run([*COMMAND[:-1], "--help"], capture_output=True, text=True, timeout=300)
    assert "rounded to the nearest float32 (dinov3) or float16" in " ".join(text.stdout.split())


def test_inline_latents_and_hidden_states_become_half_floats(derived: Path) -> None:
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((16, 12, 9)).astype(np.float16)
    hidden = rng.standard_normal((77, 1024)).astype(np.float16)
    stage1.write(derived, record("a", vae_latent=latent.tolist(), t5_hidden=hidden.tolist()))
    summary = migrate(derived)
    assert summary.arrays_written == {"dinov3": 1, "vae": 1, "t5": 1}
    assert (array(derived, "vae_latents", "a") == latent).all()
    assert (array(derived, "t5_hidden", "a") == hidden).all()
    assert array(derived, "vae_latents", "a").dtype == np.float16


def test_fields_that_are_not_ours_lose_nothing(derived: Path) -> None:
    mine = (
        '"score":0.10000000000000000001,"id":123456789012345678901234567890,"tags":["é\u2028",{}]'
    )
    line = json.dumps(record("abc", caption="\u2028 \x85 naïve"), ensure_ascii=False)
    jsonl = stage1.write(derived, line[:-1] + "," + mine + "}")
    migrate(derived)
    written = jsonl.read_text(encoding="utf-8")
    assert written.endswith("," + mine + "}\n")
    assert read(jsonl)[0]["caption"] == "\u2028 \x85 naïve"


def test_an_id_that_a_record_has_already_is_kept(derived: Path) -> None:
    jsonl = stage1.write(derived, record("abc", image_id="mine"))
    migrate(derived)
    assert read(jsonl)[0]["image_id"] == "mine"
    assert os.listdir(derived / "dinov3") == ["mine.npy"]


# Missing sizes.


def picture(path: Path, width: int, height: int, orientation: int = 1) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (width, height)).save(path, exif=exif)
    return str(path)


def test_a_missing_size_is_read_from_the_image_as_it_is_meant_to_be_seen(
    derived: Path, tmp_path: Path
) -> None:
    upright = picture(tmp_path / "images/upright.jpg", 40, 30)
    turned = picture(tmp_path / "images/turned.jpg", 40, 30, orientation=6)
    jsonl = stage1.write(
        derived,
        record("", image_path=upright, height=..., width=...),
        record("", image_path=turned, height=None, width=None),
        record("", image_path=turned, height=40, width=..., image_id="again"),
    )
    migrate(derived)
    assert [(found["width"], found["height"]) for found in read(jsonl)] == [
        (40, 30),
        (30, 40),
        (30, 40),
    ]
    assert read(jsonl)[0]["aspect_bucket"] == "1216x832"
    assert read(jsonl)[1]["aspect_bucket"] == "832x1216"


def test_a_size_that_cannot_be_found_out_keeps_the_line_as_it_is(
    derived: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 not much of a picture")
    os.mkfifo(tmp_path / "pipe.jpg")
    jsonl = stage1.write(
        derived,
        record("nowhere", height=...),
        record("", image_path=str(broken), width=...),
        record("", image_path=str(tmp_path / "pipe.jpg"), width=...),
        record("zero", height=0),
        record("text", height="1024"),
    )
    before = jsonl.read_bytes()
    assert migrate(derived).unmigrated_by_reason == {
        "size_missing": [1, 3],
        "image_unreadable": [2],
        "size_invalid": [4, 5],
    }
    assert jsonl.read_bytes() == before
    assert os.listdir(derived / "dinov3") == []


@pytest.mark.parametrize("null", ["vae_embedding", "vae_latent", "vae_latents"])
def test_a_field_that_is_null_holds_no_array(derived: Path, null: str) -> None:
    held = "vae_latent" if null != "vae_latent" else "vae_latents"
    fields: dict[str, Any] = {held: np.ones((16, 8, 8)).tolist(), null: None}
    stage1.write(derived, record("a", **fields))
    summary = migrate(derived)
    assert summary.arrays_written == {"dinov3": 1, "vae": 1}
    assert (array(derived, "vae_latents", "a") == 1).all()


# Lines that cannot be migrated.

NAN = json.dumps(record("nan", dinov3_embedding=[float("nan")] * 1024))
BAD_LINES: list[tuple[str, dict[str, Any] | str | bytes]] = [
    ("not_json", "{"),
    ("not_json", b'{"image_path": "\xff.jpg"}'),
    ("not_json", json.dumps(record("a", caption="HERE")).encode().replace(b"HERE", b"\xff")),
    ("not_json", json.dumps(record("a", extra=float("nan")))),
    ("not_json", '{"image_path": "a.jpg", "caption": "\\ud800"}'),
    ("not_json", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    ("not_an_object", "[1, 2]"),
    ("not_an_object", '"text"'),
    (f"{DINO}_not_finite", NAN),
    (f"{DINO}_not_finite", record("a", dinov3_embedding=[1e39] * 1024)),
    (f"{DINO}_not_finite", NAN.replace("NaN", "-Infinity")),
    (f"{DINO}_invalid", NAN.replace("NaN", "1e999")),
    (f"{DINO}_invalid", record("a", dinov3_embedding=[True] * 1024)),
    (f"{DINO}_invalid", record("a", dinov3_embedding=["1"] * 1024)),
    (f"{DINO}_invalid", record("a", dinov3_embedding=[None] * 1024)),
    (f"{DINO}_invalid", record("a", dinov3_embedding="text")),
    (f"{DINO}_invalid", record("a", dinov3_embedding=[[0.5] * 1024])),
    (f"{DINO}_wrong_shape", record("a", dinov3_embedding=[0.5] * 1023)),
    (f"{DINO}_wrong_shape", record("a", dinov3_embedding=[])),
    ("vae_latent_wrong_shape", record("a", vae_latent=np.zeros((4, 8, 8)).tolist())),
    ("vae_latent_wrong_shape", record("a", vae_latent=[[[0.0]], [[0.0, 1.0]]])),
    ("vae_latent_not_finite", record("a", vae_latent=np.full((16, 8, 8), 70000.0).tolist())),
    ("vae_repeated", record("a", vae_latent=[[[0.0]]] * 16, vae_latents=[[[0.0]]] * 16)),
    ("image_path_missing", record("a", image_path=...)),
    ("image_path_missing", record("a", image_path=None, image_id="a")),
    ("image_path_invalid", record("a", image_path=["a.jpg"])),
    ("image_path_invalid", record("a", image_path="")),
    ("image_id_invalid", record("a", image_path="data/approved/")),
    ("image_id_invalid", record("a", image_path="data/..")),
    ("image_id_invalid", record("a", image_path="a\0b.jpg")),
    ("image_id_invalid", record("a", image_path="x" * 252 + ".jpg")),
    ("image_id_invalid", record("a", image_id="../a")),
    ("image_id_invalid", record("a", image_id=7)),
    ("format_version_unknown", record("a", format_version=3)),
    ("format_version_unknown", record("a", format_version=True)),
    ("format_version_unknown", record("a", format_version=2.0)),
]


@pytest.mark.parametrize(
    ("reason", "line"), BAD_LINES, ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(BAD_LINES)]
)
def test_a_line_that_cannot_be_migrated_stays_and_is_reported(
    derived: Path, reason: str, line: dict[str, Any] | str | bytes
) -> None:
    jsonl = stage1.write(derived, record("first"), line, record("last"))
    bad = jsonl.read_bytes().split(b"\n")[1]
    summary = migrate(derived)
    assert summary.unmigrated_by_reason == {reason: [2]}
    assert jsonl.read_bytes().split(b"\n")[1] == bad
    assert [json.loads(line)["image_id"] for line in jsonl.read_bytes().split(b"\n")[0:3:2]] == [
        "first",
        "last",
    ]
    assert sorted(os.listdir(derived / "dinov3")) == ["first.npy", "last.npy"]
    assert sorted(path.name for path in derived.parent.parent.iterdir()) == ["data"]


def test_two_images_with_one_id_both_stay(derived: Path) -> None:
    jsonl = stage1.write(
        derived,
        record("", image_path="a/x.jpg"),
        record("ordinary"),
        record("", image_path="a/x.png"),
        record("", image_path="b/x.jpg"),
    )
    before = jsonl.read_bytes().split(b"\n")
    summary = migrate(derived)
    assert summary.unmigrated_by_reason == {"duplicate_id": [1, 3, 4]}
    after = jsonl.read_bytes().split(b"\n")
    assert [after[n] for n in (0, 2, 3)] == [before[n] for n in (0, 2, 3)]
    assert os.listdir(derived / "dinov3") == ["ordinary.npy"]


def test_of_one_image_in_several_lines_the_last_is_migrated_with_its_own_arrays(
    derived: Path,
) -> None:
    jsonl = stage1.write(
        derived,
        record("", seed=1, image_path="a/x.jpg", caption="first"),
        record("ordinary"),
        record("", seed=2, image_path="./a//x.jpg", caption="second"),
        record("", seed=3, image_path="a/x.jpg", caption="third"),
    )
    before = jsonl.read_bytes().split(b"\n")
    summary = migrate(derived)
    assert summary.unmigrated_by_reason == {"superseded": [1, 3]}
    assert (summary.arrays_written, summary.arrays_differing) == ({"dinov3": 2}, {})
    after = jsonl.read_bytes().split(b"\n")
    assert [after[n] for n in (0, 2)] == [before[n] for n in (0, 2)]
    last = json.loads(after[3])
    assert (last["image_id"], last["caption"], DINO in last) == ("x", "third", False)
    assert array(derived, "dinov3", "x").tolist() == embedding(3)
    done = contents(derived)
    assert migrate(derived).unmigrated_by_reason == {"superseded": [1, 3]}
    assert contents(derived) == done


def test_repeated_lines_end_in_the_same_bytes_after_an_interruption(
    derived: Path, tmp_path: Path
) -> None:
    class NoNewJsonl(Disk):
        def rename(self, source: Path, target: Path) -> None:
            if target.suffix == ".jsonl":
                raise OSError(5, "Input/output error")
            super().rename(source, target)

    lines = [record("x", seed=1), record("y"), record("x", seed=2)]
    stage1.write(derived, *lines)
    with files.using(NoNewJsonl()), pytest.raises(StorageError):
        migrate(derived)
    assert array(derived, "dinov3", "x").tolist() == embedding(2)
    migrate(derived)
    stage1.write(tmp_path / "at once", *lines)
    migrate(tmp_path / "at once")
    again, once = contents(derived), contents(tmp_path / "at once")
    assert again == once


def test_a_later_stage_2_record_does_not_get_the_arrays_of_an_earlier_line(derived: Path) -> None:
    later = {"image_id": "x", "image_path": "a/x.jpg", "caption": "new", "format_version": 2}
    jsonl = stage1.write(derived, record("", image_path="a/x.jpg"), later)
    before = jsonl.read_bytes()
    summary = migrate(derived)
    assert (summary.already_migrated, summary.unmigrated_by_reason) == (1, {"superseded": [1]})
    assert jsonl.read_bytes() == before
    assert os.listdir(derived / "dinov3") == []


def test_a_broken_array_file_is_neither_trusted_nor_replaced(derived: Path) -> None:
    jsonl = stage1.write(derived, record("abc"))
    before = jsonl.read_bytes()
    (derived / "dinov3").mkdir()
    (derived / "dinov3/abc.npy").write_bytes(b"\x93NUMPY\x01\x00")
    assert migrate(derived).unmigrated_by_reason == {"dinov3_not_npy": [1]}
    assert jsonl.read_bytes() == before
    assert (derived / "dinov3/abc.npy").stat().st_size == 8


def test_migrate_keeps_blank_lines_and_line_ends(derived: Path) -> None:
    derived.mkdir(parents=True)
    jsonl = derived / JSONL_NAME
    old = [json.dumps(record(name)).encode() for name in "abc"]
    jsonl.write_bytes(b"\xef\xbb\xbf%s\r\n\n  \n%s\n%s" % (old[0], old[1], old[2]))
    assert migrate(derived).migrated_records == 3
    first, blank, spaces, second, third = jsonl.read_bytes().split(b"\n")
    assert first.startswith(b'\xef\xbb\xbf{"image_id":"a"')
    assert first.endswith(b"}\r")
    assert (blank, spaces) == (b"", b"  ")
    assert [json.loads(line)["image_id"] for line in (second, third)] == ["b", "c"]


# Parts, and the processes that migrate them.


def test_migrate_gives_the_same_bytes_for_any_parts_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def migrated(name: str, workers: int, part_bytes: int) -> tuple[object, ...]:
        derived = tmp_path / name
        stage1.write(derived, record("there", seed=1), record("other", seed=2))
        migrate(derived, backup=False)
        lines: list[Any] = [record(f"img{n}", seed=n) for n in range(9)]
        lines[2:2] = ["", "not json", record("there", seed=1), record("other", seed=3), "  "]
        lines[6:6] = [b"\xef\xbb\xbf" + json.dumps(record("marked")).encode(), record("img8"), ""]
        first = b"\xef\xbb\xbf\xef\xbb\xbf" + json.dumps(record("first")).encode()
        stage1.write(derived, first, *lines, '{"image_id": "stage2", "format_version": 2}', "")
        monkeypatch.setattr(sys.modules["shardwright.migrating.run"], "_PART_BYTES", part_bytes)
        summary = migrate(derived, workers=workers).to_dict()
        return contents(derived), {name: summary[name] for name in summary.keys() - VARYING}

    expected = migrated("at once", 1, 1 << 23)
    assert expected[1]["unmigrated_by_reason"] == {  # type: ignore[index]
        "not_json": [1, 5, 8],
        "superseded": [9],
    }
    for workers, part_bytes in ((1, 100), (1, 50_000), (3, 100), (3, 50_000)):
        assert migrated(f"{workers} {part_bytes}", workers, part_bytes) == expected


class OneHangsOneFails(Disk):
    """A disk on which one worker waits for ever, and another fails once the first waits."""

    def create(self, path: Path) -> int:
        if path.name == "img3.tmp":
            wait_until(path.with_name("img0.tmp").exists)
            raise OSError(5, "Input/output error")
        return super().create(path)

    def rename(self, source: Path, target: Path) -> None:
        time.sleep(60)


def on_a_bad_disk(*given: Any) -> Iterator[object]:  # noqa: ANN401 - as the function it stands for
    """Migrate a part on that disk: in a worker, which knows nothing of this process's."""
    with files.using(OneHangsOneFails()):
        yield from _migrate_part(*given)


def test_an_error_in_one_worker_leaves_nothing_unfinished(
    derived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sys.modules["shardwright.migrating.run"]
    monkeypatch.setattr(run, "_PART_BYTES", 50_000)
    jsonl = stage1.write(derived, *(record(f"img{n}", seed=n) for n in range(6)))
    before = jsonl.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(run, "_migrate_part", on_a_bad_disk)
        with pytest.raises(StorageError, match=r"img3\.tmp: Input/output error"):
            migrate(derived, workers=2)
    assert not any(name.endswith(".tmp") for name in contents(derived))
    assert jsonl.read_bytes() == before
    assert migrate(derived, workers=2).migrated_records == 6


def test_a_jsonl_that_changes_while_workers_read_it_is_reported(tmp_path: Path) -> None:
    jsonl = stage1.write(tmp_path, record("a"), record("b"))
    with Rewrite(jsonl) as rewrite:
        part = rewrite.part(0, 0, rewrite.size)
        assert [line.number for line in part.lines()] == [1, 2]
        with jsonl.open("a") as file:
            file.write("\n")
        with pytest.raises(SourceChangedError, match=f"{jsonl}: changed meanwhile"):
            list(part.lines())


# Again, and not at all.


def test_a_second_migration_changes_nothing(derived: Path) -> None:
    jsonl = stage1.write(
        derived, record("a"), "not json", record("b"), record("short", dinov3_embedding=[])
    )
    original = jsonl.read_bytes()
    first = migrate(derived)
    backup = jsonl.with_name(jsonl.name + ".stage1.bak")
    assert first.backup == str(backup)
    assert backup.read_bytes() == original
    before = contents(derived), {path: path.stat().st_mtime_ns for path in derived.rglob("*.*")}
    second = migrate(derived)
    assert before == (
        contents(derived),
        {path: path.stat().st_mtime_ns for path in derived.rglob("*.*")},
    )
    assert (second.migrated_records, second.already_migrated) == (0, 2)
    assert second.unmigrated_by_reason == first.unmigrated_by_reason
    assert second.backup is None


def test_a_later_migration_keeps_its_original_beside_the_first(derived: Path) -> None:
    jsonl = stage1.write(derived, record("a"))
    first = jsonl.read_bytes()
    migrate(derived)
    with jsonl.open("a") as file:
        file.write(json.dumps(record("b")) + "\n")
    second = jsonl.read_bytes()
    migrate(derived)
    assert jsonl.with_name(jsonl.name + ".stage1.bak").read_bytes() == first
    assert jsonl.with_name(jsonl.name + ".stage1.bak.2").read_bytes() == second


def test_migrate_without_a_backup_leaves_no_other_file(derived: Path) -> None:
    stage1.write(derived, record("a"))
    assert migrate(derived, backup=False).backup is None
    names = {".shardwright", JSONL_NAME, "dinov3", "vae_latents", "t5_hidden"}
    assert {path.name for path in derived.iterdir()} == names


def test_where_there_are_no_links_the_original_is_copied(derived: Path) -> None:
    class NoLinks(Disk):
        def link(self, source: Path, target: Path) -> None:
            raise PermissionError(1, "Operation not permitted")

    jsonl = stage1.write(derived, record("a"))
    original = jsonl.read_bytes()
    with files.using(NoLinks()):
        summary = migrate(derived)
    assert summary.backup is not None
    assert Path(summary.backup).read_bytes() == original
    assert not any(name.endswith(".tmp") for name in contents(derived))


def test_a_dry_migration_says_what_would_be_done_and_writes_nothing(derived: Path) -> None:
    stage1.write(derived, record("a"), "not json", record("b", vae_latent=[[[0.5]]] * 16))
    before = contents(derived.parent)
    dry = migrate(derived, dry_run=True)
    assert contents(derived.parent) == before
    wet = migrate(derived)
    assert dry.to_dict() | {"dry_run": False, "backup": wet.backup, "seconds": wet.seconds} == (
        wet.to_dict()
    )


def test_stage_2_records_among_stage_1_records_stay_byte_for_byte(derived: Path) -> None:
    stage2 = '{ "image_id":"b", "format_version":2 }'
    jsonl = stage1.write(derived, record("a"), stage2, record("c"))
    summary = migrate(derived)
    assert (summary.already_migrated, summary.migrated_records) == (1, 2)
    assert jsonl.read_bytes().split(b"\n")[1] == stage2.encode()


def test_a_stage_2_record_with_an_array_inline_is_migrated(derived: Path) -> None:
    jsonl = stage1.write(derived, record("a", image_id="a", format_version=2))
    assert migrate(derived).migrated_records == 1
    assert DINO not in read(jsonl)[0]
    assert array(derived, "dinov3", "a").tolist() == embedding(0)


def test_the_journal_of_a_killed_run_is_merged_first(derived: Path) -> None:
    jsonl = stage1.write(derived, record("a"))
    journal_path(jsonl).write_bytes(b'{"image_id":"b","format_version":2}\n{"image_id":"c"')
    summary = migrate(derived)
    assert summary.recovered == Recovered(records=1, torn_lines=1)
    assert [found["image_id"] for found in read(jsonl)] == ["a", "b"]
    assert not journal_path(jsonl).exists()


# The command.


def test_the_command_migrates_and_says_so(derived: Path) -> None:
    stage1.write(derived, record("a"), record("b"))
    done = run(derived)
    assert (done.returncode, done.stdout.splitlines()[1:4]) == (
        0,
        ["total_records: 2", "migrated_records: 2", "already_migrated: 0"],
    )
    assert "migrated 2 records" in done.stdout
    assert "arrays_written: dinov3 2" in done.stdout
    assert ".stage1.bak" in done.stdout
    assert "nothing to migrate" in run(derived).stdout


def test_the_command_exits_3_and_names_the_lines_that_stay(derived: Path) -> None:
    stage1.write(derived, record("a"), *["not json"] * 12)
    done = run(derived)
    assert done.returncode == 3
    listed = ", ".join(str(number) for number in range(2, 12))
    assert f"  not_json: 12 (lines {listed} and 2 more; --json lists all)" in done.stdout
    assert done.stdout.endswith("are unchanged; fix or delete them, then run migrate again\n")
    again = run(derived, "--json")
    assert again.returncode == 3
    assert json.loads(again.stdout)["unmigrated_by_reason"] == {"not_json": list(range(2, 14))}


def test_a_missing_jsonl_is_an_error_that_names_it(derived: Path) -> None:
    with pytest.raises(InputMissingError, match=r"approved_image_dataset\.jsonl: no such file"):
        migrate(derived)
    assert run(derived).returncode == 2
    assert not derived.exists()


def test_migrate_refuses_a_shard_folder(tmp_path: Path) -> None:
    jsonl = stage1.write(tmp_path / "old", record("a"))
    (tmp_path / "shards/bucket_1024x1024").mkdir(parents=True)
    (tmp_path / "shards/bucket_1024x1024/shard-000000.tar").touch()
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"shards: holds shards; give the store"):
        migrate(tmp_path / "shards", jsonl=jsonl)
    assert contents(tmp_path) == before


def test_a_second_writer_learns_who_holds_the_store(derived: Path) -> None:
    jsonl = stage1.write(derived, record("a"))
    before = jsonl.read_bytes()
    with LocalPlace(derived).lease():
        with pytest.raises(LockedError, match=f"process {os.getpid()} on .* is writing here"):
            migrate(derived)
        done = run(derived)
    assert done.returncode == 11
    assert f"process {os.getpid()} on" in done.stderr
    assert jsonl.read_bytes() == before
    assert run(derived).returncode == 0


def test_migrate_takes_another_jsonl(derived: Path, tmp_path: Path) -> None:
    elsewhere = stage1.write(tmp_path / "elsewhere", record("a")).rename(tmp_path / "mine.jsonl")
    migrate(derived, jsonl=elsewhere)
    assert read(elsewhere)[0]["image_id"] == "a"
    assert (tmp_path / "mine.jsonl.stage1.bak").exists()
    assert os.listdir(derived / "dinov3") == ["a.npy"]


def test_a_link_to_the_jsonl_stays_one_and_its_target_is_migrated(
    derived: Path, tmp_path: Path
) -> None:
    real = stage1.write(tmp_path / "elsewhere", record("a"))
    before = real.read_bytes()
    derived.mkdir(parents=True)
    link = derived / JSONL_NAME
    link.symlink_to(real)
    summary = migrate(derived)
    assert link.is_symlink()
    assert DINO not in json.loads(real.read_bytes())
    assert summary.backup is not None
    assert Path(summary.backup).read_bytes() == before
    assert sorted(path.name for path in real.parent.iterdir()) == [
        real.name,
        f"{real.name}.stage1.bak",
    ]


RECIPE = """
components = ["pose", "labels"]
[images]
buckets = ["8x8", "16x8"]
[component.pose]
dtype = "bfloat16"
shape = ["any", 2]
inline = ["pose_keypoints"]
[component.labels]
dtype = "uint8"
shape = [3]
inline = ["label_ids"]
"""


def test_the_arrays_of_a_recipe_of_ones_own_are_migrated(derived: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE)
    fields = {"image_path": "a.jpg", "caption": "a", "height": 8, "width": 15}
    good = {**fields, "pose_keypoints": [[1, -2.5], [3e38, 0]], "label_ids": [0, 255, 7]}
    stage1.write(
        derived,
        good,
        {**good, "image_path": "b.jpg", "label_ids": [1, 2.5, 3]},
        {**good, "image_path": "c.jpg", "label_ids": [1, 256, 3]},
        {**good, "image_path": "d.jpg", "pose_keypoints": []},
        {**good, "image_path": "e.jpg", "pose_keypoints": [[3.4e38, 1]]},
    )
    summary = migrate(derived, recipe=recipe)
    assert summary.unmigrated_by_reason == {
        "label_ids_invalid": [2, 3],
        "pose_keypoints_wrong_shape": [4],
        "pose_keypoints_not_finite": [5],
    }
    assert np.load(derived / "pose/a.npy").tolist() == [[0x3F80, 0xC020], [0x7F62, 0]]
    assert np.load(derived / "labels/a.npy").tolist() == [0, 255, 7]
    assert read(derived / JSONL_NAME)[0]["aspect_bucket"] == "16x8"
    packed = shardwright.pack(derived_dir=derived, output_dir=tmp_path / "shards")
    assert packed.written_samples == 1
    sample = shardwright.open(tmp_path / "shards").by_id("a")
    assert sample["pose.npy"][0].tolist() == [1.0, -2.5]


def test_text_that_the_recipe_trims_is_trimmed_by_its_mask(derived: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "prx"\ncomponents = ["t5"]\n[component.t5]\ntokens = 3\nshape = ["tokens", 2]\n'
        "trim = true\n"
    )
    fields = {"image_path": "a.jpg", "caption": "a", "height": 8, "width": 15}
    rows = [[1, 2], [3, 4], [5, 6]]
    good = {**fields, "t5_attention_mask": [1, 1, 0], "t5_hidden": rows}
    stage1.write(derived, good, {**good, "image_path": "b.jpg", "t5_attention_mask": [0, 0, 0]})
    summary = migrate(derived, recipe=recipe)
    assert summary.unmigrated_by_reason == {"mask_invalid": [2]}
    assert np.load(derived / "t5_hidden/a.npy").tolist() == rows[:2]


def test_a_migration_by_a_recipe_that_was_killed_at_once_is_run_again(
    derived: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE)
    fields = {"image_path": "a.jpg", "caption": "a", "height": 8, "width": 15}
    stage1.write(derived, {**fields, "pose_keypoints": [[1, 2]], "label_ids": [0, 1, 2]})
    (derived / ".shardwright").mkdir()
    (derived / ".shardwright/lock").touch()  # as far as it got
    assert migrate(derived, recipe=recipe).migrated_records == 1
    assert migrate(derived).already_migrated == 1, "by the recipe that is recorded"
