"""The benchmarks run, keep what they measured, and tell it faithfully; how fast, they only say."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plots, report
from benchmarks.__main__ import keep, run
from benchmarks.contest import (
    OURS,
    PEERS,
    PYTHON,
    Answer,
    Command,
    Contestant,
    Question,
    Role,
    Runs,
    ask,
    timed,
)
from benchmarks.pack import PLAIN, SYNCED, TAR
from benchmarks.sizes import QUICK, Sizes
from benchmarks.stores import linked_store, real_store, shard_set
from benchmarks.targets import Target

ROOT = Path(__file__).parents[1]
TINY = Sizes(
    rounds=1,
    asides=False,
    pack=(3, 6),
    scan=(20, 40),
    read=8,
    verify=4,
    migrate=(5,),
    derive=2,
    start=2,
)


def answer(runs: dict[str, list[float]], question: str = "pack", work: int = 100) -> Answer:
    roles: dict[str, Role] = {OURS: "ours", SYNCED: "limit"}
    return Answer(
        question=question,
        case={"samples": work, "cache": "warm", "workers": 2},
        work=work,
        unit="samples",
        runs={
            name: Runs(roles.get(name, "peer"), seconds, [50.0] * len(seconds))
            for name, seconds in runs.items()
        },
        load=0.1,
        took=1.0,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_run_keeps_the_time_and_memory_of_every_contestant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        one for name in ("pack", "scan", "derive") for one in run(name, TINY, tmp_path / "data")
    ]
    results = keep(answers, tmp_path / "results.json", tmp_path)

    assert results == json.loads((tmp_path / "results.json").read_text())
    assert {"cores", "memory_gb", "filesystem", "processor", "os"} == set(results["machine"])
    assert {"python", "shardwright", "numpy"} <= set(results["versions"])
    assert results["command"].startswith("python -m benchmarks")
    cases = [(one["question"], one["work"]) for one in results["answers"]]
    assert cases == [
        ("pack", 3), ("pack", 6), ("pack", 3), ("scan", 20), ("scan", 40), ("derive", 2),
    ]  # fmt: skip
    for one in results["answers"]:
        assert [name for name, runs in one["runs"].items() if runs["role"] == "ours"] == [OURS]
        for runs in one["runs"].values():
            assert len(runs["seconds"]) == 1
            assert min(runs["seconds"]) > 0
            assert len(runs["idle"]) == (1 if one["question"] == "derive" else 0)
        assert max(one["runs"][OURS]["peak_mb"]) > 5  # less no Python can be
    assert set(results["answers"][1]["runs"]) == {
        OURS, TAR, PLAIN, "webdataset ShardWriter", "bare copy", SYNCED
    }  # fmt: skip
    told = {row["target"].split(",")[0]: row["figure"] for row in results["targets"]}
    ours, tar = (answers[1].runs[name].median() for name in (OURS, TAR))
    assert told["pack: time to GNU tar's"] == pytest.approx(ours / tar, rel=0.01)
    assert told["start: seconds of --help"] is None
    assert "## pack: 6 samples, warm, 2 workers (1 round" in capsys.readouterr().out
    assert not (tmp_path / "data" / "out").exists()


@pytest.mark.parametrize(
    ("way", "workers"),
    [("shardwright", 1), ("loose", 1), ("sequential", 1), ("shardwright", 2)],
)
def test_every_way_of_reading_reads_every_sample(tmp_path: Path, way: str, workers: int) -> None:
    shards, store = shard_set(tmp_path, TINY.read), real_store(tmp_path, TINY.read)
    command: Command = [PYTHON, PEERS / "read_all.py", shards, store, str(workers), way]
    # The script itself asserts that as many samples came out as went in.
    assert 0 < timed(Contestant(way, command, times_itself=True))["seconds"] < 60


def test_a_linked_store_is_ready_to_be_packed(tmp_path: Path) -> None:
    import shardwright

    summary = shardwright.pack(
        derived_dir=linked_store(tmp_path, 40), output_dir=tmp_path / "out", dry_run=True
    )
    assert (summary.total_records, summary.ready_records, summary.written_samples) == (40, 40, 40)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_peak_memory_is_that_of_all_processes_with_shared_pages_once() -> None:
    script = (
        "import os, time\n"
        "shared = b'x' * 80_000_000\n"
        "if os.fork() == 0: own = b'y' * 40_000_000\n"
        "time.sleep(0.5)\n"
        "if 'own' not in globals(): os.wait()\n"
    )
    peak = timed(Contestant("forks", [PYTHON, "-c", script]))["peak_mb"]
    assert 120 < peak < 160


def test_contestants_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def writes(word: str) -> Contestant:
        return Contestant(word, ["sh", "-c", f"echo {word} >> {log}"])

    def before() -> None:
        with log.open("a") as file:
            file.write("before\n")

    slow = replace(writes("slow"), rounds=1)
    question = Question("pack", {}, [writes("one"), slow, writes("two")], 1, "words", before)
    answered = ask(question, rounds=2)
    first, second = ["before", "one", "before", "slow"], ["before", "two", "before", "one"]
    assert log.read_text().split() == [*first, *second, "before", "two"]
    assert [len(runs.seconds) for runs in answered.runs.values()] == [2, 1, 2]


def test_a_contestant_that_fails_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)broken: exit 1\n.*ZeroDivisionError"):
        timed(Contestant("broken", [PYTHON, "-c", "1 / 0"]))


def test_questions_asked_again_replace_their_answers_and_leave_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = [answer({OURS: [1.0]}, "pack", 3), answer({OURS: [2.0]}, "verify")]
    keep([replace(one, command="all") for one in first], path, tmp_path)
    keep([replace(answer({OURS: [3.0]}, "pack", 6), command="pack")], path, tmp_path)
    results = json.loads(path.read_text())
    assert results["command"] == "pack and all"
    kept = [Answer.from_dict(one) for one in results["answers"]]
    assert [(one.question, one.runs[OURS].seconds) for one in kept] == [
        ("pack", [3.0]),
        ("verify", [2.0]),
    ]


def test_a_target_is_held_against_the_largest_size_and_by_the_work_done() -> None:
    answers = [
        answer({OURS: [1.0, 2.0, 9.0], TAR: [4.0]}, work=100),
        answer({OURS: [5.0], TAR: [5.0]}, work=10),
    ]
    less = Target("time", "pack", against=TAR, at_most=0.5)
    assert less.figure(answers) == 0.5
    assert less.met(0.5)
    assert not less.met(0.51)
    more = Target("speed", "pack", against=TAR, at_least=3)
    assert more.figure(answers) == 2.0
    assert not more.met(2.0)
    linear = Target("growth", "pack", {"samples": 100}, "seconds", OURS, {"samples": 10}, 1.2)
    assert linear.figure(answers) == pytest.approx((2 / 100) / (5 / 10))
    assert Target("memory", "pack", measure="peak_mb", at_most=1000).figure(answers) == 50
    assert Target("absent", "verify", at_most=1).figure(answers) is None
    assert Target("absent", "pack", against="cp", at_most=1).figure(answers) is None


def test_bars_are_ours_first_then_from_fast_to_slow_with_our_aims() -> None:
    bars = plots.pack_bars(answer({PLAIN: [8.0], SYNCED: [2.0], OURS: [3.0, 4.0, 5.0]}))
    assert [(bar.name, bar.seconds, bar.aim) for bar in bars] == [
        (OURS, 4.0, None),
        (SYNCED, 2.0, 2.5),
        (PLAIN, 8.0, 2.0),
    ]
    assert (bars[0].fastest, bars[0].slowest) == (3.0, 5.0)


def test_lines_of_growth_go_from_small_to_large_where_there_is_more_than_one_size() -> None:
    answers = [
        answer({OURS: [3.0], PLAIN: [9.0]}, work=300),
        answer({OURS: [1.0]}, work=100),
    ]
    assert plots.growth(answers, "pack", {"cache": "warm"}, "seconds") == [
        plots.Line(OURS, [100, 300], [1.0, 3.0])
    ]
    assert plots.growth(answers, "pack", {"cache": "cold"}, "seconds") == []


def test_the_terminal_table_gives_ratios_to_ours_and_to_the_limit() -> None:
    told = report.table(answer({OURS: [2.0, 1.0, 3.0], TAR: [4.0], SYNCED: [1.0]}))
    rows = {re.split(r"\s{2,}", line)[0]: line.split() for line in told.splitlines()}
    assert rows[OURS][1:] == ["2.00", "1.00-3.00", "50", "1.00", "2.00", "50"]
    assert rows[TAR][2:] == ["4.00", "4.00-4.00", "25", "0.50", "4.00", "50"]
    assert "ours / best peer (GNU tar): 0.50; ours / fastest limit" in told


def results_of(answers: list[Answer]) -> dict[str, Any]:
    return {
        "date": "2026-01-01",
        "command": "python -m benchmarks",
        "machine": {"cores": 2, "memory_gb": 23.5, "filesystem": "ext4"},
        "versions": {"python": "3.11.7"},
        "answers": [asdict(one) for one in answers],
    }


def test_the_readme_tells_the_largest_size_and_marks_single_runs() -> None:
    told = report.readme(
        results_of(
            [
                answer({OURS: [1.0] * 5}, work=10),
                answer({OURS: [2.0] * 5, TAR: [4.0] * 5, SYNCED: [1.0] * 5}, work=100),
                answer({OURS: [7.0]}, "migrate"),
            ]
        ),
        "results.json",
    )
    rows = [line for line in told.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        "| pack: 100 samples, warm, 2 workers | **2 s, 50 MB** | GNU tar: 4 s, 50 MB (2) | "
        "bare copy, synced: 1 s, 50 MB (0.5) |",
        "| migrate: 100 samples, warm, 2 workers | **7 s, 50 MB, 1 round** |  |  |",
    ]
    assert "2 cores with 24 GiB, ext4, Python 3.11.7" in " ".join(told.split())


def test_the_readme_says_what_the_results_say() -> None:
    text = (ROOT / "README.md").read_text()
    section = text.partition("## How fast\n")[2].partition("\n## ")[0]
    path = re.findall(r"\]\((benchmarks/results/[^)]+)\)", section)[0]
    assert report.readme(json.loads((ROOT / path).read_text()), path) in section
    for plot in re.findall(r"!\[[^]]*\]\(([^)]+)\)", section):
        assert (ROOT / plot).is_file()


def test_a_quick_run_asks_what_every_run_asks() -> None:
    assert len(QUICK.pack) > 1  # the last but one is where the asides are
    assert len(QUICK.scan) > 1  # growth
