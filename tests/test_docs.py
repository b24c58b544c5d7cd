"""What README and docs show works as it is written: commands, their output, and Python."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shardwright.recipes import find, keys
from shardwright.recipes.values import DTYPES
from tests.commands import run
from tests.derive.pictures import make_images
from tests.servers import new_bucket

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/building.md",
    "docs/curating.md",
    "docs/looking.md",
    "docs/recipes.md",
    "docs/scale.md",
    "docs/training.md",
]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo, and with images of one bucket after the commands of the flow."""
    folder = tmp_path_factory.mktemp("project")
    make_images(folder / "data/approved", 17, ((64, 92),))
    flow = (ROOT / "README.md").read_text().split("## The flow")[1].split("|")[0]
    commands = re.findall(r"`shardwright ([^`]+)`", flow)
    assert commands == ["derive --fit bucket", "pack", "build --fit bucket"]
    for recipe in (recipe for page in PAGES for recipe in blocks(page, "toml")):
        if named := re.match(r"# (\S+\.toml)\n", recipe):
            (folder / named[1]).write_text(recipe)
    for command in (f"{commands[0]} --encoders sketch", commands[1], "demo demo"):
        done = run(*command.split(), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_every_page_with_code_is_tried() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    coded = [page for page in pages if re.search(r"^```(python|console)", page.read_text(), re.M)]
    assert [str(page.relative_to(ROOT)) for page in coded] == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_python_of_a_page_print_what_it_shows(
    page: str, project: Path, request: pytest.FixtureRequest
) -> None:
    if page == "docs/scale.md":
        request.getfixturevalue("bucket")  # which the environment names, as it names a user's
        new_bucket(request.getfixturevalue("moto"), "my-shards")
    for session in blocks(page, "console"):
        for command in re.findall(r"^\$ (.*)", session, re.M):
            words = shlex.split(command)
            if words[0] != "shardwright":
                subprocess.run(command, shell=True, cwd=project, check=True, timeout=50)
                continue
            done = run(*words[1:], cwd=project, COLUMNS="120")
            shown = session.partition(f"$ {command}\n")[2].partition("\n\n$ ")[0]
            printed = done.stderr[done.stderr.find("error: ") :] if done.returncode else done.stdout
            assert without_times(printed) == without_times(shown), done.stderr
    code = "\n".join(blocks(page, "python"))
    read = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, timeout=500
    )
    assert read.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", code), read.stderr


def test_every_recipe_in_the_docs_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    for page in PAGES:
        for recipe in blocks(page, "toml"):
            file.write_text(recipe)
            assert find(file).recipe.components


def test_the_reference_of_recipes_has_every_key_once_with_a_valid_example() -> None:
    text = (ROOT / "docs/recipes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^`|]+)`[^|]* \| [^|]+ \|$", text, re.M)
    tables = (keys.TOP, keys.PATHS, keys.IMAGES, keys.SPLIT, keys.RAY, keys.COMPONENT)
    known = {name: key for table in tables for name, key in table.items()}
    # The fit of pictures and that of a component have the same values.
    assert sorted(name for name, _ in rows) == sorted(name for table in tables for name in table)
    for name, example in rows:
        assert known[name].allows(tomllib.loads(f"x = {example}")["x"]), name
    for name, kind in keys.ENCODERS.items():
        assert f"`{name}`" in text
        assert all(f'`"{output}"`' in text for output in kind.outputs)
    assert all(f"`{name}`" in text for name in DTYPES)


def without_times(output: str) -> str:
    return re.sub(r"\[\d.*\]", "", output).strip()


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
