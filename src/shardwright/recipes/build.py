"""From the tables of a recipe file to a recipe: defaults, and what one key means for another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, Literal

from shardwright.buckets import Bucket, generate
from shardwright.recipes import keys
from shardwright.recipes.compare import dtype_text, shape_text
from shardwright.recipes.values import (
    PIXELS,
    Component,
    Mask,
    Recipe,
    Selection,
    Side,
    usual_dtype,
)

Table = dict[str, Any]
Tables = dict[str, Table]  # by name: "paths", "images", "component.NAME"; "" for what is above them

_DEFAULTS = {"field": "caption", "trim": False, "source": "image"}  # where there is such a key
# What a component itself has; everything else is for its encoder.
_NOT_SETTINGS = {
    *("encoder", "source", "field", "mask", "trim"),
    *("dtype", "shape", "folder", "suffix", "inline"),
}


def place(table: str, key: str) -> str:
    """Spell the place of a value, for a mapping of all of them."""
    return f"{table}.{key}" if table else key


@dataclasses.dataclass(eq=False)
class Fault(Exception):  # noqa: N818 - turned into an error where the file is known
    """What is wrong in a recipe, and how to fix it."""

    table: str  # "images" or "component.NAME"; empty for a key above all tables
    key: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"[{self.table}] {self.key}: {self.what}".removeprefix("[] ")


def table_faults(
    table: str, values: Mapping[str, Any], known: Mapping[str, keys.Key]
) -> Iterator[Fault]:
    """Check each key and value of a table by itself."""
    for key, value in values.items():
        if key not in known:
            yield Fault(table, keys.spelt(key), "no such key", keys.nearest(key, known))
        elif not known[key].allows(value):
            yield Fault(table, key, f"{keys.brief(value)} is not valid", f"give {known[key].words}")


def build(tables: Tables) -> Recipe:
    """Make a recipe of merged tables, whose values are valid each by itself."""
    images = tables["images"]
    levels = _levels(images)
    return Recipe(
        components=tuple(_component(name, tables[f"component.{name}"]) for name in chosen(tables)),
        buckets=tuple(bucket for level in levels for bucket in level),
        levels=tuple(map(len, levels)) if len(levels) > 1 else (),
        fit=images.get("fit", keys.FITS[0]),
        selection=Selection(
            **{field.name: images.get(field.name) for field in dataclasses.fields(Selection)}
        ),
        decode=images.get("decode", keys.DECODES[0]),
        ids=images.get("ids", keys.IDS[0]),
    )


def chosen(tables: Tables) -> list[str]:
    """Name the components in order: those that are listed, else all that have a table."""
    known = [name.removeprefix("component.") for name in tables if name.startswith("component.")]
    names: list[str] = tables[""].get("components", known)
    for name in names:
        if name not in known:
            what = f"there is no table [component.{keys.spelt(name)}]"
            fix = keys.nearest(name, known) if known else "write it"
            raise Fault("", "components", what, fix)
    return names


def _levels(images: Table) -> list[list[Bucket]]:
    """Give the buckets of each resolution, the smallest first."""
    resolution, listed = images.get("resolution"), images.get("buckets")
    if resolution is None:
        for key in keys.OF_RESOLUTION:
            if key in images:
                raise Fault("images", key, "has no meaning without resolution", "add resolution")
        if listed is None:
            raise Fault("images", "buckets", "is missing", "add buckets or resolution")
        levels = listed if isinstance(listed[0], list) else [listed]
        found = [[Bucket.parse(name) for name in level] for level in levels]
        return sorted(
            found, key=lambda level: max(bucket.width * bucket.height for bucket in level)
        )
    if listed is not None:
        raise Fault("images", "buckets", "there is a resolution too", "leave out one of them")
    step, aspect = (images.get(key, default) for key, default in keys.OF_RESOLUTION.items())
    sides = resolution if isinstance(resolution, list) else [resolution]
    try:
        return [generate(side, step, aspect) for side in sorted(sides)]
    except ValueError as error:
        raise Fault("images", "step", str(error), "give another step or resolution") from None


def filled(name: str, table: Table) -> Table:
    """Give a component's table with its defaults, in the order to write it."""
    encoder = table.get("encoder")
    kind = keys.ENCODERS.get(encoder or "")
    full = {**_DEFAULTS, "folder": name, **(kind.defaults if kind else {}), **table}
    full.setdefault("suffix", f"{name}.{full.get('format', 'npy')}")
    if kind and kind.source == "caption" and full.get("output", "hidden") != "hidden":
        # The vector of a caption is of no layer, and has no tokens that a mask could choose from.
        full = {key: value for key, value in full.items() if key not in ("layer", "mask")}
    return {key: full[key] for key in keys.keys_of(encoder) if key in full}


