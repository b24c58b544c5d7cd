"""The plots of a run: who packs how fast, and how cost grows. Needs the ``bench`` extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Answer, Case, Role
from benchmarks.pack import PLAIN
from benchmarks.targets import TARGETS

BLUE, GREY, PALE, INK, RED = "#2563eb", "#9ca3af", "#d1d5db", "#1f2937", "#dc2626"
COLOURS: dict[Role, str] = {"ours": BLUE, "peer": GREY, "limit": PALE, "variant": "#93b4f5"}
STYLE = {
    "svg.hashsalt": "shardwright",  # the same figures give the same file
    "figure.facecolor": "white",  # readable on a dark page too
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Bar:
    """A contestant's median time, its fastest and slowest run, and what we aim at beside it."""

    name: str
    role: Role
    seconds: float
    fastest: float
    slowest: float
    aim: float | None  # seconds that ours may take, measured by this contestant


@dataclass(frozen=True)
class Line:
    """A measure of one contestant against size."""

    name: str
    sizes: list[int]
    values: list[float]


def largest(answers: Sequence[Answer], question: str, case: Case) -> Answer | None:
    """Give the answer with the most work."""
    found = [answer for answer in answers if answer.matches(question, case)]
    return max(found, key=lambda answer: answer.work, default=None)


def pack_bars(answer: Answer) -> list[Bar]:
    """Give the bars of packing: ours first, then the others from fast to slow."""
    aims = {
        target.against: target.at_most
        for target in TARGETS
        if target.question == "pack" and target.at_most is not None
    }
    bars = [
        Bar(
            name,
            runs.role,
            runs.median(),
            min(runs.seconds),
            max(runs.seconds),
            aims[name] * runs.median() if name in aims else None,
        )
        for name, runs in answer.runs.items()
    ]
    return sorted(bars, key=lambda bar: (bar.role != "ours", bar.seconds))


def growth(answers: Sequence[Answer], question: str, case: Case, measure: str) -> list[Line]:
    """Give a line for each contestant that was measured at more than one size."""
    points: dict[str, dict[int, float]] = {}
    for answer in answers:
        if answer.matches(question, case) and "asks" not in answer.case:
            for name, runs in answer.runs.items():
                if getattr(runs, measure):
                    points.setdefault(name, {})[answer.work] = runs.median(measure)
    return [
        Line(name, sorted(known), [known[size] for size in sorted(known)])
        for name, known in points.items()
        if len(known) > 1
    ]


def draw(answers: Sequence[Answer], folder: Path) -> Iterator[Path]:
    """Draw each plot that there are figures for."""
    import matplotlib
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        packed = largest(answers, "pack", {"cache": "warm", "workers": 2})
        if packed is not None:
            figure = Figure(figsize=(8, 3.6), layout="constrained")
            _bars(figure.subplots(), packed)
            yield _save(figure, folder / "pack.svg")
        panels: list[tuple[str, Case, str, str, str, str]] = [
            ("pack", {"cache": "warm", "workers": 2}, "seconds", "pack: time", "samples", "s"),
            ("scan", {}, "seconds", "scan: time", "records", "s"),
            ("scan", {}, "peak_mb", "scan: peak memory", "records", "MB"),
        ]
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        for axes, (question, case, measure, title, across, unit) in zip(
            figure.subplots(1, len(panels)), panels, strict=True
        ):
            _lines(axes, growth(answers, question, case, measure), title, across, unit)
        yield _save(figure, folder / "growth.svg")


def _bars(axes: Any, answer: Answer) -> None:  # noqa: ANN401
    bars = pack_bars(answer)
    for place, bar in enumerate(bars):
        spread = [[bar.seconds - bar.fastest], [bar.slowest - bar.seconds]]
        axes.barh(place, bar.seconds, 0.62, color=COLOURS[bar.role])
        axes.errorbar(bar.seconds, place, xerr=spread, color=INK, lw=1, capsize=3)
        axes.annotate(
            f"{bar.seconds:.2f} s",
            (bar.slowest, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            weight="bold" if bar.role == "ours" else None,
        )
        if bar.aim is not None:
            label = "ours is to end before this mark" if place == first_aim(bars) else None
            axes.plot([bar.aim] * 2, [place - 0.31, place + 0.31], color=RED, lw=2, label=label)
    limit = min((bar.seconds for bar in bars if bar.role == "limit"), default=None)
    if limit is not None:
        axes.axvline(limit, color=INK, lw=0.8, ls=":", zorder=0)
    names = [f"{bar.name} (limit)" if bar.role == "limit" else bar.name for bar in bars]
    axes.set_yticks(range(len(bars)), names)
    axes.get_yticklabels()[0].set_weight("bold")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("seconds: median, fastest and slowest run; shorter is better")
    axes.set_title(f"{answer.title}")
    axes.legend(loc="lower right")


def first_aim(bars: Sequence[Bar]) -> int:
    """Find the bar that names the mark in the legend."""
    return next(place for place, bar in enumerate(bars) if bar.aim is not None)


def _lines(axes: Any, lines: Sequence[Line], title: str, across: str, unit: str) -> None:  # noqa: ANN401
    for line in lines:
        ours = line.name.startswith(OURS)
        axes.plot(
            line.sizes,
            line.values,
            "--" if ours and line.name != OURS else "-",
            color=BLUE if ours else INK if line.name == PLAIN else GREY,
            marker="o",
            ms=4,
            lw=2 if ours else 1.5,
            label=line.name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(lines[0].sizes if lines else [], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(f"{title} ({unit})")
    axes.set_xlabel(across)
    axes.grid(axis="y", color="#e5e7eb", lw=0.6)
    if lines:
        axes.legend(fontsize=8)


def _save(figure: Any, path: Path) -> Path:  # noqa: ANN401
    figure.savefig(path, metadata={"Date": None})
    return path
