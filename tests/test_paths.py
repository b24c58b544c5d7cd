"""Paths with tabs and newlines: true in what programs read, escaped in what people read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardwright
from tests.commands import run
from tests.derive.pictures import make_images
from tests.faults import contents
from tests.store.small import small_store

ODD = "a\tb\nc"
SPELT = "a\\tb\\nc"


def reported(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_json_holds_the_true_paths_and_text_the_escaped(tmp_path: Path) -> None:
    images, store, shards = (tmp_path / f"{ODD}-{name}" for name in ("images", "store", "shards"))
    make_images(images, 2)
    (images / "broken.jpg").write_text("not a picture")
    (images / "broken.txt").write_text("a caption")
    derive = ("derive", images, "--derived-dir", store, "--encoders", "sketch")
    assert f"would derive 2 images in {tmp_path}/{SPELT}-store" in run(*derive, "--dry-run").stdout
    derived = reported(*derive)
    assert derived["derived_dir"] == str(store)
    assert derived["failed_by_reason"]["broken_image"]["example"] == str(images / "broken.jpg")
    text = run(*derive).stdout
    assert f"{SPELT}-images/broken.jpg" in text
    assert f"{SPELT}-store/.shardwright/failures.jsonl" in text
    assert "\t" not in text

    leftover = store / "half.tmp"
    leftover.write_bytes(b"")
    status = reported("status", "--derived-dir", store)
    assert status["derived_dir"] == str(store)
    assert status["leftovers"] == [str(leftover)]
    assert status["failures_file"] == str(store / ".shardwright/failures.jsonl")
    split = ["bash", "-c", f"printf '%s\\0' {status['next_command']}"]
    words = subprocess.run(split, capture_output=True, text=True, check=True).stdout.split("\0")
    assert str(store) in words
    assert f"{tmp_path}/{SPELT}-store: 2 records" in run("status", "--derived-dir", store).stdout

    found = reported("verify", store)
    assert (found["path"], found["findings"][0]["file"]) == (str(store), str(leftover))
    assert f"  {tmp_path}/{SPELT}-store/half.tmp: " in run("verify", store).stdout

    packed = reported("pack", "--derived-dir", store, "--output-dir", shards)
    assert packed["output_dir"] == str(shards)
    text = run("pack", "--derived-dir", store, "--output-dir", shards, "--overwrite").stdout
    assert f" in {tmp_path}/{SPELT}-shards [" in text
    (shards / f"{ODD}.tar").write_bytes(b"")
    found = reported("verify", shards)
    assert found["path"] == str(shards)
    assert f"{ODD}.tar" in [finding["file"] for finding in found["findings"]]
    assert f"  {SPELT}.tar: " in run("verify", shards).stdout
    assert reported("index", shards, "--for", "wids")["shards"] == str(shards)
    assert f"{SPELT}-shards: index files" in run("index", shards, "--for", "wids").stdout


def test_an_error_is_printed_without_control_characters(tmp_path: Path) -> None:
    done = run("verify", tmp_path / "\x1b[31m\tnothing")
    assert done.stderr.startswith(f"error: {tmp_path}/\\x1b[31m\\tnothing: no such folder")


def test_a_name_that_is_not_utf8_is_escaped_in_json_too(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived")
    with open(os.fsencode(store.root / "t5_hidden") + b"/\xff\n.npy", "wb"):
        pass
    (finding,) = reported("verify", store.root)["findings"]
    assert finding["file"].endswith("/t5_hidden/\\udcff\n.npy")
    (same,) = shardwright.verify(store.root).findings
    assert os.fsencode(same.file).endswith(b"/t5_hidden/\xff\n.npy")


derive = partial(shardwright.derive, "images")


def flag(argument: str) -> str:
    plain = argument in ("images", "path", "shards")
    return argument if plain else f"--{argument.replace('_', '-')}"


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (shardwright.derive, "images"),
        *((derive, name) for name in ("derived_dir", "jsonl", "captions")),
        *((shardwright.migrate, name) for name in ("derived_dir", "jsonl")),
        *((shardwright.status, name) for name in ("derived_dir", "jsonl")),
        *((shardwright.pack, name) for name in ("derived_dir", "jsonl", "output_dir")),
        *((shardwright.verify, name) for name in ("path", "against")),
        (shardwright.index, "shards"),
        (shardwright.open, "path"),
    ],
)
@pytest.mark.parametrize("value", [5, b"bytes", ["a"]])
def test_a_path_of_the_wrong_type_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., object],
    argument: str,
    value: object,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(shardwright.UsageError) as caught:
        call(**{argument: value})
    assert str(caught.value) == f"{flag(argument)} is {value!r}; give a path"
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (shardwright.open, "path"),
    ],
)
def test_a_path_that_is_needed_cannot_be_none(call: Callable[..., object], argument: str) -> None:
    with pytest.raises(shardwright.UsageError, match=f"^{flag(argument)} is None; give a path$"):
        call(**{argument: None})


@pytest.mark.parametrize(
    ("call", "argument", "value", "message"),
    [
        (shardwright.pack, "bucket", 5, "--bucket is 5; give names"),
        (shardwright.pack, "bucket", [5], r"--bucket is \[5\]; give names"),
        (shardwright.index, "for_", 5, "--for is 5; give names"),
        (derive, "components", 5, "--components is 5; give names"),
        (derive, "components", [None], r"--components is \[None\]; give names"),
        (derive, "recompute", None, "--recompute is None; give names"),
        (derive, "model", 5, "--model is 5; give a mapping of component names to models"),
        (derive, "model", {"vae": 5}, "--model vae is 5; give a hub id or a folder"),
        (derive, "encoders", 5, "--encoders is 5; give a mapping of component names to encoders"),
        (derive, "device", 5, "--device is 5; give auto, cpu"),
        (derive, "dtype", 5, "--dtype 5: not supported"),
        (derive, "fit", 5, "--fit 5: unknown; choose from"),
        (partial(shardwright.open, "x"), "storage_options", 5, "storage_options is 5; give a map"),
    ],
)
def test_other_arguments_of_the_wrong_type_are_refused_by_name(
    call: Callable[..., object], argument: str, value: object, message: str
) -> None:
    with pytest.raises(shardwright.UsageError, match=f"^{message}"):
        call(**{argument: value})
