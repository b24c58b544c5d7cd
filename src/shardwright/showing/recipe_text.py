"""Finding the recipe in force, and writing it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwright import recipes, regular
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component, RecipeFile, file, keys
from shardwright.recipes.tables import Table, Tables, chosen, filled, place, tables_of
from shardwright.showing import RecipeComponent, RecipeSummary, ShippedRecipe
from shardwright.storage import files
from shardwright.store.store import Store, recorded
from shardwright.text import shown

_WIDTH = 100  # of a line
_LONGEST_LIST = 88  # on one line, with room for a comment
_FARTHEST = 56  # column of a comment behind a value
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def shipped() -> dict[str, ShippedRecipe]:
    """Describe the shipped recipes by the first sentence of their files."""
    found = {}
    for name, path in file.shipped().items():
        text = regular.read(path).decode()
        comment = text.partition("\n\n")[0].replace("\n# ", " ")
        about = comment.removeprefix("# ").partition(". ")[0].removesuffix(".")
        found[name] = ShippedRecipe(about, list(recipes.find(name).recipe.by_name))
    return found


def show(given: str | None, store: Path | None, init: Path | None) -> RecipeSummary:
    """Show the recipe of a file, a name or a store, else that in force; write it if asked to."""
    found = _in_force(given) if store is None else _of_store(store)
    if found is None:
        fix = "give the folder of a store that shardwright derive has written to"
        raise InputMissingError("has no recipe", path=store, fix=fix)
    recipe, origin, full = found.recipe, found.origin or file.DEFAULT, complete(found.tables)
    if init is not None:
        _write(init, starting(full, origin))
    return RecipeSummary(
        origin=origin,
        toml=with_origins(full, found.origins),
        components=[_row(component) for component in recipe.components],
        buckets=[str(bucket) for bucket in recipe.buckets],
        written=None if init is None else str(init),
    )


def _in_force(given: str | None) -> RecipeFile:
    found = recipes.find(given)
    return (_of_store(Path(found.paths["store"])) if found.origin is None else None) or found


def _of_store(folder: Path) -> RecipeFile | None:
    """Give the recipe of a store as a file would; None if no run of ours has written to it."""
    if recorded(folder) is None:
        return None
    recipe = Store.at(folder).recipe
    origin, tables = str(folder), tables_of(recipe)
    origins = {place(name, key): origin for name in tables for key in tables[name]}
    return RecipeFile(recipe, {}, origin, origins, tables)


def _write(path: Path, text: str) -> None:
    if str(path) in file.shipped():
        fix = f"write shardwright recipe {path} --init to start from it"
        raise UsageError("is the name of a shipped recipe, not a file", path=path, fix=fix)
    if os.path.lexists(path):
        fix = "give another file to --init, or remove this one"
        raise UsageError("exists already", path=path, fix=fix)
    files.write(path, text.encode())


def _row(component: Component) -> RecipeComponent:
    return RecipeComponent(
        name=component.name,
        member=component.suffix,
        dtype=component.dtype_text or None,
        shape=list(component.shape_text) or None,
        trim=component.trim,
        encoder=component.encoder,
        model=component.settings.get("model"),
    )


def complete(tables: Tables) -> Tables:
    """Give the tables in use with their defaults, in the order to write them."""
    defaults = {"fit": keys.FITS[0], "decode": keys.DECODES[0], "ids": keys.IDS[0]}
    images = {**defaults, **tables["images"]}
    if "resolution" in images:
        images = {**images, **keys.OF_RESOLUTION, **tables["images"]}
    full: Tables = {
        "": tables[""],
        "paths": {**keys.DEFAULT_PATHS, **tables["paths"]},
        "images": {key: images[key] for key in keys.IMAGES if key in images},
        "split": tables.get("split", {}),
        "ray": tables.get("ray", {}),
    }
    for name in chosen(tables):
        full[f"component.{name}"] = filled(name, tables[f"component.{name}"])
    return full


def with_origins(tables: Tables, origins: Mapping[str, str]) -> str:
    """Write complete tables, with the origin of each value behind it."""
    parts = []
    for name, table in tables.items():
        rows = [
            (_assigned(key, value), origins.get(place(name, key), "default"))
            for key, value in table.items()
        ]
        if name.startswith("component.") and table.get("encoder") != "picture":
            missing = [key for key in ("dtype", "shape") if key not in table]
            rows += (([f"# {key}"], "from the model") for key in missing)
        if rows:
            parts.append([*([f"[{name}]"] if name else []), *_commented(rows)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def starting(tables: Tables, origin: str) -> str:
    """Write complete tables as a file to start from, in which every key is explained."""
    head = f"# A recipe: what a sample consists of. It begins as {shown(origin)}."
    parts = [[head], [*_explained(tables[""], keys.TOP)]]
    for name, known in keys.TABLES.items():
        if name == "split":  # besides, a part may have any name
            known = {**dict.fromkeys(tables[name], keys.SHARE), **known}
        head = f"[{name}]" if tables[name] else f"# [{name}]"  # an empty [split] is an error
        parts.append([head, *_explained(tables[name], known)])
    for name, table in tables.items():
        if name.startswith("component."):
            lines = (line for key, value in table.items() for line in _assigned(key, value))
            parts.append([f"[{name}]", *lines])
    parts.append(
        [
            "# Every key that a component may have. Which ones depends on its encoder:",
            *(f"#   {name}: {', '.join(kind.keys)}" for name, kind in keys.ENCODERS.items()),
            "# Without an encoder (made by another tool): " + ", ".join(keys.keys_of(None)),
            "#",
            "# [component.NAME]",
            *_explained({}, keys.COMPONENT),
        ]
    )
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _explained(table: Table, known: Mapping[str, keys.Key]) -> Iterator[str]:
    """Write every key with what it means; those without a value as comments."""
    rows = [
        (_assigned(key, table[key]) if key in table else [f"# {key} = {row.example}"], row.about)
        for key, row in known.items()
    ]
    return _commented(rows)


def _commented(rows: Iterable[tuple[list[str], str]]) -> Iterator[str]:
    """Put a comment behind each value, one below the other; or above, where there is no room."""
    rows = [(lines, f"# {shown(comment)}") for lines, comment in rows]
    column = max((len(lines[-1]) for lines, _ in rows if len(lines[-1]) <= _FARTHEST), default=0)
    for lines, comment in rows:
        last = f"{lines[-1].ljust(column)}  {comment}"
        yield from [*lines[:-1], last] if len(last) <= _WIDTH else [comment, *lines]


def _assigned(key: str, value: Any) -> list[str]:  # noqa: ANN401 - anything TOML can hold
    """Write a key and its value: on one line, or a long list on several."""
    line = f"{_key(key)} = {text(value)}"
    if len(line) <= _LONGEST_LIST or not isinstance(value, list):
        return [line]
    lines = [f"{_key(key)} = ["]
    room = 0
    for item in map(text, value):
        if len(item) + 2 > room:
            lines.append("   ")
            room = _LONGEST_LIST - 4
        lines[-1] += f" {item},"
        room -= len(item) + 2
    return [*lines, "]"]


def text(value: Any) -> str:  # noqa: ANN401 - anything TOML can hold
    """Write a value."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, dict):
        rows = (f"{_key(key)} = {text(each)}" for key, each in value.items())
        return f"{{ {', '.join(rows)} }}" if value else "{}"
    return repr(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else text(key)
