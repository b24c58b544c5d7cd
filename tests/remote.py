"""Shard folders at object stores, beside local ones, for tests."""

from __future__ import annotations

from pathlib import Path

from shardwright.storage.objects import NoUploadError
from shardwright.storage.urls import Url

_STAGE = ".shardwright/build/"
_PLAN = ["inputs.jsonl", "plan.json"]  # which a finished build leaves


def held(folder: Url) -> dict[str, bytes]:
    """Give all that a folder at an object store holds, by path."""
    return {name: (folder / name).read_bytes() for name, _ in folder.walk()}


def uploads(folder: Url) -> list[str]:
    """Name the files of unfinished uploads with parts; others cost nothing.

    Such a one is left where the answer to its beginning is lost, and with it its name.
    """
    found = folder.objects.uploads(f"{folder.key}/")
    return [key for key, upload, _ in found if _has_parts(folder, key, upload)]


def _has_parts(folder: Url, key: str, upload: str) -> bool:
    try:
        return folder.objects.last_sent(key, upload) > 0
    except NoUploadError:  # it has ended since it was listed
        return False


def local(folder: Path) -> dict[str, bytes]:
    """Give all that a local folder holds, without the lock and what is left of a plan."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return _without_plans(
        {name: p.read_bytes() for name, p in found.items() if p.is_file() and p.name != "lock"}
    )


def assert_same(folder: Url, expected: Path | dict[str, bytes]) -> None:
    """Fail unless a folder at an object store holds what a local one does, byte for byte."""
    found, wanted = held(folder), local(expected) if isinstance(expected, Path) else expected
    shards = _without_plans(found)
    others = {name for name in {**shards, **wanted} if shards.get(name) != wanted.get(name)}
    assert not others, sorted(others)
    plans = [name.rpartition("/")[2] for name in sorted(found) if name.startswith(_STAGE)]
    assert plans == _PLAN * (len(plans) // 2)


def _without_plans(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if not name.startswith(_STAGE)}
