"""The two members of a sample that are made from its record: the metadata and the mask."""

from __future__ import annotations

import msgspec

from shardwright.schema import MASK, MEMBER_FIELDS, Component
from shardwright.store.npy import header_bytes
from shardwright.store.records import Record

_encode = msgspec.json.Encoder(order="sorted").encode
_NO_FIELDS: Record = dict.fromkeys(MEMBER_FIELDS)
_MASK_HEADER = header_bytes(MASK.dtype, (MASK.length,))

# In a shard the mask is an array like any other, but it has no folder in the store.
MASK_ARRAY = Component("mask", "", MASK.suffix, MASK.dtype, (MASK.length,))
MASK_BYTES = len(_MASK_HEADER) + MASK.length


def json_member(record: Record) -> bytes:
    """Write the record without its mask, always with the required fields, keys sorted."""
    fields = _NO_FIELDS | record
    fields.pop(MASK.field, None)
    return _encode(fields)


def mask_member(record: Record) -> bytes:
    """Write the record's mask as a ``.npy`` file."""
    return _MASK_HEADER + bytes(record[MASK.field])
