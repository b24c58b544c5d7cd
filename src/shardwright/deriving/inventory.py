"""What a store already holds of the images.

Kept in columns, a few bytes an image: a record is read again when it is needed.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from msgspec.structs import replace

from shardwright.deriving.captions import CAPTION, CaptionError, Captions, Row, beside
from shardwright.deriving.images import Size
from shardwright.deriving.sources import Source, contested, problems
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.store import facts, records
from shardwright.store.facts import Facts, ImageFile
from shardwright.store.folders import array_ids
from shardwright.store.records import LONGEST_FILE_NAME, Line, Record
from shardwright.store.rules import Rules, is_side, is_stage1
from shardwright.store.store import Store


class Inventory:
    """The arrays, records and captions that there are for each image, by its number."""

    def __init__(
        self,
        sources: list[Source],
        store: Store,
        captions: Captions | None,
        progress: Progress,
        *,
        recompute: Collection[Component] = (),
    ) -> None:
        self.sources, self.store, self.captions = sources, store, captions
        self.problems = problems(sources, _owners(sources, store))  # (reason, detail), by number
        longest = LONGEST_FILE_NAME - max(len(c.extension) for c in store.recipe.components)
        for number, source in enumerate(sources):
            if len(source.image_id) > longest // 4 and len(os.fsencode(source.image_id)) > longest:
                detail = "its name is too long for the files of this recipe"
                self.problems.setdefault(number, ("image_id_invalid", detail))
        self.other_captions: set[int] = set()  # images with another caption than on record
        self.other_columns: set[int] = set()  # images with other columns than on record
        self.changed: set[int] = set()  # images whose file is not the one that was encoded
        self._outdated: dict[int, list[str]] = {}  # components that show an earlier file
        self.touched: dict[int, int] = {}  # the new time of files with the same content
        self.gone: dict[str, str] = {}  # the paths of images on record that do not exist, by id
        made_from = (c for c in store.recipe.captions if c.field == CAPTION)
        self._places = [(f"{store.arrays(c)}/", c.extension) for c in made_from]
        self._read_texts = any(component.source == "caption" for component in recompute)
        usable = (n for n in range(len(sources)) if n not in self.problems)
        self._numbers = {sources[number].image_id: number for number in usable}
        self.stored = dict.fromkeys(store.recipe.components, 0)  # arrays, also of other images
        self._there = {c: bytearray(len(sources)) for c in store.recipe.components}
        self._line = array("Q", bytes(8 * len(sources)))  # where its record begins, plus one; or 0
        self._facts = array("Q", bytes(8 * len(sources)))  # likewise
        self.valid = bytearray(len(sources))  # whether that record is valid
        # Whether there is a text, by its field; one beside the image may turn out to be blank.
        self._texts = {field: bytearray(len(sources)) for field in store.recipe.texts}
        if CAPTION in self._texts:
            self._texts[CAPTION] = bytearray(source.has_sidecar for source in sources)
        for component, there in self._there.items():
            for image_id in array_ids(store, component):
                self.stored[component] += 1
                if image_id in self._numbers:
                    there[self._numbers[image_id]] = 1
        gone = self._read_facts(progress)
        recorded = self._read_records(progress, gone)
        for component in store.recipe.captions:
            for number, has_text in enumerate(recorded[component.field]):
                if not has_text:  # it is unknown from which caption this array was made
                    self._there[component][number] = 0

    def missing(self, number: int, components: Iterable[Component]) -> tuple[Component, ...]:
        """Name the arrays that an image does not have."""
        return tuple(c for c in components if not self._there[c][number])

    def is_recorded(self, number: int) -> bool:
        """Whether an image has a record."""
        return self._line[number] > 0

    def missing_text(self, number: int) -> str | None:
        """Name the first text that an image needs and does not have."""
        return next((field for field, there in self._texts.items() if not there[number]), None)

    def kept(self, number: int, make: Collection[Component]) -> list[str]:
        """Name the arrays of a picture that an image has and keeps."""
        pictures = self.store.recipe.pictures
        return [c.name for c in pictures if self._there[c][number] and c not in make]

    def is_outdated(self, number: int, make: Collection[Component]) -> bool:
        """Whether some array will still show an earlier version of an image."""
        kept = self.kept(number, make)
        outdated = kept if number in self.changed else self._outdated.get(number, ())
        return not set(kept).isdisjoint(outdated)

    def recompute(
        self,
        components: Collection[Component],
        made: Iterable[Record],
        files: Mapping[str, ImageFile | None],
    ) -> None:
        """Treat all arrays of components as missing, except for images that have a new record.

        If an image's file, or its caption, has changed since then, it is made again.
        """
        sources = {component.source for component in components}
        fields = {component.field for component in components if component.source == "caption"}
        for component in components:
            self._there[component] = bytearray(len(self.sources))
        for record in made:
            number = self._numbers.get(record["image_id"])
            if number is None:
                continue
            new, path = files.get(record["image_id"]), self.sources[number].path
            if "image" in sources and new is not None and new.now(path) is None:
                continue
            texts = self._texts_now(number) if fields or number in self.other_captions else {}
            if any(texts[field] not in (None, record.get(field)) for field in fields):
                continue
            self.valid[number] = 1
            self.changed.discard(number)
            self._outdated.pop(number, None)
            if all(text == record.get(field) for field, text in texts.items()):
                self.other_captions.discard(number)
            for there in self._there.values():
                there[number] = 1

    def count(self, component: Component) -> int:
        """Count the images that have an array of a component."""
        return sum(self._there[component])

    def record(self, number: int) -> Record | None:
        """Read an image's record again."""
        if not self._line[number]:
            return None
        jsonl = self.store.jsonl
        with files.explained(jsonl), jsonl.open("rb") as file:
            file.seek(self._line[number] - 1)
            return records.parse(file.readline().rstrip(b"\r\n"))

    def facts(self, number: int) -> Facts | None:
        """Read again what is known of an image's file and caption."""
        line = self._facts[number]
        known = facts.read_at(self.store, line - 1) if line else None
        if known is None or known.image is None or number not in self.touched:
            return known
        path, time = facts.absolute(self.sources[number].path), self.touched[number]
        return replace(known, image=replace(known.image, path=path, mtime_ns=time))

    def given(self, number: int) -> Row:
        """Find an image's row in the captions file that the user gave."""
        return self.captions.of(self.sources[number]) if self.captions else {}

    def _texts_now(self, number: int) -> dict[str, str | None]:
        """Find an image's texts, where they may differ from those on record."""
        row = self.given(number)
        beside = None if CAPTION in row or CAPTION not in self._texts else self._edited(number)
        return {
            field: row.get(field, beside if field == CAPTION else None) for field in self._texts
        }

    def _read_facts(self, progress: Progress) -> dict[str, str]:
        """Compare the images with the files that were encoded; give those that are gone."""
        gone = {}
        progress.phase("compare images", len(self.sources), "images")
        for offset, entry in facts.read(self.store):
            number, image = self._numbers.get(entry.image_id), entry.image
            path = "" if number is None else self.sources[number].path
            if number is not None:
                self._facts[number] = offset + 1
                progress.advance(1)
            if image is None:
                continue
            if number is None or os.path.basename(path) != os.path.basename(image.path):
                if facts.is_gone(image.path):
                    gone[entry.image_id] = image.path
            elif self.kept(number, ()):
                if entry.outdated:
                    self._outdated[number] = entry.outdated
                now = image.now(path)
                if now is None:
                    self.changed.add(number)
                elif now.mtime_ns != image.mtime_ns or (
                    now.path != image.path and facts.is_gone(image.path)
                ):  # by a link to it, it is where it was
                    self.touched[number] = now.mtime_ns
        return gone

    def _read_records(self, progress: Progress, gone: Mapping[str, str]) -> dict[str, bytearray]:
        """Read all records; give which images have a text in theirs, by its field."""
        recorded = {field: bytearray(len(self.sources)) for field in self._texts}
        for number in range(len(self.sources)) if self.captions else ():
            check()
            try:
                for field in self.given(number).keys() & self._texts.keys():
                    self._texts[field][number] = 1
            except CaptionError as error:
                self.problems.setdefault(number, (error.args[0], error.args[1]))
        jsonl, rules = self.store.jsonl, Rules(self.store.recipe)
        malformed: list[Line] = []
        for line, record in records.walk(
            jsonl, records.parse, bad=lambda line, _: malformed.append(line)
        ):
            image_id = record.get("image_id")
            if isinstance(image_id, str) and image_id in gone:
                self.gone[image_id] = gone[image_id]
            found = self._numbers.get(_id_of(record))
            if found is not None:  # of two records of one image the later counts
                self._line[found] = line.offset + 1
                self.valid[found] = next(rules.faults(record), None) is None
                for field in self._texts:
                    recorded[field][found] = recorded_text(record, field) is not None
                    self._texts[field][found] |= recorded[field][found]
                self._judge(found, record)
        if malformed:
            lines = quantity(len(malformed), "lines")
            progress.warn(f"{jsonl}: {lines} without a record; kept as is")
        return recorded

    def _judge(self, number: int, record: Record) -> None:
        """Compare an image and its captions with its record."""
        row: Row = {}
        with suppress(CaptionError):  # a problem already
            row = self.given(number)
        self.other_captions.discard(number)
        self.other_columns.discard(number)
        for field in self._texts:
            text = recorded_text(record, field)
            if text is None:
                continue
            if field not in row:
                edited = self._edited(number) if field == CAPTION else None
                differs = edited not in (None, text.strip())
            else:  # without an array, the given is taken
                differs = row[field] != text and self._has_arrays(number, field)
            if differs:
                self.other_captions.add(number)
        others = row.keys() - self._texts.keys()
        if self.valid[number] and any(record.get(name) != row[name] for name in others):
            self.other_columns.add(number)
        if is_stage1(record, self.store.recipe):
            detail = "its record holds inline arrays; run shardwright migrate first"
            self.problems[number] = ("not_migrated", detail)
        elif other := _other_image(record.get("image_path"), self.sources[number].path):
            gone = "; it does not exist: remove its record and arrays" * facts.is_gone(other)
            detail = f"the store has this image_id for {other}{gone}"
            self.problems[number] = ("duplicate_id", detail)

    def _has_arrays(self, number: int, field: str) -> bool:
        """Whether an image has any array of a text."""
        captions = self.store.recipe.captions
        return any(self._there[c][number] for c in captions if c.field == field)

    def _edited(self, number: int) -> str | None:
        """Read the caption beside an image, if it may have changed since its array was made.

        One that is older than its array is read only if it will be used: when there is nothing to
        do, opening them all would take longer than everything else.
        """
        source = self.sources[number]
        with suppress(CaptionError, OSError):  # reported as a failure if it is needed
            if source.has_sidecar and self._has_arrays(number, CAPTION) and not self._read_texts:
                written = os.stat(source.sidecar).st_mtime_ns
                # A Path would be slow for all images.
                arrays = (folder + source.image_id + end for folder, end in self._places)
                if all(written < os.stat(array).st_mtime_ns for array in arrays):
                    return None
            return beside(source)
        return None


