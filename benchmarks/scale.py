"""``python -m benchmarks.scale``: the tables of SCALE.md, from measured constants and formulas.

Nothing is measured here. What was measured elsewhere stands below with how; what nobody can measure
without the cluster is an assumption, and is named so. A run is simulated task by task.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil

from shardwright.building.samples import member_bytes
from shardwright.deriving.images import Size
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import tar
from shardwright.storage.remote import PART

IMAGES, GPUS = 100_000_000, 64

Rows = list[tuple[str, ...]]

# Assumptions.
RATES = (5, 10, 20)  # images that a GPU encodes in a second
IMAGE_BYTES = 300_000  # of a picture
TAR_IMAGES = 10_000  # in a tar of inputs
TIER_1, TIER_2 = 0.005 / 1000, 0.0004 / 1000  # dollars: PUT, POST and LIST; GET and HEAD
DEATHS = 24  # hours that a worker works until it dies
RESTART = 120  # seconds until another has loaded its models
SPREAD = 0.1  # by which the time of a task differs, up or down
DRIVER_MEMORY, TRAINER_MEMORY = 64e9, 16e9  # bytes that may be used

# Documented by S3.
MOST_GETS, MOST_PUTS = 5_500, 3_500  # in a second, at one prefix
MOST_PARTS = 10_000  # of an upload

# Measured on two cores, with Python 3.11; rows with captions of 150 characters.
ROW_BYTES = 520  # of a line of the plan
ROW_SECONDS = 7.8e-6  # to read a line, choose, split, shuffle and cut: ten million rows
ROW_MEMORY = 86  # bytes of the driver at the peak of that
WRITE_SECONDS = 31e-6  # to take a row from a worker, and write its line
LISTED_MEMORY = 475  # bytes of the driver for an image object that was listed
CAPTION_MEMORY = 685  # and for a row of --captions
KNOWN_MEMORY = 330  # and for a sample that is there, with --append
TASK_SECONDS = 0.040  # to read 1,000 lines at random places, of a file that is not in memory
COMMIT_MEMORY = 3_530  # bytes of the driver for a finished shard
ENTRY_BYTES = 311  # of a shard in the manifest
SAMPLE_MEMORY = 88  # bytes of a process that has opened a set, for a sample

# Requests, counted at a server: for a shard beside its parts, and for all of a set.
SHARD_PUTS = 5  # begin and complete; its index, its records, its commit
SHARD_GETS = 4  # the note which run is the driver; each file after it is published
PAGE = 1000  # objects in a LIST, or a DELETE
READ_AHEAD = 1 << 23  # bytes of a range when a file is read from its begin to its end
VERIFY_GETS = 6  # of a shard beside its ranges
APPEND_GETS = 2  # of a shard that is there: its index, its records


@dataclass(frozen=True)
class Shards:
    """Shards of one size."""

    samples: int  # in a shard

    @property
    def count(self) -> int:
        """Count the shards."""
        return ceil(IMAGES / self.samples)

    @property
    def bytes(self) -> int:
        """Count the bytes of one."""
        return self.samples * sample_bytes()

    @property
    def parts(self) -> int:
        """Count the parts that one is sent in."""
        return ceil(self.bytes / PART)

    @property
    def puts(self) -> int:
        """Count the requests that write one."""
        return self.parts + SHARD_PUTS

    @property
    def objects(self) -> int:
        """Count the objects of all, with their commits."""
        return 4 * self.count


def sample_bytes() -> int:
    """Count the bytes of a sample of one megapixel in a tar."""
    members = [400]  # the JSON, about
    for component in SPECIFICATION.components:
        members += member_bytes(component, Size(1024, 1024))
    return sum(map(tar.member_bytes, members))


@dataclass(frozen=True)
class Requests:
    """What is asked of the store."""

    what: str
    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0

    @property
    def dollars(self) -> float:
        """Give their price."""
        return (self.puts + self.lists) * TIER_1 + self.gets * TIER_2


def requests(shards: Shards) -> Iterator[Requests]:
    """Count the requests of each step, in the order of the steps."""
    count, pages = shards.count, ceil(shards.objects / PAGE)
    tars = ceil(IMAGES / TAR_IMAGES)
    ranges = ceil(TAR_IMAGES * IMAGE_BYTES / READ_AHEAD)
    yield Requests("plan: images in tars", 0, tars * ranges, ceil(tars / PAGE))
    yield Requests("plan: image objects", 0, IMAGES, IMAGES // PAGE)
    yield Requests("plan: image and text objects", 0, 2 * IMAGES, 2 * IMAGES // PAGE)
    yield Requests("store the plan", ceil(IMAGES * ROW_BYTES / PART) + 3)
    yield Requests("build: read each image", 0, IMAGES)
    yield Requests("build: write", count * shards.puts, count * SHARD_GETS)
    commits = ceil(count / PAGE)
    yield Requests("build: compare, remove commits", 1, 1, pages + commits, commits)
    plan = ceil(IMAGES * ROW_BYTES / READ_AHEAD)
    yield Requests("run it again when half is done", 0, count + plan, pages + commits)
    yield Requests("before --append: read what is there", 0, APPEND_GETS * count)
    reads = ceil(shards.bytes / READ_AHEAD) + VERIFY_GETS
    yield Requests("verify", 0, count * reads, 2 * pages)
    yield Requests(f"open on {GPUS} processes", 0, GPUS * count)
    yield Requests("an epoch of shuffled batches", 0, IMAGES)
    yield Requests("an epoch, shard after shard", 0, count)


@dataclass(frozen=True)
class Run:
    """What a simulated run takes."""

    hours: float
    idle: float  # the share of the time of all workers in which there is no task left
    repeated: float  # the share that was lost to deaths
    driver: float  # the share of the driver's time that reading tasks takes


def simulate(shards: Shards, rate: float, workers: int) -> Run:
    """Let workers draw tasks from one driver, until all are done; some die on the way.

    A worker draws its next task while it works, so the driver holds nobody up unless it is busy.
    """
    draw = random.Random(0).random
    free = [(0.0, number) for number in range(workers)]  # when each worker ends
    heapify(free)
    read = TASK_SECONDS * shards.samples / 1000
    driver = lost = 0.0
    for _ in range(shards.count):
        now, worker = free[0]
        driver = max(driver, now - shards.samples / rate) + read
        seconds = shards.samples / rate * (1 + SPREAD * (2 * draw() - 1))
        if draw() < seconds / 3600 / DEATHS:  # somewhere in it; then it is done again
            waste = draw() * seconds + RESTART
            seconds += waste
            lost += waste
        heapreplace(free, (max(now, driver) + seconds, worker))
    end = max(free)[0]
    idle = sum(end - at for at, _ in free) / (end * workers)
    return Run(end / 3600, idle, lost / (end * workers), shards.count * read / end)


def sizes_table() -> list[str]:
    """Lay out what is made, by the size of a shard."""
    rows: Rows = [
        ("samples in a shard", "shards", "a shard", "parts", "objects", "manifest", "commits")
    ]
    for samples in (250, 1000, 4000):
        shards = Shards(samples)
        rows.append(
            (
                f"{samples:,}",
                f"{shards.count:,}",
                f"{shards.bytes / 1e6:,.0f} MB",
                f"{shards.parts}",
                f"{shards.objects:,}",
                f"{shards.count * ENTRY_BYTES / 1e6:.0f} MB",
                f"{shards.count * COMMIT_MEMORY / 1e6:,.0f} MB",
            )
        )
    return _table(rows)


def planning_table() -> list[str]:
    """Lay out what planning takes, by the number of images."""
    rows: Rows = [
        ("images", "plan", "write it", "read it", "driver: plan", "image objects", "--captions")
    ]
    for images in (1_000_000, 10_000_000, IMAGES):
        memory = (ROW_MEMORY, LISTED_MEMORY, CAPTION_MEMORY)
        rows.append(
            (
                f"{images:,}",
                f"{images * ROW_BYTES / 1e9:.1f} GB",
                f"{images * WRITE_SECONDS / 60:,.1f} min",
                f"{images * ROW_SECONDS / 60:,.1f} min",
                *(f"{images * each / 1e9:.1f} GB" for each in memory),
            )
        )
    return _table(rows)


def requests_table() -> list[str]:
    """Lay out the requests of all steps."""
    rows: Rows = [
        ("shards of 1,000 samples", "PUT, POST", "GET, HEAD", "LIST", "DELETE", "dollars")
    ]
    for each in requests(Shards(1000)):
        counts = (each.puts, each.gets, each.lists, each.deletes)
        rows.append((each.what, *(f"{n:,}" if n else "" for n in counts), f"{each.dollars:,.2f}"))
    return _table(rows)


def run_table() -> list[str]:
    """Lay out simulated runs: all speeds and sizes, then more GPUs."""
    head = "GPUs|images/s each|samples|hours|idle at the end|repeated|driver reads"
    rows: Rows = [(*head.split("|"), "PUT/s", "GET/s", "read", "written")]
    cases = [(GPUS, rate, samples) for rate in RATES for samples in (250, 1000, 4000)]
    for workers, rate, samples in [*cases, (8 * GPUS, 20, 1000), (64 * GPUS, 20, 1000)]:
        shards = Shards(samples)
        run = simulate(shards, rate, workers)
        seconds = 3600 * run.hours
        rows.append(
            (
                f"{workers:,}",
                f"{rate}",
                f"{samples:,}",
                f"{run.hours:.1f}",
                f"{run.idle:.2%}",
                f"{run.repeated:.2%}",
                f"{run.driver:.1%}",
                f"{shards.count * shards.puts / seconds:,.0f}",
                f"{(IMAGES + shards.count * SHARD_GETS) / seconds:,.0f}",
                f"{IMAGES * IMAGE_BYTES / seconds / 1e6:,.0f} MB/s",
                f"{shards.count * shards.bytes / seconds / 1e6:,.0f} MB/s",
            )
        )
    return _table(rows)


def limits_table() -> list[str]:
    """Lay out what breaks, and when."""
    task, rate = 1000 / TASK_SECONDS, RATES[-1]
    puts = Shards(1000).puts / 1000
    images = {
        "driver of 64 GB: image objects and --captions": LISTED_MEMORY + CAPTION_MEMORY,
        "driver of 64 GB: image objects": LISTED_MEMORY,
        "driver of 64 GB: as many in shards, --append": KNOWN_MEMORY,
        "driver of 64 GB: images in tars": 0,
    }
    rows: Rows = [("what", "limit", "reached at")]
    for what, memory in images.items():
        each = memory + ROW_MEMORY + COMMIT_MEMORY / 1000
        rows.append((what, f"{each:,.0f} bytes an image", _millions(DRIVER_MEMORY / each)))
    upload = _millions(MOST_PARTS * PART / ROW_BYTES)
    opened, catalog = _millions(TRAINER_MEMORY / SAMPLE_MEMORY), f"{SAMPLE_MEMORY} bytes a sample"
    rows += [
        ("a process that trains, of 16 GB", catalog, opened),
        ("the plan as one upload", f"{MOST_PARTS:,} parts of 16 MiB", upload),
        ("reading images at one prefix", f"{MOST_GETS:,} GET/s", f"{MOST_GETS // rate:,} GPUs"),
        ("the driver's tasks", f"{task:,.0f} images/s", f"{task / rate:,.0f} GPUs"),
        (
            "writing shards at one prefix",
            f"{MOST_PUTS:,} PUT/s",
            f"{MOST_PUTS / puts / rate:,.0f} GPUs",
        ),
    ]
    return _table(rows)


def _millions(count: float) -> str:
    return f"{count / 1e6:,.0f} million images"


def _table(rows: Rows) -> list[str]:
    head, *others = rows
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *others]
    return [f"| {' | '.join(line)} |" for line in lines]


TABLES = (sizes_table, planning_table, requests_table, run_table, limits_table)

if __name__ == "__main__":
    print("\n\n".join("\n".join(table()) for table in TABLES))
