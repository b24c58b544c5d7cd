"""Packing against GNU tar, the plain script, webdataset's ShardWriter, and a bare copy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import (
    OURS,
    PEERS,
    PYTHON,
    SHARDWRIGHT,
    Case,
    Command,
    Contestant,
    Question,
)
from benchmarks.sizes import Sizes
from benchmarks.stores import cool, real_store, remove, warm

TAR, PLAIN, WRITER = "GNU tar", "plain script", "webdataset ShardWriter"
COPY, SYNCED = "bare copy", "bare copy, synced"
UNSYNCED, UNCHECKED = "shardwright without fsync", "shardwright without checksums"
ALL = (OURS, TAR, PLAIN, WRITER, COPY, SYNCED)


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at several sizes, warm; at one of them also the price of our care, one worker, and cold.

    Only ours and the copy can use several workers, so only they are asked again with one.
    """
    question = partial(_question, folder)
    for samples in sizes.pack[:-1]:
        yield question(samples, 2, "warm", (OURS, TAR, PLAIN))
    yield question(sizes.pack[-1], 2, "warm", ALL)
    *_, aside, _ = sizes.pack
    yield question(aside, 2, "warm", (OURS, UNSYNCED, UNCHECKED), asks="the price of care")
    if sizes.asides:
        yield question(aside, 1, "warm", (OURS, COPY, SYNCED))
        yield question(aside, 2, "cold", (OURS, TAR, PLAIN, SYNCED))


def _question(
    folder: Path, samples: int, workers: int, cache: str, names: tuple[str, ...], asks: str = ""
) -> Question:
    store, out = real_store(folder, samples), folder / "out"

    def before() -> None:
        remove(out)
        (warm if cache == "warm" else cool)(store)

    def peer(script: str, *more: str) -> Command:
        return [PYTHON, PEERS / script, store, out, *more]

    count = str(workers)
    pack: Command = ["pack", "--derived-dir", store, "--output-dir", out, "--workers", count]
    tar = f"mkdir {out} && tar -cf {out}/all.tar -C {store} ."
    contestants = [
        Contestant(OURS, [*SHARDWRIGHT, *pack], "ours"),
        Contestant(TAR, ["sh", "-c", tar]),
        Contestant(PLAIN, peer("plain_pack.py")),
        Contestant(WRITER, peer("shardwriter.py")),
        Contestant(COPY, peer("bare_copy.py", count), "limit"),
        Contestant(SYNCED, peer("bare_copy.py", count, "--sync"), "limit"),
        Contestant(UNSYNCED, peer("bare_pack.py", count, "--no-fsync"), "variant"),
        Contestant(UNCHECKED, peer("bare_pack.py", count, "--no-checksums"), "variant"),
    ]
    case: Case = {"samples": samples, "cache": cache, "workers": workers}
    return Question(
        "pack",
        case | ({"asks": asks} if asks else {}),
        [contestant for contestant in contestants if contestant.name in names],
        samples,
        "samples",
        before,
    )
