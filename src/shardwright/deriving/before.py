"""What the arrays in use were made with, compared with the recipe that a run follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shardwright.errors import ProvenanceError
from shardwright.recipes import Component, Recipe
from shardwright.recipes.compare import bucket_changes, changes
from shardwright.store import content, npy, provenance
from shardwright.store.folders import array_ids
from shardwright.store.npy import BadArrayError
from shardwright.store.provenance import Entry, Settings
from shardwright.store.store import Store


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
        image_id = next(array_ids(self.store, component), None)
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


def fit_of(component: Component, recipe: Recipe, kept: Settings | None) -> str | None:
    """Give the fit of a component that is made from pictures; None if it sees complete ones.

    Where its shape does not follow the picture and its recipe says nothing, arrays that are
    ``kept`` go on as they are, and others show what latents show.
    """
    if component.follows_picture:
        return recipe.fit
    fit = component.settings.get("fit") or ("bucket" if kept is None else kept.get("fit"))
    return "bucket" if fit == recipe.fit == "bucket" else None
