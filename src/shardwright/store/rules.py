"""The rules for a valid record, and each fault with its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard

import msgspec

from shardwright.buckets import is_bucket
from shardwright.recipes import FORMAT_VERSION, Recipe
from shardwright.store import records
from shardwright.store.commands import Commands
from shardwright.store.records import Record, is_image_id, is_mask

_FIX = "correct the record, or delete its line and run {run.derive}"
_DELETE = "delete the line and run {run.derive}"
_MIGRATE = "run {run.migrate}"

# What is wrong, and the fix, in which ``run`` is a Commands.
FAULTS = {
    "not_json": ("not JSON", "fix the line, or delete it and run {run.derive}"),
    "not_an_object": ("not a JSON object", _DELETE),
    "line_too_long": (f"longer than {records.LONGEST_LINE >> 20} MiB", _DELETE),
    "nested_too_deep": ("lists and objects are nested too deep", _DELETE),
    "torn_line": ("the last line is cut off, for example by a crash", _DELETE),
    "stage1_record": ("a Stage 1 record, which holds its arrays itself", _MIGRATE),
    "inline_array": ("the record holds an array itself", _MIGRATE),
    "image_id_missing": ("no image_id", _FIX),
    "image_id_invalid": ("image_id is not a plain file name", _FIX),
    "image_path_missing": ("no image_path", _FIX),
    "image_path_invalid": ("image_path is not a path", _FIX),
    "aspect_bucket_missing": ("no aspect_bucket", _FIX),
    "aspect_bucket_invalid": ("aspect_bucket is not written WIDTHxHEIGHT", _FIX),
    "caption_missing": ("no {text}", _FIX),
    "caption_invalid": ("{text} is blank or not a string", _FIX),
    "mask_missing": ("no {mask}", _FIX),
    "mask_invalid": ("{mask} is not a list of {length} zeros and ones", _FIX),
    "mask_all_zero": ("there is a {text}, but {mask} is all zeros", _FIX),
    "mask_without_caption": ("{mask} has ones, but there is no {text}", _FIX),
    "size_missing": ("no height or no width", _FIX),
    "size_invalid": ("height or width is not the size of a picture", _FIX),
    "format_version_missing": ("no format_version", _FIX),
    "format_version_invalid": (f"format_version is not {FORMAT_VERSION}", _FIX),
}

# A record with these is packed all the same, because training does not need them.
HARMLESS = frozenset(
    {
        *("inline_array", "mask_all_zero", "image_path_missing", "size_missing"),
        *("format_version_missing", "format_version_invalid"),
    }
)

Side = Annotated[int, msgspec.Meta(ge=1, le=999_999)]  # of a picture, as of a bucket


class Essentials(msgspec.Struct, gc=False):
    """The fields of a record that packing uses."""

    image_id: str
    aspect_bucket: str


class _Rule(NamedTuple):
    """What one field must be, if it has a value."""

    field: str
    name: str  # its faults are NAME_missing and NAME_invalid
    kind: Any  # its type
    check: Callable[[Any], bool] = lambda value: True  # what the type does not cover
    missing: tuple[object, ...] = (None,)  # values that count as missing

    def fault(self, value: object) -> str | None:
        """Name what is wrong with a value."""
        if value in self.missing:
            return f"{self.name}_missing"
        return None if _is_a(self.kind, value) and self.check(value) else f"{self.name}_invalid"


class Rules:
    """The rules for records of a recipe; arrays are checked elsewhere."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        required = [
            _Rule("image_id", "image_id", str, is_image_id),
            _Rule("aspect_bucket", "aspect_bucket", str, is_bucket),
            *(_Rule(field, "caption", str, _is_caption) for field in recipe.texts),
            *(_Rule(m.field, "mask", Any, partial(is_mask, mask=m)) for m in recipe.masks),
        ]
        optional = [
            _Rule("image_path", "image_path", str, missing=(None, "")),
            _Rule("height", "size", Side),
            _Rule("width", "size", Side),
        ]
        version = _Rule("format_version", "format_version", Literal[FORMAT_VERSION])
        self._rules = (*required, *optional, version)
        texts = {f"text{number}": field for number, field in enumerate(recipe.texts)}
        masks = {f"mask{number}": mask.field for number, mask in enumerate(recipe.masks)}
        fields: list[Any] = [(name, str) for name in texts] + [
            (name, msgspec.Raw) for name in masks
        ]
        fields += [(rule.field, rule.kind | None, None) for rule in optional]
        kind = msgspec.defstruct(
            "_Essentials", fields, bases=(Essentials,), rename=texts | masks, gc=False
        )
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self._texts = list(map(attrgetter, texts))
        self._masks = list(zip(map(attrgetter, masks), recipe.masks, strict=True))

    def essentials(self, line: bytes | None) -> Essentials | None:
        """Read the fields that packing uses, or give None if the record is not ready.

        Several times faster than ``parse`` and ``faults``, which name what is wrong. A user's own
        fields are not read, so ``parse`` may still refuse a number or the depth of one.
        """
        if line is None:
            return None
        try:
            if not line.isascii():
                line.decode()
            found: Essentials = self._decode(line)
        except records.NOT_JSON:
            return None
        # The same as the rules, because calling them would take twice as long.
        for text in self._texts:
            if not _is_caption(text(found)):
                return None
        if not is_bucket(found.aspect_bucket):
            return None
        for get, mask in self._masks:
            if not is_mask(get(found), mask):
                return None
        return found if is_image_id(found.image_id) else None

    def problem(self, record: Record) -> str | None:
        """Name the first fault for which a record is not packed; None if it is ready."""
        return next((fault for fault in self.faults(record) if fault not in HARMLESS), None)

    def faults(self, record: Record) -> Iterator[str]:
        """Name all faults of a record."""
        if is_stage1(record, self.recipe):
            if "image_id" not in record:
                yield "stage1_record"
                return  # migrating adds what else is missing
            yield "inline_array"
        found = {rule.field: rule.fault(record.get(rule.field)) for rule in self._rules}
        for component in self.recipe.captions:
            mask, captioned = component.mask, found[component.field] is None
            if mask and found[mask.field] is None and (1 in record[mask.field]) is not captioned:
                found[mask.field] = "mask_all_zero" if captioned else "mask_without_caption"
        yield from filter(None, dict.fromkeys(found.values()))


def is_stage1(record: Record, recipe: Recipe) -> bool:
    """Whether a record holds arrays inline."""
    return not recipe.inline.keys().isdisjoint(record)


def is_side(value: object) -> TypeGuard[int]:
    """Whether a value is a valid height or width."""
    return _is_a(Side, value)


def _is_a(kind: Any, value: object) -> bool:  # noqa: ANN401 - a type
    """Whether a value from JSON is of a type; 1, 1.0 and true have three types."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _is_caption(text: str) -> bool:
    return text != "" and not text.isspace()


def words(fault: str, recipe: Recipe, run: Commands) -> tuple[str, str]:
    """Say what is wrong with a line, and the fix."""
    what, fix = FAULTS[fault]
    fields = " or ".join(mask.field for mask in recipe.masks)
    lengths = " or ".join(dict.fromkeys(str(mask.length) for mask in recipe.masks))
    texts = " or ".join(recipe.texts)
    return what.format(text=texts, mask=fields, length=lengths), fix.format(run=run)
