"""Which samples a run asks for: by conditions, lists of ids, and the part of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import xxhash

from shardwright.errors import InputMissingError, ShardwrightError, UsageError
from shardwright.shards.format.manifest import IdsFile, PackSettings, relative_name
from shardwright.storage.files import explained
from shardwright.store import facts, records, where
from shardwright.store.records import Record
from shardwright.store.store import Store, joined
from shardwright.store.where import Condition

FLAGS = {"ids_file": "--ids-file", "exclude_ids_file": "--exclude-ids-file"}


@dataclass(frozen=True)
class Choice:
    """The settings, and the lists that they name."""

    settings: PackSettings
    ids: frozenset[str] | None = None  # None: all
    excluded: frozenset[str] = frozenset()
    first_ids: Mapping[str, str] = field(default_factory=dict)  # read where there is a list

    @cached_property
    def conditions(self) -> list[Condition]:
        """Give the conditions on records, each of which must hold."""
        return where.conditions(self.settings.where)

    @property
    def group(self) -> str | None:
        """Name the column that groups samples of a split."""
        return self.settings.split.by if self.settings.split else None

    def lists(self, image_id: str) -> bool:
        """Whether the lists of ids allow one."""
        return image_id not in self.excluded and (self.ids is None or image_id in self.ids)

    def takes(self, image_id: str, record: Record, first_ids: Mapping[str, str]) -> bool:
        """Whether a record is asked for; in a part of a split, only if it belongs there."""
        split, part = self.settings.split, self.settings.part
        if not self.lists(image_id):
            return False
        if not all(condition.holds(record) for condition in self.conditions):
            return False
        if split is None or part is None:
            return True
        group = group_text(record, split.by)
        return split.part_of(first_ids.get(image_id, image_id) if group is None else group) == part


def group_text(record: Record, by: str | None) -> str | None:
    """Give the value of the column that groups samples, as text; None if it has none."""
    value = record.get(by) if by is not None else None
    if value is None or isinstance(value, str):
        return value if value and value.strip() else None  # an empty cell of a CSV is no group
    return msgspec.json.encode(value).decode()


def wanted(store: Store, settings: PackSettings) -> set[str]:
    """Give the ids of a store that a run with these settings would pack, if they are ready."""
    first_ids = facts.first_ids(store)
    try:
        choice = read_choice(settings, store)
    except ShardwrightError:  # pack reports it; without the lists, what they leave out is unknown
        choice = Choice(settings)
    found: set[str] = set()
    for _, record in records.walk(store.jsonl, records.parse):
        if records.is_image_id(image_id := record.get("image_id")):
            taken = choice.takes(image_id, record, first_ids)
            (found.add if taken else found.discard)(image_id)  # the later of two records wins
    return found


def read_choice(settings: PackSettings, store: Store) -> Choice:
    """Read the lists that settings name, as they are now.

    A renamed image is in a list by its first id too: what was taken out must not come back.
    """
    found: dict[str, frozenset[str]] = {}
    for name, flag in FLAGS.items():
        if (file := getattr(settings, name)) is not None:
            found[name], now = _read_ids(flag, joined(store.folder, file.path), store)
            settings = msgspec.structs.replace(settings, **{name: now})
    first_ids = facts.first_ids(store) if found else {}
    for name, ids in found.items():
        found[name] = ids.union(now for now, first in first_ids.items() if first in ids)
    excluded = found.get("exclude_ids_file", frozenset())
    return Choice(settings, found.get("ids_file"), excluded, first_ids)


def ids_file(path: Path | None, store: Store) -> IdsFile | None:
    """Name a list in settings; what is in it is known when it is read."""
    return None if path is None else IdsFile(relative_name(path, store.folder), "")


def _read_ids(flag: str, path: Path, store: Store) -> tuple[frozenset[str], IdsFile]:
    """Read a list of ids, one to a line."""
    if not path.is_file():
        fix = f"restore it, or give {flag} FILE"
        raise InputMissingError(f"{flag}: no such file", path=path, fix=fix)
    with explained(path):
        data = path.read_bytes()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{flag}: is not UTF-8 text", path=path, fix="save it as UTF-8") from None
    ids = frozenset(line.rstrip("\r") for line in lines if line.strip())
    return ids, IdsFile(relative_name(path, store.folder), xxhash.xxh3_64_hexdigest(data))
