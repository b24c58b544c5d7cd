"""From the tables of a recipe file to a recipe, and back; and the rules that every recipe keeps to.

The rules hold for a recipe from a file, a store or a manifest. With them a folder cannot leave its
store, and every loader splits the name of a tar member where we do.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, Literal

from shardwright.buckets import Bucket, generate, is_bucket
from shardwright.errors import DamageError
from shardwright.recipes import keys
from shardwright.recipes.values import (
    DTYPES,
    MEMBER_FIELDS,
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
_RESERVED = {*MEMBER_FIELDS, "format_version", "crop"}  # fields of a record
_MOST_AXES = 32  # of an array, in every NumPy
_MOST_BYTES = (1 << 33) - (1 << 20)  # of a tar member, with room for its header
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
    dtype = DTYPES[full["dtype"]] if "dtype" in full else usual_dtype(shape)
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
        f"component.{component.name}": {
            key: value
            for key in keys.keys_of(component.encoder)
            if (value := table_of(component).get(key, [])) != []
        }
        for component in recipe.components
    }


def table_of(component: Component) -> Table:
    """Give all values of a component by their keys, also those that its encoder does not have."""
    mask = component.mask
    return {
        **component.settings,
        "encoder": component.encoder,
        "source": component.source,
        "dtype": component.dtype_text,
        "shape": list(component.shape_text),
        "folder": component.folder,
        "suffix": component.suffix,
        "inline": list(component.inline),
        "field": component.field,
        "trim": component.trim,
        "mask": {"field": mask.field, "suffix": mask.suffix} if mask else False,
    }


def decode(data: bytes, path: object) -> Recipe:
    """Read a recipe from a store; the path is for errors."""
    import msgspec  # here, to keep --help fast

    try:
        recipe = msgspec.json.decode(data, type=Recipe)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamageError(f"is not a recipe ({error})", path=path, fix="restore it") from None
    require_valid(recipe, path)
    return recipe


def require_valid(recipe: Recipe, path: object) -> None:
    """Raise if a recipe from a store or a manifest breaks a rule or is incomplete."""
    for fault in faults(recipe):
        raise DamageError(f"is not a recipe ({fault})", path=path, fix="restore it")
    for component in recipe.components:
        if not component.is_known:
            what = f"is not a recipe ([component.{component.name}] has no dtype or no shape)"
            raise DamageError(what, path=path, fix="restore it")


def faults(recipe: Recipe) -> Iterator[Fault]:
    """Find what is wrong."""
    if not recipe.components:
        yield Fault("", "components", "there are none", "write [component.NAME]")
    for name, count in Counter(component.name for component in recipe.components).items():
        if count > 1:
            what = f"{keys.brief(name)} is listed {count:,} times"
            yield Fault("", "components", what, "list it once")
    for component in recipe.components:
        table = f"component.{component.name}"
        if not keys.is_name(component.name):
            what = f"{keys.brief(component.name)} is not a name"
            yield Fault("", "component", what, f"give {keys.NAME_WORDS}")
        yield from table_faults(table, _known(component), keys.COMPONENT)
        for key, what, fix in _in_component(component):
            yield Fault(table, key, what, fix)
    yield from _in_common(recipe)
    yield from _in_images(recipe)


def _known(component: Component) -> Table:
    """Give the values of a component that a rule is about."""
    table = table_of(component)
    if component.mask is not None:
        table["tokens"] = component.mask.length
    unknown: Table = {"encoder": None, "dtype": "", "shape": []}
    return {
        key: value
        for key, value in table.items()
        if key in keys.COMPONENT and key != "source" and value != unknown.get(key, ...)
    }


def _in_component(component: Component) -> Iterator[tuple[str, str, str]]:
    """Check what the values of a component are to each other."""
    shape, mask = component.shape, component.mask
    if mask is not None and mask.dtype != "|u1":
        yield "mask", f"{keys.brief(mask.dtype)} is not its dtype", "give |u1"
    end = component.settings.get("format") if component.encoder == "picture" else "npy"
    if component.extension != f".{end}":
        yield "suffix", f"{keys.brief(component.suffix)} is not valid", f"end it with .{end}"
    if component.trim and mask is None:
        yield "trim", "needs a mask", "add mask = true, or leave trim out"
    if len(shape) > _MOST_AXES:
        yield "shape", f"has {len(shape):,} axes", f"give at most {_MOST_AXES}"
    elif component.is_known:
        least = tuple(axis if isinstance(axis, int) else 1 for axis in shape)
        if component.nbytes(least) > _MOST_BYTES:
            yield "shape", "an array is larger than a tar member can be", "give less than 8 GiB"
    if component.source == "caption" and component.follows_picture:
        yield "shape", "follows the picture, but a caption has no sides", "give numbers"
    if "fit" in component.settings and (component.source == "caption" or component.follows_picture):
        what = "is only for arrays of pictures whose shape does not follow the picture"
        yield "fit", what, "leave it out"
    if component.encoder == "picture" and (component.dtype, shape) != ("|u1", PIXELS):
        yield "shape", "is not that of a picture", "leave dtype and shape out"
    if component.trim and shape and mask is not None and shape[0] != mask.length:
        what = f"does not begin with the {mask.length:,} tokens of the mask, as trim needs"
        yield "shape", what, f"begin it with {mask.length}, or leave trim out"


def _in_common(recipe: Recipe) -> Iterator[Fault]:
    """Find what two components have in common but may not, and fields with another meaning."""
    owners: dict[tuple[str, str], str] = {}
    for component in recipe.components:
        table, mask = f"component.{component.name}", component.mask
        owned = [("folder", "folder", component.folder), ("suffix", "suffix", component.suffix)]
        owned += (("inline", "field", name) for name in component.inline)
        if mask is not None:
            owned += [("mask", "suffix", mask.suffix), ("mask", "field", mask.field)]
        for key, kind, value in owned:
            place = (kind, value.lower())
            if place in owners:
                what = f"{keys.brief(value)} is that of [component.{owners[place]}] too"
                yield Fault(table, key, what, "give each its own")
            elif kind == "field" and place[1] in _RESERVED:
                yield _reserved(table, key, value)
            owners[place] = component.name
    for component in recipe.components:
        name = component.field.lower()
        if ("field", name) in owners or name in _RESERVED - {"caption"}:
            yield _reserved(f"component.{component.name}", "field", component.field)


def _reserved(table: str, key: str, field: str) -> Fault:
    what = f"{keys.brief(field)} has another meaning in a record"
    return Fault(table, key, what, "choose another name")


def _in_images(recipe: Recipe) -> Iterator[Fault]:
    """Check the buckets and how pictures are chosen for them."""
    for bucket, count in Counter(recipe.buckets).items():
        if not is_bucket(str(bucket)):
            yield Fault("images", "buckets", f"{bucket} is not a bucket", "give WIDTHxHEIGHT")
        if count > 1:
            yield Fault("images", "buckets", f"{bucket} is listed {count:,} times", "list it once")
    if not recipe.buckets:
        yield Fault("images", "buckets", "there are none", "add buckets or resolution")
    if recipe.levels and (min(recipe.levels) < 1 or sum(recipe.levels) != len(recipe.buckets)):
        yield Fault("images", "buckets", "the levels do not add up", "give each its buckets")
    chosen = {"fit": recipe.fit, "decode": recipe.decode, "ids": recipe.ids}
    limits = dataclasses.asdict(recipe.selection).items()
    chosen |= {key: value for key, value in limits if value is not None}
    yield from table_faults("images", chosen, keys.IMAGES)
