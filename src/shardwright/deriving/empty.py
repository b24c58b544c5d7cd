"""The empty caption, which guidance without a classifier needs: encoded once for each component."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from shardwright.deriving.batches import require_shape
from shardwright.deriving.commit import trimmed
from shardwright.deriving.images import Size
from shardwright.deriving.passes import Pass
from shardwright.deriving.settings import InForce
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.store.arrays import stored, write_arrays


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
        progress.warn(f"{through.name}: no embedding of the empty caption: {error}")
        return
    group = []
    for component in components:
        (array,) = made[component]
        require_shape(component, array, Size(0, 0))
        if component.trim:
            array = trimmed(array, tokens.mask)
        store = settings.store_of(component)
        group.append((store.empty(component.suffix), stored(array, component)))
        if component.mask is not None:
            group.append((store.empty(component.mask.suffix), np.array(tokens.mask, np.uint8)))
    for path, _ in group:
        files.make_folder(path.parent)
    write_arrays(group)
