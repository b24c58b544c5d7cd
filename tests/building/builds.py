"""Building small shards in tests: every build must add up, whatever it is asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import BuildSummary, Progress
from shardwright.building.commits import Commit, Commits, There
from shardwright.building.plan import Shard
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Manifest
from shardwright.storage.place import Place
from tests.derive.pictures import gradient, save
from tests.tars import Members, ids, read_members, shards

RECIPE = """
extends = "prx"
[images]
buckets = ["64x64", "96x64", "64x96"]
[component.vae]
shape = [4, "height/8", "width/8"]
[component.t5]
tokens = 20
shape = ["tokens", 16]
"""
BUCKETS = ("64x64", "64x96", "96x64")


def write_recipe(folder: Path, text: str = RECIPE, name: str = "small.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def build(
    images: Path | str | Sequence[Path],
    output: Path,
    **options: Any,  # noqa: ANN401 - of build
) -> BuildSummary:
    """Build with sketch and a recipe of small buckets, and check that all counts add up.

    With a URL, the recipe must be given.
    """
    given = {"encoders": "sketch"} | options
    if not isinstance(images, str):
        first = images if isinstance(images, Path) else images[0]
        given = {"recipe": write_recipe(first.parent)} | given
    summary = shardwright.build(images, output_dir=output, **given)
    add_up(summary)
    return summary


def add_up(summary: BuildSummary) -> None:
    """Check each count of a summary against the others, the ledger, the manifests and the tars."""
    left, others = counted(summary.left_out), counted(summary.not_chosen)
    there = summary.written_samples + summary.already_there
    assert summary.inputs == there + sum(left.values()) + sum(others.values())
    assert summary.written_samples == sum(b.samples for b in summary.buckets.values())
    assert summary.written_shards == sum(b.shards for b in summary.buckets.values())
    if summary.parts:
        assert summary.written_samples == sum(p.samples for p in summary.parts.values())
    if summary.dry_run:
        assert summary.ledger is None
        return
    output = Path(summary.output_dir)
    reasons = Counter(line["reason"] for line in ledger(output))
    assert reasons == left
    assert (summary.ledger is not None) == bool(left)
    written = 0
    for folder in (output, *(output / part for part in summary.parts)):
        assert manifest.load_unfinished(folder) is None
        if (found := manifest.load_manifest(folder)) is None:
            assert not shards(folder)
            continue
        run = found.runs[-1]
        for number, each in enumerate(found.runs):
            made = [entry for entry in found.shards if entry.run == number]
            assert (len(made), sum(e.samples for e in made)) == (each.shards, each.samples)
        for entry in found.shards:
            assert len(ids(folder / entry.path)) == entry.samples
        assert sorted(folder / e.path for e in found.shards) == shards(folder)
        if summary.written_samples and run.is_build:
            assert run.total_records == summary.inputs
            assert run.skipped_incomplete == sum(left.values())
            assert run.ready_records == run.total_records - run.skipped_incomplete
            assert {n: c["count"] for n, c in run.skipped_by_reason.items()} == left
            written += run.samples
    assert written == summary.written_samples
    stage = sorted(path.name for path in (output / ".shardwright/build").rglob("*"))
    assert stage in ([], ["inputs.jsonl"], ["inputs.jsonl", "plan.json"])


def spoil(folder: Path, number: int, size: tuple[int, int] = (96, 64)) -> Path:
    """Put an image in place of one of ``make_images`` that looks good until it is decoded."""
    (folder / f"img{number:03}.png").unlink()
    path = folder / f"img{number:03}.jpg"
    save(path, gradient(*size, number))
    path.write_bytes(path.read_bytes()[:-200])
    return path


def counted(counts: dict[str, Any]) -> dict[str, int]:
    return {name: count.count for name, count in counts.items()}


def ledger(output: Path) -> list[dict[str, Any]]:
    path = output / ".shardwright/ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reasons(output: Path) -> dict[str, str]:
    """Give the reason of each input that is left out, by the name of its file."""
    return {Path(line["image_path"]).name: line["reason"] for line in ledger(output)}


def listed(output: Path) -> Manifest:
    found = manifest.load_manifest(output)
    assert found is not None
    return found


def members(output: Path) -> dict[str, Members]:
    return {str(path.relative_to(output)): read_members(path) for path in shards(output)}


def tars(output: Path) -> dict[str, bytes]:
    return {str(path.relative_to(output)): path.read_bytes() for path in shards(output)}


def records(output: Path) -> dict[str, dict[str, Any]]:
    """Read the JSON members of all shards, by id."""
    found = {}
    for each in members(output).values():
        for name, data in each:
            if name.endswith(".json"):
                record = json.loads(data)
                found[record["image_id"]] = record
    return found


def interrupt(
    images: Path | str | Sequence[Path],
    output: Path,
    shards: int = 2,
    **options: Any,  # noqa: ANN401 - of build
) -> list[str]:
    """Build until so many shards are finished; give the notes of the error."""
    settle = Commits.settle

    def settling(
        commits: Commits, shard: Shard, commit: Commit, storage: Place | None, there: There
    ) -> Commit:
        if commit.number >= shards:
            raise KeyboardInterrupt
        return settle(commits, shard, commit, storage, there)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Commits, "settle", settling)
        with pytest.raises(KeyboardInterrupt) as caught:
            build(images, output, **options)
    return getattr(caught.value, "__notes__", [])


class Interrupting(Progress):
    """Interrupts a build when so many images are done; remembers what it says."""

    def __init__(self, after: int | None = None, phase: str = "build") -> None:
        self.after, self.name = after, phase
        self.current, self.done = "", 0
        self.said: list[str] = []

    def phase(self, name: str, total: int, unit: str) -> None:
        self.current, self.done = name, 0

    def advance(self, count: int) -> None:
        self.done += count
        if self.after is not None and self.current == self.name and self.done >= self.after:
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        self.said.append(text)
