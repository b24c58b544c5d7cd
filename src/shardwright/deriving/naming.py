"""The ids of images: from their file names, from their paths, or from the captions file."""

from __future__ import annotations

import os
from dataclasses import replace

from shardwright.deriving.captions import CaptionError, Captions
from shardwright.deriving.settings import Request
from shardwright.deriving.sources import Source
from shardwright.errors import ProvenanceError, SourceChangedError
from shardwright.store import facts, records
from shardwright.store.store import Store, recorded


def named(
    sources: list[Source], root: str, store: Store, captions: Captions | None = None
) -> list[Source]:
    """Give the images below a folder the ids that the recipe chooses; blank where there is none."""
    how = store.recipe.ids
    if how == "path":
        return [
            source if source.fault else replace(source, image_id=_spelt(source.path, root))
            for source in sources
        ]
    if how == "captions":
        known = _on_record(store)
        return [
            source
            if source.fault
            else replace(
                source,
                image_id=_given(source, captions) or known.get(facts.absolute(source.path), ""),
            )
            for source in sources
        ]
    return sources


def is_changed(request: Request) -> bool:
    """Whether images get their ids in another way than those in the store."""
    return request.store.recipe.ids != (request.used.ids if request.used else "name")


def require_same(request: Request) -> None:
    """Raise if there are records whose ids come from elsewhere, and they are not updated."""
    store = request.store
    there = any(path.is_file() for path in (store.jsonl, store.journal, facts.path_of(store)))
    if is_changed(request) and there and not request.update:
        before = request.used.ids if request.used else "name"
        raise ProvenanceError(
            f"its image ids were made with --ids {before}, now {store.recipe.ids}",
            path=store.folder,
            fix=f"to go on as before, give --ids {before}; to rename the images, add --update",
        )


def require_recorded(request: Request) -> None:
    """Raise if an interrupted run, which is finished now, has given the images other ids."""
    recipe = recorded(request.store.folder)
    if recipe is not None and recipe.ids != request.store.recipe.ids:
        raise SourceChangedError(
            f"an interrupted run has renamed its images (--ids {recipe.ids}), which is finished",
            path=request.store.folder,
            fix="run the same command again",
        )


def _spelt(path: str, root: str) -> str:
    """Write a path below a folder as a plain file name."""
    return os.path.relpath(path, root).replace("%", "%25").replace("/", "%2F")


def _given(source: Source, captions: Captions | None) -> str | None:
    try:
        return captions.image_id(source) if captions else None
    except CaptionError:  # reported as a failure
        return None


def _on_record(store: Store) -> dict[str, str]:
    """Map the paths of images on record to their ids."""
    found = {}
    for _, names in records.walk(store.jsonl, records.names):
        if isinstance(names.image_id, str) and isinstance(names.image_path, str):
            found[facts.absolute(names.image_path)] = names.image_id
    known = ((entry.image_id, entry.image) for _, entry in facts.read(store))
    return found | {image.path: image_id for image_id, image in known if image is not None}
