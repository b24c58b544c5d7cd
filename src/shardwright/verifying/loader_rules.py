"""Which loaders can read a shard folder: their own splitting and grouping rules, on the headers.

The rules were read from the loaders' sources. ``FAULTS`` says what each fault means, ``RULES``
which of them matter to whom; the shards themselves are asked, not our index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shardwright.errors import DamageError, InputMissingError
from shardwright.progress import Progress
from shardwright.recipe import JSON_SUFFIX, LONGEST_NAME
from shardwright.shards.format import manifest, tarread
from shardwright.shards.format.tarread import BadTarError, Entry
from shardwright.shards.loaders import indexes as loader_indexes
from shardwright.shards.loaders.indexes import CARD_NAME, LOADERS, Packed
from shardwright.storage.files import explained
from shardwright.store.commands import command
from shardwright.store.findings import FAIL, NEEDS_INDEX, PASS, Finding

FAULTS = {
    "unreadable": "the tar cannot be read",
    "empty": "has no samples",
    "not_a_file": "is a link, a device or the like",
    "passed_over": "has no key or no field, so it is passed over in silence",
    "reserved": "has a key that starts with __, which is kept for the loader itself",
    "repeated": "comes twice in one sample",
    "apart": "has members that do not stand together",
    "upper_case": "has a field that is not lower-case",
    "not_alike": "has other fields than the first sample",
    "json_differs": "has other JSON types than the first five samples",
    "json_new": "has JSON that the first five samples have not, or only as null, so it is dropped",
    "json_large": "has a number in its JSON that 64 bits cannot hold",
    "key_twice": "has a key that another sample has too",
    "extended": "has a PAX or GNU header",
    "long": f"has a name longer than {LONGEST_NAME} bytes",
    "space": "has white space in its name",
    "visible": "is visible, so load_dataset would open it as a tar",
    "stale": "is not of these shards",
}

_JSON = ("json_differs", "json_new", "json_large")
_ALL = ("unreadable", "empty", "not_a_file", "passed_over", "repeated", "apart")
RULES: dict[str, tuple[str, ...]] = {
    "webdataset": (*_ALL, "reserved"),
    "hf": (*_ALL, "reserved", "upper_case", "not_alike", *_JSON, "visible", "stale"),
    "energon": (*_ALL, "reserved", "key_twice", "stale"),
    "ray": (*_ALL, "not_alike"),
    "wids": (*_ALL, "extended", "long", "stale"),
    "dali": (*_ALL, "space", "not_alike", "stale"),
    "webshart": (*_ALL, "extended", "long", "stale"),
}
_SAME_FIELDS = (
    "give all records of the store the same fields, each of one type, then pack with --overwrite"
)
_CURES = {
    "json_differs": _SAME_FIELDS,
    "json_new": _SAME_FIELDS,
    "json_large": "write such numbers as text in all records, then pack with --overwrite",
    "visible": "remove it, or write a card with {index}",
    "stale": "run {index}",
}
_FIRST = 5  # samples from which Hugging Face infers the columns

_ITEM = 0  # in a path, stands for every item of a list; the keys of objects are str

Steps = tuple[str | int, ...]
Types = dict[Steps, str]  # of all that is in a JSON object and not null


@dataclass
class Fault:
    """How often a fault was met, and where first."""

    count: int
    example: str


class Faults(dict[str, Fault]):
    """The faults that were met, by name."""

    def add(self, name: str, example: str) -> None:
        """Count one."""
        if name in self:
            self[name].count += 1
        else:
            self[name] = Fault(1, example)


@dataclass(frozen=True)
class LoaderCheck:
    """Whether one loader reads the folder as it is meant."""

    loader: str
    faults: dict[str, Fault]
    index: bool | None  # whether its index files are there; None where it needs none

    @property
    def verdict(self) -> str:
        """Say it in a word or two."""
        return FAIL if self.faults else NEEDS_INDEX if self.index is False else PASS


def check_loaders(folder: Path, progress: Progress) -> list[LoaderCheck]:
    """Run the rules of every loader over the headers and JSON members of all shards."""
    visible = [path for path in sorted(folder.rglob("*")) if _is_visible_file(path, folder)]
    shards = [path for path in visible if path.suffix == ".tar"]
    progress.phase("loaders", len(shards), "shards")
    check = Check()
    for shard in shards:
        _check_file(check, shard, shard.relative_to(folder).as_posix())
        progress.advance(1)
    progress.close()
    if not _has_card(folder):
        for path in visible:
            if path.suffix != ".tar":
                check.faults.add("visible", path.relative_to(folder).as_posix())
    checks = []
    for loader, rules in RULES.items():
        found = {name: check.faults[name] for name in rules if name in check.faults}
        there = None
        if "stale" in rules:
            index = sorted(loader_indexes.present(folder, loader))
            there = bool(index) if loader != "hf" else None  # which can do without a card
            if stale := _stale(folder, loader, index):
                found["stale"] = Fault(len(stale), stale[0])
        checks.append(LoaderCheck(loader, found, there))
    return checks


def findings_of(checks: Iterable[LoaderCheck], folder: Path) -> Iterator[Finding]:
    """Tell every fault once, with all loaders that it fails."""
    failed: dict[str, list[LoaderCheck]] = {}
    for check in checks:
        for name in check.faults:
            failed.setdefault(name, []).append(check)
    for name, fails in failed.items():
        fault = fails[0].faults[name]
        times = f" (as {fault.count:,} in all)" if fault.count > 1 else ""
        who = ", ".join(check.loader for check in fails)
        index = command("index", str(folder), "--for", who.replace(" ", ""))
        cure = _CURES.get(name, "pack the samples again with shardwright pack").format(index=index)
        what = f"{FAULTS[name]}{times}, which fails {who}"
        yield Finding(f"loader_{name}", fault.example, None, what, cure)


@dataclass
class Check:
    """Looks at shard after shard; what one sample is held against comes from those before it."""

    faults: Faults = field(default_factory=Faults)
    samples: int = 0
    fields: frozenset[str] | None = None  # of the first sample
    types: Types = field(default_factory=dict)  # of the first samples' JSON
    keys: set[str] = field(default_factory=set)

    def shard(self, path: str, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Look at the names of one shard; give the JSON members, for ``json`` to look at."""
        here: set[str] = set()  # keys whose samples have begun
        key, fields = "", set[str]()
        for entry in entries:
            if entry.kind == tarread.FOLDER:
                continue
            place = f"{path}: {entry.name}"
            self._name(entry, place)
            named = tarread.split(entry.name)
            if entry.kind != tarread.FILE or named is None:
                continue
            if named[0] != key:
                self._end(path, key, fields)
                key, fields = named[0], set()
                if key in here:
                    self.faults.add("apart", place)
                elif key in self.keys:
                    self.faults.add("key_twice", place)
                here.add(key)
                self.keys.add(key)
            if named[1] in fields:
                self.faults.add("repeated", place)
            fields.add(named[1])
            if named[1] == JSON_SUFFIX:
                yield entry
        self._end(path, key, fields)
        if not here:
            self.faults.add("empty", path)
        self.samples += len(here)

    def json(self, place: str, data: bytes) -> None:
        """Look at a JSON member."""
        types = _types(data)
        if types is None:
            self.faults.add("json_differs", place)
            return
        if not self.samples and len(self.keys) <= _FIRST:
            self.types = types | self.types
        else:  # from now on an int is taken for a float
            ints = [path for path, kind in types.items() if kind == "int"]
            types |= {path: "float" for path in ints if self.types.get(path) == "float"}
        for fault, met in (
            ("json_large", "large" in types.values()),
            ("json_new", not types.keys() <= self.types.keys()),
            ("json_differs", any(self.types.get(p, kind) != kind for p, kind in types.items())),
        ):
            if met:
                self.faults.add(fault, place)

    def _name(self, entry: Entry, place: str) -> None:
        named = tarread.split(entry.name)
        base = entry.name.rpartition("/")[2]
        for fault, met in (
            ("not_a_file", entry.kind != tarread.FILE),
            ("passed_over", named is None),
            ("reserved", base.startswith("__")),
            ("upper_case", base.partition(".")[2] != base.partition(".")[2].lower()),
            ("extended", entry.extended),
            ("long", len(entry.name.encode()) > LONGEST_NAME),
            ("space", any(map(str.isspace, entry.name))),
        ):
            if met:
                self.faults.add(fault, place)

    def _end(self, path: str, key: str, fields: set[str]) -> None:
        if not fields:
            return
        if self.fields is None:
            self.fields = frozenset(fields)
        elif self.fields != fields:
            self.faults.add("not_alike", f"{path}: {key}")


