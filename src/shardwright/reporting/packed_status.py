"""Which samples of a store are packed already, and what to do with the others."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial

import msgspec

from shardwright.engine import Engine
from shardwright.errors import ShardwrightError
from shardwright.interrupts import check
from shardwright.layout import JSONL_NAME
from shardwright.packing import again
from shardwright.packing.choice import require_lists, wanted
from shardwright.packing.outdated import SPLIT, Comparison, compare, of_jsonl
from shardwright.packing.plan import Packed
from shardwright.packing.scan import Scan
from shardwright.packing.splits import read_groups
from shardwright.packing.start import current_run, packed_ids
from shardwright.progress import Progress, quantity
from shardwright.reporting import PackedStatus
from shardwright.shards.format import consistency, index, manifest
from shardwright.shards.format.manifest import Manifest, PackSettings, Run, Unfinished
from shardwright.shards.format.parts import is_packed, packed_below, top_folder
from shardwright.storage.urls import Location, relative_name
from shardwright.store import commands, provenance
from shardwright.store.store import Store, holds_shards, read_identity


@dataclass
class _Packing:
    """A shard folder, as its manifest and indexes describe it."""

    folder: Location
    runs: list[Run] = field(default_factory=list)
    unfinished: Unfinished | None = None
    samples: int = 0
    ready: int = 0  # of them, those whose id is ready in the store
    other: str = ""  # what it holds, if the store is another one or was recomputed since
    outdated: int = 0  # samples that the store has changed or removed since
    moved: int = 0  # of them, those that belong to another part of the split
    damaged: bool = False


class _Group:
    """The shard folders that one pack command writes: one, or the parts of a split."""

    def __init__(self, top: Location, packings: list[_Packing]) -> None:
        self.top = top  # its --output-dir
        self.packings = packings
        last = current_run(one.folder for one in packings)
        self.settings = last.settings if last else None
        self.runs = [run for one in packings for run in one.runs]
        self.ready = sum(one.ready for one in packings)  # samples whose id is ready in the store
        # What it holds, if the store is another one or was recomputed since.
        self.other = next((one.other for one in packings if one.other), "")

    def holds_all_of(self, jsonl: str) -> bool:
        """Whether its runs packed all that was ready, and not only a chosen part."""
        return all(
            run.jsonl == jsonl and run.settings.limit is None and not run.settings.buckets
            for run in self.runs
        )

    def require_lists(self, store: Store) -> None:
        """Raise if the lists of its last run cannot be read."""
        # A build names them otherwise.
        if self.settings is not None and not any(run.is_build for run in self.runs):
            require_lists(self.settings, store.folder)
            read_groups(self.settings.split, self.top)

    def outdated(self) -> str | None:
        """Say which of its samples a sync would update or remove, if there are any."""
        if not (count := sum(one.outdated for one in self.packings)):
            return None
        moved = sum(one.moved for one in self.packings)
        what = ["changed, removed or excluded since"] if count > moved else []
        what += [f"belong{'s' * (count == 1)} to another part of the split"] if moved else []
        return f"{quantity(count, 'packed samples')} in {self.top} {', or '.join(what)}"


class Packings:
    """The shard folders in a folder and directly below it, compared with a store."""

    def __init__(
        self, output_dir: Location, ready: Set[str], scan: Scan, engine: Engine, progress: Progress
    ) -> None:
        store = scan.store
        self.output_dir = output_dir
        self._compared = partial(compare, found=scan, engine=engine, progress=progress, moved=False)
        self._jsonl = relative_name(store.jsonl, store.folder)
        self._entries, self._store_id = provenance.readable(store.folder), read_identity(store)
        self._store, self._scan, self._ready = store, scan, ready
        self._left = set(ready)  # ready samples that are in no folder
        # Finished or not.
        folders = [*([output_dir] if is_packed(output_dir) else []), *packed_below(output_dir)]
        self._packings = [self._read(folder) for folder in folders]

    def summary(self) -> dict[str, PackedStatus]:
        """Give what each folder holds."""
        return {
            str(one.folder): PackedStatus(
                one.samples,
                0 if one.other else one.ready,
                one.unfinished is not None,
                one.outdated,
                one.other or None,
            )
            for one in self._packings
        }

    def next(self) -> tuple[str | None, str]:
        """Choose the next command if every record is ready, and give the reason."""
        for one in self._packings:
            if one.damaged:
                return commands.command("verify", str(one.folder)), f"{one.folder} is damaged"
            if one.unfinished and (found := self._finish(one.folder, one.unfinished)):
                return found
        groups = self._groups()
        alike = [group for group in groups if group.ready]
        mine = [group for group in alike if not group.other]
        store, name = self._store, self._jsonl
        try:
            for group in mine:
                group.require_lists(store)
        except ShardwrightError as error:
            return None, f"pack would stop: {error}"
        for group in mine:
            follows = all(run.jsonl == name for run in group.runs)
            if follows and (outdated := group.outdated()):
                return commands.pack(store, group.top, "--sync"), outdated
        asked = [self._asked(group) for group in mine]
        left = [self._left_of(group, ids) for group, ids in zip(mine, asked, strict=True)]
        if 0 in left:
            return self._verify(mine[left.index(0)])
        if alike and not mine:
            top, other = alike[0].top, alike[0].other
            command = again.overwrite(store, top)
            return None, f"{top} holds {other}; to replace them, run {command}"
        split = any(group.settings and group.settings.split for group in groups)
        if not mine and not split and not holds_shards(self.output_dir):
            return commands.pack(store, self.output_dir), "every record is ready"
        if len(groups) == 1 and mine and mine[0].holds_all_of(name):
            (group,) = mine
            flags = group.settings.flags(store.folder, group.top) if group.settings else []
            why = f"{quantity(left[0], 'ready samples')} not packed yet"
            return commands.pack(store, group.top, "--append", *flags), why
        absent = self._left
        if mine and (some := [ids for ids in asked if ids is not None]) == asked:
            absent = absent & set[str]().union(*some)
        if not absent:
            return None, "every sample is packed, in several folders"
        if not mine:
            why = f"every record is ready, but {self.output_dir} holds other shards"
            return None, f"{why}; pack into another --output-dir"
        count = quantity(len(absent), "ready samples")
        return None, f"{count} not packed yet; whether to add to {mine[0].top} is your decision"

    def _finish(self, folder: Location, note: Unfinished) -> tuple[str | None, str] | None:
        """Give the command that finishes a run, if it is of this store."""
        store = self._store
        if note.is_build:  # into which this store is not packed
            why = f"a build into {folder} was interrupted, or is still running"
            return None, f"{why}; to finish it, run the same shardwright build again"
        if note.store not in (None, relative_name(store.folder, folder)):
            return None
        packed_from = store if note.jsonl is None else store.of(note.jsonl)
        top = top_folder(folder, note.settings)
        flags = ["--resume", *note.settings.flags(store.folder, top)]
        why = f"a run that packs into {folder} was interrupted, or is still running"
        return commands.pack(packed_from, top, *flags), why

    def _verify(self, group: _Group) -> tuple[str, str]:
        """Give the command that verifies shards that have all samples."""
        own = self._store.jsonl == self._store.folder / JSONL_NAME
        flags = ["--against", str(self._store.folder)] if own else ["--read-data"]
        out = len(self._ready) - group.ready
        are = "is" if out == 1 else "are"
        excluded = f", except {out:,} that {are} left out" * bool(out)
        why = f"every sample is packed in {group.top}{excluded}"
        return commands.command("verify", str(group.top), *flags), why

    def _groups(self) -> list[_Group]:
        """Group the parts of a split."""
        groups: dict[Location, list[_Packing]] = {}
        for one in self._packings:
            top = top_folder(one.folder, one.runs[-1].settings) if one.runs else one.folder
            groups.setdefault(top, []).append(one)
        return [_Group(top, packings) for top, packings in groups.items()]

    def _asked(self, group: _Group) -> set[str] | None:
        """Give the ready samples that a group should have; None for all of them."""
        if (settings := group.settings) is None:
            return None
        if group.top == self.output_dir:  # all parts are here
            settings = msgspec.structs.replace(settings, part=None)
        asked = wanted(self._store, settings, group.top)
        return None if asked is None else asked.keys() & self._ready

    def _left_of(self, group: _Group, asked: set[str] | None) -> int:
        """Count the ready samples that a group should have and has not."""
        if asked is None:
            return len(self._ready) - group.ready
        return len(asked.difference(*(packed_ids(one.folder) for one in group.packings)))

    def _compare(
        self, folder: Location, packed: list[Packed], settings: PackSettings
    ) -> Comparison:
        """Compare packed samples, where some may not be asked for, or in another part."""
        top, ids = top_folder(folder, settings), self._scan.ids
        asked = wanted(self._store, msgspec.structs.replace(settings, part=None), top)
        if asked is None:
            return self._compared(folder, packed, stays=lambda sample: True)
        here = {name for name, part in asked.items() if part in (None, settings.part)}
        return self._compared(
            folder,
            packed,
            stays=lambda sample: ids[sample] in here,
            elsewhere=lambda sample: ids[sample] in asked,
        )

    def _other(self, listed: Manifest) -> str:
        """Say what a folder holds, if the store is another one or was recomputed since."""
        known = consistency.store_ids(listed)
        if known and self._store_id not in known:
            return "samples of another store"
        kind = consistency.other_kind(listed, self._store.recipe, self._entries)
        return kind and f"arrays made with other settings ({kind})"

    def _read(self, folder: Location) -> _Packing:
        found = _Packing(folder)
        try:
            found.unfinished = manifest.load_unfinished(folder)
            listed = manifest.load_manifest(folder)
            if listed is not None:
                found.runs, found.other = listed.runs, self._other(listed)
                packed = []
                for shard in listed.shards:
                    check()
                    ids = index.load(folder, shard.path).head.ids
                    packed.append(Packed(shard, ids))
                    found.samples += len(ids)
                    found.ready += sum(image_id in self._ready for image_id in ids)
                    self._left.difference_update(() if found.other else ids)
                if not found.other:
                    packed = of_jsonl(self._jsonl, packed, listed.runs)
                    compared = self._compare(folder, packed, listed.runs[-1].settings)
                    found.outdated = compared.outdated
                    found.moved = sum(why == SPLIT for why in compared.moved.values())
        except ShardwrightError:  # verify reports it
            found.damaged = True
        return found
