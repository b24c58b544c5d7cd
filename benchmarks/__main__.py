"""``python -m benchmarks``: ask every question, print the tables, keep the figures."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import tempfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.contest import ask, table
from shardwright.workers import cores

QUESTIONS = ("start", "scan", "pack", "read", "verify", "migrate")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the benchmarks that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS], help="(all)")
    parser.add_argument("--quick", action="store_true", help="small, about a minute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="for stores and output; kept (a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = {}
        for name in options.questions or QUESTIONS:
            module = import_module(f"benchmarks.{name}")
            for question in module.questions(folder, options.quick):
                results = ask(question, 1 if options.quick else options.rounds)
                print(table(question, results), end="\n\n", flush=True)
                figures[question.name] = {
                    "work": question.work,
                    "unit": question.unit,
                    "runs": {who: asdict(runs) for who, runs in results.items()},
                }
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        machine = {"cores": cores(), "python": platform.python_version(), "os": platform.platform()}
        path = RESULTS / f"{datetime.date.today()}.json"
        earlier = json.loads(path.read_text())["questions"] if path.exists() else {}
        figures = {**earlier, **figures}
        path.write_text(json.dumps({"machine": machine, "questions": figures}, indent=1) + "\n")
        print(f"figures kept in {path}")


if __name__ == "__main__":
    main()
