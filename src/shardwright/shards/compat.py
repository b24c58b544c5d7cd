"""Which loaders can read a shard folder: their own splitting and grouping rules, on the headers.

The rules were read from the loaders' sources. ``FAULTS`` says what each fault means, ``RULES``
which of them matter to whom; the shards themselves are asked, not our index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shardwright.errors import InputMissingError
from shardwright.progress import Progress
from shardwright.schema import JSON_SUFFIX
from shardwright.shards import loaders, manifest, tarread
from shardwright.shards.keys import LONGEST_NAME
from shardwright.shards.loaders import CARD_NAME, LOADERS, Packed
from shardwright.shards.names import bucket_folder, existing_buckets, existing_shards
from shardwright.shards.tarread import BadTarError, Entry

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
    "json_differs": "has other JSON keys or types than the first five samples",
    "key_twice": "has a key that another sample has too",
    "extended": "has a PAX or GNU header",
    "long": f"has a name longer than {LONGEST_NAME} bytes",
    "space": "has white space in its name",
    "visible": "is visible, so load_dataset would open it as a tar",
    "stale": "is not of these shards",
}

_ALL = ("unreadable", "empty", "not_a_file", "passed_over", "repeated", "apart")
RULES: dict[str, tuple[str, ...]] = {
    "webdataset": (*_ALL, "reserved"),
    "hf": (*_ALL, "reserved", "upper_case", "not_alike", "json_differs", "visible"),
    "energon": (*_ALL, "reserved", "key_twice", "stale"),
    "ray": (*_ALL, "not_alike"),
    "wids": (*_ALL, "extended", "long", "stale"),
    "dali": (*_ALL, "space", "not_alike", "stale"),
    "webshart": (*_ALL, "extended", "long", "stale"),
}
_NEED_INDEX = ("energon", "dali", "wids", "webshart")
_FIRST = 5  # samples from which Hugging Face infers the columns

_NULL = "NoneType"

Types = dict[str, str]  # of a JSON object, by key


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
    def passed(self) -> bool:
        """Whether nothing stands in the way, save perhaps an index that can be written."""
        return not self.faults


@dataclass(frozen=True)
class LoaderMatrix:
    """The verdict for every loader."""

    path: str
    shards: int
    samples: int
    loaders: list[LoaderCheck]

    @property
    def passed(self) -> bool:
        """Whether every loader reads the folder."""
        return all(check.passed for check in self.loaders)

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and numbers, ready for JSON."""
        checks = [asdict(check) | {"passed": check.passed} for check in self.loaders]
        return asdict(self) | {"passed": self.passed, "loaders": checks}


def check_loaders(
    path: str | os.PathLike[str], *, progress: Progress | None = None
) -> LoaderMatrix:
    """Run the rules of every loader over the headers and JSON members of all shards."""
    folder = Path(path)
    shards = [
        shard
        for bucket in existing_buckets(folder)
        for shard in existing_shards(folder / bucket_folder(bucket)).values()
    ]
    if not shards:
        raise InputMissingError(f"{folder}: no shards there; give the --output-dir of a pack")
    report = progress or Progress()
    report.phase("loaders", len(shards), "shards")
    check = Check()
    for shard in shards:
        _check_file(check, shard, shard.relative_to(folder).as_posix())
        report.advance(1)
    report.close()
    _check_sidecars(check.faults, folder, shards)
    stale = {name: _stale(folder, name) for name in _NEED_INDEX}
    checks = []
    for loader, rules in RULES.items():
        found = {name: check.faults[name] for name in rules if name in check.faults}
        if stale.get(loader):
            found["stale"] = Fault(len(stale[loader]), stale[loader][0])
        there = bool(_index_files(folder, loader)) if loader in _NEED_INDEX else None
        checks.append(LoaderCheck(loader, found, there))
    return LoaderMatrix(str(folder), len(shards), check.samples, checks)


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
        try:
            value = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.faults.add("json_differs", place)
            return
        types = {name: type(item).__name__ for name, item in value.items()}
        first = not self.samples and len(self.keys) <= _FIRST
        self.types = self.types or types
        for name, kind in types.items():
            known = self.types.get(name)
            if first and known == _NULL:  # a null among the first is settled by the others
                self.types[name] = kind
            elif kind not in (known, _NULL):
                self.faults.add("json_differs", place)
                return
        if types.keys() != self.types.keys():
            self.faults.add("json_differs", place)

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


def _check_file(check: Check, shard: Path, path: str) -> None:
    fd = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for entry in check.shard(path, tarread.entries(fd)):
            check.json(f"{path}: {entry.name}", os.pread(fd, entry.size, entry.offset))
    except BadTarError as error:
        check.faults.add("unreadable", f"{path}: {error.reason}")
    finally:
        os.close(fd)


def _check_sidecars(faults: Faults, folder: Path, shards: Iterable[Path]) -> None:
    """Find what load_dataset would take for a shard, unless a card tells it better."""
    card = folder / CARD_NAME
    if card.is_file() and b"configs:" in card.read_bytes():
        return
    known = set(shards)
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if path.is_file() and not hidden and path not in known:
            faults.add("visible", inside.as_posix())


def _index_files(folder: Path, loader: str) -> list[str]:
    return sorted(loaders.owned(folder, loader))


def _stale(folder: Path, loader: str) -> list[str]:
    """Find the index files of a loader that are not what would be written now."""
    there = _index_files(folder, loader)
    listed = manifest.load_manifest(folder) if there else None
    if listed is None or not listed.shards:
        return []  # there is nothing to hold them against
    wanted = dict(LOADERS[loader].write(Packed(folder, listed)))
    missing = [name for name in wanted if name not in there]
    other = [name for name in there if wanted.get(name) != (folder / name).read_bytes()]
    return missing + other
