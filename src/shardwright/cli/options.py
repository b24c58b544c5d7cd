"""Flags: their names and defaults are those of the function of their command."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from shardwright.layout import JSONL_NAME

Flag = dict[str, Any]  # arguments for argparse


def declare(
    parser: argparse.ArgumentParser,
    flags: Mapping[str, Flag],
    function: Callable[..., object] | None = None,
) -> None:
    """Declare flags by all their spellings; each is an argument of the function, if given."""
    arguments = inspect.signature(function).parameters if function else {}
    for spellings, flag in flags.items():
        first = spellings.split()[0]
        kind: Flag = {} if first.startswith("--") else {"nargs": "?"}
        name = first.removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument := arguments.get(f"{name}_" if iskeyword(name) else name):
            kind["default"] = [] if argument.default == () else argument.default
            kind |= {"dest": argument.name} if first.startswith("--") else {}
        parser.add_argument(*spellings.split(), **{**kind, **flag})


@dataclass(frozen=True)
class Known:
    """Reads a text, any text; a shell completes those that are known."""

    texts: tuple[str, ...]
    read: Callable[[str], object] = str

    def __call__(self, given: str) -> object:
        return self.read(given)


def text(metavar: str, help_: str, *known: str) -> Flag:
    """Take any text; a shell completes those that are known."""
    return {"type": Known(known), "metavar": metavar, "help": help_}


def path(metavar: str, help_: str) -> Flag:
    """Take a path."""
    return {"type": as_path, "metavar": metavar, "help": help_}


def number(help_: str) -> Flag:
    """Take an integer."""
    return {"type": int, "metavar": "N", "help": help_}


def names(metavar: str, help_: str, *known: str) -> Flag:
    """Take names separated by commas, and more when given again; a shell completes those known."""
    help_ = f"{help_}; may be given several times"
    kind = Known(known, _names)
    return {"type": kind, "action": "extend", "metavar": f"{metavar},...", "help": help_}


def several(metavar: str, help_: str) -> Flag:
    """Take any text, and more when given again."""
    return {"action": "append", "metavar": metavar, "help": f"{help_}; may be given several times"}


class _Once(argparse.Action):
    """Takes a value once: the last of several would quietly count alone."""

    def __call__(self, parser: object, found: argparse.Namespace, value: Any, *_: object) -> None:  # noqa: ANN401
        if getattr(found, self.dest) is not None:
            raise argparse.ArgumentError(self, "given twice; put all ids into one list")
        setattr(found, self.dest, value)


class _Joined(argparse.Action):
    """Joins the texts of a flag that is given several times with commas."""

    def __call__(self, parser: object, found: argparse.Namespace, value: Any, *_: object) -> None:  # noqa: ANN401
        before = getattr(found, self.dest)
        setattr(found, self.dest, value if before is None else f"{before},{value}")


def ids(help_: str) -> Flag:
    """Take the path of a list of ids, once."""
    return {**path("FILE", help_), "action": _Once}


def joined(metavar: str, help_: str) -> Flag:
    """Take a text with commas, and more of it when given again."""
    return {**text(metavar, f"{help_}; may be given several times"), "action": _Joined}


def switch(help_: str, action: str = "store_true") -> Flag:
    """Take no value."""
    return {"action": action, "help": help_}


def as_path(given: str) -> str:
    """Read a path."""
    if not given:  # an unset variable, which must not mean the current folder
        raise argparse.ArgumentTypeError("is empty; give a path, or . for the current folder")
    return given


def _names(given: str) -> list[str]:
    # An empty name stays and is refused later: an unset variable must not mean "all".
    return [name.strip() for name in given.split(",")]


RECIPE = {
    "--recipe": path(
        "FILE_OR_NAME", "what a sample consists of (shardwright.toml, else as the store was made)"
    )
}
STORE = {
    **RECIPE,
    "--derived-dir": path("DIR", "the store (data/derived, or as the recipe says)"),
    "--jsonl --input-jsonl": path("FILE", f"its metadata (DERIVED_DIR/{JSONL_NAME})"),
}
SELECTION = {
    "--bucket": names("WxH", "only these buckets"),
    "--where": several(
        "EXPRESSION", "only records for which this holds, for example 'width >= 512'"
    ),
    "--ids-file": ids(
        "only the ids in this list: one on a line, or a .jsonl of objects with an image_id"
    ),
    "--exclude-ids-file": ids("leave out the ids in this list"),
    "--split": joined(
        "NAME=SHARE,...", "hold out parts, for example val=5%%; OUTPUT_DIR/train is the rest"
    ),
    "--split-by": text(
        "COLUMN|FILE.jsonl",
        "samples of one value in this column, or of one group of look --duplicates, stay together",
    ),
    "--shard-size": number("samples per shard (1000)"),
    "--limit": number("at most N samples in all"),
    "--shuffle": switch("shuffle before limiting and grouping"),
    "--seed": number("of the shuffle (0)"),
}
WORKERS = {"--workers": number("processes (one per core)")}
CLUSTER = {
    "--engine": text("WHERE", "local: this machine; ray: a Ray cluster (local)", "local", "ray"),
    "--ray-address": text("ADDRESS", "of the cluster (the running one, else a new one here)"),
}
IGNORE_SPACE = {"--ignore-space": switch("continue even if the disk seems too small")}
