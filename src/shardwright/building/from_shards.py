"""``build --from``: the shards that it starts from, and what is made of them.

Their recipe stays, with the named components as the new recipe has them. All else follows from the
shards: the samples, their order, the buckets and the parts of a split.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

import msgspec
import xxhash

from shardwright.buckets import Bucket
from shardwright.building import built
from shardwright.building.plan import Plan, Shard
from shardwright.building.samples import Copying, FromShard, Inputs
from shardwright.deriving.recipe import fit_of
from shardwright.errors import DamageError, InputMissingError, ProvenanceError, UsageError
from shardwright.interrupts import check
from shardwright.packing.choice import FLAGS
from shardwright.recipes import Component, Recipe, RecipeFile, require_valid
from shardwright.recipes.compare import bucket_changes, changes
from shardwright.recipes.file import shipped
from shardwright.shards.format import manifest
from shardwright.shards.format.empty import empty_folder
from shardwright.shards.format.names import shard_number
from shardwright.shards.format.parts import is_packed, parts_of
from shardwright.storage import files
from shardwright.storage.pieces import COPY
from shardwright.storage.urls import Location, is_within, joined, relative_name
from shardwright.store import provenance
from shardwright.validate import require_known

_GIVE = "give the folder of finished shards"
_IMAGES = "build from the images"


def require_alone(**given: object) -> None:
    """Raise if there is an argument that would choose other samples, or from elsewhere."""
    for name, value in given.items():
        if value is not None and value is not False and value != () and value != []:
            flag = "IMAGES" if name == "images" else f"--{name.replace('_', '-')}"
            what = f"{flag}: --from keeps the samples as they are in its shards"
            raise UsageError(what, fix="leave it out")


@dataclass(frozen=True)
class Shards:
    """A folder of finished shards, or the parts of a split folder."""

    folder: Path
    folders: Mapping[str | None, Path]  # by part
    manifests: Mapping[str | None, manifest.Manifest]

    @property
    def recipe(self) -> Recipe:
        """Give the recipe of the samples."""
        return next(iter(self.manifests.values())).samples_of()

    @property
    def made(self) -> dict[str, provenance.Entry]:
        """Give how each component was made, in the last run that knows."""
        return {name: entry for each in self._runs for name, entry in each.items()}

    @property
    def _runs(self) -> list[dict[str, provenance.Entry]]:
        return [
            provenance.entries_in(done.runs[number].provenance)
            for done in self.manifests.values()
            for number in done.by_run()
        ]

    def require_one_kind(self, kept: Sequence[Component]) -> None:
        """Raise if components that are copied were made in two ways."""
        last = {component.name: self.made.get(component.name) for component in kept}
        now = {name: entry.settings for name, entry in last.items() if entry}
        for each in self._runs:
            before = {name: entry.settings for name, entry in each.items()}
            changed, listed = provenance.differences(before, now)
            if changed:
                what = f"its runs made components in different ways ({listed})"
                fix = f"add them to --components, or {_IMAGES}"
                raise ProvenanceError(what, path=self.folder, fix=fix)

    def settings(self, output: Location) -> manifest.PackSettings:
        """Give the settings that chose the samples, as a build into a folder has them."""
        last = next(iter(self.manifests.values())).runs[-1]
        found = msgspec.structs.replace(last.settings, part=None)
        if (split := found.split) and split.by is not None and split.has_groups:
            by = relative_name(joined(self.folder, split.by), output)
            found = msgspec.structs.replace(found, split=replace(split, by=by))
        if not last.is_build:  # then lists of ids are named from the store, wherever it is
            return found
        moved: dict[str, manifest.IdsFile] = {}
        for name in FLAGS:
            if (ids := getattr(found, name)) is not None:
                path = relative_name(joined(self.folder, ids.path), output)
                moved[name] = manifest.IdsFile(path, ids.xxh3)
        return msgspec.structs.replace(found, **moved)

    def images(self, part: str | None) -> list[bytes]:
        """Give the images that the samples of a part were made of, as far as on record."""
        plans = [run.plan for run in self.manifests[part].runs]
        return [image.line for image in built.load(self.folders[part], plans)]

    def empties(self, kept: Sequence[Component]) -> dict[str, bytes]:
        """Read the empty caption of components, by the suffix of its members."""
        (folder, done), *_ = zip(self.folders.values(), self.manifests.values(), strict=True)
        listed = {name for component in kept for name in component.members} & done.empties().keys()
        paths = {name: empty_folder(folder) / name for name in sorted(listed)}
        found = files.read_existing(paths)
        for name, path in paths.items():
            if xxhash.xxh3_64_hexdigest(found.get(name, b"")) != done.empties()[name]:
                raise DamageError("is missing or damaged", path=path, fix=COPY)
        return found


def load(folder: Path, output: Location) -> Shards:
    """Find the shards of a folder; raise if they are not finished, or not apart from the output."""
    if not folder.is_dir():
        raise InputMissingError("no such folder", path=folder, fix=_GIVE)
    inside, around = is_within(output, folder), is_within(folder, output)
    if inside or around:
        how = "is" if inside and around else "holds" if around else "is in"
        what = f"{how} the folder of --from, which stays as it is"
        raise UsageError(what, path=output, fix="give another --output-dir")
    folders: dict[str | None, Path] = {None: folder}
    if not is_packed(folder):
        folders = dict(parts_of(folder).items()) or folders  # whose manifest may be no file
    manifests = {}
    for part, place in folders.items():
        if manifest.load_unfinished(place) is not None:
            raise UsageError("its last run was interrupted", path=place, fix="finish it first")
        if (done := manifest.load_manifest(place)) is not None:
            manifests[part] = done
    if not manifests:
        raise UsageError("has no manifest", path=folder, fix=_GIVE)
    for part, done in manifests.items():
        if part is None and (of := done.runs[-1].settings.part):
            what = f"is the part {of} of a split, and --from takes all of it"
            raise UsageError(what, path=folder, fix="give the folder above it")
        for entry in done.shards:
            check()
            path = folders[part] / entry.path
            if not path.is_file() or path.stat().st_size != entry.bytes:
                raise DamageError("is missing or incomplete", path=path, fix=COPY)
    if len({msgspec.json.encode(done.samples_of()) for done in manifests.values()}) > 1:
        what = f"its parts {' and '.join(map(str, manifests))} have different recipes"
        raise UsageError(what, path=folder, fix=_IMAGES)
    return Shards(folder, {part: folders[part] for part in manifests}, manifests)


@dataclass(frozen=True)
class Again:
    """What ``--from`` and ``--components`` ask for."""

    shards: Shards
    copying: Copying
    empties: Mapping[str, bytes]  # of what is copied

    def source(self, output: Location) -> list[str]:
        """Name the shards as a plan does: their place, and the xxh3 of their manifests."""
        # The manifests have the checksums of all else.
        data = msgspec.json.encode(list(self.shards.manifests.values()))
        return [relative_name(self.shards.folder, output), xxhash.xxh3_64_hexdigest(data)]

    @property
    def components(self) -> str:
        """Name the components that are made again, as the flag has them."""
        return ",".join(component.name for component in self.copying.make)

    def seen(self, component: Component) -> provenance.Settings:
        """Give the setting that says that a component was made from a lossy picture."""
        picture = self.copying.picture
        lossy = component.source == "image" and picture is not None and not _is_exact(picture)
        return {"from": picture.suffix} if picture and lossy else {}

    def layout(self) -> CopyPlan:
        """Give a task for each shard."""
        plan = CopyPlan(**vars(Plan.empty()), copying=self.copying, folders=self.shards.folders)
        for part, done in self.shards.manifests.items():
            for entry in sorted(done.shards, key=_order):
                samples = array("Q", range(entry.samples))
                number = len(plan.shards)
                plan.shards.append(Shard(number, part, entry.bucket, entry.path, samples))
                plan.entries.append(entry)
        return plan


@dataclass
class CopyPlan(Plan):
    """The shards of a folder, or of its parts, each of which becomes a shard."""

    copying: Copying
    folders: Mapping[str | None, Path]  # by part
    entries: list[manifest.ShardEntry] = field(default_factory=list)  # by the number of the task

    @property
    def inputs(self) -> int:
        return self.samples

    def inputs_of(self, shard: Shard) -> Inputs:
        entry = self.entries[shard.number]
        return FromShard(self.folders[shard.part], entry, self.copying, shard.samples)


def _order(entry: manifest.ShardEntry) -> tuple[Bucket, int]:
    return Bucket.parse(entry.bucket), shard_number(entry.path)


def asked(shards: Shards, wanted: Recipe, names: Sequence[str], file: RecipeFile) -> Again:
    """Choose what is made again; ``wanted`` is the recipe that is given, else that of the shards.

    Raise if that is not possible, or if it leaves open what the user wants.
    """
    before = shards.recipe
    if not names:
        what = "--from without --components"
        raise UsageError(what, fix="name the components to make again with --components")
    for name in names:
        require_known("--components", name, list(before.by_name | wanted.by_name))
    if file.origin is not None:
        _require_kept(before, wanted, names, file)
    new = {name: wanted.by_name.get(name) or before.by_name[name] for name in names}
    added = [c for name, c in wanted.by_name.items() if name in new and name not in before.by_name]
    changed = (new.get(component.name, component) for component in before.components)
    recipe = replace(before, components=(*changed, *added))
    require_valid(recipe, file.origin or shards.folder)
    make = tuple(component for component in recipe.components if component.name in new)
    copying = Copying(before, recipe, make, _picture(before, recipe, make, shards.folder))
    shards.require_one_kind(copying.kept)
    return Again(shards, copying, shards.empties(copying.kept))


def _require_kept(before: Recipe, wanted: Recipe, names: Sequence[str], file: RecipeFile) -> None:
    """Raise if a recipe changes more than the components that are named."""
    found = bucket_changes(before, file.recipe)
    # A shipped recipe has one because it must; it is not what the user asks for.
    if file.origins.get("images.fit") not in (None, *shipped()) and file.recipe.fit != before.fit:
        found.append(f"fit was {before.fit}, now {file.recipe.fit}")
    limits = asdict(before.selection)
    for key, limit in asdict(file.recipe.selection).items():
        if limit != limits[key]:
            was, now = ("not given" if each is None else each for each in (limits[key], limit))
            found.append(f"{key} was {was}, now {now}")
    if found:
        what = f"has another [images] than the shards of --from ({'; '.join(found)})"
        raise UsageError(what, path=file.origin, fix=f"leave it as it is, or {_IMAGES}")
    others = {}
    for name, component in wanted.by_name.items():
        old = before.by_name.get(name)
        listed = ["added"] if old is None else [*changes(old, component)]
        was, now = ((each or component).settings.get("model") for each in (old, component))
        listed += [] if was == now else [f"model was {was}, now {now}"]
        if listed and name not in names:
            others[name] = [f"{name}: {each}" for each in listed]
    if others:
        spelt = "; ".join(chain(*others.values()))
        what = f"has other components than the shards of --from ({spelt})"
        fix = f"add them: --components {','.join((*names, *others))}; or leave them as they are"
        raise UsageError(what, path=file.origin, fix=fix)


def _picture(
    before: Recipe, recipe: Recipe, make: Sequence[Component], folder: Path
) -> Component | None:
    """Choose the member that components are made from, if one is made from pictures."""
    needing = [component for component in make if component.source == "image"]
    if not needing:
        return None
    pictures = [c for c in before.components if not c.is_array]
    found = max(pictures, key=_is_exact, default=None)
    if found is None:
        what = f"{needing[0].name} is made from pictures, and the shards have no picture member"
        raise UsageError(what, path=folder, fix=_IMAGES)
    for component in needing:
        if recipe.fit == "bucket" and fit_of(component, recipe, None) is None:
            what = (
                f"{component.name} sees complete pictures, and {found.suffix} shows only what "
                "fits the bucket"
            )
            raise UsageError(what, path=folder, fix=_IMAGES)
    return found


def _is_exact(picture: Component) -> bool:
    """Whether a picture has the pixels that it was made of."""
    kind, quality = picture.settings.get("format"), picture.settings.get("quality")
    return kind == "png" or (kind, quality) == ("webp", 100)
