"""Flags: their names and defaults are those of the function of their command."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import Any

from shardwright.layout import JSONL_NAME

Flag = dict[str, Any]  # arguments for argparse


def declare(
    parser: argparse.ArgumentParser, function: Callable[..., object], flags: Mapping[str, Flag]
) -> None:
    """Declare flags by all their spellings; each is an argument of the function."""
    arguments = inspect.signature(function).parameters
    for spellings, flag in flags.items():
        first = spellings.split()[0]
        name = first.removeprefix("--").removeprefix("no-").replace("-", "_")
        argument = arguments[f"{name}_" if iskeyword(name) else name]
        kind: Flag = {"dest": argument.name} if first.startswith("--") else {"nargs": "?"}
        default = [] if argument.default == () else argument.default
        parser.add_argument(*spellings.split(), default=default, **kind, **flag)


def text(metavar: str, help_: str) -> Flag:
    """Take any text."""
    return {"metavar": metavar, "help": help_}


def path(metavar: str, help_: str) -> Flag:
    """Take a path."""
    return {"type": _path, "metavar": metavar, "help": help_}


def number(help_: str) -> Flag:
    """Take an integer."""
    return {"type": int, "metavar": "N", "help": help_}


def names(metavar: str, help_: str) -> Flag:
    """Take names separated by commas, and more when given again."""
    help_ = f"{help_}; may be given several times"
    return {"type": _names, "action": "extend", "metavar": f"{metavar},...", "help": help_}


def several(metavar: str, help_: str) -> Flag:
    """Take any text, and more when given again."""
    return {"action": "append", "metavar": metavar, "help": f"{help_}; may be given several times"}


def switch(help_: str, action: str = "store_true") -> Flag:
    """Take no value."""
    return {"action": action, "help": help_}


def _path(given: str) -> str:
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
WORKERS = {"--workers": number("processes (one per core)")}
IGNORE_SPACE = {"--ignore-space": switch("continue even if the disk seems too small")}
