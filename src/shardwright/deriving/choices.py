"""The settings of a component beside its encoder's: what it sees of a picture, by which rules."""

from __future__ import annotations

from typing import Any

from shardwright import encoders
from shardwright.deriving.before import fit_of
from shardwright.deriving.views import View
from shardwright.encoders.base import Encoder, Options, PictureWriter, RecipeError
from shardwright.errors import UsageError
from shardwright.interrupts import at_once
from shardwright.recipes import SPECIFICATION, Component, Recipe, RecipeFile, Side
from shardwright.recipes.keys import ENCODERS
from shardwright.store import provenance
from shardwright.store.provenance import FAST, FRACTIONS, SRGB, Settings


def choices(
    component: Component,
    recipe: Recipe,
    made_with: str,
    kept: Settings | None = None,
) -> Settings:
    """Give the settings that are not the encoder's: the user's, and the rules of pictures.

    ``made_with`` is the set of encoders, ``kept`` are the settings of arrays that are there and
    stay.
    """
    chosen: Settings = {"encoders": made_with}
    if component.source != "image":
        return chosen
    chosen["colour"] = SRGB
    if recipe.decode == FAST:
        chosen["decode"] = FAST
    fit = fit_of(component, recipe, kept)
    if fit is not None:
        chosen["fit"] = fit
    if fit == "bucket":
        chosen["crop"] = FRACTIONS
        if recipe.buckets != SPECIFICATION.buckets:
            chosen["buckets"] = [str(bucket) for bucket in recipe.buckets]
    return chosen


def view_of(component: Component, recipe: Recipe, chosen: Settings) -> View:
    """Give what a component sees of a picture, by its settings."""
    fitted = chosen.get("fit") == "bucket"
    divisors = {axis.of: axis.divisor for axis in component.shape if isinstance(axis, Side)}
    return View(
        fit=chosen.get("fit", "original"),
        decode=chosen.get("decode"),
        divisors=(1, 1) if fitted else (divisors.get("width", 1), divisors.get("height", 1)),
        buckets=recipe.buckets if fitted else (),
        levels=recipe.levels if fitted else (),
        name=component.name,
    )


def load(
    choice: encoders.Choice,
    component: Component,
    options: Options,
    shared: dict[Any, Any],
    file: RecipeFile,
    data: object,
) -> tuple[Encoder | PictureWriter, Settings]:
    """Load the encoder of a component, and ask it what its arrays depend on.

    Refuse code that only ``data`` names: data must not decide what runs.
    """
    own = component.encoder is not None and component.encoder not in ENCODERS
    if own and choice == "pretrained" and file.origin is None:
        what = f"{component.name}: its encoder {component.encoder} is named only by the data"
        fix = "give --recipe FILE that names it, because code named in data is never run"
        raise UsageError(what, path=data, fix=fix)
    try:
        with at_once():
            encoder = encoders.load(choice, component, options, shared)
            return encoder, _described(encoder)
    except RecipeError as error:
        raise file.error(*error.fault) from error


def _described(encoder: Encoder | PictureWriter) -> Settings:
    """Ask an encoder what its arrays depend on, as JSON gives it back."""
    found: object = encoder.describe()
    try:
        if isinstance(found, dict):
            return provenance.plain(found)
    except (TypeError, ValueError, OverflowError):  # something that JSON cannot hold
        pass
    what = f"{encoder.component.name}: describe() of the encoder gave {found!r}"
    raise UsageError(what, fix="give a dict that JSON can hold")
