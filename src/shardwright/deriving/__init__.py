"""Stage 2: from images and captions to a store of arrays and records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shardwright import validate
from shardwright.deriving.summary import ComponentSummary, DeriveSummary
from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.progress import Progress
from shardwright.recipes import Component, Recipe
from shardwright.validate import as_text, integer, place, place_or_none

if TYPE_CHECKING:
    from shardwright.encoders.base import Encoder

__all__ = ["ComponentSummary", "DeriveSummary", "derive"]

StrPath = str | os.PathLike[str]

_DISCARD = "none"  # what --recompute takes to discard an unfinished one


@entry
def derive(
    images: StrPath = "data/approved",
    *,
    derived_dir: StrPath = "data/derived",
    jsonl: StrPath | None = None,
    captions: StrPath | None = None,
    encoders: str | Mapping[str, Encoder] = "pretrained",
    model: Mapping[str, str] | None = None,
    components: Iterable[str] = (),
    recompute: Iterable[str] = (),
    drop_failed: bool = False,
    fit: str = "original",
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int | None = None,
    ignore_space: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DeriveSummary:
    """Make the missing arrays and records of the images below a folder.

    Arguments are named as the flags of ``shardwright derive``; ``model`` maps component names to
    model ids or folders, and ``encoders`` may also map them to your own encoders. What exists is
    left as it is; ``recompute`` replaces it once all of it is made. An image that cannot be derived
    is counted in the summary with its reason and does not stop the run. Raises ProvenanceError if a
    component was made with other settings before, InputMissingError (a FileNotFoundError) if there
    are no images or no captions, NoSpaceError if the arrays do not fit on the disk.
    """
    # Here, so that the package and its --help work without NumPy and Pillow.
    from shardwright.deriving.images import FITS
    from shardwright.deriving.run import run
    from shardwright.deriving.settings import Request
    from shardwright.encoders import require_choice
    from shardwright.encoders.base import Options
    from shardwright.store.store import Store

    validate.require_switches(ignore_space=ignore_space, dry_run=dry_run, drop_failed=drop_failed)
    if fit not in FITS:
        raise UsageError(f"--fit {fit}: unknown", fix=f"choose from {', '.join(FITS)}")
    require_choice(encoders)
    model = {} if model is None else model
    validate.require_mapping("--model", model, "component names to models")
    store = Store.at(place("--derived-dir", derived_dir), place_or_none("--jsonl", jsonl))
    chosen = _chosen(store.recipe, "--components", components) or store.recipe.components
    names = validate.names("--recompute", recompute)
    discard = names == [_DISCARD]
    recomputed = () if discard else _chosen(store.recipe, "--recompute", names)
    _chosen(store.recipe, "--model", model)
    for component in recomputed:
        if component not in chosen:
            raise UsageError(f"--recompute {component.name}: is not among --components")
    request = Request(
        images=place("images", images),
        store=store,
        captions=place_or_none("--captions", captions),
        encoders=encoders,
        options=Options(as_text("--device", device, "auto, cpu, cuda, cuda:N or mps"), dtype),
        models={n: as_text(f"--model {n}", m, "a hub id or a folder") for n, m in model.items()},
        components=chosen,
        recompute=frozenset(recomputed),
        discard=discard,
        drop_failed=drop_failed,
        fit=fit,
        batch_size=None if batch_size is None else integer("--batch-size", batch_size, least=1),
        ignore_space=ignore_space,
        dry_run=dry_run,
    )
    return run(request, progress or Progress())


def _chosen(recipe: Recipe, flag: str, names: Iterable[str]) -> tuple[Component, ...]:
    """Find components by name, in the order of the recipe."""
    wanted = set(validate.names(flag, names))
    known = [component.name for component in recipe.components]
    for name in sorted(wanted.difference(known)):
        raise UsageError(f"{flag} {name}: no such component", fix=f"choose from {', '.join(known)}")
    return tuple(component for component in recipe.components if component.name in wanted)
