"""What derive --update would do, found without any encoder."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shardwright.deriving import images, naming, sources
from shardwright.deriving.changes import find as find_changes
from shardwright.deriving.images import BadImageError
from shardwright.deriving.inventory import Inventory
from shardwright.deriving.outcomes import read_failures
from shardwright.deriving.views import left_out
from shardwright.errors import InputMissingError
from shardwright.progress import Progress
from shardwright.recipes import Recipe, Selection
from shardwright.reporting import Outlook
from shardwright.store.facts import absolute
from shardwright.store.store import Store
from shardwright.summary import Count


def outlook(store: Store, folder: str) -> Outlook | None:
    """Compare a store with the folder of its images; None if that has no images any more."""
    try:
        found = sources.find(Path(folder), Progress())
    except InputMissingError:
        return None
    found = naming.named(found, folder, store)
    changes = find_changes(found, folder, store)
    found = changes.named(found)
    inventory = Inventory(found, store, None, Progress(), renamed=changes.renamed)
    failed = {failure.image_path for failure in read_failures(store)}
    new = (
        source.path
        for number, source in enumerate(found)
        if not inventory.is_recorded(number)
        and number not in inventory.problems
        and inventory.missing_text(number) is None
        and absolute(source.path) not in failed
        and not _is_left_out(source.path, store.recipe)
    )
    outdated = inventory.outdated(store.recipe.components)

    def made_from(source: str) -> Count:
        of_it = (n for n, these in outdated.items() if any(c.source == source for c in these))
        return _count(found[number].path for number in of_it)

    names = changes.names(found).items()
    return Outlook(
        images=folder,
        new=_count(new),
        changed=made_from("image"),
        captions=made_from("caption"),
        renamed=_count(f"{old} to {now}" for old, now in names),
        gone=_count(changes.gone.values()),
        elsewhere=_count(changes.elsewhere.values()),
    )


def _count(paths: Iterable[str]) -> Count:
    listed = sorted(paths)
    return Count(len(listed), listed[0] if listed else "")


def _is_left_out(path: str, recipe: Recipe) -> bool:
    with suppress(BadImageError):
        return recipe.selection != Selection() and bool(left_out(images.measure(path), recipe))
    return False
