"""In what two recipes differ, so that an error can name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwright.recipes.keys import TOKENS
from shardwright.recipes.tables import Table, table_of
from shardwright.recipes.values import Component, Recipe, Side

# The provenance knows which model it is, by whatever name, and what the arrays show.
_DECIDES_NOTHING = ("model", "fit", "source", "inline")


def differences(old: Recipe, new: Recipe) -> list[str]:
    """List what keeps the samples of two recipes apart, like ``t5: tokens was 77, now 512``."""
    found = []
    for name in dict.fromkeys((*old.by_name, *new.by_name)):
        before, now = old.by_name.get(name), new.by_name.get(name)
        if before is None or now is None:
            found.append(f"{name}: {'added' if before is None else 'removed'}")
        else:
            found += [f"{name}: {what}" for what in changes(before, now)]
    if not found and list(old.by_name) != list(new.by_name):
        found.append(f"components: were {', '.join(old.by_name)}, now {', '.join(new.by_name)}")
    found += bucket_changes(old, new)
    if old.fit != new.fit:
        found.append(f"fit was {old.fit}, now {new.fit}")
    return found


def bucket_changes(old: Recipe, new: Recipe) -> list[str]:
    """Say which buckets differ, if any do."""
    if (old.buckets, old.levels) == (new.buckets, new.levels):
        return []
    gone = [f"{bucket} removed" for bucket in old.buckets if bucket not in new.buckets]
    come = [f"{bucket} added" for bucket in new.buckets if bucket not in old.buckets]
    return [f"buckets: {', '.join((*gone, *come)) or 'in another order'}"]


def changes(old: Component, new: Component) -> Iterator[str]:
    """List what decides the arrays of a component and differs; what is not known yet does not."""
    before, now = _values(old), _values(new)
    unknown = [key for key in ("dtype", "shape") if not now[key]]
    for key in dict.fromkeys((*before, *now)):
        if before.get(key) != now.get(key) and key not in unknown:
            yield f"{key} was {_text(before.get(key))}, now {_text(now.get(key))}"


def _values(component: Component) -> dict[str, object]:
    """Give what decides the arrays of a component, by its key in a recipe file."""
    mask = component.mask
    table: Table = {"encoder": component.encoder}  # which is named first
    table |= {k: v for k, v in table_of(component).items() if k not in _DECIDES_NOTHING}
    table["shape"] = [_length(component, axis) for axis in table["shape"][:1]] + table["shape"][1:]
    return {**table, "mask": mask and [mask.field, mask.suffix, _length(component, mask.length)]}


def shown_shape(shape: Iterable[int | str | Side]) -> str:
    """Write a shape on one line, for an error."""
    return _text(list(shape))


def _length(component: Component, length: object) -> object:
    """Write a number of tokens as a recipe file does, so that it is compared only once."""
    return TOKENS if length == component.settings.get(TOKENS) else length


def _text(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
