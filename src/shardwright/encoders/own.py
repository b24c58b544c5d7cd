"""Encoders of the user's own: each is a class in a module.

The caller makes sure that the name comes from a recipe file or a flag, never from data. Modules are
found as Python finds them, and nothing of a class is called before it is known to be an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from shardwright.encoders.base import Encoder, Options, RecipeError
from shardwright.errors import ShardwrightError
from shardwright.recipes import Component
from shardwright.recipes.keys import ENCODERS, nearest

_METHODS = ("prepare", "encode", "describe")
_PARTS = ("component", "device")


def load(component: Component, options: Options, models: dict[Any, Any]) -> Encoder:
    """Import the class of a component's encoder, check it, and make one."""
    module, attribute = _place(component)
    kind = _imported(module, attribute, component)
    methods = (method for method in _METHODS if not callable(getattr(kind, method, None)))
    _require_none(methods, f"{attribute} of {module} is not an encoder: no method", component)
    try:
        encoder: Encoder = kind(component, options)
    except ShardwrightError:
        raise
    except Exception as error:  # the user's code may raise anything
        what = f"{attribute}(component, options) fails with {_words(error)}"
        raise _error(component, what, "correct its __init__") from error
    parts = (part for part in _PARTS if not hasattr(encoder, part))
    _require_none(parts, f"{attribute} of {module} is not an encoder: no attribute", component)
    return encoder


def _place(component: Component) -> tuple[str, str]:
    """Give the module and the name of the class."""
    name = component.encoder or ""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        fix = 'write "package.module:Class"'
        if ":" not in name:  # probably a typing mistake
            fix = f"{nearest(name, ENCODERS)}, or {fix}"
        raise _error(component, "is not the name of a class", fix)
    return module, attribute


def _imported(module: str, attribute: str, component: Component) -> Callable[..., Any]:
    try:
        found = import_module(module)
        kind: object = getattr(found, attribute, None)  # a module may import it only now
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _failed(module, component, error) from error
        fix = "install its package, or add its folder to PYTHONPATH"
        raise _error(component, f"there is no module {error.name}", fix) from None
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise _failed(module, component, error) from error
    if not isinstance(kind, type):
        classes = [name for name, value in vars(found).items() if isinstance(value, type)]
        fix = nearest(attribute, classes) if classes else "name a class of another module"
        raise _error(component, f"{module} has no class {attribute}", fix)
    return kind


def _failed(module: str, component: Component, error: BaseException) -> RecipeError:
    fix = f"correct it until python -c 'import {module}' works"
    return _error(component, f"importing {module} fails with {_words(error)}", fix)


def _require_none(missing: Iterable[str], what: str, component: Component) -> None:
    if names := ", ".join(missing):
        fix = "see ImageEncoder and TextEncoder in shardwright.encoders.base"
        raise _error(component, f"{what} {names}", fix)


def _error(component: Component, what: str, fix: str) -> RecipeError:
    return RecipeError(component, "encoder", f"{component.encoder!r}: {what}", fix)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
