"""Reads the headers of a tar from any source, without trusting a byte of it.

Nothing is extracted, and no header decides how much memory is allocated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from shardwright.shards.format.tar import BLOCK, END, member_bytes
from shardwright.storage.local import Readable
from shardwright.store.findings import Finding

FILE = "file"
FOLDER = "folder"

_KINDS = {
    b"0": FILE, b"\0": FILE, b"7": FILE, b"1": "hard link", b"2": "symbolic link",
    b"3": "device", b"4": "device", b"5": FOLDER, b"6": "pipe", b"S": "sparse file",
}  # fmt: skip
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_LONGEST_EXTENSION = 1 << 20  # bytes; no name is that long
_ZEROS_AT_ONCE = 1 << 20
_OCTAL = re.compile(rb"[ ]*([0-7]+)[ \0]*")
# As webdataset splits a name: the key ends at the first dot of the base name.
_SPLIT = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)


class BadTarError(ValueError):
    """A tar that cannot be read; ``args[0]`` says why, and at which byte."""


class Fault(NamedTuple):
    """One thing that is wrong with a tar, a sample or a member."""

    kind: str
    what: str
    member: str | None = None
    sample: str | None = None
    damage: bool = True
    fix: str | None = None  # if it is not that of the file

    def finding(self, file: str, fix: str) -> Finding:
        """Make a finding of it."""
        kind, what, member, sample, damage, own_fix = self
        return Finding(kind, file, None, what, own_fix or fix, damage, sample, member)


class Entry(NamedTuple):
    """A member as its header describes it."""

    name: str
    kind: str  # FILE, or what else it is
    offset: int  # of its data
    size: int
    extended: bool  # whether it has PAX or GNU headers, which not every loader reads


class Sample(NamedTuple):
    """The members in a row that share one key, by field."""

    key: str
    members: dict[str, Entry]


def split(name: str) -> tuple[str, str] | None:
    """Split a name into key and field as loaders do; None where they skip it."""
    match = _SPLIT.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


def samples(tar: Readable) -> Iterator[Sample | Fault]:
    """Group the members of a tar as loaders do, with the faults in between."""
    keys: set[str] = set()
    current: Sample | None = None
    try:
        for entry in entries(tar):
            if entry.kind != FILE:
                damage = entry.kind != FOLDER
                yield Fault("not_a_file", f"is a {entry.kind}", entry.name, damage=damage)
                continue
            named = split(entry.name)
            if named is None:
                yield Fault("no_key", "has no dot after its key, so loaders skip it", entry.name)
                continue
            key, field = named
            if current is None or key != current.key:
                if current is not None:
                    yield current
                if key in keys:
                    what = "its members are not next to each other in the shard"
                    yield Fault("key_apart", what, sample=key)
                keys.add(key)
                current = Sample(key, {})
            if field in current.members:
                yield Fault("repeated_member", "appears twice", field, key)
            current.members[field] = entry
        if current is None:
            yield Fault("no_samples", "has no samples, so some loaders fail")
    except BadTarError as error:
        yield Fault("not_a_tar", error.args[0])
    if current is not None:
        yield current


def entries(tar: Readable) -> Iterator[Entry]:
    """Give every member of a tar, links and devices too; then check how it ends."""
    position = 0
    name: str | None = None
    data_size: int | None = None
    extended = False
    while True:
        header = tar.pread(position, BLOCK)
        if len(header) < BLOCK:
            raise _truncated(tar)
        if not any(header):
            break
        if _number(header[148:156], position) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise _damaged(position)
        kind = header[156:157]
        length = _number(header[124:136], position)
        if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            if length > _LONGEST_EXTENSION:
                raise BadTarError(f"has an oversized extension header at byte {position}")
            data = tar.pread(position + BLOCK, length)
            if kind == _LONG_NAME:
                name = _text(data.partition(b"\0")[0])
            elif kind == _PAX:
                fields = _pax(data, position)
                name = fields.get("path", name)
                data_size = _decimal(fields["size"], position) if "size" in fields else data_size
            extended = True
        else:
            length = length if data_size is None else data_size
            kind_name = _KINDS.get(kind, f"member of unknown type {kind!r}")
            length = length if kind_name == FILE else 0
            if position + BLOCK + length > tar.size:
                raise _truncated(tar)
            yield Entry(name or _name(header), kind_name, position + BLOCK, length, extended)
            name, data_size, extended = None, None, False
        position += member_bytes(length)
    _require_zeros(tar, position)


def _truncated(tar: Readable) -> BadTarError:
    return BadTarError(f"truncated at byte {tar.size}: end-of-archive blocks are missing")


def _damaged(position: int) -> BadTarError:
    return BadTarError(f"damaged header at byte {position}" if position else "is not a tar")


def _number(field: bytes, position: int) -> int:
    if field[0] == 0x80:  # GNU: a binary number, for what is too large for octal digits
        return int.from_bytes(field[1:], "big")
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise _damaged(position)
    return int(match[1], 8)


def _decimal(text: str, position: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadTarError(f"damaged PAX header at byte {position}")
    return int(text)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _pax(data: bytes, position: int) -> dict[str, str]:
    """Read the records of a PAX header, each ``LENGTH KEY=VALUE`` and a line end."""
    fields: dict[str, str] = {}
    while data.strip(b"\0"):
        digits, _, _ = data.partition(b" ")
        length = _decimal(_text(digits), position)
        record = data[len(digits) + 1 : length]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not equals or not record.endswith(b"\n") or length > len(data):
            raise BadTarError(f"damaged PAX header at byte {position}")
        fields[_text(key)] = _text(value)
        data = data[length:]
    return fields


def _require_zeros(tar: Readable, position: int) -> None:
    if tar.size < position + len(END):
        raise _truncated(tar)
    while position < tar.size:
        data = tar.pread(position, _ZEROS_AT_ONCE)
        if not data or data.count(0) != len(data):
            raise BadTarError(f"data after its end at byte {position}")
        position += len(data)
