"""The order of the source: imports go one way, and one table knows the components."""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from fnmatch import fnmatch
from pathlib import Path

import pytest

import shardwright

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shardwright"
MODULES = sorted(SOURCE.rglob("*.py"))


def test_the_tests_test_this_source() -> None:
    assert Path(shardwright.__file__).parent == SOURCE


def test_no_folder_of_tests_has_a_name_that_pytest_passes_over(
    pytestconfig: pytest.Config,
) -> None:
    passed_over = pytestconfig.getini("norecursedirs")
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in folders if any(fnmatch(name, each) for each in passed_over)] == []


def test_imports_go_only_leftwards() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "2 kept, 0 broken" in done.stdout


def test_every_module_has_its_layer() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    modules = {path.stem for path in SOURCE.glob("*.py")}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    for name in (modules | packages) - {"__init__", "__main__"}:
        assert f"shardwright.{name}" in text, f"{name} is in no layer"


def strings(path: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [token.string.strip("\"'") for token in tokens if token.type == tokenize.STRING]


@pytest.mark.parametrize("word", ["dinov3", "vae", "t5", "vae_latents", "t5_hidden", "t5h.npy"])
def test_only_the_recipe_names_components(word: str) -> None:
    naming = [path for path in MODULES if word in strings(path)]
    allowed = {SOURCE / "recipes/keys.py", *(SOURCE / "encoders").glob("*.py")}
    assert set(naming) <= allowed  # as names of encoders, and as examples
    assert word in (SOURCE / "recipes/shipped/prx.toml").read_text()


def test_modules_are_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length >= 400} == {}
