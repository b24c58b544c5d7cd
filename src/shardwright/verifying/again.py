"""Fixes that pack again: with the flags of the last run that pack does not keep by itself."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec

from shardwright.packing import again
from shardwright.shards.format.manifest import CONDITIONS, IdsFile, PackSettings
from shardwright.storage.urls import Location, Url
from shardwright.store.commands import quoted
from shardwright.store.findings import VerifyReport

# Without flags behind it; "the same pack with --resume" has them all.
_WAY = re.compile(r"(?:with|and|use) --overwrite(?![\w-]| --)")


def with_flags(found: VerifyReport, target: Location, store: Path | None) -> VerifyReport:
    """Complete the fixes of a report on shards that were packed, perhaps from this store.

    At a URL, where shards are never replaced, all goes to another one, which keeps nothing.
    """
    last = again.recorded(target)
    words: list[str] = []
    if last is not None and not last[0].is_build:
        _, settings = last
        words = _all(settings, store, target) if isinstance(target, Url) else settings.layout()
    flags = "".join(f" {quoted(word)}" for word in words)

    def completed(way: re.Match[str]) -> str:
        return ("to another URL" if isinstance(target, Url) else way[0]) + flags

    fixed = [replace(one, fix=_WAY.sub(completed, one.fix)) for one in found.findings]
    return replace(found, findings=fixed)


def _all(settings: PackSettings, store: Path | None, target: Location) -> list[str]:
    if store is not None:
        return settings.flags(store, target)
    lists = {n: None for n in CONDITIONS if isinstance(getattr(settings, n), IdsFile)}
    files = [word for name in lists for word in (CONDITIONS[name], "FILE")]
    return [*msgspec.structs.replace(settings, **lists).flags(Path(), target), *files]
