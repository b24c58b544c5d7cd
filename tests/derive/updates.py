"""Images that change after they were derived, and what a store holds then, for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardwright import verify
from shardwright.layout import JSONL_NAME
from shardwright.storage.files import using
from tests.derive.pictures import gradient, save, sketch
from tests.faults import Killed, KillingDisk, contents

IDENTITY = ".shardwright/identity.json"
TINY = ((24, 16), (16, 24), (16, 16))


def facts(derived: Path) -> dict[str, dict[str, Any]]:
    lines = (derived / ".shardwright/facts.jsonl").read_text().splitlines()
    return {entry["image_id"]: entry for entry in map(json.loads, lines)}


def notes(derived: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in verify(derived, workers=1).findings:
        assert not finding.damage
        found.setdefault(finding.kind, []).append(finding.file)
    return found


def fresh(images: Path, derived: Path, **options: Any) -> dict[str, bytes | None]:  # noqa: ANN401
    """Derive from scratch, and give what is there, but for the identity, which a store keeps."""
    folder = derived.with_name("fresh")
    shutil.rmtree(folder, ignore_errors=True)
    sketch(images, folder, **options)
    shutil.copy(derived / IDENTITY, folder / IDENTITY)
    return contents(folder)


def stamps(derived: Path) -> dict[str, tuple[int, int]]:
    """Give the time and the number of each array, which differ if it was written again."""
    found = ((path, path.stat()) for path in derived.glob("*/*.npy"))
    return {
        str(path.relative_to(derived)): (state.st_mtime_ns, state.st_ino) for path, state in found
    }


def written(before: dict[str, tuple[int, int]], derived: Path) -> set[str]:
    now = stamps(derived)
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def replace_one(images: Path, number: int = 1, seed: int = 8) -> Path:
    path = images / f"img{number:03}.png"
    save(path, gradient(32, 16, seed=seed))
    return path


def killed(calls: int, images: Path, derived: Path, **options: Any) -> None:  # noqa: ANN401
    with using(KillingDisk(calls)), pytest.raises(Killed):
        sketch(images, derived, **options)


def rename(images: Path, old: str, new: str) -> None:
    for suffix in (".png", ".txt"):
        target = images / f"{new}{suffix}"
        target.parent.mkdir(exist_ok=True)
        (images / f"{old}{suffix}").rename(target)


def remove(images: Path, name: str) -> str:
    (images / f"{name}.png").unlink()
    (images / f"{name}.txt").unlink()
    return str(images / f"{name}.png")


def without_first_ids(held: dict[str, Any]) -> dict[str, Any]:
    lines = [json.loads(line) for line in held[".shardwright/facts.jsonl"].splitlines()]
    by_id = {line["image_id"]: {**line, "first_id": None} for line in lines}
    records = sorted(held[JSONL_NAME].splitlines())
    return {**held, ".shardwright/facts.jsonl": by_id, JSONL_NAME: records}


def assert_as_derived_from_scratch(images: Path, derived: Path) -> None:
    new = fresh(images, derived)
    assert without_first_ids(contents(derived)) == without_first_ids(new)
