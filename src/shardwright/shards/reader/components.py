"""What a dataset knows besides its samples: how they were made, and the empty caption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash
from numpy.typing import NDArray

from shardwright.errors import DamageError, InputMissingError, UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import BFLOAT16, Recipe
from shardwright.recipes.compare import dtype_text, shape_text
from shardwright.shards.format import decode
from shardwright.shards.format.decode import BadMemberError
from shardwright.shards.format.empty import empty_members, empty_name
from shardwright.shards.format.manifest import Manifest
from shardwright.storage.pieces import COPY, Folder
from shardwright.store import provenance
from shardwright.store.arrays import widened


@dataclass(frozen=True)
class ComponentInfo:
    """What a component is, and how it was made as far as that is recorded."""

    name: str
    suffix: str  # of its member, which is its field in a sample
    source: str  # what it is made from: "image", "caption" or "elsewhere"
    mask: str | None  # the field with ones where its rows are tokens of the caption
    dtype: str  # of its values, for example "float16"
    shape: tuple[int | str, ...]  # as in a recipe file, for example (16, "height/8", "width/8")
    model: str | None
    scaling_factor: float | None  # of an autoencoder; not applied to the latents
    shift_factor: float | None
    settings: Mapping[str, Any]  # all that its encoder recorded


def components_of(found: Manifest) -> dict[str, ComponentInfo]:
    """Describe the components of a manifest, by name."""
    made: dict[str, provenance.Settings] = {}
    for number in found.by_run():  # in which equal components have equal settings
        made |= provenance.settings_in(found.runs[number].provenance)
    described = {}
    for component in found.samples_of().components:
        settings = made.get(component.name, {})
        described[component.name] = ComponentInfo(
            name=component.name,
            suffix=component.suffix,
            source=component.source,
            mask=component.mask.suffix if component.mask else None,
            dtype=dtype_text(component),
            shape=shape_text(component),
            model=settings.get("model"),
            scaling_factor=settings.get("scaling_factor"),
            shift_factor=settings.get("shift_factor"),
            settings=settings,
        )
    return described


class EmptyCaption(dict[str, NDArray[Any]]):
    """The arrays and masks of the empty caption, by the suffixes of their members.

    Values are as in a sample.
    """

    def __init__(self, folder: Folder, recipe: Recipe | None, checksums: Mapping[str, str]) -> None:
        self._folder, self._recipe = folder.name, recipe
        read = folder.read_files([empty_name(suffix) for suffix in checksums])
        for (suffix, checksum), data in zip(checksums.items(), read, strict=True):
            path = f"{folder.name}/{empty_name(suffix)}"
            if data is None:
                what = "no such file, but the manifest lists it"
                raise InputMissingError(what, path=path, fix=COPY)
            if xxhash.xxh3_64_hexdigest(data) != checksum:
                raise DamageError("is damaged, or not the one in the manifest", path=path, fix=COPY)
            try:
                array = decode.array(memoryview(data))
            except BadMemberError as error:
                raise DamageError(f"is damaged ({error})", path=path, fix=COPY) from None
            half = recipe is not None and recipe.arrays[suffix].dtype == BFLOAT16
            self[suffix] = widened(array) if half else array.copy()

    def __missing__(self, suffix: str) -> NDArray[Any]:
        if self._recipe is None:
            what = "has no manifest, so nothing is known of the empty caption"
            copy = f"copy {STATE_FOLDER} along with the shards"
            raise InputMissingError(what, path=self._folder, fix=copy)
        if suffix not in (texts := empty_members(self._recipe)):
            there = f"there are {', '.join(texts)}" if texts else None
            what = f"empty: {suffix} is not made from a caption"
            raise UsageError(what, path=self._folder, fix=there)
        what = f"has no {suffix} of the empty caption, because its store had none"
        fix = "run shardwright derive once more, then pack with --append"
        raise InputMissingError(what, path=self._folder, fix=fix)
