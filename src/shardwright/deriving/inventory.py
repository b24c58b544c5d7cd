"""What a store already holds of the images.

Kept in columns, a few bytes an image: a record is read again when it is needed.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from operator import and_
from types import MappingProxyType

from msgspec.structs import replace

from shardwright.deriving.captions import CAPTION, CaptionError, CaptionFiles, Row, beside
from shardwright.deriving.generations import arrays_in, files_in, made_in
from shardwright.deriving.recorded import (
    Strangers,
    id_of,
    other_image,
    owners,
    record_at,
    recorded_text,
)
from shardwright.deriving.sources import Source, problems
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity
from shardwright.recipes import Component
from shardwright.storage.paths import absolute, is_gone
from shardwright.store import facts, records
from shardwright.store.facts import Facts
from shardwright.store.faults import Rules, is_stage1
from shardwright.store.records import Line, Record
from shardwright.store.store import Store


class Inventory:
    """The arrays, records and captions that there are for each image, by its number."""

    def __init__(
        self,
        sources: list[Source],
        store: Store,
        captions: CaptionFiles | None,
        progress: Progress,
        *,
        recompute: Collection[Component] = (),
        update: bool = False,
        renamed: Mapping[str, int] = MappingProxyType({}),
        first_ids: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.sources, self.store, self.captions = sources, store, captions
        # (reason, detail), by number
        begun = store.jsonl.exists()
        self.problems = problems(sources, store.recipe, owners(sources, store), begun=begun)
        self.other_captions: dict[int, set[str]] = {}  # fields with another text than on record
        self.other_columns: dict[int, list[str]] = {}  # with other values than on record
        self.changed: dict[int, str] = {}  # the hash of the file that was encoded, if it is another
        self.touched: dict[int, int] = {}  # the time of files that are elsewhere, or written again
        made_from = (c for c in store.recipe.captions if c.field == CAPTION)
        self._places = [(f"{store.arrays(c)}/", c.extension) for c in made_from]
        self._recompute = any(component.source == "caption" for component in recompute)
        self._update = update
        usable = (n for n in range(len(sources)) if n not in self.problems)
        self._numbers = {sources[number].image_id: number for number in usable}
        self._first_ids = first_ids  # of renamed images that are derived as new ones
        self._renamed = set(renamed.values())  # images that are on record by another name
        for number in self._renamed:
            self._numbers.pop(sources[number].image_id, None)
        self._numbers |= renamed
        self.stored = dict.fromkeys(store.recipe.components, 0)  # arrays, also of other images
        self._there = {c: bytearray(len(sources)) for c in store.recipe.components}
        self._is_placed = bytearray(len(sources))  # whether its absolute path is on record
        self._others: dict[int, str] = {}  # the files on record of images that are others
        self._line = array("Q", bytes(8 * len(sources)))  # where its record begins, plus one; or 0
        self._facts = array("Q", bytes(8 * len(sources)))  # likewise
        # Where its caption came from: 2 from --captions, 1 from beside it, 0 if that is unknown.
        self._origin = bytearray(len(sources))
        self.valid = bytearray(len(sources))  # whether that record is valid
        # Whether there is a text, by its field; one beside the image may turn out to be blank.
        self._texts = {field: bytearray(len(sources)) for field in store.recipe.texts}
        if CAPTION in self._texts:
            self._texts[CAPTION] = bytearray(source.has_sidecar for source in sources)
        for component, there in self._there.items():
            for image_id in store.array_ids(component):
                self.stored[component] += 1
                if image_id in self._numbers:
                    there[self._numbers[image_id]] = 1
        self._read_facts(progress)
        recorded = self._read_records(progress)
        for component in store.recipe.captions:
            # Without a text on record, it is unknown from which one an array was made.
            has_text = recorded[component.field]
            self._there[component] = bytearray(map(and_, self._there[component], has_text))

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

    def keeps_text(self, number: int, field: str, make: Collection[Component]) -> bool:
        """Whether an array of a text stays, so that all others of it are made from the same text.

        That is the one on record. An update makes all arrays of another text together.
        """
        captions = (c for c in self.store.recipe.captions if c.field == field and c not in make)
        return any(self._there[component][number] for component in captions)

    def recompute(
        self, components: Collection[Component], same: Collection[Component], new: Store
    ) -> None:
        """Treat all arrays of components as missing, but for those that are new.

        A changed picture of which another array stays keeps its arrays, if the settings are the
        ``same``.
        """
        stays = {n: xxh3 for n, xxh3 in self.changed.items() if self.kept(n, components)}
        for component in components:
            before, now = self._there[component], bytearray(len(self.sources))
            for number in stays if component.source == "image" and component in same else ():
                now[number] = before[number]
            self._there[component] = now

        def made(image_id: str) -> list[Component]:
            """Name its new arrays; if its record is there, so are those that are recomputed."""
            number = self._numbers.get(image_id)
            lacking = () if number is None else self.missing(number, self._there)
            return [c for c in lacking if c in components or new.array(c, image_id).exists()]

        arrays = ((record, made(record["image_id"])) for record in made_in(new))
        self._resume(new, arrays, stays=stays)

    def outdated(self, components: Collection[Component]) -> dict[int, tuple[Component, ...]]:
        """Name the arrays that were made from another file, or another text, than there is now.

        None of a changed picture of which another array stays: a sample shows one picture.
        """
        found = {}
        for number in sorted({*self.changed, *self.other_captions}):
            fields = self.other_captions.get(number, ())
            is_new = number in self.changed and not self.kept(number, components)
            again = {c for c in components if c.source == "caption" and c.field in fields}
            again.update(self.store.recipe.pictures if is_new else ())
            these = tuple(c for c in components if c in again)
            if these and number not in self.problems:
                found[number] = these
        return found

    def update(self, outdated: Mapping[int, Collection[Component]], new: Store | None) -> None:
        """Treat outdated arrays as missing, but for those that are new."""
        for number, components in outdated.items():
            for component in components:
                self._there[component][number] = 0
        if new is not None:
            self._resume(new, arrays_in(new), outdated)

    def _resume(
        self,
        new: Store,
        arrays: Iterable[tuple[Record, Collection[Component]]],
        outdated: Mapping[int, Collection[Component]] = MappingProxyType({}),
        stays: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Go on with the next generation: its ``arrays``, by their records, are there.

        If an image's file, or its caption, has changed since then, all of these are made again.
        ``stays`` are the hashes of changed files of which the store keeps an array.
        """
        files = files_in(new)
        for record, made in arrays:
            number, file = self._numbers.get(record["image_id"], -1), files.get(record["image_id"])
            if number < 0 or number in self.problems:
                continue
            seen = any(component.source == "image" for component in made)
            fields = {c.field for c in made if c.source == "caption"}
            fields = {field for field in fields if not self.keeps_text(number, field, made)}
            current = set(made).issuperset(outdated.get(number, ()))
            if seen and file is not None and file.xxh3 != stays.get(number):
                current = current and file.now(self.sources[number].path) is not None
            if fields:
                texts = self._texts_now(number)
                current = current and all(texts[f] in (None, record.get(f)) for f in fields)
            for component in made:
                self._there[component][number] = current
            if not current:
                continue
            self.touched.pop(number, None)
            self.valid[number] |= all(field in record for field in self.store.recipe.record_fields)
            if others := self.other_captions.pop(number, set()) - fields:
                self.other_captions[number] = others
            if seen and number not in stays:
                self.changed.pop(number, None)

    def count(self, component: Component) -> int:
        """Count the images that have an array of a component."""
        return sum(self._there[component])

    def record(self, number: int) -> Record | None:
        """Read an image's record again."""
        line = self._line[number]
        return record_at(self.store, line - 1) if line else None

    def facts(self, number: int) -> Facts | None:
        """Read again what is known of an image's file and caption."""
        line = self._facts[number]
        known = facts.read_at(self.store, line - 1) if line else None
        if known is None and number in self._first_ids:
            return Facts(self.sources[number].image_id, first_id=self._first_ids[number])
        if known is None or known.image is None or number not in self.touched:
            return known
        path, time = absolute(self.sources[number].path), self.touched[number]
        return replace(known, image=replace(known.image, path=path, mtime_ns=time))

    def given(self, number: int) -> Row:
        """Find an image's row in the captions file that the user gave."""
        return self.captions.of(self.sources[number]) if self.captions else {}

    def _texts_now(self, number: int) -> dict[str, str | None]:
        """Find an image's texts, where they may differ from those on record."""
        row = self.given(number)
        texts = {field: row.get(field) for field in self._texts}
        if CAPTION in texts and CAPTION not in row:
            texts[CAPTION] = self._edited(number)
        return texts

    def _read_facts(self, progress: Progress) -> None:
        """Compare the images with the files that were encoded."""
        progress.phase("compare images", len(self.sources), "images")
        strangers = Strangers(self.store)
        for offset, entry in facts.read(self.store):
            number, image = self._numbers.get(entry.image_id), entry.image
            if number is None:
                continue
            path = self.sources[number].path
            self._facts[number] = offset + 1
            if entry.caption_given is not None:
                self._origin[number] = 1 + entry.caption_given
            progress.advance(1)
            if image is None:
                continue
            self._is_placed[number] = 1
            renamed = number in self._renamed
            if not renamed and os.path.basename(path) != os.path.basename(image.path):
                if other := other_image(image.path, path):
                    self._others[number] = other
                continue
            now = image.now(path)
            if not renamed:
                strangers.add(number, image, path, same=now is not None)
            if not self.kept(number, ()):
                continue
            if now is None or entry.outdated:
                self.changed[number] = image.xxh3
            time = image.mtime_ns if now is None else now.mtime_ns
            # By a link to it, it is where it was.
            moved = absolute(path) != image.path and is_gone(image.path)
            if time != image.mtime_ns or moved:
                self.touched[number] = time
        self._others |= strangers.found()

    def _read_records(self, progress: Progress) -> dict[str, bytearray]:
        """Read all records; give which images have a text in theirs, by its field."""
        recorded = {field: bytearray(len(self.sources)) for field in self._texts}
        for number in range(len(self.sources)) if self.captions else ():
            check()
            try:
                for field in self.given(number).keys() & self._texts.keys():
                    self._texts[field][number] = 1
            except CaptionError as error:
                self.problems.setdefault(number, (error.args[0], error.args[1]))
        jsonl, rules, malformed = self.store.jsonl, Rules(self.store.recipe), list[Line]()
        for line, record in records.walk(
            jsonl, records.parse, bad=lambda line, _: malformed.append(line)
        ):
            found = self._numbers.get(id_of(record))
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
        self.other_captions.pop(number, None)
        self.other_columns.pop(number, None)
        if is_stage1(record, self.store.recipe):
            detail = "its record holds inline arrays; run shardwright migrate first"
            self.problems[number] = ("not_migrated", detail)
        elif number not in self._renamed and (other := self._other(number, record)):
            detail = f"the store has this image_id for {other}"
            detail += "; it does not exist: use --update" * is_gone(other)
            self.problems[number] = ("duplicate_id", detail)
        if number in self.problems:  # nothing of it is compared
            return
        row, texts = self.given(number), self._texts_now(number)
        edited = {
            field
            for field, text in texts.items()
            if (before := recorded_text(record, field)) is not None
            and text not in (None, before.strip())
            # Without an array, the given is taken.
            and (field not in row or self.keeps_text(number, field, ()))
        }
        if edited:
            self.other_captions[number] = edited
        others = sorted(name for name in row.keys() - texts.keys() if record.get(name) != row[name])
        if self.valid[number] and others:
            self.other_columns[number] = others

    def _other(self, number: int, record: Record) -> str | None:
        """Give the image on record, if it is another one; its path there may be relative."""
        if self._is_placed[number]:
            return self._others.get(number)
        return other_image(record.get("image_path"), self.sources[number].path)

    def _edited(self, number: int) -> str | None:
        """Read the caption beside an image, if it may have changed since its array was made.

        Not if it is on record from --captions. One that is older than its array is read only if it
        will be used: when there is nothing to do, opening them all would take longer than
        everything else.
        """
        source, origin = self.sources[number], self._origin[number]
        if origin == 2 and not self._recompute:
            return None
        with suppress(CaptionError, OSError):  # reported as a failure if it is needed
            read = self._recompute or (self._update and origin) or number in self._renamed
            if source.has_sidecar and self.keeps_text(number, CAPTION, ()) and not read:
                written = os.stat(source.sidecar).st_mtime_ns
                # A Path would be slow for all images.
                arrays = (folder + source.image_id + end for folder, end in self._places)
                if all(written < os.stat(array).st_mtime_ns for array in arrays):
                    return None
            return beside(source)
        return None
