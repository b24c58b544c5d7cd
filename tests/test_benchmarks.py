"""The benchmarks run, compute their figures correctly, and the docs show what they measured."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from benchmarks import build, report
from benchmarks.__main__ import keep, run
from benchmarks.contest import (
    BEFORE,
    FAST,
    OURS,
    PYTHON,
    Answer,
    Contestant,
    Role,
    Runs,
    timed,
)
from benchmarks.pack import PLAIN, SYNCED, TAR, WRITER
from benchmarks.sizes import QUICK
from benchmarks.targets import Target
from shardwright import verify
from tests.durability.soak import SOAK

ROOT = Path(__file__).parents[1]
TINY = replace(
    QUICK, pack=(3, 6), derive=2, megapixels=(1,), reading=2, large=2, fill=2, duplicates=(400,)
)


def answer(runs: dict[str, list[float]], question: str = "pack", work: int = 100) -> Answer:
    roles: dict[str, Role] = {OURS: "ours", SYNCED: "limit"}
    found = {
        name: Runs(roles.get(name, "peer"), seconds, [50.0] * len(seconds))
        for name, seconds in runs.items()
    }
    return Answer(question, {"samples": work, "cache": "warm"}, work, "samples", found, 0.1, 1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_benchmark_run_keeps_the_time_and_memory_of_every_contestant(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    keep([answer({OURS: [1.0]}), answer({OURS: [2.0]}, "verify")], path, tmp_path)
    answers = [one for name in ("pack", "derive") for one in run(name, TINY, tmp_path / "data")]
    results = keep(answers, path, tmp_path)
    assert results == json.loads(path.read_text())
    cases = [(one["question"], one["work"]) for one in results["answers"]]
    assert cases[:3] == [("pack", 3), ("pack", 6), ("pack", 3)]
    assert cases[3:] == [("verify", 100), ("derive", 2), ("derive", 2)]
    for one in results["answers"]:
        assert [name for name, runs in one["runs"].items() if runs["role"] == "ours"] == [OURS]
        assert all(len(runs["seconds"]) == 1 for runs in one["runs"].values())
        assert max(one["runs"][OURS]["peak_mb"]) > 5  # no Python needs less
    packed = answers[1]
    assert set(packed.runs) == {OURS, TAR, PLAIN, WRITER, "bare copy", SYNCED}
    figures = {row["target"].split(",")[0]: row["figure"] for row in results["targets"]}
    ratio = packed.runs[OURS].median() / packed.runs[TAR].median()
    assert figures["pack: time to GNU tar's"] == pytest.approx(ratio, rel=0.01)
    assert figures["start: seconds of --help"] is None


@pytest.mark.skipif(not SOAK, reason="others run a benchmark; this one takes long")
@pytest.mark.skipif(sys.platform != "linux", reason="processor time is read from /proc")
def test_reading_is_measured_with_one_worker_and_two_and_only_exact_pixels_do_not_differ(
    tmp_path: Path,
) -> None:
    one, two = run("reading", TINY, tmp_path)
    assert (one.case["workers"], two.case["workers"]) == (1, 2)
    for found in (one, two):
        assert {OURS, FAST, BEFORE, "Pillow draft"} <= found.runs.keys()
        assert all(runs.median("cpu") > 0 for runs in found.runs.values())
        assert found.runs[OURS].difference == [0]
        assert 0 < found.runs[BEFORE].median("difference") < 5, "it cropped complete pixels"
    page = report.page(keep([one, two], tmp_path / "results.json", tmp_path), "results.json")
    assert "| 1 MP | 1 worker | 2 workers | differs by |" in page
    cells = next(line for line in page.splitlines() if line.startswith(f"| **{OURS}** |")).split()
    assert cells[-2] == "0"
    assert float(cells[-4]) == pytest.approx(2 / two.runs[OURS].median(), abs=0.05)


@pytest.mark.skipif(not SOAK, reason="others run a benchmark; this one takes long")
def test_the_fill_of_batches_is_measured_for_each_fit(tmp_path: Path) -> None:
    answers = run("fill", TINY, tmp_path)
    assert [one.case["fit"] for one in answers] == ["fit original", "fit bucket"]
    assert all(1 <= one.runs[OURS].median("fill") <= 2 for one in answers)
    target = Target("fill", "fill", {"fit": "fit bucket"}, "fill", at_least=1)
    assert target.figure(answers) == answers[1].runs[OURS].fill[0]


def test_planted_duplicates_are_found_in_shards_that_verify_accepts(tmp_path: Path) -> None:
    (found,) = run("duplicates", TINY, tmp_path)
    assert found.case == {"vectors": 400}
    assert found.runs[OURS].recall == [1.0]
    assert "100.00% found" in report.table(found)
    assert verify(tmp_path / "planted-400", read_data=True).findings == []


def test_the_first_view_of_shards_and_a_search_are_measured(tmp_path: Path) -> None:
    (found,) = run("look", TINY, tmp_path)
    assert found.runs[OURS].seconds[0] > found.runs[OURS].search[0] > 0
    assert re.search(r"a search \d+ ms", report.table(found))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_peak_memory_is_that_of_all_processes_with_shared_pages_once() -> None:
    script = (
        "import os, time\n"
        "shared = b'x' * 80_000_000\n"
        "if os.fork() == 0: own = b'y' * 40_000_000\n"
        "time.sleep(0.5)\n"
        "if 'own' not in globals(): os.wait()\n"
    )
    assert 120 < timed(Contestant("forks", [PYTHON, "-c", script]))["peak_mb"] < 160


def test_a_contestant_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)broken: exit 1\n.*ZeroDivisionError"):
        timed(Contestant("broken", [PYTHON, "-c", "1 / 0"]))


def test_a_benchmark_target_is_compared_with_the_largest_size_by_the_work_done() -> None:
    answers = [
        answer({OURS: [1.0, 2.0, 9.0], TAR: [4.0]}, work=100),
        answer({OURS: [5.0], TAR: [5.0]}, work=10),
    ]
    assert Target("time", "pack", against=TAR, at_most=0.5).figure(answers) == 0.5
    assert Target("speed", "pack", against=TAR, at_least=3).figure(answers) == 2.0
    linear = Target("growth", "pack", {"samples": 100}, "seconds", OURS, {"samples": 10}, 1.2)
    assert linear.figure(answers) == pytest.approx((2 / 100) / (5 / 10))
    slower = Target("others", "pack", against=TAR, at_most=9, of=TAR)
    assert slower.figure(answers) == 1.0
    assert Target("memory", "pack", measure="peak_mb", at_most=1000).figure(answers) == 50
    assert Target("absent", "verify", at_most=1).figure(answers) is None


def test_the_table_of_a_benchmark_gives_ratios_to_ours_and_to_the_limit() -> None:
    table = report.table(answer({OURS: [2.0, 1.0, 3.0], TAR: [4.0], SYNCED: [1.0]}))
    rows = {re.split(r"\s{2,}", line)[0]: line.split() for line in table.splitlines()}
    assert rows[OURS][1:] == ["2.00", "1.00-3.00", "50", "1.00", "2.00", "50"]
    assert rows[TAR][2:] == ["4.00", "4.00-4.00", "25", "0.50", "4.00", "50"]


def test_readme_and_docs_give_the_speeds_of_a_results_file() -> None:
    text = (ROOT / "docs/speed.md").read_text()
    (name,) = set(re.findall(r"benchmarks/results/([^)]+)\)", text))
    results = json.loads((ROOT / "benchmarks/results" / name).read_text())
    assert report.page(results, name) in text
    packed = max(
        (one for one in results["answers"] if one["question"] == "pack"),
        key=lambda one: one["work"],
    )
    readme = (ROOT / "README.md").read_text()
    for contestant in (OURS, SYNCED, TAR, PLAIN, WRITER):
        assert f"{median(packed['runs'][contestant]['seconds']):.1f} s" in readme


@pytest.mark.timeout(600)
def test_build_is_measured_against_derive_and_pack_and_makes_far_fewer_files(
    tmp_path: Path,
) -> None:
    questions = list(build.questions(tmp_path, TINY))
    assert [len(question.contestants) for question in questions] == [3, 3, 3, 2]
    question = questions[1]
    assert question.case["size"] == "256 pixels"
    found = []
    for contestant in question.contestants:
        question.before()
        found.append(timed(contestant))
    ours, both, pure = found
    assert ours["files"] + 3 * question.work < both["files"] + 10
    assert ours["written_mb"] < both["written_mb"]
    assert pure.keys() == {"seconds", "peak_mb"}
