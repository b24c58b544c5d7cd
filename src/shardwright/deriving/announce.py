"""What a run says before it works, and what may be wrong."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.deriving import generations, machine
from shardwright.deriving.captions import CaptionFiles, Captions
from shardwright.deriving.changes import Changes
from shardwright.deriving.plan import Plan
from shardwright.deriving.request import Request
from shardwright.deriving.sources import Source
from shardwright.deriving.summary import DeriveSummary
from shardwright.progress import Progress, quantity, size
from shardwright.recipes import Component, Recipe, Side
from shardwright.store import commands, paths
from shardwright.text import near, shown

_LISTED = 10  # paths
_UNUSED = {
    "no_such_image": "without an image here",
    "elsewhere": "whose file is elsewhere",
    "no_caption": "without a caption",
    "caption_is_list": "with a list as caption; give one string",
    "caption_not_string": "with a caption that is not a string; give one string",
    "repeated": "replaced by a later row of the same image",
    "several_images": "with only a name, which several images have",
}


def captions(request: Request, progress: Progress) -> None:
    """Say which captions files are used, and which are not any more; raise if that is not clear."""
    if request.remember:
        verb = "would no longer use" if request.dry_run else "no longer uses"
        lost = paths.dropped(request.images, request.captions_file, request.store)
        for folder, old in lost:
            progress.say(f"captions: {folder} {verb} {old}")
        return
    for folder, file in request.captions.items():
        where = "" if folder == str(request.images) else f" for {near(folder)}"
        progress.say(f"captions: {near(str(file))}{where}, as in the last derive")


def work(summary: DeriveSummary, layout: Plan, changes: Changes, progress: Progress) -> None:
    """Say what is about to be done, and what may be wrong."""
    settings = layout.settings
    out = sum(found.count for found in summary.left_out.values())
    left_out = f", {out:,} left out by the recipe" * bool(out)
    progress.say(
        f"{quantity(summary.images_found, 'images')}: {summary.derived:,} to derive, "
        f"{summary.already_complete:,} already complete, {summary.failed:,} cannot be derived"
        f"{left_out}"
    )
    for component in layout.work:
        part = summary.components[component.name]
        known = settings.settings[component]
        model = known.get("model") or known.get("encoder", "your own encoder")
        what, room = f"{part.to_make:,} to make with {model}", size(part.bytes_needed)
        progress.say(f"  {component.name}: {what}; needs about {room}")
    if summary.fit is not None:
        progress.say(f"  fit {summary.fit}")
    if layout.work:
        room, free = size(summary.bytes_needed), size(summary.free_bytes)
        progress.say(f"  on {summary.device}; needs about {room}, {free} free")
    slow = [
        component
        for component in layout.work
        if settings.encoders[component].device == "cpu"
        and settings.settings[component].get("dtype") == "bfloat16"
    ]
    if slow and not machine.has_bfloat16():
        progress.warn(
            f"{_names(slow)}: this CPU has no bfloat16 instructions, so it is up to 150 times "
            "slower. Use --dtype float32"
        )
    for component in layout.components:
        if unknown := settings.unknown_arrays(component):
            arrays = quantity(unknown, f"{component.name} arrays")
            them = "it" if unknown == 1 else "them"
            progress.warn(f"{arrays} made elsewhere; keeping {them}")
    if kept := summary.kept_captions:
        progress.warn(
            f"{_changed(kept, 'captions')}; keeping the old "
            f"{'embedding' if kept == 1 else 'embeddings'}. Use --update to encode the new text"
        )
    if replaced := summary.replaced_captions:
        tell = progress.say if settings.request.update else progress.warn
        tell(f"{_changed(replaced, 'captions')}; encoding the new text")
    if changed := summary.changed_images:
        progress.warn(
            f"{_changed(len(changed), 'images')}, for example {shown(changed[0])}; keeping the "
            f"old arrays. Use --update{' without --components' * settings.request.update} to "
            f"derive {_them(changed)} again"
        )
    if updated := summary.updated_images:
        progress.say(
            f"{_changed(len(updated), 'images')}, for example {shown(updated[0])}; deriving "
            f"{_them(updated)} again"
        )
        _elsewhere(layout, progress)
    if columns := summary.updated_columns:
        path, names = next(iter(columns.items()))
        them = "its record" if len(columns) == 1 else "their records"
        progress.say(
            f"{quantity(len(columns), 'images')} with other columns than on record, for example "
            f"{shown(path)} ({shown(', '.join(names))}); updating {them}"
        )
    undecided = set(changes.undecided.values())  # which are listed
    gone = [path for path in summary.gone_images if path not in undecided]
    if gone and not settings.request.prune:
        images = quantity(len(gone), "images")
        progress.warn(
            f"{images} no longer there, for example {near(gone[0])}; keeping the records and "
            "arrays. Use --prune to remove them"
        )
    begun, made = generations.unfinished(settings.store)
    if begun and settings.generation is None and not settings.request.discard:
        progress.warn(
            f"unfinished {generations.name_of(begun)} ({quantity(made, 'images')}); to continue "
            f"it, run {commands.derive(settings.store, begun=begun)}; to discard it, use "
            "--recompute none"
        )


def odd_buckets(recipe: Recipe, progress: Progress) -> None:
    """Say which buckets the latents of a picture cannot show completely."""
    for component in recipe.components if recipe.fit == "bucket" else ():
        sides = [axis for axis in component.shape if isinstance(axis, Side)]
        odd = [
            bucket
            for bucket in recipe.buckets
            if any(getattr(bucket, side.of) % side.divisor for side in sides)
        ]
        if odd:
            factor = max(side.divisor for side in sides)
            lie = "has a side that is" if len(odd) == 1 else "have sides that are"
            progress.warn(
                f"{quantity(len(odd), 'buckets')} {lie} no multiple of {factor}, for example "
                f"{odd[0]}: {component.name} leaves out the last pixels there. Choose "
                f"multiples of {factor} in [images] buckets or step"
            )


def not_renamed(names: dict[str, str], progress: Progress) -> None:
    """Say which images have a new name, by their ids, but do not keep their arrays."""
    if names:
        old, new = next(iter(names.items()))
        progress.warn(
            f"{quantity(len(names), 'images')} renamed, for example {shown(old)} to {shown(new)}; "
            "deriving as new. Use --update to keep the arrays"
        )


def kept_ids(
    sources: list[Source], captions: CaptionFiles | None, recipe: Recipe, progress: Progress
) -> None:
    """Say which images keep the id on record, although the captions file has another one."""
    others = [
        (source.image_id, given)
        for source in (sources if recipe.ids == "captions" else ())
        if captions and (given := captions.image_id(source)) not in (None, source.image_id)
    ]
    if others:
        old, new = others[0]
        progress.warn(
            f"{quantity(len(others), 'images')} with another image_id on record, for example "
            f"{shown(old)}, now {shown(str(new))}; keeping the one on record"
        )


def pruning(paths: list[str], progress: Progress, dry_run: bool) -> None:
    """List what is about to be removed."""
    if paths:
        verb = "would remove" if dry_run else "removing"
        progress.say(f"{verb} the records and arrays of {quantity(len(paths), 'images')}:")
        _list(paths, progress)


def undecided(changes: Changes, request: Request, progress: Progress) -> None:
    """List the images that are not found and are kept, with the command that removes them."""
    folder = str(request.images)
    for is_copy in (False, True):
        kept = ((i in changes.originals, path) for i, path in changes.undecided.items())
        paths = sorted(path for copied, path in kept if copied is is_copy)
        if not paths:
            continue
        one = len(paths) == 1
        found = f"not found. {'It' if one else 'They'} may not have been below {shown(folder)}"
        removed = _them(paths)
        if is_copy:
            found = f"not below {shown(folder)}, but in a folder of which it may be a copy"
            removed = f"{'its record' if one else 'their records'} and arrays here"
        progress.warn(
            f"{quantity(len(paths), 'images')} on record {'is' if one else 'are'} {found}, so "
            f"{'it is' if one else 'they are'} kept:"
        )
        _list(paths, progress)
        remove = commands.prune_below(request.store, folder, paths, update=request.update)
        progress.say(f"to remove {removed}, run {remove}")


def _list(paths: list[str], progress: Progress) -> None:
    for path in paths[:_LISTED]:
        progress.say(f"  {near(path)}")
    if len(paths) > _LISTED:
        progress.say(f"  and {len(paths) - _LISTED:,} more (--json lists all)")


def _elsewhere(layout: Plan, progress: Progress) -> None:
    """Say which arrays of changed images only the user's own tool can make again."""
    inventory, outdated = layout.inventory, layout.settings.outdated
    for component in layout.settings.store.recipe.components:
        if component.source == "elsewhere":
            old = [n for n in outdated if not inventory.missing(n, [component])]
            if old := [n for n in old if any(c.source == "image" for c in outdated[n])]:
                arrays = quantity(len(old), f"{component.name} arrays")
                example = f"for example of {shown(inventory.sources[old[0]].path)}"
                progress.warn(
                    f"{arrays} of changed images, {example}; make them again with your own tool"
                )


