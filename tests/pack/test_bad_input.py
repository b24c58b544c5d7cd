"""Bad input: skipped with a named reason or refused; never a traceback, a hang or a stray byte."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import InputMissingError, ShardwrightError, StorageError, UsageError, pack
from tests import commands
from tests.stores import (
    Store,
    array,
    line,
    make_store,
    npy,
    npy_header,
    record,
)
from tests.tars import all_ids, digests, listing, shards


def packed(store: Store, output: Path, *flags: str) -> dict[str, Any]:
    """Pack with the real command, which must end well, and give its JSON."""
    done = commands.run(
        "pack", "--derived-dir", store.root, "--output-dir", output, *flags, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads(done.stdout)
    assert isinstance(summary, dict)
    assert summary["total_records"] == summary["ready_records"] + summary["skipped_incomplete"]
    return summary


def counts(summary: dict[str, Any]) -> dict[str, int]:
    return {name: why["count"] for name, why in summary["skipped_by_reason"].items()}


# Missing inputs


@pytest.mark.parametrize(
    "missing",
    ["approved_image_dataset.jsonl", "dinov3", "vae_latents", "t5_hidden"],
)
def test_a_missing_input_is_exit_2_and_names_the_path(
    missing: str, store: Store, output: Path
) -> None:
    path = store.root / missing
    path.rename(store.root / "elsewhere")
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}: no such f")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    with pytest.raises(InputMissingError, match=missing):
        pack(derived_dir=store.root, output_dir=output)
    assert not output.exists()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_jsonl_that_is_no_file_is_exit_2(kind: str, store: Store, output: Path) -> None:
    store.jsonl.unlink()
    if kind == "folder":
        store.jsonl.mkdir()
    else:
        os.mkfifo(store.jsonl)
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, timeout=100)
    assert done.returncode == 2
    assert str(store.jsonl) in done.stderr


def test_under_json_an_error_is_one_object_too(tmp_path: Path) -> None:
    done = commands.run("pack", "--derived-dir", tmp_path / "nowhere", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "InputMissingError"
    assert str(tmp_path / "nowhere") in json.loads(done.stdout)["message"]


# Lines


def test_every_sort_of_bad_line_is_skipped_with_a_reason(tmp_path: Path, output: Path) -> None:
    good = [record("first"), record("second", caption="one\u2028line\u0085still"), record("last")]
    store = make_store(tmp_path / "derived", [*good, record("windows")])
    bad = {
        "not_json": [
            b"{",
            b"{]",
            b"{'image_id': 'a'}",
            b'{"image_id": NaN}',
            b'{"height": Infinity}',
            b'{"height": 1e999}',
            b'{"height": ' + b"9" * 5000 + b"}",
            b'{"caption": "\\ud800"}',  # a surrogate alone, escaped
            b'{"caption": "\xed\xa0\x80"}',  # and as bytes
            b'{"caption": "\xff"}',
            b'{"caption": "\x00"}',
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"[" * 100_000 + b"]" * 100_000,
            b"{} {}",
            b"\x00" * 300,
            b"\xef\xbb\xbf{}",  # a byte order mark belongs at the start of the file only
        ],
        "not_an_object": [b"[]", b"null", b"3", b'"text"', b"true", b"[{}]"],
        "image_id_missing": [b"{}", b'{"image_id": null}', line({"caption": "no id"})],
    }
    store.write_lines(
        [
            b"\xef\xbb\xbf" + line(good[0]),
            *bad["not_json"],
            line(good[1]),
            *bad["not_an_object"],
            b"",
            b" \t ",
            b"\r",
            *bad["image_id_missing"],
            line(record("windows")) + b"\r",
        ]
    )
    with store.jsonl.open("ab") as file:
        file.write(line(good[2]))  # without a line end
    summary = packed(store, output)
    assert counts(summary) == {name: len(lines) for name, lines in bad.items()}
    assert summary["skipped_by_reason"]["not_json"]["example"] == "line 2"
    assert all_ids(output) == ["first", "second", "windows", "last"]
    (shard,) = shards(output)
    text = json.dumps("one\u2028line\u0085still", ensure_ascii=False).encode()
    assert text in shard.read_bytes()


def test_only_a_handful_of_malformed_lines_is_printed_and_all_are_counted(
    store: Store, output: Path
) -> None:
    store.append(*[b"bad"] * 1000)
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    warnings = [text for text in done.stderr.splitlines() if text.startswith("warning: ")]
    assert warnings == [
        *(f"warning: {store.jsonl}, line {n}: not json; skipped" for n in range(8, 13)),
        f"warning: {store.jsonl}: 995 more malformed lines skipped",
    ]
    assert "  not_json: 1,000 (for example line 8)" in done.stdout.splitlines()


def test_a_huge_line_costs_bounded_memory(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("before"), record("after")])
    with store.jsonl.open("wb") as file:
        file.write(line(record("before")) + b'\n{"caption": "')
        file.seek(400_000_000)  # a hole costs the disk nothing, and us as much as any bytes
        file.write(b'"}\n' + line(record("after")))

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))

    done = subprocess.run(
        [*commands.COMMAND, "pack", "--derived-dir", store.root, "--output-dir", output, "--json"],
        preexec_fn=limit_memory,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["skipped_by_reason"] == {
        "line_too_long": {"count": 1, "example": "line 2"}
    }
    assert all_ids(output) == ["before", "after"]


@pytest.mark.parametrize("workers", [1, 2])
def test_nesting_near_the_interpreters_limit_is_no_traceback(
    workers: int, tmp_path: Path, output: Path
) -> None:
    depths = range(850, 1010)
    given = [record(f"deep{depth}") for depth in depths]
    store = make_store(tmp_path / "derived", [*given, record("flat")], share=("dinov3", "t5"))
    lines = [
        line(fields)[:-1] + b', "extra": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
        for fields, depth in zip(given, depths, strict=True)
    ]
    store.write_lines([*lines, line(record("flat"))])
    summary = pack(derived_dir=store.root, output_dir=output, workers=workers, shard_size=100)
    assert all_ids(output) == ["flat"]
    assert set(summary.skipped_by_reason) == {"nested_too_deep", "not_json"}
    assert summary.total_records == summary.ready_records + summary.skipped_incomplete


# Hostile names


HOSTILE_IDS = [
    "../x",
    "../../x",
    "a/b",
    "/tmp/absolute",
    "/",
    "",
    ".",
    "..",
    "nul\0byte",
    "x" * 300,
    "é" * 126,  # 252 bytes, and ".npy" comes after
    7,
    ["a"],
    {"a": 1},
    True,
    1.5,
]


def test_a_hostile_image_id_is_never_a_path(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("good")])
    for target in ("x.npy", "dinov3/x.npy", "dinov3/.npy", "dinov3/..npy"):
        (store.root / target).write_bytes(npy(array("dinov3", "good")))
    store.append(*(line({**record("x"), "image_id": image_id}) for image_id in HOSTILE_IDS))
    outside = listing(tmp_path)
    summary = packed(store, output)
    assert counts(summary) == {"image_id_invalid": len(HOSTILE_IDS)}
    assert all_ids(output) == ["good"]
    inside = [f"shards/{name}" for name in listing(output)]
    assert listing(tmp_path) == sorted([*outside, "shards", *inside])


HOSTILE_BUCKETS = [
    "../../x",
    "../8x8",
    "8x8/../../y",
    "/8x8",
    "8x8/",
    "",
    ".",
    "8x8\0",
    "8x8x8",
    "8 x 8",
    "+8x8",
    "8e1x8",
    "8" * 300 + "x8",
    8,
    [8, 8],
    {"8": 8},
]


def test_a_hostile_bucket_is_never_a_path(tmp_path: Path, output: Path) -> None:
    given = [record(f"bad{n}") | {"aspect_bucket": b} for n, b in enumerate(HOSTILE_BUCKETS)]
    store = make_store(tmp_path / "derived", [*given, record("good")])
    outside = listing(tmp_path)
    summary = packed(store, output)
    assert counts(summary) == {"aspect_bucket_invalid": len(HOSTILE_BUCKETS)}
    inside = [f"shards/{name}" for name in listing(output)]
    assert listing(tmp_path) == sorted([*outside, "shards", *inside])
    visible = [name for name in listing(output) if not name.startswith(".shardwright")]
    assert visible == ["bucket_1024x1024", "bucket_1024x1024/shard-000000.tar"]


# Arrays


class Bomb:
    """Unpickling this leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, array=array("vae", "x"))
    return file.getvalue()


