"""The encoders, a small module each; a set of them has a name, and is loaded when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from shardwright.encoders.base import Encoder, Options
from shardwright.errors import UsageError
from shardwright.recipes import Component, Side
from shardwright.recipes.keys import ENCODERS

SETS = ("pretrained", "sketch")

# The name of a set, or the caller's own encoders by component name.
Choice = str | Mapping[str, Encoder]


def require_choice(choice: Choice) -> None:
    """Raise unless encoders are the name of a set or a mapping: before settings are compared."""
    if isinstance(choice, str):
        if choice not in SETS:
            what = f"--encoders {choice}: no such encoders"
            raise UsageError(what, fix=f"choose from {', '.join(SETS)}")
    elif not isinstance(choice, Mapping):
        fix = f"give one of {', '.join(SETS)}, or a mapping of component names to encoders"
        raise UsageError(f"--encoders is {choice!r}", fix=fix)


def load(
    choice: Choice,
    component: Component,
    options: Options,
    models: dict[Any, Any] | None = None,
) -> Encoder:
    """Give the encoder of a component; this is cheap, as its first use loads the weights.

    Encoders that are given the same ``models`` share what they load.
    """
    fix = f"leave {component.name} out of --components"
    if not isinstance(choice, str):
        if component.name not in choice:
            raise UsageError(f"encoders: no encoder for {component.name}", fix=fix)
        return choice[component.name]
    if choice == "pretrained" and component.encoder not in ENCODERS:
        raise UsageError(f"--encoders {choice}: no encoder for {component.name}", fix=fix)
    if choice == "sketch":
        sketched: Encoder = import_module(f"{__name__}.sketch").load(component, options)
        return sketched
    shared = ({} if models is None else models,) if "model" in component.settings else ()
    encoder: Encoder = _module(component).load(component, options, *shared)
    return encoder


def shape_of(component: Component) -> tuple[int | Side | Literal["any"], ...]:
    """Ask the checkpoint of a pretrained encoder for the shape of its arrays."""
    found: tuple[int | Side | Literal["any"], ...] = _module(component).shape(component)
    return found


def _module(component: Component) -> ModuleType:
    """Import the encoder only when it is used: most need torch."""
    return import_module(f"{__name__}.{ENCODERS[component.encoder or ''].module}")
