"""Tables of a run: for the terminal, and for ``docs/speed.md``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mode
from textwrap import wrap
from typing import Any

from benchmarks.contest import OURS, Answer, Runs
from benchmarks.targets import TARGETS


def table(answer: Answer) -> str:
    """Lay out one answer; its ratios are of median times."""
    ours = answer.runs[OURS].median()
    peer, limit = answer.best("peer"), answer.best("limit")
    rows = [("", "median s", "spread", f"{answer.unit}/s", "ours/this", "this/limit", "peak MB")]
    for name, runs in answer.runs.items():
        rows.append(
            (
                f"{name} (limit)" if runs.role == "limit" else name,
                f"{runs.median():.2f}",
                f"{min(runs.seconds):.2f}-{max(runs.seconds):.2f}",
                f"{answer.work / runs.median():,.0f}",
                f"{ours / runs.median():.2f}",
                f"{runs.median() / answer.runs[limit].median():.2f}" if limit else "",
                _peak(runs),
            )
        )
    notes = [
        f"ours / {what} ({name}): {ours / answer.runs[name].median():.2f}"
        for what, name in (("best peer", peer), ("fastest limit", limit))
        if name is not None
    ]
    notes += [
        f"{name}: {', '.join(said)}"
        for name, runs in answer.runs.items()
        if (said := _asides(runs, answer.work))
    ]
    rounds = len(answer.runs[OURS].seconds)
    about = f"{_rounds(rounds)}, {answer.took:.0f} s in all, load {answer.load:.1f}"
    return "\n".join([f"## {answer.title} ({about})", columns(rows), "; ".join(notes)])


def targets(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Hold every target against what was measured."""
    found = []
    for target in TARGETS:
        figure = target.figure(answers)
        found.append(
            {
                "target": f"{target.says}, {target.bound()}",
                "figure": None if figure is None else float(f"{figure:.3g}"),
                "met": None if figure is None else target.met(figure),
            }
        )
    return found


def targets_table(answers: Sequence[Answer]) -> str:
    """Lay the targets out: target, figure, met."""
    words = {None: "not measured", True: "yes", False: "NO"}
    rows = [("target", "figure", "met")]
    for row in targets(answers):
        figure = "" if row["figure"] is None else f"{row['figure']:g}"
        rows.append((row["target"], figure, words[row["met"]]))
    return columns(rows)


def page(results: dict[str, Any], name: str) -> str:
    """Write the part of ``docs/speed.md`` that comes from a run."""
    machine, versions = results["machine"], results["versions"]
    answers = [Answer.from_dict(given) for given in results["answers"]]
    rounds = mode(len(answer.runs[OURS].seconds) for answer in answers)
    about = (
        f"Medians of {rounds} interleaved rounds (unless the table says otherwise) on "
        f"{machine['cores']} cores with {machine['memory_gb']:.0f} GiB, {machine['filesystem']}, "
        f"Python {versions['python']}, on {results['date']} by `{results['command']}`. Every run "
        f"is in [{name}](../benchmarks/results/{name}). Shardwright always writes checksums and "
        "syncs. In brackets: the time relative to ours. Warm: the data is in memory. Cold: it was "
        "dropped from memory just before. Memory is the peak of all processes of a "
        "contestant together, without the files they map."
    )
    reading = [one for one in answers if one.question == "reading"]
    others = [one for one in answers if one not in reading]
    shown = [one for one in others if not any(_outgrows(other, one) for other in others)]
    return "\n".join(
        [
            *wrap(about, 110, break_on_hyphens=False),
            "",
            "| | shardwright | instead | the limit |",
            "|---|---|---|---|",
            *(_row(answer, rounds) for answer in shown),
            "",
            *(_reading(reading) if reading else ()),
            "![pack](../benchmarks/plots/pack.svg)",
            "![growth](../benchmarks/plots/growth.svg)",
        ]
    )


def _reading(answers: Sequence[Answer]) -> list[str]:
    """Lay out what reading takes: a row for each contestant, columns for sizes and workers."""
    about = (
        "Reading: decode a JPEG, fit it to its bucket, and make the input of DINOv3; "
        f"{answers[0].work} images with as much detail as photographs. For each size: milliseconds "
        "of a core for an image, then images a second with one worker and with two. Last: the mean "
        "difference of the fitted pixels from the exact ones, of 255, at the largest size."
    )
    head, rows = [""], []
    for answer in answers:
        if answer.case["workers"] == 1:
            head += [f"{answer.case['megapixels']} MP", "1 worker", "2 workers"]
    for name, last in answers[-1].runs.items():
        cells = [f"**{name}**" if last.role == "ours" else name]
        for answer in answers:
            runs = answer.runs[name]
            if answer.case["workers"] == 1:
                cells.append(f"{1000 * runs.median('cpu') / answer.work:.0f} ms")
            cells.append(f"{answer.work / runs.median():.1f}")
        rows.append([*cells, f"{last.median('difference'):.2g}"])
    head.append("differs by")
    lines = [head, ["---"] * len(head), *rows]
    return [
        *wrap(about, 110, break_on_hyphens=False),
        "",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
    ]


def _row(answer: Answer, usual: int) -> str:
    runs, ours = answer.runs, answer.runs[OURS].median()

    def of(role: str) -> str:
        return "<br>".join(
            f"{name}: {_figures(one, answer.work, usual)} ({one.median() / ours:.2g})"
            for name, one in runs.items()
            if one.role == role
        )

    own = f"**{_figures(runs[OURS], answer.work, usual)}**"
    variants = of("variant").replace(f"{OURS}, ", "").replace(f"{OURS} ", "")
    cells = [answer.title, "<br>".join(filter(None, [own, variants])), of("peer"), of("limit")]
    return f"| {' | '.join(cells)} |"


def _figures(runs: Runs, work: int, usual: int) -> str:
    memory = [f"{_peak(runs)} MB"] if runs.peak_mb else []
    rounds = [] if len(runs.seconds) == usual else [_rounds(len(runs.seconds))]
    return ", ".join([f"{runs.median():.3g} s", *memory, *_asides(runs, work), *rounds])


def _asides(runs: Runs, work: int) -> list[str]:
    """Say what only some contestants measure."""
    said = [f"idle {runs.median('idle'):.1%}"] if runs.idle else []
    if runs.cpu:
        said.append(f"{1000 * runs.median('cpu') / work:.0f} ms of a core each")
    if runs.difference:
        said.append(f"{runs.median('difference'):.2g} of 255 off")
    if runs.fill:
        said.append(f"{runs.median('fill'):.2f} a batch")
    if runs.recall:
        said.append(f"{runs.median('recall'):.2%} found")
    if runs.files:
        said.append(f"{runs.median('files'):,.0f} files of {runs.median('written_mb'):,.0f} MB")
    if runs.search:
        said.append(f"a search {1000 * runs.median('search'):.0f} ms")
    return said


def _outgrows(other: Answer, answer: Answer) -> bool:
    """Whether another answer is the same but for a larger size, so that it can stand for both."""
    sizes = {"samples", "records", "images"}
    return (
        other.question == answer.question
        and other.work > answer.work
        and {**other.case, **dict.fromkeys(sizes, 0)} == {**answer.case, **dict.fromkeys(sizes, 0)}
    )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _peak(runs: Runs) -> str:
    peak = runs.median("peak_mb") if runs.peak_mb else None
    return "" if peak is None else f"{peak:,.0f}" if peak >= 10 else f"{peak:.1f}"


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    return "\n".join(lines)
