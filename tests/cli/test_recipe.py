"""The command ``recipe``: what is in force, what is shipped, and a file to start from."""

from __future__ import annotations

import io
import json
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import shardwright
from shardwright.cli.main import main
from shardwright.recipes import SPECIFICATION, find
from shardwright.recipes.file import shipped
from shardwright.recipes.keys import COMPONENT, TABLES, TOP
from tests import commands
from tests.derive.pictures import make_images

OURS = """
extends = "prx"

[images]
resolution = [256, 512]

[component.t5]
model = "google-t5/t5-small"
tokens = 20

[component.words]
encoder = "my.code:Words"
source = "caption"
tokens = 30
mask = true
trim = true
dtype = "int32"
shape = ["tokens"]

[component.pose]
dtype = "bfloat16"
shape = ["any", 3]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    """Run the command in this process, which is quicker, and give what it prints."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["recipe", *words]) == 0
    return printed.getvalue()


def test_the_recipe_in_force_is_shown_with_the_origin_of_each_value() -> None:
    Path("shardwright.toml").write_text(OURS)
    output = run()
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0] == "# The recipe of shardwright.toml."
    for line in (
        'store = "data/derived" # prx',
        "resolution = [256, 512] # shardwright.toml",
        "step = 64 # default",
        "tokens = 20 # shardwright.toml",
        "# shape # from the model",
        'suffix = "t5h.npy" # prx',
        'folder = "pose" # default',
        "# component member dtype shape encoder model",
        "# vae vae.npy float16 (16, height/8, width/8) autoencoder black-forest-labs/FLUX.1-dev",
        "# t5 t5h.npy float16 from the model t5 google-t5/t5-small",
        "# words words.npy int32 (up to 30) my.code:Words -",
        "# pose pose.npy bfloat16 (any, 3) - -",
        "# 8 buckets, from 192x320 to 640x384, of 0.06 to 0.26 megapixels",
    ):
        assert line in lines
    assert max(map(len, output.splitlines())) <= 120


@pytest.mark.parametrize("name", [*shipped(), "ours.toml"])
def test_what_is_shown_is_a_recipe_file_of_the_same_recipe(name: str) -> None:
    Path("ours.toml").write_text(OURS)
    Path("saved.toml").write_text(run(name))
    assert find("saved.toml").recipe == find(name).recipe


@pytest.mark.parametrize("name", [*shipped(), "ours.toml"])
def test_a_file_to_start_from_gives_the_recipe_it_begins_as(name: str) -> None:
    Path("ours.toml").write_text(OURS)
    output = run(name, "--init")
    assert output.startswith(f"wrote shardwright.toml, which begins as {name}\nnext: edit it")
    assert find().recipe == find(name).recipe
    assert find().origin == "shardwright.toml"


def test_a_file_to_start_from_explains_every_key() -> None:
    shardwright.recipe(init="new.toml")
    text = Path("new.toml").read_text()
    for known in (TOP, *TABLES.values(), COMPONENT):
        for key, row in known.items():
            assert f"{key} = " in text
            assert f"# {row.about}" in text
    assert max(map(len, text.splitlines())) <= 100
    assert find("new.toml").recipe == SPECIFICATION


@pytest.mark.parametrize("known", [TOP, *TABLES.values(), COMPONENT])
def test_every_example_of_a_key_is_valid(known: dict[str, shardwright.recipes.keys.Key]) -> None:
    for key, row in known.items():
        assert row.allows(tomllib.loads(f"x = {row.example}")["x"]), key


def test_a_file_that_exists_is_not_replaced() -> None:
    Path("shardwright.toml").write_text(OURS)
    done = commands.run("recipe", "--init")
    assert done.returncode == 2
    assert done.stderr == (
        "error: shardwright.toml: exists already; give another file to --init, or remove this one\n"
    )
    assert Path("shardwright.toml").read_text() == OURS


def test_a_shipped_name_behind_init_is_not_taken_for_a_file() -> None:
    done = commands.run("recipe", "--init", "prx")
    assert done.returncode == 2
    assert "write shardwright recipe prx --init to start from it" in done.stderr
    assert not Path("prx").exists()


