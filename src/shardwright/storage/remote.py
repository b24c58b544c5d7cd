"""A folder at an object store as a place for files: what ``LocalPlace`` is for a local one.

A large file is sent in parts while it is written, so no more than a few parts of it are in memory.
It is invisible until ``publish`` completes it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from threading import Event
from typing import TYPE_CHECKING, Self

from shardwright.errors import StorageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.storage.ahead import Ahead, Span
from shardwright.storage.local import Found, Item, OnePass, Result
from shardwright.storage.objects import (
    MOST_DELETED,
    NEW,
    ConditionError,
    NoUploadError,
    Part,
    PassingError,
    RefusedError,
    awaited,
    together,
    tried,
)
from shardwright.storage.sinks import Hasher, Sink
from shardwright.storage.urls import Url, names_below

if TYPE_CHECKING:
    from concurrent.futures import Future

PART = 1 << 24  # bytes of a part; the same for all, so that equal files have equal etags
_AT_ONCE = 4  # parts that are sent at a time
_BLOCK = 1 << 23  # bytes that are read ahead in one request, at most
_AHEAD = 4  # such requests at a time
_FIRST, _FASTER = 1 << 17, 8  # bytes that are read ahead at first, and how much more each time
_NEAR = 1 << 21  # bytes that a reader may leave out and still reads on
IDLE = 3600  # seconds after which nobody is working on an upload any more
_AGAIN = "run the same command again"


class RemoteFile:
    """A file at an object store, read in ranges by one thread.

    Asking for the next bytes takes as long as reading some MiB more. So sequential reads fetch
    growing ranges, then four blocks ahead in parallel. Other reads fetch what is asked for, at
    least ``least`` bytes. ``data`` is what is already known, from ``start`` on.
    """

    def __init__(
        self, url: Url, size: int | None = None, start: int = 0, data: bytes = b"", least: int = 0
    ) -> None:
        self._url = url
        self.size = url.stat().st_size if size is None else size
        self._start, self._data = start, data
        self._least = self._ahead = least
        self._closed = Event()
        self._following: list[Span] = []  # that were announced
        self._fetching = Ahead[Span, bytes](lambda span: self._get(*span, self._closed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading ahead, and let go of what was read."""
        self._closed.set()
        self._forget()
        self._start, self._data = 0, b""

    def pread(self, offset: int, size: int) -> bytes:
        """Read some bytes; fewer only at the end."""
        size = min(size, max(0, self.size - offset))
        at = offset - self._start
        if size and not 0 <= at <= len(self._data) - size:
            near = self._data and 0 <= at <= len(self._data) + _NEAR
            self._ahead = min(max(_FIRST, _FASTER * self._ahead), _BLOCK) if near else self._least
            self._start, self._data = self._read(offset, size)
            at = offset - self._start
        return self._data[at : at + size] if size else b""

    def ahead_of_need(self, offset: int, size: int) -> bytes:
        """Read some bytes that are needed later, when they would take a request of their own."""
        return self.pread(offset, size)

    def in_one_pass(self) -> OnePass:
        """Give the file to look through: all of it is fetched once, in ranges ahead."""
        return OnePass(self)

    def _read(self, offset: int, size: int) -> tuple[int, bytes]:
        """Read some bytes, and what follows as far as it will be asked for; give its start."""
        if self._ahead < _BLOCK or size > _AHEAD * _BLOCK:
            self._forget()
            return offset, self._get(offset, min(max(size, self._ahead), self.size - offset))
        here = self._data[offset - self._start :]
        end, following = offset + size, self._following
        known = sum(following[-1]) if following else offset + len(here)
        most = _AHEAD - bool(here)  # what was read last is one of them
        while known < self.size and (known < end or len(following) < most):
            following.append(Span(known, min(_BLOCK, self.size - known)))
            if known >= end:
                self._fetching.announce(following[-1:])
            known += following[-1].size
        needed = [span for span in following if span.offset < end]
        found = self._fetching.fetch(needed)
        del following[: len(needed)]  # only now: what failed may be asked for again
        return needed[0].offset - len(here), b"".join([here, *found])

    def _forget(self) -> None:
        self._fetching.forget(self._following)
        self._following = []

    def _get(self, offset: int, size: int, stop: Event | None = None) -> bytes:
        return self._url.read_range(offset, size, stop)


