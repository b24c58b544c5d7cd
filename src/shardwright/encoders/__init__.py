"""The encoders, a small module each; a set of them has a name, and is loaded when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from shardwright.encoders.base import Axes, Encoder, Options, PictureWriter
from shardwright.encoders.packages import require_torch
from shardwright.errors import UsageError
from shardwright.recipes import Component
from shardwright.recipes.keys import ENCODERS
from shardwright.validate import require_known, require_mapping

SETS = ("pretrained", "sketch")
PICTURE = "picture"  # the encoder that every set has

# The name of a set, or the caller's own encoders by component name.
Choice = str | Mapping[str, Encoder]


def require_choice(choice: Choice) -> None:
    """Raise unless encoders are the name of a set or a mapping: before settings are compared."""
    if isinstance(choice, str):
        require_known("--encoders", choice, SETS)
    else:
        require_mapping("--encoders", choice, "component names to encoders")


def load(
    choice: Choice, component: Component, options: Options, models: dict[Any, Any]
) -> Encoder | PictureWriter:
    """Give the encoder of a component; this is cheap, as its first use loads the weights.

    Encoders that are given the same ``models`` share what they load. One of the user's own is
    imported: only call this for the recipe file or flag of this call.
    """
    if not isinstance(choice, str) and component.name in choice:
        return choice[component.name]
    if choice == "sketch" and component.encoder != PICTURE:
        module = import_module(f"{__name__}.sketch")
    elif component.encoder == PICTURE or (component.encoder and isinstance(choice, str)):
        module = _module(component)
    else:
        by = f"--encoders {choice}" if isinstance(choice, str) else "encoders"
        what = f"{by}: no encoder for {component.name}"
        raise UsageError(what, fix=f"leave {component.name} out of --components")
    encoder: Encoder | PictureWriter = module.load(component, options, models)
    return encoder


def shape_of(component: Component, models: dict[Any, Any]) -> Axes:
    """Ask the checkpoint of a pretrained encoder for the shape of its arrays."""
    found: Axes = _module(component).shape(component, models)
    return found


def _module(component: Component) -> ModuleType:
    """Import a module only when it is used: the pretrained ones need torch."""
    kind = ENCODERS.get(component.encoder or "")
    if kind is not None and component.encoder != PICTURE:
        require_torch()
    return import_module(f"{__name__}.{kind.module if kind else 'own'}")
