"""The plots of a run: who packs how fast, and how cost grows. Needs the ``bench`` extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Answer, Case, Role
from benchmarks.pack import PLAIN, TAR
from benchmarks.scan import EVERY_ARRAY
from benchmarks.targets import TARGETS

BLUE, GREY, PALE, INK, RED = "#2563eb", "#9ca3af", "#d1d5db", "#1f2937", "#dc2626"
COLOURS: dict[Role, str] = {"ours": BLUE, "peer": GREY, "limit": PALE, "variant": "#93b4f5"}
LOOKS: dict[str, dict[str, Any]] = {
    OURS: {"color": BLUE, "lw": 2.5, "marker": "o"},
    EVERY_ARRAY: {"color": BLUE, "lw": 1.5, "ls": "--", "marker": "o"},
    TAR: {"color": GREY, "lw": 1.5, "marker": "s"},
    PLAIN: {"color": INK, "lw": 1.5, "marker": "^"},
}
STYLE = {
    "svg.hashsalt": "shardwright",  # the same figures give the same file
    "figure.facecolor": "white",  # readable on a dark page too
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.08,
    "font.size": 10,
    "lines.markersize": 5,
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
# Question, case, measure; title, and what the size counts.
PANELS: tuple[tuple[str, Case, str, str, str], ...] = (
    ("pack", {"cache": "warm", "workers": 2}, "seconds", "pack: time (s)", "samples"),
    ("scan", {}, "seconds", "scan: time (s)", "records"),
    ("scan", {}, "peak_mb", "scan: peak memory (MB)", "records"),
)


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
        found = [(growth(answers, *panel[:3]), *panel[3:]) for panel in PANELS]
        panels = [panel for panel in found if panel[0]]
        if not panels:
            return
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        for number, (lines, title, across) in enumerate(panels, 1):
            axes = figure.add_subplot(1, len(panels), number)
            _lines(axes, lines)
            axes.set_title(title)
            axes.set_xlabel(across)
        names = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=len(names))
        yield _save(figure, folder / "growth.svg")


def _bars(axes: Any, answer: Answer) -> None:  # noqa: ANN401
    bars = pack_bars(answer)
    for place, bar in enumerate(bars):
        spread = [[bar.seconds - bar.fastest], [bar.slowest - bar.seconds]]
        axes.barh(place, bar.seconds, 0.62, color=COLOURS[bar.role])
        axes.errorbar(bar.seconds, place, xerr=spread, color=INK, lw=1, capsize=3)
        axes.annotate(
            f"{bar.seconds:.2f} s",
            (max(bar.slowest, bar.aim or 0), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            weight="bold" if bar.role == "ours" else None,
        )
        if bar.aim is not None:
            axes.plot([bar.aim] * 2, [place - 0.31, place + 0.31], color=RED, lw=2)
    axes.plot([], [], color=RED, lw=2, label="our target against each: to end before its mark")
    axes.axvline(bars[0].seconds, color=BLUE, lw=1, ls=":", zorder=0)
    names = [f"{bar.name} (limit)" if bar.role == "limit" else bar.name for bar in bars]
    axes.set_yticks(range(len(bars)), names)
    axes.get_yticklabels()[0].set_weight("bold")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("seconds: median, fastest and slowest run; shorter is better")
    axes.set_title(answer.title)
    axes.legend(loc="upper right")


def _lines(axes: Any, lines: Sequence[Line]) -> None:  # noqa: ANN401
    from matplotlib.ticker import LogLocator, NullFormatter

    for line in lines:
        axes.plot(line.sizes, line.values, label=line.name, **LOOKS.get(line.name, {}))
        if line.name == OURS:
            ends = [line.sizes[0], line.sizes[-1]]
            linear = [line.values[-1] * size / ends[-1] for size in ends]
            axes.plot(ends, linear, color=BLUE, lw=1, ls=":", label="linear growth")
            axes.set_xscale("log")
            axes.set_xticks(line.sizes, [f"{size:,}" for size in line.sizes])
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(LogLocator(subs=()))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="#e5e7eb", lw=0.6)


def _save(figure: Any, path: Path) -> Path:  # noqa: ANN401
    figure.savefig(path, metadata={"Date": None})
    return path
