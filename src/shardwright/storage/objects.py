"""What is asked of an object store, and how often: the seam between our code and its clients.

``s3`` and ``clouds`` are the stores. Each call of theirs is one request. It may fail with
``PassingError``, and is tried again here with growing pauses, or for good with ``RefusedError``.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from queue import PriorityQueue
from threading import Event, Thread, local
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from shardwright import interrupts
from shardwright.errors import StorageError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

TRIES = 8  # of one request, which takes half a minute if each fails at once
MOST_DELETED = 1000  # objects in one request
_FIRST_PAUSE = 0.2  # seconds; each pause is twice the one before
_SECRETS = re.compile(r"(?<=://)[^/\s]*@|\?[^\s\"'<>()]*")  # in a URL: a password, or a signature

_THREADS = 16  # that fetch, beside those of ``together``
NOW, LATER = 0, 1  # how urgent something is

Item = TypeVar("Item")
Result = TypeVar("Result")


class PassingError(Exception):
    """A request failed in a way that may pass: the server is busy, or the connection broke."""


class RefusedError(Exception):
    """A request failed for good: what happened, and what to do."""

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


class UnsupportedError(RefusedError):
    """The store does not have what a request needs."""


class ConditionError(Exception):
    """The object is not as a conditional request demands."""


class NoUploadError(Exception):
    """An upload is unknown: it was completed or aborted before."""


class Object(NamedTuple):
    """An object, as the store lists it."""

    key: str
    st_size: int  # named as ``os.stat`` names it
    st_mtime_ns: int  # by the clock of the store
    etag: str  # changes with its content

    @property
    def st_ctime_ns(self) -> int:
        """Give the time of the last change."""
        return self.st_mtime_ns


class Part(NamedTuple):
    """A part of an upload, as the store has taken it."""

    number: int  # from 1
    etag: str
    sha256: bytes


NEW: Final = ""  # the condition that there is no such object yet; others are the etag it must have


class ObjectStore(Protocol):
    """One bucket (or container) of an object store. Missing objects are FileNotFoundErrors."""

    parts_at_once: int  # of an upload; with one, they come in their order

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Read some bytes of an object, or all; fewer only at its end."""

    def head(self, key: str) -> Object | None:
        """Look at an object, if it is there."""

    def list(self, prefix: str, after: str = "") -> Iterator[Object]:
        """Give all objects whose keys begin so and come after another key, sorted by key."""

    def children(self, prefix: str) -> Sequence[str]:
        """List the names below a prefix that ends in a slash; those of folders end in one too."""

    def put(self, key: str, data: bytes, condition: str | None = None) -> str:
        """Write an object completely or not at all, and give its etag.

        A condition is ``NEW``, or the etag that the object must have; else it is a ConditionError.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove up to ``MOST_DELETED`` objects; those that are not there are no error."""

    def begin(self, key: str) -> str:
        """Begin an upload in parts, and give its name."""

    def part(self, key: str, upload: str, number: int, data: memoryview) -> Part:
        """Send one part of an upload."""

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], condition: str | None = None
    ) -> str:
        """Make an upload an object, and give its etag.

        If there is an equal object already, this has been done before, and the answer was lost.
        """

    def abort(self, key: str, upload: str) -> None:
        """Forget an upload."""

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Give the unfinished uploads below a prefix: key, name, and when they began (ns)."""

    def last_sent(self, key: str, upload: str) -> int:
        """Say when (ns) an upload got its last part, or zero if it has none, or is gone."""


class _Stop(local):
    """Each thread has its own: whether nobody waits any more for what it does."""

    event: Event | None = None


_stop = _Stop()


def timeout() -> float:
    """Give the seconds after which an answer is given up."""
    given = os.environ.get("SHARDWRIGHT_TIMEOUT", "60")
    try:
        if 0 < (seconds := float(given)) < 1e6:
            return seconds
    except ValueError:
        pass
    raise UsageError(f"SHARDWRIGHT_TIMEOUT is {given!r}", fix="give a number of seconds")


def tried(request: Callable[[], Result], where: str, stop: Event | None = None) -> Result:
    """Send a request, again if it fails in a way that may pass, unless it is to stop.

    ``where`` is what it is about. The clients would try again too, but while they wait they see no
    Ctrl-C, they report nothing, and they do not say whether the answer to an earlier try of a
    conditional write was lost. Only obstore's writer of large files does it: no one else can.
    """
    stop, pause = stop or _stop.event, _FIRST_PAUSE
    for attempt in range(1, TRIES + 1):
        interrupts.check()
        try:
            return request()
        except PassingError as error:
            if attempt == TRIES or (stop is not None and stop.is_set()):
                what = f"{error} ({attempt} tries)"
                fix = "check the network and the store, then run the same command again"
                raise StorageError(what, path=where, fix=fix) from error
            from random import Random  # here, to keep the start light

            # Not the generator that all share: a caller may have seeded it.
            seconds = pause * Random().uniform(0.5, 1)
            again = f"trying again in {seconds:.1f} s ({attempt} of {TRIES} tries)"
            _report(f"{where}: {error}; {again}")
            _sleep(seconds, stop)
            pause *= 2
        except RefusedError as error:
            raise StorageError(error.what, path=where, fix=error.fix) from error
    raise AssertionError


def _report(message: str) -> None:
    import logging  # here, to keep the start light

    logging.getLogger("shardwright").warning("%s", message)


def awaited(future: Future[Result]) -> Result:
    """Give what a thread has made, once it is there."""
    from concurrent.futures import wait  # here, to keep the start light

    while not future.done():
        interrupts.check()
        wait([future], interrupts.POLL)
    return future.result()


def together(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int = 32
) -> Iterator[Result]:
    """Give what a function makes of each item, in order, while threads are at the next items.

    If one fails, or the caller stops, the requests of the others are not tried again.
    """
    from concurrent.futures import Future  # here, to keep the start light

    stop, running = Event(), deque[Future[Result]]()

    def run(item: Item) -> Result:
        _stop.event = stop
        return function(item)

    try:
        for item in items:
            interrupts.check()
            running.append(Future())
            # A daemon: a server that does not answer must not keep a process from ending.
            given = running[-1], partial(run, item)
            Thread(target=_finish, args=given, daemon=True).start()
            if len(running) == at_once:
                yield awaited(running.popleft())
        while running:
            yield awaited(running.popleft())
    finally:
        stop.set()


class Pool:
    """Some threads that do what is urgent first.

    They belong to one process, for a fork has none of them. They are daemons, so that a server
    which does not answer never keeps a process from ending.
    """

    def __init__(self) -> None:
        self._tasks: PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]]
        self._tasks = PriorityQueue()
        self._numbers = count()
        for _ in range(_THREADS):
            Thread(target=self._work, daemon=True).start()

    def submit(self, call: Callable[[], Result], urgency: int = NOW) -> Future[Result]:
        """Have something done."""
        from concurrent.futures import Future  # here, to keep the start light

        future: Future[Result] = Future()
        self._tasks.put((urgency, next(self._numbers), future, call))
        return future

    def _work(self) -> None:
        while True:
            _, _, future, call = self._tasks.get()
            if future.set_running_or_notify_cancel():
                _finish(future, call)
            del future, call  # or an idle thread would hold the bytes


def _finish(future: Future[Result], call: Callable[[], Result]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # raised where the result is used
        future.set_exception(error)


@cache
def _pool(process: int) -> Pool:
    return Pool()


def pool() -> Pool:
    """Give the threads of this process."""
    return _pool(os.getpid())


def works_in_a_copy() -> bool:
    """Whether a copy of this process can send requests: the client of some stores hangs there."""
    return "obstore" not in sys.modules


def without_secrets(message: str) -> str:
    """Give a message of a client without passwords and signatures in URLs."""
    return _SECRETS.sub("", message)


def _sleep(seconds: float, stop: Event | None) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not (stop is not None and stop.is_set()):
        interrupts.check()
        time.sleep(min(left, interrupts.POLL))
