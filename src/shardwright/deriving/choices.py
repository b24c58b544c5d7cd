"""What arrays depend on beside the weights: the recipe, and what is seen of pictures.

It is compared with what the arrays in use were made with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright import encoders
from shardwright.deriving.views import View
from shardwright.encoders.base import Encoder, Options, PictureWriter, RecipeError
from shardwright.errors import ProvenanceError, UsageError
from shardwright.interrupts import at_once
from shardwright.recipes import SPECIFICATION, Component, Recipe, RecipeFile, Side
from shardwright.recipes.compare import bucket_changes, changes
from shardwright.recipes.keys import ENCODERS
from shardwright.store import content, npy, provenance
from shardwright.store.npy import BadArrayError
from shardwright.store.provenance import FAST, FRACTIONS, SRGB, Entry, Settings
from shardwright.store.store import Store


def choices(
    component: Component,
    recipe: Recipe,
    made_with: str,
    kept: Settings | None = None,
) -> Settings:
    """Give the settings that are not the encoder's: the user's, and the rules of pictures.

    ``made_with`` is the set of encoders, ``kept`` are the settings of arrays that are there and
    stay.
    """
    chosen: Settings = {"encoders": made_with}
    if component.source != "image":
        return chosen
    chosen["colour"] = SRGB
    if recipe.decode == FAST:
        chosen["decode"] = FAST
    fit = fit_of(component, recipe, kept)
    if fit is not None:
        chosen["fit"] = fit
    if fit == "bucket":
        chosen["crop"] = FRACTIONS
        if recipe.buckets != SPECIFICATION.buckets:
            chosen["buckets"] = [str(bucket) for bucket in recipe.buckets]
    return chosen


def view_of(component: Component, recipe: Recipe, chosen: Settings) -> View:
    """Give what a component sees of a picture, by its settings."""
    fitted = chosen.get("fit") == "bucket"
    divisors = {axis.of: axis.divisor for axis in component.shape if isinstance(axis, Side)}
    return View(
        fit=chosen.get("fit", "original"),
        decode=chosen.get("decode"),
        divisors=(1, 1) if fitted else (divisors.get("width", 1), divisors.get("height", 1)),
        buckets=recipe.buckets if fitted else (),
        levels=recipe.levels if fitted else (),
        name=component.name,
    )


def load(
    choice: encoders.Choice,
    component: Component,
    options: Options,
    shared: dict[Any, Any],
    file: RecipeFile,
    data: object,
) -> tuple[Encoder | PictureWriter, Settings]:
    """Load the encoder of a component, and ask it what its arrays depend on.

    Refuse code that only ``data`` names: data must not decide what runs.
    """
    own = component.encoder is not None and component.encoder not in ENCODERS
    if own and choice == "pretrained" and file.origin is None:
        what = f"{component.name}: its encoder {component.encoder} is named only by the data"
        fix = "give --recipe FILE that names it, because code named in data is never run"
        raise UsageError(what, path=data, fix=fix)
    try:
        with at_once():
            encoder = encoders.load(choice, component, options, shared)
            return encoder, _described(encoder)
    except RecipeError as error:
        raise file.error(*error.fault) from error


def _described(encoder: Encoder | PictureWriter) -> Settings:
    """Ask an encoder what its arrays depend on, as JSON gives it back."""
    found: object = encoder.describe()
    try:
        if isinstance(found, dict):
            return provenance.plain(found)
    except (TypeError, ValueError, OverflowError):  # something that JSON cannot hold
        pass
    what = f"{encoder.component.name}: describe() of the encoder gave {found!r}"
    raise UsageError(what, fix="give a dict that JSON can hold")


def fit_of(component: Component, recipe: Recipe, kept: Settings | None) -> str | None:
    """Give the fit of a component that is made from pictures; None if it sees complete ones.

    Where its shape does not follow the picture and its recipe says nothing, arrays that are
    ``kept`` go on as they are, and others show what latents show.
    """
    if component.follows_picture:
        return recipe.fit
    fit = component.settings.get("fit") or ("bucket" if kept is None else kept.get("fit"))
    return "bucket" if fit == recipe.fit == "bucket" else None


@dataclass(frozen=True)
class Before:
    """The arrays of a store as they are; ``store`` has the recipe that is wanted."""

    store: Store
    recipe: Recipe | None  # that the store has recorded
    entries: Mapping[str, Entry]
    stored: Mapping[Component, int]  # how many arrays there are

    def require_same(self, recompute: Collection[Component], asked: Collection[Component]) -> None:
        """Raise if arrays were made with another recipe and are not recomputed.

        The settings of components that are asked for are compared with their encoders, later.
        """
        recipe = self.store.recipe
        kept = [c for c in recipe.components if self.stored[c] and c not in recompute]
        views = {c: self._view_changes(c) for c in kept}
        changed = {c: listed for c in kept if (listed := self.changes(c) + views[c])}
        if all(c in asked and listed == views[c] for c, listed in changed.items()):
            changed = {}
        found = [f"{c.name}: {', '.join(listed)}" for c, listed in changed.items()]
        again = list(changed)
        if (buckets := self._bucket_changes()) and any(self.stored.values()):
            # Records get their bucket together with new arrays of the picture.
            follow = [c for c in recipe.components if self._shows_bucket(c)] or recipe.pictures
            if set(follow).isdisjoint(recompute) or not set(follow).isdisjoint(kept):
                found += buckets
                again += [c for c in follow if c not in again]
        if found:
            named = {*again, *recompute}
            names = ",".join(c.name for c in recipe.components if c in named and c.encoder)
            fix = "to go on as before, change the recipe back; "
            fix += f"to recompute it, --recompute {names}; " if names else ""
            raise ProvenanceError(
                f"was made with another recipe, and nothing was written ({'; '.join(found)})",
                path=self.store.folder,
                fix=f"{fix}or give another --derived-dir",
            )

    def is_changed(self, component: Component) -> bool:
        """Whether new arrays may differ from the old ones, whatever the encoder says."""
        buckets = component.source == "image" and bool(self._bucket_changes())
        return buckets or bool(self.changes(component))

    def changes(self, component: Component) -> list[str]:
        """List what is different in the recipe of a component since its arrays were made."""
        entry = self.entries.get(component.name)
        before = provenance.component(component.name, entry) if entry else None
        if before is None and self.recipe is not None:
            before = self.recipe.by_name.get(component.name)
        return list(changes(before, component)) if before else self._misfit(component)

    def _view_changes(self, component: Component) -> list[str]:
        """List what is different in what a component sees of pictures."""
        entry, recipe = self.entries.get(component.name), self.store.recipe
        before = provenance.complete(entry.settings) if entry else {}
        fit = before.get("fit", self.recipe.fit if self.recipe else recipe.fit)
        now = recipe.fit
        if not component.follows_picture:
            if entry is None or component.source != "image":
                return []
            now = fit_of(component, recipe, entry.settings) or "original"
        found = [f"fit was {fit}, now {now}"] if fit != now else []
        decode = before.get("decode", recipe.decode)
        if component.source == "image" and decode != recipe.decode:
            found.append(f"decode was {decode}, now {recipe.decode}")
        return found

    def _shows_bucket(self, component: Component) -> bool:
        """Whether new buckets change the arrays of a component."""
        entry = self.entries.get(component.name)
        fitted = entry is not None and entry.settings.get("fit") == "bucket"
        return component.follows_picture or fitted

    def _bucket_changes(self) -> list[str]:
        return bucket_changes(self.recipe, self.store.recipe) if self.recipe else []

    def _misfit(self, component: Component) -> list[str]:
        """Look at the arrays of a component that the store does not know by this name."""
        for name, entry in self.entries.items():
            known = provenance.component(name, entry)
            if known is not None and known.folder == component.folder:
                return [f"its folder holds the arrays of {name}"]
        image_id = next(self.store.array_ids(component), None)
        if image_id is None:
            return []
        path = self.store.array(component, image_id)
        try:
            with open(npy.open_array(path), "rb") as file:
                content.check(file.fileno(), component)
        except BadArrayError as error:
            if error.reason in ("wrong_dtype", "wrong_shape"):  # verify finds damage
                return [f"{path} has a {error.reason.replace('_', ' ')}"]
        return []