def test_shipped_recipes_are_listed_even_if_the_own_file_is_wrong() -> None:
    Path("shardwright.toml").write_text("wrong")
    lines = run("--list").splitlines()
    names = [line.partition(":")[0] for line in lines[::2]]
    assert names == list(shipped())
    assert names[0] == "prx"
    assert lines[:2] == [
        "prx: dinov3, vae, t5",
        "  The specification, and the default: an image as a vector and as a latent, its caption "
        "as tokens",
    ]
    for line in lines[1::2]:
        assert line.startswith("  ")
        assert len(line) > 20


def test_showing_a_file_checks_it() -> None:
    Path("shardwright.toml").write_text("[images]\nfti = 'bucket'\n")
    done = commands.run("recipe")
    assert done.returncode == 2
    assert done.stderr == (
        "error: shardwright.toml: [images] fti: no such key; did you mean fit?\n"
    )


def test_the_recipe_of_the_store_is_in_force_without_a_file() -> None:
    make_images(Path("data/approved"), 1, ((16, 16),))
    Path("ours.toml").write_text(
        'extends = "prx"\ncomponents = ["dinov3"]\n[component.dinov3]\nshape = [7]\n'
    )
    shardwright.derive(recipe="ours.toml", encoders="sketch")
    lines = [" ".join(line.split()) for line in run().splitlines()]
    assert lines[0] == "# The recipe of data/derived."
    assert "shape = [7] # data/derived" in lines
    assert "[component.vae]" not in lines
    run("--init")
    assert find().recipe == find("ours.toml").recipe


def test_the_recipe_of_any_store_is_shown_whatever_file_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_images(Path("pictures"), 1, ((16, 16),))
    Path("ours.toml").write_text(
        'extends = "prx"\ncomponents = ["dinov3"]\n[component.dinov3]\nshape = [7]\n'
    )
    shardwright.derive("pictures", recipe="ours.toml", encoders="sketch", derived_dir="elsewhere")
    Path("shardwright.toml").write_text("wrong")
    output = run("--derived-dir", "elsewhere")
    assert output.startswith("# The recipe of elsewhere.\n")
    Path("saved.toml").write_text(output)
    assert find("saved.toml").recipe == find("ours.toml").recipe
    run("--derived-dir", "elsewhere", "--init", "started.toml")
    assert find("started.toml").recipe == find("ours.toml").recipe
    assert main(["recipe", "--derived-dir", "pictures"]) == 2
    assert capsys.readouterr().err == (
        "error: pictures: has no recipe; give the folder of a store that shardwright derive has "
        "written to\n"
    )


def test_a_recipe_is_named_without_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "--recipe", "sdxl"]) == 2
    assert capsys.readouterr().err.endswith("no --recipe here: name it without the flag\n")
    assert main(["recipe", "sdxl", "--derived-dir", "x"]) == 2
    assert capsys.readouterr().err.endswith(
        "error: a recipe and --derived-dir are both given; give one of them\n"
    )


def test_json_holds_the_recipe_for_programs() -> None:
    told = json.loads(run("prx", "--json"))
    assert told["origin"] == "prx"
    assert told["components"][1] == {
        "name": "vae",
        "member": "vae.npy",
        "dtype": "float16",
        "shape": [16, "height/8", "width/8"],
        "trim": False,
        "encoder": "autoencoder",
        "model": "black-forest-labs/FLUX.1-dev",
    }
    assert told["buckets"][0] == "1024x1024"
    assert tomllib.loads(told["toml"])["component"]["t5"]["tokens"] == 77
    assert list(json.loads(run("--list", "--json"))["shipped"]) == list(shipped())


def test_an_empty_file_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "--init", ""]) == 2
    assert main(["recipe", ""]) == 2
    assert capsys.readouterr().err.count("is empty; give a path") == 2


def test_a_switch_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(shardwright.UsageError, match=r"^--list is 'no'; give True or False"):
        shardwright.recipe(list="no")  # type: ignore[arg-type]
