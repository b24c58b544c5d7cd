"""``python -m benchmarks``: ask every question, print the tables, keep the figures, draw them."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.contest import Answer, ask
from benchmarks.sizes import QUICK, USUAL, Sizes
from benchmarks.stores import remove

QUESTIONS = (
    *("pack", "scan", "read", "remote", "verify", "migrate", "reading", "derive", "build"),
    *("planning", "train", "fill", "duplicates", "look", "start"),
)
HERE = Path(__file__).parent


def main() -> None:
    """Run the benchmarks that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)} (all)")
    add("--quick", action="store_true", help="small and once, in about a minute")
    add("--rounds", type=int, metavar="N", help=f"of each contestant ({USUAL.rounds})")
    add("--folder", type=Path, default=HERE / "cache", metavar="DIR",
        help="for made-up data, which is kept: up to 23 GB (%(default)s)")  # fmt: skip
    add("--page", type=Path, metavar="JSON", help="print the part of docs/speed.md about a run")
    add("--plots", type=Path, metavar="JSON", help="draw the plots of a run")
    options = parser.parse_args()
    if unknown := set(options.questions) - set(QUESTIONS):
        parser.error(f"no such question: {', '.join(sorted(unknown))}")
    if options.page:
        print(report.page(json.loads(options.page.read_text()), options.page.name))
    elif options.plots:
        draw(json.loads(options.plots.read_text()))
    else:
        sizes = QUICK if options.quick else USUAL
        if options.rounds:
            sizes = replace(sizes, rounds=options.rounds)
        if (load := machine.load()) > machine.BUSY:
            print(f"warning: the machine is busy (load {load:.1f}), so figures will mean little",
                  file=sys.stderr)  # fmt: skip
        began = time.monotonic()
        kept = HERE / "results" / f"{datetime.date.today()}{'-quick' * options.quick}.json"
        for name in options.questions or QUESTIONS:
            results = keep(run(name, sizes, options.folder), kept, options.folder)
        if not options.quick:  # whose sizes are too small to hold targets against
            print(report.targets_table([Answer.from_dict(one) for one in results["answers"]]))
            draw(results)
        print(f"\n{time.monotonic() - began:.0f} s in all; the figures are kept in {kept}")


def run(name: str, sizes: Sizes, folder: Path) -> list[Answer]:
    """Ask a question in all its cases, and print each answer as it comes."""
    print(f"{name}: making its data, unless it is there", file=sys.stderr)
    answers = []
    for question in import_module(f"benchmarks.{name}").questions(folder, sizes):
        answer = ask(question, sizes.rounds)
        answer.command = " ".join(["python -m benchmarks", *sys.argv[1:]])
        answer.commit = machine.commit()
        answers.append(answer)
        print(report.table(answer), end="\n\n", flush=True)
    remove(folder / "out")
    return answers


def keep(answers: Sequence[Answer], path: Path, folder: Path) -> dict[str, Any]:
    """Write the results, beside those of other questions that were asked on the same day."""
    asked = {answer.question for answer in answers}
    earlier = json.loads(path.read_text())["answers"] if path.exists() else []
    kept = [one for one in earlier if one["question"] not in asked]
    kept += [asdict(answer) for answer in answers]
    kept.sort(key=lambda one: QUESTIONS.index(one["question"]))
    results = {
        "date": str(datetime.date.today()),
        "command": " and ".join(dict.fromkeys(one["command"] for one in kept)),
        "commit": machine.commit(),
        "machine": machine.describe(folder),
        "versions": machine.versions(),
        "targets": report.targets([Answer.from_dict(one) for one in kept]),
        "answers": kept,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return results


def draw(results: dict[str, Any]) -> None:
    """Draw the plots, if there is something to draw them with."""
    if find_spec("matplotlib") is None:
        print("no plots: matplotlib is missing; pip install -e '.[bench]'", file=sys.stderr)
        return
    from benchmarks import plots  # here, because matplotlib is an extra

    answers = [Answer.from_dict(given) for given in results["answers"]]
    for path in plots.draw(answers, HERE / "plots"):
        print(f"drawn: {path}")


if __name__ == "__main__":
    main()
