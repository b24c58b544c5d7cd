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
from shardwright.recipes.compare import dtype_text, shape_text
from shardwright.reporting.rows import READY
from shardwright.store import attention
from shardwright.store.facts import LOST, TOKENS

_BINS = 20
_TITLES = {
    "width": "Width (pixels)",
    "height": "Height (pixels)",
    "sample_bytes": "Bytes of the sample",
    "image_bytes": "Bytes of the image file",
    attention.ENLARGED: "Enlarged (times)",
    attention.CROPPED: "Cropped (share of the picture)",
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
    charted = (
        attention.ENLARGED,
        attention.CROPPED,
        *(name for name in table.columns if name.startswith(TOKENS)),
    )
    return {
        "path": source.name,
        "kind": source.kind,
        "samples": len(table.ready),
        "bytes": sum(bucket.bytes for bucket in source.buckets),
        "about": source.bytes_estimated,
        "shards": sum(b.shards or 0 for b in source.buckets) if source.kind == "shards" else None,
        "parts": list(table.parts.counts()),
        "buckets": [vars(each) for each in source.buckets],
        "not_ready": [
            {"reason": reason, "count": count} for reason, count in not_ready(table).items()
        ],
        "histograms": [histogram(name, table) for name in charted if name in table.numbers],
        "components": [
            {
                "name": component.name,
                "suffix": component.suffix,
                "dtype": dtype_text(component),
                "shape": shape_text(component),
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


def attention_of(source: Source, found: Similar | None) -> Iterator[attention.Attention]:
    """List what needs attention, as far as the table shows it, and what was ``found``."""
    table = source.table
    yield from (attention.Attention(note, 0) for note in source.notes)
    yield from attention.not_ready(not_ready(table))
    for component in source.recipe.captions:
        known = table.numbers.get(LOST + component.name, np.full(len(table), np.nan))
        if count := int(np.isnan(known[table.ready]).sum()):
            samples = quantity(count, "samples")
            yield attention.Attention(
                f"not known whether {component.name} cut off captions: {samples}", 0
            )
    for name, column in table.numbers.items():
        if name.startswith(LOST):
            yield from attention.truncated(name.removeprefix(LOST), int((column > 0).sum()))
    for flag in (attention.ENLARGED, attention.CROPPED):
        if flag in table.flags:
            count = int(table.flags[flag].sum())
            yield from attention.much(flag, count, float(np.nanmax(table.numbers[flag])))
    if attention.IDENTICAL in table.flags:
        count = int(table.flags[attention.IDENTICAL].sum())
        yield attention.Attention(
            f"{count:,} samples are identical files", count, attention.IDENTICAL
        )
    yield from _in_parts(source, None)
    if found is not None and (groups := found.groups(DEFAULT)):
        count = sum(map(len, groups))
        text = f"{quantity(count, 'samples')} in {quantity(len(groups), 'groups')} are nearly alike"
        by = source.vector.name if source.vector else ""
        yield attention.Attention(
            f"{text} ({by}: cosine {DEFAULT} or more)", count, attention.NEAR_DUPLICATE
        )
        yield from _in_parts(source, found)
    if found is not None and (count := int(table.flags[attention.OUTLIER].sum())):
        verb = "resembles" if count == 1 else "resemble"
        yield attention.Attention(
            f"{quantity(count, 'samples')} {verb} no other", count, attention.OUTLIER
        )


def _in_parts(source: Source, found: Similar | None) -> Iterator[attention.Attention]:
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
        yield attention.Attention(
            text, len(pairs), attention.IDENTICAL if found is None else attention.NEAR_DUPLICATE
        )


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
