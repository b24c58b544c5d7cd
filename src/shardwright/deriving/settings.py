"""The settings in force: the encoders of a run, compared with what the store was made with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from msgspec.structs import replace

from shardwright import encoders
from shardwright.deriving import earlier
from shardwright.deriving.generations import Generation, beside, made_in
from shardwright.deriving.inventory import Inventory
from shardwright.encoders.base import Encoder, Options
from shardwright.interrupts import at_once
from shardwright.recipe import Component
from shardwright.store import provenance
from shardwright.store.provenance import SRGB, Entry, Settings, complete


class InForce:
    """What each component is made with, and which are recomputed."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        choice: encoders.Choice,
        options: Options,
        fit: str,
        recompute: Iterable[Component],
    ) -> None:
        self.inventory = inventory
        self.choice = choice
        self.options = options
        self.fit = fit
        self.recompute = frozenset(recompute)
        self.encoders: dict[Component, Encoder] = {}
        self.settings: dict[Component, Settings] = {}
        self.generation: Generation | None = None  # of what is recomputed
        self._store = inventory.store
        self._entries = provenance.read(self._store.folder)
        self._left = earlier.unfinished(self._entries, self._store.recipe)
        # The entries to be held to: where there are no arrays, there is nothing that could mix.
        stored = {c.name for c, count in inventory.stored.items() if count}
        self._used = {name: entry for name, entry in self._entries.items() if name in stored}

    def compare(self, components: Collection[Component]) -> None:
        """Raise if components were made with other settings than the user asks for.

        What can be told without encoders is compared first. One is loaded only if the user named
        its model, or if the component is to be recomputed.
        """
        told = {
            component.name: self._used[component.name].settings | self._choices(component)
            for component in components
            if component.name in self._used and component not in self.recompute
        }
        provenance.require_same(self._used, told, self._store.folder)
        named = {component for component in components if component.name in self.options.models}
        self.load(c for c in components if c in self.recompute | self._left | named)
        self._recompute(c for c in components if c in self.recompute | self._left)

    def load(self, components: Iterable[Component]) -> None:
        """Load encoders, each once; raise if arrays were made with other settings."""
        for component in components:
            if component not in self.encoders:
                self._load(component)
        kept = {c.name: s for c, s in self.settings.items() if c not in self.recompute}
        provenance.require_same(self._used, kept, self._store.folder)

    @property
    def recomputed(self) -> Set[Component]:
        """Name the components that are made beside their arrays in use."""
        return self.generation.entries.keys() if self.generation else frozenset()

    def fits(self) -> dict[Component, str]:
        """Say how each component that follows the picture was fitted, as far as that is known."""
        known = {}
        for component in self._store.recipe.components:
            entry = self._entries.get(component.name)
            if component in self.settings:
                fit = self.settings[component].get("fit")
            else:
                fit = entry.settings.get("fit") if entry is not None else None
            if component.follows_picture and isinstance(fit, str):
                known[component] = fit
        return known

    def colours(self) -> dict[Component, str]:
        """Say by which rule of colour each component is made from pictures."""
        images = self._store.recipe.pictures
        return {component: self._choices(component)["colour"] for component in images}

    def unknown_arrays(self, component: Component) -> int:
        """Count the arrays that were made elsewhere and are taken as they are."""
        if component.name in self._entries or component in self.recomputed:
            return 0
        return self.inventory.stored[component]

    def begin(self, components: Iterable[Component]) -> None:
        """Say what the arrays that are about to be made for use are made with."""
        entries = earlier.settled(self._entries, self._store)
        for component in components:
            if component.name not in self._used and component not in self.recomputed:
                unknown = self.unknown_arrays(component)
                entries[component.name] = replace(self._entry(component), unknown_arrays=unknown)
        if entries != self._entries:
            provenance.write(self._store.folder, entries)
            self._entries = entries

    def _load(self, component: Component) -> None:
        with at_once():
            encoder = encoders.load(self.choice, component, self.options)
            settings = provenance.plain(encoder.describe() | self._choices(component))
        self.encoders[component], self.settings[component] = encoder, settings

    def _recompute(self, components: Iterable[Component]) -> None:
        """Have components made beside their arrays in use; where there are none, for use."""
        begun = provenance.read(beside(self._store).folder)
        entries, kept = {}, set()
        for component in components:
            old, new = self._entries.get(component.name), self._entry(component)
            same = old is not None and complete(old.settings) == complete(new.settings)
            if same and earlier.is_new(old, component):
                continue
            if self.inventory.stored[component] or component.name in begun:
                entries[component] = new
            if old is not None and same and not (old.unknown_arrays or earlier.may_mix(old)):
                kept.add(component)
        if entries:
            self.generation = Generation(self._store, entries, kept)
            self.inventory.recompute(entries, made_in(self.generation.store))

    def _entry(self, component: Component) -> Entry:
        model = self.options.models.get(component.name)
        return Entry(self.settings[component], provenance.TOOL, model=model)

    def _choices(self, component: Component) -> Settings:
        """Give the settings that are not the encoder's: the user's, and the rule of colour."""
        chosen = provenance.choices(self.choice, self.fit if component.follows_picture else None)
        if component.source == "image":
            entry = None if component in self.recompute else self._used.get(component.name)
            chosen["colour"] = complete(entry.settings)["colour"] if entry else SRGB
        return chosen
