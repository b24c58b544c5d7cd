"""A disk that loses its power: what may be on it afterwards, by the letter of POSIX.

The bytes of a file are safe once it was fsynced, a name once its folder was. All else may be there,
not be there, or (bytes) be garbage. Nothing is assumed of any file system's kindness.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shardwright import Progress
from tests.durability.folders import JOURNAL, Contents, held, record_ids
from tests.faults import KillingDisk

Names = dict[str, "int | None"]  # a name to an inode, to _FOLDER, or to nothing
_FOLDER = -1
# By what is left of a temporary name.
_KINDS = {
    ".tar": "shard",
    ".idx": "index",
    "": "array",
    ".jsonl": "JSONL",
    ".merge": "merged JSONL",
}


@dataclass(frozen=True)
class Operation:
    """One call that changed the disk, or made a change safe."""

    name: str
    path: Path
    target: Path | None = None
    data: bytes = b""
    site: str = ""  # where in the source a sync is called
    build: str = ""  # where in build it was asked for

    @property
    def is_sync(self) -> bool:
        return self.name in ("fsync", "fsync_folder")


class RecordingDisk(KillingDisk):
    """Does everything, and writes down what it did; it can be told to kill the process as well."""

    def __init__(self, at: int = sys.maxsize) -> None:
        super().__init__(at)
        self.log: list[Operation] = []

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.log.append(Operation("create", path))
        return fd

    def append(self, path: Path) -> int:
        fd = super().append(path)
        self.log.append(Operation("append", path))
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        count = super().write(fd, data)
        self.log.append(Operation("write", Path(self.open[fd]), data=bytes(data[:count])))
        return count

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        path = Path(self.open[fd])
        final = path.with_suffix("") if path.suffix == ".tmp" else path
        kind = _KINDS.get(final.suffix, "document")
        site, build = f"{_caller()} of a {kind}", f"{_build()} of a {kind}"
        self.log.append(Operation("fsync", path, site=site, build=build))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.log.append(Operation("rename", source, target))

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self.log.append(Operation("link", source, target))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.log.append(Operation("unlink", path))

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self.log.append(Operation("mkdir", path))

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self.log.append(Operation("unlink", path))

    def fsync_folder(self, path: Path) -> None:
        super().fsync_folder(path)
        self.log.append(Operation("fsync_folder", path, site=_caller(), build=_build()))


class Listener(Progress):
    """Writes down, among the operations, what is reported to be done: shards, and records."""

    def __init__(self, disk: RecordingDisk, output: Path) -> None:
        self.disk, self.output = disk, output

    def note(self, text: str) -> None:
        name = text.split()[0]
        if name.endswith(".tar"):
            self._tell(name)

    def advance(self, count: int) -> None:
        journal = self.output / JOURNAL
        if journal.exists():
            for image_id in record_ids(journal.read_bytes()):
                self._tell(image_id)

    def _tell(self, what: str) -> None:
        self.disk.log.append(Operation("told", self.output / what))


def _caller() -> str:
    """Name the line of the source that asked for a sync."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in ("fsync", "fsync_folder", "sync_folder") and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_name}, line {frame.f_lineno}"


def _build() -> str:
    """Name the line of build that asked for a sync, and what it called for that."""
    frame, called = sys._getframe(2), ""
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == "building":
            return f"{path.stem}.{frame.f_code.co_name}, line {frame.f_lineno}, for {called}"
        frame, called = frame.f_back, frame.f_code.co_name
    return ""


@dataclass
class _Inode:
    written: bytes = b""
    synced: bytes = b""


@dataclass
class _Folder:
    names: Names = field(default_factory=dict)
    safe: Names = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)

    def change(self, change: Names) -> None:
        self.names.update(change)
        self.pending.append(change)

    def sync(self) -> None:
        self.safe = dict(self.names)
        self.pending.clear()


