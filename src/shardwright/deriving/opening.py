"""Opening the store of a run: whether it can be there, its lock, and what a killed run has left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from shardwright.deriving import generations, naming
from shardwright.deriving.settings import Request
from shardwright.errors import UsageError
from shardwright.progress import Progress, quantity
from shardwright.storage import files, locks
from shardwright.storage.local import require_writable
from shardwright.storage.urls import is_within
from shardwright.store import facts, identity, rearrange
from shardwright.store.folders import holds_shards
from shardwright.store.journal import Journal
from shardwright.store.store import Store
from shardwright.text import shown


class Journals(NamedTuple):
    """What a run writes: its records, and what is known of images beside them."""

    records: Journal
    facts: Journal


def require_place(request: Request) -> None:
    """Raise before any work if a store cannot be where it is asked for."""
    store = request.store
    for folder in (store.folder, store.jsonl.parent):
        require_writable(folder)
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


@contextmanager
def opened(request: Request, progress: Progress) -> Iterator[Journals | None]:
    """Open the store for writing; a dry run writes nothing."""
    store = request.store
    if request.dry_run:
        if store.journal.exists():
            progress.warn(f"{store.journal}: left by a killed run; the next run merges it")
        if rearrange.is_under_way(store):
            note = rearrange.note_of(store)
            progress.warn(f"{note}: left by a killed run; the next run finishes it")
        yield None
        return
    with locks.lock(store.folder):
        files.make_folder(store.jsonl.parent)
        store.sync()
        with Journal(store.jsonl) as journal, Journal(facts.path_of(store)) as known:
            if journal.recovered is not None:
                count = quantity(journal.recovered.records, "records")
                progress.say(f"merged {count} of a killed run")
            if swapped := generations.finish(store):
                progress.say(f"finished the interrupted recompute of {' and '.join(swapped)}")
            if (counts := rearrange.finish(store)) is not None:
                renamed, removed = quantity(counts[0], "images"), f"{counts[1]:,}"
                done = f"{renamed} renamed, {removed} removed"
                progress.say(f"finished the interrupted run: {done}")
                naming.require_recorded(request)
            yield Journals(journal, known)
        identity.ensure(store)  # of the merged records, and not of a run that did not end
