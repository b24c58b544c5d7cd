"""Recipe files: TOML to a recipe, with the file that each value comes from.

A file that ``extends`` another overrides it key by key. What is wrong is reported with file, table
and key, before any work.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwright import regular
from shardwright.errors import InputMissingError, UsageError, refusal
from shardwright.recipes import keys
from shardwright.recipes.split import BY, TABLE, Split, read_split
from shardwright.recipes.tables import Fault, Table, Tables, build, faults, place, table_faults
from shardwright.recipes.values import Recipe

NAME = "shardwright.toml"
DEFAULT = "prx"
_SHIPPED = Path(__file__).parent / "shipped"
_MOST_BYTES = 1 << 18  # of a file
_MOST_DOTS = 1000  # in a line: the time that tomllib needs for a key grows with their square
_A_TABLE = keys.Key("a table", lambda v: isinstance(v, dict), "", "")
# With another value of one of these, the model may give another shape.
_DECIDE_SHAPE = ("model", "subfolder", "output")


@dataclass(frozen=True)
class RecipeFile:
    """What a recipe file and the files that it extends say."""

    recipe: Recipe  # dtype and shape of a component may not be known yet
    paths: Mapping[str, str]  # images, store and shards; paths or URLs
    origin: str | None  # the file or name that was asked for; None if there is none
    origins: Mapping[str, str]  # of values, by TABLE.KEY or component.NAME.KEY
    tables: Tables = dataclasses.field(repr=False)  # all values, as TOML has them
    split: Split | None = None

    @property
    def gpus_per_worker(self) -> float | None:
        """How many GPUs, or which part of one, its encoders need on a cluster."""
        return self.tables["ray"].get("gpus_per_worker")

    def error(self, name: str, key: str, what: str, fix: str) -> UsageError:
        """Make the error for a key of a component."""
        return _error(Fault(f"component.{name}", key, what, fix), self.origins, self.origin)


def shipped() -> dict[str, Path]:
    """Give the files of the recipes that are part of Shardwright by name; the default is first."""
    files = sorted(_SHIPPED.glob("*.toml"), key=lambda file: (file.stem != DEFAULT, file.stem))
    return {file.stem: file for file in files}


def find(given: str | os.PathLike[str] | None = None) -> RecipeFile:
    """Read the recipe of this name or file; else of the working folder's file, else the default."""
    if given is None and os.path.lexists(NAME):
        given = NAME
    origin = None if given is None else os.fspath(given)
    return _read(DEFAULT if origin is None else origin, origin)


def _read(given: str, origin: str | None) -> RecipeFile:
    """Read a file and those that it extends, then lay each over the one it extends."""
    merged: Tables = {}
    origins: dict[str, str] = {}
    for label, tables in _layers(given, ()):
        merged = _merge(merged, tables, label, origins)
    if not merged["images"].keys() & {"buckets", "resolution"}:
        merged["images"]["buckets"] = _parse(shipped()[DEFAULT], DEFAULT)["images"]["buckets"]
        origins["images.buckets"] = DEFAULT
    return _built(merged, origins, origin)


def _layers(given: str, above: tuple[Path, ...]) -> Iterator[tuple[str, Tables]]:
    """Read a file after the one that it extends, each with what to call it."""
    path, label = _place(given, above)
    if any(path.samefile(each) for each in above):
        circle = " extends ".join(map(str, (*above, path)))
        raise UsageError("extends itself", path=label, fix=f"break the circle: {circle}")
    tables = _parse(path, label)
    if (base := tables[""].pop("extends", None)) is not None:
        yield from _layers(base, (*above, path))
    yield label, tables


def _place(given: str, above: tuple[Path, ...]) -> tuple[Path, str]:
    """Find a recipe, and what to call it; a relative path begins at the file that extends it."""
    if (known := shipped().get(given)) is not None:
        return known, given
    path = (above[-1].parent if above else Path()) / os.path.expanduser(given)
    label = keys.brief(given)[1:-1]
    try:
        if path.is_file():
            return path, str(path)
        what = "is not a file" if path.exists() else "no such recipe"
    except (OSError, ValueError):  # too long, or with a NUL
        what = "no such recipe"
    what += f", but {above[-1]} extends it" if above else ""
    raise InputMissingError(what, path=label, fix=f"give a file, or one of {', '.join(shipped())}")


