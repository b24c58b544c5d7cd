"""Stage 2: from images and captions to a store of arrays and records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright import validate
from shardwright.deriving.summary import ComponentSummary, DeriveSummary
from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Progress
from shardwright.recipes import Component, Recipe
from shardwright.validate import as_text, integer, place, place_or_none

if TYPE_CHECKING:
    from shardwright.encoders.base import Encoder

__all__ = ["ComponentSummary", "DeriveSummary", "derive"]

StrPath = str | os.PathLike[str]

_NONE = "none"  # what --recompute takes to discard an unfinished one, and --captions to forget


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
    update: bool = False,
    prune: bool = False,
    prune_below: StrPath | None = None,
    trial: int | None = None,
    drop_failed: bool = False,
    fit: str | None = None,
    decode: str | None = None,
    ids: str | None = None,
    device: str = "auto",
    dtype: str | Mapping[str, str] | None = None,
    batch_size: int | None = None,
    compile: bool = False,  # noqa: A002 - as the flag
    ignore_space: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DeriveSummary:
    """Make the missing arrays and records of the images below a folder.

    Arguments are named as the flags of ``shardwright derive``; ``model`` maps component names to
    model ids or folders, ``dtype`` may map them to precisions, and ``encoders`` to your own
    encoders. What is not given is as the recipe says, or else as the store was made. The store
    remembers the file of ``captions``; "none" makes it forget it. What exists is left as it is;
    ``recompute`` replaces it once all of it is made, and ``update`` only what was made from files
    or captions that have changed. ``update`` and ``prune`` keep the arrays of renamed images;
    ``prune`` removes the records and arrays of those that are gone, and ``prune_below`` also those
    of images that were below another folder. ``trial`` derives only so many images, and forecasts
    what the others take. An image that cannot be derived is counted in the summary with its reason
    and does not stop the run. Raises ProvenanceError if a component was made with other settings
    before, InputMissingError (a FileNotFoundError) if there are no images, no captions or no
    remembered captions file, NoSpaceError if the arrays do not fit on the disk.
    """
    # Here, so that the package and its --help work without NumPy and Pillow.
    from shardwright.deriving.recipe import effective_recipe
    from shardwright.deriving.request import Request, all_devices, finish
    from shardwright.deriving.run import run
    from shardwright.encoders.base import Options, device_names
    from shardwright.engine.local import cores_used
    from shardwright.recipes.keys import DECODES, FITS, IDS
    from shardwright.store import paths, provenance
    from shardwright.store.store import Store, find_recipe, read_recipe, recorded

    validate.require_known("--fit", fit, FITS)
    validate.require_known("--decode", decode, DECODES)
    validate.require_known("--ids", ids, IDS)
    if trial is not None:
        integer("--trial", trial, least=1)
        for flag, given in (
            ("--dry-run", dry_run),
            ("--drop-failed", drop_failed),
            ("--prune", prune or prune_below is not None),
        ):
            if given:
                raise UsageError(f"--trial with {flag}", fix="give one of them")
    devices = device_names(as_text("--device", device, "auto, cpu, cpu:N, cuda, cuda:N or mps"))
    for each in dtype.values() if isinstance(dtype, Mapping) else (dtype,):
        Options(dtype=each)  # which refuses what is unknown
    model = {} if model is None else model
    validate.require_mapping("--model", model, "component names to models")
    model = {n: as_text(f"--model {n}", m, "a hub id or a folder") for n, m in model.items()}
    file = find_recipe(recipe)
    names = validate.names("--recompute", recompute)
    discard = names == [_NONE]
    if update and names:
        raise UsageError("--update with --recompute", fix="give one of them")
    derived = place("--derived-dir", file.paths["store"] if derived_dir is None else derived_dir)
    metadata, progress = place_or_none("--jsonl", jsonl), progress or Progress()
    finish(derived, metadata, progress, dry_run=dry_run)
    store = Store(derived, metadata or derived / JSONL_NAME)
    used = recorded(derived)
    # Without a file, a store continues as it was made, and a recompute as it was begun.
    begun = provenance.readable(store.next.folder) if names and not discard else {}
    start = (read_recipe(store.next.folder) if begun else None) or used
    if ids is None and used is not None and "images.ids" not in file.origins:
        ids = used.ids
    made, choice, loaded = effective_recipe(
        file,
        start,
        begun or provenance.readable(derived),
        fit=fit,
        decode=decode,
        ids=ids,
        models=model,
        choice=encoders,
    )
    store = replace(store, recipe=made)
    encodable = tuple(component for component in made.components if component.source != "elsewhere")
    chosen = _chosen(made, "--components", components) or encodable
    if update:
        _require_all_of_a_text(made, chosen)
    recomputed = () if discard else _chosen(made, "--recompute", names)
    _chosen(made, "--model", model)
    if isinstance(dtype, Mapping):
        _chosen(made, "--dtype", dtype)
    elif dtype is not None:
        dtype = {component.name: dtype for component in encodable}
    if choice == "sketch" and model:
        what = f"--model {next(iter(model))}=...: a sketch has no model"
        raise UsageError(what, fix="leave out --model")
    for component in recomputed:
        if component not in chosen:
            raise UsageError(f"--recompute {component.name}: is not among --components")
    folder = place("images", file.paths["images"] if images is None else images)
    asked = file.paths.get("captions") if captions is None else captions
    if asked is None or asked == _NONE:
        texts = paths.captions_of(folder, store, own=asked is None)
    else:
        texts = {str(folder): place("--captions", asked)}
    request = Request(
        images=folder,
        store=store,
        used=used,
        file=file,
        captions=texts,
        remember=asked is not None,
        encoders=choice,
        devices=all_devices(devices, choice, chosen),
        dtypes=dtype or {},
        loaded=loaded,
        models=model,
        components=chosen,
        recompute=frozenset(recomputed),
        update=update,
        prune=prune or prune_below is not None,
        prune_below=place_or_none("--prune-below", prune_below),
        discard=discard,
        trial=trial,
        drop_failed=drop_failed,
        batch_size=None if batch_size is None else integer("--batch-size", batch_size, least=1),
        compile=compile,
        ignore_space=ignore_space,
        dry_run=dry_run,
    )
    used_part = cores_used()
    summary = run(request, progress)
    summary.cores_used = round(used_part(), 4)
    return summary


def _require_all_of_a_text(recipe: Recipe, chosen: tuple[Component, ...]) -> None:
    """Raise if only some of the arrays that are made from one text would be updated."""
    fields = {component.field for component in chosen if component.source == "caption"}
    for component in recipe.captions:
        if component.field in fields and component not in chosen:
            field, name = component.field, component.name
            what = f"--update without {name}, which is made from the same {field}"
            raise UsageError(what, fix=f"add {name} to --components")


def _chosen(recipe: Recipe, flag: str, names: Iterable[str]) -> tuple[Component, ...]:
    """Find components by name, in the order of the recipe."""
    wanted, known = set(validate.names(flag, names)), recipe.by_name
    for name in sorted(wanted):
        if name not in known:
            fix = f"choose from {', '.join(known)}"
            raise UsageError(f"{flag} {name}: no such component", fix=fix)
        if known[name].source == "elsewhere":
            what = f"{flag} {name}: the recipe has no encoder for it"
            raise UsageError(what, fix="make its arrays with your own tool, or give it an encoder")
    return tuple(component for component in recipe.components if component.name in wanted)