class PowerCut:
    """A disk on which operations were done; it can be asked what a power cut may leave of them.

    Its paths are strings: it looks at so many of them that to join others takes most of the time.
    """

    def __init__(self, output: Path, start: Contents | None) -> None:
        self.output = str(output)
        self.told: set[str] = set()  # shards and records that were reported to be written
        self.inodes: list[_Inode] = []
        # From one folder to another. A rename is one step: the old name goes with the new one.
        self.moved: dict[str, str] = {}
        self.folders: dict[str, _Folder] = {str(output.parent): _Folder()}
        if start is not None:
            self._folder(self.output)
            for name, data in start.items():
                path = f"{output}/{name}"
                if data is None:
                    self._folder(path)
                else:
                    self.inodes.append(_Inode(data, data))
                    parent, last = os.path.split(path)
                    self.folders[parent].names[last] = len(self.inodes) - 1
        for folder in self.folders.values():
            folder.sync()

    def _folder(self, path: str) -> None:
        self.folders[path] = _Folder()
        parent, name = os.path.split(path)
        self.folders[parent].change({name: _FOLDER})

    def do(self, operation: Operation) -> None:
        """Do one operation."""
        path = operation.path
        if operation.name == "fsync_folder":
            self.folders[str(path)].sync()
            return
        parent = self.folders[str(path.parent)]
        match operation.name:
            case "create" | "append":
                if parent.names.get(path.name) is None:
                    self.inodes.append(_Inode())
                    parent.change({path.name: len(self.inodes) - 1})
            case "write":
                self._inode(path).written += operation.data
            case "fsync":
                self._inode(path).synced = self._inode(path).written
            case "rename":
                assert operation.target is not None
                number = parent.names[path.name]
                if operation.target.parent == path.parent:
                    parent.change({path.name: None, operation.target.name: number})
                else:
                    parent.names[path.name] = None
                    target = self.folders[str(operation.target.parent)]
                    target.change({operation.target.name: number})
                    self.moved[str(path)] = str(operation.target)
            case "link":
                assert operation.target is not None
                parent.change({operation.target.name: parent.names[path.name]})
            case "unlink":
                parent.change({path.name: None})
            case "mkdir":
                self._folder(str(path))
            case "told":
                self.told.add(str(path.relative_to(self.output)))

    def _inode(self, path: Path) -> _Inode:
        number = self.folders[str(path.parent)].names[path.name]
        assert number is not None
        return self.inodes[number]

    def outcomes(self) -> Iterator[Contents | None]:
        """Give what may be left: for each way of losing names, each way of losing bytes."""
        unsafe = [path for path, folder in self.folders.items() if folder.pending]
        ways: list[Callable[[str, int], bool]] = [lambda *_: True, lambda *_: False]
        for one in unsafe:
            ways.append(lambda path, _, one=one: path == one)  # type: ignore[misc]
            ways.append(lambda path, _, one=one: path != one)  # type: ignore[misc]
            earlier = range(len(self.folders[one].pending) - 1)
            ways += [partial(_all_but, one, number) for number in earlier]
        for kept in ways:
            for data in (_kept, _dropped, _garbled):
                yield self._left(kept, data)

    def _left(
        self, kept: Callable[[str, int], bool], data: Callable[[_Inode], bytes]
    ) -> Contents | None:
        left: Contents = {}

        def visit(path: str, below: str) -> None:
            for name, number in self._names(path, kept).items():
                target = self.moved.get(f"{path}/{name}")
                if target and self._is(target, number, kept):
                    continue
                if number == _FOLDER:
                    left[below + name] = None
                    visit(f"{path}/{name}", f"{below}{name}/")
                elif number is not None:
                    left[below + name] = data(self.inodes[number])

        if not self._is(self.output, _FOLDER, kept):
            return None
        visit(self.output, "")
        return left

    def _is(self, path: str, number: int | None, kept: Callable[[str, int], bool]) -> bool:
        parent, name = os.path.split(path)
        return self._names(parent, kept).get(name) == number

    def _names(self, path: str, kept: Callable[[str, int], bool]) -> Names:
        folder = self.folders[path]
        names = dict(folder.safe)
        for number, change in enumerate(folder.pending):
            if kept(path, number):
                names.update(change)
        return names


def _all_but(one: str, lost: int, path: str, number: int) -> bool:
    """Whether a change of names is another than this one."""
    return (path, number) != (one, lost)


def _kept(inode: _Inode) -> bytes:
    return inode.written


def _dropped(inode: _Inode) -> bytes:
    return inode.synced


def _garbled(inode: _Inode) -> bytes:
    return inode.synced + b"\xa5" * (len(inode.written) - len(inode.synced))


@dataclass(frozen=True)
class Cut:
    """A power cut: after how many operations, what is left, and what was reported and is not."""

    length: int
    left: Contents | None
    lost: frozenset[str]


def replay(
    output: Path,
    start: Contents | None,
    log: Sequence[Operation],
    seen: set[int] | None = None,
) -> Iterator[Cut]:
    """Cut the power after every operation of a log, in every way that leaves something new."""
    disk = PowerCut(output, start)
    seen = set() if seen is None else seen
    for length in range(len(log) + 1):
        if length:
            disk.do(log[length - 1])
        for left in disk.outcomes():
            lost = frozenset(disk.told - held(left))
            fingerprint = hash((frozenset(left.items()) if left is not None else None, lost))
            if fingerprint not in seen:
                seen.add(fingerprint)
                yield Cut(length, left, lost)
