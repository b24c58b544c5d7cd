"""Which samples of a store are packed already, and what to do with the others."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
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
from shardwright.store import commands, identity, provenance
from shardwright.store.folders import holds_shards
from shardwright.store.store import Store


@dataclass
class _Packing:
    """A shard folder, as its manifest and indexes describe it."""

    folder: Location
    runs: list[Run]
    unfinished: Unfinished | None = None
    samples: int = 0
    ready: int = 0  # of them, those whose id is ready in the store
    other: str = ""  # what it holds, if the store is another one or was recomputed since
    outdated: int = 0  # samples that the store has changed or removed since
    moved: int = 0  # of them, those that belong to another part of the split
    damaged: bool = False

    def holds_all_of(self, jsonl: str) -> bool:
        """Whether its runs packed all that was ready, and not only a chosen part."""
        return all(
            run.jsonl == jsonl and run.settings.limit is None and not run.settings.buckets
            for run in self.runs
        )


@dataclass
class _Group:
    """The shard folders that one pack command writes: one, or the parts of a split."""

    top: Location  # its --output-dir
    packings: list[_Packing]
    settings: PackSettings | None = None  # of its last run

    @property
    def other(self) -> str:
        """Say what it holds, if the store is another one or was recomputed since."""
        return next((one.other for one in self.packings if one.other), "")

    @property
    def ready(self) -> int:
        """Count its samples whose id is ready in the store."""
        return sum(one.ready for one in self.packings)

    def holds_all_of(self, jsonl: str) -> bool:
        """Whether its runs packed all that was asked for, and not only a share of it."""
        return all(one.holds_all_of(jsonl) for one in self.packings)

    def lists_problem(self, store: Store) -> ShardwrightError | None:
        """Say why the lists of its last run cannot be read, if they cannot."""
        runs = [run for one in self.packings for run in one.runs]
        if self.settings is None or any(run.is_build for run in runs):  # which names them otherwise
            return None
        try:
            require_lists(self.settings, store.folder)
            read_groups(self.settings.split, self.top)
        except ShardwrightError as error:
            return error
        return None

    def outdated(self) -> str | None:
        """Say which of its samples a sync would update or remove, if there are any."""
        if not (count := sum(one.outdated for one in self.packings)):
            return None
        moved = sum(one.moved for one in self.packings)
        what = ["changed, removed or excluded since"] if count > moved else []
        what += [f"belong{'s' * (count == 1)} to another part of the split"] if moved else []
        return f"{quantity(count, 'packed samples')} in {self.top} {', or '.join(what)}"

    def pack(self, store: Store, way: str) -> str:
        """Write the command that packs into it again, as its last run did."""
        flags = self.settings.flags(store.folder, self.top) if self.settings else []
        return commands.pack(store, self.top, way, *flags)


class Packings:
    """The shard folders in a folder and directly below it, compared with a store."""

    def __init__(
        self, output_dir: Location, ready: Set[str], scan: Scan, engine: Engine, progress: Progress
    ) -> None:
        store = scan.store
        self.output_dir = output_dir
        self._compared = partial(
            compare,
            found=scan,
            engine=engine,
            progress=progress,
            moved=False,
        )
        self._jsonl = relative_name(store.jsonl, store.folder)
        self._entries, self._recipe = provenance.readable(store.folder), store.recipe
        self._store, self._scan, self._ready = store, scan, ready
        self._store_id = identity.read(store)
        self._left = set(ready)  # ready samples that are in no folder
        self._packings = [self._read(folder, ready) for folder in _folders(output_dir)]

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

    def next(self, store: Store) -> tuple[str | None, str]:
        """Choose the next command if every record is ready, and give the reason."""
        for one in self._packings:
            where, note = str(one.folder), one.unfinished
            if one.damaged:
                return commands.command("verify", where), f"{where} is damaged"
            if note and note.is_build:  # into which this store is not packed
                why = f"a build into {where} was interrupted, or is still running"
                return None, f"{why}; to finish it, run the same shardwright build again"
            if note and note.store in (None, relative_name(store.folder, one.folder)):
                packed_from = store if note.jsonl is None else store.of(note.jsonl)
                top = top_folder(one.folder, note.settings)
                flags = ["--resume", *note.settings.flags(store.folder, top)]
                why = f"a run that packs into {where} was interrupted, or is still running"
                return commands.pack(packed_from, top, *flags), why
        groups = self._groups()
        alike = [group for group in groups if group.ready]
        mine = [group for group in alike if not group.other]
        name = self._jsonl
        for group in mine:
            if (problem := group.lists_problem(store)) is not None:
                return None, f"pack would stop: {problem}"
        for group in mine:
            follows = all(run.jsonl == name for one in group.packings for run in one.runs)
            if follows and (outdated := group.outdated()):
                return commands.pack(store, group.top, "--sync"), outdated
        asked = [self._asked(group, store) for group in mine]
        left = {str(g.top): self._left_of(g, ids) for g, ids in zip(mine, asked, strict=True)}
        excluded = {str(group.top): self._excluded(group) for group in mine}
        for where in left:
            if not left[where]:
                own = store.jsonl == store.folder / JSONL_NAME
                flags = ["--against", str(store.folder)] if own else ["--read-data"]
                why = f"every sample is packed in {where}{excluded[where]}"
                return commands.command("verify", where, *flags), why
        if alike and not mine:
            group = alike[0]
            why = f"{group.top} holds {group.other}"
            return None, f"{why}; to replace them, run {again.overwrite(store, group.top)}"
        split = any(group.settings and group.settings.split for group in groups)
        if not mine and not split and not holds_shards(self.output_dir):
            return commands.pack(store, self.output_dir), "every record is ready"
        if len(groups) == 1 and mine and mine[0].holds_all_of(name):
            count = quantity(left[str(mine[0].top)], "ready samples")
            return mine[0].pack(store, "--append"), f"{count} not packed yet"
        absent = self._left
        if mine and (some := [ids for ids in asked if ids is not None]) == asked:
            absent = absent & set[str]().union(*some)
        if not absent:
            return None, "every sample is packed, in several folders"
        if not mine:
            why = f"every record is ready, but {self.output_dir} holds other shards"
            return None, f"{why}; pack into another --output-dir"
        count = quantity(len(absent), "ready samples")
        why = f"{count} not packed yet; whether to add to {mine[0].top} is your decision"
        return None, why

    def _groups(self) -> list[_Group]:
        """Group the parts of a split."""
        groups: dict[Location, _Group] = {}
        for one in self._packings:
            top = top_folder(one.folder, one.runs[-1].settings) if one.runs else one.folder
            groups.setdefault(top, _Group(top, [])).packings.append(one)
        for group in groups.values():
            last = current_run(one.folder for one in group.packings)
            group.settings = last.settings if last else None
        return list(groups.values())

    def _asked(self, group: _Group, store: Store) -> set[str] | None:
        """Give the ready samples that a group should have; None for all of them."""
        settings = group.settings
        if settings is not None and group.top == self.output_dir:  # all parts are here
            settings = msgspec.structs.replace(settings, part=None)
        asked = wanted(store, settings, group.top) if settings else None
        return None if asked is None else asked.keys() & self._ready

    def _left_of(self, group: _Group, asked: set[str] | None) -> int:
        """Count the ready samples that a group should have and has not."""
        if asked is None:
            return len(self._ready) - group.ready
        return len(asked.difference(*(packed_ids(one.folder) for one in group.packings)))

    def _excluded(self, group: _Group) -> str:
        """Say how many ready samples a group does not have, because they are not asked for."""
        out = len(self._ready) - group.ready
        are = "is" if out == 1 else "are"
        return f", except {out:,} that {are} left out" if out else ""

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
        kind = consistency.other_kind(listed, self._recipe, self._entries)
        return kind and f"arrays made with other settings ({kind})"

    def _read(self, folder: Location, ready: Set[str]) -> _Packing:
        found = _Packing(folder, [])
        try:
            found.unfinished = manifest.load_unfinished(folder)
            listed = manifest.load_manifest(folder)
            if listed is not None:
                found.runs = listed.runs
                found.other = self._other(listed)
                packed = []
                for shard in listed.shards:
                    check()
                    ids = index.load(folder, shard.path).head.ids
                    packed.append(Packed(shard, ids))
                    found.samples += len(ids)
                    found.ready += sum(image_id in ready for image_id in ids)
                    self._left.difference_update(() if found.other else ids)
                if not found.other:
                    packed = of_jsonl(self._jsonl, packed, listed.runs)
                    compared = self._compare(folder, packed, listed.runs[-1].settings)
                    found.outdated = compared.outdated
                    found.moved = sum(why == SPLIT for why in compared.moved.values())
        except ShardwrightError:  # verify reports it
            found.damaged = True
        return found


def _folders(output_dir: Location) -> list[Location]:
    """Find the shard folders, finished or not."""
    return [*([output_dir] if is_packed(output_dir) else []), *packed_below(output_dir)]