GOOD = npy(array("vae", "x"))
BAD_ARRAYS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "vae_empty"),
    "a byte": (b"\x93", "vae_not_npy"),
    "magic only": (b"\x93NUMPY", "vae_not_npy"),
    "cut in the header": (GOOD[:60], "vae_truncated"),
    "header only": (GOOD[:128], "vae_truncated"),
    "one byte short": (GOOD[:-1], "vae_truncated"),
    "one byte more": (GOOD + b"\0", "vae_trailing_bytes"),
    "two arrays": (GOOD + GOOD, "vae_trailing_bytes"),
    "float32": (npy(array("vae", "x").astype("<f4")), "vae_wrong_dtype"),
    "big-endian": (npy(array("vae", "x").astype(">f2")), "vae_wrong_dtype"),
    "unsigned": (npy(array("vae", "x").view("<u2")), "vae_wrong_dtype"),
    "void": (npy_header("|V2", (16, 2, 3)) + GOOD[128:], "vae_wrong_dtype"),
    "structured": (npy(np.zeros((16, 2, 3), [("a", "<f2")])), "vae_wrong_dtype"),
    "another depth": (npy(array("vae", "x", (4, 2, 3))), "vae_wrong_shape"),
    "flat": (npy(array("vae", "x").reshape(-1)), "vae_wrong_shape"),
    "batched": (npy(array("vae", "x")[None]), "vae_wrong_shape"),
    "scalar": (npy(np.zeros((), "<f2")), "vae_wrong_shape"),
    "no rows": (npy_header("<f2", (16, 0, 3)), "vae_wrong_shape"),
    "fortran": (npy(np.asfortranarray(array("vae", "x"))), "vae_fortran_order"),
    "huge claim": (npy_header("<f2", (16, 10**12, 2**63)) + GOOD[128:], "vae_truncated"),
    "npz renamed": (archive(), "vae_not_npy"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(500), "vae_not_npy"),
    "header is no dict": (GOOD.replace(b"{", b"["), "vae_not_npy"),
    "header with unhashable key": (
        GOOD[:10] + b"{[]: 1}".ljust(117) + b"\n" + GOOD[128:],
        "vae_not_npy",
    ),
    "version 9": (GOOD[:6] + b"\x09" + GOOD[7:], "vae_not_npy"),
    "endless header": (GOOD[:6] + b"\x02\x00\xff\xff\xff\xff" + GOOD[12:], "vae_not_npy"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_a_bad_array_is_skipped_with_its_reason(name: str, tmp_path: Path, output: Path) -> None:
    data, reason = BAD_ARRAYS[name]
    store = make_store(tmp_path / "derived", [record("bad"), record("good")])
    store.array("vae", "bad").write_bytes(data)
    summary = pack(derived_dir=store.root, output_dir=output, workers=1)
    assert {why: found.example for why, found in summary.skipped_by_reason.items()} == {
        reason: "bad"
    }
    assert all_ids(output) == ["good"]


def test_bad_arrays_of_all_sorts_at_once(tmp_path: Path, output: Path) -> None:
    given = [record(f"bad{n}") for n in range(len(BAD_ARRAYS))]
    store = make_store(tmp_path / "derived", [*given, record("good")])
    expected: dict[str, int] = {}
    for fields, (data, reason) in zip(given, BAD_ARRAYS.values(), strict=True):
        store.array("vae", fields["image_id"]).write_bytes(data)
        expected[reason] = expected.get(reason, 0) + 1
    assert counts(packed(store, output)) == expected
    assert all_ids(output) == ["good"]


@pytest.mark.parametrize("component", ["dinov3", "vae", "t5"])
def test_nothing_of_a_pickled_array_runs(component: str, tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("good"), record("bomb"), record("raw")])
    trace = tmp_path / "trace"
    loaded = np.empty(1024, dtype=object)
    loaded[:] = [Bomb(trace)] * 1024
    store.array(component, "bomb").write_bytes(npy(loaded, allow_pickle=True))
    store.array(component, "raw").write_bytes(pickle.dumps(Bomb(trace)))
    summary = packed(store, output)
    assert counts(summary) == {f"{component}_pickled": 1, f"{component}_not_npy": 1}
    assert not trace.exists()
    np.load(store.array(component, "bomb"), allow_pickle=True)
    assert trace.is_dir()  # the bomb was real


