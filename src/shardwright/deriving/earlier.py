"""What an earlier version left in the middle of a recompute, and how derive finishes it.

It worked on the arrays in use, and noted how far it was in their entry: "removing" the old ones,
"making" others with new settings, or "replacing" them with the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from shardwright.recipe import Component, Recipe
from shardwright.storage import files
from shardwright.store.provenance import Entry
from shardwright.store.store import Store


def unfinished(entries: Mapping[str, Entry], recipe: Recipe) -> set[Component]:
    """Name the components that any run of derive recomputes."""
    left = {c: entries[c.name] for c in recipe.components if c.name in entries}
    states = ("removing", "making", "replacing")
    return {c for c, e in left.items() if e.recompute in states and not is_new(e, c)}


def is_new(entry: Entry | None, component: Component) -> bool:
    """Whether all arrays that are there are new, so that only those which are missing are made.

    Not if they were made from captions: one may have been edited since.
    """
    return entry is not None and entry.recompute == "making" and component.source == "image"


def may_mix(entry: Entry) -> bool:
    """Whether some arrays may be of the old settings, or of a caption that no record has."""
    return entry.recompute in ("removing", "making")


def settled(entries: Mapping[str, Entry], store: Store) -> dict[str, Entry]:
    """Give the entries without what means nothing any more, and remove such files."""
    settled = dict(entries)
    for component in store.recipe.components:
        if is_new(entries.get(component.name), component):
            settled[component.name] = replace(entries[component.name], recompute=None)
        files.withdraw(store.state / f"remade-{component.name}.jsonl")
    return settled
