"""Verifying a store: a valid one has no findings, and every fault has exactly its own."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import SPECIFICATION, Component
from shardwright.store import faults
from shardwright.store.arrays import check_values, values
from shardwright.store.npy import BadArrayError
from tests.durability.soak import SOAK
from tests.fuzz.targets import on_disk
from tests.store.small import SmallStore, npy, record, small_store

DERIVE = "run shardwright derive"
REMAKE = "delete the file and run shardwright derive"
DELETE = "delete the line and run shardwright derive"
CORRECT = "correct the record, or delete its line and run shardwright derive"


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return small_store(tmp_path / "derived")


def only_finding(store: SmallStore, read_data: bool = False) -> shardwright.Finding:
    report = shardwright.verify(store.root, read_data=read_data)
    assert len(report.findings) == 1, [str(finding) for finding in report.findings]
    assert report.counts == {report.findings[0].kind: 1}
    assert report.damaged is report.findings[0].damage
    return bare(store, report.findings[0])


def bare(store: SmallStore, finding: shardwright.Finding) -> shardwright.Finding:
    """Take the words that are the same in all commands out of a fix; they must be there."""
    if "shardwright " not in finding.fix:
        return finding
    words = ("" if "migrate" in finding.fix else " IMAGES") + f" --derived-dir {store.root}"
    assert words in finding.fix
    return replace(finding, fix=finding.fix.replace(words, ""))


@pytest.mark.parametrize("read_data", [False, True])
def test_a_small_store_has_no_finding(store: SmallStore, read_data: bool) -> None:
    report = shardwright.verify(store.root, read_data=read_data)
    assert report.findings == []
    assert not report.damaged
    assert report.checked == {"records": 4, "arrays": 12}
    files = list(store.root.rglob("*.npy"))
    assert report.bytes == sum(path.stat().st_size for path in files)


def test_verifying_changes_nothing(store: SmallStore) -> None:
    store.append(b'{"torn')
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    shardwright.verify(store.root, read_data=True)
    after = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert after == before


# Faults of an array: the name of each says what was done, and the finding must say it too.


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def add_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_text(path: Path) -> None:
    path.write_text("not an array, but a text that somebody saved here")


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.npy")


def replace_by_a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def widen(path: Path) -> None:
    path.write_bytes(npy(np.load(path).astype("<f8")))


def swap_bytes(path: Path) -> None:
    path.write_bytes(npy(np.load(path).astype(">f2")))


def structure(path: Path) -> None:
    path.write_bytes(npy(np.zeros(3, dtype=[("a", "<f2")])))


def flatten(path: Path) -> None:
    path.write_bytes(npy(np.load(path).ravel()))


def turn_to_fortran_order(path: Path) -> None:
    path.write_bytes(npy(np.asfortranarray(np.load(path))))


def turn_to_another_picture(path: Path) -> None:
    path.write_bytes(npy(np.load(path)[:, :, :7].copy()))


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("/tmp/shardwright-was-tricked",)


def put_a_pickle_in(path: Path) -> None:
    path.write_bytes(npy(np.array([Bomb()], dtype=object), allow_pickle=True))


def put_a_bare_pickle_in(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


def claim_a_huge_shape(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"(16, 8, 8), }   ", b"(16, 10**12, 8)}"[:16]))


def zip_it(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), np.load(path))
    path.with_suffix(".npz").rename(path)


HEADER_FAULTS = [
    (Path.unlink, "missing", "missing, but a record needs it", DERIVE),
    (replace_by_a_link_to_nowhere, "missing", "missing, but a record needs it", DERIVE),
    (
        replace_by_a_link_to_itself,
        "unreadable",
        "cannot be read",
        "make it readable, or delete it and run shardwright derive",
    ),
    (replace_by_a_folder, "not_a_file", "not a regular file", REMAKE),
    (replace_by_a_pipe, "not_a_file", "not a regular file", REMAKE),
    (empty, "empty", "empty", REMAKE),
    (replace_by_text, "not_npy", "not a .npy file", REMAKE),
    (put_a_bare_pickle_in, "not_npy", "not a .npy file", REMAKE),
    (zip_it, "not_npy", "not a .npy file", REMAKE),
    (claim_a_huge_shape, "not_npy", "not a .npy file", REMAKE),
    (truncate, "truncated", "shorter than its header says", REMAKE),
    (add_a_byte, "trailing_bytes", "longer than its header says", REMAKE),
    (widen, "wrong_dtype", "its dtype is not <f2", REMAKE),
    (swap_bytes, "wrong_dtype", "its dtype is not <f2", REMAKE),
    (structure, "wrong_dtype", "its dtype is not <f2", REMAKE),
    (flatten, "wrong_shape", "its shape is not one of vae", REMAKE),
    (turn_to_fortran_order, "fortran_order", "in Fortran order", REMAKE),
    (put_a_pickle_in, "pickled", "holds pickled objects, which are never loaded", REMAKE),
    (
        turn_to_another_picture,
        "wrong_size",
        "its shape (16, 8, 7) fits neither its picture nor its bucket",
        REMAKE,
    ),
]


@pytest.mark.parametrize("read_data", [False, True], ids=["headers", "data"])
@pytest.mark.parametrize(
    ("fault", "kind", "what", "fix"), HEADER_FAULTS, ids=[row[0].__name__ for row in HEADER_FAULTS]
)
def test_a_damaged_array_is_found(
    store: SmallStore,
    fault: Callable[[Path], None],
    kind: str,
    what: str,
    fix: str,
    read_data: bool,
) -> None:
    path = store.array("vae", "img2")
    fault(path)
    finding = only_finding(store, read_data)
    assert finding == shardwright.Finding(f"vae_{kind}", str(path), None, what, fix, damage=True)
    assert str(finding) == f"{path}: {what}; {fix}"
    assert not os.path.exists("/tmp/shardwright-was-tricked")


@pytest.mark.parametrize("component", [component.name for component in SPECIFICATION.components])
def test_each_component_is_checked(store: SmallStore, component: str) -> None:
    truncate(store.array(component, "img3"))
    assert only_finding(store).kind == f"{component}_truncated"


VALUE_FAULTS = [
    ("nan", float("nan"), "has values that are not numbers (NaN)"),
    ("infinite", float("inf"), "has infinite values"),
    ("infinite", float("-inf"), "has infinite values"),
]


@pytest.mark.parametrize("component", [component.name for component in SPECIFICATION.components])
@pytest.mark.parametrize(("kind", "value", "what"), VALUE_FAULTS)
@pytest.mark.parametrize("place", [0, -1])
def test_a_value_that_is_no_number_is_found_by_reading_the_data(
    store: SmallStore, component: str, kind: str, value: float, what: str, place: int
) -> None:
    path = store.array(component, "img1")
    array = np.load(path)
    array.flat[place] = value
    store.save(component, "img1", array)
    assert shardwright.verify(store.root).findings == []
    finding = only_finding(store, read_data=True)
    assert finding == shardwright.Finding(f"{component}_{kind}", str(path), None, what, REMAKE)


@pytest.mark.parametrize("value", [0.0, -1.5])
def test_an_array_of_one_value_is_found_by_reading_the_data(
    store: SmallStore, value: float
) -> None:
    path = store.array("t5", "img0")
    store.save("t5", "img0", np.full((77, 1024), value, "<f2"))
    finding = only_finding(store, read_data=True)
    what = "all its values are the same"
    assert finding == shardwright.Finding("t5_constant", str(path), None, what, REMAKE)


def test_nan_beyond_the_first_chunk_of_a_large_array_is_found(store: SmallStore) -> None:
    latent = np.random.default_rng(0).standard_normal((16, 256, 256)).astype("<f2")
    latent[15, 255, 255] = np.nan
    store.save("vae", "img0", latent)
    store.change(0, width=2048, height=2048)
    assert only_finding(store, read_data=True).kind == "vae_nan"


@pytest.mark.parametrize("dtype", ["<f2", "bfloat16"])
@settings(deadline=None, max_examples=60)
@given(bits=st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40), repeats=st.integers(2, 3))
def test_the_judgement_by_bits_is_numpys(dtype: str, bits: list[int], repeats: int) -> None:
    made = np.array(bits * repeats, "<u2")
    component = Component("a", "a", "a.npy", dtype, (len(made),), encoder="mine")
    numbers = made.view("<f2") if dtype == "<f2" else values(made, component)
    expected = "constant" if len(set(bits)) == 1 else None
    if np.isinf(numbers).any():
        expected = "infinite"
    if np.isnan(numbers).any():
        expected = "nan"
    try:
        check_values(on_disk(made.tobytes()), made.nbytes, made.shape, component)
        found = None
    except BadArrayError as error:
        found = error.reason
    assert found == expected


# Shapes follow the picture, or the bucket.


def test_a_latent_may_be_of_its_pictures_size_or_of_its_buckets(store: SmallStore) -> None:
    store.change(0, width=200, height=128)  # the latent is of the bucket, 64x64
    store.change(2, aspect_bucket="1024x1024")  # and this one of the picture
    assert shardwright.verify(store.root).findings == []


def test_without_a_size_the_bucket_decides(store: SmallStore) -> None:
    store.change(1, width=None)
    store.save("vae", "img1", np.ones((16, 5, 5), "<f2"))
    kinds = shardwright.verify(store.root).counts
    assert kinds == {"size_missing": 1, "vae_wrong_size": 1}


def test_without_size_and_bucket_any_latent_will_do(store: SmallStore) -> None:
    store.change(1, width=None, aspect_bucket="big")
    kinds = shardwright.verify(store.root).counts
    assert kinds == {"size_missing": 1, "aspect_bucket_invalid": 1}


# Faults of a record.

RECORD_FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("image_path_missing", {"image_path": None}, "no image_path"),
    ("image_path_invalid", {"image_path": 7}, "image_path is not a path"),
    ("image_path_missing", {"image_path": ""}, "no image_path"),
    ("aspect_bucket_missing", {"aspect_bucket": None}, "no aspect_bucket"),
    (
        "aspect_bucket_invalid",
        {"aspect_bucket": "64×64"},  # noqa: RUF001 - the sign is the fault
        "aspect_bucket is not written WIDTHxHEIGHT",
    ),
    (
        "aspect_bucket_invalid",
        {"aspect_bucket": "../64x64"},
        "aspect_bucket is not written WIDTHxHEIGHT",
    ),
    (
        "aspect_bucket_invalid",
        {"aspect_bucket": [64, 64]},
        "aspect_bucket is not written WIDTHxHEIGHT",
    ),
    ("mask_missing", {"t5_attention_mask": None}, "no t5_attention_mask"),
    (
        "mask_invalid",
        {"t5_attention_mask": [1] * 76},
        "t5_attention_mask is not a list of 77 zeros and ones",
    ),
    (
        "mask_invalid",
        {"t5_attention_mask": [1] * 76 + [2]},
        "t5_attention_mask is not a list of 77 zeros and ones",
    ),
    (
        "mask_invalid",
        {"t5_attention_mask": [True] * 77},
        "t5_attention_mask is not a list of 77 zeros and ones",
    ),
    (
        "mask_all_zero",
        {"t5_attention_mask": [0] * 77},
        "there is a caption, but t5_attention_mask is all zeros",
    ),
    ("size_missing", {"height": None}, "no height or no width"),
    ("size_invalid", {"height": 0}, "height or width is not the size of a picture"),
    ("size_invalid", {"width": "64"}, "height or width is not the size of a picture"),
    ("size_invalid", {"width": 10**30}, "height or width is not the size of a picture"),
    ("format_version_missing", {"format_version": None}, "no format_version"),
    ("format_version_invalid", {"format_version": 3}, "format_version is not 2"),
    ("format_version_invalid", {"format_version": "2"}, "format_version is not 2"),
]


@pytest.mark.parametrize(("kind", "fields", "what"), RECORD_FAULTS)
def test_a_faulty_record_is_found(
    store: SmallStore, kind: str, fields: dict[str, Any], what: str
) -> None:
    store.change(2, **fields)
    finding = only_finding(store)
    assert finding == shardwright.Finding(kind, str(store.jsonl), 3, what, CORRECT)
    assert str(finding) == f"{store.jsonl}, line 3: {what}; {CORRECT}"


@pytest.mark.parametrize(
    ("caption", "kind"),
    [(None, "caption_missing"), ("", "caption_invalid"), (" \n", "caption_invalid")],
)
def test_a_mask_without_a_caption_is_found(
    store: SmallStore, caption: str | None, kind: str
) -> None:
    store.change(0, caption=caption)
    report = shardwright.verify(store.root)
    assert [finding.kind for finding in report.findings] == [kind, "mask_without_caption"]
    store.change(0, caption=caption, t5_attention_mask=[0] * 77)
    assert only_finding(store).kind == kind


@pytest.mark.parametrize(
    ("image_id", "kind"),
    [
        (None, "image_id_missing"),
        ("../../etc/passwd", "image_id_invalid"),
        ("..", "image_id_invalid"),
        ("a\0b", "image_id_invalid"),
        ("x" * 300, "image_id_invalid"),
        (5, "image_id_invalid"),
    ],
)
def test_an_image_id_that_is_no_file_name_is_found_and_never_followed(
    store: SmallStore, image_id: object, kind: str
) -> None:
    store.change(1, image_id=image_id)
    report = shardwright.verify(store.root)
    assert [finding.kind for finding in report.findings if finding.damage] == [kind]
    # Its arrays have no record now.
    assert [finding.kind for finding in report.findings if not finding.damage] == [
        "dinov3_orphaned",
        "vae_orphaned",
        "t5_orphaned",
    ]


def test_an_inline_array_is_found(store: SmallStore) -> None:
    store.change(0, dinov3_embedding=[0.5] * 1024)
    finding = only_finding(store)
    assert (finding.kind, finding.line) == ("inline_array", 1)
    assert finding.fix == "run shardwright migrate"


def test_a_stage_1_record_is_one_finding_with_one_fix(store: SmallStore) -> None:
    fields = {"image_path": "data/approved/old.jpg", "dinov3_embedding": [0.5] * 1024}
    store.append(json.dumps(fields).encode() + b"\n")
    finding = only_finding(store)
    assert (finding.kind, finding.line) == ("stage1_record", 5)
    assert finding.fix == "run shardwright migrate"


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from([*record("a", 8, 8)]),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.lists(st.integers(0, 2), max_size=80)
    | st.just("1024x1024"),
)
def test_verify_finds_every_reason_for_which_pack_would_skip(name: str, value: object) -> None:
    fields = record("a", 8, 8) | {name: value}
    valid = faults.Rules(SPECIFICATION)
    found = list(valid.faults(fields))
    reason = valid.problem(fields)
    assert reason is None or reason in found
    assert (reason is None) == (set(found) <= faults.HARMLESS)
    assert set(found) <= faults.RECORD_FAULTS.keys()


# Faults of a line.

NOT_RECORDS = [
    (b"not JSON at all", "not_json", "fix the line, or delete it and run shardwright derive"),
    (b'{"image_id": NaN}', "not_json", "fix the line, or delete it and run shardwright derive"),
    (b"[" * 100_000, "not_json", "fix the line, or delete it and run shardwright derive"),
    (b'"\\ud800"', "not_json", "fix the line, or delete it and run shardwright derive"),
    (b"\xff\xfe{}", "not_json", "fix the line, or delete it and run shardwright derive"),
    (b"[1, 2]", "not_an_object", DELETE),
    (b'{"own": ' + b"[" * 200 + b"]" * 200 + b"}", "nested_too_deep", DELETE),
    (b"null", "not_an_object", DELETE),
]


@pytest.mark.parametrize(("line", "kind", "fix"), NOT_RECORDS)
def test_a_line_that_is_no_record_is_found_by_its_number(
    store: SmallStore, line: bytes, kind: str, fix: str
) -> None:
    lines = store.jsonl.read_bytes().splitlines(keepends=True)
    lines.insert(2, line + b"\n")
    store.jsonl.write_bytes(b"".join(lines))
    finding = only_finding(store)
    assert (finding.kind, finding.line, finding.fix) == (kind, 3, fix)


def test_a_line_that_is_too_long_is_found(store: SmallStore) -> None:
    with store.jsonl.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b'{"caption": "')
        file.seek(100 << 20, os.SEEK_CUR)  # a hole, which costs no disk
        file.write(b'"}\n')
    finding = only_finding(store)
    assert (finding.kind, finding.line, finding.what) == (
        "line_too_long",
        5,
        "longer than 64 MiB",
    )


def test_a_torn_last_line_is_found_wherever_it_is_torn(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", samples=2)
    complete = store.jsonl.read_bytes()
    last = complete.rindex(b"\n", 0, -1) + 1
    for length in range(last + 1, len(complete) - 1, 7):
        store.jsonl.write_bytes(complete[:length])
        damage = [f for f in shardwright.verify(store.root).findings if f.damage]
        assert [(f.kind, f.line, bare(store, f).fix) for f in damage] == [("torn_line", 2, DELETE)]
    store.jsonl.write_bytes(complete[:-1])  # only the line end is missing: nothing is lost
    assert shardwright.verify(store.root).findings == []


def test_a_line_separator_or_a_byte_order_mark_is_no_fault(store: SmallStore) -> None:
    store.change(0, caption="one\u2028line")
    lines = store.jsonl.read_bytes().replace(b"\\u2028", "\u2028".encode())
    store.jsonl.write_bytes(b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n\r\n"))
    assert shardwright.verify(store.root).findings == []


# Duplicates.


def test_two_images_with_one_id_are_found(store: SmallStore) -> None:
    store.write([*store.records(), {**store.records()[1], "image_path": "data/other/img1.png"}])
    finding = only_finding(store)
    assert finding == shardwright.Finding(
        "duplicate_id",
        str(store.jsonl),
        5,
        "the same image_id as line 2, for another image",
        "rename one of the images, delete both lines and their arrays, and run shardwright derive",
    )


def test_a_repeated_record_is_found(store: SmallStore) -> None:
    again = {**store.records()[1], "image_path": "data//approved/./img1.jpg"}
    store.write([*store.records(), again])
    finding = only_finding(store)
    assert finding == shardwright.Finding(
        "repeated_record",
        str(store.jsonl),
        5,
        "the same image_id and image as line 2",
        "delete one of the two lines; pack uses the later one",
    )


def test_an_image_with_two_ids_is_found(store: SmallStore) -> None:
    store.change(2, image_path="data/approved/img0.jpg")
    finding = only_finding(store)
    assert finding == shardwright.Finding(
        "duplicate_image",
        str(store.jsonl),
        3,
        "the same image as line 1, under another image_id",
        "delete one of the two lines and its arrays",
    )


def test_a_repeat_of_a_duplicate_names_its_own_line(store: SmallStore) -> None:
    twin = {**store.records()[2], "image_path": "data/approved/img0.jpg"}
    store.write([*store.records()[:2], twin, store.records()[3], twin])
    findings = shardwright.verify(store.root).findings
    assert [(f.kind, f.line, f.what) for f in findings] == [
        ("duplicate_image", 3, "the same image as line 1, under another image_id"),
        ("repeated_record", 5, "the same image_id and image as line 3"),
    ]


# Notes: nothing is lost by them.


def test_an_array_without_a_record_is_noted(store: SmallStore) -> None:
    path = store.array("t5", "stranger")
    path.write_bytes(b"whatever")
    finding = only_finding(store)
    assert finding == shardwright.Finding(
        "t5_orphaned",
        str(path),
        None,
        "no record uses it",
        "delete it, or run shardwright derive to give its image a record",
        damage=False,
    )


@pytest.mark.parametrize("place", ["vae_latents/img0.npy.tmp", "old.jsonl.tmp"])
def test_a_leftover_is_noted(store: SmallStore, place: str) -> None:
    (store.root / place).write_bytes(b"half")
    finding = only_finding(store)
    assert finding == shardwright.Finding(
        "leftover",
        str(store.root / place),
        None,
        "partly written by an interrupted run",
        "delete it when no run is active",
        damage=False,
    )


def test_a_journal_is_noted(store: SmallStore) -> None:
    journal = store.root / "approved_image_dataset.jsonl.tmp"
    journal.write_bytes(b'{"image_id": "img')
    finding = only_finding(store)
    assert (finding.kind, finding.file, finding.damage) == ("journal", str(journal), False)
    assert finding.fix == "to merge them, run shardwright derive"


@pytest.mark.parametrize("name", [b"\xff\xfe.npy", b"a\nb\x1b[31m.npy", b".npy"])
def test_a_name_that_no_terminal_should_see_is_spelt_out(store: SmallStore, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(store.root / "dinov3") + b"/" + name))
    path.write_bytes(b"")
    finding = only_finding(store)
    assert (finding.kind, finding.file) == ("dinov3_orphaned", str(path))
    assert str(finding).isprintable()
    str(finding).encode()


# All of it.


def test_a_missing_folder_is_one_finding(store: SmallStore) -> None:
    (store.root / "t5_hidden").rename(store.root / "elsewhere")
    finding = only_finding(store)
    assert finding == shardwright.Finding(
        "t5_folder_missing",
        str(store.root / "t5_hidden"),
        None,
        "is missing, but every record needs it",
        DERIVE,
    )


def test_the_report_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", samples=2)
    first, second = store.records()
    many = [
        {**(first if n % 2 else second), "image_id": f"s{n}", "image_path": f"{n}.jpg"}
        for n in range(1500)
    ]
    store.write(many)
    for n in range(1500):
        for component in ("dinov3", "vae", "t5"):
            if n % 97:
                os.link(store.array(component, f"img{1 - n % 2}"), store.array(component, f"s{n}"))
    reports = [shardwright.verify(store.root, workers=workers) for workers in (1, 2, 3)]
    assert len(reports[0].findings) == 3 * 16 + 6  # arrays not there, and those of img0 and img1
    assert reports[0].findings == reports[1].findings == reports[2].findings
    assert reports[0].counts["vae_missing"] == 16


def test_all_faults_of_a_store_are_listed(store: SmallStore) -> None:
    for component in ("dinov3", "vae", "t5"):
        store.array(component, "img0").unlink()
    truncate(store.array("vae", "img3"))
    store.change(1, caption=None, format_version=None)
    assert [finding.kind for finding in shardwright.verify(store.root).findings] == [
        "caption_missing",
        "mask_without_caption",
        "format_version_missing",
        "dinov3_missing",
        "vae_missing",
        "t5_missing",
        "vae_truncated",
    ]


def test_an_empty_store_is_valid(tmp_path: Path) -> None:
    (tmp_path / "approved_image_dataset.jsonl").write_bytes(b"")
    assert shardwright.verify(tmp_path).findings == []


def test_progress_counts_bytes_of_records_and_then_samples(store: SmallStore) -> None:
    class Recorder(shardwright.Progress):
        def __init__(self) -> None:
            self.phases: list[list[object]] = []

        def phase(self, name: str, total: int, unit: str) -> None:
            self.phases.append([name, total, unit, 0])

        def advance(self, count: int) -> None:
            done = self.phases[-1][3]
            assert isinstance(done, int)
            self.phases[-1][3] = done + count

    recorder = Recorder()
    shardwright.verify(store.root, progress=recorder)
    size = store.jsonl.stat().st_size
    assert recorder.phases == [["records", size, "B", size], ["arrays", 4, "samples", 4]]


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="nothing: no such folder"):
        shardwright.verify(tmp_path / "nothing")
    (tmp_path / "bucket_64x64").mkdir()
    with pytest.raises(UsageError, match=r"is not a store \(no approved_image_dataset\.jsonl\)"):
        shardwright.verify(tmp_path)
    with pytest.raises(UsageError, match="--workers is 0; give 1 or more"):
        shardwright.verify(small_store(tmp_path / "derived").root, workers=0)


@pytest.mark.parametrize("component", [component.name for component in SPECIFICATION.components])
def test_every_flipped_bit_of_a_header_is_found_unless_it_means_the_same(
    tmp_path: Path, component: str
) -> None:
    store = small_store(tmp_path / "derived", samples=1)
    path = store.array(component, "img0")
    complete, array = path.read_bytes(), np.load(path)
    missed = 0
    for place in range(128):
        for bit in range(8) if SOAK else [(place + len(component)) % 8]:
            flipped = bytes([complete[place] ^ 1 << bit])
            path.write_bytes(complete[:place] + flipped + complete[place + 1 :])
            report = shardwright.verify(store.root, workers=1)
            if report.findings:
                assert [finding.file for finding in report.findings] == [str(path)]
                assert report.damaged
            else:  # one blank for another: NumPy reads the very same array
                assert np.array_equal(np.load(path), array)
                missed += 1
    assert missed < 10


@settings(deadline=None, max_examples=100)
@given(data=st.binary(max_size=300))
def test_no_bytes_in_the_metadata_make_it_raise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    root = tmp_path_factory.mktemp("bytes")
    (root / "approved_image_dataset.jsonl").write_bytes(data)
    report = shardwright.verify(root)
    report.to_dict()


@settings(deadline=None, max_examples=100)
@given(header=st.binary(max_size=200), size=st.integers(0, 300))
def test_no_bytes_in_an_array_make_it_raise(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, size: int
) -> None:
    store = small_store(tmp_path_factory.mktemp("bytes") / "derived", samples=1)
    path = store.array("dinov3", "img0")
    path.write_bytes((b"\x93NUMPY\x01\x00" + header)[:size])
    report = shardwright.verify(store.root, read_data=True)
    assert [finding.file for finding in report.findings] == [str(path)]
