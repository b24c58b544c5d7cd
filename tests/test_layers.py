"""The order of the source: imports go one way, and one table knows the components."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
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


# Whatever opens a file by its path, wherever that leads; descriptors are open already.
OPENERS = {"open", "os.open", "io.open", "tarfile.open", "gzip.open", "zipfile.ZipFile"}
OPENERS |= {"Image.open", "np.load", "np.fromfile", "np.memmap", "mmap.mmap"}
METHODS = {"read_bytes", "read_text", "write_bytes", "write_text"}  # of a Path
OPEN_ALREADY = re.compile(
    r"fd|file|file\.fileno\(\)|-1|os\.devnull|os\.dup\(fd\)|npy\.open_array\(.*|(io\.)?BytesIO\(.*"
)
MAY_OPEN = {
    "regular.py": "here they are opened",
    "storage/disk.py": "creates files, which do not exist, and opens folders",
    "storage/files.py": "reads a URL",
    "looking/server.py": "reads files of the package, which may be in an archive",
}


def opens(path: Path) -> Iterator[str]:
    """Find the calls that open a file by its path."""
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name, given = ast.unparse(call.func), [ast.unparse(each) for each in call.args]
        if name in OPENERS:
            is_folder = name == "os.open" and "os.O_DIRECTORY" in given[1]
            if given and not OPEN_ALREADY.fullmatch(given[0]) and not is_folder:
                yield f"line {call.lineno}: {ast.unparse(call)}"
        elif isinstance(call.func, ast.Attribute):
            # Path.open has a mode or nothing; a storage's has a name.
            is_path = not call.args or isinstance(call.args[0], ast.Constant)
            opening = call.func.attr == "open" and is_path and not name.endswith("commits.open")
            if opening or call.func.attr in METHODS:
                yield f"line {call.lineno}: {ast.unparse(call)}"


def test_files_are_opened_only_where_pipes_and_devices_are_refused() -> None:
    """Whoever opens a pipe by another way waits for its other end."""
    found = {str(path.relative_to(SOURCE)): list(opens(path)) for path in MODULES}
    assert {name: calls for name, calls in found.items() if calls and name not in MAY_OPEN} == {}
    assert all(found[name] for name in MAY_OPEN)


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
    lengths = {str(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length >= 400} == {}


def test_only_storage_asks_whether_bytes_are_here_or_at_an_object_store() -> None:
    kinds = r"isinstance\([^()]+,\s*\(?(?:urls\.)?(?:Url|Path|\w*Remote\w*|\w*Local\w*)\b"
    text = r"\"://\"|\bSTORES\b|\"(?:boto3|obstore)\""
    asks = re.compile(rf"{kinds}|\bis_(?:url|remote|local)\(|{text}")
    outside = [path for path in MODULES if path.parent != SOURCE / "storage"]
    assert [str(path) for path in outside if asks.search(path.read_text())] == []


# Whatever changes the names on a disk, wherever that is.
CHANGES = {"rename", "replace", "renames", "link", "symlink", "truncate", "rmdir", "removedirs"}
CHANGES = {f"os.{name}" for name in CHANGES | {"unlink", "remove", "mkdir", "makedirs"}}
CHANGES |= {"shutil.rmtree", "shutil.move", "shutil.copy", "shutil.copy2", "shutil.copyfile"}
CHANGES_OF_A_PATH = {"unlink", "rename", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to"}
MAY_CHANGE = {
    "storage/disk.py": "here the calls are",
    "storage/cache.py": "nothing in a cache has to be durable",
}


def changes(path: Path) -> Iterator[str]:
    """Find the calls that change a disk without the seam for faults."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner, name = ast.unparse(call.func.value), call.func.attr
            of_a_path = name in CHANGES_OF_A_PATH and owner not in ("_disk", "steps", "self")
            if ast.unparse(call.func) in CHANGES or of_a_path:
                yield f"line {call.lineno}: {ast.unparse(call)}"


def test_a_disk_is_changed_only_where_tests_inject_faults() -> None:
    found = {str(path.relative_to(SOURCE)): list(changes(path)) for path in MODULES}
    assert {name: calls for name, calls in found.items() if calls and name not in MAY_CHANGE} == {}
    assert all(found[name] for name in MAY_CHANGE)
