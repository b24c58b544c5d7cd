"""The settings in force: the encoders of a run, compared with what the store was made with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

import xxhash
from msgspec import json, structs

from shardwright.deriving.encoding import Encoding
from shardwright.deriving.generations import Generation
from shardwright.deriving.inventory import Inventory
from shardwright.deriving.recipe import choices, fit_of, load, view_of
from shardwright.deriving.request import Request
from shardwright.deriving.views import View
from shardwright.encoders.base import DTYPES, Encoder, Options, PictureWriter
from shardwright.engine.local import cores
from shardwright.errors import ProvenanceError
from shardwright.recipes import Component, Recipe
from shardwright.recipes.compare import bucket_changes, changes
from shardwright.recipes.keys import ENCODERS
from shardwright.store import content, npy, provenance
from shardwright.store.npy import BadArrayError
from shardwright.store.provenance import Entry, Settings, complete
from shardwright.store.store import Store


class EncoderSettings:
    """What each component is made with, and which are recomputed."""

    def __init__(self, request: Request, inventory: Inventory) -> None:
        self.request, self.store, self.inventory = request, request.store, inventory
        self.encoders: dict[Component, Encoder | PictureWriter] = {}
        self.settings: dict[Component, Settings] = {}
        self.generation: Generation | None = None  # of what is recomputed or updated
        self.outdated: Mapping[int, Collection[Component]] = {}  # what is updated, by image
        self._entries = provenance.read(self.store.folder)
        self._stored = inventory.stored  # how many arrays of a component there are
        # Without arrays of a component, there is nothing that new ones could mix with.
        stored = {c.name for c, count in self._stored.items() if count}
        self._used = {name: entry for name, entry in self._entries.items() if name in stored}
        before = request.used or self.store.recipe
        self._bucket_changes = bucket_changes(before, self.store.recipe)
        self._begun = provenance.read(self.store.next.folder)

    def compare(self) -> None:
        """Raise if components were made with other settings than the user asks for.

        What can be compared without encoders comes first. An encoder is loaded only if the user
        named its model, or if the component is recomputed.
        """
        components, recompute = self.request.components, self.request.recompute
        self._require_same_recipe()
        asked = {
            component.name: self._asked(component, self._used[component.name].settings)
            for component in self.store.recipe.components
            if component.name in self._used and component not in recompute
        }
        self._require_same(asked)
        again = [c for c in components if c in recompute]
        self.load(c for c in components if c in again or self._has_other_model(c))
        self._recompute(again)
        if self.request.update:
            self._update()

    def _asked(self, component: Component, used: Settings) -> Settings:
        """Give the settings of arrays that stay, with what is asked for now instead."""
        now = self._choices(component)
        if component not in self.request.components:
            now["encoders"] = used.get("encoders")
        return {k: v for k, v in used.items() if k not in ("fit", "crop", "decode")} | now

    def _require_same(self, wanted: Mapping[str, Settings]) -> None:
        again = [c.name for c in self.request.components if c in self.request.recompute]
        provenance.require_same(self._used, wanted, self.store.folder, again)

    def _has_other_model(self, component: Component) -> bool:
        """Whether the model has another name than before, so that its weights are compared."""
        entry = self._used.get(component.name)
        before = provenance.component(component.name, entry) if entry else None
        was = (entry.model or before.settings.get("model")) if entry and before else None
        other = before is not None and was != component.settings.get("model")
        return other or component.name in self.request.models

    def load(self, components: Iterable[Component]) -> None:
        """Load encoders, each once; raise if arrays were made with other settings."""
        for component in components:
            if component not in self.encoders:
                self.encoders[component], told = load(
                    self.request.encoders,
                    component,
                    self._options(component),
                    self.request.loaded,
                    self.request.file,
                    self.store.folder,
                )
                self.settings[component] = told | self._choices(component)
        kept = {c.name: s for c, s in self.settings.items() if c not in self.request.recompute}
        self._require_same(kept)

    def _options(self, component: Component) -> Options:
        """Give the options of an encoder; arrays are added with the precision of those there."""
        dtype = self.request.dtypes.get(component.name)
        if dtype is None:
            known = self._kept(component) or {}
            # What an encoder of the user's says of its dtype may be anything.
            if known.get("encoders") == "pretrained" and known.get("dtype") in DTYPES:
                dtype = known["dtype"]
        return Options(self.request.devices[0], dtype)

    def digest(self, texts: Mapping[str, str | None]) -> str:
        """Hash texts with what decides into how many tokens they are cut."""
        return digest(self.store.recipe, provenance.set_of(self.request.encoders), texts)

    @property
    def device(self) -> str:
        """Name the devices that are used; none if no encoder is."""
        return device_text(self.request.devices, list(self.encoders.values()))

    @property
    def recomputed(self) -> Set[Component]:
        """Name the components whose new arrays are made beside those in use."""
        return self.generation.entries.keys() if self.generation else frozenset()

    @property
    def is_update(self) -> bool:
        """Whether only what changed is made beside the arrays in use."""
        return self.generation is not None and self.generation.is_update

    def encoding(self, work: Iterable[Component], empties: Iterable[Component]) -> Encoding:
        """Give how this run encodes samples; a device tries the encoders of ``work`` first."""
        return Encoding(
            recipe=self.store.recipe,
            encoders=self.request.encoders,
            components=tuple(self.encoders),
            dtypes={c.name: self._options(c).dtype for c in self.encoders},
            views={c: self.view(c) for c in self.store.recipe.pictures},
            work=tuple(work),
            empties=tuple(empties),
            batch_size=self.request.batch_size,
            compile=self.request.compile,
            cores=cores(),
            guarded=True,
            loaded=self.encoders,
        )

    def view(self, component: Component) -> View:
        """Give what a component sees of a picture."""
        return view_of(component, self.store.recipe, self._choices(component))

    def following(self) -> dict[Component, View]:
        """Give what each component that follows the picture shows of it, where that is known."""
        known = {*self._entries, *(component.name for component in self.settings)}
        return {
            component: self.view(component)
            for component in self.store.recipe.pictures
            if component.follows_picture and component.name in known
        }

    def unknown_arrays(self, component: Component) -> int:
        """Count the arrays that were made elsewhere and are kept."""
        if component.name in self._entries or component in self.recomputed:
            return 0
        return self.inventory.stored[component]

    def store_of(self, component: Component) -> Store:
        """Give the store that the new arrays of a component go to."""
        recomputed = component in self.recomputed and not self.is_update
        return self.store.next if recomputed else self.store

    def load_for_empty(self, work: Collection[Component]) -> list[Component]:
        """Load the encoders of components that have no array of the empty caption; name them.

        Arrays that were made elsewhere get none: nobody knows with what they were made.
        """
        found = [
            component
            for component in self.request.components
            if component.source == "caption"
            and (
                component in work
                or (component.name in self._used and component.encoder in ENCODERS)
            )
            and not self._has_empty(component)
        ]
        self.load(found)
        return found

    def _has_empty(self, component: Component) -> bool:
        store = self.store_of(component)
        return all(store.empty(suffix).exists() for suffix in component.members)

    def begin(self, components: Iterable[Component]) -> None:
        """Record how the arrays are made that this run adds to those in use."""
        if self.generation is None:
            self.store.record()
        entries = dict(self._entries)
        for component in self.settings:  # the same model may have got another name
            if component.name in self._used and component not in self.recomputed:
                old, now = entries[component.name], self._entry(component)
                entries[component.name] = structs.replace(
                    old, component=now.component, model=now.model
                )
        first = (c for c in components if c.name not in self._used and c not in self.recomputed)
        entries = provenance.joined(entries, {c.name: self._added(c) for c in first})
        if entries != self._entries:
            provenance.write(self.store.folder, entries)
            self._entries = entries

    def _recompute(self, components: Iterable[Component]) -> None:
        """Begin or continue a generation for components that have arrays."""
        entries, kept = {}, set()
        for component in components:
            old, new = self._entries.get(component.name), self._entry(component)
            if self.inventory.stored[component] or component.name in self._begun:
                entries[component] = new
            if (
                old is not None
                and complete(old.settings) == complete(new.settings)
                and not (self._bucket_changes and component.source == "image")
                and not (self._changes(component) or old.unknown_arrays)
            ):
                kept.add(component)
        if entries:
            self.generation = Generation(self.store, entries, kept)
            self.inventory.recompute(entries, kept, self.generation.store)

    def _update(self) -> None:
        """Begin or continue a generation for what changed; without that there is none."""
        begun = self._begun if provenance.is_update(self._begun) else {}
        self.outdated = self.inventory.outdated(self.request.components)
        again = {component for these in self.outdated.values() for component in these}
        again.update(c for c in self.store.recipe.components if c.name in begun)
        self.load(c for c in self.request.components if c in again and c.name not in self._used)
        before = begun | self._used
        entries = {
            component: structs.replace(
                before.get(component.name) or self._added(component), update=True
            )
            for component in self.store.recipe.components
            if component in again
        }
        if entries:
            # The settings are the same, so an image that fails keeps its old arrays.
            self.generation = Generation(self.store, entries, entries.keys())
            self.inventory.update(self.outdated, self.generation.store)

    def _entry(self, component: Component) -> Entry:
        model = self.request.models.get(component.name)
        return provenance.entry_of(component, self.settings[component], model)

    def _added(self, component: Component) -> Entry:
        """Give the entry of a component that this run is the first to make arrays of."""
        unknown = self.unknown_arrays(component)
        return structs.replace(self._entry(component), unknown_arrays=unknown)

    def _choices(self, component: Component) -> Settings:
        """Give the settings that are not the encoder's: the user's, and the rules of pictures."""
        made_with = provenance.set_of(self.request.encoders)
        return choices(component, self.store.recipe, made_with, self._kept(component))

    def _kept(self, component: Component) -> Settings | None:
        """Give the settings of arrays that are there and stay, or whose recompute is begun."""
        again = component in self.request.recompute
        entry = (self._begun if again else self._used).get(component.name)
        return entry.settings if entry else None

    def _require_same_recipe(self) -> None:
        """Raise if arrays were made with another recipe and are not recomputed.

        The settings of components that are asked for are compared with their encoders, later.
        """
        recipe, asked = self.store.recipe, self.request.components
        recompute = self.request.recompute
        kept = [c for c in recipe.components if self._stored[c] and c not in recompute]
        views = {c: self._view_changes(c) for c in kept}
        changed = {c: listed for c in kept if (listed := self._changes(c) + views[c])}
        if all(c in asked and listed == views[c] for c, listed in changed.items()):
            changed = {}
        found = [f"{c.name}: {', '.join(listed)}" for c, listed in changed.items()]
        again = list(changed)
        if self._bucket_changes and any(self._stored.values()):
            # Records get their bucket together with new arrays of the picture.
            follow = [c for c in recipe.components if self._shows_bucket(c)] or recipe.pictures
            if set(follow).isdisjoint(recompute) or not set(follow).isdisjoint(kept):
                found += self._bucket_changes
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

    def _changes(self, component: Component) -> list[str]:
        """List what is different in the recipe of a component since its arrays were made."""
        entry = self._entries.get(component.name)
        before = provenance.component(component.name, entry) if entry else None
        if before is None and self.request.used is not None:
            before = self.request.used.by_name.get(component.name)
        return list(changes(before, component)) if before else self._misfit(component)

    def _view_changes(self, component: Component) -> list[str]:
        """List what is different in what a component sees of pictures."""
        entry, recipe = self._entries.get(component.name), self.store.recipe
        before = provenance.complete(entry.settings) if entry else {}
        fit = before.get("fit", (self.request.used or recipe).fit)
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
        entry = self._entries.get(component.name)
        fitted = entry is not None and entry.settings.get("fit") == "bucket"
        return component.follows_picture or fitted

    def _misfit(self, component: Component) -> list[str]:
        """Look at the arrays of a component that the store does not know by this name."""
        for name, entry in self._entries.items():
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


def device_text(names: Sequence[str], loaded: Collection[Encoder | PictureWriter]) -> str:
    """Name the devices that encoders run on, as ``--device`` takes them."""
    if len(names) > 1 and loaded:
        return f"cpu:{len(names)}" if names[0] == "cpu" else ",".join(names)
    return ", ".join(sorted({encoder.device for encoder in loaded}))


def digest(recipe: Recipe, encoders: str, texts: Mapping[str, str | None]) -> str:
    """Hash texts with what decides into how many tokens they are cut."""
    given = {field: texts[field] for field in recipe.texts}
    return xxhash.xxh3_64_hexdigest(json.encode([encoders, recipe.captions, given]))
