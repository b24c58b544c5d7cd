"""The empty caption, for classifier-free guidance: encoded once for each text component."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from shardwright.deriving.batches import require_shape
from shardwright.deriving.images import Size
from shardwright.deriving.passes import Array, Pass
from shardwright.deriving.results import as_stored
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import Component


def encoded(
    through: Pass, components: Collection[Component], progress: Progress
) -> dict[str, Array]:
    """Encode the empty caption; give arrays and masks of some components of a pass, by suffix."""
    if not components:
        return {}
    try:
        with at_once():
            tokens = through.prepare("")
            made = through.encode(tokens.ids[None], tokens.mask[None])
    except ShardwrightError:
        raise
    except Exception as error:  # a user's own encoder may not know what to do with it
        progress.warn(_nothing(through.name, str(error)))
        return {}
    found: dict[str, Array] = {}
    for component in components:
        (array,) = made[component]
        require_shape(component, array, Size(0, 0))
        masks = {component.mask.field: tokens.mask} if component.mask else {}
        stored = as_stored(component, array, masks)
        if isinstance(stored, str):
            progress.warn(_nothing(component.name, stored))
            continue
        found[component.suffix] = stored
        if component.mask is not None:
            found[component.mask.suffix] = np.array(tokens.mask, np.uint8)
    return found


def _nothing(name: str, why: str) -> str:
    return f"{name}: no embedding of the empty caption: {why}"
