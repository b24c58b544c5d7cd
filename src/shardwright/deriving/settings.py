"""The settings in force: the encoders of a run, compared with what the store was made with.

A version before this one recomputed the arrays in use themselves, and its provenance says how far
it got: "removing" the old ones, "making" others with new settings, or "replacing" them with the
same settings. Any run finishes that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from shardwright import encoders
from shardwright.deriving.generations import Generation, made_in
from shardwright.deriving.inventory import Inventory
from shardwright.encoders.base import Encoder, Options, PictureWriter, RecipeError
from shardwright.errors import ProvenanceError, UsageError
from shardwright.interrupts import at_once
from shardwright.recipes import Component, Recipe, RecipeFile
from shardwright.recipes.compare import bucket_changes, changes
from shardwright.recipes.keys import ENCODERS
from shardwright.storage import files
from shardwright.store import content, facts, npy, provenance
from shardwright.store.folders import array_ids
from shardwright.store.npy import BadArrayError
from shardwright.store.provenance import SRGB, Entry, Settings, complete
from shardwright.store.store import Store


@dataclass(frozen=True)
class Request:
    """What the user asked for, already checked."""

    images: Path
    store: Store  # with the recipe that is wanted
    used: Recipe | None  # the recipe of the store as it is
    file: RecipeFile
    captions: Path | None
    encoders: encoders.Choice
    options: Options
    models: Mapping[str, str]  # component name -> id or path
    components: tuple[Component, ...]
    recompute: frozenset[Component]
    discard: bool  # what an unfinished recompute has made
    drop_failed: bool  # the arrays of images that cannot be recomputed
    batch_size: int | None  # None for what fits into memory
    ignore_space: bool
    dry_run: bool


class InForce:
    """What each component is made with, and which are recomputed."""

    def __init__(self, request: Request, inventory: Inventory) -> None:
        self.request, self.store, self.inventory = request, request.store, inventory
        self.encoders: dict[Component, Encoder | PictureWriter] = {}
        self.settings: dict[Component, Settings] = {}
        self._models: dict[Any, Any] = {}  # what several encoders share
        self.generation: Generation | None = None  # of what is recomputed
        self._entries = provenance.read(self.store.folder)
        self._left = {  # unfinished by the version before
            component
            for component in self.store.recipe.components
            if (entry := self._entries.get(component.name))
            and entry.recompute not in (None, "swapping")
            and not _is_new(entry, component)
        }
        # Without arrays of a component, there is nothing that new ones could mix with.
        stored = {c.name for c, count in inventory.stored.items() if count}
        self._used = {name: entry for name, entry in self._entries.items() if name in stored}

    def compare(self) -> None:
        """Raise if components were made with other settings than the user asks for.

        What can be compared without encoders comes first. An encoder is loaded only if the user
        named its model, or if the component is recomputed.
        """
        components, recompute = self.request.components, self.request.recompute
        self._require_same_recipe()
        asked = {
            component.name: self._used[component.name].settings | self._choices(component)
            for component in components
            if component.name in self._used and component not in recompute
        }
        provenance.require_same(self._used, asked, self.store.folder)
        again = [c for c in components if c in recompute | self._left]
        self.load(c for c in components if c in again or self._has_other_model(c))
        self._recompute(again)

    def _require_same_recipe(self) -> None:
        """Raise if arrays in use were made with another recipe and are not recomputed."""
        recipe, stored = self.store.recipe, self.inventory.stored
        kept = [c for c in recipe.components if stored[c] and c not in self.request.recompute]
        changed = {c.name: listed for c in kept if (listed := self._changes(c))}
        found = [f"{name}: {', '.join(listed)}" for name, listed in changed.items()]
        buckets = self._bucket_changes()
        if buckets and any(stored.values()):
            # Records get their bucket together with new arrays of the picture.
            follow = [c for c in recipe.components if c.follows_picture] or recipe.pictures
            if not follow or any(component in kept for component in follow):
                found += buckets
                changed |= {component.name: [] for component in follow}
        if found:
            names = ",".join(name for name in recipe.by_name if name in changed)
            again = f"to recompute it, --recompute {names}; or " if names else ""
            fix = f"to go on as before, change the recipe back; {again}give another --derived-dir"
            raise ProvenanceError(
                f"was made with another recipe, and nothing was written ({'; '.join(found)})",
                path=self.store.folder,
                fix=fix,
            )

    def _bucket_changes(self) -> list[str]:
        """Say which buckets of the store are not those of the recipe."""
        used = self.request.used
        return bucket_changes(used, self.store.recipe) if used else []

    def _changes(self, component: Component) -> list[str]:
        """List what is different in the recipe of a component since its arrays were made."""
        used = self.request.used.by_name.get(component.name) if self.request.used else None
        return list(changes(used, component)) if used else self._misfit(component)

    def _misfit(self, component: Component) -> list[str]:
        """Look at one array of a component that is not in the store's recipe, or no longer."""
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

    def _is_changed(self, component: Component) -> bool:
        """Whether its new arrays may differ from the old ones, whatever its encoder says."""
        fitted = component.follows_picture and self.store.recipe.fit == "bucket"
        return bool(self._changes(component) or (fitted and self._bucket_changes()))

    def _has_other_model(self, component: Component) -> bool:
        """Whether the model has another name than before, so that its weights are compared."""
        used = self.request.used.by_name.get(component.name) if self.request.used else None
        before = used.settings.get("model") if used else None
        named = component.name in self.request.models
        return named or (used is not None and before != component.settings.get("model"))

    def load(self, components: Iterable[Component]) -> None:
        """Load encoders, each once; raise if arrays were made with other settings."""
        for component in components:
            if component not in self.encoders:
                self._require_named(component)
                with at_once():
                    try:
                        encoder = encoders.load(
                            self.request.encoders, component, self._options(component), self._models
                        )
                    except RecipeError as error:
                        raise self.request.file.error(*error.fault) from error
                    settings = encoder.describe() | self._choices(component)
                self.encoders[component] = encoder
                self.settings[component] = provenance.plain(settings)
        kept = {c.name: s for c, s in self.settings.items() if c not in self.request.recompute}
        provenance.require_same(self._used, kept, self.store.folder)

    def _require_named(self, component: Component) -> None:
        """Refuse code that only the store names: data must not decide what runs."""
        own = component.encoder is not None and component.encoder not in ENCODERS
        if own and self.request.encoders == "pretrained" and self.request.file.origin is None:
            what = f"{component.name}: its encoder {component.encoder} is named only by the store"
            fix = "give --recipe FILE that names it, because code named in data is never run"
            raise UsageError(what, path=self.store.folder, fix=fix)

    def _options(self, component: Component) -> Options:
        """Give the options of an encoder; arrays are added with the precision of those there."""
        options, used = self.request.options, self._used.get(component.name)
        if options.dtype is not None or used is None or component in self.request.recompute:
            return options
        dtype = used.settings.get("dtype")
        return replace(
            options, dtype=dtype if used.settings.get("encoders") == "pretrained" else None
        )

    @property
    def recomputed(self) -> Set[Component]:
        """Name the components whose new arrays are made beside those in use."""
        return self.generation.entries.keys() if self.generation else frozenset()

    def fits(self) -> dict[Component, str]:
        """Give the fit of each component that follows the picture, where it is known."""
        known = {name: entry.settings for name, entry in self._entries.items()}
        known |= {component.name: settings for component, settings in self.settings.items()}
        return {
            component: known[component.name]["fit"]
            for component in self.store.recipe.components
            if component.follows_picture and "fit" in known.get(component.name, ())
        }

    def colours(self) -> dict[Component, str]:
        """Give the colour rule of each component that is made from pictures."""
        return {c: self._choices(c)["colour"] for c in self.store.recipe.pictures}

    def unknown_arrays(self, component: Component) -> int:
        """Count the arrays that were made elsewhere and are kept."""
        if component.name in self._entries or component in self.recomputed:
            return 0
        return self.inventory.stored[component]

    def store_of(self, component: Component) -> Store:
        """Give the store that the new arrays of a component go to."""
        return self.store.next if component in self.recomputed else self.store

    def missing_empties(self, work: Collection[Component]) -> list[Component]:
        """Name the components made from captions that have no array of the empty caption.

        Not those whose arrays were made elsewhere: nobody knows with what.
        """
        return [
            component
            for component in self.request.components
            if component.source == "caption"
            and (component in work or component.name in self._used)
            and not (component.name in self._used and self._has_empty(component))
        ]

    def _has_empty(self, component: Component) -> bool:
        suffixes = [component.suffix, *([component.mask.suffix] if component.mask else [])]
        return all(self.store_of(component).empty(suffix).exists() for suffix in suffixes)

    def begin(self, components: Iterable[Component]) -> None:
        """Record how the arrays are made that this run adds to those in use."""
        entries = dict(self._entries)
        for component in self.store.recipe.components:
            if _is_new(entries.get(component.name), component):
                entries[component.name] = structs.replace(entries[component.name], recompute=None)
            files.withdraw(self.store.state / f"remade-{component.name}.jsonl")
        if self.generation is None:
            self.store.record()
        for component in components:
            if component.name not in self._used and component not in self.recomputed:
                unknown = self.unknown_arrays(component)
                entry = structs.replace(self._entry(component), unknown_arrays=unknown)
                entries[component.name] = entry
        if entries != self._entries:
            provenance.write(self.store.folder, entries)
            self._entries = entries

    def _recompute(self, components: Iterable[Component]) -> None:
        """Begin or continue a generation for components that have arrays."""
        begun = provenance.read(self.store.next.folder)
        entries, kept = {}, set()
        for component in components:
            old, new = self._entries.get(component.name), self._entry(component)
            same = old is not None and complete(old.settings) == complete(new.settings)
            same = same and not self._is_changed(component)
            if same and _is_new(old, component):
                continue
            if self.inventory.stored[component] or component.name in begun:
                entries[component] = new
            # In these states some arrays may be of the old settings, or of an unrecorded caption.
            mixed = old is not None and old.recompute in ("removing", "making")
            if old is not None and same and not (old.unknown_arrays or mixed):
                kept.add(component)
        if entries:
            self.generation = Generation(self.store, entries, kept)
            beside_it = self.generation.store
            known = {fact.image_id: fact.image for _, fact in facts.read(beside_it)}
            self.inventory.recompute(entries, made_in(beside_it), known)

    def _entry(self, component: Component) -> Entry:
        model = self.request.models.get(component.name)
        return Entry(self.settings[component], provenance.TOOL, model=model)

    def _choices(self, component: Component) -> Settings:
        """Give the settings that are not the encoder's: the user's, and the colour rule."""
        fit = self.store.recipe.fit if component.follows_picture else None
        chosen = provenance.choices(self.request.encoders, fit)
        if component.source == "image":
            new = component in self.request.recompute
            entry = None if new else self._used.get(component.name)
            chosen["colour"] = complete(entry.settings)["colour"] if entry else SRGB
        return chosen


def _is_new(entry: Entry | None, component: Component) -> bool:
    """Whether all arrays in use are new already, so that only the missing ones are made.

    Not those made from captions: one may have been edited since.
    """
    return entry is not None and entry.recompute == "making" and component.source == "image"
