"""The dataset card for Hugging Face: two parts of ours, and the owner's text around them.

Each part is between two marks, the first with the checksum of the part. So a card can be updated
without touching the text around the parts, and is not if somebody edited the parts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

import msgspec
import xxhash

from shardwright.progress import quantity, size
from shardwright.shards.format.manifest import Manifest

_PART = re.compile(
    rb"^(?:#|<!--) shardwright ([0-9a-f]{16}): [^\n]*\n(.*?)^(?:#|<!--) shardwright ends[^\n]*\n",
    re.DOTALL | re.MULTILINE,
)
_AS_MADE = re.compile(rb"---\n\0tags:\n- webdataset\n- text-to-image\n---\n# [^\n]*\n\n\0")
_PARTS = 2


def make(name: str, packed: Manifest, members: tuple[str, ...]) -> bytes:
    """Write a card whose ``configs`` name the shards, all of them and by bucket."""
    shards = packed.shards
    buckets = {bucket: list(group) for bucket, group in groupby(shards, key=lambda e: e.bucket)}
    configs = ["configs:", _config("default", "bucket_*/*.tar")]
    configs += [_config(bucket, f"bucket_{bucket}/*.tar") for bucket in buckets]
    rows = [
        f"| {bucket} | {sum(e.samples for e in group):,} | {len(group):,} | "
        f"{size(sum(e.bytes for e in group))} |"
        for bucket, group in buckets.items()
    ]
    about = [
        f"{quantity(sum(entry.samples for entry in shards), 'samples')} of "
        f"{', '.join(f'`{member}`' for member in members)} in "
        f"{quantity(len(shards), 'WebDataset shards')} "
        f"({size(sum(entry.bytes for entry in shards))}), by aspect bucket.",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        f'load_dataset("PATH", "{shards[0].bucket}", split="train", streaming=True)  # one bucket',
        'load_dataset("PATH", split="train", streaming=True)  # all',
        "```",
        "",
        "| bucket | samples | shards | bytes |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        "## How it was made",
        "",
        *_provenance(packed),
    ]
    tags = ["tags:", "- webdataset", "- text-to-image"]
    lines = ["---", *_part("# {}", configs), *tags, "---", f"# {name}", ""]
    return "\n".join([*lines, *_part("<!-- {} -->", about), ""]).encode()


def is_ours(card: bytes) -> bool:
    """Whether a card has our parts, unedited."""
    parts = _PART.findall(card)
    intact = all(xxhash.xxh3_64_hexdigest(body) == checksum.decode() for checksum, body in parts)
    return len(parts) == _PARTS and intact


def is_edited(card: bytes) -> bool:
    """Whether somebody wrote around the parts of a card of ours."""
    return _AS_MADE.fullmatch(_PART.sub(b"\0", card)) is None


def renewed(card: bytes, new: bytes) -> bytes:
    """Replace the parts of a card of ours by those of a new one."""
    parts = _PART.finditer(new)
    return _PART.sub(lambda _: next(parts)[0], card)


def _part(comment: str, lines: list[str]) -> list[str]:
    body = "".join(f"{line}\n" for line in lines)
    checksum = xxhash.xxh3_64_hexdigest(body.encode())
    begins = f"shardwright {checksum}: index writes this part; write what you like outside it"
    return [comment.format(begins), *lines, comment.format("shardwright ends")]


def _config(name: str, pattern: str) -> str:
    return f'- config_name: "{name}"\n  data_files:\n  - split: train\n    path: "{pattern}"'


def _provenance(listed: Manifest) -> Iterator[str]:
    for number, run in enumerate(listed.runs):
        yield (
            f"- run {number} ({run.tool}{', appended' if run.append else ''}): "
            f"{quantity(run.samples, 'samples')} in {quantity(run.shards, 'shards')} from "
            f"{quantity(run.total_records, 'records')} ({run.skipped_incomplete:,} skipped)"
        )
        yield f"  - settings: `{msgspec.json.encode(run.settings).decode()}`"
        if run.provenance is not None:
            yield f"  - provenance: `{msgspec.json.encode(run.provenance).decode()}`"
