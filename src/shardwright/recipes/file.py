"""Recipe files: TOML to a recipe, with the file that each value comes from.

A file that ``extends`` another overrides it key by key. What is wrong is reported with file, table
and key, before any work.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.buckets import Bucket, generate
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import keys
from shardwright.recipes.keys import ENCODERS, Key
from shardwright.recipes.values import MEMBER_FIELDS, Component, Mask, Recipe, Selection, Side

NAME = "shardwright.toml"
DEFAULT = "prx"
_SHIPPED = Path(__file__).parent / "shipped"
_TABLES = {"paths": keys.PATHS, "images": keys.IMAGES}
_RESOLUTION = {"step": 64, "max_aspect": 2.0}  # where a recipe has a resolution
# With another value of one of these, the model may give another shape.
_DECIDE_SHAPE = ("model", "subfolder", "output")
_PARTS = (
    "encoder",
    "dtype",
    "shape",
    "folder",
    "suffix",
    "inline",
    "source",
    "mask",
    "trim",
    "field",
)
_RESERVED = {*MEMBER_FIELDS, "format_version", "crop"} - {"caption"}

Table = dict[str, Any]


@dataclass(frozen=True)
class RecipeFile:
    """What a recipe file and the files that it extends say."""

    recipe: Recipe  # dtype and shape of a component may not be known yet
    paths: Mapping[str, Path]  # images, store and shards
    origin: str | None  # the file or name that was asked for; None if there is none
    origins: Mapping[str, str]  # of values, by TABLE.KEY or component.NAME.KEY
    tables: Table = dataclasses.field(repr=False)  # all values, as TOML has them

    def error(self, name: str, key: str, what: str, fix: str) -> UsageError:
        """Make the error for a key of a component."""
        path = self.origins.get(f"component.{name}.{key}", self.origin)
        return UsageError(f"[component.{name}] {key}: {what}", path=path, fix=fix)

    def override(
        self, *, fit: str | None = None, models: Mapping[str, str] | None = None
    ) -> RecipeFile:
        """Replace some values by those of flags."""
        tables: Table = {"component": {n: {"model": m} for n, m in (models or {}).items()}}
        if fit is not None:
            tables["images"] = {"fit": fit}
        if fit is None and not models:
            return self
        said = dict(self.origins)
        flags = {"images": "--fit", "component": "--model"}
        merged = _merge(self.tables, tables, flags.__getitem__, said)
        return dataclasses.replace(_built(merged, self.origin, said), paths=self.paths)


def shipped() -> list[str]:
    """Name the recipes that are part of Shardwright; the default comes first."""
    names = sorted(path.stem for path in _SHIPPED.glob("*.toml"))
    return sorted(names, key=lambda name: name != DEFAULT)


def read_shipped(name: str) -> RecipeFile:
    """Read a shipped recipe."""
    said: dict[str, str] = {}
    return _built(
        _merge({}, _parse(_SHIPPED / f"{name}.toml", name), lambda _: name, said), name, said
    )


def find(given: str | None = None) -> RecipeFile:
    """Read the recipe of that name or file; else the one of the working folder, else the default."""
    if given is None and os.path.lexists(NAME):
        given = NAME
    said: dict[str, str] = {}
    tables = _read(given or DEFAULT, Path(), (), said)
    return _built(tables, given, said)


def _read(given: str, folder: Path, above: tuple[Path, ...], said: dict[str, str]) -> Table:
    """Read a file over the one that it extends; a relative path begins at ``folder``."""
    path, label = _place(given, folder, above)
    if path.resolve() in (each.resolve() for each in above):
        chain = " extends ".join(map(str, (*above, path)))
        raise UsageError("extends itself", path=above[0], fix=f"break the circle: {chain}")
    table = _parse(path, label)
    base: Table = {}
    if "extends" in table:
        base = _read(table.pop("extends"), path.parent, (*above, path), said)
    return _merge(base, table, lambda _: label, said)


def _place(given: str, folder: Path, above: tuple[Path, ...]) -> tuple[Path, str]:
    """Find a recipe, and what to call it."""
    if given in shipped() and not (above and above[-1] == folder / given):
        return _SHIPPED / f"{given}.toml", given
    path = folder / Path(given).expanduser()
    if path.is_file():
        return path, str(path)
    if path.is_dir():
        raise UsageError("is a folder", path=path, fix="give a recipe file")
    names = ", ".join(shipped())
    what = "no such file" if os.sep in given or given.endswith(".toml") else "no such recipe"
    what += f", but {above[-1]} extends it" if above else ""
    raise InputMissingError(what, path=path, fix=f"give a file, or one of {names}")


def _parse(path: Path, label: str) -> Table:
    """Read one file, and check each key and value by itself."""
    try:
        table = tomllib.loads(path.read_bytes().decode())
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", path=label, fix="save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"is not TOML: {error}", path=label, fix="correct it") from None
    except OSError as error:
        raise InputMissingError(str(error.strerror), path=label) from None
    tables = {**_TABLES, "component": {}}
    for key in table:
        if key not in keys.TOP and key not in tables:
            raise UsageError(
                f"{key}: unknown", path=label, fix=keys.nearest(key, [*keys.TOP, *tables])
            )
    _check({k: v for k, v in table.items() if k in keys.TOP}, keys.TOP, "", label)
    for name, known in tables.items():
        if not isinstance(table.get(name, {}), dict):
            raise UsageError(f"{name}: is not a table", path=label, fix=f"write [{name}]")
        if name != "component":
            _check(table.get(name, {}), known, f"[{name}] ", label)
    for name, component in table.get("component", {}).items():
        if not isinstance(component, dict) or not keys.is_name(name):
            fix = "write [component.NAME], with lower-case letters, digits, - and _ in NAME"
            raise UsageError(f"[component.{name}]: is not a component", path=label, fix=fix)
        _check(component, keys.COMPONENT, f"[component.{name}] ", label)
    return table


def _check(table: Table, known: Mapping[str, Key], where: str, label: str) -> None:
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{where}{key}: unknown", path=label, fix=keys.nearest(key, known))
        if not known[key].allows(value):
            what, fix = f"{where}{key}: {value!r} is not valid", f"give {known[key].words}"
            raise UsageError(what, path=label, fix=fix)


def _merge(base: Table, over: Table, label: Any, said: dict[str, str]) -> Table:  # noqa: ANN401
    """Lay tables over others; ``said`` learns where each value comes from."""
    merged = {**base, **{key: value for key, value in over.items() if key in keys.TOP}}
    for name in _TABLES:
        new = over.get(name, {})
        old = dict(base.get(name, {}))
        for one, other in (("buckets", "resolution"), ("resolution", "buckets")):
            if one in new and other not in new:
                old.pop(other, None)
        merged[name] = old | new
        said |= {f"{name}.{key}": label(name) for key in new}
    merged["component"] = dict(base.get("component", {}))
    for name, new in over.get("component", {}).items():
        old = dict(merged["component"].get(name, {}))
        if new.get("encoder", old.get("encoder")) != old.get("encoder"):
            old = {}  # another kind of component
        if "shape" not in new and any(new.get(k, old.get(k)) != old.get(k) for k in _DECIDE_SHAPE):
            old.pop("shape", None)
        merged["component"][name] = old | new
        said |= {f"component.{name}.{key}": label("component") for key in new}
    return merged


def _built(tables: Table, origin: str | None, said: Mapping[str, str]) -> RecipeFile:
    """Make the recipe of merged tables, and check it as a whole."""
    made = RecipeFile(Recipe((), ()), {}, origin, said, tables)
    names = tables.get("components", list(tables["component"]))
    for name in names:
        if name not in tables["component"]:
            what, fix = f"components: {name} has no table", keys.nearest(name, tables["component"])
            raise UsageError(what, path=origin, fix=fix)
    components = tuple(_component(name, tables["component"][name], made) for name in names)
    if not components:
        raise UsageError("has no component", path=origin, fix="write [component.NAME]")
    _require_apart(components, made)
    images = tables["images"]
    limits = {f.name: images.get(f.name) for f in dataclasses.fields(Selection)}
    levels = _levels(images, made)
    recipe = Recipe(
        components,
        buckets=tuple(bucket for level in levels for bucket in level),
        levels=tuple(map(len, levels)) if len(levels) > 1 else (),
        fit=images.get("fit", "original"),
        selection=Selection(**limits),
    )
    paths = {name: Path(path) for name, path in tables["paths"].items()}
    return dataclasses.replace(made, recipe=recipe, paths=paths)


def _levels(images: Table, made: RecipeFile) -> list[list[Bucket]]:
    """Give the buckets of each resolution."""
    path = made.origin
    resolution, listed = images.get("resolution"), images.get("buckets")
    if resolution is None:
        for key in ("step", "max_aspect"):
            if key in images:
                what = f"[images] {key}: has no meaning without resolution"
                raise UsageError(what, path=path, fix="add resolution, or leave it out")
        if listed is None:
            raise UsageError("[images]: no buckets", path=path, fix="add buckets or resolution")
        levels = listed if isinstance(listed[0], list) else [listed]
        found = [[Bucket.parse(name) for name in level] for level in levels]
    elif listed is not None:
        what = "[images] buckets: there is a resolution too"
        raise UsageError(what, path=path, fix="leave out one of them")
    else:
        sides = resolution if isinstance(resolution, list) else [resolution]
        shape = {key: images.get(key, default) for key, default in _RESOLUTION.items()}
        found = [generate(side, shape["step"], shape["max_aspect"]) for side in sorted(sides)]
        for side, level in zip(sorted(sides), found, strict=True):
            if not level:
                what = f"[images] step: {shape['step']} is more than the resolution {side}"
                raise UsageError(what, path=path, fix="give a smaller step")
    every = [bucket for level in found for bucket in level]
    if len(set(every)) < len(every):
        twice = next(str(bucket) for bucket in every if every.count(bucket) > 1)
        raise UsageError(f"[images] {twice}: listed twice", path=path, fix="list it once")
    return found


def _component(name: str, table: Table, made: RecipeFile) -> Component:
    """Make a component of its table."""
    encoder = table.get("encoder")
    kind = ENCODERS.get(encoder or "")
    allowed = keys.keys_of(encoder)
    for key in table:
        if key not in allowed:
            of = f'encoder "{encoder}"' if encoder else "a component without encoder"
            raise made.error(name, key, f"{of} has no such key", keys.nearest(key, allowed))
    full: Table = {**(kind.defaults if kind else {}), **table}
    if kind and "model" in kind.keys and "model" not in full:
        raise made.error(name, "model", "is missing", "give a hub id or a folder")
    if kind and kind.outputs and full["output"] not in kind.outputs:
        what, fix = f"{full['output']!r} is not valid", keys.nearest(full["output"], kind.outputs)
        raise made.error(name, "output", what, fix)
    if not kind:  # nobody else knows them
        for key in ("dtype", "shape"):
            if key not in full:
                raise made.error(name, key, "is missing", f"give {keys.COMPONENT[key].words}")
    source = (
        "elsewhere" if encoder is None else kind.source if kind else full.get("source", "image")
    )
    vector = full.get("output", "hidden") != "hidden" and source == "caption"
    tokens = full.get("tokens")
    shape = tuple(keys.axis(axis, tokens) for axis in full.get("shape", ()))
    if None in shape:
        raise made.error(name, "tokens", "is missing", "give a number, because shape names it")
    suffix = full.get("suffix", f"{name}.{full['format'] if 'format' in full else 'npy'}")
    dtype = keys.DTYPES[full["dtype"]] if "dtype" in full else ""
    if encoder == "picture":
        dtype, shape = "|u1", (Side("height", 1), Side("width", 1), 3)
    if suffix.rpartition(".")[2] != full.get("format", "npy"):
        raise made.error(
            name, "suffix", f"{suffix!r} is not valid", f"end it with .{full.get('format', 'npy')}"
        )
    mask = None
    if (wanted := full.get("mask", False)) and not vector:
        said = wanted if isinstance(wanted, dict) else {}
        if tokens is None:
            raise made.error(name, "tokens", "is missing", "give a number, because it has a mask")
        mask = Mask(
            said.get("field", f"{name}_mask"), said.get("suffix", f"{name}_mask.npy"), tokens
        )
        if not keys.COMPONENT["suffix"].allows(mask.suffix) or not mask.suffix.endswith(".npy"):
            raise made.error(
                name, "mask", f"suffix {mask.suffix!r} is not valid", "end it with .npy"
            )
    if full.get("trim") and mask is None:
        raise made.error(name, "trim", "needs a mask", "add mask = true, or leave trim out")
    settings = {key: value for key, value in full.items() if key not in _PARTS}
    if vector:
        settings.pop("layer", None)
    return Component(
        *(name, full.get("folder", name), suffix, dtype, shape),  # type: ignore[arg-type]
        inline=tuple(full.get("inline", ())),
        source=source,
        mask=mask,
        field=full.get("field", "caption"),
        trim=full.get("trim", False),
        encoder=encoder,
        settings=settings,
    )


def _require_apart(components: tuple[Component, ...], made: RecipeFile) -> None:
    """Raise if two components would share a folder, a member or a record field."""
    for key, named in (("folder", _folders), ("suffix", _suffixes), ("field", _fields)):
        owners: dict[str, str] = {}
        for component in components:
            for value in named(component):
                other = owners.setdefault(value.lower(), component.name)
                if other != component.name:
                    what = f"{value!r} is that of [component.{other}] too"
                    raise made.error(component.name, key, what, "give each its own")
    owned = {field for component in components for field in _fields(component)}
    for component in components:
        reserved = _RESERVED & {component.field, *_fields(component)}
        if component.field in owned or reserved or "caption" in _fields(component):
            what = f"{min(reserved or {component.field})!r} has another meaning in a record"
            raise made.error(component.name, "field", what, "choose another name")


def _folders(component: Component) -> Iterator[str]:
    yield component.folder


def _suffixes(component: Component) -> Iterator[str]:
    yield component.suffix
    if component.mask is not None:
        yield component.mask.suffix


def _fields(component: Component) -> Iterator[str]:
    """Name the record fields that hold something of a component."""
    yield from component.inline
    if component.mask is not None:
        yield component.mask.field
