"""The ids of images: from their file names, from their paths, or from the captions file."""

from __future__ import annotations

import os
from dataclasses import replace

from shardwright.deriving.captions import CaptionError
from shardwright.deriving.given import Given
from shardwright.deriving.recorded import on_record
from shardwright.deriving.settings import Request
from shardwright.deriving.sources import Source, sharing
from shardwright.errors import ProvenanceError, UsageError
from shardwright.store import facts
from shardwright.store.store import Store


def named(
    sources: list[Source],
    root: str,
    store: Store,
    captions: Given | None = None,
    *,
    keep: bool = True,
) -> list[Source]:
    """Give the images below a folder the ids that the recipe chooses; blank where there is none.

    An image whose path is on record keeps its id if the ids are made as before (``keep``): what
    is packed already goes by it.
    """
    how = store.recipe.ids
    if how == "name":
        return sources
    by_id = on_record(sources, store, root) if keep or how == "captions" else {}
    known = {number: image_id for image_id, number in by_id.items()}
    del by_id

    def chosen(number: int, source: Source) -> str:
        before = known.get(number, "")
        if how == "path":
            return before or spelt(source.path, root)
        return (keep and before) or given_id(source, captions) or before

    return [
        source if source.fault else replace(source, image_id=chosen(number, source))
        for number, source in enumerate(sharing(sources))
    ]


def is_changed(request: Request) -> bool:
    """Whether images get their ids in another way than those in the store."""
    return request.store.recipe.ids != (request.used.ids if request.used else "name")


def require_same(request: Request) -> None:
    """Raise if there are records whose ids come from elsewhere, and they are not updated."""
    store = request.store
    there = any(path.is_file() for path in (store.jsonl, store.journal, facts.path_of(store)))
    if store.recipe.ids == "captions" and not there and not request.captions:
        raise UsageError("--ids captions without --captions", fix="give the file with image_id")
    if is_changed(request) and there and not request.update:
        before = request.used.ids if request.used else "name"
        raise ProvenanceError(
            f"its image ids were made with --ids {before}, now {store.recipe.ids}",
            path=store.folder,
            fix=f"to go on as before, give --ids {before}; to rename the images, add --update",
        )


def spelt(path: str, root: str) -> str:
    """Write a path below a folder as a plain file name."""
    return os.path.relpath(path, root).replace("%", "%25").replace("/", "%2F")


def given_id(source: Source, captions: Given | None) -> str | None:
    """Give the id that the captions file has for an image."""
    try:
        return captions.image_id(source) if captions else None
    except CaptionError:  # reported as a failure
        return None
