"""The flags that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cli.main import main, parser


@pytest.mark.parametrize(
    "words",
    [
        ["demo", ""],
        ["derive", ""],
        ["derive", "--derived-dir", ""],
        ["derive", "--captions", ""],
        ["migrate", "--jsonl", ""],
        ["status", "--derived-dir="],
        ["pack", "--output-dir", ""],
        ["verify", ""],
        ["verify", "--against", ""],
        ["index", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused_and_does_not_mean_here(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "is empty; give a path, or . for the current folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--ids-file", "--exclude-ids-file"])
def test_a_second_list_of_ids_is_refused_and_does_not_replace_the_first(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", flag, "one.txt", flag, "two.txt"]) == 2
    said = f"argument {flag}: given twice; put all ids into one list"
    assert said in capsys.readouterr().err


def test_a_split_that_is_given_in_pieces_has_all_parts() -> None:
    options = parser().parse_args(["pack", "--split", "val=10%", "--split", "test=5%,b=1%"])
    assert options.split == "val=10%,test=5%,b=1%"
    assert parser().parse_args(["pack"]).split is None