def _types(data: bytes) -> Types | None:
    """Name the types in a JSON object; None where it is none, or has lists of unlike items."""
    types: Types = {}
    try:
        value = msgspec.json.decode(data)
        for path, kind in _typed(value):
            known = types.setdefault(path, kind)
            if {known, kind} == {"int", "float"}:
                types[path] = "float"
            elif known != kind:
                return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return types if isinstance(value, dict) else None


def _typed(value: object, path: Steps = ()) -> Iterator[tuple[Steps, str]]:
    """Name the type of a JSON value and of all that is in it; a null is as good as nothing."""
    if value is None:
        return
    large = isinstance(value, int) and not -(2**63) <= value < 2**63
    yield path, "large" if large else type(value).__name__
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _typed(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from _typed(item, (*path, _ITEM))


def _check_file(check: Check, shard: Path, path: str) -> None:
    with explained(shard):
        fd = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for entry in check.shard(path, tarread.entries(fd)):
            check.json(f"{path}: {entry.name}", os.pread(fd, entry.size, entry.offset))
    except BadTarError as error:
        check.faults.add("unreadable", f"{path}: {error.reason}")
    finally:
        os.close(fd)


def _is_visible_file(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.is_file()


def _has_card(folder: Path) -> bool:
    """Whether a card tells Hugging Face which files are shards."""
    card = folder / CARD_NAME
    return card.is_file() and b"configs:" in card.read_bytes()


def _stale(folder: Path, loader: str, there: list[str]) -> list[str]:
    """Find the index files of a loader that are not what would be written now."""
    try:
        listed = manifest.load_manifest(folder) if there else None
        if listed is None or not listed.shards:
            return []  # there is nothing to hold them against
        wanted = dict(LOADERS[loader].write(Packed(folder, listed)))
    except (DamageError, InputMissingError):  # of our own index, and for verify to tell
        return []
    missing = [name for name in wanted if name not in there]
    old = [
        name for name in loader_indexes.read_record(folder).get(loader, {}) if name not in wanted
    ]
    other = [
        name
        for name, data in wanted.items()
        if name in there
        and loader_indexes.renewed(folder / name, data) != (folder / name).read_bytes()
    ]
    return missing + other + [name for name in old if name in there]
