"""Between scan and check: choose the samples that are asked for, and the part of each."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import NamedTuple

from shardwright.engine import Engine
from shardwright.errors import UsageError
from shardwright.packing.choice import Choice, group_text
from shardwright.packing.scan import Part, Scan
from shardwright.packing.summary import Skipped
from shardwright.progress import Progress, quantity
from shardwright.store import facts, records, where
from shardwright.store.records import BadRecordError
from shardwright.store.where import Condition

_BATCH = 1000  # records that a worker reads at a time
_NONE = -1  # no condition fails


@dataclass
class Selected:
    """The samples that are asked for, in the order in which a limit takes them."""

    order: list[int]
    parts: dict[int, str] = field(default_factory=dict)  # by sample, if there is a split
    left_out: Skipped = field(default_factory=Skipped)  # the others, by condition
    packed_before: int = 0

    def of_part(self, samples: list[int], part: str | None) -> list[int]:
        """Give those of some samples that belong to a part."""
        return samples if part is None else [s for s in samples if self.parts[s] == part]


def select(
    scan: Scan,
    choice: Choice,
    parts: Collection[str | None],
    known: Collection[str],
    engine: Engine,
    progress: Progress,
) -> Selected:
    """Choose samples for some parts of a split; without one, for the part None.

    ``known`` are the ids that are packed already, when shards are appended.
    """
    found, read = Selected(list(scan.ready())), _Read()
    if choice.conditions or choice.group:
        read = _read(scan, found.order, choice, engine, progress)
    _warn_of_lists(scan, choice, progress)
    if known:
        ready = len(found.order)
        found.order = [sample for sample in found.order if scan.ids[sample] not in known]
        found.packed_before = ready - len(found.order)
    for condition, holds in _tests(scan, choice, parts, found, read, progress):
        marks = [holds(sample) for sample in found.order]
        if not all(marks):
            example = scan.ids[found.order[marks.index(False)]]
            found.left_out.add(condition, example, marks.count(False))
            found.order = list(compress(found.order, marks))
    if choice.settings.shuffle:
        # By sort key, because random() is the one method whose sequence Python guarantees.
        draw = random.Random(choice.settings.seed)
        found.order.sort(key=lambda _: draw.random())
    return found


@dataclass
class _Read:
    """What the records say, by sample."""

    fails: dict[int, int] = field(default_factory=dict)  # the first condition that does not hold
    groups: dict[int, str] = field(default_factory=dict)  # the group, if there is one


def _tests(
    scan: Scan,
    choice: Choice,
    parts: Collection[str | None],
    found: Selected,
    read: _Read,
    progress: Progress,
) -> Iterator[tuple[str, Callable[[int], bool]]]:
    """Give what must hold for a sample; the first that does not leaves it out."""
    settings, ids = choice.settings, choice.ids
    if settings.buckets:
        yield "--bucket", lambda sample: scan.buckets[sample] in settings.buckets
    if ids is not None:
        yield "--ids-file", lambda sample: scan.ids[sample] in ids
    if choice.excluded:
        yield "--exclude-ids-file", lambda sample: scan.ids[sample] not in choice.excluded
    for number, condition in enumerate(choice.conditions):
        yield str(condition), partial(_passes, read, number)
    if settings.split is not None:
        first_ids, part_of = facts.first_ids(scan.store), settings.split.part_of
        alone = [s for s in found.order if s not in read.groups] if choice.group else []
        if alone:
            progress.warn(
                f"{quantity(len(alone), 'records')} without {choice.group}, for example "
                f"{scan.ids[alone[0]]}: the part of each is chosen by its own id"
            )
        for sample in found.order:
            image_id = scan.ids[sample]
            group = read.groups.get(sample, first_ids.get(image_id, image_id))
            found.parts[sample] = part_of(group)
        yield "--split", lambda sample: found.parts[sample] in parts


def _passes(read: _Read, number: int, sample: int) -> bool:
    return read.fails.get(sample) != number


def _warn_of_lists(scan: Scan, choice: Choice, progress: Progress) -> None:
    """Warn of ids in a list that stand for no sample: they may be spelt wrong."""
    lists = {"--ids-file": choice.ids or (), "--exclude-ids-file": choice.excluded}
    if any(lists.values()):
        ready = set(scan.ids)
        ready |= {first for now, first in choice.first_ids.items() if now in ready}
        for flag, ids in lists.items():
            if unknown := sorted(set(ids) - ready):
                # Quoted, so that a blank or an extension can be seen.
                progress.warn(
                    f"{flag}: {quantity(len(unknown), 'ids')} without a ready record, for example "
                    f"{unknown[0]!r}; write one image_id on a line"
                )


class _Task(NamedTuple):
    first: int
    samples: Part
    conditions: list[Condition]
    group: str | None


class _Answer(NamedTuple):
    first: int
    fails: array[int]
    groups: list[str | None]
    fields: set[str]


def _read(
    scan: Scan, samples: Sequence[int], choice: Choice, engine: Engine, progress: Progress
) -> _Read:
    """Read all records; raise for a field that none of them has: a typing mistake."""
    found, fields = _Read(), set[str]()
    progress.phase("select", len(samples), "records")
    tasks = (
        _Task(first, scan.part(samples[first : first + _BATCH]), choice.conditions, choice.group)
        for first in range(0, len(samples), _BATCH)
    )
    with closing(engine.run(_look, tasks)) as answers:
        for answer in answers:
            batch = samples[answer.first : answer.first + _BATCH]
            found.fails |= {s: n for s, n in zip(batch, answer.fails, strict=True) if n != _NONE}
            found.groups |= {
                s: g for s, g in zip(batch, answer.groups, strict=True) if g is not None
            }
            fields |= answer.fields
            progress.advance(len(batch))
    asked = {name: "--where" for one in choice.conditions for name in where.fields(one)}
    asked |= {choice.group: "the column of the split"} if choice.group else {}
    for name, flag in asked.items():
        if samples and name not in fields:
            fix = f"there are {', '.join(sorted(fields))}"
            raise UsageError(f"{flag}: no record has a field {name}", fix=fix)
    return found


def _look(task: _Task) -> Iterator[_Answer]:
    """Look at every record of a batch."""
    fails, groups, fields = array("i"), list[str | None](), set[str]()
    for _, line in task.samples.lines():
        try:
            record = records.parse(line)
        except BadRecordError:  # skipped when it is checked
            record = {}
        numbers = (n for n, one in enumerate(task.conditions) if record and not one.holds(record))
        fails.append(next(numbers, _NONE))
        groups.append(group_text(record, task.group))
        fields |= record.keys()
    yield _Answer(task.first, fails, groups, fields)
