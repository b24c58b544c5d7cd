"""Fetching in threads: what is asked for, and ahead of that what was announced.

The threads belong to one process, for a fork has none of them. They are daemons, so that a server
which does not answer never keeps a process from ending.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from itertools import count
from queue import PriorityQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from shardwright.storage.pieces import Piece

AHEAD_BYTES = 1 << 28  # that a folder holds at most before they are asked for
_THREADS = 16
NOW, LATER = 0, 1  # how urgent something is

Result = TypeVar("Result")


class Pool:
    """Some threads that do what is urgent first."""

    def __init__(self) -> None:
        self._tasks: PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]]
        self._tasks = PriorityQueue()
        self._numbers = count()
        for _ in range(_THREADS):
            Thread(target=self._work, daemon=True).start()

    def submit(self, call: Callable[[], Result], urgency: int = NOW) -> Future[Result]:
        """Have something done."""
        future: Future[Result] = Future()
        self._tasks.put((urgency, next(self._numbers), future, call))
        return future

    def _work(self) -> None:
        while True:
            _, _, future, call = self._tasks.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # raised where the result is used
                    future.set_exception(error)
            del future, call  # or an idle thread would hold the bytes


@cache
def _pool(process: int) -> Pool:
    return Pool()


def pool() -> Pool:
    """Give the threads of this process."""
    return _pool(os.getpid())


class Ahead:
    """Pieces that were announced, as far as they fit into ``AHEAD_BYTES``, in this process."""

    def __init__(self, get: Callable[[Piece], memoryview]) -> None:
        self._get, self._pool = get, pool()
        self._lock = Lock()
        self._waiting: deque[Piece] = deque()  # for room
        self._started: dict[Piece, list[Future[memoryview]]] = {}  # as often as announced
        self._held = 0

    def announce(self, pieces: Iterable[Piece]) -> None:
        """Begin to fetch pieces, each once for every time that it is announced."""
        with self._lock:
            self._waiting.extend(pieces)
            self._start()

    def forget(self, pieces: Iterable[Piece]) -> None:
        """Drop pieces that were announced and are not asked for any more."""
        with self._lock:
            for future in filter(None, map(self._take, pieces)):
                future.cancel()
            self._start()

    def fetch(self, pieces: Sequence[Piece]) -> list[memoryview]:
        """Give pieces; raise what their fetching raised."""
        with self._lock:
            taken = [self._take(piece) or self._begin(piece, NOW) for piece in pieces]
            self._start()
        return [future.result() for future in taken]

    def _start(self) -> None:
        while self._waiting:
            size = self._waiting[0].size
            if self._held and self._held + size > AHEAD_BYTES:
                return
            piece = self._waiting.popleft()
            self._held += size
            self._started.setdefault(piece, []).append(self._begin(piece, LATER))

    def _begin(self, piece: Piece, urgency: int) -> Future[memoryview]:
        return self._pool.submit(lambda: self._get(piece), urgency)

    def _take(self, piece: Piece) -> Future[memoryview] | None:
        futures = self._started.get(piece)
        if futures is None:
            if piece in self._waiting:
                self._waiting.remove(piece)
            return None
        future = futures.pop(0)
        if not futures:
            del self._started[piece]
        self._held -= piece.size
        return future
