"""What becomes of a plan: what it will take, and what has been made; and the summary of it."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardwright.buckets import Bucket
from shardwright.building import ledger
from shardwright.building.commits import Commit
from shardwright.building.finish import RESTORE_FIX
from shardwright.building.ledger import LEDGER_NAME, Left
from shardwright.building.plan import Plan, PlanFile, Shard
from shardwright.building.shard import Builder
from shardwright.building.state import Destination
from shardwright.building.summary import BuildSummary
from shardwright.deriving.captions import CaptionRows
from shardwright.deriving.making import Maker, Report
from shardwright.deriving.prepare import Sample
from shardwright.errors import DamageError
from shardwright.layout import STATE_FOLDER
from shardwright.packing.summary import BucketSummary, PartSummary
from shardwright.progress import Progress, duration, quantity, size
from shardwright.shards.format import manifest, tar
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.loaders.indexes import read_record
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import commands
from shardwright.store.facts import Quality, Truncated
from shardwright.summary import Count, require_sum

_MEASURED = 256  # samples that the room of all is estimated from
_TRIED = 32  # samples that are made to predict the time


@dataclass
class Outcome:
    """What is known of a build, more with each step."""

    device: str
    plan: PlanFile
    settings: dict[str, dict[str, Any]]  # of each component
    inputs_folder: Path = Path()  # the local folder of inputs.jsonl
    places: Sequence[Destination] = ()
    layout: Plan = field(default_factory=Plan.empty)
    copied: list[str] = field(default_factory=list)  # components of --from that stay as they are
    source: str | None = None  # the shards of --from
    finished: bool = False  # whether all of it was done before
    changed: dict[str, dict[str, Count]] = field(default_factory=dict)
    unused_rows: dict[str, Count] = field(default_factory=dict)
    caption_rows: CaptionRows | None = None
    obstacle: str | None = None
    seconds_needed: float | None = None
    commits: dict[int, Commit] = field(default_factory=dict)
    entries: dict[str | None, list[ShardEntry]] = field(default_factory=dict)  # by part
    kept: int = 0  # shards of an interrupted run
    repeated: Count | None = None  # samples of images that were in the shards under other ids
    report: Report | None = None

    @property
    def left(self) -> list[Left]:
        """List the inputs that are left out: by the plan, and at work."""
        tasks = (commit.left for _, commit in sorted(self.commits.items()))
        return [*self.layout.left, *(left for each in tasks for left in each)]

    @property
    def inputs(self) -> int:
        """Count all inputs."""
        return self.layout.inputs + self.plan.known

    @property
    def already_there(self) -> int:
        """Count the inputs that are in the shards of earlier plans."""
        return self.layout.selected.packed_before + self.plan.known

    def bytes_of(self, shard: Shard) -> int:
        """Estimate the bytes of a shard, from some of its samples."""
        some = shard.samples[:: max(1, len(shard.samples) // 16)]
        total = self.layout.inputs_of(replace(shard, samples=some)).nbytes(self.settings)
        return total * len(shard.samples) // len(some) + len(tar.END)

    @property
    def bytes_needed(self) -> int:
        """Estimate the bytes of all shards, from some of them."""
        shards = self.layout.shards
        some = shards[:: max(1, len(shards) * 16 // _MEASURED)]
        samples = sum(len(shard.samples) for shard in some)
        return sum(map(self.bytes_of, some)) * self.layout.samples // max(1, samples)


def require_complete(outcome: Outcome) -> None:
    """Raise if a part is gone that a finished plan has made."""
    done = next(place for place in outcome.places if place.finished)
    last = manifest.load_manifest(done.folder)
    assert last is not None
    made = sum(samples for *_, samples, _ in _written(outcome))
    others = outcome.already_there + _total(outcome.layout.selected.left_out)
    missing = outcome.inputs - others - last.runs[-1].skipped_incomplete - made
    limit = outcome.plan.settings.limit
    if missing > 0 and (limit is None or made < limit):
        gone = next((p for p in outcome.places if not p.finished), done)
        raise DamageError("is missing or incomplete", path=gone.folder, fix=RESTORE_FIX)


def announce_plan(outcome: Outcome, progress: Progress) -> None:
    """Say what is about to be made."""
    layout = outcome.layout
    shards = f" into {quantity(len(layout.shards), 'shards')}" if layout.shards else ""
    counts = [
        f"{layout.samples:,} to build{shards}",
        f"{outcome.already_there:,} already there",
        f"{len(layout.left):,} left out",
    ]
    if rest := _total(layout.selected.left_out) + len(layout.reserves):
        counts.append(f"{rest:,} not chosen")
    progress.say(f"{quantity(outcome.inputs, 'images')}: {', '.join(counts)}")
    if layout.shards:
        progress.say(f"  on {outcome.device}; needs about {size(outcome.bytes_needed)}")


def predict(
    outcome: Outcome,
    builder: Builder,
    devices: Sequence[str],
    kept: Container[int],
    progress: Progress,
) -> None:
    """Make some samples and keep nothing, to say about how long all but the kept ones will take."""
    layout = outcome.layout
    shards = [shard for shard in layout.shards if shard.number not in kept]
    if not shards:
        return
    tried = list(_some(shards))
    count = sum(len(shard.samples) for shard in tried)
    progress.phase("try", count, "images")
    maker, sink = Maker(builder.making, devices[0], progress), _Nowhere(builder)
    samples = (sample for shard in tried for sample in layout.inputs_of(shard).samples())
    for _ in maker.run(samples, sink, count, count):
        pass
    report = maker.report()
    seconds = report.seconds / max(1, sink.made) / len(devices)
    seconds *= sum(len(shard.samples) for shard in shards)
    outcome.seconds_needed = round(seconds, 3)
    progress.say(f"tried {quantity(sink.made, 'images')}: about {duration(seconds)} for all")


def _some(shards: Sequence[Shard]) -> Iterator[Shard]:
    """Choose the first samples, and one of some of the other shards."""
    left, step = _TRIED, max(1, len(shards) // 4)
    for number, shard in enumerate(shards):
        count = min(left, len(shard.samples)) or int(number % step == 0)
        left = max(0, left - count)
        if count:
            yield replace(shard, samples=shard.samples[:count])


class _Nowhere:
    """Where samples end that are made only to see how long it takes."""

    def __init__(self, builder: Builder) -> None:
        self.check = builder.results.check
        self.made = 0

    def commit(self, samples: Sequence[Sample]) -> None:
        self.made += sum(sample.failure is None for sample in samples)


def summarize(outcome: Outcome, output: Location, dry_run: bool, started: float) -> BuildSummary:
    """Count what was made, and what was not."""
    report, left = outcome.report, outcome.left
    buckets, parts = dict[str, BucketSummary](), dict[str, PartSummary]()
    entries = list(_planned(outcome) if dry_run and not outcome.finished else _written(outcome))
    written, there, inputs = entries, outcome.already_there, outcome.inputs
    if outcome.finished:
        written, left = [], ledger.load(output)
        there += sum(samples for *_, samples, _ in entries)
    for part, bucket, path, samples, nbytes in written:
        groups = [(buckets, f"{part}/" if part else "")]
        if part:
            whole = parts.setdefault(part, PartSummary())
            whole.count(samples, nbytes)
            groups.append((whole.buckets, ""))
        for group, prefix in groups:
            entry = group.setdefault(bucket, BucketSummary())
            entry.count(samples, nbytes)
            entry.shard_bytes[prefix + path.rpartition("/")[2]] = nbytes
    samples = sum(entry.samples for entry in buckets.values())
    not_chosen = dict(outcome.layout.selected.left_out)
    over = inputs - samples - there - len(left) - _total(not_chosen)
    if not outcome.finished:  # else a user may have removed the ledger
        spare = over if 0 <= over <= len(outcome.layout.reserves) else 0
        require_sum("inputs", inputs, samples, there, len(left), _total(not_chosen), spare)
    if over > 0 and outcome.layout.reserves:
        not_chosen["--limit"] = Count(over, outcome.layout.scan.ids[outcome.layout.reserves[-1]])
    commits = outcome.commits.values()
    return BuildSummary(
        inputs=inputs,
        written_samples=samples,
        already_there=there,
        left_out=ledger.counts(left),
        not_chosen=not_chosen,
        failed=sum(not each.by_recipe for each in left),
        written_shards=len(written),
        written_bytes=sum(entry.bytes for entry in buckets.values()),
        kept_shards=outcome.kept,
        dry_run=dry_run,
        output_dir=str(output),
        ledger=str(output / STATE_FOLDER / LEDGER_NAME) if left and not dry_run else None,
        buckets=dict(sorted(buckets.items(), key=lambda item: Bucket.parse(item[0]))),
        parts=parts,
        components=outcome.settings,
        copied=outcome.copied,
        source=outcome.source,
        truncated=_truncated(outcome),
        quality=_quality([commit.quality for commit in commits]),
        unapplied_profiles=_joined(commit.profiles for commit in commits),
        unused_rows=outcome.unused_rows,
        caption_rows=outcome.caption_rows,
        changed_inputs=outcome.changed,
        under_other_ids=outcome.repeated,
        free_bytes=place_at(output).free_bytes(),
        obstacle=outcome.obstacle,
        seconds_needed=outcome.seconds_needed,
        device=outcome.device,
        seconds=round(time.monotonic() - started, 3),
        encoder_waited=round(report.waited / report.seconds, 4)
        if report and report.seconds
        else 0.0,
        index_commands=list(_index_commands(outcome)) if written and not dry_run else [],
    )


def _planned(outcome: Outcome) -> Iterator[tuple[str | None, str, str, int, int]]:
    for shard in outcome.layout.shards:
        nbytes = outcome.bytes_of(shard)
        yield shard.part, shard.bucket, shard.path, len(shard.samples), nbytes


def _written(outcome: Outcome) -> Iterator[tuple[str | None, str, str, int, int]]:
    for part, entries in outcome.entries.items():
        for entry in entries:
            yield part, entry.bucket, entry.path, entry.samples, entry.bytes


def _index_commands(outcome: Outcome) -> Iterator[str]:
    """Write a command for each place whose shards change under the files of other loaders."""
    for place in outcome.places:
        if loaders := read_record(place.folder):
            yield commands.index(place.folder, loaders)


def _total(counts: dict[str, Count]) -> int:
    return sum(count.count for count in counts.values())


def _truncated(outcome: Outcome) -> dict[str, Truncated]:
    found: dict[str, Truncated] = {}
    for _, commit in sorted(outcome.commits.items()):
        for name, each in commit.truncated.items():
            total = found.setdefault(name, Truncated())
            total.captions += each.captions
            total.tokens_lost += each.tokens_lost
            total.example = total.example or each.example
    return found


def _quality(found: Sequence[Quality]) -> Quality:
    total = Quality()
    for each in found:
        total.join(each)
    return total


def _joined(found: Iterator[dict[str, Count]]) -> dict[str, Count]:
    total: dict[str, Count] = {}
    for each in found:
        for reason, count in each.items():
            total.setdefault(reason, Count(0, count.example)).count += count.count
    return total
