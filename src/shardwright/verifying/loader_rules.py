"""Which loaders can read a shard folder: applies their own rules to all headers.

The rules come from the source code of the loaders. ``FAULTS`` describes each fault, ``RULES`` lists
the faults that matter to each loader. The shards themselves are read, not our index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from shardwright import interrupts
from shardwright.errors import DamageError, InputMissingError
from shardwright.progress import Progress
from shardwright.recipes import JSON_SUFFIX, LONGEST_NAME
from shardwright.shards.format import manifest, tarread
from shardwright.shards.format.tarread import Entry, Fault
from shardwright.shards.loaders import indexes as loader_indexes
from shardwright.shards.loaders.indexes import CARD_NAME, LOADERS, Packed
from shardwright.storage import files
from shardwright.storage.files import explained
from shardwright.storage.local import Readable
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, names_below
from shardwright.store.commands import command
from shardwright.store.findings import FAIL, NEEDS_INDEX, PASS, Finding
from shardwright.summary import Count

FAULTS = {
    "not_a_tar": "the tar cannot be read",
    "no_samples": "has no samples",
    "not_a_file": "is a link, a device or similar",
    "no_key": "has no key or no field, so loaders skip it",
    "reserved": "has a key that starts with __, which the loader reserves",
    "repeated_member": "appears twice in one sample",
    "key_apart": "has members that are not next to each other",
    "upper_case": "has a field that is not lower-case",
    "not_alike": "has other fields than the first sample",
    "json_differs": "has other JSON types than the first five samples",
    "json_new": "has JSON that is missing or null in the first five samples, so it is dropped",
    "json_large": "has a number in its JSON that does not fit in 64 bits",
    "repeated_key": "has the same key as another sample",
    "extended_headers": "has a PAX or GNU header",
    "long": f"has a name longer than {LONGEST_NAME} bytes",
    "space": "has white space in its name",
    "visible": "is visible, so load_dataset would open it as a tar",
    "stale": "is out of date",
}

_JSON = ("json_differs", "json_new", "json_large")
_ALL = ("not_a_tar", "no_samples", "not_a_file", "no_key", "repeated_member", "key_apart")
RULES: dict[str, tuple[str, ...]] = {
    "webdataset": (*_ALL, "reserved"),
    "hf": (*_ALL, "reserved", "upper_case", "not_alike", *_JSON, "visible", "stale"),
    "energon": (*_ALL, "reserved", "repeated_key", "stale"),
    "ray": (*_ALL, "not_alike"),
    "wids": (*_ALL, "extended_headers", "long", "stale"),
    "dali": (*_ALL, "space", "not_alike", "stale"),
    "webshart": (*_ALL, "extended_headers", "long", "stale"),
}
_SAME_FIELDS = (
    "give all records of the store the same fields, each of one type, then pack with --overwrite"
)
_FIXES = {
    "json_differs": _SAME_FIELDS,
    "json_new": _SAME_FIELDS,
    "json_large": "write these numbers as text in all records, then pack with --overwrite",
    "visible": "remove it, or write a card with {index}",
    "stale": "run {index}",
}
_FIRST = 5  # samples from which Hugging Face infers the columns

_ITEM = 0  # in a path, stands for every item of a list; the keys of objects are str

Steps = tuple[str | int, ...]
Types = dict[Steps, str]  # of all that is in a JSON object and not null


Faults = dict[str, Count]  # with the place of the first of each


@dataclass(frozen=True)
class LoaderCheck:
    """Whether one loader can read the folder."""

    loader: str
    faults: Faults
    index: bool | None  # whether its index files are there; None if it needs none

    @property
    def verdict(self) -> str:
        """Sum it up."""
        return FAIL if self.faults else NEEDS_INDEX if self.index is False else PASS


def check_loaders(folder: Location, progress: Progress) -> list[LoaderCheck]:
    """Apply the rules of every loader to the headers and JSON members of all shards."""
    every = names_below(folder)
    visible = [path for path in every if not any(n.startswith(".") for n in path.split("/"))]
    shards = [path for path in visible if path.endswith(".tar")]
    progress.phase("loaders", len(shards), "shards")
    check = Check()
    for shard in shards:
        with explained(folder / shard), place_at(folder).open(shard) as file:
            check.shard(file.in_one_pass(), shard)
        progress.advance(1)
    if not _has_card(folder):
        for path in visible:
            if not path.endswith(".tar"):
                check.add("visible", path)
    checks = []
    for loader, rules in RULES.items():
        found = {name: check.faults[name] for name in rules if name in check.faults}
        there = None
        if "stale" in rules:
            index = sorted(loader_indexes.present(folder, loader))
            there = bool(index) if loader != "hf" else None  # which needs no card
            if stale := _stale(folder, loader, index):
                found["stale"] = Count(len(stale), stale[0])
        checks.append(LoaderCheck(loader, found, there))
    return checks


def findings_of(checks: Iterable[LoaderCheck], folder: Location) -> Iterator[Finding]:
    """Report every fault once, with all loaders that fail on it."""
    failed: dict[str, list[LoaderCheck]] = {}
    for check in checks:
        for name in check.faults:
            failed.setdefault(name, []).append(check)
    for name, fails in failed.items():
        found = fails[0].faults[name]
        total = f" ({found.count:,} in total)" if found.count > 1 else ""
        who = ", ".join(check.loader for check in fails)
        index = command("index", str(folder), "--for", who.replace(" ", ""))
        fix = _FIXES.get(name, "pack the samples again with shardwright pack").format(index=index)
        what = f"{FAULTS[name]}{total}: fails {who}"
        yield Finding(f"loader_{name}", found.example, None, what, fix)


@dataclass
class Check:
    """Checks shard after shard, each sample against those before it."""

    faults: Faults = field(default_factory=dict)
    fields: set[str] | None = None  # of the first sample
    types: Types = field(default_factory=dict)  # of the first samples' JSON
    keys: dict[str, str] = field(default_factory=dict)  # with the first shard of each
    samples: int = 0  # of the shards before

    def add(self, fault: str, place: str) -> None:
        """Count a fault."""
        self.faults.setdefault(fault, Count(0, place)).count += 1

    def shard(self, file: Readable, path: str) -> None:
        """Check the samples of one shard."""
        for sample in tarread.samples(file):
            interrupts.check()
            if isinstance(sample, Fault):
                if sample.damage:  # all loaders skip a folder
                    names = ".".join(filter(None, (sample.sample, sample.member)))
                    self.add(sample.kind, f"{path}: {names or sample.what}")
                continue
            entries = list(sample.members.values())
            if self.keys.setdefault(sample.key, path) != path:
                self.add("repeated_key", f"{path}: {entries[0].name}")
            for entry in entries:
                self._name(entry, f"{path}: {entry.name}")
            self.fields = self.fields or set(sample.members)
            if self.fields != sample.members.keys():
                self.add("not_alike", f"{path}: {sample.key}")
            if record := sample.members.get(JSON_SUFFIX):
                self.json(f"{path}: {record.name}", file.pread(record.offset, record.size))
        self.samples = len(self.keys)

    def json(self, place: str, data: bytes) -> None:
        """Check a JSON member."""
        types = _types(data)
        if types is None:
            self.add("json_differs", place)
            return
        if not self.samples and len(self.keys) <= _FIRST:
            self.types = types | self.types
        else:  # from now on an int is accepted as a float
            ints = [path for path, kind in types.items() if kind == "int"]
            types |= {path: "float" for path in ints if self.types.get(path) == "float"}
        for fault, found in (
            ("json_large", "large" in types.values()),
            ("json_new", not types.keys() <= self.types.keys()),
            ("json_differs", any(self.types.get(p, kind) != kind for p, kind in types.items())),
        ):
            if found:
                self.add(fault, place)

    def _name(self, entry: Entry, place: str) -> None:
        base = entry.name.rpartition("/")[2]
        for fault, found in (
            ("reserved", base.startswith("__")),
            ("upper_case", base.partition(".")[2] != base.partition(".")[2].lower()),
            ("extended_headers", entry.extended),
            ("long", len(entry.name.encode()) > LONGEST_NAME),
            ("space", any(map(str.isspace, entry.name))),
        ):
            if found:
                self.add(fault, place)


def _types(data: bytes) -> Types | None:
    """List the types in a JSON object; None if it is not one, or if a list mixes types."""
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
    """List the types of a JSON value and of everything in it; nulls are skipped."""
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


def _has_card(folder: Location) -> bool:
    """Whether a card lists the shards for Hugging Face."""
    card = folder / CARD_NAME
    return card.is_file() and b"configs:" in files.read(card)


def _stale(folder: Location, loader: str, there: list[str]) -> list[str]:
    """Find the index files of a loader that ``index`` would write, change or remove now."""
    try:
        listed = manifest.load_manifest(folder) if there else None
        if listed is None or not listed.shards:
            return []  # there is nothing to compare with
        wanted = dict(LOADERS[loader].write(Packed(folder, listed)))
    except (DamageError, InputMissingError):  # of our own index, which verify reports
        return []
    old = loader_indexes.read_record(folder).get(loader, {}).keys() - wanted.keys()
    differ = [
        name
        for name, data in wanted.items()
        if name not in there
        or loader_indexes.renewed(folder / name, data) != files.read(folder / name)
    ]
    return differ + sorted(old.intersection(there))
