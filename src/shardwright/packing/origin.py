"""Whether the samples of a store may lie beside those of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.errors import ProvenanceError, UsageError
from shardwright.packing import again
from shardwright.progress import Progress
from shardwright.shards.format import consistency
from shardwright.shards.format.manifest import Manifest
from shardwright.shards.format.parts import top_folder
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, relative_name
from shardwright.store.commands import quoted
from shardwright.store.provenance import Entry
from shardwright.store.store import Store

_DIGITS = 12  # of an identity, in an error


def jsonl_name(store: Store) -> str:
    """Give the path of the JSONL as a run records it."""
    return relative_name(store.jsonl, store.folder)


def require_same_store(
    store: Store, own: str | None, known: Sequence[str], output: Location, top: Location
) -> None:
    """Raise if shards that stay, or the run to resume, are of a store with another identity."""
    if not known or own in known:
        return
    fix = "give another --output-dir"
    if place_at(output).can_replace:
        fix = f"to replace its shards, run {again.overwrite(store, top)}; or {fix}"
    is_other = f" (identity {own[:_DIGITS]})" if own else ", which has no identity"
    raise UsageError(
        f"was packed from another store (identity {known[-1][:_DIGITS]}), not from "
        f"{store.folder}{is_other}, so nothing was written",
        path=output,
        fix=fix,
    )


def require_same_jsonl(store: Store, known: Sequence[str], output: Location) -> None:
    """Raise if the shards were packed from other JSONLs, which may hold out samples."""
    if known and jsonl_name(store) not in known:
        before = [str(store.of(name).jsonl) for name in known]
        raise UsageError(
            f"was packed from {' and '.join(before)}, not from {store.jsonl}, so nothing was "
            "written",
            path=output,
            fix=f"give --jsonl {quoted(before[-1])}, or add --other-jsonl to pack from both",
        )


def require_one_jsonl(store: Store, known: Sequence[str], output: Location, top: Location) -> None:
    """Raise if shards were packed from other JSONLs too: their samples are not in this one."""
    if others := [str(store.of(name).jsonl) for name in known if name != jsonl_name(store)]:
        raise UsageError(
            f"was also packed from {' and '.join(others)}, and --sync follows one JSONL",
            path=output,
            fix="add --other-jsonl to remove what is not in this one, or run "
            f"{again.overwrite(store, top)}",
        )


def require_same_kind(
    store: Store, entries: Mapping[str, Entry], base: Manifest, output: Location, progress: Progress
) -> None:
    """Raise if the store's arrays were made with other settings than those of the shards kept.

    Where the settings are not recorded, warn.
    """
    if not base.shards:
        return
    if not base.jsonls() and not all(run.is_build for run in base.runs):
        progress.warn(
            f"{output}: the manifest does not name the JSONL of its shards; if it was only a part "
            f"of the store, check that {store.jsonl} holds no held-out sample"
        )
    if names := consistency.unknown_settings(base, entries):
        progress.warn(
            f"{output}: the settings of {' and '.join(names)} are recorded only for the shards or "
            "only for the store; check that they are the same"
        )
    fix = "give another --output-dir, with all flags of the last run"
    if place_at(output).can_replace:
        command = again.overwrite(store, top_folder(output, base.runs[-1].settings))
        fix = f"to pack all of it again, run {command}; or run that with another --output-dir"
    if listed := consistency.other_recipe(base, store.recipe):
        what = f"its shards were made with another recipe ({listed}), so nothing was written"
        raise ProvenanceError(what, path=output, fix=fix)
    if listed := consistency.other_settings(base, entries):
        what = f"its arrays were made with other settings ({listed}), so nothing was written"
        raise ProvenanceError(what, path=output, fix=fix)
