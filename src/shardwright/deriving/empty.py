"""The empty caption, for classifier-free guidance: encoded once for each text component."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from shardwright.deriving.batches import require_shape
from shardwright.deriving.commit import as_stored
from shardwright.deriving.images import Size
from shardwright.deriving.passes import Array, Pass
from shardwright.deriving.settings import InForce
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.store.arrays import write_arrays


def write_empty(
    through: Pass, components: Collection[Component], settings: InForce, progress: Progress
) -> None:
    """Encode the empty caption, and write the arrays and masks of some components of a pass."""
    if not components:
        return
    try:
        with at_once():
            tokens = through.prepare("")
            made = through.encode(tokens.ids[None], tokens.mask[None])
    except ShardwrightError:
        raise
    except Exception as error:  # a user's own encoder may not know what to do with it
        progress.warn(_nothing(through.name, str(error)))
        return
    group: list[tuple[Path, Array | bytes]] = []
    for component in components:
        (array,) = made[component]
        require_shape(component, array, Size(0, 0))
        masks = {component.mask.field: tokens.mask} if component.mask else {}
        found = as_stored(component, array, masks)
        if isinstance(found, str):
            progress.warn(_nothing(component.name, found))
            continue
        store = settings.store_of(component)
        group.append((store.empty(component.suffix), found))
        if component.mask is not None:
            group.append((store.empty(component.mask.suffix), np.array(tokens.mask, np.uint8)))
    for path, _ in group:
        files.make_folder(path.parent)
    write_arrays(group)


def _nothing(name: str, why: str) -> str:
    return f"{name}: no embedding of the empty caption: {why}"