def _parse(path: Path, label: str) -> Tables:
    """Read one file, and check each key and value by itself."""
    try:
        with regular.opened(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise refusal(path, error) from None
    if len(data) > _MOST_BYTES or max(line.count(b".") for line in data.split(b"\n")) > _MOST_DOTS:
        raise UsageError("is too large for a recipe", path=label, fix="give a recipe file")
    try:
        document = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", path=label, fix="save it as UTF-8") from None
    except RecursionError:
        raise UsageError("is nested too deeply", path=label, fix="correct it") from None
    except ValueError as error:  # of tomllib, with line and column; or a number that is too long
        raise UsageError(f"is not TOML ({error})", path=label, fix="correct it") from None
    return _tables(document, label)


def _tables(document: Table, label: str) -> Tables:
    """Check a document, and give its tables by their names."""
    _check(
        document, {**keys.TOP, **dict.fromkeys((*keys.TABLES, "component"), _A_TABLE)}, "", label
    )
    tables: Tables = {"": {key: value for key, value in document.items() if key in keys.TOP}}
    for name, known in keys.TABLES.items():
        tables[name] = document.get(name, {})
        if name == "split":  # besides, a part may have any name
            if document.get(name) == {}:
                raise UsageError(f"{TABLE} is empty", path=label, fix="add a part, or remove it")
            known = {**dict.fromkeys(tables[name], keys.SHARE), BY: keys.SPLIT[BY]}
        _check(tables[name], known, name, label)
    for name, table in document.get("component", {}).items():
        if not isinstance(table, dict) or not keys.is_name(name):
            what = f"[component.{keys.spelt(name)}]: is not a component"
            fix = f"write [component.NAME], with {keys.NAME_WORDS} in NAME"
            raise UsageError(what, path=label, fix=fix)
        if name not in document.get("components", [name]):
            what = f"[component.{name}]: is not listed in components"
            raise UsageError(what, path=label, fix="add it there, or remove the table")
        _check(table, keys.COMPONENT, f"component.{name}", label)
        tables[f"component.{name}"] = table
    return tables


def _check(table: Table, known: Mapping[str, keys.Key], name: str, label: str) -> None:
    for fault in table_faults(name, table, known):
        raise UsageError(str(fault), path=label, fix=fault.fix)


def _merge(base: Tables, over: Tables, label: str, origins: dict[str, str]) -> Tables:
    """Lay tables over others; ``origins`` learns where each value comes from."""
    merged = {name: dict(table) for name, table in base.items()}
    for name, new in over.items():
        old = merged.setdefault(name, {})
        for key in _replaced(name, old, new):
            del old[key]
            origins.pop(place(name, key), None)
        old |= new
        origins |= {place(name, key): label for key in new}
    if "components" in merged[""] and "components" not in over.get("", {}):
        added = (name.removeprefix("component.") for name in over if name.startswith("component."))
        merged[""]["components"] = list(dict.fromkeys((*merged[""]["components"], *added)))
    return merged


def _replaced(name: str, old: Table, new: Table) -> list[str]:
    """Name the keys that new ones of the same table make void."""
    gone: Iterable[str] = ()
    if name == "images" and "resolution" in new:
        gone = ("buckets",)
    elif name == "images" and "buckets" in new:
        gone = ("resolution", *keys.OF_RESOLUTION)
    elif new.get("encoder", old.get("encoder")) != old.get("encoder"):
        gone = old  # another kind of component
    elif any(new.get(key, old.get(key)) != old.get(key) for key in _DECIDE_SHAPE):
        gone = ("shape",)
    return [key for key in gone if key in old]


def _built(tables: Tables, origins: Mapping[str, str], origin: str | None) -> RecipeFile:
    """Make the recipe of merged tables, and check it."""
    try:
        recipe = build(tables)
        for found in faults(recipe):
            raise found
    except Fault as fault:
        raise _error(fault, origins, origin) from None
    paths = {**keys.DEFAULT_PATHS, **tables["paths"]}
    shares = {name: share for name, share in tables["split"].items() if name != BY}
    try:
        split = read_split(shares if tables["split"] else None, tables["split"].get(BY), TABLE)
    except UsageError as error:
        path = next((origins[place("split", name)] for name in tables["split"]), origin)
        raise UsageError(error.what, path=path, fix=error.fix) from None
    return RecipeFile(recipe, paths, origin, origins, tables, split)


def _error(fault: Fault, origins: Mapping[str, str], origin: str | None) -> UsageError:
    path = origins.get(place(fault.table, fault.key), origin)
    if path in shipped():  # right by itself: the mistake is in what extends it
        path = origin
    return UsageError(str(fault), path=path, fix=fault.fix)
