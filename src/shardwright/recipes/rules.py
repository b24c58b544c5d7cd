"""What every recipe must keep to, whether it comes from a file, a store or a manifest.

With these rules a folder cannot leave its store, and every loader splits the name of a tar member
where we do.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from shardwright.buckets import is_bucket
from shardwright.errors import DamageError
from shardwright.recipes import keys
from shardwright.recipes.build import Fault, table_faults
from shardwright.recipes.compare import dtype_text, shape_text
from shardwright.recipes.values import MEMBER_FIELDS, PIXELS, Component, Recipe

_RESERVED = {*MEMBER_FIELDS, "format_version", "crop"}  # fields of a record
_MOST_AXES = 32  # of an array, in every NumPy
_MOST_BYTES = (1 << 33) - (1 << 20)  # of a tar member, with room for its header


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
        yield from table_faults(table, _values(component), keys.COMPONENT)
        for key, what, fix in _in_component(component):
            yield Fault(table, key, what, fix)
    yield from _in_common(recipe)
    yield from _in_images(recipe)


def _values(component: Component) -> dict[str, object]:
    """Give the values of a component by their keys, as far as they are known."""
    mask = component.mask
    known = {"dtype": dtype_text(component), "shape": list(shape_text(component))}
    values = {
        **{key: value for key, value in component.settings.items() if key in keys.COMPONENT},
        **{key: value for key, value in known.items() if value},
        "folder": component.folder,
        "suffix": component.suffix,
        "field": component.field,
        "inline": list(component.inline),
    }
    if component.encoder is not None:
        values["encoder"] = component.encoder
    if mask is not None:
        values |= {"mask": {"field": mask.field, "suffix": mask.suffix}, "tokens": mask.length}
    return values


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