class Upload(Sink):
    """A file on its way to an object store: ``put`` bytes, ``seal`` it, then ``publish`` it."""

    def __init__(self, url: Url, hashers: Sequence[Hasher]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # here, to keep the start light

        self.url, self._hashers = url, hashers
        self._buffer = memoryview(bytearray(PART))
        self._name = ""  # of the upload; blank as long as all of it fits into one part
        self._sender = ThreadPoolExecutor(url.objects.parts_at_once)
        self._stop = Event()
        self._sending: deque[Future[Part]] = deque()
        self._parts: list[Part] = []

    def seal(self, length: int) -> None:
        if self._name and self._used:
            self._send()
        self._wait(0)
        self._sender.shutdown()
        if not self._name:  # then publish sends it in one request
            self._hash(self._buffer[: self._used])
            self.written = self._used
        if self.written != length:
            what = f"wrote {length} bytes, but {self.written} were sent"
            raise StorageError(what, path=self.url)
        self._sealed = True

    def publish(self, condition: str | None = None) -> str:
        """Make it visible, and give its etag; raise ConditionError if what is there forbids it."""
        try:
            if self._name:
                complete, key = self.url.objects.complete, self.url.key
                etag = self._tried(lambda: complete(key, self._name, self._parts, condition))
            else:
                etag = self.url.write(bytes(self._buffer[: self._used]), condition)
        except BaseException:
            self.discard()
            raise
        found = self.url.head()
        if found is None:
            raise StorageError("somebody else has removed it", path=self.url, fix=_AGAIN)
        # Another etag: another run of the same plan has replaced it, which its commit tells.
        if found.etag == etag and found.st_size != self.written:
            what = f"{self.written} bytes were sent, and the store has {found.st_size}"
            raise StorageError(what, path=self.url, fix=_AGAIN)
        return etag

    def discard(self) -> None:
        self._stop.set()
        self._sender.shutdown(cancel_futures=True)
        if self._name:
            # What remains is aborted by a later run, or by a lifecycle rule of the bucket.
            with suppress(PassingError, RefusedError, OSError):
                self.url.objects.abort(self.url.key, self._name)

    def _room(self) -> int:
        if self._used == PART:
            self._send()
        return PART - self._used

    def _send(self) -> None:
        """Send the buffer in the background, and continue with another."""
        objects, key = self.url.objects, self.url.key
        if not self._name:
            self._name = tried(lambda: objects.begin(key), str(self.url))
        data = self._buffer[: self._used]
        self._hash(data)
        self.written += len(data)
        number = len(self._parts) + len(self._sending) + 1
        self._sending.append(self._sender.submit(self._part, number, data))
        self._wait(_AT_ONCE - 1)
        self._buffer, self._used = memoryview(bytearray(PART)), 0

    def _part(self, number: int, data: memoryview) -> Part:
        send, key = self.url.objects.part, self.url.key
        return self._tried(lambda: send(key, self._name, number, data), self._stop)

    def _tried(self, request: Callable[[], Result], stop: Event | None = None) -> Result:
        try:
            return tried(request, str(self.url), stop)
        except NoUploadError as error:
            what = "its upload was aborted"  # by another run of the same command, when it was ended
            raise StorageError(what, path=self.url, fix=_AGAIN) from error

    def _wait(self, most: int) -> None:
        """Wait until at most so many parts are being sent."""
        while len(self._sending) > most:
            self._parts.append(awaited(self._sending[0]))
            self._sending.popleft()


@dataclass(frozen=True)
class RemotePlace:
    """A folder at an object store."""

    folder: Url
    _uploads: dict[str, Upload] = field(default_factory=dict, compare=False, repr=False)
    can_replace = False  # nor rename; what two writers must not both write has a condition
    reads_are_requests = True  # which take time and cost money
    fix_if_unseen = "give Ray the variables of the store on that node too, before ray start"

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "_uploads": {}}

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """Find the files whose paths below the folder match a pattern."""
        there = names_below(self.folder)
        return [
            name
            for pattern in patterns
            for name in there
            if PurePosixPath(name).match(pattern) and name.count("/") == pattern.count("/")
        ]

    def list(
        self, suffix: str | tuple[str, ...], *, nested: bool = False, skip: Collection[str] = ()
    ) -> Iterator[tuple[str, int]]:
        """Give the name and size of each visible file of this suffix.

        Folders with their own state, which were packed on their own, are left out unless
        ``nested``; so is what to ``skip`` directly below.
        """
        found = [(name, each.st_size) for name, each in self.folder.walk()]
        left = {f"{name}/" for name in skip}
        if not nested:
            own = f"/{STATE_FOLDER}/"
            left |= {name.partition(own)[0] + "/" for name, _ in found if own in name}
        for name, size in found:
            hidden = any(part.startswith(".") for part in name.split("/"))
            if name.endswith(suffix) and not hidden and not name.startswith(tuple(left)):
                yield name, size

    def walk(self, warn: Callable[[str], None]) -> Iterator[Iterable[Found]]:
        """Give all files below, but none that is hidden."""
        yield self._listed()

    def _listed(self) -> Iterator[Found]:
        for name, there in self.folder.walk():
            check()
            # A key that ends with a slash stands for a folder.
            if not there.key.endswith("/") and "/." not in f"/{name}":
                yield Found(f"{self.folder}/{name}", (there.st_size, there.st_mtime_ns))

    def as_file(self) -> Found | None:
        """Give the file that is there instead of a folder, if it is one."""
        there = self.folder.head()
        return Found(self.folder.text, (there.st_size, there.st_mtime_ns)) if there else None

    def open(self, name: str) -> RemoteFile:
        """Open a file for reading; the caller handles OSErrors."""
        return RemoteFile(self.folder / name)

    def create(self, name: str, hashers: Sequence[Hasher] = ()) -> Upload:
        """Begin a file; ``seal`` it, then ``publish`` its name."""
        self._uploads[name] = Upload(self.folder / name, hashers)
        return self._uploads[name]

    def publish(self, name: str, condition: str | None = None) -> str:
        """Make a sealed file visible, and give its etag."""
        return self._uploads.pop(name).publish(condition)

    def discard(self, name: str) -> None:
        """Forget a file that was begun and is not published."""
        if (upload := self._uploads.pop(name, None)) is not None:
            upload.discard()

    def settle(self, names: Sequence[str]) -> dict[str, str]:
        """Make sealed files visible, as only who has sent them can; give their etags."""
        return {name: self.publish(name) for name in names}

    def abandon(self, names: Collection[str] | None = None) -> int:
        """Abort unfinished uploads below the folder, and count them.

        Without names, as a run does at its start, these are the uploads that got no part for an
        hour: another run may be at work there, and it can not be seen which uploads are whose. With
        names, these are all uploads of such files: of tasks whose workers this run has ended. If
        another run sends the same file at that moment, that is an error there.
        """
        where, objects, since = str(self.folder), self.folder.objects, time.time_ns() - IDLE * 10**9
        prefix = f"{self.folder.key}/" if self.folder.key else ""

        def abort(found: tuple[str, str, int]) -> bool:
            key, upload, began = found
            if names is not None:
                ours = key[len(prefix) :] in names
            else:  # one without parts costs nothing, and may have just begun
                ours = began < since and 0 < objects.last_sent(key, upload) < since
            if ours:
                objects.abort(key, upload)
            return ours

        try:
            uploads = tried(lambda: list(objects.uploads(prefix)), where)
        except NoUploadError:  # so says rclone
            return 0
        return sum(together(lambda each: tried(lambda: abort(each), where), uploads))

    def write(self, name: str, data: bytes, condition: str | None = None) -> str:
        """Write a file, and give its etag; raise ConditionError if it is not as demanded."""
        return (self.folder / name).write(data, condition)

    def claim(self, name: str, data: bytes) -> bool:
        """Write a file if it does not exist; say whether it did not."""
        try:
            self.write(name, data, NEW)
        except ConditionError:
            return False
        return True

    def etag(self, name: str) -> str:
        """Give the etag of a file, as a condition; NEW if it is not there."""
        found = (self.folder / name).head()
        return found.etag if found else NEW

    def etags(self) -> dict[str, str]:
        """Give the etags of all files, in one listing."""
        return {name: found.etag for name, found in self.folder.walk()}

    def replaced(self, etags: Mapping[str, str]) -> frozenset[str]:
        """Name the files that others have replaced since they were sent."""
        there = self.etags() if etags else {}
        return frozenset(name for name, etag in etags.items() if there.get(name) != etag)

    def remove_all(self, keep: Collection[str] = ()) -> None:
        """Remove all files below, except those of some names."""
        objects, there = self.folder.objects, self.folder.walk()
        keys = [found.key for name, found in there if os.path.basename(name) not in keep]
        for start in range(0, len(keys), MOST_DELETED):
            some = keys[start : start + MOST_DELETED]
            tried(partial(objects.delete, some), str(self.folder))

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Give the sizes of those of some files that are there, in one listing."""
        there = dict(self.list("")) if names else {}
        return {name: there[name] for name in names if name in there}

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Give what a function that reads here makes of each item; many are read at once."""
        return together(function, items)

    def lease(self) -> AbstractContextManager[None]:
        """Do nothing: what two runs must not both write is written under conditions."""
        return nullcontext()

    def require_unlocked(self) -> None:
        """Do nothing: there is no lock."""

    def require_conditions(self) -> None:
        """Raise if the store ignores conditions, without which writers are not kept apart."""
        from shardwright.storage.probe import require_conditions  # which needs this module

        require_conditions(self.folder)

    def require_writable(self) -> None:
        """Do nothing: a command tries it out when it begins to write."""

    def require_space(self, what: str, needed: int, instead: str = "") -> None:
        """Do nothing: a store has no limit."""

    def nearest(self, name: str) -> Url:
        """Give a folder below this one: there is no need to make it."""
        return self.folder / name

    def free_bytes(self) -> None:
        """Say that there is no limit."""
