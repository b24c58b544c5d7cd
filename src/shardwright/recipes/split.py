"""A split: which part of a dataset a sample belongs to, by a hash that never changes.

The hash of the id, as a share of all possible hashes, decides. So a sample stays in its part when
others are added, and a larger share contains a smaller one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import xxhash

from shardwright.errors import UsageError
from shardwright.layout import BUCKET_PREFIX
from shardwright.validate import as_text

TRAIN = "train"  # the rest
BY = "by"  # the key of a recipe that names the group column
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_SHARE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?(?:e-\d{1,2})?|\.\d{1,20})\s*(%?)", re.ASCII)
_RESERVED = (TRAIN, BY)
_GROUPS = ".jsonl"  # the end of the name of a file with groups
FLAG, TABLE = "--split", "[split]"  # where a split is written
_EXAMPLES = {FLAG: "write it like val=5%, or val=0.05", TABLE: 'write it like val = "5%"'}


@dataclass(frozen=True)
class Split:
    """The parts besides train with their shares, in order, and what groups samples.

    That is a column of the records, or a file that names groups, relative to the split folder.
    """

    parts: tuple[tuple[str, float], ...]
    by: str | None = None

    @property
    def has_groups(self) -> bool:
        """Whether a file names the groups, and not a column."""
        return self.by is not None and self.by.endswith(_GROUPS) and "\0" not in self.by

    @property
    def names(self) -> tuple[str, ...]:
        """Name all parts, train first."""
        return (TRAIN, *(name for name, _ in self.parts))

    def part_of(self, text: str) -> str:
        """Choose the part of an id or of a group."""
        place = xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))
        return next((name for name, end in _ends(self.parts) if place < end), TRAIN)

    def shares(self) -> str:
        """Spell the parts as ``--split`` takes them."""
        return ",".join(f"{name}={_percent(share)}" for name, share in self.parts)

    def flags(self) -> list[str]:
        """Spell it as flags of pack."""
        return ["--split", self.shares(), *(["--split-by", self.by] if self.by else [])]


def is_part(name: str) -> bool:
    """Whether a name can be that of a part, and so of a folder."""
    return _NAME.fullmatch(name) is not None


def choose_split(given: object, by: object, recipe: Split | None) -> Split | None:
    """Give the split that ``--split`` and ``--split-by`` ask for, else that of the recipe."""
    found = recipe if given is None else read_split(given, recipe.by if recipe else None)
    if by is None:
        return found
    column = as_text("--split-by", by, "the name of a column, or a .jsonl file")
    if found is None:
        fix = "add --split, for example --split val=5%"
        raise UsageError(f"--split-by {column}: there is no split", fix=fix)
    return replace(found, by=column)


def read_split(given: object, by: str | None, place: str = FLAG) -> Split | None:
    """Read what ``--split`` or a recipe says: ``val=5%,test=1%``, or a mapping."""
    if given is None:
        return None
    if isinstance(given, str):
        pairs = [tuple(map(str.strip, one.partition("=")[::2])) for one in given.split(",")]
    elif isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        raise UsageError(f"{place} is {given!r}", fix=_EXAMPLES[place])
    parts = tuple((_name(name, place), _share(name, share, place)) for name, share in pairs)
    names = [name for name, _ in parts]
    if not parts or len(set(map(str.casefold, names))) < len(names):
        what = "names a part twice" if parts else "has no part"
        raise UsageError(f"{place} {what}", fix=_EXAMPLES[place])
    if sum(_exact(share) for _, share in parts) > 1:
        raise UsageError(f"{place}: the parts are more than 100% in all", fix="give less")
    return Split(parts, by)


def _name(name: object, place: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith("."):
        what = f"{place} {name}: is not the name of a part"
        fix = f"use letters, digits, '-', '_' and '.'; {_EXAMPLES[place]}"
        raise UsageError(what, fix=fix)
    # Below a shard folder, such a folder would be a bucket.
    if name.casefold() in _RESERVED or name.casefold().startswith(BUCKET_PREFIX):
        train = name.casefold() == TRAIN
        fix = "give the other parts; the rest is train" if train else "give another name"
        raise UsageError(f"{place} {name}: is no name for a part", fix=fix)
    return name


def _share(name: object, given: object, place: str) -> float:
    match = None if isinstance(given, bool) else _SHARE.fullmatch(str(given).strip())
    share = float(_exact(match[1]) / (100 if match[2] else 1)) if match else 0.0
    if not 0 < share <= 1:
        what = f"{place} {name}: {given!r} is not a share above 0% and up to 100%"
        raise UsageError(what, fix=_EXAMPLES[place])
    return share


def _exact(share: float | str) -> Fraction:
    """Give the decimal number that was written, so that shares add up without rounding."""
    return Fraction(share if isinstance(share, str) else repr(share))


def _percent(share: float) -> str:
    text = f"{Decimal(repr(share)) * 100:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


@lru_cache(maxsize=16)
def _ends(parts: tuple[tuple[str, float], ...]) -> list[tuple[str, int]]:
    """Give the first hash behind each part."""
    ends = accumulate(_exact(share) for _, share in parts)
    return [(name, math.ceil(end * 2**64)) for (name, _), end in zip(parts, ends, strict=True)]
