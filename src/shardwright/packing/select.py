"""Between scan and check: choose the samples that are asked for, and the part of each."""

from __future__ import annotations

import random
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from shardwright.engine import Engine
from shardwright.errors import UsageError
from shardwright.packing.choice import Choice, group_text
from shardwright.packing.scan import Excerpt, Scan
from shardwright.packing.summary import Counts
from shardwright.progress import Progress, quantity
from shardwright.store import facts, records, where
from shardwright.store.records import BadRecordError
from shardwright.store.where import Condition


@dataclass
class Selected:
    """The samples that are asked for, in the order in which a limit takes them."""

    order: Sequence[int]
    parts: tuple[str, ...] = ()  # the names of a split's parts, if there is one
    numbers: array[int] = field(default_factory=lambda: array("H"))  # of the parts, by sample
    left_out: Counts = field(default_factory=Counts)  # the others, by condition
    packed_before: int = 0
    unselected: set[int] = field(default_factory=set)  # of those, what is not asked for now

    def part_of(self, sample: int) -> str | None:
        """Give the part of a sample; without a split, None."""
        return self.parts[self.numbers[sample]] if self.parts else None

    def of_part(self, samples: Sequence[int], part: str | None) -> Sequence[int]:
        """Give those of some samples that belong to a part."""
        return samples if part is None else [s for s in samples if self.part_of(s) == part]


def select(
    scan: Scan,
    choice: Choice,
    parts: Collection[str | None],
    known: Collection[str],
    packed: Collection[str],
    engine: Engine,
    progress: Progress,
) -> Selected:
    """Choose samples for some parts of a split; without one, for the part None.

    ``known`` are the ids that are packed already, when shards are appended. ``--bucket`` is for new
    samples, and not for those that are ``packed`` in shards that follow the store.
    """
    samples, fails, groups = scan.ready(), dict[int, str](), dict[int, str]()
    if choice.conditions or choice.group:
        fails, groups = _read(scan, samples, choice, engine, progress)
    _warn_of_lists(scan, choice, progress)
    settings, order, alone = choice.settings, array("I"), list[int]()
    found = Selected(order)
    if settings.split is not None:
        found.parts, found.numbers = settings.split.names, array("H", [0]) * len(scan.ids)
    for sample in samples:
        image_id = scan.ids[sample]
        fault = choice.fault(image_id, fails.get(sample))
        if image_id in known:
            found.packed_before += 1
            found.unselected.update([sample] if fault else [])
            continue
        if settings.buckets and scan.buckets[sample] not in settings.buckets:
            fault = fault if image_id in packed else "--bucket"
        if settings.split is not None and fault is None:
            group = groups.get(sample)
            part = str(choice.part_of(image_id, group))
            found.numbers[sample] = found.parts.index(part)
            fault = None if part in parts else "--split"
            alone += [sample] if choice.group and group is None else []
        if fault is None:
            order.append(sample)
        else:
            found.left_out.add(fault, image_id)
    if alone:
        progress.warn(
            f"{quantity(len(alone), 'records')} without {choice.group}, for example "
            f"{scan.ids[alone[0]]}: the part of each is chosen by its own id"
        )
    if settings.shuffle:
        found.order = _shuffled(order, settings.seed)
    return found


def _shuffled(order: array[int], seed: int | None) -> array[int]:
    """Sort by random numbers, because random() is the one method whose sequence Python guarantees.

    Equal ones leave two samples in their order.
    """
    import numpy as np  # here, because it takes longer to load than a small store to pack

    draw = random.Random(seed).random
    keys = np.fromiter((draw() for _ in order), np.float64, len(order))
    shuffled = np.asarray(order)[np.argsort(keys, kind="stable")]
    return array("I", shuffled.tobytes())


