"""The members of a sample that come from its record: the metadata and the masks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from shardwright.recipes import MEMBER_FIELDS, Mask, Recipe, Shape
from shardwright.store.npy import header_bytes
from shardwright.store.records import Record

json_text = msgspec.json.Encoder(order="sorted").encode
_NO_FIELDS: Record = dict.fromkeys(MEMBER_FIELDS)


def json_member(record: Record, recipe: Recipe) -> bytes:
    """Write the member ``json``, keys sorted."""
    return json_text(json_fields(record, recipe))


def json_fields(record: Record, recipe: Recipe) -> Record:
    """Give the record without its masks, always with the required fields."""
    fields = _NO_FIELDS | record
    for mask in recipe.masks:
        fields.pop(mask.field, None)
    return fields


def mask_member(record: Record, mask: Mask) -> bytes:
    """Write a mask of the record as a ``.npy`` file."""
    return _header(mask) + bytes(record[mask.field])


def mask_fault(shape: Shape, mask: Sequence[int]) -> str | None:
    """Name what is wrong with a trimmed array: it has one row for each token that counts."""
    return None if shape[0] == sum(mask) else "other_mask"


def mask_bytes(mask: Mask) -> int:
    """Count the bytes of that file."""
    return len(_header(mask)) + mask.length


@lru_cache
def _header(mask: Mask) -> bytes:
    return header_bytes(mask.dtype, (mask.length,))
