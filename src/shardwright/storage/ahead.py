"""Reading ahead at a URL: a few requests are under way for what will be asked for.

``remote.RemoteFile`` announces what follows in a file that is read in order, and
``fetched.FetchedFolder`` what the reader of shards says it will need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from shardwright.storage.objects import LATER, NOW, Result, awaited, pool
from shardwright.storage.pieces import Piece

if TYPE_CHECKING:
    from concurrent.futures import Future

AHEAD_BYTES = 1 << 28  # that are held at most before they are asked for


class Span(NamedTuple):
    """Some bytes of a file that is known."""

    offset: int
    size: int


Wanted = TypeVar("Wanted", bound=Piece | Span)


class Ahead(Generic[Wanted, Result]):
    """Pieces that were announced, as far as they fit into ``AHEAD_BYTES``, in this process."""

    def __init__(self, get: Callable[[Wanted], Result]) -> None:
        self._get, self._lock = get, Lock()
        self._waiting: deque[Wanted] = deque()  # for room
        self._started: dict[Wanted, list[Future[Result]]] = {}  # as often as announced
        self._held = 0

    def announce(self, pieces: Iterable[Wanted]) -> None:
        """Begin to fetch pieces, each once for every time that it is announced."""
        with self._lock:
            self._waiting.extend(pieces)
            self._start()

    def forget(self, pieces: Iterable[Wanted]) -> None:
        """Drop pieces that were announced and are not asked for any more."""
        with self._lock:
            for future in filter(None, map(self._take, pieces)):
                future.cancel()
            self._start()

    def fetch(self, pieces: Sequence[Wanted]) -> list[Result]:
        """Give pieces; raise what their fetching raised."""
        with self._lock:
            taken = [self._take(piece) or self._begin(piece, NOW) for piece in pieces]
            self._start()
        return [awaited(future) for future in taken]

    def _start(self) -> None:
        while self._waiting:
            size = self._waiting[0].size
            if self._held and self._held + size > AHEAD_BYTES:
                return
            piece = self._waiting.popleft()
            self._held += size
            self._started.setdefault(piece, []).append(self._begin(piece, LATER))

    def _begin(self, piece: Wanted, urgency: int) -> Future[Result]:
        return pool().submit(lambda: self._get(piece), urgency)

    def _take(self, piece: Wanted) -> Future[Result] | None:
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
