"""The encoders, a small module each; a set of them is found by its name, and loaded when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from shardwright.encoders.base import Encoder, Options
from shardwright.errors import UsageError
from shardwright.recipe import Component

# A set's module for a component. It has a function load(component, options), and is imported only
# when it is called for: the pretrained ones need torch.
_MODULES = {
    "pretrained": f"{__name__}.{{component}}",
    "sketch": f"{__name__}.sketch",
}
SETS = tuple(_MODULES)

# The name of a set, or encoders of the caller's own by component name.
Choice = str | Mapping[str, Encoder]


def require_choice(choice: Choice) -> None:
    """Raise unless encoders are the name of a set or a mapping: before settings are compared."""
    if isinstance(choice, str):
        if choice not in SETS:
            raise UsageError(
                f"--encoders {choice}: no such encoders; choose from {', '.join(SETS)}"
            )
    elif not isinstance(choice, Mapping):
        raise UsageError(
            f"--encoders is {choice!r}; give one of {', '.join(SETS)}, or a mapping of component "
            "names to encoders"
        )


def load(choice: Choice, component: Component, options: Options) -> Encoder:
    """Give the encoder of a component; cheap, as weights are loaded by its first use."""
    if not isinstance(choice, str):
        if component.name not in choice:
            raise UsageError(f"encoders: none is given for {component.name}; leave it out")
        return choice[component.name]
    module = _MODULES[choice].format(component=component.name)
    if find_spec(module) is None:
        raise UsageError(
            f"--encoders {choice}: has none for {component.name}; leave it out of --components"
        )
    encoder: Encoder = import_module(module).load(component, options)
    return encoder
