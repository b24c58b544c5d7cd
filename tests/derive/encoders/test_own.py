"""Encoders of the user's own: found as Python finds modules, and checked before they are called."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright.encoders import load
from shardwright.encoders.base import Encoder, Options
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component
from tests.derive.pictures import make_images, save

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_encoder"

GOOD = """
class Good:
    device = "cpu"
    def __init__(self, component, options):
        self.component, self.options = component, options
    def prepare(self, picture): return picture[:1, 0]
    def encode(self, batch): return batch
    def describe(self): return {"encoder": "good"}
"""

Write = Callable[..., Path]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules where Python finds them, and forget them afterwards."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(text: str, name: str = "mine.py") -> Path:
        (folder / name).write_text(textwrap.dedent(text))
        return folder

    yield write
    for name, found in list(sys.modules.items()):
        if str(getattr(found, "__file__", "")).startswith((str(folder), str(EXAMPLE))):
            del sys.modules[name]


def component(encoder: str) -> Component:
    return Component("c", "c", "c.npy", "|u1", (3,), encoder=encoder)


def loaded(encoder: str) -> Encoder:
    found = load("pretrained", component(encoder), Options(), {})
    assert not hasattr(found, "write")
    return found


def error(encoder: str) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(encoder)
    text = str(caught.value)
    start = f"[component.c] encoder: {encoder!r}: "
    assert text.startswith(start)
    return text.removeprefix(start)


def test_a_class_of_a_module_is_made_with_the_component_and_the_options(module: Write) -> None:
    module(GOOD)
    encoder: object = loaded("mine:Good")
    assert type(encoder).__name__ == "Good"
    assert vars(encoder) == {"component": component("mine:Good"), "options": Options()}


def test_a_class_of_a_package_is_found(module: Write) -> None:
    folder = module("", "unrelated.py")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "est.py").write_text(GOOD)
    assert loaded("deep.er.est:Good").describe() == {"encoder": "good"}


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        (
            "no.such:Thing",
            "there is no module no; install its package, or add its folder to PYTHONPATH",
        ),
        (
            "mine.deeper:Good",
            "there is no module mine.deeper; install its package, or add its folder to PYTHONPATH",
        ),
        ("mine:Goud", "mine has no class Goud; did you mean Good?"),
        ("mine:Xyzzy", "mine has no class Xyzzy; choose from Good"),
        ("mine:", 'is not the name of a class; write "package.module:Class"'),
        (":Good", 'is not the name of a class; write "package.module:Class"'),
        (".mine:Good", 'is not the name of a class; write "package.module:Class"'),
        ("../mine:Good", 'is not the name of a class; write "package.module:Class"'),
        ("mine:Good()", 'is not the name of a class; write "package.module:Class"'),
        (
            "autoencoders",
            "is not the name of a class; "
            'did you mean autoencoder?, or write "package.module:Class"',
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_explained(module: Write, encoder: str, expected: str) -> None:
    module(GOOD)
    assert error(encoder) == expected


def test_a_module_without_classes_is_named(module: Write) -> None:
    module("x = 1")
    assert error("mine:Good") == "mine has no class Good; name a class of another module"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise RuntimeError('no GPU\\nhere')", "RuntimeError: no GPU"),
        ("import missing_dependency", "ModuleNotFoundError: No module named 'missing_dependency'"),
        ("def f(:", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("from os import nothing", "ImportError: cannot import name 'nothing' from 'os'"),
        ("def __getattr__(name): import absent", "ModuleNotFoundError: No module named 'absent'"),
    ],
)
def test_a_module_that_fails_to_import_is_named_with_its_error(
    module: Write, text: str, expected: str
) -> None:
    module(text)
    found = error("mine:Good")
    assert found.startswith(f"importing mine fails with {expected}")
    assert found.endswith("; correct it until python -c 'import mine' works")


CALLED = """
called = []
class Half:
    def __init__(self, *given): called.append("init")
    def prepare(self, picture): ...
    describe = "a text"
