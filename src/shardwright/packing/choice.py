"""What a run is asked for, and so which samples: by lists, conditions, limits, part of a split.

``build`` shares the flags that choose samples.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from shardwright import regular
from shardwright.buckets import is_bucket
from shardwright.engine import Engine
from shardwright.errors import InputMissingError, ShardwrightError, UsageError
from shardwright.packing.splits import Staying, find_staying, packed_in, read_groups
from shardwright.recipes import Recipe, Selection
from shardwright.recipes.split import Split, choose_split
from shardwright.shards.format.manifest import IdsFile, PackSettings
from shardwright.shards.format.parts import recorded_split
from shardwright.storage.files import absence, explained
from shardwright.storage.urls import Location, joined, relative_name
from shardwright.store import facts, records, where
from shardwright.store.facts import Facts
from shardwright.store.records import BadRecordError, Record, is_image_id
from shardwright.store.store import Store
from shardwright.store.where import Condition, parse
from shardwright.validate import integer, names, place_or_none

NONE = "none"  # drops what excludes samples; a file of that name is ./none
FLAGS = {"ids_file": "--ids-file", "exclude_ids_file": "--exclude-ids-file"}
_DIGITS = 4  # of a fact


@dataclass(frozen=True)
class Request:
    """What a run of pack is asked for."""

    store: Store
    output_dir: Location
    settings: PackSettings  # as far as the flags say
    given: Mapping[str, Any]  # those of them that were given; with ``none``, empty
    way: str | None  # overwrite, resume, append or sync, where shards may be there already
    sha256: bool
    ignore_space: bool
    dry_run: bool
    progress_every: int
    engine: Engine


@dataclass(frozen=True)
class Choice:
    """The settings, the lists that they name, and what is known of the images."""

    settings: PackSettings
    limits: Selection  # of the recipe
    ids: frozenset[str] | None = None  # None: all
    excluded: frozenset[str] = frozenset()
    first_ids: Mapping[str, str] = field(default_factory=dict)  # of renamed images
    beyond: Mapping[str, str] = field(default_factory=dict)  # by image: the limit that it exceeds
    groups: Mapping[str, str] = field(default_factory=dict)  # of a split: by image, the first of it
    staying: Staying = field(default_factory=Staying)  # groups that are packed

    @cached_property
    def where(self) -> list[Condition]:
        """Give the conditions of ``--where``."""
        return where.conditions(self.settings.where)

    @cached_property
    def conditions(self) -> dict[str, Condition]:
        """Give the conditions on records, each of which must hold, by their text."""
        found = {str(one): one for one in self.where}
        if (least := self.limits.min_side) is not None:
            found[f"min_side = {least}"] = parse(f"width >= {least} and height >= {least}")
        return found

    @cached_property
    def asks_facts(self) -> bool:
        """Whether a condition is on what is not in the records."""
        return any(facts.is_fact(name) for one in self.where for name in one.fields())

    @property
    def group(self) -> str | None:
        """Name the column that groups samples of a split."""
        split = self.settings.split
        return None if split is None or split.has_groups else split.by

    def fault(self, image_id: str, fails: str | None) -> str | None:
        """Name what leaves a sample out; ``fails`` is the first condition that does not hold."""
        if self.ids is not None and image_id not in self.ids:
            return FLAGS["ids_file"]
        if image_id in self.excluded:
            return FLAGS["exclude_ids_file"]
        return fails or self.beyond.get(image_id)

    def part_of(self, image_id: str, group: str | None) -> str | None:
        """Give the part of the split that a sample belongs to."""
        split, own = self.settings.split, self.first_ids.get(image_id, image_id)
        if named := self.groups.get(image_id) or self.groups.get(own):
            if named in self.staying.parts:
                return self.staying.parts[named]
            own = self.first_ids.get(named, named)
        return split.part_of(own if group is None else group) if split else None


def read_settings(
    folder: Location,
    top: Location,
    recipe_split: Split | None,
    *,
    bucket: Iterable[str],
    where: Iterable[str],
    ids_file: object,
    exclude_ids_file: object,
    split: object,
    split_by: object,
    shard_size: object,
    limit: object,
    shuffle: bool,
    seed: object,
) -> PackSettings:
    """Check flags, and give the settings that they ask for.

    Lists are relative to a folder, and the groups of a split to that of the split, ``top``.
    """
    conditions = names("--where", where)
    if NONE in conditions and len(conditions) > 1:
        what = "--where none drops all conditions, and others are given"
        raise UsageError(what, fix="leave out one or the other")
    conditions = [text for text in conditions if text != NONE]
    for text in conditions:
        parse(text)
    lists = {"--ids-file": ids_file, "--exclude-ids-file": exclude_ids_file}
    take, leave = (
        _listed(None if file == NONE else place_or_none(flag, file), folder)
        for flag, file in lists.items()
    )
    if split == NONE:
        split = recipe_split = None
    if split is None and split_by is not None:  # another list, or column, for the same parts
        recipe_split = recorded_split(top) or recipe_split
    chosen = choose_split(split, split_by, recipe_split)
    if chosen is not None and chosen.by is not None and chosen.has_groups:
        chosen = replace(chosen, by=relative_name(Path(chosen.by), top))
    drawn = 0 if seed is None else integer("--seed", seed, least=-(1 << 63))
    return PackSettings(
        buckets=bucket_names(bucket),
        shuffle=shuffle,
        seed=drawn if shuffle else None,
        limit=None if limit is None else integer("--limit", limit),
        shard_size=1000 if shard_size is None else integer("--shard-size", shard_size, least=1),
        split=chosen,
        where=conditions,
        ids_file=take,
        exclude_ids_file=leave,
    )


def bucket_names(given: Iterable[str]) -> list[str]:
    """Check the names of buckets."""
    found = sorted(names("--bucket", given))
    for name in found:
        if not is_bucket(name):
            fix = "write WIDTHxHEIGHT, for example 832x1216"
            raise UsageError(f"--bucket {name}: not a bucket", fix=fix)
    return found


def group_text(record: Record, by: str | None) -> str | None:
    """Give the value of the column that groups samples, as text; None if it has none."""
    value = record.get(by) if by is not None else None
    if value is None or isinstance(value, str):
        return value if value and value.strip() else None  # an empty cell of a CSV is no group
    return msgspec.json.encode(value).decode()


def wanted(store: Store, settings: PackSettings, top: Location) -> dict[str, str | None] | None:
    """Give the ids of a store that a run with these settings would pack, if they are ready.

    With each comes its part, if samples may change theirs. None stands for all of them. The folder
    ``top`` is the one that it packs into, of all parts.
    """
    may_move = settings.split is not None and settings.split.by is not None
    if not settings.is_choice and not may_move and store.recipe.selection == Selection():
        return None
    try:
        choice = read_choice(settings, store, top)
    except ShardwrightError:  # pack reports it; without the lists, what they ask for is unknown
        choice = Choice(msgspec.structs.replace(settings, split=None), store.recipe.selection)
    found: dict[str, str | None] = {}
    beside = {one.image_id: one for _, one in facts.read(store)} if choice.asks_facts else {}
    for _, record in records.walk(store.jsonl, records.parse):
        if records.is_image_id(image_id := record.get("image_id")):
            group = group_text(record, choice.group)
            if choice.asks_facts:
                record = facts.fields(record, beside.get(image_id), store.recipe) | record
            taken = all(one.holds(record) for one in choice.conditions.values())
            taken &= choice.fault(image_id, None) is None
            part = choice.part_of(image_id, group)
            taken &= settings.part in (None, part)
            found.pop(image_id, None)  # the later of two records wins
            found |= {image_id: part} if taken else {}
    return found


def read_choice(settings: PackSettings, store: Store, top: Location) -> Choice:
    """Read the lists that settings name, as they are now, and the facts that matter.

    A renamed image is in a list by its first id too: what was taken out must not come back.
    """
    settings, found = _lists(settings, store.folder, "--sync or --overwrite")
    limits, first_ids, beyond = store.recipe.selection, dict[str, str](), dict[str, str]()
    if found or settings.split or limits != Selection():
        for _, known in facts.read(store):
            if known.first_id:
                first_ids[known.image_id] = known.first_id
            if limit := _exceeded(known, store.recipe):
                beyond[known.image_id] = limit
    for name, ids in found.items():
        found[name] = ids.union(now for now, first in first_ids.items() if first in ids)
    groups = read_groups(settings.split, top)
    return Choice(
        settings,
        limits,
        found.get("ids_file"),
        found.get("exclude_ids_file", frozenset()),
        first_ids,
        beyond,
        groups,
        find_staying(settings.split, groups, packed_in(top, settings.split), first_ids),
    )


def read_lists(settings: PackSettings, folder: Location, ways: str) -> Choice:
    """Read the lists that settings name relative to a folder; nothing is known of the images.

    ``ways`` are those to change the lists where there are shards, for advice.
    """
    settings, found = _lists(settings, folder, ways)
    excluded = found.get("exclude_ids_file", frozenset())
    groups = read_groups(settings.split, folder)
    return Choice(settings, Selection(), found.get("ids_file"), excluded, groups=groups)


def require_lists(settings: PackSettings, folder: Location) -> None:
    """Raise if a list that settings name relative to a folder cannot be read."""
    _lists(settings, folder, "--sync or --overwrite")


def _lists(
    settings: PackSettings, folder: Location, ways: str
) -> tuple[PackSettings, dict[str, frozenset[str]]]:
    """Read the lists; ``ways`` are those to change them where there are shards."""
    found: dict[str, frozenset[str]] = {}
    for name, flag in FLAGS.items():
        if (file := getattr(settings, name)) is not None:
            found[name], now = _read_ids(flag, joined(folder, file.path), folder, ways)
            settings = msgspec.structs.replace(settings, **{name: now})
    return settings, found


def _exceeded(known: Facts, recipe: Recipe) -> str | None:
    """Name the limit of the recipe that an image exceeds; what is unknown does not."""
    lost = [count for name, count in known.tokens_lost.items() if name in recipe.by_name]
    values = {
        "max_upscale": known.enlarged,
        "max_crop": known.cropped,
        "max_tokens_lost": max(lost, default=None),
    }
    for name, value in values.items():
        limit = getattr(recipe.selection, name)
        if limit is not None and value is not None and value > round(limit, _DIGITS):
            return f"{name} = {limit}"
    return None


def _listed(path: Path | None, folder: Location) -> IdsFile | None:
    """Name a list in settings, relative to a folder; what is in it is known when it is read."""
    if path is None:
        return None
    if path.exists() and not path.is_file():  # here by its given name: that of a pipe says nothing
        raise UsageError(absence(path), path=path, fix="save the ids to a file, and give that")
    return IdsFile(relative_name(path, folder), "")


def _read_ids(flag: str, path: Path, folder: Location, ways: str) -> tuple[frozenset[str], IdsFile]:
    """Read a list of ids, one to a line; in a ``.jsonl`` file, those of its records."""
    if not path.is_file():
        fix = f"restore it, or give another {flag}, or {flag} none"
        fix += f" (if there are shards, with {ways})"
        raise InputMissingError(f"{flag}: {absence(path)}", path=path, fix=fix)
    with explained(path):
        data = regular.read(path)
    ids = frozenset((_jsonl_ids if path.suffix == ".jsonl" else _text_ids)(flag, path, data))
    return ids, IdsFile(relative_name(path, folder), xxhash.xxh3_64_hexdigest(data))


def _text_ids(flag: str, path: Path, data: bytes) -> Iterator[str]:
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{flag}: is not UTF-8 text", path=path, fix="save it as UTF-8") from None
    found = (line.rstrip("\r") for line in lines if line.strip())
    # An id may have blanks around it, but most often they are not meant.
    return (image_id for line in found for image_id in (line, line.strip()))


def _jsonl_ids(flag: str, path: Path, data: bytes) -> Iterator[str]:
    for line in records.lines(io.BytesIO(data)):
        image_id = None
        with suppress(BadRecordError):
            image_id = records.names(line.data).image_id
        if not is_image_id(image_id):
            what = f"{flag}: line {line.number} is not an object with a valid image_id"
            fix = 'write {"image_id": "..."} on each line, or give a list with another ending'
            raise UsageError(what, path=path, fix=fix)
        yield image_id
