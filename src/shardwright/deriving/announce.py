"""What a run says before it works, and what may stand in its way."""

from __future__ import annotations

from shardwright.deriving import generations, machine
from shardwright.deriving.captions import Captions
from shardwright.deriving.plan import Plan
from shardwright.deriving.settings import InForce
from shardwright.deriving.summary import DeriveSummary
from shardwright.progress import Progress, quantity, size
from shardwright.recipe import Component
from shardwright.store.store import Store
from shardwright.text import shown

_UNUSED = {
    "no_such_image": "of no image here",
    "no_caption": "without a caption",
    "caption_is_list": "whose caption is a list; give one string",
    "caption_not_string": "whose caption is not a string; give one string",
    "repeated": "replaced by a later one of the same image",
}


def work(summary: DeriveSummary, layout: Plan, settings: InForce, progress: Progress) -> None:
    """Say what is about to be done, and what may stand in its way."""
    progress.say(
        f"{quantity(summary.images_found, 'images')}: {summary.derived:,} to derive, "
        f"{summary.already_complete:,} already complete, {summary.failed:,} cannot be derived"
    )
    for component in layout.work:
        part = summary.components[component.name]
        model = settings.settings[component].get("model", "an encoder of your own")
        what, room = f"{part.to_make:,} to make with {model}", size(part.bytes_needed)
        progress.say(f"  {component.name}: {what}; needs about {room}")
    if summary.fit is not None:
        progress.say(f"  fit {summary.fit}")
    if layout.work:
        room, free = size(summary.bytes_needed), size(summary.free_bytes)
        progress.say(f"  on {summary.device}; about {room} will be needed, {free} are free")
    slow = [
        component.name
        for component in layout.work
        if settings.encoders[component].device == "cpu"
        and settings.settings[component].get("dtype") == "bfloat16"
    ]
    if slow and not machine.has_bfloat16():
        progress.warn(
            f"{', '.join(slow)}: this CPU has no instructions for bfloat16, which makes it up to "
            "150 times slower; give --dtype float32"
        )
    for component in layout.components:
        if unknown := settings.unknown_arrays(component):
            arrays = quantity(unknown, f"{component.name} arrays")
            progress.warn(f"{arrays} made elsewhere, and kept")
    if summary.kept_captions:
        names = [c.name for c in layout.inventory.store.recipe.captions]
        progress.warn(
            f"{quantity(summary.kept_captions, 'captions')} changed after encoding; keeping the "
            f"old. Use --recompute {','.join(names)} to update"
        )
    if summary.replaced_captions:
        progress.warn(
            f"{quantity(summary.replaced_captions, 'captions')} changed after encoding; taking the "
            "new"
        )
    if changed := summary.changed_images:
        pictures = ",".join(c.name for c in layout.inventory.store.recipe.pictures)
        progress.warn(
            f"{quantity(len(changed), 'images')} changed after encoding, for example "
            f"{shown(changed[0])}; the arrays show the old picture until --recompute {pictures}"
        )
    if gone := summary.gone_images:
        progress.warn(
            f"{quantity(len(gone), 'images')} gone after encoding, for example {shown(gone[0])}; "
            "records and arrays are kept"
        )


def unused_rows(captions: Captions | None, progress: Progress) -> None:
    """Say which rows of the captions came to nothing; this may be why images have none."""
    if captions is None:
        return
    for reason, rows in captions.unused().items():
        what = f"{quantity(rows.count, 'rows')} {_UNUSED[reason]}"
        progress.warn(f"{captions.path}: {what}, for example {shown(rows.example)}")
    if not captions.by_name:
        progress.warn(f"{captions.path}: holds no caption")


def unfinished(store: Store, settings: InForce, discard: bool, progress: Progress) -> None:
    """Say what lies beside the arrays in use, and what becomes of it."""
    begun, made = generations.unfinished(store)
    if not begun or settings.generation is not None:
        return
    names = ",".join(begun)
    what = f"unfinished recompute of {names} ({quantity(made, 'images')})"
    if discard:
        progress.say(f"{what}: discarded")
    else:
        progress.warn(f"{what}: --recompute {names} continues it, --recompute none discards it")


def profiles(summary: DeriveSummary, stored: list[Component], progress: Progress) -> None:
    """Say which images were not converted to sRGB."""
    if ignored := summary.unapplied_profiles.get("profile_ignored"):
        names = ",".join(component.name for component in stored)
        about = "about " if summary.profiles_estimated else ""
        progress.warn(
            f"colour profile ignored in {about}{quantity(ignored.count, 'images')}, for example "
            f"{shown(ignored.example)}: the {names} arrays of this store were made without colour "
            f"profiles; --recompute {names} converts all images to sRGB"
        )
    if bad := summary.unapplied_profiles.get("profile_not_usable"):
        progress.warn(
            f"colour profile not usable in {quantity(bad.count, 'images')}, for example "
            f"{shown(bad.example)}: taken as sRGB"
        )
