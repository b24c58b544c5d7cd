"""The rows of a plan: every input with its texts and sizes, written down once in ``inputs.jsonl``.

A line is like a record of a store, so what chooses samples for ``pack`` chooses them here too. A
rerun reads that file instead of opening all images again, and makes the same shards of it.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import xxhash

from shardwright import regular
from shardwright.buckets import is_bucket
from shardwright.building import built, inputs, measuring
from shardwright.building.inputs import Found, Left, Row
from shardwright.deriving.captions import CAPTION, RESERVED, CaptionError, Captions, named
from shardwright.deriving.images import Size
from shardwright.deriving.matching import Named
from shardwright.deriving.outcomes import IN_A_ROW
from shardwright.deriving.sources import Source, sharing
from shardwright.deriving.views import left_out
from shardwright.engine import Engine
from shardwright.errors import DamageError, TooManyFailuresError
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity
from shardwright.recipes import Recipe
from shardwright.storage import extents, files
from shardwright.storage.local import LocalPlace
from shardwright.store import records
from shardwright.store.records import BadRecordError, Line, Record, is_image_id, own_fields
from shardwright.summary import require_sum

INPUTS_NAME = "inputs.jsonl"
INPUT = "__input__"  # the field of a line that says where an input is
_LEFT = "__left_out__"  # the field of an input that cannot be used

Texts = dict[str, str | None]


class Input(NamedTuple):
    """One line: where an image is, and what goes into its record."""

    row: Row
    texts: Texts
    columns: Record


class Head(msgspec.Struct, gc=False):
    """What a layout needs of a line; to read only that is several times faster."""

    image_id: str = ""
    aspect_bucket: str = ""
    left: Left | None = msgspec.field(default=None, name=_LEFT)
    where: Row | str = msgspec.field(default="", name=INPUT)  # or the file of what cannot be used


_decode = msgspec.json.Decoder(Head).decode


def write(
    found: Sequence[Found],
    captions: Captions | None,
    recipe: Recipe,
    known: Mapping[str, bytes],
    folder: Path,
    engine: Engine,
    progress: Progress,
) -> int:
    """Look at all inputs, and write them down; give how many are ``known`` and not looked at.

    ``known`` are the samples that are there: by their ids, what their images were.
    """
    files.make_folder(folder)
    if recipe.ids != "name":
        found = [each._replace(images=sharing(each.images)) for each in found]
    new = measuring.unknown(found, known, recipe.ids)
    place, length, count = LocalPlace(folder), 0, 0
    with place.create(INPUTS_NAME) as file:
        with closing(measuring.measured(new, recipe, engine, progress)) as measured:
            readable = _within_reach(measured, captions)
            for one in _matched(readable, found, captions, folder):
                line = _line(one, captions, recipe, known) + b"\n"
                file.put(line)
                length += len(line)
                count += not one.tar
        file.seal(length)
    images = sum(len(each.images) for each in new)
    require_sum("images found", images, count)
    place.publish(INPUTS_NAME)
    files.sync_folder(folder)
    return sum(len(each.images) for each in found) - images


def _within_reach(
    measured: Iterable[measuring.Measured], captions: Captions | None
) -> Iterator[measuring.Measured]:
    """Give what was measured; raise if many in a row could not be read.

    A plan without them would be kept, although they may only be out of reach for a while.
    """
    row = 0
    for one in measured:
        reason, why = one.fault or ("", "")
        unread = reason == "caption_unreadable" and captions is None
        if isinstance(one.row, Left):
            unread, why = one.row.reason in (extents.UNREADABLE, extents.GONE), one.row.detail
        row = row + 1 if unread else 0
        if row == IN_A_ROW:
            what = f"{why}, as with {IN_A_ROW} images in a row, so no plan is kept"
            fix = "check that the images can be read, then run the same command again"
            raise TooManyFailuresError(what, path=one.row.path, fix=fix)
        yield one


def _matched(
    measured: Iterable[measuring.Measured],
    found: Sequence[Found],
    captions: Captions | None,
    folder: Path,
) -> Iterator[measuring.Measured]:
    """Give what was measured, once the captions know all images; ``given`` is then their root.

    The names of images in tars are known when all have been measured, which is kept in a file until
    then.
    """
    if captions is None:
        yield from measured
        return
    roots = {each.path: each.root for each in found}
    if not any(each.tars for each in found):
        captions.match(lambda: _files(found))
        yield from measured
        return
    with (
        files.explained(folder),
        tempfile.TemporaryFile(dir=folder) as kept,
        tempfile.TemporaryFile(dir=folder) as names,
    ):
        for one in measured:
            one = one._replace(given=roots[one.given])
            pickle.dump(one, kept)
            if one.tar and one.row.path != one.tar:  # then it is a member
                name = one.row.path[len(one.tar) + 1 :]
                pickle.dump(Named(one.given, one.row.path, name), names)
        captions.match(lambda: chain(_files(found), _read(names)))
        yield from _read(kept)


def _files(found: Sequence[Found]) -> Iterator[Named]:
    for each in found:
        yield from (named(source, each.root) for source in each.images if not source.fault)


def _read(file: IO[bytes]) -> Iterator[Any]:
    """Read what was written to a file, from its beginning."""
    file.seek(0)
    with suppress(EOFError):
        while True:
            yield pickle.load(file)


def _line(
    one: measuring.Measured, captions: Captions | None, recipe: Recipe, known: Mapping[str, bytes]
) -> bytes:
    """Write an input as a line."""
    row = one.row
    if isinstance(row, Left):
        return _unusable(row, one.tar or row.path)
    try:
        texts, columns, given = _texts(one, inputs.source_of(row), captions, recipe)
    except CaptionError as error:
        return _unusable(Left(row.image_id, row.path, *error.args), row.file)
    image_id = row.image_id
    if recipe.ids == "captions":
        image_id = given or image_id
        row = msgspec.structs.replace(row, image_id=image_id)
    why: tuple[str, str] | None = None
    if not image_id:
        why = "no_image_id", "no image_id in --captions or in its JSON"
    elif not is_image_id(image_id):
        why = "image_id_invalid", "its image_id is not a valid one"
    elif smaller := left_out(Size(row.width, row.height), recipe):
        return _unusable(Left(image_id, row.path, *smaller, by_recipe=True), row.file)
    elif image_id in known:
        why = built.other(known[image_id], row)
    if why:
        return _unusable(Left(image_id, row.path, *why), row.file)
    record: Record = {"image_id": image_id, "image_path": row.path, **texts}
    record |= {"height": row.height, "width": row.width}
    record["aspect_bucket"] = str(recipe.bucket_for(row.width, row.height))
    own = own_fields(recipe)
    record |= {n: v for n, v in columns.items() if n not in own and v is not None}
    line = records.line({**record, INPUT: msgspec.to_builtins(row)})
    if len(line) >= records.LONGEST_LINE:  # which could not be read again
        what = f"its texts and columns have {quantity(len(line), 'B')}"
        return _unusable(Left(image_id, row.path, "record_too_large", what), row.file)
    return line


def _unusable(left: Left, file: str) -> bytes:
    return records.line({_LEFT: msgspec.to_builtins(left), INPUT: file})


def _texts(
    one: measuring.Measured, source: Source, captions: Captions | None, recipe: Recipe
) -> tuple[Texts, Record, str | None]:
    """Find the texts and the columns of an image, and the id that the captions file gives it."""
    given = captions.of(source, one.given) if captions else {}
    columns = one.columns | given
    if taken := RESERVED & columns.keys():
        what = f"its captions have a column {min(taken)}, a name that Shardwright uses"
        raise CaptionError("reserved_name", what)
    if CAPTION not in given:  # a text goes before the JSON
        if one.fault is not None:
            raise CaptionError(*one.fault)
        if one.text:
            columns[CAPTION] = one.text
    texts: Texts = {}
    for name in dict.fromkeys((CAPTION, *recipe.texts)):
        texts[name] = columns.pop(name, None)
        if texts[name] or name not in recipe.texts:
            texts[name] = texts[name] or ""
        elif name == CAPTION:
            raise CaptionError("no_caption", "not in --captions, and no text with it")
        else:
            raise CaptionError("no_caption", f"no {name} in --captions, and none with it")
    own = captions.image_id(source, one.given) if captions and recipe.ids == "captions" else None
    return texts, columns, own


def parse(line: bytes, recipe: Recipe) -> Input:
    """Read one line of the inputs."""
    record = records.parse(line)
    row = msgspec.convert(record.pop(INPUT), Row)
    texts = {name: record.get(name) for name in dict.fromkeys((CAPTION, *recipe.texts))}
    own = own_fields(recipe)
    return Input(row, texts, {n: v for n, v in record.items() if n not in own})


def heads(folder: Path, progress: Progress) -> Iterator[tuple[Line, Head]]:
    """Read what a layout needs of each line."""
    path = folder / INPUTS_NAME
    bad = partial(_unreadable, path)
    return records.walk(path, _head, bad=bad, progress=progress, phase="plan")


def _unreadable(path: Path, line: Line, reason: str) -> None:
    """Raise for a line that cannot be read: its input would be in no count."""
    what = f"line {line.number} is not an input of a plan"
    raise DamageError(what, path=path, fix="build again with --overwrite")


def _head(line: bytes | None) -> Head:
    """Read what a layout needs of a line; raise BadRecordError if we cannot have written it."""
    try:
        found = _decode(line or b"")
    except records.NOT_JSON:
        raise BadRecordError("not_json") from None
    row = found.where
    named = isinstance(row, Row) and row.image_id == found.image_id and "\0" not in row.path
    usable = named and is_image_id(found.image_id) and is_bucket(found.aspect_bucket)
    if found.left is None and not usable:
        raise BadRecordError("not_an_input")
    return found


def checksum(folder: Path) -> str:
    """Give the xxh3 of the inputs; blank if they are gone."""
    hasher = xxhash.xxh3_64()
    path = folder / INPUTS_NAME
    with files.explained(path), suppress(FileNotFoundError), regular.unbuffered(path) as file:
        while data := file.read(1 << 20):
            check()
            hasher.update(data)
        return hasher.hexdigest()
    return ""
