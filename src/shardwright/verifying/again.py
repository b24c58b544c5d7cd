"""Fixes that pack or build again: with the flags of the last run that no later run keeps."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from shardwright.packing.splits import recorded
from shardwright.shards.format.again import elsewhere, with_layout
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store.findings import VerifyReport

# Without flags behind it; "the same pack with --resume" has them all.
_WAY = re.compile(r"(?:with|and|use) --overwrite(?![\w-]| --)")


def with_flags(found: VerifyReport, target: Location, store: Path | None) -> VerifyReport:
    """Complete the fixes of a report on shards that were packed, perhaps from this store.

    At a URL, where shards are never replaced, all goes to another one, which keeps nothing.
    """
    if not any(_WAY.search(one.fix) for one in found.findings):
        return found
    last = recorded(target)
    run, settings = last or (None, None)
    folder = target if run and run.is_build else store  # that its lists are named from

    def completed(way: re.Match[str]) -> str:
        if place_at(target).can_replace:
            return with_layout(way[0], settings)
        flags = elsewhere(settings, folder) if settings else ""
        return "to another URL" + (f" with {flags}" if flags else "")

    fixed = [replace(one, fix=_WAY.sub(completed, one.fix)) for one in found.findings]
    return replace(found, findings=fixed)
