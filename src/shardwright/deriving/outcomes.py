"""The outcomes of a run: every image ends as derived, already complete, or failed with a reason."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from shardwright import regular
from shardwright.deriving.captions import CaptionError, beside
from shardwright.deriving.recorded import Moves
from shardwright.deriving.sources import Source
from shardwright.errors import TooManyFailuresError
from shardwright.storage import files
from shardwright.storage.paths import absolute, is_gone
from shardwright.store.records import NOT_JSON
from shardwright.store.store import Store
from shardwright.summary import Count

FAILURES_NAME = "failures.jsonl"
NO_CAPTION = "no_caption"
# Reasons that lie in the picture alone, so that they hold until it changes.
_OF_PICTURE = (
    *("broken_image", "decoder_died", "format_not_readable", "too_large", "too_small"),
    *("unknown_white", "unreadable"),
)
# Reasons that may lie in the picture, in the text or in the encoder.
_OF_ENCODER = ("encoder_failed", "not_prepared")
IN_A_ROW = 100  # failures after which a run stops: something else is wrong


class Failure(msgspec.Struct, frozen=True):
    """One image that failed, and why."""

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
    left_out: dict[str, Count] = field(default_factory=dict)  # by the recipe, by reason
    profiles: dict[str, Count] = field(default_factory=dict)  # of colour, not applied
    _row: int = 0

    def fail(self, source: Source, reason: str, detail: str, components: list[str]) -> None:
        """Count an image that failed before the work began."""
        # JSON cannot hold the bytes of a name that is not Unicode.
        image_id, path = (
            text.encode(errors="surrogateescape").decode(errors="replace")
            for text in (source.image_id, source.path)
        )
        self.failures.append(Failure(image_id, path, reason, detail, components))

    def fail_at_work(self, source: Source, reason: str, detail: str, components: list[str]) -> None:
        """Count an image that failed at work; raise if too many fail in a row."""
        self.fail(source, reason, detail, components)
        self._row += reason != "format_not_readable"  # nothing is wrong with those images
        if self._row == IN_A_ROW:
            raise TooManyFailuresError(
                f"{reason.replace('_', ' ')} ({detail}), as with {IN_A_ROW} images in a row",
                path=source.path,
                fix="fix the cause and run the same command again; the images before are saved",
            )

    def succeed(self, changed: bool) -> None:
        """Count an image as derived, or as complete if there was nothing to do."""
        self._row = 0
        self.derived += changed
        self.complete += not changed

    def leave_out(self, source: Source, reason: str, detail: str) -> None:
        """Count an image that the recipe does not select."""
        example = f"{source.path}: {detail}"
        self.left_out.setdefault(reason, Count(0, example)).count += 1

    def leave_profile(self, source: Source, reason: str) -> None:
        """Count an image whose colour profile was not applied."""
        self.profiles.setdefault(reason, Count(0, source.path)).count += 1

    def by_reason(self) -> dict[str, Count]:
        """Count the failures by reason."""
        reasons: dict[str, Count] = {}
        for failure in self.failures:
            reasons.setdefault(failure.reason, Count(0, failure.image_path)).count += 1
        return reasons


class EarlierFailures:
    """The failures of earlier runs, of images that have not changed since."""

    def __init__(self, store: Store, moves: Moves) -> None:
        failures = read_failures(store)
        self._tried = (store.state / FAILURES_NAME).stat().st_mtime_ns if failures else 0
        # And whether their folder has moved since, or was copied.
        self._known = {moves.likely(each.image_path): (each, True) for each in failures}
        self._known |= {each.image_path: (each, False) for each in failures}
        self._gone = {f.image_id: f for f in failures if is_gone(f.image_path)}

    def of_picture(self, source: Source) -> Failure | None:
        """Find the failure of an image that lies in its picture, which has not changed since."""
        failure, moved = self._find(source)
        if failure is None or failure.reason not in _OF_PICTURE:
            return None
        return None if self._is_newer(source.path, moved) else failure

    def stays(self, source: Source, *, reads_beside: bool) -> bool:
        """Whether an image failed, and would again: nothing that the reason lies in has changed.

        ``reads_beside`` is whether its caption is in the text file beside it.
        """
        if self.of_picture(source) is not None:
            return True
        failure, moved = self._find(source)
        if failure is None:
            return False
        if reads_beside and not _text_beside(source):
            return True
        paths = [source.path, *([source.sidecar] if source.has_sidecar else [])]
        return failure.reason in _OF_ENCODER and not any(
            self._is_newer(path, moved) for path in paths
        )

    def _find(self, source: Source) -> tuple[Failure | None, bool]:
        """Find the failure of an image, and whether its folder has moved since."""
        if known := self._known.get(absolute(source.path)):
            return known
        failure = self._gone.get(source.image_id)
        same = failure and os.path.basename(failure.image_path) == os.path.basename(source.path)
        return (failure if same else None), True

    def _is_newer(self, path: str, moved: bool) -> bool:
        """Whether a file was written since; a copy has a new time of change."""
        with suppress(OSError):
            state = os.stat(path)
            return (state.st_mtime_ns if moved else state.st_ctime_ns) > self._tried
        return False


def _text_beside(source: Source) -> str | None:
    with suppress(CaptionError):
        return beside(source)
    return None


def write_failures(
    store: Store,
    outcomes: Outcomes,
    moves: Moves,
    seen: Collection[str],
    components: Collection[str],
) -> None:
    """Write this run's failures, and keep older ones that it could not settle.

    Those are of images that still exist but were not seen by this run, or of other components.
    """
    there = set(map(absolute, seen))
    kept = []
    for failure in read_failures(store):
        image, rest = moves.likely(failure.image_path), failure.components
        if image in there:
            rest = [name for name in rest if name not in components]
        elif is_gone(image) or _can_be_listed(image):
            rest = []
        if rest:
            kept.append(msgspec.structs.replace(failure, image_path=image, components=rest))
    for failure in outcomes.failures:
        path = absolute(failure.image_path)
        kept.append(msgspec.structs.replace(failure, image_path=path))
    lines = [msgspec.json.encode(failure) + b"\n" for failure in kept]
    if lines:
        files.write(store.state / FAILURES_NAME, b"".join(lines))
    else:
        files.withdraw(store.state / FAILURES_NAME)


def _can_be_listed(path: str) -> bool:
    """Whether a path is a folder that can be read now."""
    with suppress(OSError):
        os.listdir(path)
        return True
    return False


def read_failures(store: Store) -> list[Failure]:
    """Read the failures of earlier runs; invalid lines are skipped."""
    path = store.state / FAILURES_NAME
    found = []
    for line in regular.read(path).splitlines() if path.is_file() else ():
        with suppress(*NOT_JSON):
            failure = msgspec.json.decode(line, type=Failure)
            found += [failure] if "\0" not in failure.image_path else []
    return found
