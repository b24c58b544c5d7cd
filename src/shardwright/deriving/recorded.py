"""What a store has on record of images, and which images here these are."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace

from shardwright import regular
from shardwright.deriving.captions import CaptionFiles
from shardwright.deriving.images import Size
from shardwright.deriving.moves import NOT_MOVED, Moves, is_one_file, recognise
from shardwright.deriving.sources import Source, contested, sharing, spelt
from shardwright.storage import files
from shardwright.storage.paths import above, absolute, exists
from shardwright.store import facts, records
from shardwright.store.records import Record
from shardwright.store.rules import is_side
from shardwright.store.store import Store


def recorded_text(record: Record | None, field: str) -> str | None:
    """Give a text of a record, if it has one."""
    text = record.get(field) if record else None
    return text if isinstance(text, str) and text.strip() else None


def recorded_size(record: Record | None) -> Size | None:
    """Give the size of the picture in a record, if it has one."""
    width, height = (record or {}).get("width"), (record or {}).get("height")
    return Size(width, height) if is_side(width) and is_side(height) else None


def id_of(record: Record) -> str:
    """Give the image id of a record; blank if there is none."""
    image_id, path = record.get("image_id"), record.get("image_path")
    if image_id is None and isinstance(path, str):  # as in Stage 1
        image_id = records.image_id_of(path)
    return image_id if isinstance(image_id, str) else ""


def record_at(store: Store, offset: int) -> Record:
    """Read the record of a line again."""
    with files.explained(store.jsonl), regular.opened(store.jsonl) as file:
        file.seek(offset)
        return records.parse(file.readline().rstrip(b"\r\n"))


def owners(sources: list[Source], store: Store) -> dict[str, Source]:
    """Find the image on record for each id that several images have."""
    shared = contested(sources)
    placed = on_record(sources, store) if shared else {}
    owners = {image_id: sources[n] for image_id, n in placed.items() if image_id in shared}
    for _, record in records.walk(store.jsonl, records.parse) if shared else ():
        image_id, path = id_of(record), record.get("image_path")
        if image_id in shared and image_id not in owners and isinstance(path, str):
            those = [s for s in shared[image_id] if not other_image(path, s.path)]
            exact = [s for s in those if os.path.normpath(s.path) == os.path.normpath(path)]
            if len(exact or those) == 1:
                owners[image_id] = (exact or those)[0]
    return owners


def on_record(sources: list[Source], store: Store, folder: str | None = None) -> dict[str, int]:
    """Give the number of each image whose path is on record, by its id there.

    With ``folder``, that of the images, also if it has moved since.
    """
    at = {absolute(s.path): number for number, s in enumerate(sources) if not s.fault}
    found = {}
    for _, names in records.walk(store.jsonl, records.names):
        path = absolute(names.image_path) if isinstance(names.image_path, str) else ""
        if path in at and isinstance(names.image_id, str):
            found[names.image_id] = at[path]
    moves = NOT_MOVED if folder is None else _moves(at, absolute(folder), store)
    for _, entry in facts.read(store):  # a path in a record may be relative to another folder
        if entry.image is not None:
            found.pop(entry.image_id, None)
            path = moves.now(entry.image.path) or entry.image.path
            if path in at:
                found[entry.image_id] = at[path]
    return found


def with_ids(
    sources: list[Source],
    root: str,
    store: Store,
    captions: CaptionFiles | None = None,
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
    placed = on_record(sources, store, root) if keep or how == "captions" else {}
    known = {number: image_id for image_id, number in placed.items()}

    def chosen(number: int, source: Source) -> str:
        before = known.get(number, "")
        if how == "path":
            return before or spelt(source.path, root)
        return (keep and before) or (captions and captions.image_id(source)) or before

    return [
        source if source.fault else replace(source, image_id=chosen(number, source))
        for number, source in enumerate(sharing(sources))
    ]


def _moves(at: Collection[str], folder: str, store: Store) -> Moves:
    """Find the folders that have moved, whatever the ids of their images are."""
    tails = {path[len(folder) :] for path in at}
    old = (e.image.path for _, e in facts.read(store) if e.image and e.image.path not in at)
    roots = {
        each
        for path in old
        for each in above(os.path.dirname(path))
        if os.path.basename(each) == os.path.basename(folder) and path[len(each) :] in tails
    }
    return recognise(roots, folder, store)


def other_image(recorded: object, path: str) -> str | None:
    """Give the image of a record, if it is not this one.

    The same file by another path is this one. So is a file of the same name if the recorded one
    does not exist: folders are moved.
    """
    if not isinstance(recorded, str) or os.path.normpath(recorded) == os.path.normpath(path):
        return None
    if os.path.basename(recorded) == os.path.basename(path) and not exists(recorded):
        return None
    return None if is_one_file(recorded, path) else recorded
