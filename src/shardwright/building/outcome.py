"""What becomes of a plan: what it will take, what has been made, and what is left out."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import msgspec

from shardwright.buckets import Bucket
from shardwright.building.commits import Commit
from shardwright.building.inputs import Left
from shardwright.building.plan import Plan, PlanFile, Shard
from shardwright.building.request import Request
from shardwright.building.summary import BuildSummary
from shardwright.building.work import Builder
from shardwright.deriving.encoding import DeviceEncoder
from shardwright.deriving.pipeline import Report
from shardwright.deriving.prepare import Sample
from shardwright.errors import DamageError
from shardwright.layout import STATE_FOLDER
from shardwright.packing.start import Start
from shardwright.packing.summary import BucketSummary, PartSummary
from shardwright.progress import Progress, duration, quantity, size
from shardwright.shards.format import tar
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.loaders.indexes import read_record
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import commands
from shardwright.store.facts import Truncated
from shardwright.store.records import NOT_JSON
from shardwright.summary import Count, require_sum

LEDGER_NAME = "ledger.jsonl"  # every input that is in no shard, beside the manifest
_MEASURED = 256  # samples that the room of all is estimated from
_TRIED, _TRIED_SHARDS = 32, 8  # samples that are made to predict the time, and of how many


@dataclass
class Outcome:
    """What is known of a build, more with each step."""

    request: Request
    plan: PlanFile
    summary: BuildSummary  # as far as it is known
    inputs_folder: Path  # the local folder of inputs.jsonl
    places: Sequence[Start]
    layout: Plan
    finished: bool  # whether all of it was done before
    commits: dict[int, Commit] = field(default_factory=dict)
    entries: dict[str | None, list[ShardEntry]] = field(default_factory=dict)  # by part
    report: Report | None = None

    @property
    def left(self) -> list[Left]:
        """List the inputs that are left out: by the plan, and at work."""
        tasks = (commit.left for _, commit in sorted(self.commits.items()))
        return [*self.layout.left, *chain.from_iterable(tasks)]

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
        total = self.layout.inputs_of(replace(shard, samples=some)).nbytes(self.plan.used)
        return total * len(shard.samples) // len(some) + len(tar.END)

    @property
    def bytes_needed(self) -> int:
        """Estimate the bytes of all shards, from some of them."""
        shards = self.layout.shards
        some = shards[:: max(1, len(shards) * 16 // _MEASURED)]
        samples = sum(len(shard.samples) for shard in some)
        return sum(map(self.bytes_of, some)) * self.layout.samples // max(1, samples)


def counts(left: Iterable[Left]) -> dict[str, Count]:
    """Count what is left out by reason."""
    found: dict[str, Count] = {}
    for each in left:
        found.setdefault(each.reason, Count(0, each.path)).count += 1
    return found


def save_ledger(outcome: Outcome) -> None:
    """Write down what is left out, or remove the file if there is nothing to say."""
    data = b"".join(msgspec.json.encode(each) + b"\n" for each in outcome.left)
    path = outcome.request.output / STATE_FOLDER / LEDGER_NAME
    if data:
        files.write(path, data)
    else:
        files.withdraw(path)


def load_ledger(output: Location) -> list[Left]:
    """Read what the last build left out; nothing if the file is gone."""
    path = output / STATE_FOLDER / LEDGER_NAME
    lines = files.read(path).splitlines() if path.is_file() else []
    try:
        return [msgspec.json.decode(line, type=Left) for line in lines]
    except NOT_JSON:
        fix = "delete it, or build again with --overwrite"
        raise DamageError("is damaged", path=path, fix=fix) from None


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
        progress.say(f"  on {outcome.summary.device}; needs about {size(outcome.bytes_needed)}")


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
    some = shards[:: -(-len(shards) // _TRIED_SHARDS)]
    each = -(-_TRIED // len(some))
    tried = [replace(shard, samples=shard.samples[:each]) for shard in some]
    count = sum(len(shard.samples) for shard in tried)
    progress.phase("try", count, "images")
    maker, sink = DeviceEncoder(builder.making, devices[0], progress), _Nowhere(builder)
    samples = (sample for shard in tried for sample in layout.inputs_of(shard).samples())
    for _ in maker.run(samples, sink, count, count):
        pass
    report = maker.report()
    seconds = report.seconds / max(1, sink.made) / len(devices)
    seconds *= sum(len(shard.samples) for shard in shards)
    outcome.summary.seconds_needed = round(seconds, 3)
    progress.say(f"tried {quantity(sink.made, 'images')}: about {duration(seconds)} for all")


class _Nowhere:
    """Where samples end that are made only to see how long it takes."""

    def __init__(self, builder: Builder) -> None:
        self.check = builder.results.check
        self.made = 0

    def commit(self, samples: Sequence[Sample]) -> None:
        self.made += sum(sample.failure is None for sample in samples)


def summarize(outcome: Outcome, started: float) -> BuildSummary:
    """Count what was made, and what was not."""
    request, report, layout, left = outcome.request, outcome.report, outcome.layout, outcome.left
    buckets, parts = dict[str, BucketSummary](), dict[str, PartSummary]()
    entries = list(_entries(outcome))
    written, there, inputs = entries, outcome.already_there, outcome.inputs
    if outcome.finished:
        written, left = [], load_ledger(request.output)
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
    not_chosen = dict(layout.selected.left_out)
    over = inputs - samples - there - len(left) - _total(not_chosen)
    if not outcome.finished:  # else a user may have removed the ledger
        spare = over if 0 <= over <= len(layout.reserves) else 0
        require_sum("inputs", inputs, samples, there, len(left), _total(not_chosen), spare)
    if over > 0 and layout.reserves:
        not_chosen["--limit"] = Count(over, layout.scan.ids[layout.reserves[-1]])
    made = _joined(outcome)
    return replace(
        outcome.summary,
        inputs=inputs,
        written_samples=samples,
        already_there=there,
        left_out=counts(left),
        not_chosen=not_chosen,
        failed=sum(not each.by_recipe for each in left),
        written_shards=len(written),
        written_bytes=sum(entry.bytes for entry in buckets.values()),
        ledger=str(request.output / STATE_FOLDER / LEDGER_NAME)
        if left and not request.dry_run
        else None,
        buckets=dict(sorted(buckets.items(), key=lambda item: Bucket.parse(item[0]))),
        parts=parts,
        components=outcome.plan.used,
        truncated=made.truncated,
        quality=made.quality,
        unapplied_profiles=made.profiles,
        free_bytes=place_at(request.output).free_bytes(),
        seconds=round(time.monotonic() - started, 3),
        encoder_waited=round(report.waited / report.seconds, 4)
        if report and report.seconds
        else 0.0,
        index_commands=list(_index_commands(outcome)) if written and not request.dry_run else [],
    )


def _entries(outcome: Outcome) -> Iterator[tuple[str | None, str, str, int, int]]:
    """Give the part, bucket, path, samples and bytes of each shard, made or planned."""
    if outcome.request.dry_run and not outcome.finished:
        for shard in outcome.layout.shards:
            nbytes = outcome.bytes_of(shard)
            yield shard.part, shard.bucket, shard.path, len(shard.samples), nbytes
    for part, entries in outcome.entries.items():
        for entry in entries:
            yield part, entry.bucket, entry.path, entry.samples, entry.bytes


def _index_commands(outcome: Outcome) -> Iterator[str]:
    """Write a command for each place whose shards change under the files of other loaders."""
    for place in outcome.places:
        if loaders := read_record(place.folder):
            yield commands.index(place.folder, loaders)


def _total(found: dict[str, Count]) -> int:
    return sum(count.count for count in found.values())


def _joined(outcome: Outcome) -> Commit:
    """Add up what all tasks have found."""
    total = Commit(plan="", number=0)
    for _, commit in sorted(outcome.commits.items()):
        total.quality.join(commit.quality)
        for name, each in commit.truncated.items():
            whole = total.truncated.setdefault(name, Truncated())
            whole.captions += each.captions
            whole.tokens_lost += each.tokens_lost
            whole.example = whole.example or each.example
        for reason, count in commit.profiles.items():
            total.profiles.setdefault(reason, Count(0, count.example)).count += count.count
    return total
