"""Tars of images, as img2dataset and others write them: ``KEY.jpg``, ``KEY.txt``, ``KEY.json``.

All headers of a tar are read before its first sample is given, so that no sample is put together
from members that may not belong together. The members themselves are read later, where they are.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from shardwright.deriving import captions
from shardwright.deriving.captions import CaptionError
from shardwright.deriving.sources import FORMAT_OF
from shardwright.interrupts import check
from shardwright.progress import quantity
from shardwright.recipes import Recipe
from shardwright.shards.format.tarread import FILE, FOLDER, BadTarError, Entry, entries, split
from shardwright.storage import extents
from shardwright.storage.extents import HEAD, Part, TarFile
from shardwright.store import records
from shardwright.store.records import BadRecordError, Record

TEXT, JSON = "txt", "json"  # the fields that lie with an image
_FIELDS_SHOWN = 5
_GZIP = b"\x1f\x8b"
_HELD = 1 << 28  # bytes of a tar at a URL that are kept until its samples are given
_TRUNCATED = "truncated"  # how tarread begins to describe a tar that ends too early


class TarSample(NamedTuple):
    """An image in a tar, and what lies with it."""

    key: str
    image: Part
    text: Part | None
    json: Part | None


class Flaw(NamedTuple):
    """Why a key is left out, or what is wrong with the tar itself."""

    key: str  # blank for the tar
    reason: str
    detail: str


class PassedOver(NamedTuple):
    """Members whose names have no key, so that they belong to no sample; loaders skip them too."""

    number: int
    example: str  # one of them


class _Contents:
    """The members of a tar by key and field, and what is wrong with them."""

    def __init__(self) -> None:
        self.members: dict[str, dict[str, Entry]] = {}  # in their order
        self.flaws: dict[str, Flaw] = {}  # by key; the first one that was found
        self.held: dict[int, bytes] = {}  # how members at a URL begin, by their offsets
        self.passed: list[str] = []
        self._room = _HELD
        self._last = ""

    def add(self, entry: Entry) -> None:
        """Take in a member; one without a key belongs to no sample."""
        if entry.kind == FOLDER:
            return
        if (named := split(entry.name)) is None:
            self.passed.append(entry.name)
            return
        key, field = named
        members = self.members.setdefault(key, {})
        if members and key != self._last:
            self.flaw(key, "key_apart", "its members are not next to each other in the tar")
        if field in members:
            self.flaw(key, "repeated_member", f"{field} appears twice")
        if entry.kind != FILE:
            self.flaw(key, "not_a_file", f"{field} is a {entry.kind}")
        members[field] = entry
        self._last = key

    def hold(self, entry: Entry, tar: TarFile) -> None:
        """Keep how a member begins, where it would take a request later."""
        _, field = split(entry.name) or ("", "")
        if self._room > 0 and (f".{field}" in FORMAT_OF or field in (TEXT, JSON)):
            data = tar.ahead_of_need(entry.offset, min(entry.size, HEAD))
            self.held |= {entry.offset: data} if data else {}
            self._room -= len(data)

    def flaw(self, key: str, reason: str, detail: str) -> None:
        """Leave out a key."""
        self.flaws.setdefault(key, Flaw(key, reason, detail))

    def cut(self) -> None:
        """Leave out the last sample, of which members may be missing."""
        if self._last:
            what = "its tar cannot be read after it, so members may be missing"
            self.flaw(self._last, "sample_cut", what)


def samples(path: str, size: int = 0) -> Iterator[TarSample | Flaw | PassedOver]:
    """Give the samples of a tar in their order, and what is left out; last, the tar's own flaw.

    At a URL its size must be given.
    """
    contents = _Contents()
    damage = _list(path, size, contents)
    for key, members in contents.members.items():
        yield contents.flaws.get(key) or _sample(path, key, members, contents.held)
    if contents.passed:
        yield PassedOver(len(contents.passed), f"{path}/{contents.passed[0]}")
    if damage is not None:
        yield damage


def row(data: bytes, recipe: Recipe) -> captions.Row:
    """Read the columns in a JSON member, as a row of a captions file has them."""
    return captions.divide(_parse(data), recipe, captions.own_fields(recipe))[0]


def given_id(data: bytes) -> str:
    """Read the image_id in a JSON member; blank if it has none."""
    found = _parse(data).get("image_id")
    return found if isinstance(found, str) else ""


def _parse(data: bytes) -> Record:
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return records.parse(data)
    except BadRecordError as error:
        # Python writes NaN, which no JSON has, where a number is not known.
        with suppress(ValueError, RecursionError):
            found = json.loads(data, parse_constant=lambda _: None)
            return records.parse(records.line(found))
        what = f"its json is unusable: {error.reason.replace('_', ' ')}"
        raise CaptionError(error.reason, what) from None


def _list(path: str, size: int, contents: _Contents) -> Flaw | None:
    """Read all headers of a tar, and say what is wrong with it."""
    try:
        if not extents.is_regular(path):
            return Flaw("", "unreadable_tar", "not a regular file")
        with extents.tar_file(path, size) as tar:
            if tar.pread(0, len(_GZIP)) == _GZIP:
                return Flaw("", "compressed_tar", "is compressed; unpack it with gunzip first")
            for entry in entries(tar):
                check()
                contents.add(entry)
                contents.hold(entry, tar)
    except OSError as error:
        contents.cut()
        return Flaw("", "unreadable_tar", error.strerror or str(error))
    except BadTarError as error:
        contents.cut()
        what = str(error.args[0])
        if what.startswith(_TRUNCATED):
            return Flaw("", "truncated_tar", what)
        return Flaw("", "damaged_tar" if contents.members else "not_a_tar", what)
    if not contents.members:
        return Flaw("", "no_samples", "no member has a name like KEY.jpg")
    return None


def _sample(
    path: str, key: str, members: dict[str, Entry], held: dict[int, bytes]
) -> TarSample | Flaw:
    images = [field for field in members if f".{field}" in FORMAT_OF]
    if len(images) > 1:
        return Flaw(key, "several_images", f"its images are {_listed(images)}")
    if not images:
        return Flaw(key, "no_image", f"its members are {_listed(list(members))}")
    parts = {}
    for field in (TEXT, JSON):
        if field in members:
            entry = members[field]
            if entry.size > records.LONGEST_LINE:  # it would be read into memory
                detail = f"{field} has {quantity(entry.size, 'B')}"
                return Flaw(key, "member_too_large", detail)
            parts[field] = _part(path, entry, held)
    image = _part(path, members[images[0]], held)
    return TarSample(key, image, parts.get(TEXT), parts.get(JSON))


def _part(path: str, entry: Entry, held: dict[int, bytes]) -> Part:
    data = held.pop(entry.offset, b"")
    return Part(path, entry.offset, entry.size, entry.name, data=data)


def _listed(fields: list[str]) -> str:
    more = ["..."] * (len(fields) > _FIELDS_SHOWN)
    return ", ".join([*fields[:_FIELDS_SHOWN], *more])
