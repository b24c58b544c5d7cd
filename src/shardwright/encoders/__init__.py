"""The encoders, a small module each; a set of them has a name, and is loaded when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from shardwright.encoders.base import Encoder, Options
from shardwright.errors import UsageError
from shardwright.recipe import Component

# The module of a set for a component. It has a function load(component, options), and is imported
# only when it is used: the pretrained ones need torch.
_MODULES = {
    "pretrained": f"{__name__}.{{component}}",
    "sketch": f"{__name__}.sketch",
}
SETS = tuple(_MODULES)

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


def load(choice: Choice, component: Component, options: Options) -> Encoder:
    """Give the encoder of a component; this is cheap, as its first use loads the weights."""
    fix = f"leave {component.name} out of --components"
    if not isinstance(choice, str):
        if component.name not in choice:
            raise UsageError(f"encoders: no encoder for {component.name}", fix=fix)
        return choice[component.name]
    module = _MODULES[choice].format(component=component.name)
    if find_spec(module) is None:
        raise UsageError(f"--encoders {choice}: no encoder for {component.name}", fix=fix)
    encoder: Encoder = import_module(module).load(component, options)
    return encoder