def recorded_text(record: Record | None, field: str) -> str | None:
    """Give a text of a record, if it has one."""
    text = record.get(field) if record else None
    return text if isinstance(text, str) and text.strip() else None


def recorded_size(record: Record | None) -> Size | None:
    """Give the size of the picture in a record, if it has one."""
    width, height = (record or {}).get("width"), (record or {}).get("height")
    return Size(width, height) if is_side(width) and is_side(height) else None


def _id_of(record: Record) -> str:
    """Give the image id of a record; blank if there is none."""
    image_id, path = record.get("image_id"), record.get("image_path")
    if image_id is None and isinstance(path, str):  # as in Stage 1
        image_id = records.image_id_of(path)
    return image_id if isinstance(image_id, str) else ""


def _owners(sources: list[Source], store: Store) -> dict[str, Source]:
    """Find the image on record for each id that several images have."""
    shared = contested(sources)
    owners: dict[str, Source] = {}
    for _, record in records.walk(store.jsonl, records.parse) if shared else ():
        image_id, path = _id_of(record), record.get("image_path")
        if image_id in shared and isinstance(path, str):
            those = [s for s in shared[image_id] if not _other_image(path, s.path)]
            exact = [s for s in those if os.path.normpath(s.path) == os.path.normpath(path)]
            if len(exact or those) == 1:
                owners[image_id] = (exact or those)[0]
    return owners


def _other_image(recorded: object, path: str) -> str | None:
    """Give the image of a record, if it is not this one.

    The same file by another path is this one. So is a file of the same name if the recorded one
    does not exist: folders are moved.
    """
    if not isinstance(recorded, str) or os.path.normpath(recorded) == os.path.normpath(path):
        return None
    if os.path.basename(recorded) == os.path.basename(path) and not os.path.exists(recorded):
        return None
    try:
        return None if os.path.samefile(recorded, path) else recorded
    except OSError:
        return recorded
