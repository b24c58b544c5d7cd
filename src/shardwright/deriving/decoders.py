"""Decoding in processes of its own, on all cores, without the interpreter lock of this one.

Each child is a fresh process: it has no threads, no torch and no weights, and never outlives this
process. Only for few images it is a copy of this one where it can be, which starts at once. It
writes what it made into its arena, a file without a name in memory, from which this process copies
it; through the connection go only arguments and some lengths. So no pixels are sent, nothing is in
``/dev/shm``, and a kill leaves nothing behind.

If a child dies, another one reads its image; if that dies too, the image fails.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, Self, TypeVar

import numpy as np

from shardwright.deriving import images
from shardwright.deriving.images import DECODER_DIED, BadImageError, Size
from shardwright.engine.local import (
    KEPT_MEMORY,
    InWorker,
    cores,
    ended_by,
    fork,
    kill,
    may_fork_to_read,
    nameless_file,
    portable,
    signals_blocked,
    spawn,
)
from shardwright.errors import ShardwrightError
from shardwright.interrupts import POLL, check_in_threads
from shardwright.storage.extents import Extent

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_FEW = 32  # images for each core: below, starting processes costs more than they gain
_FEW_COPIED = 8  # images for each process that is a copy of this one
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **KEPT_MEMORY}
_KEPT = 1 << 26  # bytes of an arena; what a huge picture needs beyond is given back
_AT_ONCE = 1 << 30  # bytes: the system takes no more than 2 GiB in one call
_FIX = "raise the limits (ulimit -u, ulimit -n) or free memory"
_START = "a process that decodes images did not start"


def children_for(count: int, available: int) -> int:
    """Choose how many processes decode so many images; 0 to decode in the calling threads."""
    found = min(available, count // _FEW)
    return found if found > 1 else 0


def copies_for(count: int, available: int) -> int:
    """Choose how many copies of this process decode few images, which might kill this one."""
    return min(available, 1 + count // _FEW_COPIED) if count else 0


class Decoders(Generic[Arguments, Result]):
    """Calls a function in some processes, or here if there are none; for several threads.

    ``available`` are the cores that it may use; all by default. ``copied`` processes are copies of
    this one, where that is safe.
    The function and its arguments must be picklable. What the function raises is raised here.
    """

    def __init__(
        self,
        function: Callable[Arguments, Result],
        count: int,
        available: int | None = None,
        *,
        copied: bool = False,
    ) -> None:
        self.function, self.count = function, count
        self._available = available or cores()
        self._children = [_Child(function, copied) for _ in range(count)]
        self._idle: SimpleQueue[_Child] = SimpleQueue()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            for child in self._children:
                undo.callback(child.end)
                child.start()
                self._idle.put(child)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    @property
    def threads(self) -> int:
        """Say how many threads keep all busy: one more, while others copy what was made."""
        return self.count + 1 if self.count else self._available

    def __call__(self, *given: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Run the function; if its process dies, once more; BadImageError if it dies again.

        It may have died of something else than its image: most often, memory runs out.
        """
        if not self.count:
            return self.function(*given, **named)
        child = self._idle.get()
        try:
            result: Result = child.run(given, named)
        finally:
            self._idle.put(child)
        return result


class OneDecoder(Decoders[Arguments, Result]):
    """Calls a function in one process, which the first call starts."""

    def __init__(self, function: Callable[Arguments, Result], *, copied: bool = False) -> None:
        super().__init__(function, 1, copied=copied)

    def __enter__(self) -> Self:
        self._idle.put(self._children[0])
        return self


class Heads(OneDecoder[[Extent], Size]):
    """Measures pictures in a process of its own, so that one which kills it is only left out."""

    def __init__(self) -> None:
        super().__init__(images.measure, copied=True)
        self._deadly: dict[str, tuple[str, str]] = {}

    def __call__(self, place: Extent) -> Size:
        """Give the size of a picture, as ``images.measure`` does."""
        if known := self._deadly.get(str(place)):
            raise BadImageError(*known)
        try:
            return super().__call__(place)
        except BadImageError as error:
            if error.args[0] == DECODER_DIED:
                self._deadly[str(place)] = error.args
            raise


