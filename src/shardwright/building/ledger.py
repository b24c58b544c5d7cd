"""The ledger: every input that is in no shard, with the reason, in a file beside the manifest."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shardwright.errors import DamageError
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.storage.urls import Location
from shardwright.store.records import NOT_JSON
from shardwright.summary import Count

LEDGER_NAME = "ledger.jsonl"


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input that is left out."""

    image_id: str
    image_path: str
    reason: str
    detail: str
    by_recipe: bool = False  # whether the recipe's limits leave it out, which is no failure


def counts(left: Iterable[Left]) -> dict[str, Count]:
    """Count them by reason."""
    found: dict[str, Count] = {}
    for each in left:
        found.setdefault(each.reason, Count(0, each.image_path)).count += 1
    return found


def save(output: Location, left: Iterable[Left]) -> None:
    """Write the ledger, or remove it if there is nothing to say."""
    data = b"".join(msgspec.json.encode(each) + b"\n" for each in left)
    path = output / STATE_FOLDER / LEDGER_NAME
    if data:
        files.write(path, data)
    else:
        files.withdraw(path)


def load(output: Location) -> list[Left]:
    """Read the ledger of the last build; none if it is gone."""
    path = output / STATE_FOLDER / LEDGER_NAME
    lines = files.read(path).splitlines() if path.is_file() else []
    try:
        return [msgspec.json.decode(line, type=Left) for line in lines]
    except NOT_JSON:
        fix = "delete it, or build again with --overwrite"
        raise DamageError("is damaged", path=path, fix=fix) from None
