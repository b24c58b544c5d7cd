"""What the store knows of samples beside their records: its facts, read when they are packed.

Of each sample only the place of its facts is in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable
from contextlib import ExitStack, suppress
from typing import BinaryIO

from shardwright import regular
from shardwright.packing.scan import Scan, changed
from shardwright.store import facts, records
from shardwright.store.facts import Facts
from shardwright.store.store import Store

_UNKNOWN = -1


class Places:
    """Where the facts of some samples of a scan are."""

    def __init__(self, scan: Scan, samples: Iterable[int]) -> None:
        self._offsets = array("q", [_UNKNOWN]) * len(scan.ids)
        places = {scan.ids[sample]: sample for sample in samples}
        for offset, known in facts.read(scan.store) if places else ():
            if (sample := places.get(known.image_id)) is not None:
                self._offsets[sample] = offset

    def of(self, samples: Iterable[int]) -> array[int]:
        """Give them for a worker that reads some samples."""
        return array("q", [self._offsets[sample] for sample in samples])


def read(
    store: Store, ids: Iterable[str], offsets: array[int]
) -> Generator[Facts | None, None, None]:
    """Read the facts of samples by their places; None where they are unknown."""
    path = facts.path_of(store)
    with ExitStack() as stack:
        file: BinaryIO | None = None
        if any(offset != _UNKNOWN for offset in offsets):
            try:
                file = stack.enter_context(regular.opened(path))
            except OSError as error:  # although lines of it were found
                raise changed(path, str(error.strerror)) from error
        for image_id, offset in zip(ids, offsets, strict=True):
            if file is None or offset == _UNKNOWN:
                yield None
            else:
                yield read_one(store, file, image_id, offset)


def read_one(store: Store, file: BinaryIO, image_id: str, offset: int) -> Facts:
    """Read the facts of an image at a place; raise if they are not there any more."""
    with suppress(*records.NOT_JSON):
        known = facts.read_line(file, offset)
        if known.image_id == image_id:
            return known
    raise changed(facts.path_of(store), "written to")
