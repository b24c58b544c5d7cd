"""Between scan and check: choose the samples that are asked for, and the part of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import compress

from shardwright.packing.scan import Scan
from shardwright.packing.summary import Skipped
from shardwright.shards.format.manifest import PackSettings
from shardwright.store import facts


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
    scan: Scan, settings: PackSettings, parts: Collection[str | None], known: Collection[str]
) -> Selected:
    """Choose samples for some parts of a split; without one, for the part None.

    ``known`` are the ids that are packed already, when shards are appended.
    """
    found = Selected(list(scan.ready()))
    if known:
        ready = len(found.order)
        found.order = [sample for sample in found.order if scan.ids[sample] not in known]
        found.packed_before = ready - len(found.order)
    for condition, holds in _conditions(scan, settings, parts, found):
        marks = [holds(sample) for sample in found.order]
        if not all(marks):
            example = scan.ids[found.order[marks.index(False)]]
            found.left_out.add(condition, example, marks.count(False))
            found.order = list(compress(found.order, marks))
    if settings.shuffle:
        # By sort key, because random() is the one method whose sequence Python guarantees.
        draw = random.Random(settings.seed)
        found.order.sort(key=lambda _: draw.random())
    return found


def _conditions(
    scan: Scan, settings: PackSettings, parts: Collection[str | None], found: Selected
) -> Iterator[tuple[str, Callable[[int], bool]]]:
    """Give what must hold for a sample; the first that fails leaves it out."""
    if settings.buckets:
        yield "--bucket", lambda sample: scan.buckets[sample] in settings.buckets
    if settings.split is not None:
        first, part_of = facts.first_ids(scan.store), settings.split.part_of
        for sample in found.order:
            image_id = scan.ids[sample]
            found.parts[sample] = part_of(first.get(image_id, image_id))
        if not set(settings.split.names) <= set(parts):
            yield "--split", lambda sample: found.parts[sample] in parts
