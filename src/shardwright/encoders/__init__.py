"""The encoders, a small module each; a set of them has a name, and is loaded when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from shardwright.encoders.base import Encoder, Options, PictureWriter
from shardwright.errors import UsageError
from shardwright.recipes import Component
from shardwright.recipes.keys import ENCODERS

SETS = ("pretrained", "sketch")
PICTURE = "picture"  # the encoder that every set has

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
    choice: Choice, component: Component, options: Options, models: dict[Any, Any] | None = None
) -> Encoder | PictureWriter:
    """Give the encoder of a component; this is cheap, as its first use loads the weights.

    One of the user's own is imported: only call this for the recipe file or flag of this call.
    """
    named = component.encoder
    fix = f"leave {component.name} out of --components"
    if not isinstance(choice, str):
        if component.name in choice:
            return choice[component.name]
        if named != PICTURE:
            raise UsageError(f"encoders: no encoder for {component.name}", fix=fix)
    if choice == "sketch" and named != PICTURE:
        module = "sketch"
    elif named is None:
        raise UsageError(f"--encoders {choice}: no encoder for {component.name}", fix=fix)
    else:
        module = ENCODERS[named].module if named in ENCODERS else "own"
    # Imported only when it is used: the pretrained ones need torch.
    encoder: Encoder | PictureWriter = import_module(f"{__name__}.{module}").load(
        component, options
    )
    return encoder


def shape_of(component: Component) -> Any:
    """Stub until merged."""
    return component.shape
