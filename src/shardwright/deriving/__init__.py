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
    images: StrPath | None = None,
    *,
    recipe: StrPath | None = None,
    derived_dir: StrPath | None = None,
    jsonl: StrPath | None = None,
    captions: StrPath | None = None,
    encoders: str | Mapping[str, Encoder] | None = None,
    model: Mapping[str, str] | None = None,
    components: Iterable[str] = (),
    recompute: Iterable[str] = (),
    drop_failed: bool = False,
    fit: str | None = None,
    decode: str | None = None,
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int | None = None,
    ignore_space: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DeriveSummary:
    """Make the missing arrays and records of the images below a folder.

    Arguments are named as the flags of ``shardwright derive``; ``model`` maps component names to
    model ids or folders, and ``encoders`` may also map them to your own encoders. What is not given
    is as the recipe says, or else as the store was made. What exists is left as it is;
    ``recompute`` replaces it once all of it is made. An image that cannot be derived is counted in
    the summary with its reason and does not stop the run. Raises ProvenanceError if a component was
    made with other settings before, InputMissingError (a FileNotFoundError) if there are no images
    or no captions, NoSpaceError if the arrays do not fit on the disk.
    """
    # Here, so that the package and its --help work without NumPy and Pillow.
    from shardwright.deriving.run import run
    from shardwright.deriving.settings import Request
    from shardwright.deriving.wanted import wanted
    from shardwright.encoders.base import Options
    from shardwright.recipes.keys import DECODES, FITS
    from shardwright.store.places import find_recipe

    validate.require_switches(ignore_space=ignore_space, dry_run=dry_run, drop_failed=drop_failed)
    if fit is not None and fit not in FITS:
        raise UsageError(f"--fit {fit}: unknown", fix=f"choose from {', '.join(FITS)}")
    if decode is not None and decode not in DECODES:
        raise UsageError(f"--decode {decode}: unknown", fix=f"choose from {', '.join(DECODES)}")
    options = Options(as_text("--device", device, "auto, cpu, cuda, cuda:N or mps"), dtype)
    model = {} if model is None else model
    validate.require_mapping("--model", model, "component names to models")
    model = {n: as_text(f"--model {n}", m, "a hub id or a folder") for n, m in model.items()}
    file = find_recipe(recipe)
    names = validate.names("--recompute", recompute)
    discard = names == [_DISCARD]
    store, used, choice, loaded = wanted(
        file,
        place("--derived-dir", file.paths["store"] if derived_dir is None else derived_dir),
        place_or_none("--jsonl", jsonl),
        fit=fit,
        decode=decode,
        models=model,
        choice=encoders,
        recompute=bool(names) and not discard,
    )
    made = store.recipe
    encodable = tuple(component for component in made.components if component.source != "elsewhere")
    chosen = _chosen(made, "--components", components) or encodable
    recomputed = () if discard else _chosen(made, "--recompute", names)
    _chosen(made, "--model", model)
    if choice == "sketch" and model:
        what = f"--model {next(iter(model))}=...: a sketch has no model"
        raise UsageError(what, fix="leave out --model")
    for component in recomputed:
        if component not in chosen:
            raise UsageError(f"--recompute {component.name}: is not among --components")
    request = Request(
        images=place("images", file.paths["images"] if images is None else images),
        store=store,
        used=used,
        file=file,
        captions=place_or_none("--captions", captions),
        encoders=choice,
        options=options,
        loaded=loaded,
        models=model,
        components=chosen,
        recompute=frozenset(recomputed),
        discard=discard,
        drop_failed=drop_failed,
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
    for name in sorted(wanted):
        if recipe.by_name[name].source == "elsewhere":
            what = f"{flag} {name}: the recipe has no encoder for it"
            raise UsageError(what, fix="make its arrays with your own tool, or give it an encoder")
    return tuple(component for component in recipe.components if component.name in wanted)
