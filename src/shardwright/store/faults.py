"""What can be wrong with a record and its arrays: each fault with its fix, and the checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard

import msgspec

from shardwright.buckets import is_bucket
from shardwright.engine import Engine
from shardwright.interrupts import check
from shardwright.recipes import FORMAT_VERSION, Component, Recipe, Shape
from shardwright.storage.files import explained
from shardwright.store import content, npy, records
from shardwright.store.commands import Commands
from shardwright.store.records import Record, is_image_id, is_mask
from shardwright.store.store import Store

_FIX = "correct the record, or delete its line and run {run.derive}"
_DELETE = "delete the line and run {run.derive}"
_MIGRATE = "run {run.migrate}"

# What is wrong with a record, and the fix, in which ``run`` is a Commands.
RECORD_FAULTS = {
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
    what, fix = RECORD_FAULTS[fault]
    fields = " or ".join(mask.field for mask in recipe.masks)
    lengths = " or ".join(dict.fromkeys(str(mask.length) for mask in recipe.masks))
    texts = " or ".join(recipe.texts)
    return what.format(text=texts, mask=fields, length=lengths), fix.format(run=run)


_BATCH = 256  # samples a worker checks at a time
_MAKE = "run {run.derive}"
_REMAKE = "delete the file and run {run.derive}"
_ELSEWHERE = "make it again with your own tool"

# What is wrong with an array, and the fix.
ARRAY_FAULTS = {
    "missing": ("missing, but a record needs it", _MAKE),
    "unreadable": ("cannot be read", "make it readable, or delete it and run {run.derive}"),
    "not_a_file": ("not a regular file", _REMAKE),
    "empty": ("empty", _REMAKE),
    "not_npy": ("not a .npy file", _REMAKE),
    "not_a_picture": ("not a {component.extension} picture", _REMAKE),
    "truncated": ("shorter than its header says", _REMAKE),
    "trailing_bytes": ("longer than its header says", _REMAKE),
    "wrong_dtype": ("its dtype is not {component.dtype}", _REMAKE),
    "wrong_shape": ("its shape is not one of {component.name}", _REMAKE),
    "wrong_size": ("its shape {shape} fits neither its picture nor its bucket", _REMAKE),
    "other_mask": ("its {shape[0]} rows are not the tokens that its mask keeps", _REMAKE),
    "fortran_order": ("in Fortran order", _REMAKE),
    "pickled": ("holds pickled objects, which are never loaded", _REMAKE),
    "nan": ("has values that are not numbers (NaN)", _REMAKE),
    "infinite": ("has infinite values", _REMAKE),
    "unreadable_picture": ("cannot be decoded", _REMAKE),
    "constant": ("all its values are the same", _REMAKE),
}


class Expected(NamedTuple):
    """What the record of a sample says about the shapes of its arrays."""

    sizes: tuple[tuple[int, int], ...] = ()  # width and height of each picture they may be of
    rows: tuple[tuple[str, int], ...] = ()  # of each trimmed component, by its mask


ANYTHING = Expected()
_Sample = tuple[str, Expected]


class Look(NamedTuple):
    """The result for one array file; size, shape and time are known if its header is valid."""

    fault: str | None
    size: int = 0
    shape: Shape = ()
    time: int = 0  # when it was created or last changed


def look(
    image_id: str,
    folder: int,
    component: Component,
    expected: Expected = ANYTHING,
    *,
    read_data: bool = False,
) -> Look:
    """Check an array in an open folder: header, size and, with ``read_data``, all values."""
    size = time = 0
    shape: Shape = ()
    try:
        fd = npy.open_array(image_id + component.extension, folder)
        try:
            size, shape = content.check(fd, component)
            time = os.fstat(fd).st_ctime_ns
            if not _fits(component, shape, expected.sizes):
                raise npy.BadArrayError("wrong_size")
            if component.trim and dict(expected.rows).get(component.name, shape[0]) != shape[0]:
                raise npy.BadArrayError("other_mask")
            if read_data:
                from shardwright.store import arrays  # here, because only this needs NumPy

                arrays.check_values(fd, size, shape, component)
        finally:
            os.close(fd)
    except npy.BadArrayError as error:
        return Look(error.reason, size, shape, time)
    return Look(None, size, shape, time)


@lru_cache(maxsize=4096)
def _fits(component: Component, shape: Shape, sizes: tuple[tuple[int, int], ...]) -> bool:
    return not sizes or any(component.fits(shape, *size) for size in sizes)


class ArrayFault(NamedTuple):
    """An invalid array; sorts by sample and component."""

    sample: int
    component: int  # its place in the recipe
    image_id: str
    name: str
    shape: Shape

    def words(self, store: Store, run: Commands) -> tuple[str, str]:
        """Say what is wrong, and the fix."""
        what, fix = ARRAY_FAULTS[self.name]
        component = store.recipe.components[self.component]
        fix = _ELSEWHERE if component.source == "elsewhere" else fix.format(run=run)
        return what.format(component=component, shape=self.shape), fix


@dataclass
class ArrayCounts:
    """The result for some samples."""

    samples: int = 0
    arrays: int = 0  # that exist
    bytes: int = 0  # of those with a valid header
    faults: list[ArrayFault] = field(default_factory=list)

    def add(self, other: ArrayCounts) -> None:
        """Add the result for other samples."""
        self.samples += other.samples
        self.arrays += other.arrays
        self.bytes += other.bytes
        self.faults += other.faults


def check_all(
    store: Store,
    components: tuple[int, ...],
    ids: Collection[str],
    expected: Sequence[Expected],
    engine: Engine,
    *,
    read_data: bool = False,
) -> Generator[ArrayCounts, None, None]:
    """Check the arrays of samples on all cores; results come in any order.

    ``components`` are places in the recipe.
    """
    samples = zip(ids, expected, strict=True)
    firsts = range(0, len(ids), _BATCH)
    batches = ((first, list(islice(samples, _BATCH))) for first in firsts)
    with closing(engine.run(partial(_check, store, components, read_data), batches)) as results:
        yield from results


def _check(
    store: Store, components: tuple[int, ...], read_data: bool, batch: tuple[int, list[_Sample]]
) -> Iterator[ArrayCounts]:
    """Check some samples, the first of which has the given number."""
    first, samples = batch
    seen = ArrayCounts(len(samples))
    with ExitStack() as stack:
        folders = []
        for row in components:
            path = store.arrays(store.recipe.components[row])
            with explained(path):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            folders.append((row, store.recipe.components[row], fd))
        for number, (image_id, expected) in enumerate(samples, first):
            check()
            for row, component, folder in folders:
                found = look(image_id, folder, component, expected, read_data=read_data)
                seen.arrays += found.fault != "missing"
                seen.bytes += found.size
                if found.fault is not None:
                    seen.faults.append(ArrayFault(number, row, image_id, found.fault, found.shape))
    yield seen
