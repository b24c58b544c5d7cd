"""Decodes a member of a shard: a JSON object, an array without a copy, or bytes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwright.recipes import JSON_SUFFIX, Shape
from shardwright.shards.format.tar import BLOCK
from shardwright.store import npy
from shardwright.store.npy import BadArrayError

_decode_json = msgspec.json.Decoder().decode


class BadMemberError(ValueError):
    """A member that cannot be decoded; ``args[0]`` says why."""


def is_array(field: str) -> bool:
    """Whether a member of this name is an array."""
    return field.endswith(".npy")


def value(member: memoryview, field: str) -> Any:  # noqa: ANN401 - dict, array or bytes
    """Decode a member that starts at its tar header; an array maps the shard, read-only."""
    data = member[BLOCK:]
    if is_array(field):
        return array(data)
    if field.endswith("json"):
        try:
            found = _decode_json(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMemberError(f"not JSON ({error})") from None
        if field == JSON_SUFFIX and not isinstance(found, dict):
            raise BadMemberError("not a JSON object")
        return found
    return bytes(data)


def array(data: memoryview) -> NDArray[Any]:
    """View the bytes of a ``.npy`` file as an array."""
    try:
        length = npy.header_length(bytes(data[:12]))
        dtype, shape, end = _layout(bytes(data[:length]))
    except BadArrayError as error:
        raise BadMemberError(error.reason.replace("_", " ")) from None
    if len(data) != end:
        raise BadMemberError("truncated" if len(data) < end else "trailing bytes")
    return np.frombuffer(data, dtype, math.prod(shape), length).reshape(shape)


@lru_cache(maxsize=1024)  # shards have few different headers and very many arrays
def _layout(start: bytes) -> tuple[np.dtype[Any], Shape, int]:
    """Read a header: the dtype, the shape, and where the data ends."""
    header = npy.parse(start)
    try:
        dtype = np.dtype(header.dtype)
    except (TypeError, ValueError, SyntaxError):
        raise BadArrayError("wrong_dtype") from None
    if dtype.hasobject or not dtype.itemsize:
        raise BadArrayError("wrong_dtype")
    if header.fortran_order:
        raise BadArrayError("fortran_order")
    return dtype, header.shape, len(start) + math.prod(header.shape) * dtype.itemsize
