"""The report: one self-contained page, to attach to an experiment. The same input, the same bytes.

It has no script and loads nothing: charts are SVG, pictures are in the page.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardwright.comparing import similar
from shardwright.comparing.vectors import even
from shardwright.errors import UsageError
from shardwright.interrupts import check
from shardwright.looking import overview, samples
from shardwright.looking.duplicates import compare
from shardwright.looking.pictures import Previews
from shardwright.looking.viewer import similar_lines, unlike
from shardwright.progress import Progress, quantity, size
from shardwright.storage import files

if TYPE_CHECKING:
    from shardwright.looking import LookSummary

_LARGEST = 10_000_000  # bytes of a report
_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --bar: #3b6fb6; --soft: #8881; --warn: #b45309; }
@media (prefers-color-scheme: dark) { :root { --bar: #7aa7e8; --warn: #f5b04c; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
td, th { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.attention li { color: var(--warn); } svg { width: 100%; max-width: 30rem; height: auto; }
svg rect { fill: var(--bar); } svg text { font-size: 11px; fill: currentColor; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1.5rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--soft); border-radius: 6px; overflow: hidden; }
figure img { width: 100%; aspect-ratio: 1; object-fit: contain; display: block; }
figure div { aspect-ratio: 1; } figcaption { padding: .5rem; font-size: .8rem; }
figcaption * { overflow-wrap: anywhere; } figcaption b { display: block; }
figcaption p { margin: 0; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 8;
  overflow: hidden; }
del { opacity: .65; } small { opacity: .75; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .8rem; }
"""


def write_report(
    pictures: Previews, path: Path, count: int, summary: LookSummary, progress: Progress
) -> None:
    """Write the report with so many samples, from all over the source."""
    source = pictures.source
    found = overview.describe(source)
    lines = [each.text for each in overview.attention_of(source)]
    vectors = source.vector
    if vectors is not None and len(source.table) <= similar.EXACT_MOST:
        lines += [each.text for each in similar_lines(source, compare(source, progress))]
    elif vectors is not None:
        lines.append(
            f"more than {similar.EXACT_MOST:,} samples: near-duplicates were not looked for"
        )
    for component in pictures.latents:
        if warning := unlike(component.name, pictures.agreement(component)):
            lines.append(warning)
    ready = source.table.ready
    chosen = ready[even(len(ready), count)].tolist()
    progress.phase("report", len(chosen), "samples")
    cards = []
    for number in chosen:
        check()
        cards.append(_card(pictures, number))
        progress.advance(1)
    page = _page(found, lines, cards)
    if len(page) > _LARGEST:
        fits = len(chosen) * _LARGEST * 9 // 10 // len(page)
        what = f"--samples {count}: the report would have {size(len(page))}"
        raise UsageError(what, fix=f"give at most {fits}, so that it stays below 10 MB")
    files.write(path, page)
    summary.report, summary.attention, summary.shown = str(path), lines, len(chosen)


def _page(found: dict[str, Any], lines: list[str], cards: list[str]) -> bytes:
    place = "a store" if found["shards"] is None else quantity(found["shards"], "shards")
    about = "about " if found["about"] else ""
    count = quantity(found["samples"], "samples")
    totals = f"{count} in {place}, {about}{size(found['bytes'])}"
    title = escape(found["path"])
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1><p>{totals}</p>",
        "<h2>Needs attention</h2>",
        f'<ul class="attention">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
        if lines
        else "<p>Nothing needs attention.</p>",
        "<h2>Buckets</h2>",
        _buckets(found),
        '<h2>Numbers</h2><div class="charts">' if found["histograms"] else "",
        *(_chart(each) for each in found["histograms"]),
        "</div>" if found["histograms"] else "",
        "<h2>Components</h2>",
        _components(found),
        "<details><summary>Recipe and settings</summary>",
        f"<pre>{escape(_settings(found))}</pre></details>",
        f'<h2>{len(cards):,} of {count}</h2><div class="grid">',
        *cards,
        "</div></body></html>\n",
    ]
    return "\n".join(part for part in parts if part).encode(errors="replace")


