"""Packing against GNU tar, the plain script, webdataset's ShardWriter, and a bare copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Command, Contestant, Question, drop_caches
from benchmarks.stores import real_store, remove

PEERS = Path(__file__).parent / "peers"


def questions(folder: Path, quick: bool) -> Iterator[Question]:
    """Ask at several sizes, warm, and at the largest also cold and with one worker."""
    sizes = (300,) if quick else (300, 1000, 3000)
    for samples in sizes:
        yield _question(f"pack {samples:,} samples, warm", folder, samples, 2, cold=False)
    if not quick:
        yield _question(f"pack {samples:,} samples, warm, 1 worker", folder, samples, 1, cold=False)
        if drop_caches():
            yield _question(f"pack {samples:,} samples, cold", folder, samples, 2, cold=True)


def _question(name: str, folder: Path, samples: int, workers: int, cold: bool) -> Question:
    store, out = real_store(folder, samples), folder / "out"
    clear = partial(remove, out)

    def before() -> None:
        clear()
        if cold:
            drop_caches()
        else:
            os.system(f"cat {store}/*/* > /dev/null")

    def peer(script: str, *more: str) -> Command:
        return [PYTHON, PEERS / script, store, out, *more]

    count = str(workers)
    ours: Command = [
        *SHARDWRIGHT,
        "pack",
        "--derived-dir",
        store,
        "--output-dir",
        out,
        "--workers",
        count,
    ]
    return Question(
        name,
        [
            Contestant(OURS, ours),
            Contestant("GNU tar", ["sh", "-c", f"mkdir {out}; tar -cf {out}/all.tar {store}"]),
            Contestant(
                "GNU tar, then sync",
                ["sh", "-c", f"mkdir {out}; tar -cf {out}/all.tar {store}; sync {out}/all.tar"],
            ),
            Contestant("plain tarfile script", peer("plain_pack.py")),
            Contestant("webdataset ShardWriter", peer("shardwriter.py")),
            Contestant("limit: bare copy", peer("bare_copy.py", count)),
            Contestant("limit: bare copy, synced", peer("bare_copy.py", count, "--sync")),
            Contestant("ours, no fsync", peer("bare_pack.py", count)),
            Contestant(
                "ours, no fsync, no checksums", peer("bare_pack.py", count, "--no-checksums")
            ),
        ],
        samples,
        "samples",
        before,
    )
