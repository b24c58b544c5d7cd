"""The work itself: pictures are read ahead in threads, encoded in batches, committed in order.

Four stages run at once. Reader threads have the images decoded and prepared, ahead of the encoders,
in bounded memory. One thread stacks a group of samples into batches. The calling thread only
encodes. One thread checks the results and commits them to a sink. Where one core does all of it,
the stages take turns instead: threads would only wait for each other.

Only pictures of one shape can be encoded in one batch, and latents have as many shapes as their
pictures. So samples are seen up to 512 ahead, by the heads of their files only, and given out in
crews: the oldest sample that waits, and with it the next ones of its shape, up to a full batch.

Records are committed in the order of the images, so an interrupted and resumed run makes the same
store as one without a break. What is made before its turn waits for all older samples. What waits
takes at most about 1 GiB, and 20 seconds of work: that much is lost in a kill, beside what is being
encoded. However else a run ends, everything before the first image that is missing is committed;
arrays after it are dropped, and made again by the next run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from shardwright.deriving import images
from shardwright.deriving.batches import Batch, Batcher
from shardwright.deriving.prepare import Sample, file_bytes
from shardwright.interrupts import POLL, check
from shardwright.progress import Progress

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Said = TypeVar("Said", covariant=True)

_GROUP_SECONDS = 3  # about what a kill may cost: the size of groups is adapted to it
_TURN_SECONDS = 30  # where a group costs the moving of models too
_CREW_SECONDS = 10  # where encoding is slow, and full batches take longer than a group should
_LARGEST_GROUP = 256
_GROUP_BYTES = 1 << 28  # of inputs in a group, and again of those that wait to be stacked
_SMALL_BYTES = 1 << 25  # in a group, where nothing is gained by reading ahead
_CREW_BYTES = 1 << 29  # of inputs that are encoded at a time
_NOTE_EVERY = 10  # seconds
REACH = 512  # images that are seen ahead
_EARLY_AT_FIRST = 32  # images that may be made before their turn, until their rate is known
_EARLY_BYTES = 1 << 30
_EARLY_SECONDS = 20
ALONE = 8  # samples in a group of those that are encoded one by one


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


class Sink(Protocol[Said]):
    """Where samples end."""

    def check(self, sample: Sample) -> None:
        """Check what was made; ``made`` is then what is stored."""

    def commit(self, samples: Sequence[Sample]) -> Said:
        """Take a group of checked samples whose turn has come."""


@dataclass
class Report:
    """What devices have done, and how long it took."""

    seconds: float = 0.0
    waited: float = 0.0  # of these, in which the encoders were idle
    read: float = 0.0  # seconds of all readers
    encode: dict[str, float] = field(default_factory=dict)  # seconds, by pass
    # By component: inputs, and the batches they were in.
    fills: dict[str, tuple[int, int]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)  # the most bytes in use, by device

    @property
    def idle(self) -> float:
        """The part of the time in which the encoders were idle."""
        # The time is that until the last group, and so may be shorter than the present wait.
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0

    def add(self, other: Report) -> None:
        """Add what another device has done."""
        self.seconds += other.seconds
        self.waited += other.waited
        self.read += other.read
        for name, took in other.encode.items():
            self.encode[name] = self.encode.get(name, 0) + took
        for name, (inputs, batches) in other.fills.items():
            before = self.fills.get(name, (0, 0))
            self.fills[name] = (before[0] + inputs, before[1] + batches)
        for device, most in other.memory.items():
            self.memory[device] = max(self.memory.get(device, 0), most)


class Pipeline(Generic[Said]):
    """Runs samples through the four stages."""

    def __init__(
        self,
        order: Order,
        read: Callable[[Sample], Sample],
        batcher: Batcher,
        sink: Sink[Said],
        progress: Progress,
        report: Report,
    ) -> None:
        self.order, self.read = order, read
        self.batcher, self.sink, self.progress = batcher, sink, progress
        self.report = report
        self._group_size = self._crew_size = batcher.batch_size
        self._has_readers = True
        self._idle = False  # whether the encoders wait for the next group
        self._broken = False  # whether a commit has failed

    def run(self, total: int, readers: int) -> Generator[Said, None, None]:
        """Make all samples, and give what the sink says of each group.

        Without readers, everything happens in this thread. However this ends, what is complete in
        their order is committed.
        """
        noted = now = time.monotonic()
        done = 0
        self._has_readers = readers > 0
        # Left in the opposite order: the readers stop first, and the committer is waited for.
        with (
            images.strict(),
            ThreadPoolExecutor(1)
            if readers
            else _CallingThread() as committing,  # all that it was given
            _pool(min(readers, 1)) as stacking,
            _pool(readers) as reading,
        ):
            ahead = _ReadAhead(reading, self._read, self.order, max(readers, 1))
            coming = self._begin(stacking, self._next, ahead)
            committed: Future[list[Said]] | None = None
            while True:
                self._idle = True
                group, batches = self._wait(coming)
                self._idle = False
                if not group:
                    break
                coming = self._begin(stacking, self._next, ahead)
                self.batcher.encode(batches)
                # What is encoded will be committed, whatever comes; then not too far ahead of it.
                before, committed = committed, self._begin(committing, self._commit, group)
                if before is not None:
                    yield from self._wait(before)
                if group[0].alone:  # so that it is known how far we came
                    yield from self._wait(committed)
                    committed = None
                done += len(group)
                last, now = now, time.monotonic()
                self.report.seconds += now - last
                self._adapt(len(group), now - last)
                idle = f"encoder idle {self.report.idle:.0%}"
                self.progress.aside(idle)
                if now - noted >= _NOTE_EVERY:
                    noted = now
                    self.progress.note(f"{done:,}/{total:,} images, {idle}")
            if committed is not None:
                yield from self._wait(committed)
        self.report.seconds += time.monotonic() - now

    def _next(self, ahead: _ReadAhead) -> tuple[list[Sample], list[Batch]]:
        """Gather the crews of the next group of samples, and their batches."""
        samples: list[Sample] = []
        nbytes, most = 0, _GROUP_BYTES * (4 if self.batcher.takes_turns else 1)
        coming = self._group_size
        if not self._has_readers:
            most, coming = _SMALL_BYTES, 0
        while len(samples) < self._group_size and nbytes < most:
            if len(samples) >= ALONE and samples[0].alone:
                break
            # Full batches matter more than a full group, for which the encoders need not wait.
            enough = self._idle and len(samples) >= self.batcher.batch_size
            crew = ahead.take(coming, self._crew_size, wait=not enough)
            if not crew:
                break
            samples += crew
            self.report.read += sum(sample.read_seconds for sample in crew)
            nbytes += sum(sample.nbytes for sample in crew)
        return samples, self.batcher.stack(samples)

    def _read(self, sample: Sample) -> Sample:
        check()  # in other threads than the main one, it does nothing
        began = time.monotonic()
        sample = self.read(sample)
        sample.read_seconds = time.monotonic() - began
        return sample

    def _commit(self, group: list[Sample]) -> list[Said]:
        """Check a group, and commit what is complete up to the first sample that is missing."""
        said: list[Said] = []
        if self._broken:  # after a gap, nothing can be committed in order
            return said
        try:
            try:
                for sample in group:
                    self.sink.check(sample)
            finally:
                turn = self.order.finish(group)
                groups = range(0, len(turn), _LARGEST_GROUP)
                said = [self.sink.commit(turn[at : at + _LARGEST_GROUP]) for at in groups]
            return said
        except BaseException:
            self._broken = True
            raise

    def _adapt(self, count: int, seconds: float) -> None:
        """Choose the size of the next groups, and their order, by how long this one took."""
        rate = count / max(seconds, 1e-6)
        self.order.adapt(rate)
        fitting = int(rate * (_TURN_SECONDS if self.batcher.takes_turns else _GROUP_SECONDS))
        size = max(1, min(fitting, _LARGEST_GROUP, 2 * count))
        batch = self.batcher.batch_size
        self._group_size = size if size < batch else size - size % batch
        self._crew_size = max(1, min(batch, int(rate * _CREW_SECONDS)))

    def _begin(
        self,
        stage: Executor,
        function: Callable[Arguments, Result],
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Future[Result]:
        began = time.monotonic()
        future = stage.submit(function, *given, **named)
        self.report.waited += time.monotonic() - began  # where the stage has no thread of its own
        return future

    def _wait(self, future: Future[Result]) -> Result:
        began = time.monotonic()
        check()
        while wait([future], POLL).not_done:
            check()
        self.report.waited += time.monotonic() - began
        return future.result()


class _ReadAhead:
    """The crews that are being read ahead, in order."""

    def __init__(
        self,
        pool: Executor,
        read: Callable[[Sample], Sample],
        order: Order,
        readers: int,
    ) -> None:
        self._pool, self._read, self._order, self._readers = pool, read, order, readers
        self._crews: deque[list[Future[list[Sample]]]] = deque()
        self._coming = 0  # samples in these
        self._typical = 1 << 24  # bytes that a sample takes: a first guess, then the most of late
        self._guessed = True

    def take(self, count: int, size: int, *, wait: bool) -> list[Sample]:
        """Give the next crew, and keep so many samples coming; none if all are out, or none yet."""
        if not self._crews:
            self._fill(count, size)
        if not self._crews or not (wait or all(future.done() for future in self._crews[0])):
            return []
        crew = [sample for future in self._crews.popleft() for sample in future.result()]
        self._coming -= len(crew)
        before = 0 if self._guessed else self._typical * 9 // 10
        self._typical = max(1, before, *(sample.nbytes for sample in crew))
        self._guessed = False
        self._fill(count, size)
        return crew

    def _fill(self, count: int, size: int) -> None:
        size = min(size, max(1, _CREW_BYTES // self._typical))
        most = max(_GROUP_BYTES, self._readers * self._typical)  # no reader waits for memory
        while self._coming < count + self._readers and self._coming * self._typical < most:
            crew = self._order.crew(size)
            if not crew:
                return
            # A reader takes its share of a crew at once: to hand over each sample takes time too.
            share = -(-len(crew) // self._readers)
            parts = (crew[at : at + share] for at in range(0, len(crew), share))
            self._crews.append([self._pool.submit(self._read_all, part) for part in parts])
            self._coming += len(crew)

    def _read_all(self, samples: list[Sample]) -> list[Sample]:
        return [self._read(sample) for sample in samples]


class _CallingThread(Executor):
    """In place of threads: does what it is given, at once."""

    def submit(
        self,
        function: Callable[Arguments, Result],
        /,
        *given: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(function(*given, **named))
        except BaseException as error:  # raised where the result is used
            future.set_exception(error)
        return future


@contextmanager
def _pool(threads: int) -> Iterator[Executor]:
    """Open a pool of threads; at the end, tasks that have not begun are dropped."""
    pool = ThreadPoolExecutor(threads) if threads else _CallingThread()
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
