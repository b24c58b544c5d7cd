"""What a sample consists of: recipes, as values and as TOML files."""

from __future__ import annotations

from shardwright.recipes.compare import differences
from shardwright.recipes.file import DEFAULT, RecipeFile, find
from shardwright.recipes.tables import decode, require_valid
from shardwright.recipes.values import (
    ANY,
    BFLOAT16,
    FORMAT_VERSION,
    JSON_SUFFIX,
    LONGEST_NAME,
    MEMBER_FIELDS,
    Component,
    Map,
    Mask,
    Recipe,
    Selection,
    Shape,
    Side,
)

__all__ = [
    "ANY",
    "BFLOAT16",
    "FORMAT_VERSION",
    "JSON_SUFFIX",
    "LONGEST_NAME",
    "MEMBER_FIELDS",
    "SPECIFICATION",
    "Component",
    "Map",
    "Mask",
    "Recipe",
    "RecipeFile",
    "Selection",
    "Shape",
    "Side",
    "decode",
    "differences",
    "find",
    "require_valid",
]

SPECIFICATION = find(DEFAULT).recipe
