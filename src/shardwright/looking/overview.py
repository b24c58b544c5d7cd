"""What a source holds as a whole: counts, histograms, and what needs attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardwright.comparing.copies import Copies, image_vector
from shardwright.comparing.similar import DEFAULT, Similar
from shardwright.looking.sources import Source
from shardwright.looking.table import Table
from shardwright.progress import quantity
from shardwright.reporting.rows import READY
from shardwright.store import facts
from shardwright.store.facts import (
    CROPPED,
    ENLARGED,
    IDENTICAL,
    LOST,
    NEAR_DUPLICATE,
    TOKENS,
    Attention,
)

_BINS = 20
_TITLES = {
    "width": "Width (pixels)",
    "height": "Height (pixels)",
    "sample_bytes": "Bytes of the sample",
    "image_bytes": "Bytes of the image file",
    ENLARGED: "Enlarged (times)",
    CROPPED: "Cropped (share of the picture)",
    "nearest_similarity": "Similarity to the nearest sample",
}


def title(column: str) -> str:
    """Write the name of a column for people."""
    if column.startswith(LOST):
        return f"Tokens cut off, {column.removeprefix(LOST)}"
    if column.startswith(TOKENS):
        return f"Tokens, {column.removeprefix(TOKENS)}"
    return _TITLES.get(column, column)


def describe(source: Source) -> dict[str, Any]:
    """Give what the overview shows; what needs the pictures or the vectors comes later."""
    table, recipe = source.table, source.recipe
    vectors, usual = source.vector, image_vector(recipe)
    return {
        "path": source.name,
        "kind": source.kind,
        "samples": len(table.ready),
        "bytes": sum(bucket.bytes for bucket in source.buckets),
        "about": source.bytes_estimated,
        "shards": sum(b.shards or 0 for b in source.buckets) if source.kind == "shards" else None,
        "parts": list(table.parts.counts()),
        "buckets": [
            {
                "bucket": each.bucket,
                "part": each.part,
                "samples": each.samples,
                "bytes": each.bytes,
                "shards": each.shards,
            }
            for each in source.buckets
        ],
        "not_ready": [
            {"reason": reason, "count": count} for reason, count in not_ready(table).items()
        ],
        "histograms": list(histograms(table)),
        "components": [
            {
                "name": component.name,
                "suffix": component.suffix,
                "dtype": component.dtype_text,
                "shape": component.shape_text,
                "source": component.source,
                "model": source.settings.get(component.name, {}).get("model"),
                "settings": source.settings.get(component.name, {}),
            }
            for component in recipe.components
        ],
        "recipe": {
            "fit": recipe.fit,
            "buckets": [str(bucket) for bucket in recipe.buckets],
            **{name: limit for name, limit in vars(recipe.selection).items() if limit is not None},
        },
        "columns": [{"name": name, "title": title(name)} for name in table.columns],
        "flags": list(table.flags),
        "latents": [c.name for c in recipe.components if c.map is not None],
        "vectors": vectors.name if vectors else None,
        "component": vectors.name if vectors and vectors != usual else None,  # as a flag named it
    }


def not_ready(table: Table) -> dict[str, int]:
    """Count what is missing or has failed, by reason."""
    return {name: count for name, count in table.states.counts().items() if name != READY}


def attention_of(source: Source) -> Iterator[Attention]:
    """List what needs attention, as far as the table shows it."""
    table = source.table
    yield from (Attention(note, 0) for note in source.notes)
    yield from facts.not_ready(not_ready(table))
    for component in source.recipe.captions:
        known = table.numbers.get(LOST + component.name, np.full(len(table), np.nan))
        if count := int(np.isnan(known[table.ready]).sum()):
            samples = quantity(count, "samples")
            yield Attention(f"not known whether {component.name} cut off captions: {samples}", 0)
    for name, column in table.numbers.items():
        if name.startswith(LOST):
            yield from facts.truncated(name.removeprefix(LOST), int((column > 0).sum()))
    for flag in (ENLARGED, CROPPED):
        if flag in table.flags:
            count = int(table.flags[flag].sum())
            yield from facts.much(flag, count, float(np.nanmax(table.numbers[flag])))
    if IDENTICAL in table.flags:
        count = int(table.flags[IDENTICAL].sum())
        yield Attention(f"{count:,} samples are identical files", count, IDENTICAL)
    yield from in_parts(source, None)


def in_parts(source: Source, found: Similar | None) -> Iterator[Attention]:
    """List copies in several parts: those that ``found`` has, or else identical files."""
    table = source.table
    across = Copies(table.hashes, found).across(table.parts.codes.astype(np.int64), DEFAULT)
    pairs = [pair for pair in across if (pair.similarity is None) == (found is None)]
    if pairs:
        (one, other, _), *_ = pairs
        places = (f"{table.ids[n]} in {table.parts[n]}" for n in (one, other))
        of = "identical files" if found is None else "near-duplicates"
        verb = "is" if len(pairs) == 1 else "are"
        groups = f"{quantity(len(pairs), 'groups')} of {of}"
        text = f"{groups} {verb} in several parts, for example {' and '.join(places)}"
        yield Attention(text, len(pairs), IDENTICAL if found is None else NEAR_DUPLICATE)


def histograms(table: Table) -> Iterator[dict[str, Any]]:
    """Count samples by how much was enlarged, cropped and cut off."""
    for name in (ENLARGED, CROPPED, *(n for n in table.columns if n.startswith(TOKENS))):
        if name in table.numbers:
            yield histogram(name, table)


def histogram(name: str, table: Table) -> dict[str, Any]:
    """Count samples by one of their numbers."""
    column = table.numbers[name]
    known = column[np.isfinite(column)]
    least, most = float(known.min()), float(known.max())
    bins = _BINS
    if name.startswith(TOKENS):  # whole numbers: as many in each bin
        width = max(1, -(-int(most - least + 1) // _BINS))
        bins = -(-int(most - least + 1) // width)
        most = least + bins * width
    elif least == most:
        bins, most = 1, least + 1
    counts, edges = np.histogram(known, bins, (least, most))
    found = zip(edges.tolist(), edges[1:].tolist(), counts.tolist(), strict=False)
    return {
        "column": name,
        "title": title(name),
        "bins": [[round(low, 4), round(high, 4), count] for low, high, count in found],
        "unknown": int(len(column) - len(known)),
    }
