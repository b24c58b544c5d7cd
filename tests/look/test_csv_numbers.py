"""Numbers of a CSV are numbers: look sorts by them, and --where compares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.looking.viewer import Viewer
from tests.commands import run
from tests.derive.pictures import gradient, save
from tests.look.pictures import Served, previews
from tests.tars import all_ids

# As texts the scores would be in another order; one is blank. The codes are texts, because of 007.
ROWS = {"a": ("9", "007"), "b": ("10.5", "8"), "c": ("1e3", "9"), "d": ("", "10"), "e": ("-2", "1")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, its shards, and shards that were built of the same."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "photos").mkdir()
    for name in ROWS:
        save(folder / f"photos/{name}.png", gradient(24, 16, seed=ord(name)))
    rows = (f"{name}.png,a caption,{score},{code}\n" for name, (score, code) in ROWS.items())
    (folder / "caps.csv").write_text("file_name,caption,score,code\n" + "".join(rows))
    made = ("photos", "--captions", "caps.csv", "--encoders", "sketch")
    for words in (
        ("derive", *made, "--derived-dir", "derived"),
        ("pack", "--derived-dir", "derived", "--output-dir", "packed"),
        ("build", *made, "--output-dir", "built"),
    ):
        done = run(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", ["derived", "packed", "built"])
def test_look_sorts_by_the_numbers_of_a_csv(project: Path, kind: str) -> None:
    with Served(Viewer(previews(project / kind, project / "photos"))) as served:
        columns = {column["name"] for column in served.get("api/overview")["columns"]}
        assert "score" in columns
        assert "code" not in columns  # 007 is no number, so none of them is
        for order, expected in (("asc", "eabcd"), ("desc", "cbaed")):
            found = served.get(f"api/samples?sort=score&order={order}")["samples"]
            assert "".join(each["id"] for each in found) == expected
        found = served.get("api/samples?sort=score")["samples"]
        assert [each["numbers"].get("score") for each in found] == [-2, 9, 10.5, 1000, None]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("score >= 9", "abc"),
        ("score < 10", "ae"),
        ("score == 1000", "c"),
        ("code == '007'", "a"),
        ("code == '10'", "d"),
    ],
)
def test_where_compares_the_numbers_of_a_csv(
    project: Path, tmp_path: Path, where: str, expected: str
) -> None:
    made = ("photos", "--captions", "caps.csv", "--encoders", "sketch")
    for words in (("pack", "--derived-dir", "derived"), ("build", *made)):
        output = tmp_path / words[0]
        done = run(*words, "--where", where, "--output-dir", output, cwd=project)
        assert done.returncode == 0, done.stderr
        assert sorted(all_ids(output)) == list(expected)
