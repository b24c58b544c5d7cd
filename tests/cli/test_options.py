"""The flags that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cli.main import main, parser
from tests.building.builds import records
from tests.commands import run
from tests.derive.pictures import make_images
from tests.stores import Store
from tests.tars import all_ids


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "a", "--resolution", "512"], "write resolution = N in place of buckets"),
        (["build", "a", "--resolution=512"], "write resolution = N in place of buckets"),
        (["build", "a", "--workers", "4"], "give --device cpu:N"),
        (["build", "a", "--derived-dir", "b"], "with --output-dir"),
        (
            ["derive", "a", "--output-dir", "b"],
            "makes a store, in --derived-dir; for shards",
        ),
        (["derive", "a", "-o", "b"], "makes a store, in --derived-dir; for shards"),
        (["derive", "a", "--output", "b"], "makes a store, in --derived-dir; for shards"),
        (["build", "a", "--resume"], "run the same command again"),
        (["derive", "a", "--resume"], "run the same command again"),
        (["derive", "a", "--workers", "2"], "give --device cpu:N"),
        (["pack", "a", "--images", "b"], "pack reads a store"),
        (["pack", "--store", "a"], "give the store without a flag, or with --derived-dir"),
        (["pack", "--input-dir=a"], "give the store without a flag, or with --derived-dir"),
        (["pack", "a", "--force"], "give --overwrite"),
        (["pack", "a", "--maxcount", "9"], "give --shard-size N"),
        (["pack", "a", "--filter", "b"], "give --where EXPRESSION"),
    ],
    ids=" ".join,
)
def test_a_flag_of_another_tool_is_refused_with_the_one_that_is_meant(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    flag = next(word for word in words if word.startswith("-")).partition("=")[0]
    error = capsys.readouterr().err
    assert f"shardwright {words[0]}: error: no {flag} here: " in error
    assert said in error
    assert not list(tmp_path.iterdir())


def test_build_takes_o_for_its_output_folder(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    done = run("build", images, "--encoders", "sketch", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "out")) == 3


@pytest.mark.parametrize("flag", ["-o", "--output"])
def test_pack_takes_its_store_and_output_as_people_try_first(
    flag: str, store: Store, output: Path
) -> None:
    done = run("pack", store.root, flag, output)
    assert done.returncode == 0, done.stderr
    assert len(all_ids(output)) == len(store.records)
    done = run("pack", store.root, "--derived-dir", store.root, flag, output)
    assert (done.returncode, done.stderr) == (
        2,
        "error: STORE with --derived-dir; give one of them\n",
    )


def test_pack_of_a_shard_folder_names_the_flag_for_that(store: Store, output: Path) -> None:
    assert run("pack", store.root, "-o", output).returncode == 0
    done = run("pack", output)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {output}: is a shard folder; give the store that is packed, and the folder of the "
        "shards with --output-dir\n"
    )
