"""The arguments of a run of pack, after validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.engine import Engine
from shardwright.shards.format.manifest import PackSettings
from shardwright.storage.urls import Location
from shardwright.store.store import Store


@dataclass(frozen=True)
class Request:
    """What a run is asked for."""

    store: Store
    output_dir: Location
    settings: PackSettings  # as far as the flags say
    given: Mapping[str, Any]  # those of them that were given; with ``none``, empty
    way: str | None  # overwrite, resume, append or sync, where shards may be there already
    other_jsonl: bool
    sha256: bool
    ignore_space: bool
    dry_run: bool
    progress_every: int
    engine: Engine
