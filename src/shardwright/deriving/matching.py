"""Which image each row of a captions file names: by one base for the complete file.

A base says where the paths of all rows begin. The one under which most rows name images is taken.
What a row names by its name alone counts only if no other image has that name, and not if the
captions lie beside images that they name. Rows of files that are there, but were not given, name
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from shardwright.deriving.sources import TAR
from shardwright.errors import UsageError
from shardwright.interrupts import check
from shardwright.storage import paths
from shardwright.storage.paths import Presence
from shardwright.storage.urls import Location
from shardwright.text import shown

_NONE = -1  # the number of no row
_SEVERAL = 2  # images; more are not counted


class Named(NamedTuple):
    """An image that rows may name."""

    root: str  # the given folder that it is in
    path: str
    member: str = ""  # its name in its tar, whose path begins the other


Images = Callable[[], Iterable[Named]]  # all of them, each time it is called


@dataclass(frozen=True)
class _Base:
    """Where the paths of rows begin."""

    label: str
    heads: Mapping[str, str | None]  # by root: what rows have before the path below it
    old: str = ""  # the begin of all rows that is replaced, of a tree that moved
    inside: Mapping[str, str] = field(default_factory=dict)  # by root: its path, if it is below it

    def row_of(self, root: str, below: str) -> str | None:
        """Write the path of an image below its root as a row has it."""
        if inside := self.inside.get(root):
            fits = below.startswith(inside)
            return below[len(inside) :] if fits else os.path.relpath(below, inside)
        head = self.heads.get(root)
        return None if head is None else head + below


@dataclass
class _Weight:
    """What rows name under a base."""

    base: _Base
    images: int = 0
    below: int = 0  # of these, by a path that begins at the base
    has_folder: bool = False  # whether one of these is more than a file name
    digest: int = 0  # of which images have which rows


class Matching:
    """The rows of a file, by their paths, and the images that they name."""

    def __init__(
        self, path: Location, rows: Mapping[str, int], data: Sequence[bytes], images: Images
    ) -> None:
        """Choose the base; raise UsageError if two are as good and give different captions."""
        self._path, self._rows, self._data = path, rows, data
        self._absolute = any(map(paths.is_absolute, rows))
        self._roots: dict[str, _Root] = {}
        self._names = bytearray(len(data))  # by row: the images it names by their names alone
        self._paths = bytearray(len(data))  # by row: the images it names by their paths
        self._beaten = bytearray(len(data))  # by row: whether another row names its image better
        self._by_names = True  # whether a name alone may name an image
        self._elsewhere = False  # whether rows name files that are there, and not given
        self._count_names(images)
        best = self._best(images, self._bases())
        if best is None:
            self._elsewhere = self._are_there([*self._above(), *_folder_of(path), os.getcwd()], 1)
            best = None if self._elsewhere else self._best(images, self._moved())
        elif self._are_there(_folder_of(path), best.images, absolute=False):
            self._elsewhere, self._by_names, best = True, False, None
        self._base = best.base if best else None
        self.base = self._base.label if self._base else ""
        self.images_without = 0
        self._count(images)

    def number(self, image: Named) -> int | None:
        """Find the row of an image, which may name others too."""
        if image.root not in self._roots:
            self._roots[image.root] = _Root(image.root)
        by_path = max(self._by_path(image), default=_NONE)
        if by_path != _NONE:
            return by_path
        return next((row for row in self._by_name(image) if not self._paths[row]), None)

    def is_shared(self, number: int) -> bool:
        """Whether a row names several images."""
        return (self._paths[number] or self._names[number]) == _SEVERAL

    def fault(self, number: int) -> str | None:
        """Name why a row is not used; None if it is that of one image."""
        if self._beaten[number]:
            return "repeated"
        if self._elsewhere:
            return "elsewhere"
        if not (self._paths[number] or self._names[number]):
            return "no_such_image"
        return "several_images" if self.is_shared(number) else None

    def _by_path(self, image: Named) -> Iterator[int]:
        if self._absolute:
            yield from self._by_absolute_path(image)
        row = self._base.row_of(image.root, _below(image)) if self._base else None
        if row is not None and row in self._rows:
            yield self._rows[row]

    def _by_absolute_path(self, image: Named) -> Iterator[int]:
        rows = (head + _below(image) for head in self._roots[image.root].absolute)
        return (self._rows[row] for row in rows if row in self._rows)

    def _by_name(self, image: Named) -> Iterator[int]:
        """Give the rows that have only the name of an image: in its tar, or of its file."""
        if not self._by_names:
            return
        name = os.path.basename(image.path)
        for each in dict.fromkeys((os.path.normpath(image.member or name), name)):
            if each in self._rows:
                yield self._rows[each]

    def _count_names(self, images: Images) -> None:
        own, beside = _folder_of(self._path), False
        for image in images():
            check()
            if image.root not in self._roots:
                self._roots[image.root] = _Root(image.root)
            for number in self._by_name(image):
                self._names[number] = min(self._names[number] + 1, _SEVERAL)
                beside |= self._roots[image.root].holds(own, _below(image))
        if beside:  # names are those of files in the folder of the captions
            self._by_names, self._names = False, bytearray(len(self._data))

    def _are_there(self, folders: list[str], enough: int, *, absolute: bool = True) -> bool:
        """Whether so many rows name files that are there, from some folder, and were not given."""
        given = tuple(form for root in self._roots.values() for form in root.absolute)
        there = Presence(self._above())
        rows = there.some(list(self._rows), folders)
        found = 0
        for row in rows:
            check()
            begins = folders if absolute or not row.startswith("/") else ()
            places = (_file_of(paths.joined(folder, row)) for folder in begins)
            found += any(not place.startswith(given) and there.has(place) for place in places)
            if found == min(enough, len(rows)):
                return True
        return False

    def _count(self, images: Images) -> None:
        """Count what the rows name, under the base that was chosen."""
        for image in images():
            check()
            for place, number in enumerate(sorted(self._by_path(image), reverse=True)):
                if place:
                    self._beaten[number] = True
                else:
                    self._paths[number] = min(self._paths[number] + 1, _SEVERAL)
        for image in images():
            check()
            found = self.number(image)
            if found is not None and self.is_shared(found):
                continue
            self.images_without += found is None
            for number in self._by_name(image):
                if number != found and not self._paths[number] and self._names[number] == 1:
                    self._beaten[number] = True

    def _bases(self) -> Iterator[_Base]:
        """Give the places at which the paths of all rows may begin."""
        folders = dict.fromkeys([*self._above(), *_folder_of(self._path), os.getcwd()])
        yield _Base("absolute paths" if self._absolute else "file names", {})
        for folder in folders:
            heads = {given: root.below(folder) for given, root in self._roots.items()}
            inside = {given: root.under(folder) for given, root in self._roots.items()}
            yield _Base(f"paths from {_shown(folder)}", heads, inside=inside)

    def _above(self) -> list[str]:
        """Name the given folders, and all above them."""
        return list(dict.fromkeys(each for root in self._roots.values() for each in root.above))

    def _moved(self) -> Iterator[_Base]:
        """Replace what the paths of all rows begin with, as when their tree has moved."""
        # What the first and the last in their order have in common, all have.
        ends = (min(self._rows, default=""), max(self._rows, default=""))
        pairs = zip(*(row.split("/")[:-1] for row in ends), strict=False)
        names = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        folders = self._above()
        for kept in reversed(range(len(names))):
            old = "/".join(names[: len(names) - kept]) + "/"
            rest = "/".join(names[len(names) - kept :]) + "/" * bool(kept)
            for folder in folders:
                heads = {given: root.inside(folder) for given, root in self._roots.items()}
                known = {
                    given: old + head
                    for given, head in heads.items()
                    if head is not None and (head.startswith(rest) or rest.startswith(head))
                }
                if known:
                    was = shown(old.rstrip("/") or "/")
                    yield _Base(f"{was} is now {_shown(folder)}", known, old)

    def _best(self, images: Images, bases: Iterable[_Base]) -> _Weight | None:
        """Choose the base under which most rows name images; None if they name none."""
        # A file name alone does not show that a tree has moved: many folders have a 001.png.
        weights = [
            each
            for each in self._weigh(images, [_Weight(base) for base in bases])
            if each.images and (each.has_folder or not each.base.old)
        ]
        if not weights:
            return None
        best = max(weights, key=lambda each: (each.images, each.below))
        for other in weights:
            if other.images == best.images and other.digest != best.digest:
                what = (
                    f"its rows can be read in two ways, which name {best.images:,} "
                    f"{'image' if best.images == 1 else 'images'} each and give different "
                    f"captions: {best.base.label}, or {other.base.label}"
                )
                raise UsageError(what, path=self._path, fix="write absolute paths in it")
        return best

    def _weigh(self, images: Images, weights: list[_Weight]) -> list[_Weight]:
        for place, image in enumerate(images() if weights else ()):
            check()
            below = _below(image)
            absolute = list(self._by_absolute_path(image)) if self._absolute else []
            named = [each for each in self._by_name(image) if self._names[each] == 1]
            for weight in weights:
                row, paths_of = weight.base.row_of(image.root, below), absolute
                if row is not None and row in self._rows:
                    weight.below += 1
                    weight.has_folder |= "/" in row[len(weight.base.old) :]
                    paths_of = [self._rows[row], *absolute]
                if paths_of or named:
                    weight.images += 1
                    number = max(paths_of) if paths_of else named[0]
                    weight.digest = hash((weight.digest, place, self._data[number]))
        return weights


class _Root:
    """A given folder of images, as it is named and as it is without links."""

    def __init__(self, given: str) -> None:
        self._forms = paths.forms(given)
        # What complete paths of its images begin with.
        self.absolute = tuple(form.rstrip("/") + "/" for form in self._forms)

    @property
    def above(self) -> Iterator[str]:
        """Name the folder and each one above it."""
        for form in self._forms:
            yield from paths.above(form)

    def inside(self, folder: str) -> str | None:
        """Give its path below a folder, with a slash at the end if it is not the folder."""
        start = folder.rstrip("/") + "/"
        return next((each[len(start) :] for each in self.absolute if each.startswith(start)), None)

    def holds(self, folders: Iterable[str], below: str) -> bool:
        """Whether a path below it is that of a file in one of the folders, which are below it."""
        return any(
            under and under == below[: below.rfind("/") + 1] for under in map(self.under, folders)
        )

    def under(self, folder: str) -> str:
        """Give the path of a folder below it, with a slash at the end; blank if it is not there."""
        start = f"{folder}/"
        return next((start[len(a) :] for a in self.absolute if start.startswith(a)), "")

    def below(self, folder: str) -> str | None:
        """Give its path from a folder, also by going up; None if there is none."""
        if (found := self.inside(folder)) is not None:
            return found
        around = paths.relative(self._forms[0], folder)
        return None if around is None else around + "/"


def _below(image: Named) -> str:
    """Give the path of an image below its root."""
    start = image.root.rstrip("/") + "/"
    path = image.path.removeprefix(start)
    return os.path.normpath(path) if image.member else path


def _folder_of(path: Location) -> list[str]:
    """Name the folder of a file, as it is named and as it is without links."""
    return list(map(os.path.dirname, paths.forms(path)))


def _file_of(path: str) -> str:
    """Give the file that a path is in: the tar of a member, else itself."""
    names = path.split("/")
    ends = (at for at, name in enumerate(names[:-1], 1) if name.lower().endswith(TAR))
    return "/".join(names[: next(ends, len(names))])


def _shown(folder: str) -> str:
    text = paths.shown_near(folder)
    return "the working folder" if text == "." else text
