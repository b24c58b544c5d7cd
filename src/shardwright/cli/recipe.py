"""show what a sample consists of, list the shipped recipes, or write one to start from.

Shows a recipe as TOML, with the file or the shipped recipe that each value comes from, and below it
one line for each component. Without FILE_OR_NAME that is the recipe in force: shardwright.toml of
the working folder, else that of the store, else prx, the specification. Showing a file checks it:
mistakes are reported with file, table and key. What is printed is a recipe file again.

--init writes a file in which every key is explained, and which gives the recipe that is shown.
docs/recipes.md describes all keys.

  shardwright recipe
  shardwright recipe --list
  shardwright recipe sdxl --init
  shardwright recipe shardwright.toml
  shardwright recipe --derived-dir data/derived

exit status:
  0    done
  1    failed
  2    wrong usage, or the recipe is missing or invalid
  12   the recipe of the store is damaged
  130  interrupted (terminated: 143, hung up: 129)
"""

from __future__ import annotations

from shardwright.buckets import Bucket
from shardwright.cli.options import path, switch
from shardwright.cli.printing import table
from shardwright.progress import quantity
from shardwright.showing import RecipeComponent, RecipeSummary
from shardwright.text import shown

HINTS = {"--recipe": "name it without the flag"}
FLAGS = {
    "recipe": path("FILE_OR_NAME", "a recipe file, or the name of a shipped recipe"),
    "--derived-dir": path("DIR", "show the recipe of this store"),
    "--list": switch("list the shipped recipes"),
    "--init": {
        **path("FILE", "write a commented file to start from (shardwright.toml)"),
        "nargs": "?",
        "const": "shardwright.toml",
    },
}


def describe(summary: RecipeSummary) -> str:
    """Write the recipe as TOML, and what it comes to as comments."""
    if summary.shipped:
        rows = summary.shipped.items()
        return "\n".join(
            f"{name}: {', '.join(each.components)}\n  {each.about}" for name, each in rows
        )
    if summary.written is not None:
        wrote = f"wrote {shown(summary.written)}, which begins as {shown(summary.origin)}"
        return f"{wrote}\nnext: edit it, then run shardwright derive"
    heads = ["component", "member", "dtype", "shape", "encoder", "model"]
    cells = table([heads, *map(_cells, summary.components)], left=True).splitlines()
    lines = (f"# The recipe of {shown(summary.origin)}.", "", summary.toml)
    return "\n".join(
        (*lines, *(f"# {row.rstrip()}" for row in cells), "#", f"# {_buckets(summary.buckets)}")
    )


def _cells(component: RecipeComponent) -> list[str]:
    shape = "from the model"
    if component.shape is not None:
        shape = f"({'up to ' * component.trim}{', '.join(map(str, component.shape))})"
    given = (component.dtype, shape, component.encoder, component.model)
    return [component.name, component.member, *(shown(each or "-") for each in given)]


def _buckets(names: list[str]) -> str:
    found = sorted(map(Bucket.parse, names), key=lambda bucket: bucket.aspect)
    pixels = sorted(bucket.width * bucket.height for bucket in found)
    return (
        f"{quantity(len(found), 'buckets')}, from {found[0]} to {found[-1]}, "
        f"of {pixels[0] / 1e6:.2f} to {pixels[-1] / 1e6:.2f} megapixels"
    )