def _buckets(found: dict[str, Any]) -> str:
    head = ["bucket", "part", "samples", "bytes", "shards"]
    rows = [[each[name] for name in head] for each in found["buckets"]]
    if not found["parts"]:
        head.remove("part")
        rows = [[row[0], *row[2:]] for row in rows]
    if found["shards"] is None:
        head.remove("shards")
        rows = [row[:-1] for row in rows]
    return _table(head, rows)


def _components(found: dict[str, Any]) -> str:
    head = ["component", "dtype", "shape", "made from", "model"]
    rows = [
        [c["name"], c["dtype"], ", ".join(map(str, c["shape"])), c["source"], c["model"] or ""]
        for c in found["components"]
    ]
    return _table(head, rows)


def _settings(found: dict[str, Any]) -> str:
    made = {each["name"]: each["settings"] for each in found["components"]}
    data = msgspec.json.encode({"recipe": found["recipe"], "settings": made}, order="sorted")
    return msgspec.json.format(data, indent=2).decode()


def _table(head: list[str], rows: list[list[Any]]) -> str:
    numeric = [all(isinstance(row[n], int) for row in rows) for n in range(len(head))]
    marks = [' class="n"' if each else "" for each in numeric]
    lines = ["".join(f"<th{m}>{escape(name)}</th>" for m, name in zip(marks, head, strict=True))]
    for row in rows:
        cells = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        lines.append("".join(f"<td{m}>{escape(c)}</td>" for m, c in zip(marks, cells, strict=True)))
    inner = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{inner}</table></div>'


def _chart(found: dict[str, Any]) -> str:
    """Draw a histogram."""
    bins = found["bins"]
    width, height, most = 440, 120, max(count for *_, count in bins)
    step = width / len(bins)
    bars = []
    for place, (low, high, count) in enumerate(bins):
        tall = math.ceil(count / most * height) if count else 0
        words = f"{low:g} to {high:g}: {count:,}"
        bars.append(
            f'<rect x="{place * step:.1f}" y="{height + 14 - tall}" width="{step - 1:.1f}" '
            f'height="{tall}"><title>{words}</title></rect>'
        )
    ends = (
        f'<text x="0" y="{height + 30}">{bins[0][0]:g}</text>'
        f'<text x="{width}" y="{height + 30}" text-anchor="end">{bins[-1][1]:g}</text>'
        f'<text x="0" y="10">{most:,}</text>'
    )
    unknown = (
        f"<small>not known for {quantity(found['unknown'], 'samples')}</small>"
        if found["unknown"]
        else ""
    )
    return (
        f"<div><strong>{escape(found['title'])}</strong>"
        f'<svg viewBox="0 0 {width} {height + 36}" role="img" '
        f'aria-label="{escape(found["title"])}">{"".join(bars)}{ends}</svg>{unknown}</div>'
    )


def _card(pictures: Previews, number: int) -> str:
    """Show a sample: its picture, its id, its caption with the cut."""
    sample = samples.brief(pictures.source, number)
    made = pictures.thumbnail(number)
    picture = "<div></div>"
    if made is not None:
        data = base64.b64encode(made).decode()
        picture = f'<img alt="" src="data:image/jpeg;base64,{data}">'
    caption = samples.record_of(pictures.source, number)[0].get("caption")
    text = "".join(_cut(pictures, number, caption)) if isinstance(caption, str) else ""
    small = " · ".join(filter(None, (sample["bucket"], sample["part"], *sample["flags"])))
    return (
        f"<figure>{picture}<figcaption><b>{escape(sample['id'])}</b><p>{text}</p>"
        f"<small>{escape(small)}</small></figcaption></figure>"
    )


def _cut(pictures: Previews, number: int, caption: str) -> Iterator[str]:
    """Write a caption; what the first component that cuts it does not read is struck out."""
    ends = (cut["at"] for cut in samples.cuts(pictures.source, number))
    at = min((end for end in ends if end is not None), default=len(caption))
    yield escape(caption[:at])
    if at < len(caption):
        yield f"<del>{escape(caption[at:])}</del>"
