"""What is to be done: which arrays are missing for which images, and the room they will take."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shardwright.deriving.captions import CAPTION, CaptionError, Row, beside, shared_text
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.moves import Moves
from shardwright.deriving.outcomes import NO_CAPTION, Earlier, Outcomes
from shardwright.deriving.prepare import (
    Measuring,
    Sample,
    other_picture,
    read_texts,
    require_kept,
)
from shardwright.deriving.recorded import recorded_text
from shardwright.deriving.settings import InForce
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
        settings: InForce,
        outcomes: Outcomes,
        progress: Progress,
        measure: Measuring,
        moves: Moves,
    ) -> None:
        """Sort the images into failed, complete and incomplete."""
        self._measure = measure
        inventory, components = settings.inventory, settings.request.components
        self.settings, self.inventory, self.components = settings, inventory, components
        self.numbers = array("Q")
        self.texts = 0  # captions to be tokenized
        self.changed: list[str] = []  # images whose arrays show an earlier file
        self.to_make = dict.fromkeys(components, 0)
        names = self._names = [component.name for component in components]
        earlier, textless = Earlier(settings.store, moves), 0
        selective = settings.store.recipe.selection != Selection()
        recordable = not settings.store.recipe.captions  # without a caption
        if selective:
            progress.phase("select", len(inventory.sources), "images")
        for number, source in enumerate(inventory.sources):
            check()
            progress.advance(selective)
            if number in inventory.problems:
                outcomes.fail(source, *inventory.problems[number], names)
                continue
            make = inventory.missing(number, components)
            if (
                make
                and selective
                and not inventory.is_recorded(number)
                and (why := self._left_out(number, make))
            ):
                outcomes.leave_out(source, *why)
                continue
            wants_text = self.wants_text(number, make)
            if inventory.is_outdated(number, make):
                self.changed.append(source.path)
            if (old := inventory.kept(number, make)) and self._is_new_picture(number, make):
                outcomes.fail(source, *other_picture(old, self._way_out(make)), names)
                continue
            update = number in inventory.other_columns
            update |= recordable and not inventory.valid[number]
            if wants_text and (field := inventory.missing_text(number)):
                textless += 1
                failure = (NO_CAPTION, _nowhere(field))
                if known := earlier.of_picture(source):
                    failure = (known.reason, known.detail)
                outcomes.fail(source, *failure, names)
            elif wants_text and source.shares_text and self._reads_beside(number, make):
                outcomes.fail(source, *shared_text(source), names)
            elif not (make or wants_text or update):
                outcomes.complete += 1
            else:
                self.numbers.append(number)
                self.texts += wants_text
                for component in make:
                    self.to_make[component] += 1
        if textless == len(inventory.sources):
            field = next(filter(None, map(inventory.missing_text, range(len(inventory.sources)))))
            beside_it = ", or write name.txt beside name.jpg" * (field == CAPTION)
            raise InputMissingError(
                f"has no {field}, and no other image has one",
                path=outcomes.failures[0].image_path,
                fix=f"give --captions FILE{beside_it}",
            )

    def foresee(self, outcomes: Outcomes, progress: Progress) -> None:
        """Find what would fail, as far as texts and the heads of files show it, for a dry run."""
        progress.phase("look at images", len(self.numbers), "images")
        left = array("Q")
        for number in self.numbers:
            check()
            progress.advance(1)
            make = self.inventory.missing(number, self.components)
            try:
                sample = self._sample(number, make)
                read_texts(sample, self.settings.store.recipe.texts)
                if any(component.source == "image" for component in make):
                    self._measure(sample.source.path)
            except (BadImageError, CaptionError) as error:
                reason, detail = error.args
                outcomes.fail(self.inventory.sources[number], reason, detail, self._names)
                self.texts -= self.wants_text(number, make)
                for component in make:
                    self.to_make[component] -= 1
            else:
                left.append(number)
        self.numbers = left

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

    def _is_new_picture(self, number: int, make: tuple[Component, ...]) -> bool:
        """Whether arrays would be made from another picture than the one on record."""
        seen = any(component.source == "image" for component in make)
        return seen and number in self.inventory.changed

    def _way_out(self, make: tuple[Component, ...]) -> str:
        if self.settings.recomputed.isdisjoint(make) or self.settings.is_update:
            return "use --update"
        return "add --drop-failed, and then use --update"

    def _reads_beside(self, number: int, make: tuple[Component, ...]) -> bool:
        """Whether the caption of an image is the one in the text file beside it."""
        needed = CAPTION in self.settings.store.recipe.texts
        return needed and not self._sample(number, make).texts[CAPTION]

    def _left_out(self, number: int, make: tuple[Component, ...]) -> tuple[str, str] | None:
        """Say why the recipe leaves an image out, as far as that is known before the work."""
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

    def updated(self, source: str) -> list[str]:
        """Give the paths of the images whose arrays are updated, of their pictures or captions."""
        found = []
        for number in self.numbers:
            outdated = [c for c in self.settings.outdated.get(number, ()) if c.source == source]
            if self.inventory.missing(number, outdated):
                found.append(self.inventory.sources[number].path)
        return found

    def updated_columns(self) -> dict[str, list[str]]:
        """Name the columns that change in records, by the paths of their images."""
        columns, sources = self.inventory.other_columns, self.inventory.sources
        return {sources[n].path: columns[n] for n in self.numbers if n in columns}

    def replaced_captions(self) -> int:
        """Count the captions on record that are replaced, as their arrays are recomputed."""
        planned, found = set(self.numbers), 0
        for number, fields in self.inventory.other_captions.items():
            make = self.inventory.missing(number, self.settings.recomputed)
            new = {c.field for c in make if c.source == "caption"} & fields
            new = {field for field in new if not self.inventory.keeps_text(number, field, make)}
            found += number in planned and bool(new)
        return found

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


def _nowhere(field: str) -> str:
    if field == CAPTION:
        return "not in --captions, the record, or a .txt file beside it"
    return f"no {field} in --captions or the record"
