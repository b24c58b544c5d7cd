"""The records of one shard in one file: its JSON members, a line each, and some facts beside them.

``pack`` writes it together with the shard, so that a search reads a few megabytes, and not a place
of the tar for each sample. Readers of samples do not need it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import NoneType

import msgspec
import xxhash

from shardwright.errors import DamageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import Recipe
from shardwright.shards.format import index
from shardwright.shards.format.index import INDEX_FOLDER
from shardwright.shards.format.record_members import json_fields, json_text
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import records
from shardwright.store.facts import Facts
from shardwright.store.records import BadRecordError, Record

RECORDS_SUFFIX = ".jsonl"
FACTS = "__facts__"  # the field that a line has besides those of the JSON member
_FIX = "make all shards again with --overwrite"
_CHUNK = 1 << 20


class SampleFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the members of a sample do not show, by component; absent: unknown, or it has none."""

    tokens: dict[str, int] = {}  # that the mask keeps
    tokens_lost: dict[str, int] = {}  # of its caption, 0 for none
    cut_at: dict[str, int] = {}  # characters of the caption that were kept, if it was cut
    enlarged: float | None = None  # how many times the picture is enlarged, 1 if it is not
    cropped: float | None = None  # the share of the picture that is cut away
    image_xxh3: str | None = None  # of the image's file


def records_name(shard: str) -> str:
    """Name the file of a shard's records; both are paths below the output folder."""
    return f"{STATE_FOLDER}/{INDEX_FOLDER}/{shard.removesuffix('.tar')}{RECORDS_SUFFIX}"


def line(record: Record, recipe: Recipe, known: Facts | None) -> bytes:
    """Write the line of a sample; ``known`` is what its store knows of it.

    All of it follows from content: no path or time of a file is in it.
    """
    return json_text({**json_fields(record, recipe), FACTS: _facts(record, recipe, known)}) + b"\n"


def _facts(record: Record, recipe: Recipe, known: Facts | None) -> SampleFacts:
    tokens = {c.name: sum(record[c.mask.field]) for c in recipe.captions if c.mask is not None}
    if known is None:
        return SampleFacts(tokens)
    return SampleFacts(
        tokens,
        {name: lost for name, lost in known.tokens_lost.items() if name in recipe.by_name},
        {name: kept for name, kept in known.cut_at.items() if name in recipe.by_name},
        known.enlarged,
        known.cropped,
        # With outdated arrays, not all members are of the file on record.
        known.image.xxh3 if known.image and not known.outdated else None,
    )


def decode(data: bytes, path: Location | str, xxh3: str) -> Iterator[tuple[Record, SampleFacts]]:
    """Read the lines in shard order; raise DamageError if they are not those of the checksum."""
    if xxhash.xxh3_64_hexdigest(data) != xxh3:
        raise DamageError("is damaged", path=path, fix=_FIX)
    return _lines(data, path)


def load(output_dir: Location, shard: str, xxh3: str) -> Iterator[tuple[Record, SampleFacts]]:
    """Read the records of a shard; its entry in the manifest has the checksum."""
    path = output_dir / records_name(shard)
    return decode(index.read(path), path, xxh3)


def checksum(output_dir: Location, shard: str) -> str:
    """Give the xxh3 of the file, which may be large; the caller handles OSErrors."""
    hasher = xxhash.xxh3_64()
    with place_at(output_dir).open(records_name(shard)) as file:
        for start in range(0, file.size, _CHUNK):
            check()
            hasher.update(file.pread(start, _CHUNK))
    return hasher.hexdigest()


def _lines(data: bytes, path: Location | str) -> Iterator[tuple[Record, SampleFacts]]:
    for number, text in enumerate(io.BytesIO(data), 1):
        try:
            record = records.parse(text)
            facts = msgspec.convert(record.pop(FACTS), SampleFacts)
            if not _is_named(record):
                raise BadRecordError("image_id_invalid")
        except (BadRecordError, KeyError, msgspec.ValidationError):
            what = f"line {number} is not the record of a sample"
            raise DamageError(what, path=path, fix=_FIX) from None
        yield record, facts


def _is_named(record: Record) -> bool:
    """Whether a record has an id, and no path that is not one."""
    path = record.get("image_path")
    return records.is_image_id(record.get("image_id")) and isinstance(path, (str, NoneType))
