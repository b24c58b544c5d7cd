"""The request of a run, and the store that it is for: its lock, and what a killed run has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardwright import encoders
from shardwright.deriving import generations
from shardwright.encoders.base import every_gpu
from shardwright.errors import ProvenanceError, SourceChangedError, UsageError
from shardwright.progress import Progress, quantity
from shardwright.recipes import SPECIFICATION, Component, Recipe, RecipeFile
from shardwright.storage import files, steps
from shardwright.storage.place import place_at
from shardwright.storage.urls import is_within
from shardwright.store import facts, journal
from shardwright.store.journal import Journal
from shardwright.store.store import Store, holds_shards, make_identity, read_recipe
from shardwright.text import shown


@dataclass(frozen=True)
class Request:
    """What the user asked for, already checked."""

    images: Path
    store: Store  # with the recipe that is wanted
    used: Recipe | None  # the recipe of the store as it is
    file: RecipeFile
    captions: Mapping[str, Path]  # the files, by the folder that each is for
    remember: bool  # whether the store records this file, or that there is none
    encoders: encoders.Choice
    devices: tuple[str, ...]  # one or more, of one kind
    dtypes: Mapping[str, str]  # component name -> precision
    loaded: dict[Any, Any]  # what encoders share
    models: Mapping[str, str]  # component name -> id or path
    components: tuple[Component, ...]
    recompute: frozenset[Component]
    update: bool  # what changed
    prune: bool  # what is gone
    prune_below: Path | None  # where images were that are gone too
    discard: bool  # what an unfinished recompute has made
    trial: int | None  # derive only so many images, to see how long all will take
    drop_failed: bool  # the arrays of images that cannot be recomputed
    batch_size: int | None  # None for what fits into memory
    compile: bool
    ignore_space: bool
    dry_run: bool

    @property
    def renames(self) -> bool:
        """Whether renamed images keep their arrays."""
        return self.update or self.prune

    @property
    def captions_file(self) -> Path | None:
        """Give the captions file of all images, if there is one."""
        return self.captions.get(str(self.images))

    @property
    def are_ids_changed(self) -> bool:
        """Whether images get their ids in another way than those in the store."""
        return self.store.recipe.ids != (self.used.ids if self.used else "name")

    def require_place(self) -> None:
        """Raise before any work if a store cannot be where it is asked for."""
        store = self.store
        for folder in (store.folder, store.jsonl.parent):
            place_at(folder).require_writable()
        if store.jsonl.is_dir():
            fix = "give --jsonl the metadata file of the store"
            raise UsageError("is a folder", path=store.jsonl, fix=fix)
        if holds_shards(store.folder):
            fix = "give --derived-dir the store, or a new folder"
            raise UsageError("holds shards", path=store.folder, fix=fix)
        writes_pictures = any(not component.is_array for component in store.recipe.components)
        if writes_pictures and is_within(store.folder, self.images):
            what = f"is inside {shown(self.images)}, and the next run would derive its pictures too"
            raise UsageError(what, path=store.folder, fix="give another --derived-dir")

    def require_same_ids(self) -> None:
        """Raise if there are records whose ids come from elsewhere, and they are not updated."""
        store = self.store
        there = any(path.is_file() for path in (store.jsonl, store.journal, facts.path_of(store)))
        if store.recipe.ids == "captions" and not there and not self.captions:
            raise UsageError("--ids captions without --captions", fix="give the file with image_id")
        if self.are_ids_changed and there and not self.update:
            before = self.used.ids if self.used else "name"
            raise ProvenanceError(
                f"its image ids were made with --ids {before}, now {store.recipe.ids}",
                path=store.folder,
                fix=f"to go on as before, give --ids {before}; to rename the images, add --update",
            )


def all_devices(
    names: tuple[str, ...], choice: encoders.Choice, components: Iterable[Component]
) -> tuple[str, ...]:
    """Give the devices of a run: auto is every GPU, if there are several."""
    if len(names) > 1 and not isinstance(choice, str):
        what = "--device: encoders that are objects run in this process, on one device"
        fix = "name their class in the recipe (package.module:Class), or give one device"
        raise UsageError(what, fix=fix)
    models = any(c.encoder not in (None, encoders.PICTURE) for c in components)
    if names == ("auto",) and choice == "pretrained" and models:
        with suppress(ImportError):  # reported when a model is loaded
            gpus = every_gpu()
            return gpus if len(gpus) > 1 else names
    return names


class Journals(NamedTuple):
    """What a run writes: its records, and what is known of images beside them."""

    records: Journal
    facts: Journal


def is_begun(store: Store) -> bool:
    """Whether any run has ever written to the store."""
    return store.state.exists() or store.journal.exists()


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
def open_store(request: Request, progress: Progress) -> Iterator[Journals | None]:
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
