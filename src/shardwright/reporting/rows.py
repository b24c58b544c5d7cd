"""Everything on record as rows of a table: a row for each image.

Rows come from the disk one at a time; of each image only the place of its facts is in memory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

from shardwright import regular
from shardwright.deriving.outcomes import Failure, read_failures
from shardwright.packing.scan import Scan, changed, facts_at, missing_array
from shardwright.storage import files
from shardwright.store import facts, records
from shardwright.store.facts import LOST, TOKENS, TOO_LONG, Facts
from shardwright.store.faults import Rules
from shardwright.store.records import CROP, Line, Record, is_image_id

Row = dict[str, Any]

READY = "ready"
CUT_AT = "cut_at_"  # before the name of a component
FAILED = "failed"
_SIDES = ("left", "top", "right", "bottom")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Rows:
    """The rows of a store that was scanned and checked; they can be read several times."""

    def __init__(
        self,
        found: Scan,
        invalid: Mapping[int, str],
        ready: Collection[str],
        others: Collection[str],
    ) -> None:
        self.found, self.invalid, self.ready = found, invalid, ready
        self.store, self.rules = found.store, Rules(found.store.recipe)
        self._masks = {
            c.mask.field: c.name for c in self.store.recipe.captions if c.mask is not None
        }
        self._facts: dict[str, int] = {}  # where they begin
        self._left_out: list[Facts] = []  # of images without a record
        for offset, known in facts.read(self.store):
            if known.image_id in ready or known.image_id in others:
                self._facts[known.image_id] = offset
            elif known.left_out is not None:
                self._left_out.append(known)
        self._last: dict[str, int] = {}  # the line that counts, of images that are not ready
        self._shared: set[str] = set()  # ids of more than one image
        if others:
            self._find_last(others)
        self.usual = self._usual()  # the columns that every table has, and their types

    def __len__(self) -> int:
        """Give about how many rows there are, for progress."""
        return len(self.ready) + len(self._last)

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.with_lines())

    def with_lines(self) -> Iterator[tuple[int | None, Row]]:
        """Give each row with the place of its record in the metadata, if it has one."""
        failures = {failure.image_path: failure for failure in read_failures(self.store)}
        path = facts.path_of(self.store)
        with regular.opened(path) if self._facts else nullcontext() as file:
            for line, record in records.walk(self.store.jsonl, records.parse):
                state = self._state(line, record)
                if state is None:
                    continue
                row = {**self._fields(record), "state": state}
                if known := self._known(file, record.get("image_id")):
                    if known.image and (failure := failures.pop(known.image.path, None)):
                        row |= _failure(failure)
                    row |= _flat(known)
                yield line.offset, row
        for failure in failures.values():
            names: Row = {"image_id": failure.image_id, "image_path": failure.image_path}
            yield None, {**names, "state": FAILED, **_failure(failure)}
        for known in self._left_out:
            names = {"image_id": known.image_id}
            names |= {"image_path": known.image.path} if known.image else {}
            yield None, {**names, "state": TOO_LONG, **_flat(known)}

    def facts_of(self, image_id: str) -> Facts | None:
        """Read what is known of an image."""
        path = facts.path_of(self.store)
        with files.explained(path), regular.opened(path) if self._facts else nullcontext() as file:
            return self._known(file, image_id)

    def require_unchanged(self) -> None:
        """Raise if the metadata has changed since it was scanned."""
        jsonl = self.store.jsonl
        if jsonl.exists():
            with files.explained(jsonl), regular.opened(jsonl) as file:
                if files.state(file.fileno()) != self.found.jsonl_state:
                    raise changed(jsonl, "written to")

    def _usual(self) -> dict[str, type]:
        recipe, numbers = self.store.recipe, ("height", "width", "format_version")
        fields = [name for name in recipe.record_fields if name not in self._masks]
        texts = [component.name for component in recipe.captions]
        decoded = ("decoded_width", "decoded_height", "decoded_scale")
        return {
            **dict.fromkeys(("image_id", "state", "reason", "detail"), str),
            **{name: int if name in numbers else str for name in fields[1:]},
            **dict.fromkeys((f"{CROP}_{side}" for side in _SIDES), float),
            **dict.fromkeys(("enlarged", "cropped"), float),
            **dict.fromkeys(decoded, int),
            "colour_space": str,
            **dict.fromkeys((f"{TOKENS}{name}" for name in self._masks.values()), int),
            **dict.fromkeys((f"{LOST}{name}" for name in texts), int),
            **dict.fromkeys((f"{CUT_AT}{name}" for name in texts), int),
            "image_file": str,
            "image_bytes": int,
            "image_mtime": datetime,
            **dict.fromkeys(("image_xxh3", "outdated", "first_id"), str),
            "caption_given": bool,
        }

    def _find_last(self, others: Collection[str]) -> None:
        """Find the line that counts of each image that is not ready: the last one."""
        images: dict[str, int] = {}  # a hash of each path
        for line, names in records.walk(self.store.jsonl, records.names):
            if is_image_id(names.image_id) and names.image_id in others:
                path = names.image_path
                image = hash(posixpath.normpath(path) if isinstance(path, str) else repr([path]))
                if images.setdefault(names.image_id, image) != image:
                    self._shared.add(names.image_id)
                self._last[names.image_id] = line.offset

    def _state(self, line: Line, record: Record) -> str | None:
        """Say whether a record is ready, or why not; None if a later one of the image counts."""
        sample, image_id = self.found.at(line.offset), record.get("image_id")
        if sample is not None:
            return self.invalid.get(sample, READY)
        if is_image_id(image_id):
            if image_id in self._shared:
                return "duplicate_id"
            if self._last.get(image_id) != line.offset:
                return None
        reason = self.rules.problem(record) or missing_array(self.store, record["image_id"])
        if reason is None:
            raise changed(self.store.folder, "arrays were added")
        return reason

    def _known(self, file: BinaryIO | None, image_id: object) -> Facts | None:
        if file is None or not isinstance(image_id, str) or image_id not in self._facts:
            return None
        return facts_at(self.store, file, image_id, self._facts[image_id])

    def _fields(self, record: Record) -> Row:
        """Give the fields of a record: a mask as its number of tokens, a crop as four numbers."""
        row: Row = {}
        for name, value in record.items():
            if name in self._masks:
                tokens = value.count(1) if isinstance(value, list) else None
                row[f"{TOKENS}{self._masks[name]}"] = tokens
            elif name == CROP:
                if isinstance(value, list) and len(value) == len(_SIDES):
                    row |= {f"{CROP}_{s}": side for s, side in zip(_SIDES, value, strict=True)}
            elif name not in self.store.recipe.inline:
                ours = name in self.usual and name not in self.store.recipe.record_fields
                row[f"record_{name}" if ours else name] = value
        return row


def _failure(failure: Failure) -> Row:
    return {"reason": failure.reason, "detail": failure.detail}


def _flat(known: Facts) -> Row:
    """Give facts as columns."""
    row: Row = {
        "enlarged": known.enlarged,
        "cropped": known.cropped,
        "colour_space": known.colour_space,
        "outdated": ",".join(known.outdated) or None,
        "first_id": known.first_id,
        "caption_given": known.caption_given,
        **{f"{LOST}{name}": lost for name, lost in known.tokens_lost.items()},
        **{f"{CUT_AT}{name}": characters for name, characters in known.cut_at.items()},
    }
    if (decoded := known.decoded) is not None:
        row |= {"decoded_width": decoded.width, "decoded_height": decoded.height}
        row["decoded_scale"] = decoded.scale
    if (image := known.image) is not None:
        row |= {"image_file": image.path, "image_bytes": image.bytes, "image_xxh3": image.xxh3}
        row["image_mtime"] = _time(image.mtime_ns)
    return row


def _time(nanoseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:  # a file may be of any time
        return None