def _warn_of_lists(scan: Scan, choice: Choice, progress: Progress) -> None:
    """Warn of ids in a list that stand for no sample: they may be spelt wrong."""
    lists = {"--ids-file": choice.ids or (), "--exclude-ids-file": choice.excluded}
    if any(lists.values()):
        ready = set(scan.ids)
        ready |= {first for now, first in choice.first_ids.items() if now in ready}
        for flag, ids in lists.items():
            # A line with blanks around it is there twice, as it is and without them.
            plain = {each.strip() for each in ids if each != each.strip()}
            if unknown := sorted(i for i in set(ids) - plain if not {i, i.strip()} & ready):
                # Quoted, so that a blank or an extension can be seen.
                progress.warn(
                    f"{flag}: {quantity(len(unknown), 'ids')} without a ready record, for example "
                    f"{unknown[0]!r}; write one image_id on a line"
                )


class _Answer(NamedTuple):
    records: int
    fails: dict[int, int]  # by sample: the number of the condition
    groups: dict[int, str]  # by sample
    fields: set[str]
    hiding: set[str]  # columns of the name of something that is computed


def _read(
    scan: Scan, samples: Sequence[int], choice: Choice, engine: Engine, progress: Progress
) -> tuple[dict[int, str], dict[int, str]]:
    """Give the first condition that a sample fails, and its group, from all records.

    Raise for a field that none of them has: a typing mistake.
    """
    failed, groups, fields, hiding = dict[int, str](), dict[int, str](), set[str](), set[str]()
    texts, conditions = list(choice.conditions), list(choice.conditions.values())
    progress.phase("select", len(samples), "records")
    places = scan.fact_places(samples) if choice.asks_facts else None
    look = partial(_look, conditions, choice.group)
    with closing(engine.run(look, scan.batches(samples, places))) as answers:
        for answer in answers:
            failed |= {sample: texts[number] for sample, number in answer.fails.items()}
            groups |= answer.groups
            fields |= answer.fields
            hiding |= answer.hiding
            progress.advance(answer.records)
    asked = {name: "--where" for one in choice.where for name in one.fields()}
    asked |= {choice.group: "the column of the split"} if choice.group else {}
    for name, flag in asked.items():
        if samples and name not in fields:
            ours = {field for field in fields if not field.startswith("__")}  # of a plan
            fix = f"there are {', '.join(sorted(ours))}"
            if facts.is_fact(name) and ours != fields:
                fix += "; build has max_upscale, max_crop and max_tokens_lost in its recipe instead"
            raise UsageError(f"{flag}: no record has a field {name}", fix=fix)
    for name in sorted(hiding & asked.keys()):
        what = "is a column of the records here, and not what Shardwright computes"
        progress.warn(f"--where: {name} {what}. Rename the column to use that")
    for name, meant in where.ALIASES.items():
        if meant in asked and name in fields:
            what = f"means the {meant} of a sample. For the column of that name, write `{name}`"
            progress.warn(f"--where: {name} {what}")
    return failed, groups


def _look(conditions: Sequence[Condition], column: str | None, batch: Excerpt) -> Iterator[_Answer]:
    """Look at every record of a batch."""
    fails, groups, fields, hiding = dict[int, int](), dict[int, str](), set[str](), set[str]()
    lines = zip(batch.samples, batch.lines(), batch.known(), strict=True)
    for sample, (_, line), one in lines:
        try:
            record = records.parse(line)
        except BadRecordError:  # skipped when it is checked
            record = {}
        if record and batch.fact_places is not None:  # a column of the same name goes first
            computed = facts.fields(record, one, batch.store.recipe)
            hiding |= computed.keys() & record.keys()
            record = computed | record
        numbers = (n for n, one in enumerate(conditions) if record and not one.holds(record))
        if (number := next(numbers, None)) is not None:
            fails[sample] = number
        if (group := group_text(record, column)) is not None:
            groups[sample] = group
        fields |= record.keys()
    yield _Answer(len(batch.ids), fails, groups, fields, hiding)