@pytest.mark.parametrize(
    ("component", "shape"),
    [("dinov3", (1023,)), ("dinov3", (1024, 1)), ("t5", (77, 1023)), ("t5", (1024, 77))],
)
def test_every_component_has_its_own_shape(
    component: str, shape: tuple[int, ...], tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", [record("bad")])
    dtype = "<f4" if component == "dinov3" else "<f2"
    store.array(component, "bad").write_bytes(npy(np.zeros(shape, dtype)))
    summary = pack(derived_dir=store.root, output_dir=output)
    assert list(summary.skipped_by_reason) == [f"{component}_wrong_shape"]


def test_whatever_stands_in_place_of_an_array_file_cannot_hang_it(
    tmp_path: Path, output: Path
) -> None:
    names = ("pipe", "folder", "zero", "loop", "dangling", "linked", "good")
    store = make_store(tmp_path / "derived", [record(name) for name in names])
    for name in names[:-1]:
        store.array("t5", name).rename(tmp_path / name)
    os.mkfifo(store.array("t5", "pipe"))
    store.array("t5", "folder").mkdir()
    store.array("t5", "zero").symlink_to("/dev/zero")
    store.array("t5", "loop").symlink_to("loop.npy")
    store.array("t5", "dangling").symlink_to("nothing")
    store.array("t5", "linked").symlink_to(tmp_path / "linked")  # to an array, so an array
    summary = packed(store, output)
    assert counts(summary) == {"t5_not_a_file": 3, "t5_unreadable": 1, "t5_missing": 1}
    assert all_ids(output) == ["linked", "good"]


def test_an_array_too_large_for_a_tar_header_is_skipped(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("large"), record("good")])
    header = npy_header("<f2", (16, 1, 300_000_000))
    with store.array("vae", "large").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 2 * 16 * 300_000_000)
    assert counts(packed(store, output)) == {"vae_too_large": 1}
    assert all_ids(output) == ["good"]


