"""With what the components are made: the encoders that are needed, held against the provenance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Literal

from msgspec.structs import replace

from shardwright import encoders
from shardwright.deriving import remade
from shardwright.deriving.inventory import Inventory, array_ids
from shardwright.encoders.base import Encoder, Options
from shardwright.errors import ProvenanceError
from shardwright.interrupts import at_once
from shardwright.recipe import Component
from shardwright.storage import files
from shardwright.store import provenance
from shardwright.store.provenance import SRGB, Entry, Settings, complete


class Making:
    """The encoders of a run, and the components that it recomputes."""

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
        # Being recomputed, now or since a run was cut short: with other settings, for which all old
        # arrays go first, or with the same, where each stays until its new one takes its place.
        self.renewed: set[Component] = set()
        self.replaced: set[Component] = set()
        self._outdated: set[Component] = set()  # of the renewed: old arrays must still go
        self._begun: set[Component] = set()  # of the replaced: some new arrays may be there already
        self._store = inventory.store
        self._entries = provenance.read(self._store.folder)

    def compare(self, components: Collection[Component]) -> None:
        """Raise if components were made with other settings than the user asks for.

        What can be told without encoders is compared first. One is loaded only if the user named
        its model, or if the component is to be recomputed.
        """
        there = {c: entry for c in components if (entry := self._entries.get(c.name))}
        told = {
            component.name: entry.settings | self._choices(component)
            for component, entry in there.items()
            if component not in self.recompute
        }
        provenance.require_same(self._entries, told, self._store.folder)
        under_way = {component for component, entry in there.items() if entry.recompute}
        named = {component for component in components if component.name in self.options.models}
        self.load(c for c in components if c in self.recompute | under_way | named)

    def load(self, components: Iterable[Component]) -> None:
        """Load encoders, each once; raise if arrays were made with other settings."""
        for component in components:
            if component not in self.encoders:
                self._load(component)
        recomputed = self.renewed | self.replaced
        kept = {c.name: settings for c, settings in self.settings.items() if c not in recomputed}
        provenance.require_same(self._entries, kept, self._store.folder)

    @property
    def noted(self) -> set[Component]:
        """Name the components whose new arrays are noted, as to look at them does not tell."""
        return self.replaced | {c for c in self.renewed if c.source == "caption"}

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
        if component.name in self._entries or component in self._outdated:
            return 0
        return sum(1 for _ in array_ids(self._store, component))

    def require_all(self, image_ids: Collection[str]) -> None:
        """Refuse to recompute, of these images, what would leave arrays of the old make behind."""
        given = {source.image_id for source in self.inventory.sources}
        for component in self._outdated:
            for image_id in array_ids(self._store, component):
                if image_id not in image_ids:
                    why = "cannot be derived" if image_id in given else "was not given"
                    raise ProvenanceError(
                        f"{self._store.array(component, image_id)}: its image {why}, so "
                        f"--recompute {component.name} would leave this array of the old settings "
                        "among the new; give the folder of all images, all sound, or move the "
                        "array away"
                    )

    def begin(self, components: Iterable[Component], image_ids: Set[str]) -> None:
        """Say what the arrays of these images are made with, and remove those they replace."""
        entries = dict(self._entries)
        for component in components:
            old = entries.get(component.name)
            new = Entry(
                self.settings[component],
                provenance.TOOL,
                model=self.options.models.get(component.name),
            )
            if component in self._outdated:
                entries[component.name] = replace(new, recompute="removing")
            elif component in self.replaced - self._begun:
                entries[component.name] = replace(new, recompute="replacing")
            elif old is None:
                unknown = self.unknown_arrays(component)
                entries[component.name] = replace(new, unknown_arrays=unknown)
        if fresh := self._outdated | self.replaced - self._begun:
            remade.remove(self._store, fresh)
        self._write(entries)
        for component in self.noted & self.renewed - self._outdated:
            for image_id in image_ids - remade.read(self._store, component):
                files.remove(self._store.array(component, image_id))
        if self._outdated:
            for component in self._outdated:
                for image_id in image_ids:
                    files.remove(self._store.array(component, image_id))
                files.sync_folder(self._store.arrays(component))
            self._mark(self._outdated, "making")

    def finish(self) -> None:
        """Say that what was to be recomputed has been."""
        self._mark(self.renewed | self.replaced, None)
        if self.noted:
            remade.remove(self._store, self.noted)

    def _load(self, component: Component) -> None:
        with at_once():
            encoder = encoders.load(self.choice, component, self.options)
            settings = provenance.plain(encoder.describe() | self._choices(component))
        self.encoders[component], self.settings[component] = encoder, settings
        entry = self._entries.get(component.name)
        same = entry is not None and complete(entry.settings) == complete(settings)
        under_way = entry.recompute if entry is not None and same else None
        if under_way == "making":
            self.renewed.add(component)
            if component.source == "caption":  # what is not noted may be of a caption since edited
                self.inventory.forget(component, but=remade.read(self._store, component))
        elif under_way == "replacing":
            self.replaced.add(component)
            self._begun.add(component)
            self.inventory.forget(component, but=remade.read(self._store, component))
        elif under_way == "removing" or component in self.recompute:
            known = entry is not None and not entry.unknown_arrays
            if under_way is None and same and known:
                self.replaced.add(component)
            else:
                self.renewed.add(component)
                self._outdated.add(component)
            self.inventory.forget(component)

    def _choices(self, component: Component) -> Settings:
        """Give the settings that are not the encoder's: the user's, and the rule of colour."""
        chosen = provenance.choices(self.choice, self.fit if component.follows_picture else None)
        if component.source == "image":
            entry = None if component in self.recompute else self._entries.get(component.name)
            chosen["colour"] = complete(entry.settings)["colour"] if entry else SRGB
        return chosen

    def _mark(self, components: Iterable[Component], state: Literal["making"] | None) -> None:
        entries = dict(self._entries)
        for component in components:
            entry = entries[component.name]
            entries[component.name] = replace(entry, recompute=state)
        self._write(entries)

    def _write(self, entries: dict[str, Entry]) -> None:
        if entries != self._entries:
            provenance.write(self._store.folder, entries)
            self._entries = entries
