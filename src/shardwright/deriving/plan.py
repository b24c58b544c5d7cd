"""What is to be done: which arrays are missing for which images, and the room they will take."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shardwright.deriving.captions import CAPTION, CaptionError, Row, beside, shared_text
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.outcomes import NO_CAPTION, EarlierFailures, Outcomes
from shardwright.deriving.prepare import (
    Measuring,
    Sample,
    other_picture,
    read_texts,
    require_kept,
)
from shardwright.deriving.recorded import Moves, recorded_text
from shardwright.deriving.settings import EncoderSettings
from shardwright.deriving.sources import Source
from shardwright.deriving.views import left_out
from shardwright.errors import InputMissingError
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.recipes import Component, Selection
from shardwright.store.facts import TOO_LONG
from shardwright.store.npy import HEADER_BYTES
from shardwright.store.records import Record

_COMPRESSED = 8  # times smaller than its pixels is a picture, or more
_MEASURED = 256  # images that are opened to estimate the room of all


class Plan:
    """The images for which something is missing, by number."""

    def __init__(
        self,
        settings: EncoderSettings,
        outcomes: Outcomes,
        progress: Progress,
        measure: Measuring,
        moves: Moves,
    ) -> None:
        """Sort the images into failed, left out, complete and incomplete; a dry run opens them."""
        self._measure = measure
        request = settings.request
        inventory, components = settings.inventory, request.components
        self.settings, self.inventory, self.components = settings, inventory, components
        self.numbers = array("Q")
        self.texts = 0  # captions to be tokenized
        self.to_make = dict.fromkeys(components, 0)
        self.changed: list[str] = []  # images whose arrays show an earlier file
        # Images of which arrays are updated, by what these are made from.
        self.updated: dict[str, list[str]] = {"image": [], "caption": []}
        self.updated_columns: dict[str, list[str]] = {}  # names, by image
        self.replaced_captions = 0  # on record, as their arrays are recomputed
        self._earlier, self._textless = EarlierFailures(settings.store, moves), 0
        self._selects = settings.store.recipe.selection != Selection()
        names = [component.name for component in components]
        found_by_opening: list[tuple[Source, tuple[str, str]]] = []
        opens = self._selects or request.dry_run
        if opens:
            progress.phase("look at images", len(inventory.sources), "images")
        for number, source in enumerate(inventory.sources):
            check()
            progress.advance(opens)
            if number in inventory.problems:
                outcomes.fail(source, *inventory.problems[number], names)
                continue
            make = inventory.missing(number, components)
            if why := self._left_out(number, make):
                outcomes.leave_out(source, *why)
                continue
            if number in inventory.changed and inventory.kept(number, make):
                self.changed.append(source.path)
            if not self._is_incomplete(number, make):
                outcomes.complete += 1
            elif failure := self._failure(number, make):
                outcomes.fail(source, *failure, names)
            elif request.dry_run and (failure := self._opened(number, make)):
                found_by_opening.append((source, failure))
            else:
                self._add(number, make)
        for source, (reason, detail) in found_by_opening:
            outcomes.fail(source, reason, detail, names)
        if self._textless == len(inventory.sources):
            field = next(filter(None, map(inventory.missing_text, range(len(inventory.sources)))))
            beside_it = ", or write name.txt beside name.jpg" * (field == CAPTION)
            raise InputMissingError(
                f"has no {field}, and no other image has one",
                path=outcomes.failures[0].image_path,
                fix=f"give --captions FILE{beside_it}",
            )

    def _is_incomplete(self, number: int, make: Collection[Component]) -> bool:
        """Whether arrays of an image are missing, or its record is not as it would be."""
        inventory, recipe = self.inventory, self.settings.store.recipe
        recordable = not recipe.captions and not inventory.valid[number]  # without a caption
        update = number in inventory.other_columns or recordable
        return bool(make) or update or self.wants_text(number, make)

    def _failure(self, number: int, make: tuple[Component, ...]) -> tuple[str, str] | None:
        """Say why nothing can be made for an image, as far as that is known before the work."""
        inventory, source = self.inventory, self.inventory.sources[number]
        needed = self.settings.store.recipe.texts
        reads_picture = any(component.source == "image" for component in make)
        old = inventory.kept(number, make)
        if old and reads_picture and number in inventory.changed:
            is_again = not self.settings.recomputed.isdisjoint(make) and not self.settings.is_update
            fix = "add --drop-failed, and then use --update" if is_again else "use --update"
            return other_picture(old, fix)
        wants_text = self.wants_text(number, make)
        if wants_text and (field := inventory.missing_text(number)):
            self._textless += 1
            if known := self._earlier.of_picture(source):
                return known.reason, known.detail
            if field == CAPTION:
                return NO_CAPTION, "not in --captions, the record, or a .txt file beside it"
            return NO_CAPTION, f"no {field} in --captions or the record"
        shares_text = wants_text and source.shares_text and CAPTION in needed
        if shares_text and not self._sample(number, make).texts[CAPTION]:
            return shared_text(source)
        return None

    def _opened(self, number: int, make: tuple[Component, ...]) -> tuple[str, str] | None:
        """Say why an image would fail, as far as its texts and the head of its file show it."""
        sample = self._sample(number, make)
        try:
            read_texts(sample, self.settings.store.recipe.texts)
            if any(component.source == "image" for component in make):
                self._measure(sample.source.path)
        except (BadImageError, CaptionError) as error:
            return error.args[0], error.args[1]
        return None

    def _add(self, number: int, make: tuple[Component, ...]) -> None:
        """Plan what an image is missing."""
        inventory, path = self.inventory, self.inventory.sources[number].path
        self.numbers.append(number)
        self.texts += self.wants_text(number, make)
        for component in make:
            self.to_make[component] += 1
        for source, paths in self.updated.items():
            outdated = [c for c in self.settings.outdated.get(number, ()) if c.source == source]
            if inventory.missing(number, outdated):
                paths.append(path)
        if number in inventory.other_columns:
            self.updated_columns[path] = inventory.other_columns[number]
        edited = inventory.other_captions.get(number, ())
        again = inventory.missing(number, self.settings.recomputed) if edited else ()
        new = {c.field for c in again if c.source == "caption" and c.field in edited}
        self.replaced_captions += any(not inventory.keeps_text(number, f, again) for f in new)

    @property
    def work(self) -> list[Component]:
        """Name the components of which arrays are missing."""
        return [c for c in self.components if self.to_make[c]]

    @property
    def pictures(self) -> int:
        """Count the pictures to read, or fewer where the images lack different arrays."""
        return max((self.to_make[c] for c in self.work if c.source == "image"), default=0)

    def samples(self) -> Iterator[Sample]:
        """Give the samples to make, in the order of the images."""
        for number in self.numbers:
            yield self._sample(number, self.inventory.missing(number, self.components))

    def _sample(self, number: int, make: tuple[Component, ...]) -> Sample:
        record, row = self.inventory.record(number), self.inventory.given(number)
        texts = self._texts(number, make, record, row)
        return Sample(
            self.inventory.sources[number],
            make,
            record,
            self.inventory.facts(number),
            self.inventory.kept(number, make),
            wants_text=self.wants_text(number, make),
            texts=texts,
            columns={name: value for name, value in row.items() if name not in texts},
            caption_given=(CAPTION in row and texts[CAPTION] == row[CAPTION]) or None,
        )

    def _left_out(self, number: int, make: tuple[Component, ...]) -> tuple[str, str] | None:
        """Say why the recipe leaves an image out, as far as that is known before the work."""
        if not (make and self._selects) or self.inventory.is_recorded(number):
            return None
        recipe, known = self.settings.store.recipe, self.inventory.facts(number)
        by_picture = replace(recipe.selection, max_tokens_lost=None) != Selection()
        with suppress(BadImageError):  # it fails later, with its reason
            if by_picture and (
                why := left_out(self._measure(self.inventory.sources[number].path), recipe)
            ):
                return why
        if known is None or known.left_out is None or not self.wants_text(number, make):
            return None
        try:
            sample = self._sample(number, make)
            read_texts(sample, recipe.texts)
            if self.settings.digest(sample.texts) == known.left_out:
                require_kept(known.tokens_lost, recipe.selection.max_tokens_lost)
        except CaptionError as error:
            reason, detail = error.args
            return (reason, detail) if reason == TOO_LONG else None  # others fail later
        return None

    def _texts(
        self, number: int, make: Collection[Component], record: Record | None, row: Row
    ) -> dict[str, str | None]:
        """Choose an image's texts; None for one that is read beside it, or else in the record."""
        chosen = {}
        for field in dict.fromkeys((CAPTION, *self.settings.store.recipe.texts)):
            recorded, given = recorded_text(record, field), row.get(field)
            made = {c for c in make if c.source == "caption" and c.field == field}
            edited = field in self.inventory.other_captions.get(number, ())
            same = self.settings.is_update and not edited
            kept = self.inventory.keeps_text(number, field, make)
            if made & self.settings.recomputed and not (same or kept):
                chosen[field] = given  # or the text beside it, which may be why it is recomputed
            elif (made and not kept) or field not in self.settings.store.recipe.texts:
                chosen[field] = given or recorded
            else:  # an array was made from the text on record
                chosen[field] = recorded or given
        return chosen

    def wants_text(self, number: int, make: Collection[Component]) -> bool:
        """Whether an image's caption is to be tokenized: for an array, or for its record."""
        return any(
            c in make or not self.inventory.valid[number]
            for c in self.components
            if c.source == "caption"
        )

    def bytes_needed(self) -> dict[Component, int]:
        """Estimate the room that arrays will take, from some images."""
        needed = {}
        for component, count in self.to_make.items():
            shapes = [component.shape_for(0, 0)]
            if component.follows_picture:
                shapes = [component.shape_for(*size) for size in self._sizes(component)]
            elif component.trim and count:
                shapes = [(rows, *shapes[0][1:]) for rows in self._rows(component)]
            total = sum(component.nbytes(shape) + HEADER_BYTES for shape in shapes)
            if not component.is_array and component.extension != ".png":
                total //= _COMPRESSED
            needed[component] = total * count // max(1, len(shapes))
        return needed

    def _some(self, component: Component) -> list[int]:
        """Choose some of the images that have no array of a component."""
        numbers = [n for n in self.numbers if self.inventory.missing(n, [component])]
        return numbers[:: max(1, len(numbers) // _MEASURED)]

    def _rows(self, component: Component) -> Iterator[int]:
        encoder: Any = self.settings.encoders[component]
        for number in self._some(component):
            check()
            with suppress(CaptionError):
                row = self.inventory.given(number) or self.inventory.record(number) or {}
                text = row.get(component.field) or beside(self.inventory.sources[number])
                yield int(encoder.prepare(text or "").mask.sum())

    def _sizes(self, component: Component) -> Iterator[Size]:
        view = self.settings.view(component)
        for number in self._some(component):
            check()
            with suppress(BadImageError):
                yield view.frame(self._measure(self.inventory.sources[number].path)).size
