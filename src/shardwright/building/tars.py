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
from shardwright.deriving.sources import FORMAT_OF
from shardwright.interrupts import check
from shardwright.progress import quantity
from shardwright.recipes import Recipe
from shardwright.shards.format.tarread import FILE, FOLDER, BadTarError, Entry, entries, split
from shardwright.storage import extents
from shardwright.store import records

TEXT, JSON = "txt", "json"  # the fields that lie with an image
_FIELDS_SHOWN = 5
_GZIP = b"\x1f\x8b"
_HELD = 1 << 28  # bytes of a tar at a URL that are kept until its samples are given
_TRUNCATED = "truncated"  # how tarread begins to describe a tar that ends too early


class TarSample(NamedTuple):
    """An image in a tar, and what lies with it."""

    key: str
    image: extents.Part
    text: extents.Part | None
    json: extents.Part | None


class Flaw(NamedTuple):
    """Why a key is left out, or what is wrong with the tar itself."""

    key: str  # blank for the tar
    reason: str
    detail: str


class _Contents:
    """The members of a tar by key and field, and what is wrong with them."""

    def __init__(self, path: str, passed: list[str]) -> None:
        self.members: dict[str, dict[str, Entry]] = {}  # in their order
        self._path, self._passed = path, passed
        self._flaws: dict[str, Flaw] = {}  # by key; the first one that was found
        self._held: dict[int, bytes] = {}  # how members at a URL begin, by their offsets
        self._room = _HELD
        self._last = ""

    def read(self, size: int) -> Flaw | None:
        """Read all headers, and say what is wrong with the tar."""
        try:
            if not extents.is_regular(self._path):
                return Flaw("", "unreadable_tar", "not a regular file")
            with extents.tar_file(self._path, size) as tar:
                if tar.pread(0, len(_GZIP)) == _GZIP:
                    return Flaw("", "compressed_tar", "is compressed; unpack it with gunzip first")
                for entry in entries(tar):
                    check()
                    self._add(entry, tar)
        except OSError as error:
            damage = Flaw("", "unreadable_tar", error.strerror or str(error))
        except BadTarError as error:
            what = str(error.args[0])
            reason = "damaged_tar" if self.members else "not_a_tar"
            damage = Flaw("", "truncated_tar" if what.startswith(_TRUNCATED) else reason, what)
        else:
            none = Flaw("", "no_samples", "no member has a name like KEY.jpg")
            return None if self.members else none
        if self._last:
            what = "its tar cannot be read after it, so members may be missing"
            self._flaw(self._last, "sample_cut", what)
        return damage

    def _add(self, entry: Entry, tar: extents.TarFile) -> None:
        """Take in a member; one without a key belongs to no sample."""
        if entry.kind == FOLDER:
            return
        if (named := split(entry.name)) is None:
            self._passed.append(f"{self._path}/{entry.name}")
            return
        key, field = named
        members = self.members.setdefault(key, {})
        if members and key != self._last:
            self._flaw(key, "key_apart", "its members are not next to each other in the tar")
        if field in members:
            self._flaw(key, "repeated_member", f"{field} appears twice")
        if entry.kind != FILE:
            self._flaw(key, "not_a_file", f"{field} is a {entry.kind}")
        members[field], self._last = entry, key
        if self._room > 0 and (f".{field}" in FORMAT_OF or field in (TEXT, JSON)):
            # Keep how it begins, where it would take a request later.
            data = tar.ahead_of_need(entry.offset, min(entry.size, extents.HEAD))
            self._held |= {entry.offset: data} if data else {}
            self._room -= len(data)

    def _flaw(self, key: str, reason: str, detail: str) -> None:
        """Leave out a key."""
        self._flaws.setdefault(key, Flaw(key, reason, detail))

    def sample(self, key: str) -> TarSample | Flaw:
        """Give the sample of a key."""
        members = self.members[key]
        images = [field for field in members if f".{field}" in FORMAT_OF]
        if len(images) > 1:
            self._flaw(key, "several_images", f"its images are {_listed(images)}")
        if not images:
            self._flaw(key, "no_image", f"its members are {_listed(list(members))}")
        beside = {field: members[field] for field in (TEXT, JSON) if field in members}
        for field, entry in beside.items():
            if entry.size > records.LONGEST_LINE:  # it would be read into memory
                detail = f"{field} has {quantity(entry.size, 'B')}"
                self._flaw(key, "member_too_large", detail)
        if key in self._flaws:
            return self._flaws[key]
        parts = {field: self._part(entry) for field, entry in beside.items()}
        return TarSample(key, self._part(members[images[0]]), parts.get(TEXT), parts.get(JSON))

    def _part(self, entry: Entry) -> extents.Part:
        data = self._held.pop(entry.offset, b"")
        return extents.Part(self._path, entry.offset, entry.size, entry.name, data=data)


def samples(
    path: str, size: int = 0, passed: list[str] | None = None
) -> Iterator[TarSample | Flaw]:
    """Give the samples of a tar in their order, and what is left out; last, the tar's own flaw.

    At a URL its size must be given. Members whose names have no key belong to no sample, and
    loaders skip them too; their paths are appended to ``passed``.
    """
    contents = _Contents(path, [] if passed is None else passed)
    damage = contents.read(size)
    yield from map(contents.sample, contents.members)
    if damage is not None:
        yield damage


def row(data: bytes, recipe: Recipe) -> captions.Row:
    """Read the columns in a JSON member, as a row of a captions file has them."""
    return captions.divide(_parse(data), recipe, captions.own_fields(recipe))[0]


def given_id(data: bytes) -> str:
    """Read the image_id in a JSON member; blank if it has none."""
    found = _parse(data).get("image_id")
    return found if isinstance(found, str) else ""


def _parse(data: bytes) -> records.Record:
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return records.parse(data)
    except records.BadRecordError as error:
        # Python writes NaN, which no JSON has, where a number is not known.
        with suppress(ValueError, RecursionError):
            found = json.loads(data, parse_constant=lambda _: None)
            return records.parse(records.line(found))
        what = f"its json is unusable: {error.reason.replace('_', ' ')}"
        raise captions.CaptionError(error.reason, what) from None


def _listed(fields: list[str]) -> str:
    more = ["..."] * (len(fields) > _FIELDS_SHOWN)
    return ", ".join([*fields[:_FIELDS_SHOWN], *more])
