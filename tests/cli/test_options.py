"""The flags that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cli.main import main


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
