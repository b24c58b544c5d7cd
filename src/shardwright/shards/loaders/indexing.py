"""``shardwright.index``: index files for other loaders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.entry import entry
from shardwright.validate import names, place, require_switches


@dataclass(frozen=True)
class IndexSummary:
    """What ``index`` did."""

    shards: str
    loaders: list[str]
    written: list[str]  # paths below the shard folder
    removed: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and lists, ready for JSON."""
        return asdict(self)


@entry
def index(
    shards: str | os.PathLike[str] = "data/shards",
    *,
    for_: Iterable[str] = (),
    remove: bool = False,
) -> IndexSummary:
    """Write the index files that other loaders want of a shard folder, or remove them again.

    Files left from an earlier packing are removed, and each new one is whole or not there. A file
    that is not as we wrote it is an error and stays; in the card, text outside our parts stays too.
    """
    # Here, because the package and its --help are to be imported quickly.
    from shardwright.shards.loaders.indexes import write_indexes

    require_switches(remove=remove)
    return write_indexes(place("shards", shards), names("--for", for_), remove)
