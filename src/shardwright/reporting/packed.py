"""Which samples of a store are packed already, and what to do with the others."""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import ShardwrightError
from shardwright.interrupts import check
from shardwright.layout import JSONL_NAME, STATE_FOLDER
from shardwright.progress import quantity
from shardwright.reporting import PackedStatus
from shardwright.shards.format import consistency, index, manifest
from shardwright.shards.format.manifest import Run, Unfinished
from shardwright.store import commands, provenance
from shardwright.store.folders import holds_shards
from shardwright.store.store import Store


@dataclass
class _Packing:
    """A shard folder, as its manifest and indexes describe it."""

    folder: Path
    runs: list[Run]
    unfinished: Unfinished | None = None
    samples: int = 0
    ready: int = 0  # of them, those whose id is ready in the store
    other: str = ""  # settings of the store that differ: it is another one, or was recomputed
    damaged: bool = False

    def holds_all_of(self, jsonl: str) -> bool:
        """Whether its runs packed all that was ready, and not only a chosen part."""
        return all(
            run.jsonl == jsonl and run.settings.limit is None and not run.settings.buckets
            for run in self.runs
        )


class Packings:
    """The shard folders in a folder and directly below it, compared with a store."""

    def __init__(self, output_dir: Path, ready: Set[str], store: Store) -> None:
        self.output_dir = output_dir
        self._entries, self._recipe = provenance.readable(store.folder), store.recipe
        self._count = len(ready)
        self._left = set(ready)  # ready samples that are in no folder
        self._packings = [self._read(folder, ready) for folder in _folders(output_dir)]

    def summary(self) -> dict[str, PackedStatus]:
        """Give what each folder holds."""
        return {
            str(one.folder): PackedStatus(
                one.samples, 0 if one.other else one.ready, one.unfinished is not None
            )
            for one in self._packings
        }

    def next(self, store: Store) -> tuple[str | None, str]:
        """Choose the next command if every record is ready, and give the reason."""
        for one in self._packings:
            where, note = str(one.folder), one.unfinished
            if one.damaged:
                return commands.command("verify", where), f"{where} is damaged"
            if note and note.store in (None, manifest.relative_name(store.folder, one.folder)):
                before = note.base.jsonls() if note.base else []
                other = ["--other-jsonl"] if before and note.jsonl not in (None, *before) else []
                packed_from = store if note.jsonl is None else store.of(note.jsonl)
                flags = ["--resume", *note.settings.flags(store.folder), *other]
                why = f"a run that packs into {where} was interrupted, or is still running"
                return commands.pack(packed_from, one.folder, *flags), why
        alike = [one for one in self._packings if one.ready]
        mine = [one for one in alike if not one.other]
        name = manifest.relative_name(store.jsonl, store.folder)
        for one in mine:
            if one.ready == self._count:
                where, own = str(one.folder), store.jsonl == store.folder / JSONL_NAME
                flags = ["--against", str(store.folder)] if own else ["--read-data"]
                why = f"every sample is packed in {where}"
                return commands.command("verify", where, *flags), why
        if alike and not mine:
            one, again = alike[0], "pack again with --overwrite"
            if one.holds_all_of(name):
                flags = ["--overwrite", *one.runs[-1].settings.flags(store.folder)]
                again = f"run {commands.pack(store, one.folder, *flags)}"
            why = f"{one.folder} holds arrays made with other settings ({one.other})"
            return None, f"{why}; to replace them, {again}"
        if not mine and not holds_shards(self.output_dir):
            return commands.pack(store, self.output_dir), "every record is ready"
        left = f"{quantity(len(self._left), 'ready samples')} not packed yet"
        if mine and len(self._packings) == 1 and mine[0].holds_all_of(name):
            flags = ["--append", *mine[0].runs[-1].settings.flags(store.folder)]
            return commands.pack(store, mine[0].folder, *flags), left
        if not self._left:
            return None, "every sample is packed, in several folders"
        if not mine:
            left = f"every record is ready, but {self.output_dir} holds other shards"
            return None, f"{left}; pack into another --output-dir"
        return None, f"{left}; whether to add to {mine[0].folder} is your decision"

    def _read(self, folder: Path, ready: Set[str]) -> _Packing:
        found = _Packing(folder, [])
        try:
            found.unfinished = manifest.load_unfinished(folder)
            listed = manifest.load_manifest(folder)
            if listed is not None:
                found.runs = listed.runs
                found.other = consistency.other_recipe(
                    listed, self._recipe
                ) or consistency.other_settings(listed, self._entries)
                for shard in listed.shards:
                    check()
                    ids = index.load(folder, shard.path).head.ids
                    found.samples += len(ids)
                    found.ready += sum(image_id in ready for image_id in ids)
                    self._left.difference_update(() if found.other else ids)
        except ShardwrightError:  # verify reports it
            found.damaged = True
        return found


def _folders(output_dir: Path) -> list[Path]:
    """Find the shard folders, finished or not."""
    names = sorted(os.listdir(output_dir)) if output_dir.is_dir() else []
    notes = (manifest.MANIFEST_NAME, manifest.UNFINISHED_NAME)
    return [
        folder
        for folder in (output_dir, *(output_dir / name for name in names))
        if any((folder / STATE_FOLDER / note).is_file() for note in notes)
    ]
