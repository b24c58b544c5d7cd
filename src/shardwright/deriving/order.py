"""The order in which samples are read and encoded: pictures of one shape together.

Only pictures of one shape can be encoded in one batch, and latents have as many shapes as their
pictures. So samples are seen up to 512 ahead, by the heads of their files only, and given out in
crews: the oldest sample that waits, and with it the next ones of its shape, up to a full batch.

Records are committed in the order of the images, so what is made before its turn waits for all
older samples. What waits takes at most about 1 GiB, and 20 seconds of work: that much is lost in a
kill, beside what is being encoded. However else a run ends, everything before the first image that
is missing is committed; arrays after it are dropped, and made again by the next run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from shardwright.deriving import images
from shardwright.deriving.images import BadImageError
from shardwright.deriving.prepare import Measuring, Sample, file_bytes
from shardwright.deriving.recorded import recorded_size
from shardwright.deriving.views import View
from shardwright.recipes import Component

REACH = 512  # images that are seen ahead
_EARLY_AT_FIRST = 32  # images that may be made before their turn, until their rate is known
_EARLY_BYTES = 1 << 30
_EARLY_SECONDS = 20


class _Seen(NamedTuple):
    """A sample that has not been given out, its place among all, and the shape of its picture."""

    place: int
    shape: Hashable
    sample: Sample


class Order:
    """Gives out samples in crews of one shape, and takes them back in the order of the images."""

    def __init__(
        self,
        samples: Iterator[Sample],
        shape: Callable[[Sample], Hashable],
        reach: int = REACH,
    ) -> None:
        self._samples, self._shape, self._reach = samples, shape, reach
        self._most_early = _EARLY_AT_FIRST
        self._largest = 1  # bytes that a sample stores, of late
        self._drawn = 0
        self._seen: deque[_Seen] = deque()  # oldest first
        # Those that are not committed, oldest first. One thread appends, and another one takes.
        self._line: deque[Sample] = deque()

    def crew(self, count: int) -> list[Sample]:
        """Give the oldest sample, and the next ones of its shape; at most so many."""
        if (oldest := self._next()) is None:
            return []
        crew = [oldest.sample]
        others: list[_Seen] = []
        while len(crew) < count and self._early(others) < self._most_early:
            if (seen := self._next(oldest.place + self._reach)) is None:
                break
            if seen.shape == oldest.shape:
                crew.append(seen.sample)
            else:
                others.append(seen)
        self._seen.extendleft(reversed(others))
        return crew

    def finish(self, samples: Iterable[Sample]) -> list[Sample]:
        """Take back samples whose files are made, and give those whose turn has come."""
        for sample in samples:
            nbytes = sum(map(file_bytes, (sample.made or {}).values()))
            self._largest = max(nbytes, self._largest * 9 // 10, 1)
        turn = []
        while self._line and self._line[0].made is not None:
            turn.append(self._line.popleft())
        return turn

    def adapt(self, rate: float) -> None:
        """Choose how many may be made before their turn, by those that are made in a second."""
        self._most_early = min(_EARLY_BYTES // self._largest, int(_EARLY_SECONDS * rate))

    def _early(self, others: list[_Seen]) -> int:
        """Count the samples given out that are younger than the first one that is not."""
        given = self._drawn - len(self._seen) - len(others)
        return given - others[0].place if others else 0

    def _next(self, end: float = float("inf")) -> _Seen | None:
        """Give the next sample, if its place is before an end."""
        if (self._seen[0].place if self._seen else self._drawn) >= end:
            return None
        if self._seen:
            return self._seen.popleft()
        if (sample := next(self._samples, None)) is None:
            return None
        self._line.append(sample)
        self._drawn += 1
        return _Seen(self._drawn - 1, self._shape(sample), sample)


def shape(
    sample: Sample, views: Mapping[Component, View], measure: Measuring = images.measure
) -> Hashable:
    """Give what samples that are encoded together have in common: the sizes of what is encoded."""
    if sample.alone:  # then their order is that of the images
        return None
    following = [c for c in sample.make if c.follows_picture and c.is_array]
    if not following:
        return None
    try:
        size = sample.size or recorded_size(sample.record)
        size = size or measure(sample.source.place)
        return tuple(views[component].frame(size).size for component in following)
    except BadImageError:  # reading it gives the reason
        return "unreadable"
