"""The sizes of all images, from their heads, and their texts, in worker processes.

They become the rows of a plan, in order. At a URL each request takes some time, in which nothing is
to be done, so there a worker sends many at a time.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import count, islice
from operator import call
from pathlib import Path
from typing import NamedTuple

from shardwright.building import built, inputs, tars
from shardwright.building.inputs import (
    Found,
    Left,
    Row,
    as_text,
    fingerprint,
    head_of,
)
from shardwright.deriving import captions, images, sources
from shardwright.deriving.images import DECODER_DIED, BadImageError
from shardwright.deriving.sources import spelt
from shardwright.engine import Engine
from shardwright.engine.local import ended_by
from shardwright.engine.pool import Death
from shardwright.interrupts import POLL, check
from shardwright.progress import Progress, quantity
from shardwright.recipes import Recipe
from shardwright.storage import extents
from shardwright.storage.local import LocalFile, Readable
from shardwright.storage.place import place_at
from shardwright.storage.urls import location
from shardwright.store.records import image_id_problem
from shardwright.text import shown

_FILES = 1024  # in a task: as many as are measured while another process would start
_AT_ONCE = 256  # rows in a message
_AHEAD = 1 << 16  # rows that may wait for those before them

_Look = Callable[..., "Measured"]


class _Task(NamedTuple):
    """Some image files or one tar; neither, to wait until others have caught up."""

    number: int
    given: str  # the given path that they are in
    root: str
    recipe: Recipe
    images: Sequence[sources.Source] = ()
    tar: str = ""
    state: sources.State | None = None  # of a tar at a URL
    alone: bool = False  # whether images are looked at one by one, because a worker has died
    skip: int = 0  # images that were measured before that
    died: Mapping[int, str] = {}  # images at which workers died again, and how


class Measured(NamedTuple):
    """One image, and what lies with it."""

    row: Row | Left
    given: str  # the given path that it is in
    tar: str  # that it is in, if it is in one
    columns: captions.Row  # of its JSON
    text: str | None = None  # the caption beside it
    fault: tuple[str, str] | None = None  # why that cannot be read: the reason and a detail


class _Message(NamedTuple):
    number: int  # of its task
    rows: list[Measured]
    last: bool = False
    passed: tuple[int, str] | None = None  # skipped members of its tar, once it is the last


def measured(
    found: Sequence[Found], recipe: Recipe, engine: Engine, progress: Progress
) -> Generator[Measured, None, None]:
    """Look at the heads of all images, and give what a plan needs, in the order of the inputs.

    Ids are those that the recipe chooses; several images may have one. With ids from captions, that
    of a file is blank, and that of a member is in its JSON, or blank.
    """
    known = 0 if any(each.tars for each in found) else sum(len(each.images) for each in found)
    progress.phase("measure images", known, "images")
    course, passed = _Course(_tasks(found, recipe), recipe), list[tuple[int, str]]()
    with closing(engine.run(_measure, course.tasks(), course.instead)) as messages:
        for message in messages:
            passed += [message.passed] if message.passed else []
            for rows in course.turn(message):
                progress.advance(len(rows))
                yield from rows
    if passed:
        skipped = quantity(sum(count for count, _ in passed), "tar members")
        example = shown(as_text(min(example for _, example in passed)))
        progress.warn(f"{skipped} skipped: not named like KEY.jpg, for example {example}")


class _Course:
    """Puts what tasks give back in order; workers that are too far ahead wait.

    A task whose worker has died goes on without the images at which it dies again.
    """

    def __init__(self, tasks: Iterator[_Task], recipe: Recipe) -> None:
        self._tasks, self._recipe = tasks, recipe
        self._turn = 0
        self._waiting: dict[int, list[_Message]] = {}
        self._held = 0  # rows that wait
        self._rows = Counter[int]()  # that have come, by task
        self._began: set[int] = set()  # tasks of which something has come since their worker began

    def tasks(self) -> Iterator[_Task]:
        """Give the tasks; the one whose turn it is has always been given out already."""
        for task in self._tasks:
            while self._held > _AHEAD:
                yield _Task(-1, "", "", self._recipe)
            yield task

    def turn(self, message: _Message) -> Iterator[list[Measured]]:
        """Take a message, and give the rows whose turn has come."""
        self._rows[message.number] += len(message.rows)
        self._began.add(message.number)
        self._waiting.setdefault(message.number, []).append(message)
        self._held += len(message.rows)
        done = True
        while done and self._turn in self._waiting:
            for each in self._waiting.pop(self._turn):
                self._held -= len(each.rows)
                done = each.last
                yield each.rows
            self._turn += done

    def instead(self, task: _Task, death: Death) -> _Task:
        """Give what is to be done in place of a task whose worker has died."""
        done, began = self._rows[task.number], task.number in self._began
        self._began.discard(task.number)
        if not task.alone:
            return task._replace(alone=True, skip=done)
        if not began or done in task.died:  # it dies without looking at any image
            raise death.error
        how = f"the process that read it {ended_by(death.exit_code)}, twice"
        return task._replace(skip=done, died={**task.died, done: how})


def _tasks(found: Sequence[Found], recipe: Recipe) -> Iterator[_Task]:
    number = count()
    for each in found:
        for start in range(0, len(each.images), _FILES):
            some = each.images[start : start + _FILES]
            yield _Task(next(number), each.path, each.root, recipe, some)
        for tar, state in each.tars.items():
            yield _Task(next(number), each.path, each.root, recipe, tar=tar, state=state)


def _measure(task: _Task) -> Iterator[_Message]:
    """Do one task, in a worker."""
    if task.number < 0:
        time.sleep(POLL)
        return
    passed: list[str] = []
    looks: Iterator[_Look] = (partial(_file, task, each) for each in task.images)
    if task.tar:
        looks = _members(task, passed)
    last, most = False, 1 if task.alone else _AT_ONCE
    each = place_at(location(task.given)).each
    if task.alone:
        yield _Message(task.number, [])  # so that it is seen that the worker works
    rest = (  # without looking at images at which workers died
        partial(look, died=task.died[number]) if number in task.died else look
        for number, look in enumerate(looks)
        if number >= task.skip
    )
    while not last:
        with images.strict():
            those = islice(rest, most)
            some = list(map(call, those) if task.alone else each(call, those))
        last = len(some) < most
        skipped = (len(passed), passed[0]) if passed and last else None
        yield _Message(task.number, some, last, skipped)


def _left(task: _Task, image_id: str, path: str, reason: str, detail: str) -> Measured:
    left = Left(as_text(image_id), as_text(path), reason, detail)
    return Measured(left, task.given, as_text(task.tar), {})


def _file(task: _Task, source: sources.Source, died: str = "") -> Measured:
    image_id, path = _id_of(source, task.root, task.recipe.ids), source.path
    if died:
        return _left(task, image_id, path, DECODER_DIED, died)
    if source.fault:
        detail = f"{source.fault}; the images in this folder are not used"
        return _left(task, "", path, "unreadable_folder", detail)
    try:
        _require_names(image_id, path)
        place = images.fetched(source.place, head=True)
        state = extents.state(place)
        size, begins = images.measure(place), head_of(place)
    except BadImageError as error:
        return _left(task, image_id, path, *error.args)
    except OSError as error:
        return _left(task, image_id, path, extents.UNREADABLE, str(error.strerror))
    row = Row(image_id, path, *size, *state, source.has_sidecar, xxh3=begins)
    return _with_texts(task, row, source, {})


def _member(
    task: _Task,
    tar: Readable | None,
    state: sources.State,
    sample: tars.TarSample | tars.Flaw,
    died: str = "",
) -> Measured:
    image_id = _id_of_key(task, sample.key)
    if isinstance(sample, tars.Flaw):
        where = f"{task.tar}/{sample.key}" if sample.key else task.tar
        return _left(task, image_id, where, sample.reason, sample.detail)
    path = str(sample.image)
    if died:
        return _left(task, image_id, path, DECODER_DIED, died)
    parts = (sample.image, sample.text, sample.json)
    image, text, json = ((part.offset, part.size) if part else None for part in parts)
    try:
        if task.recipe.ids == "captions" and sample.json:
            image_id = tars.given_id(extents.read(sample.json))
        _require_names(image_id, path)
        size = images.measure(sample.image)
        spans = [span for span in (image, text, json) if span is not None]
        xxh3 = fingerprint(tar, spans) if tar else head_of(sample.image)
        columns = inputs.columns(sample.json, task.recipe)
    except (BadImageError, captions.CaptionError) as error:
        return _left(task, image_id, path, error.args[0], error.args[1])
    except OSError as error:
        return _left(task, image_id, path, extents.UNREADABLE, str(error.strerror))
    row = Row(image_id, path, *size, *state, False, len(task.tar), image, text, json, xxh3)
    source = sources.Source(image_id, path, text is not None, text=sample.text)
    return _with_texts(task, row, source, columns)


def _with_texts(task: _Task, row: Row, source: sources.Source, columns: captions.Row) -> Measured:
    """Read the caption that lies with an image.

    It may be that it is not needed, so an image does not fail here for lack of it.
    """
    found = Measured(row, task.given, task.tar, columns)
    try:
        return found._replace(text=captions.beside(source))
    except captions.CaptionError as error:
        return found._replace(fault=(error.args[0], error.args[1]))


def unknown(found: Sequence[Found], known: Mapping[str, bytes], ids: str) -> list[Found]:
    """Leave out the image files that are in the shards.

    ``known`` has their images by their ids: another one of the same id is not known.
    """
    others = []
    for each in found:
        images = []
        for source in each.images:
            check()
            line = known.get(_id_of(source, each.root, ids))
            if line is None or not _is_known(source, line):
                images.append(source)
        others.append(each._replace(images=images))
    return others


def _is_known(source: sources.Source, line: bytes) -> bool:
    """Whether an image file is one that is in a shard; one that cannot be read is not."""
    place = source.place
    try:
        state = extents.state(place)
        return built.decode(line).is_same(source.path, place, state)
    except OSError:
        return False


def _id_of(source: sources.Source, root: str, ids: str) -> str:
    """Give the id of an image file; blank if it comes from captions."""
    by_name = source.image_id if ids == "name" else ""
    return spelt(source.path, root) if ids == "path" else by_name


def _members(task: _Task, passed: list[str]) -> Iterator[_Look]:
    """Give what is to be done for each sample of a tar; note what is skipped."""
    path = task.tar
    if as_text(path) != path:
        what = "its name is not Unicode, which a record cannot hold"
        yield partial(_left, task, "", path, "image_id_invalid", what)
        return
    try:
        # Before its headers are read: what changes later is noticed.
        state = task.state or extents.state(path)
        tar = LocalFile(Path(path)) if task.state is None else None
    except OSError as error:
        yield partial(_left, task, "", path, "unreadable_tar", str(error.strerror))
        return
    with tar or nullcontext():
        for sample in tars.samples(path, state[0], passed):
            yield partial(_member, task, tar, state, sample)


def _id_of_key(task: _Task, key: str) -> str:
    """Give the id of a key; blank if there is none, or if ids come from captions."""
    if not key or task.recipe.ids == "captions":
        return ""
    base = task.root if task.recipe.ids == "name" else os.path.splitext(task.tar)[0]
    return spelt(f"{base}/{key}", task.root)


def _require_names(image_id: str, path: str) -> None:
    """Raise if a record cannot hold the names of an image; an id may be chosen later."""
    if not sources.is_text(path) or (image_id and image_id_problem(image_id)):
        raise BadImageError("image_id_invalid", "its name is not a valid image_id")
