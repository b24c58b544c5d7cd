"""The outcomes of a run: every image ends as derived, already complete, or failed with a reason."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from shardwright.deriving.sources import Source
from shardwright.deriving.summary import FailedReason
from shardwright.errors import TooManyFailuresError
from shardwright.storage import files
from shardwright.store.facts import absolute, is_gone
from shardwright.store.store import Store

FAILURES_NAME = "failures.jsonl"
_IN_A_ROW = 100


class Failure(msgspec.Struct, frozen=True):
    """One image of which something could not be made, and why."""

    image_id: str
    image_path: str
    reason: str
    detail: str
    components: list[str]  # what was to be made


@dataclass
class Outcomes:
    """The counts so far."""

    derived: int = 0
    complete: int = 0
    failures: list[Failure] = field(default_factory=list)
    profiles: dict[str, FailedReason] = field(default_factory=dict)  # of colour, not applied
    _row: int = 0

    def fail(self, source: Source, reason: str, detail: str, components: Iterable[str]) -> None:
        """Count an image that failed before the work began."""
        # A name that is not Unicode is written as well as JSON can.
        image_id, path = (
            text.encode(errors="surrogateescape").decode(errors="replace")
            for text in (source.image_id, source.path)
        )
        self.failures.append(Failure(image_id, path, reason, detail, list(components)))

    def fail_at_work(
        self, source: Source, reason: str, detail: str, components: Iterable[str]
    ) -> None:
        """Count an image that failed at work; too many in a row are too many."""
        self.fail(source, reason, detail, components)
        self._row += reason != "format_not_readable"  # nothing is wrong with those images
        if self._row == _IN_A_ROW:
            raise TooManyFailuresError(
                f"{source.path}: {reason.replace('_', ' ')} ({detail}), like {_IN_A_ROW} images "
                "in a row; what was made before them is kept: fix the cause, then run the same "
                "command again"
            )

    def succeed(self, changed: bool) -> None:
        """Count an image that came through, and whether anything was to be done for it."""
        self._row = 0
        self.derived += changed
        self.complete += not changed

    def leave_profile(self, source: Source, reason: str) -> None:
        """Count an image whose colour profile was not applied."""
        self.profiles.setdefault(reason, FailedReason(0, source.path)).count += 1

    def by_reason(self) -> dict[str, FailedReason]:
        """Sum up the failures."""
        reasons: dict[str, FailedReason] = {}
        for failure in self.failures:
            entry = reasons.setdefault(failure.reason, FailedReason(0, failure.image_path))
            entry.count += 1
        return reasons


def write_failures(
    store: Store, outcomes: Outcomes, seen: Collection[str], components: Collection[str]
) -> None:
    """Write this run's failures, with older ones that it had no occasion to settle.

    Those are of images that this run has not seen, but which still exist, and of components that it
    did not make.
    """
    path = store.state / FAILURES_NAME
    there = set(map(absolute, seen))
    kept = []
    for failure in read_failures(store):
        image, rest = failure.image_path, failure.components
        # An earlier version wrote relative paths, which may be meant from another folder.
        if absolute(image) in there or (not os.path.isabs(image) and _ends(image, there)):
            rest = [name for name in rest if name not in components]
        elif os.path.isabs(image) and (is_gone(image) or _can_be_listed(image)):
            rest = []
        if rest:
            kept.append(msgspec.structs.replace(failure, components=rest))
    kept += map(_anywhere, outcomes.failures)
    lines = [msgspec.json.encode(failure) + b"\n" for failure in kept]
    if lines:
        files.write(path, b"".join(lines))
    else:
        files.withdraw(path)


def _can_be_listed(path: str) -> bool:
    """Whether a path is a folder that can be read, now if not before."""
    try:
        os.listdir(path)
    except OSError:
        return False
    return True


def _ends(relative: str, paths: Iterable[str]) -> bool:
    tail = "/" + os.path.normpath(relative)
    return any(path.endswith(tail) for path in paths)


def _anywhere(failure: Failure) -> Failure:
    """Give a failure a path that can be found from any working folder."""
    return msgspec.structs.replace(failure, image_path=absolute(failure.image_path))


def read_failures(store: Store) -> list[Failure]:
    """Read the failures of earlier runs; a line that is none is no loss."""
    path = store.state / FAILURES_NAME
    found = []
    if path.is_file():
        for line in path.read_bytes().splitlines():
            try:
                found.append(msgspec.json.decode(line, type=Failure))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
    return found