class _Child:
    """One process, which is started again after its death."""

    def __init__(self, function: Callable[..., Any], copied: bool) -> None:
        self.function, self.copied = function, copied
        self.connection: Connection | None = None
        self.pid = self.arena = -1
        self.ready = False  # whether it has been heard of

    def start(self) -> None:
        """Start the process, and do not wait for it."""
        try:
            with ExitStack() as undo:
                self.arena = nameless_file()
                undo.callback(os.close, self.arena)
                ours, theirs = Pipe()
                undo.enter_context(ours)
                # Until it is ready, its errors go into the arena; what it prints is an error too.
                others = ((2, 1), (self.arena, 2))
                with theirs, signals_blocked():
                    if self.copied and may_fork_to_read():
                        self.pid = fork(serve, theirs.fileno(), others)
                    else:
                        environment = os.environ | _ENVIRONMENT
                        self.pid = spawn(__name__, theirs.fileno(), others, environment)
                undo.pop_all()
        except OSError as error:
            raise ShardwrightError(f"{_START}: {error.strerror}", fix=_FIX) from error
        self.connection, self.ready = ours, False
        with suppress(BrokenPipeError, ConnectionResetError):  # the first call says why
            ours.send(self.function)

    def run(self, given: Sequence[Any], named: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run the function; if the process dies, once more."""
        for _ in range(2):
            try:
                parts = self._answer(given, named)
                break
            except (EOFError, BrokenPipeError, ConnectionResetError):
                death = self._death()
        else:
            raise death
        made, error, trace = _taken(self.arena, parts)
        if error is not None:
            raise error from InWorker(trace)
        return made

    def _answer(self, *call: object) -> list[tuple[int, bool]]:
        """Give the lengths of the parts of what it made."""
        if self.connection is None:
            self.start()
        assert self.connection is not None
        if not self.ready and (failure := self._received(self.connection)):
            raise ShardwrightError(f"{_START}: {failure}")
        self.ready = True
        self.connection.send(call)
        parts: list[tuple[int, bool]] = self._received(self.connection)
        return parts

    def _received(self, connection: Connection) -> Any:  # noqa: ANN401
        """Receive an answer; a process that waits for its file may never give one."""
        try:
            while not connection.poll(POLL):
                check_in_threads()
        except BaseException:
            self.end()  # else its answer would be taken for that of the next call
            raise
        return connection.recv()

    def end(self) -> int | None:
        """End the process, whatever it is doing, and give its exit code."""
        if self.connection is None:
            return None
        self.connection.close()
        self.connection = None
        os.close(self.arena)
        return kill([self.pid])[0]

    def _death(self) -> Exception:
        """Give the error for its death."""
        said = os.pread(self.arena, 1 << 16, 0).decode(errors="replace").strip().splitlines()
        how = ended_by(self.end())
        if self.ready:
            return BadImageError(DECODER_DIED, f"the process that read it {how}, twice")
        return ShardwrightError(": ".join([_START, f"it {how}", *said[-1:]]), fix=_FIX)


def serve(connection: Connection) -> None:
    """Receive a function, and call it with the arguments that come; in a child."""
    try:
        function = connection.recv()
    except Exception as error:  # what it needs cannot be imported, or the parent is gone
        connection.send(f"{type(error).__name__}: {error}")
        return
    arena = os.dup(2)
    os.dup2(1, 2)
    connection.send(None)
    with images.strict():
        while True:
            connection.send(_put(arena, partial(_call, function, connection.recv_bytes())))


def _call(function: Callable[..., Any], data: bytes) -> Any:  # noqa: ANN401
    try:
        given, named = pickle.loads(data)
    except Exception as error:
        what = f"an encoder's preparing cannot be loaded in another process ({error})"
        raise ShardwrightError(what, fix="move its class to a module of its own") from error
    return function(*given, **named)


def _put(arena: int, function: Callable[[], Any]) -> list[tuple[int, bool]]:
    """Call a function, and write what it made; give the length of each part, and if it is fixed."""
    try:
        parts = _pickled((function(), None, ""))
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        parts = _pickled((None, portable(error), trace))
    _move(os.pwritev, arena, parts)
    return [(len(part), part.readonly) for part in parts]


def _pickled(made: object) -> list[memoryview]:
    """Give the pickle of an object and then its buffers, which are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(made, 5, buffer_callback=buffers.append)
    return [memoryview(data), *(buffer.raw() for buffer in buffers)]


def _taken(arena: int, lengths: Sequence[tuple[int, bool]]) -> Any:  # noqa: ANN401
    """Copy what a child made out of its arena."""
    parts = [np.empty(length, np.uint8).data for length, _ in lengths]
    _move(os.preadv, arena, parts)
    if sum(map(len, parts)) > _KEPT:
        os.ftruncate(arena, _KEPT)
    data, *buffers = [
        part.toreadonly() if fixed else part
        for part, (_, fixed) in zip(parts, lengths, strict=True)
    ]
    return pickle.loads(data, buffers=buffers)


def _move(
    move: Callable[[int, list[memoryview], int], int], arena: int, parts: Sequence[memoryview]
) -> None:
    """Read or write parts, one after the other; other threads go on, as they would not in mmap."""
    offset = 0
    for part in parts:
        end = offset + len(part)
        while offset < end:
            offset += move(arena, [part[len(part) - (end - offset) :][:_AT_ONCE]], offset)
