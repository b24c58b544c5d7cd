"""A library that does not work is named, with the error of the package that is the cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.encoders.packages import broken, is_import, require
from shardwright.errors import MissingExtraError, UsageError
from tests.derive.encoders.test_pretrained import Checkpoints, encoder
from tests.durability.soak import SOAK

SOURCES = Path(__file__).parents[3] / "src"
SCRIPT = """
import sys
from shardwright.encoders import load
from shardwright.encoders.base import Options
from shardwright.errors import ShardwrightError
from tests.derive.encoders.models import with_model
from tests.derive.encoders.test_pretrained import COMPONENT
for name, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        load("pretrained", with_model(COMPONENT[name], folder), Options(), {})._model
    except ShardwrightError as error:
        print(type(error).__name__, error)
"""


def package(folder: Path, name: str, code: str) -> None:
    """Install a package of one file."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    about = folder / f"{name}-9.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0.0\n")


FIX = (
    "--debug shows which package fails: install that one again, or uninstall it; then run pip "
    "install '.[encode]' in the checkout of shardwright"
)
TORCHVISION = "import torch\n@torch.library.register_fake('torchvision::nms')\ndef nms(): pass\n"


@pytest.mark.skipif(not SOAK, reason="imports both libraries once more: make soak")
def test_behind_real_libraries_the_error_of_a_torchvision_of_another_torch_is_shown(
    tmp_path: Path, checkpoints: Checkpoints
) -> None:
    package(tmp_path, "torchvision", TORCHVISION)
    models = [word for n in ("dinov3", "vae") for word in (n, str(checkpoints[n]))]
    path = os.pathsep.join(map(str, (tmp_path, SOURCES, SOURCES.parent)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *models],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for library, line in zip(("transformers", "diffusers"), lines, strict=True):
        assert line == (
            f"MissingExtraError {library} does not work (RuntimeError: operator torchvision::nms "
            f"does not exist); {FIX}"
        )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "from json import nothing_like_it",
            "broken_one does not work (ImportError: cannot import name 'nothing_like_it' from "
            f"'json' ({json.__file__})); {FIX}",
        ),
        (
            "import not_installed.part",
            "broken_one does not work (ModuleNotFoundError: No module named 'not_installed'); "
            f"{FIX}",
        ),
        (
            "raise OSError('libcudart.so.13: cannot open shared object file')",
            "broken_one does not work (OSError: libcudart.so.13: cannot open shared object "
            f"file); {FIX}",
        ),
    ],
)
def test_a_library_that_cannot_be_imported_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    package(tmp_path, "broken_one", code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError) as caught:
        require(["json", "broken_one"])
    assert str(caught.value) == message


def test_a_torch_that_is_too_old_is_refused_with_the_version_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.delattr(type(torch.backends.cudnn), "conv")  # which torch 2.8 has not
    with pytest.raises(MissingExtraError, match=r"need torch 2\.9 or later, not .*; run pip"):
        encoder("vae", tmp_path)


def test_a_library_that_is_not_there_is_called_missing() -> None:
    with pytest.raises(MissingExtraError, match=r"need no_such_library .*'.\[encode\]'"):
        require(["no_such_library"])


@pytest.mark.parametrize(
    ("part", "code", "message"),
    [
        (
            "broken_part",
            "raise ValueError('numpy.dtype size changed')",
            f"lazy_library does not work (ValueError: numpy.dtype size changed); {FIX}",
        ),
        (
            "torchvision",
            TORCHVISION,
            "lazy_library does not work (RuntimeError: operator torchvision::nms does not exist); "
            f"{FIX}",
        ),
    ],
)
def test_a_part_of_a_library_that_fails_late_is_found_behind_what_the_library_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, code: str, message: str
) -> None:
    package(
        tmp_path,
        "lazy_library",
        "def __getattr__(name):\n"
        "    try:\n"
        f"        import {part}\n"
        "    except Exception as error:\n"
        "        raise RuntimeError('Failed to import lazy_library.models') from error\n",
    )
    (tmp_path / f"{part}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lazy_library", raising=False)
    import lazy_library  # type: ignore[import-not-found]

    with pytest.raises(RuntimeError) as caught:
        _ = lazy_library.Model
    assert is_import(caught.value)
    assert str(broken("lazy_library", caught.value)) == message


@pytest.mark.parametrize("name", ["dinov3", "vae"])
def test_damaged_weights_are_reported_as_such_also_while_another_error_is_handled(
    tmp_path: Path, checkpoints: Checkpoints, name: str
) -> None:
    folder = shutil.copytree(checkpoints[name], tmp_path / name)
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    try:
        exec(compile("import no_such_module", "user.py", "exec"))  # as a user's program may
    except ImportError:
        with pytest.raises(UsageError, match=r"cannot be loaded as .*; download the model again$"):
            _ = encoder(name, folder)._model


def test_the_first_of_two_imports_that_failed_is_the_cause_unless_it_is_hidden() -> None:
    def imported(end: str) -> BaseException:
        code = f"try:\n import not_there\nexcept ImportError:\n raise ImportError('no'){end}"
        with pytest.raises(ImportError) as caught:
            exec(code)
        return caught.value

    assert "No module named 'not_there'" in str(broken("library", imported("")))
    assert "(ImportError: no)" in str(broken("library", imported(" from None")))


def test_a_damaged_file_is_not_taken_for_a_broken_library() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert not is_import(caught.value)
