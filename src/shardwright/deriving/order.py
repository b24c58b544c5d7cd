"""The order in which samples are read and encoded: pictures of one shape together.

Only pictures of one shape can be encoded in one batch, and latents have as many shapes as their
pictures. So samples are seen some way ahead, by the heads of their files only, and given out in
crews: the oldest sample that waits, and with it the next ones of its shape, up to a full batch.

What is made before its turn waits for the older samples, because records are committed in the
order of the images. So a crew reaches at most 512 images ahead of its oldest, at most so far that
the arrays that wait take about 1 GiB, and at most about 20 seconds of work: that is lost in a kill,
beside what is being encoded. However else a run ends, everything before the first image that is
missing is committed, and arrays after it are dropped and made again by the next run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from shardwright.deriving.prepare import Sample

_FARTHEST = 512  # images
_FIRST = 64  # images, before it is known how long they take
_BYTES = 1 << 30
_SECONDS = 20


class _Seen(NamedTuple):
    """A sample that has not been given out, its place among all, and the shape of its picture."""

    place: int
    shape: Hashable
    sample: Sample


class Order:
    """Gives out samples in crews of one shape, and takes them back in the order of the images."""

    def __init__(self, samples: Iterator[Sample], shape: Callable[[Sample], Hashable]) -> None:
        self._samples, self._shape = samples, shape
        self._reach = _FIRST
        self._largest = 1  # bytes that a sample stores, of late
        self._drawn = 0
        self._seen: deque[_Seen] = deque()  # oldest first
        # Those that are not committed, oldest first. One thread appends, and another one takes.
        self._line: deque[Sample] = deque()

    def crew(self, count: int) -> list[Sample]:
        """Give the oldest sample, and the next ones of its shape; at most so many."""
        if (oldest := self._next()) is None:
            return []
        crew, others = [oldest.sample], []
        end = oldest.place + self._reach
        while len(crew) < count and (seen := self._next(end)):
            if seen.shape == oldest.shape:
                crew.append(seen.sample)
            else:
                others.append(seen)
        self._seen.extendleft(reversed(others))
        return crew

    def finish(self, samples: Iterable[Sample]) -> list[Sample]:
        """Take back samples whose files are made, and give those whose turn has come."""
        for sample in samples:
            nbytes = sum(memoryview(file).nbytes for file in (sample.made or {}).values())
            self._largest = max(nbytes, self._largest * 9 // 10, 1)
        turn = []
        while self._line and self._line[0].made is not None:
            turn.append(self._line.popleft())
        return turn

    def adapt(self, rate: float) -> None:
        """Choose how far to reach, by the samples that are made in a second."""
        self._reach = int(min(_FARTHEST, _BYTES // self._largest, _SECONDS * rate))

    def _next(self, end: float = float("inf")) -> _Seen | None:
        """Give the next sample, if its place is before an end."""
        if (self._seen[0].place if self._seen else self._drawn) >= end:
            return None
        if self._seen:
            return self._seen.popleft()
        sample = next(self._samples, None)
        if sample is None:
            return None
        self._line.append(sample)
        self._drawn += 1
        return _Seen(self._drawn - 1, self._shape(sample), sample)