# Permissions and odd places


PACK_AS_NOBODY = """
import os, sys
sys.path[:0] = {path!r}
# While the interpreter's own files may still be read.
import concurrent.futures.thread
import importlib
import shardwright.packing.run
import ctypes
import shardwright.engine.devices
from shardwright.cli.main import main
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("what", ["jsonl", "folder", "array", "output"])
def test_what_may_not_be_read_or_written_is_a_clear_error(
    what: str, store: Store, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" in str(folder):
            folder.chmod(0o755)
    output = tmp_path / "place" / "shards"
    output.parent.mkdir()
    output.parent.chmod(0o777)
    closed = {
        "jsonl": store.jsonl,
        "folder": store.root / "t5_hidden",
        "array": store.array("t5", "img3"),
        "output": output.parent,
    }[what]
    flags = ("pack", "--derived-dir", str(store.root), "--output-dir", str(output))
    closed.chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PACK_AS_NOBODY.format(path=sys.path), *flags],
            capture_output=True,
            text=True,
            timeout=150,
        )
    finally:
        closed.chmod(0o755)
    assert "Traceback" not in done.stderr
    if what == "array":
        assert done.returncode == 0
        assert "  t5_unreadable: 1 (for example img3)" in done.stdout.splitlines()
    elif what == "output":  # known before the scan, of which there is no word
        assert done.returncode == 1
        assert done.stderr == (
            f"error: {closed}: cannot write to this folder; change its permissions, or give "
            "another folder\n"
        )
    else:
        assert done.returncode == 1
        assert str(closed) in done.stderr
        assert done.stderr.endswith("Permission denied; allow it, or work in another folder\n")


def test_a_folder_in_the_place_of_a_shard_is_told_with_the_cure(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    path = shards(output)[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError) as caught:
        pack(derived_dir=store.root, output_dir=output, resume=True)
    cure = "a file belongs there, so move that folder away"
    assert str(caught.value) == f"{path}: Is a directory; {cure}"


def test_an_output_that_cannot_be_a_folder_is_a_clear_error(store: Store, tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("mine")
    for output in (taken, taken / "below"):
        with pytest.raises(UsageError, match="file: is not a folder; give another"):
            pack(derived_dir=store.root, output_dir=output)
    for output in (tmp_path / ("x" * 300), Path("/proc/shards")):
        with pytest.raises(StorageError):
            pack(derived_dir=store.root, output_dir=output)
    assert taken.read_text() == "mine"
    bucket = tmp_path / "shards" / "bucket_1024x1024"
    bucket.parent.mkdir()
    bucket.write_text("mine")
    with pytest.raises(StorageError, match="bucket_1024x1024"):
        pack(derived_dir=store.root, output_dir=bucket.parent)
    assert bucket.read_text() == "mine"


# Arguments


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--shard-size", "0"), "--shard-size is 0"),
        (("--shard-size", "-5"), "--shard-size is -5"),
        (("--limit", "-1"), "--limit is -1"),
        (("--workers", "0"), "--workers is 0"),
        (("--progress-every", "0"), "--progress-every is 0"),
        (("--bucket", "../x"), "--bucket ../x: not a bucket"),
        (("--bucket", "640x480"), "--bucket 640x480: no ready sample is in it"),
        (("--shard-size", "many"), "argument --shard-size: invalid int value: 'many'"),
    ],
)
def test_senseless_arguments_are_exit_2(
    flags: tuple[str, str], message: str, store: Store, output: Path
) -> None:
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()


def test_senseless_arguments_are_value_errors(store: Store, output: Path) -> None:
    for arguments in ({"shard_size": 0}, {"limit": -1}, {"workers": -1}, {"bucket": ["x"]}):
        with pytest.raises(UsageError) as caught:
            pack(derived_dir=store.root, output_dir=output, **arguments)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, ShardwrightError)


def test_an_unknown_bucket_is_told_which_buckets_have_samples(store: Store, output: Path) -> None:
    with pytest.raises(UsageError, match="give some of 1024x1024, 832x1216"):
        pack(derived_dir=store.root, output_dir=output, bucket=["640x480"])


# Nothing to pack


def test_nothing_ready_is_said_plainly_and_writes_nothing(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [record("a", caption="")])
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "nothing to pack: no record is ready"
    assert not output.exists()


def test_an_empty_jsonl_is_nothing_ready(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [])
    summary = packed(store, output)
    assert (summary["total_records"], summary["written_shards"]) == (0, 0)
    assert not output.exists()


@pytest.mark.parametrize("flags", [("--limit", "0"), ("--bucket", "704x1344")])
def test_nothing_chosen_writes_nothing(flags: tuple[str, str], store: Store, output: Path) -> None:
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, *flags)
    assert done.returncode == 0
    assert done.stdout.startswith("nothing to pack: no ready sample is selected")
    assert not output.exists()


def test_nothing_ready_with_overwrite_keeps_the_old_shards(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output)
    before = digests(output)
    store.write_lines([])
    pack(derived_dir=store.root, output_dir=output, overwrite=True)
    assert digests(output) == before