def unused_rows(captions: Captions | None, progress: Progress) -> None:
    """Say how rows name images, and which are not used; this may be why images have none."""
    if captions is None:
        return
    found = captions.summed()
    if found.base:
        used = f"{found.rows_used:,} of {quantity(captions.total, 'rows')} used"
        progress.say(f"{captions.path}: {used} ({found.base})")
    for reason, rows in captions.unused().items():
        count, example = quantity(rows.count, "rows"), shown(rows.example)
        progress.warn(f"{captions.path}: {count} {_UNUSED[reason]}, for example {example}")
    if not captions.rows:
        progress.warn(f"{captions.path}: no captions in this file")


def profiles(summary: DeriveSummary, progress: Progress) -> None:
    """Say which images were not converted to sRGB."""
    if bad := summary.unapplied_profiles.get("profile_not_usable"):
        progress.warn(
            f"colour profile not usable in {quantity(bad.count, 'images')}, for example "
            f"{shown(bad.example)}: treated as sRGB"
        )


def _them(paths: list[str]) -> str:
    return "it" if len(paths) == 1 else "them"


def _names(components: Iterable[Component]) -> str:
    return ",".join(component.name for component in components)


def _changed(count: int, unit: str) -> str:
    since = "it was" if count == 1 else "they were"
    return f"{quantity(count, unit)} changed since {since} encoded"
