"""What derive --update would do, found without any encoder."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from shardwright.deriving import sources
from shardwright.deriving.captions import CAPTION, CaptionError, CaptionFiles, beside
from shardwright.deriving.changes import find as find_changes
from shardwright.deriving.decoders import Heads
from shardwright.deriving.images import BadImageError
from shardwright.deriving.inventory import Inventory
from shardwright.deriving.outcomes import EarlierFailures
from shardwright.deriving.prepare import Measuring
from shardwright.deriving.recorded import Moves, with_ids
from shardwright.deriving.settings import digest
from shardwright.deriving.views import left_out
from shardwright.errors import InputMissingError, ShardwrightError, StorageError
from shardwright.progress import Progress
from shardwright.recipes import Selection
from shardwright.reporting import Outlook
from shardwright.store import commands, paths, provenance
from shardwright.store.facts import Facts
from shardwright.store.store import Store
from shardwright.summary import Count


class _Quiet(Progress):
    """Shows how far the work is, without the warnings that derive gives."""

    def __init__(self, progress: Progress) -> None:
        self.phase, self.advance = progress.phase, progress.advance  # type: ignore[method-assign]


def outlook(
    store: Store,
    folder: str,
    progress: Progress,
    file: Path | None = None,
    others: Collection[str] = (),
    listed: Collection[str] = (),
) -> tuple[Outlook, list[str]] | None:
    """Compare a store with a folder of its images, and list the images that are gone.

    Captions are read from the file, else from those of the last derive. None if the folder has no
    images any more, or cannot be read. What is gone from ``other`` folders is not listed, nor
    what is ``listed`` already.
    """
    progress = _Quiet(progress)
    try:
        found = sources.find(Path(folder), progress)
    except (InputMissingError, StorageError):
        return None
    given, problem, is_gone = None, None, False
    try:
        texts = {folder: file} if file else paths.captions_of(Path(folder), store)
        given = CaptionFiles(texts, found, store.recipe) if texts else None
    except ShardwrightError as error:  # with which derive would stop
        problem = str(error)
        missing = isinstance(error, InputMissingError) and not os.path.exists(error.path or "")
        is_gone = missing and not _is_gone_below(folder, store)
    found = with_ids(found, folder, store, given)
    changes = find_changes(found, folder, store, progress)
    found = changes.with_recorded_ids(found)
    inventory = Inventory(found, store, given, progress, update=True, renamed=changes.renamed)
    outdated = inventory.outdated(store.recipe.components)
    new = store.next
    inventory.update(outdated, new if _is_updated(new) else None)

    def reads_beside(number: int) -> bool:
        return CAPTION in store.recipe.texts and not inventory.given(number).get(CAPTION)

    with Heads() as measure:
        left = _Left(store, measure, changes.moves)
        fresh = [
            source.path
            for number, source in enumerate(found)
            if not inventory.is_recorded(number)
            and number not in inventory.problems
            and inventory.missing_text(number) is None
            and not (source.shares_text and reads_beside(number))
            and not left.stays(source, inventory.facts(number), reads_beside(number))
        ]

    def made_from(source: str) -> Count:
        return _count(
            found[number].path
            for number, these in outdated.items()
            if inventory.missing(number, [c for c in these if c.source == source])
        )

    starts = tuple(os.path.join(os.path.abspath(other), "") for other in others)
    kept = changes.undecided.values()
    undecided = sorted(p for p in kept if not p.startswith(starts) and p not in listed)
    names = changes.names(found).items()
    planned = Outlook(
        images=folder,
        new=_count(fresh),
        changed=made_from("image"),
        captions=made_from("caption"),
        columns=_count(
            f"{', '.join(names)} of {found[number].path}"
            for number, names in inventory.other_columns.items()
            if number not in inventory.problems
        ),
        renamed=_count(f"{old} to {now}" for old, now in names),
        gone=_count(changes.gone.values()),
        elsewhere=_count(undecided),
        captions_file=given.summed().file if given else None,
        captions_problem=problem,
        captions_gone=is_gone,
        undecided=undecided,
        prune_command=(
            commands.prune_below(store, folder, undecided, update=True) if undecided else None
        ),
    )
    return planned, sorted([*changes.gone.values(), *undecided])


def _is_gone_below(folder: str, store: Store) -> bool:
    """Whether the captions file of a folder below is gone, which only that folder can forget."""
    try:
        paths.captions_of(Path(folder), store, own=False)
    except InputMissingError:
        return True
    return False


def _is_updated(new: Store) -> bool:
    return provenance.is_update(provenance.readable(new.folder))


def _count(paths: Iterable[str]) -> Count:
    listed = sorted(paths)
    return Count(len(listed), listed[0] if listed else "")


class _Left:
    """The images without a record that an update would not derive either."""

    def __init__(self, store: Store, measure: Measuring, moves: Moves) -> None:
        self.recipe, self.measure = store.recipe, measure
        self.failed = EarlierFailures(store, moves)
        texts = {component.name for component in store.recipe.captions}
        entries = provenance.readable(store.folder)
        self.encoders = {str(entries[n].settings.get("encoders")) for n in texts & entries.keys()}

    def stays(self, source: sources.Source, known: Facts | None, reads_beside: bool) -> bool:
        """Whether an image has failed and not changed since, or is left out by the recipe."""
        if self.failed.stays(source, reads_beside=reads_beside):
            return True
        if known is not None and known.left_out is not None:
            return self._is_same(source, known)
        with suppress(BadImageError):
            selects = self.recipe.selection != Selection()
            return selects and bool(left_out(self.measure(source.path), self.recipe))
        return False

    def _is_same(self, source: sources.Source, known: Facts) -> bool:
        """Whether the caption is the one for which an image was left out."""
        if known.caption_given is not False or self.recipe.texts != (CAPTION,):
            return True  # it is in a captions file
        with suppress(CaptionError):
            texts = {CAPTION: beside(source)}
            return known.left_out in {digest(self.recipe, e, texts) for e in self.encoders}
        return True
