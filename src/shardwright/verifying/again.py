"""Fixes that pack or build again: with the flags of the last run that no later run keeps."""

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
    if not any(_WAY.search(one.fix) for one in found.findings):
        return found
    words: list[str] = []
    if (last := again.recorded(target)) is not None:
        run, settings = last
        folder = target if run.is_build else store  # that its lists are named from
        words = _all(settings, folder, target) if isinstance(target, Url) else settings.layout()
    flags = "".join(f" {quoted(word)}" for word in words)

    def completed(way: re.Match[str]) -> str:
        if isinstance(target, Url):
            return "to another URL" + (f" with{flags}" if flags else "")
        return way[0] + flags

    fixed = [replace(one, fix=_WAY.sub(completed, one.fix)) for one in found.findings]
    return replace(found, findings=fixed)


def _all(settings: PackSettings, folder: Location | None, target: Location) -> list[str]:
    if folder is not None:
        return settings.flags(folder, target)
    lists = {n: None for n in CONDITIONS if isinstance(getattr(settings, n), IdsFile)}
    files = [word for name in lists for word in (CONDITIONS[name], "FILE")]
    return [*msgspec.structs.replace(settings, **lists).flags(Path(), target), *files]