def function(component, options): called.append("function")
instance = object()
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Half", "Half of mine is not an encoder: no method encode, describe; see ImageEncoder"),
        ("function", "mine has no class function; "),
        ("instance", "mine has no class instance; "),
        ("called", "mine has no class called; "),
    ],
)
def test_what_is_no_encoder_is_refused_before_it_is_called(
    module: Write, name: str, expected: str
) -> None:
    module(CALLED)
    assert error(f"mine:{name}").startswith(expected)
    assert sys.modules["mine"].called == []


def test_an_encoder_that_cannot_be_made_is_named_with_its_error(module: Write) -> None:
    module(
        GOOD
        + """
class NoArguments(Good):
    def __init__(self): ...
class Raising(Good):
    def __init__(self, component, options): raise KeyError("cells")
class Bare(Good):
    device = property()
    def __init__(self, component, options): ...
class Careful(Good):
    def __init__(self, component, options):
        from shardwright import InputMissingError
        raise InputMissingError("no weights", path="x.bin")
"""
    )
    fails = "fails with TypeError: NoArguments.__init__() takes 1 positional argument"
    assert error("mine:NoArguments").startswith(f"NoArguments(component, options) {fails}")
    fix = "correct its __init__"
    expected = f"Raising(component, options) fails with KeyError: 'cells'; {fix}"
    assert error("mine:Raising") == expected
    expected = "Bare of mine is not an encoder: no attribute component, device; "
    assert error("mine:Bare").startswith(expected)
    with pytest.raises(InputMissingError, match=r"x\.bin: no weights"):
        loaded("mine:Careful")


def test_a_protocol_is_not_an_encoder() -> None:
    expected = "ImageEncoder(component, options) fails with TypeError: Protocols cannot"
    assert error("shardwright:ImageEncoder").startswith(expected)


def test_modules_of_the_working_folder_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying_here.py").write_text("open('sprung', 'w')")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert error("lying_here:Good").startswith("there is no module lying_here; ")
    assert sys.path == before
    assert not Path("sprung").exists()


def test_with_sketches_nothing_of_the_users_own_is_imported(module: Write) -> None:
    module("raise RuntimeError")
    assert load("sketch", component("mine:Good"), Options(), {}).describe()["encoder"] == "sketch"


def test_the_example_passes_its_own_test() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", EXAMPLE],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    lines = sum(len(path.read_text().splitlines()) for path in EXAMPLE.glob("*.py"))
    assert lines < 60


def test_integers_that_the_component_cannot_hold_are_failures_and_not_stored(
    module: Write, tmp_path: Path
) -> None:
    module(GOOD.replace("return batch", "return batch[:, 0].astype('int64') + 200"))
    (tmp_path / "recipe.toml").write_text(
        'extends = "prx"\ncomponents = ["c"]\n'
        '[component.c]\nencoder = "mine:Good"\ndtype = "uint8"\nshape = [3]\n'
    )
    for name, level in (("dark", 9), ("bright", 90)):
        save(tmp_path / "images" / f"{name}.png", np.full((8, 8, 3), level, np.uint8))
    made = shardwright.derive(
        tmp_path / "images", recipe=tmp_path / "recipe.toml", derived_dir=tmp_path / "store"
    )
    assert (made.derived, made.failed) == (1, 1)
    assert [path.name for path in (tmp_path / "store" / "c").iterdir()] == ["dark.npy"]
    failures = (tmp_path / "store" / ".shardwright" / "failures.jsonl").read_text()
    assert "c: too large a value for uint8" in failures


def test_the_example_makes_a_store_and_shards_by_its_class(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    images = make_images(tmp_path / "images", 3)
    store, shards = tmp_path / "store", tmp_path / "shards"
    made = shardwright.derive(images, recipe=EXAMPLE / "shardwright.toml", derived_dir=store)
    assert (made.derived, made.components["colours"].made) == (3, 3)
    assert shardwright.pack(derived_dir=store, output_dir=shards).written_samples == 3
    assert not shardwright.verify(shards, read_data=True, against=store).damaged
    for sample in shardwright.open(shards):
        with Image.open(io.BytesIO(sample["picture.jpg"])) as image:
            pixels = np.array(image)
        height, width = (side // 4 for side in pixels.shape[:2])
        corner = pixels[:height, :width].mean(axis=(0, 1)) / 255
        assert np.allclose(sample["colours.npy"][:3], corner, atol=0.02)
