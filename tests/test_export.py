"""The table of all images: what is on record, as pyarrow, csv and json read it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright import status
from shardwright.errors import (
    InputMissingError,
    MissingExtraError,
    NoSpaceError,
    SourceChangedError,
    UsageError,
)
from shardwright.reporting import export
from shardwright.storage.files import using
from tests.commands import run
from tests.derive.pictures import make_images, sketch, store_records
from tests.derive.test_facts import LONG
from tests.derive.updates import facts
from tests.faults import FailingDisk, Killed, KillingDisk, WatchedDisk
from tests.store.small import SmallStore, small_store

Rows = list[dict[str, Any]]

NASTY = 'a "quoted", text;\nwith\r\nlines, \ttabs, \N{GRINNING FACE} and \x00'


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return small_store(tmp_path / "derived")


def read_parquet(path: Path) -> Rows:
    rows: Rows = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def read_csv(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: v or None for k, v in row.items()} for row in csv.DictReader(file)]


def read_jsonl(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


READ: dict[str, Callable[[Path], Rows]] = {
    "parquet": read_parquet,
    "csv": read_csv,
    "jsonl": read_jsonl,
}


def exported(root: Path, kind: str) -> Rows:
    path = root.parent / f"table.{kind}"
    done = status(root, export=path, workers=1)
    rows = READ[kind](path)
    assert done.exported is not None
    assert (done.exported.file, done.exported.rows) == (str(path), len(rows))
    return rows


def text(value: object) -> str | None:
    """Write a value as CSV has it."""
    return value if isinstance(value, str | None) else json.dumps(value)


def test_all_on_record_of_a_derived_store_is_in_the_table(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    (images / "img001.txt").write_text(LONG)
    (images / "img002.png").write_bytes(b"broken")
    sketch(images, derived, fit="bucket")
    tables = {kind: exported(derived, kind) for kind in READ}
    first, long, broken = tables["parquet"]
    record, known = store_records(derived)[0], facts(derived)["img000"]
    file = known["image"]
    assert first == {
        "image_id": "img000",
        "state": "ready",
        "reason": None,
        "detail": None,
        "image_path": str(images / "img000.png"),
        "caption": "a soft gradient, number 0",
        "height": 64,
        "width": 96,
        "aspect_bucket": "1216x832",
        "format_version": 2,
        **dict(
            zip(("crop_left", "crop_top", "crop_right", "crop_bottom"), record["crop"], strict=True)
        ),
        "enlarged": 13.0,
        "cropped": known["cropped"],
        "decoded_width": 96,
        "decoded_height": 64,
        "decoded_scale": 1,
        "colour_space": "RGB",
        "tokens_t5": sum(record["t5_attention_mask"]),
        "tokens_lost_t5": 0,
        "cut_at_t5": None,
        "image_file": file["path"],
        "image_bytes": file["bytes"],
        "image_mtime": datetime(1970, 1, 1, tzinfo=UTC)
        + timedelta(microseconds=file["mtime_ns"] // 1000),
        "image_xxh3": file["xxh3"],
        "outdated": None,
        "first_id": None,
        "caption_given": False,
    }
    lost = facts(derived)["img001"]
    assert long["tokens_lost_t5"] == lost["tokens_lost"]["t5"] > 0
    assert long["cut_at_t5"] == lost["cut_at"]["t5"]
    assert {name: value for name, value in broken.items() if value is not None} == {
        "image_id": "img002",
        "image_path": str(images / "img002.png"),
        "state": "failed",
        "reason": "broken_image",
        "detail": broken["detail"],
    }
    assert "cannot identify" in broken["detail"]
    assert tables["csv"] == [{n: text(value) for n, value in r.items()} for r in tables["jsonl"]]
    for row, same in zip(tables["jsonl"], tables["parquet"], strict=True):
        assert list(row) == list(same)
        time = row["image_mtime"] and datetime.fromisoformat(row["image_mtime"])
        assert {**row, "image_mtime": time} == same


def test_outdated_components_and_a_first_id_are_columns(tmp_path: Path) -> None:
    derived = tmp_path / "derived"
    sketch(make_images(tmp_path / "images", 1), derived)
    path = derived / ".shardwright/facts.jsonl"
    known = {**facts(derived)["img000"], "outdated": ["dinov3", "vae"], "first_id": "before"}
    path.write_text(json.dumps(known) + "\n")
    (row,) = exported(derived, "parquet")
    assert (row["outdated"], row["first_id"]) == ("dinov3,vae", "before")


@pytest.mark.parametrize("kind", READ)
def test_any_text_comes_back_as_it_is(store: SmallStore, kind: str) -> None:
    store.change(0, caption=NASTY, note=NASTY, **{'a "name", of\na column': "x"})
    row = exported(store.root, kind)[0]
    assert (row["caption"], row["note"], row['a "name", of\na column']) == (NASTY, NASTY, "x")


def test_columns_have_the_type_of_their_values_or_are_text(store: SmallStore) -> None:
    columns: dict[str, list[Any]] = {
        "score": [1, 2.5, None, 3],
        "count": [1, 2, 3, -4],
        "flag": [True, False, None, True],
        "mixed": [1, "one", [1], None],
        "truth": [True, 1, 0, 1],
        "nested": [{"a": [1, None]}, [1, 2], None, None],
        "huge": [1, 1 << 70, None, None],
        "nothing": [None, None, None, None],
    }
    records = store.records()
    for number, record in enumerate(records):
        record.update({name: values[number] for name, values in columns.items()})
    store.write(records)
    path = store.root.parent / "t.parquet"
    status(store.root, export=path)
    table = pyarrow.parquet.read_table(path)
    types = {name: str(table.schema.field(name).type) for name in columns}
    assert types == {
        "score": "double",
        "count": "int64",
        "flag": "bool",
        **dict.fromkeys(("mixed", "truth", "nested", "huge", "nothing"), "string"),
    }
    assert table["score"].to_pylist() == columns["score"]
    assert table["count"].to_pylist() == columns["count"]
    assert table["flag"].to_pylist() == columns["flag"]
    assert table["mixed"].to_pylist() == ["1", "one", "[1]", None]
    assert table["truth"].to_pylist() == ["true", "1", "0", "1"]
    assert [v and json.loads(v) for v in table["nested"].to_pylist()] == columns["nested"]
    assert table["huge"].to_pylist() == ["1", str(1 << 70), None, None]
    rows = exported(store.root, "jsonl")
    assert {name: [row[name] for row in rows] for name in columns} == columns
    assert [row["mixed"] for row in exported(store.root, "csv")] == ["1", "one", "[1]", None]


def test_a_column_of_the_user_never_takes_the_place_of_one_of_ours(store: SmallStore) -> None:
    store.change(0, state="sold", enlarged="much", crop="none")
    row = exported(store.root, "parquet")[0]
    assert (row["state"], row["record_state"]) == ("ready", "sold")
    assert (row["enlarged"], row["record_enlarged"], row["crop_left"]) == (None, "much", None)


def test_each_image_has_one_row_with_its_state_as_it_is_counted(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", samples=8)
    store.array("vae", "img1").unlink()
    os.truncate(store.array("t5", "img2"), 1000)
    store.change(3, caption=" ")
    lines = store.records()
    other = {**lines[4], "image_path": "another/img4.jpg"}
    store.write(
        [*lines, {**lines[5], "caption": "a later one"}, other, {**lines[6], "caption": ""}]
    )
    store.append(b"not json\n")
    store.append(json.dumps({"image_path": "no/id.jpg"}).encode() + b"\n")
    store.append(
        b'{"image_id": ["img0"], "image_path": "\\ud83d\\ude00"}\n{"image_id": "\\ud83d"}\n'
    )
    rows = exported(store.root, "jsonl")
    assert [(row["image_id"], row["state"]) for row in rows] == [
        ("img0", "ready"),
        ("img1", "vae_missing"),
        ("img2", "t5_truncated"),
        ("img3", "caption_invalid"),
        ("img4", "duplicate_id"),
        ("img7", "ready"),
        ("img5", "ready"),
        ("img4", "duplicate_id"),
        ("img6", "caption_invalid"),
        (None, "image_id_missing"),
        (["img0"], "image_id_invalid"),
    ]
    assert rows[-1]["image_path"] == "\N{GRINNING FACE}"
    assert rows[6]["caption"] == "a later one"
    counted = status(store.root).skipped_by_reason
    for reason in {row["state"] for row in rows} - {"ready"}:
        assert counted[reason].count == sum(row["state"] == reason for row in rows)


def test_an_image_of_which_a_component_failed_has_its_reason_in_its_own_row(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    sketch(images, derived)
    known = facts(derived)["img001"]["image"]["path"]
    failure = {"image_id": "img001", "image_path": known, "reason": "not_finite", "detail": "vae"}
    (derived / ".shardwright/failures.jsonl").write_text(
        json.dumps({**failure, "components": ["vae"]}) + "\n"
    )
    rows = exported(derived, "jsonl")
    assert [(row["state"], row["reason"], row["detail"]) for row in rows] == [
        ("ready", None, None),
        ("ready", "not_finite", "vae"),
    ]


def test_an_image_that_the_recipe_leaves_out_for_its_caption_is_a_row(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 2), tmp_path / "derived"
    (images / "img000.txt").write_text(LONG)
    (tmp_path / "r.toml").write_text('extends = "prx"\n[images]\nmax_tokens_lost = 9\n')
    sketch(images, derived, recipe=tmp_path / "r.toml")
    ready, out = exported(derived, "jsonl")
    assert (ready["image_id"], ready["state"]) == ("img001", "ready")
    assert (out["image_id"], out["state"]) == ("img000", "above_max_tokens_lost")
    assert out["tokens_lost_t5"] > 9
    assert out["image_path"] == str(images / "img000.png")


def test_stage_1_records_give_rows_without_their_arrays(tmp_path: Path) -> None:
    line = {"image_path": "a.jpg", "dinov3_embedding": [0.5] * 1024, "note": "kept"}
    (tmp_path / "derived").mkdir()
    (tmp_path / "derived/approved_image_dataset.jsonl").write_text(json.dumps(line) + "\n")
    (row,) = exported(tmp_path / "derived", "jsonl")
    assert (row["state"], row["note"]) == ("stage1_record", "kept")
    assert "dinov3_embedding" not in row


def test_a_store_without_records_gives_a_table_of_its_failures(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    (images / "img000.png").write_bytes(b"broken")
    sketch(images, derived)
    for kind in READ:
        (row,) = exported(derived, kind)
        assert (row["image_id"], row["state"], row["reason"]) == (
            "img000",
            "failed",
            "broken_image",
        )


def test_an_empty_store_gives_a_table_with_the_usual_columns(tmp_path: Path) -> None:
    (tmp_path / "derived/.shardwright").mkdir(parents=True)
    assert all(exported(tmp_path / "derived", kind) == [] for kind in READ)
    assert (tmp_path / "table.csv").read_text().startswith("image_id,state,reason,detail,")
    schema = pyarrow.parquet.read_schema(tmp_path / "table.parquet")
    assert str(schema.field("enlarged").type) == "double"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=40)
@given(st.lists(JSON, min_size=4, max_size=4))
def test_whatever_a_column_holds_can_be_exported_and_read(values: list[Any]) -> None:
    columns = {"x": export._common({export._kind(v) for v in values if v is not None})}
    rows = [{"x": value} for value in values]
    found = {}
    for suffix, form in export._FORMATS.items():
        sink = mock.Mock(written=0)
        pieces: list[bytes] = []

        def take(data: Any, pieces: list[bytes] = pieces, sink: Any = sink) -> None:  # noqa: ANN401
            pieces.append(bytes(data))
            sink.written += len(bytes(data))

        sink.write = take
        with form(sink, columns) as write:
            write(rows)
        found[suffix] = b"".join(pieces)
    assert [json.loads(line)["x"] for line in found[".jsonl"].splitlines()] == values
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(found[".parquet"]))
    kept = table["x"].to_pylist()
    for value, same in zip(values, kept, strict=True):
        if columns["x"] is not str or value is None or isinstance(value, str):
            assert same == value
        else:
            assert json.loads(same) == value


@pytest.mark.parametrize("kind", READ)
def test_a_table_is_there_completely_or_not_at_all(store: SmallStore, kind: str) -> None:
    table = store.root.parent / f"table.{kind}"
    table.write_text("before")
    with using(disk := WatchedDisk()):
        status(store.root, export=table, workers=1)
    complete = table.read_bytes()
    # All kinds are published in the same way.
    for call in range(1, len(disk.calls) + 1) if kind == "parquet" else ():
        table.write_text("before")
        with using(KillingDisk(call)), pytest.raises(Killed):
            status(store.root, export=table, workers=1)
        assert table.read_bytes() in (b"before", complete)
    status(store.root, export=table, workers=1)
    assert table.read_bytes() == complete
    assert sorted(path.name for path in table.parent.iterdir()) == ["derived", table.name]


def test_a_full_disk_leaves_the_table_that_was_there(store: SmallStore) -> None:
    table = store.root.parent / "table.csv"
    table.write_text("before")
    with using(FailingDisk(2, 28, once=False)), pytest.raises(NoSpaceError):
        status(store.root, export=table, workers=1)
    assert table.read_text() == "before"
    assert sorted(path.name for path in table.parent.iterdir()) == ["derived", "table.csv"]


def test_metadata_that_changes_meanwhile_gives_no_table(store: SmallStore) -> None:
    write = export._FORMATS[".csv"]

    def changing(*given: Any) -> Any:  # noqa: ANN401
        store.append(b"\n")
        return write(*given)

    table = store.root.parent / "table.csv"
    with mock.patch.dict(export._FORMATS, {".csv": changing}), pytest.raises(SourceChangedError):
        status(store.root, export=table, workers=1)
    assert [path.name for path in table.parent.iterdir()] == ["derived"]


def test_facts_that_change_meanwhile_give_no_table(tmp_path: Path) -> None:
    derived, write = tmp_path / "derived", export._FORMATS[".csv"]
    sketch(make_images(tmp_path / "images", 2), derived)
    path = derived / ".shardwright/facts.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)

    def changing(data: bytes, *given: Any) -> Any:  # noqa: ANN401
        path.write_bytes(data)
        return write(*given)

    for data in (b"x" + first + second, second + first):
        path.write_bytes(first + second)
        with (
            mock.patch.dict(export._FORMATS, {".csv": partial(changing, data)}),
            pytest.raises(SourceChangedError, match=r"facts\.jsonl: changed while it was read"),
        ):
            status(derived, export=tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()


def test_many_rows_are_written_in_batches(store: SmallStore) -> None:
    with mock.patch.object(export, "_BATCH", 3):
        for kind in READ:
            rows = exported(store.root, kind)
            assert [row["image_id"] for row in rows] == ["img0", "img1", "img2", "img3"]
    assert pyarrow.parquet.ParquetFile(store.root.parent / "table.parquet").num_row_groups == 2


@pytest.mark.parametrize("name", ["t.xlsx", "t", ".csv", "t.csv.gz"])
def test_an_unknown_extension_is_refused_with_those_that_are_known(
    store: SmallStore, name: str
) -> None:
    with pytest.raises(UsageError, match=r"unknown extension; choose from .parquet, .csv, .jsonl"):
        status(store.root, export=store.root.parent / name)


def test_a_place_where_no_table_can_be_is_refused_before_the_work(store: SmallStore) -> None:
    before = store.jsonl.read_bytes()
    with pytest.raises(UsageError, match="belongs to the store; give --export another file"):
        status(store.root, export=store.jsonl)
    assert store.jsonl.read_bytes() == before
    (store.root / ".shardwright").mkdir()
    with pytest.raises(UsageError, match="belongs to the store"):
        status(store.root, export=store.root / ".shardwright/facts.jsonl")
    (store.root.parent / "folder.csv").mkdir()
    with pytest.raises(UsageError, match=r"folder\.csv: is a folder"):
        status(store.root, export=store.root.parent / "folder.csv")
    with pytest.raises(InputMissingError, match="nowhere: no such folder; make it first"):
        status(store.root, export=store.root.parent / "nowhere/t.csv")


def test_without_pyarrow_the_others_still_work_and_the_error_says_so(store: SmallStore) -> None:
    with mock.patch.dict(sys.modules, {"pyarrow": None}):
        with pytest.raises(MissingExtraError, match=r"pip install '.\[export\]'.*csv or .jsonl"):
            status(store.root, export=store.root.parent / "t.parquet")
        assert len(exported(store.root, "csv")) == 4


def test_only_a_parquet_file_needs_pyarrow_or_numpy(store: SmallStore) -> None:
    code = (
        "import sys, shardwright\n"
        f"shardwright.status({str(store.root)!r}, export={str(store.root.parent / 't.csv')!r})\n"
        "sys.exit(bool({'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_the_command_says_how_many_rows_it_wrote_and_where(store: SmallStore) -> None:
    table = store.root.parent / "TABLE.CSV"
    done = run("status", store.root, "--export", table)
    assert f"exported: 4 rows in {table}" in done.stdout
    assert len(read_csv(table)) == 4
    found = json.loads(run("status", store.root, "--export", table, "--json").stdout)
    assert found["exported"] == {"file": str(table), "rows": 4}