def _component(name: str, table: Table) -> Component:
    """Make a component of its table."""
    here = f"component.{name}"
    encoder = table.get("encoder")
    kind = keys.ENCODERS.get(encoder or "")
    allowed = keys.keys_of(encoder)
    for key in table:
        if key not in allowed:
            of = f'encoder "{encoder}"' if encoder else "a component without encoder"
            fix = keys.nearest(key, allowed) if encoder else "add encoder, or leave it out"
            raise Fault(here, key, f"{of} has no such key", fix)
    full = filled(name, table)
    # A shipped encoder knows its dtype and shape, but not its model; of others nothing is known.
    for key in ("dtype", "shape") if kind is None else ("model",):
        if key in allowed and key not in full:
            what, fix = "is missing", f"give {keys.COMPONENT[key].words}"
            if encoder and kind is None and ":" not in encoder:  # probably a typing mistake
                what += f", and {keys.brief(encoder)} is not a shipped encoder"
                fix += f", or {keys.nearest(encoder, keys.ENCODERS)}"
            raise Fault(here, key, what, fix)
    if kind and kind.outputs and full["output"] not in kind.outputs:
        what = f"{keys.brief(full['output'])} is not an output of this encoder"
        raise Fault(here, "output", what, keys.nearest(full["output"], kind.outputs))
    shape = _shape(here, full)
    dtype = keys.DTYPES[full["dtype"]] if "dtype" in full else usual_dtype(shape)
    if encoder == "picture":
        dtype, shape = "|u1", PIXELS
    return Component(
        *(name, full["folder"], full["suffix"], dtype, shape),
        inline=tuple(full.get("inline", ())),
        source=kind.source if kind else full.get("source", "elsewhere"),
        mask=_mask(name, full) if full.get("mask") else None,
        field=full.get("field", _DEFAULTS["field"]),
        trim=full.get("trim", False),
        encoder=encoder,
        settings={key: value for key, value in full.items() if key not in _NOT_SETTINGS},
    )


def _mask(name: str, full: Table) -> Mask:
    """Make the mask of a component, whose length is the key ``tokens``."""
    if "tokens" not in full:
        raise Fault(f"component.{name}", "tokens", "is missing", "give the length of the mask")
    said = full["mask"] if isinstance(full["mask"], dict) else {}
    field, suffix = said.get("field", f"{name}_mask"), said.get("suffix", f"{name}_mask.npy")
    return Mask(field, suffix, full["tokens"])


def _shape(here: str, full: Table) -> tuple[int | Side | Literal["any"], ...]:
    """Read the axes, of which ``"tokens"`` is as long as the key of that name says."""
    given = full.get("shape", [])
    if keys.TOKENS in given and keys.TOKENS not in full:
        raise Fault(here, "shape", 'there is no key "tokens" here', "give a number instead")
    return tuple(keys.axis(axis, full.get("tokens", 1)) for axis in given)


def tables_of(recipe: Recipe) -> Tables:
    """Give the tables from which a complete recipe is made; the inverse of ``build``."""
    names = list(map(str, recipe.buckets))
    ends = list(accumulate(recipe.levels))
    limits = dataclasses.asdict(recipe.selection).items()
    images = {
        "fit": recipe.fit,
        "buckets": [names[a:b] for a, b in pairwise((0, *ends))] or names,
        **{key: value for key, value in limits if value is not None},
        "decode": recipe.decode,
        "ids": recipe.ids,
    }
    return {"": {}, "paths": {}, "images": images} | {
        f"component.{component.name}": _table_of(component) for component in recipe.components
    }


def _table_of(component: Component) -> Table:
    mask = component.mask
    table = {
        **component.settings,
        "encoder": component.encoder,
        "source": component.source,
        "field": component.field,
        "mask": {"field": mask.field, "suffix": mask.suffix} if mask else False,
        "trim": component.trim,
        "dtype": dtype_text(component),
        "shape": list(shape_text(component)),
        "folder": component.folder,
        "suffix": component.suffix,
        "inline": list(component.inline),
    }
    return {key: table[key] for key in keys.keys_of(component.encoder) if table.get(key, []) != []}
