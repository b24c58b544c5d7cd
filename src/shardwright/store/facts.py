"""Facts about each image that are not in its record, and which of them need attention.

They are about its file, and what was cut off of it or of its caption.

``DERIVED_DIR/.shardwright/facts.jsonl``, written through a journal like the metadata. Records hold
only what follows from content, because modification times differ between machines. No entry, or no
``image`` in it, means unknown, not changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from shardwright import regular
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity
from shardwright.recipes import Recipe
from shardwright.storage import extents
from shardwright.storage.extents import Extent, Part
from shardwright.storage.files import explained
from shardwright.storage.paths import absolute, is_gone
from shardwright.store import records
from shardwright.store.records import BadRecordError, Record
from shardwright.store.store import Store
from shardwright.summary import Count

NAME = "facts.jsonl"
TOKENS, LOST = "tokens_", "tokens_lost_"  # before the name of a component, in a table
TOO_LONG = "above_max_tokens_lost"  # the reason of an image that is left out
_PLAIN, _SRGB = "RGB", "RGB, sRGB"  # without a profile, and the start of its usual names
_SHOWN = ("enlarged", "cropped", "tokens", "tokens_lost")

# What needs attention: what ``status`` lists and ``look`` links to.
ENLARGED = "enlarged"
CROPPED = "cropped"
TRUNCATED = "truncated"
IDENTICAL = "identical-file"
NEAR_DUPLICATE = "near-duplicate"
OUTLIER = "outlier"

MUCH_ENLARGED = 1.25  # times; a picture that is enlarged more than that looks soft
MUCH_CROPPED = 0.25  # of the picture; more than that may cut off heads


class ImageFile(msgspec.Struct, frozen=True):
    """An image as it was when it was encoded."""

    path: str  # absolute, so that it can be found from any working folder
    bytes: int
    mtime_ns: int
    xxh3: str

    def now(self, path: str) -> ImageFile | None:
        """Give it with its present time and path, or None if the file has changed.

        Its bytes are read only if its time differs. A file that cannot be read counts as unchanged;
        derive reports it if it needs it.
        """
        try:
            found = os.stat(path)
            if found.st_size != self.bytes:
                return None
            if found.st_mtime_ns != self.mtime_ns and _xxh3(path) != self.xxh3:
                return None
        except OSError:
            return self
        return msgspec.structs.replace(self, path=absolute(path), mtime_ns=found.st_mtime_ns)


class Decoded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The size of a picture as it was decoded."""

    width: int
    height: int
    scale: int = 1  # that its sides are smaller by than in the file: 1, 2, 4 or 8


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: what is known of one image. The counts are by component."""

    image_id: str
    image: ImageFile | None = None
    outdated: list[str] = []  # components that were made from the file as it was before
    tokens_lost: dict[str, int] = {}  # of its caption, 0 for none
    cut_at: dict[str, int] = {}  # characters of the caption that were kept, if it was cut
    first_id: str | None = None  # before it was renamed; a split goes by it
    enlarged: float | None = None  # how many times the picture is enlarged, 1 if it is not
    cropped: float | None = None  # the share of the picture that is cut away
    decoded: Decoded | None = None
    colour_space: str | None = None  # of the file: Pillow's mode, and the name of its profile
    animated: bool = False  # whether the file has several frames, of which the first was taken
    caption_given: bool | None = None  # by --captions; False if it was read beside the image
    left_out: str | None = None  # for the tokens lost: a hash of the texts and what reads them


_decode = msgspec.json.Decoder(Facts).decode


@dataclass
class Truncated:
    """Captions that are longer than their encoder accepts."""

    captions: int = 0
    tokens_lost: int = 0
    example: str = ""  # an image_id

    def add(self, image_id: str, lost: int) -> None:
        """Count one caption, if it was cut."""
        if lost:
            self.captions += 1
            self.tokens_lost += lost
            self.example = self.example or image_id


@dataclass
class Most:
    """How many images there are of one kind, and the one of which it is most true."""

    images: int = 0
    most: float = 0.0
    example: str = ""  # an image_id

    def add(self, image_id: str, value: float) -> None:
        """Count one image."""
        self.images += 1
        if value > self.most:
            self.most, self.example = value, image_id

    def join(self, other: Most) -> None:
        """Add what was counted elsewhere."""
        images = self.images + other.images
        self.add(other.example, other.most)
        self.images = images


@dataclass
class Quality:
    """The images of which arrays show less than the file holds, or not as it is."""

    enlarged: Most = field(default_factory=Most)  # times
    cropped: Most = field(default_factory=Most)  # the share that is cut away
    much_enlarged: int = 0  # images of these that need attention
    much_cropped: int = 0
    decoded_smaller: Most = field(default_factory=Most)  # times, by which its sides are
    colour_spaces: dict[str, Count] = field(default_factory=dict)  # other than sRGB
    animated: Count = field(default_factory=lambda: Count(0, ""))  # of which one frame was taken

    def add(self, facts: Facts) -> None:
        """Count one image; what is unknown of it is not counted."""
        if facts.enlarged is not None and facts.enlarged > 1:
            self.enlarged.add(facts.image_id, facts.enlarged)
            self.much_enlarged += facts.enlarged > MUCH_ENLARGED
        if facts.cropped:
            self.cropped.add(facts.image_id, facts.cropped)
            self.much_cropped += facts.cropped > MUCH_CROPPED
        if facts.decoded is not None and facts.decoded.scale > 1:
            self.decoded_smaller.add(facts.image_id, facts.decoded.scale)
        space = facts.colour_space
        if space is not None and space != _PLAIN and not space.startswith(_SRGB):
            self.colour_spaces.setdefault(space, Count(0, facts.image_id)).count += 1
        if facts.animated:
            self._add_animated(Count(1, facts.image_id))

    def join(self, other: Quality) -> None:
        """Add what was counted elsewhere."""
        self.enlarged.join(other.enlarged)
        self.cropped.join(other.cropped)
        self.decoded_smaller.join(other.decoded_smaller)
        self.much_enlarged += other.much_enlarged
        self.much_cropped += other.much_cropped
        for space, count in other.colour_spaces.items():
            self.colour_spaces.setdefault(space, Count(0, count.example)).count += count.count
        self._add_animated(other.animated)

    def _add_animated(self, more: Count) -> None:
        self.animated.count += more.count
        self.animated.example = self.animated.example or more.example


@dataclass
class Survey:
    """How the images of a store compare with the facts."""

    known: int = 0  # images whose file is on record
    changed: list[str] = field(default_factory=list)  # paths
    gone: list[str] = field(default_factory=list)
    truncated: dict[str, Truncated] = field(default_factory=dict)  # by component
    quality: Quality = field(default_factory=Quality)


def path_of(store: Store) -> Path:
    """Name the file."""
    return store.state / NAME


def read(store: Store) -> Iterator[tuple[int, Facts]]:
    """Read all facts, each with the offset of its line; invalid lines are skipped."""
    for line, facts in records.walk(path_of(store), parse):
        check()  # whoever looks at the image may read all of it
        yield line.offset, facts


def parse(line: bytes | None) -> Facts:
    """Read one line, or raise BadRecordError."""
    try:
        facts = _decode(line or b"")
    except records.NOT_JSON:
        raise BadRecordError("not_json") from None
    if facts.image is not None and "\0" in facts.image.path:
        raise BadRecordError("image_path_invalid")
    return facts


def read_at(store: Store, offset: int) -> Facts:
    """Read one line again."""
    path = path_of(store)
    with explained(path), regular.opened(path) as file:
        return read_line(file, offset)


def read_line(file: BinaryIO, offset: int) -> Facts:
    """Read one line of the open file again."""
    file.seek(offset)
    return _decode(file.readline())


def first_ids(store: Store) -> dict[str, str]:
    """Give the first id of each image that was renamed, by its present id."""
    return {known.image_id: known.first_id for _, known in read(store) if known.first_id}


def is_fact(name: str) -> bool:
    """Whether a condition on this field may ask for what ``fields`` gives."""
    return name in _SHOWN or name.startswith((TOKENS, LOST))


def fields(record: Record, known: Facts | None, recipe: Recipe) -> Record:
    """Give what ``status``, its export and ``look`` show of a sample beside its record.

    The counts of tokens are by component, and those of the component with the most.
    """
    masks = {c.name: record.get(c.mask.field) for c in recipe.captions if c.mask is not None}
    tokens = {name: mask.count(1) for name, mask in masks.items() if isinstance(mask, list)}
    lost, found = dict[str, int](), Record()
    if known is not None:
        texts = {component.name for component in recipe.captions}
        lost = {name: count for name, count in known.tokens_lost.items() if name in texts}
        values = {"enlarged": known.enlarged, "cropped": known.cropped}
        found |= {name: value for name, value in values.items() if value is not None}
    for prefix, counts in ((TOKENS, tokens), (LOST, lost)):
        found |= {f"{prefix}{name}": count for name, count in counts.items()}
        found |= {prefix.rstrip("_"): max(counts.values())} if counts else {}
    return found


def survey(store: Store, ids: Collection[str], progress: Progress) -> Survey:
    """Compare the images of a store with their files, and count what was lost on the way."""
    found = Survey()
    if path_of(store).is_file():
        progress.phase("compare images", len(ids), "images")
    for _, entry in read(store):
        if entry.image_id not in ids:
            continue
        progress.advance(1)
        for name, lost in entry.tokens_lost.items():
            found.truncated.setdefault(name, Truncated()).add(entry.image_id, lost)
        found.quality.add(entry)
        if entry.image is not None:
            found.known += 1
            if is_gone(entry.image.path):
                found.gone.append(entry.image.path)
            elif entry.outdated or entry.image.now(entry.image.path) is None:
                found.changed.append(entry.image.path)
    return found


def image_file(path: Extent) -> ImageFile:
    """Record which file is about to be encoded; of a part, its own bytes and its tar's time.

    Call it before decoding: if the file is replaced meanwhile, it counts as changed later.
    """
    if isinstance(path, Part):
        hasher, time = xxhash.xxh3_64(), extents.mtime_ns(path)
        for data in extents.pieces(path):
            hasher.update(data)
        return ImageFile(absolute(str(path)), path.size, time, hasher.hexdigest())
    found = os.stat(path)
    return ImageFile(absolute(path), found.st_size, found.st_mtime_ns, _xxh3(path))


def _xxh3(path: str) -> str:
    with regular.unbuffered(path) as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()


@dataclass(frozen=True)
class Attention:
    """One thing that somebody should look at, and the samples it is about."""

    text: str
    count: int
    flag: str | None = None  # that these samples have,
    state: str | None = None  # or their state
    example: str = ""  # an image_id


def not_ready(reasons: Mapping[str, int]) -> Iterator[Attention]:
    """List what is not ready or has failed, by reason."""
    for reason, count in reasons.items():
        verb = "is" if count == 1 else "are"
        text = f"{quantity(count, 'images')} {verb} not ready: {reason.replace('_', ' ')}"
        yield Attention(text, count, state=reason)


def truncated(component: str, count: int, example: str = "") -> Iterator[Attention]:
    """List captions that were cut."""
    if count:
        verb = "is" if count == 1 else "are"
        text = f"{quantity(count, 'captions')} {verb} cut off: longer than {component} reads"
        yield Attention(text, count, TRUNCATED, example=example)


def much(flag: str, count: int, most: float, example: str = "") -> Iterator[Attention]:
    """List pictures that are enlarged a lot, or of which a lot is cut away."""
    how = {
        ENLARGED: f"enlarged more than {MUCH_ENLARGED} times, up to {most:.2f}",
        CROPPED: f"cropped by more than {MUCH_CROPPED:.0%}, up to {most:.0%}",
    }
    if count:
        yield Attention(f"{quantity(count, 'images')} {how[flag]}", count, flag, example=example)
