"""Opening the store of a run: whether it fits, its lock, and what a killed run has left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shardwright.deriving import generations
from shardwright.deriving.settings import Request
from shardwright.errors import ProvenanceError, SourceChangedError, UsageError
from shardwright.progress import Progress, quantity
from shardwright.recipes import SPECIFICATION
from shardwright.storage import files, steps
from shardwright.storage.place import place_at
from shardwright.storage.urls import is_within
from shardwright.store import facts, journal
from shardwright.store.journal import Journal
from shardwright.store.store import Store, holds_shards, make_identity, read_recipe
from shardwright.text import shown


class Journals(NamedTuple):
    """What a run writes: its records, and what is known of images beside them."""

    records: Journal
    facts: Journal


def require_place(request: Request) -> None:
    """Raise before any work if a store cannot be where it is asked for."""
    store = request.store
    for folder in (store.folder, store.jsonl.parent):
        place_at(folder).require_writable()
    if store.jsonl.is_dir():
        fix = "give --jsonl the metadata file of the store"
        raise UsageError("is a folder", path=store.jsonl, fix=fix)
    if holds_shards(store.folder):
        fix = "give --derived-dir the store, or a new folder"
        raise UsageError("holds shards", path=store.folder, fix=fix)
    writes_pictures = any(not component.is_array for component in store.recipe.components)
    if writes_pictures and is_within(store.folder, request.images):
        what = f"is inside {shown(request.images)}, and the next run would derive its pictures too"
        raise UsageError(what, path=store.folder, fix="give another --derived-dir")


def is_begun(store: Store) -> bool:
    """Whether any run has ever written to the store."""
    return store.state.exists() or store.journal.exists()


def are_ids_changed(request: Request) -> bool:
    """Whether images get their ids in another way than those in the store."""
    return request.store.recipe.ids != (request.used.ids if request.used else "name")


def require_same_ids(request: Request) -> None:
    """Raise if there are records whose ids come from elsewhere, and they are not updated."""
    store = request.store
    there = any(path.is_file() for path in (store.jsonl, store.journal, facts.path_of(store)))
    if store.recipe.ids == "captions" and not there and not request.captions:
        raise UsageError("--ids captions without --captions", fix="give the file with image_id")
    if are_ids_changed(request) and there and not request.update:
        before = request.used.ids if request.used else "name"
        raise ProvenanceError(
            f"its image ids were made with --ids {before}, now {store.recipe.ids}",
            path=store.folder,
            fix=f"to go on as before, give --ids {before}; to rename the images, add --update",
        )


def finish(folder: Path, jsonl: Path | None, progress: Progress, *, dry_run: bool) -> None:
    """Finish what an interrupted run was changing in a store, before anything of it is read."""
    if (what := steps.under_way(folder)) is None:
        return
    if dry_run:
        fix = "to finish it, run the same command without --dry-run"
        raise ProvenanceError(f"the {what} was interrupted", path=folder, fix=fix)
    used, begun = read_recipe(folder), read_recipe(Store(folder, folder).next.folder)
    recipes = (SPECIFICATION, used or SPECIFICATION, begun or SPECIFICATION)
    arrays = [folder / component.folder for recipe in recipes for component in recipe.components]
    records = [] if jsonl is None else [journal.target(jsonl), journal.unfinished(jsonl)]
    with place_at(folder).lease():
        if steps.finish(folder, [*arrays, *records]):
            progress.say(f"finished the interrupted {what}")


@contextmanager
def opened(request: Request, progress: Progress) -> Iterator[Journals | None]:
    """Open the store for writing; a dry run writes nothing."""
    store = request.store
    if request.dry_run:
        if store.journal.exists():
            progress.warn(f"{store.journal}: left by a killed run; the next run merges it")
        yield None
        return
    with place_at(store.folder).lease():
        if steps.under_way(store.folder):  # since it was finished, when this run began
            what, fix = "another run was interrupted here", "run the same command again"
            raise SourceChangedError(what, path=store.folder, fix=fix)
        files.make_folder(store.jsonl.parent)
        store.sync()
        with Journal(store.jsonl) as journal, Journal(facts.path_of(store)) as known:
            if journal.recovered is not None:
                count = quantity(journal.recovered.records, "records")
                progress.say(f"merged {count} of a killed run")
            generations.recover(store)
            yield Journals(journal, known)
        make_identity(store)  # of the merged records, and not of a run that did not end
