"""The identity of a store: by it, shards know the store again that they were packed from.

It is made once, of the records that the first complete run leaves, and never changes: not with the
records, and not in a copy. So it is the same however often that run was interrupted.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
import xxhash

from shardwright import regular
from shardwright.errors import DamageError
from shardwright.storage import files
from shardwright.store.store import Store

NAME = "identity.json"


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["shardwright-identity"] = "shardwright-identity"
    version: Literal[1] = 1
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


def read(store: Store) -> str | None:
    """Give the identity of a store; None if no run has made one yet."""
    path = store.state / NAME
    if not path.exists():
        return None
    try:
        with files.explained(path):
            data = regular.read(path)
        return msgspec.json.decode(data, type=_Document, strict=True).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fix = "restore it from a copy of the store, or delete it and pack with --overwrite"
        raise DamageError("is damaged", path=path, fix=fix) from None


def ensure(store: Store) -> None:
    """Give a store its identity, if it has records and none yet; the caller holds the lock."""
    path = store.state / NAME
    if path.exists() or not store.jsonl.is_file() or not store.jsonl.stat().st_size:
        return
    with files.explained(store.jsonl), regular.unbuffered(store.jsonl) as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # type: ignore[arg-type]
    document = msgspec.json.encode(_Document(id=digest))
    files.write(path, msgspec.json.format(document, indent=2) + b"\n")
