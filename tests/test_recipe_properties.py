"""Recipes of any content: a recipe or an error of ours, and never a way out of a folder."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwright import recipes
from shardwright.errors import DamageError, ShardwrightError
from shardwright.recipes import SPECIFICATION, Component, Recipe, find
from shardwright.recipes.keys import COMPONENT, ENCODERS, IMAGES, TOP, keys_of
from shardwright.recipes.tables import Tables, tables_of
from shardwright.recipes.values import DTYPES
from shardwright.shards.format.keys import key as key_of
from shardwright.showing import recipe_text as showing

# How webdataset splits the name of a member into the key and the suffix of a sample.
SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "recipe.toml"


def require_safe(recipe: Recipe) -> None:
    """Whatever was accepted stays in its folder and is split where we mean it."""
    key = key_of("any.id/é", recipe.longest_key)
    for suffix in recipe.suffixes:
        match = SPLIT.match(f"{key}.{suffix}")
        assert match is not None
        assert match.groups() == (key, suffix)
        assert suffix == suffix.lower()
        assert len(f"{key}.{suffix}") <= 100
    assert len(set(recipe.suffixes)) == len(recipe.suffixes)
    folders = {component.folder.lower() for component in recipe.components}
    assert len(folders) == len(recipe.components)
    for folder in folders:
        assert os.path.normpath(f"store/{folder}") == f"store/{folder}"
        assert not folder.startswith(".")


# Texts that are nearly recipes: lines of real keys with values that are right or wrong.
WORDS = st.sampled_from(
    [
        *("../x", "t5.npy", "json", "a.webp", "__a.npy", "caption", "T5H.npy", "float16", "bool"),
        *("height/8", "any", "tokens", "prx", "my.code:Class", "patches", "64x64", "é", "\0", ""),
        *ENCODERS,
    ]
)
VALUES = st.recursive(
    st.one_of(WORDS, st.integers(-1, 600), st.booleans(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from([*TOP, *IMAGES, *COMPONENT, "unknown"])
HEADERS = st.sampled_from(
    [
        "[images]",
        "[paths]",
        "[component.vae]",
        "[component.t5]",
        "[component.new]",
        '[component."/"]',
    ]
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    lines = ['extends = "prx"'] if draw(st.booleans()) else []
    for header in draw(st.lists(HEADERS, unique=True, max_size=4)):
        table = draw(st.dictionaries(KEYS, VALUES, max_size=4))
        lines += [header, *(f"{key} = {showing.text(value)}" for key, value in table.items())]
    return "\n".join(lines)


@given(text=st.one_of(texts(), st.text(max_size=200)))
@settings(max_examples=100)
@example(text='extends = "prx"\n[component.vae]\nsuffix = "a.b.npy"')
def test_any_text_is_a_recipe_or_an_error_of_ours(file: Path, text: str) -> None:
    try:
        file.write_text(text)
        found = find(file)
    except UnicodeEncodeError:
        return
    except ShardwrightError:
        return
    require_safe(found.recipe)


# Recipes that are right


NAMES = st.from_regex(r"\A[a-z][a-z0-9_-]{0,12}\Z")
AXES = st.one_of(st.integers(1, 5000), st.sampled_from(["any", "height", "width/8", "height/16"]))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: text.strip() and "\0" not in text
)
FIELDS = st.from_regex(r"\A[A-Za-zé][A-Za-z0-9 é]{0,9}\Z").map(lambda name: f"f {name}")


@st.composite
def components(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the table of a component that is right, in which every key may occur."""
    encoder = draw(st.sampled_from([None, "my.code:Class", "entry", *ENCODERS]))
    caption = encoder is not None and draw(st.booleans())
    tokens = draw(st.integers(1, 600))
    kind = ENCODERS.get(encoder or "")
    if kind:
        caption = kind.source == "caption"
    axes: st.SearchStrategy[Any] = st.integers(1, 500) if caption else AXES
    lengths = st.lists(axes, min_size=1, max_size=2)
    drawn: dict[str, Any] = {
        "encoder": encoder,
        "model": draw(TEXT),
        "subfolder": draw(TEXT),
        "output": draw(st.sampled_from(kind.outputs)) if kind and kind.outputs else None,
        "layer": draw(st.integers(-30, 30)),
        "field": draw(FIELDS) + " text",
        "tokens": tokens,
        "template": draw(TEXT).replace("{", "") + "{caption}",
        "attention_mask": draw(st.booleans()),
        "mask": draw(st.booleans()),
        "format": draw(st.sampled_from(["jpg", "png", "webp"])),
        "quality": draw(st.integers(1, 100)),
        "source": "caption" if caption else "image",
        "options": draw(st.dictionaries(TEXT, st.lists(st.integers(0, 9) | TEXT), max_size=2)),
        "dtype": draw(st.sampled_from(list(DTYPES))),
        "shape": (["tokens"] if caption else []) + draw(lengths),
    }
    needed = {"encoder", "source", "dtype", "shape", "model", "tokens"}
    return {
        key: value
        for key, value in drawn.items()
        if key in keys_of(encoder) and value is not None and (key in needed or draw(st.booleans()))
    }


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    images: dict[str, Any] = {"fit": draw(st.sampled_from(["original", "bucket"]))}
    if draw(st.booleans()):
        sides = st.integers(64, 2048)
        images["resolution"] = draw(st.lists(sides, min_size=1, max_size=3, unique=True))
        images |= {"step": 64, "max_aspect": draw(st.floats(1, 4))}
        if len({side // 64 for side in images["resolution"]}) < len(images["resolution"]):
            images["resolution"] = images["resolution"][0]
    else:
        images["buckets"] = ["512x512", "448x576"]
    images["max_crop"] = draw(st.floats(0, 1))
    images["max_tokens_lost"] = draw(st.integers(0, 10_000))
    made = draw(st.dictionaries(NAMES, components(), min_size=1, max_size=4))
    return {"": {}, "paths": {}, "images": images} | {
        f"component.{name}": table for name, table in made.items()
    }


def read(file: Path, text: str) -> Recipe:
    file.write_text(text, encoding="utf-8", newline="")
    return find(file).recipe


@given(tables=tables())
@settings(max_examples=40)
def test_a_recipe_is_the_same_from_each_form_it_is_written_in(file: Path, tables: Tables) -> None:
    try:
        recipe = read(file, showing.with_origins(tables, {}))
    except ShardwrightError as error:  # two resolutions with one bucket, a name with one of ours
        assert re.search("listed|too; give each|is that of", str(error)), error  # noqa: PT017
        return
    require_safe(recipe)
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe
    full = showing.complete(tables)
    assert read(file, showing.with_origins(full, {"images.fit": "a\nb"})) == recipe
    assert read(file, showing.starting(full, "a\nb")) == recipe
    if all(component.is_known for component in recipe.components):
        assert recipes.decode(msgspec.json.encode(recipe), "x") == recipe
        assert read(file, showing.starting(showing.complete(tables_of(recipe)), "x")) == recipe


# Recipes from a store or a manifest


@given(data=st.one_of(st.binary(max_size=60), VALUES.map(lambda value: repr(value).encode())))
def test_any_bytes_are_a_recipe_or_damage(data: bytes) -> None:
    with pytest.raises(DamageError, match=r"^store: is not a recipe \(.*\); restore it$"):
        recipes.decode(data, "store")


@given(
    place=st.sampled_from(
        [*Component.__dataclass_fields__, "buckets", "levels", "fit", "selection"]
    ),
    value=VALUES,
    number=st.integers(0, 2),
)
@settings(max_examples=300)
@example(place="settings", value={"tokens": "x"}, number=2)
@example(place="mask", value={"field": "m", "suffix": "../m.npy", "length": 77}, number=2)
@example(place="mask", value={"field": "m", "suffix": "m.npy", "length": -1}, number=2)
@example(
    place="mask", value={"field": "m", "suffix": "m.npy", "length": 7, "dtype": "|O"}, number=2
)
@example(place="levels", value=[3, 5], number=0)
def test_one_changed_value_of_a_stored_recipe_is_valid_or_damage(
    place: str, value: object, number: int
) -> None:
    stored = msgspec.to_builtins(SPECIFICATION)
    (stored if place in stored else stored["components"][number])[place] = value
    try:
        recipe = recipes.decode(msgspec.json.encode(stored), "store")
    except DamageError:
        return
    except UnicodeEncodeError:
        return
    require_safe(recipe)
    for component in recipe.components:
        assert component.nbytes(component.shape_for(64, 64)) >= 0
        assert component.accepts(component.shape_for(640, 640))
        assert component.is_known
        if component.source == "caption" and component.mask is not None:
            assert component.tokens == component.mask.length


def test_recipes_of_earlier_versions_have_fewer_fields() -> None:
    old = {
        "components": [
            {
                "name": "seg",
                "folder": "seg",
                "suffix": "seg.npy",
                "dtype": "|u1",
                "shape": [{"of": "height", "divisor": 8}, 3],
                "inline": [],
                "source": "image",
                "mask": None,
            },
            {
                "name": "one",
                "folder": "one",
                "suffix": "1.npy",
                "dtype": "<f2",
                "shape": [5, 8],
                "inline": [],
                "source": "caption",
                "mask": {"field": "one_m", "suffix": "1m.npy", "length": 5, "dtype": "|u1"},
            },
        ],
        "buckets": [{"width": 32, "height": 16}],
    }
    recipe = recipes.decode(msgspec.json.encode(old), "store")
    assert [component.encoder for component in recipe.components] == [None, None]
    assert recipe.by_name["one"].tokens == 5
    assert (recipe.levels, recipe.fit) == ((), "original")


def test_settings_of_an_encoder_do_not_hide_the_values_of_a_component() -> None:
    stored = msgspec.to_builtins(SPECIFICATION)
    hidden = {"folder": "../out", "settings": {"model": "m", "folder": "in"}}
    stored["components"][1].update(hidden)
    with pytest.raises(DamageError, match=r"\[component.vae\] folder: '../out' is not valid"):
        recipes.decode(msgspec.json.encode(stored), "store")


def test_a_stored_recipe_is_complete() -> None:
    stored = msgspec.to_builtins(SPECIFICATION)
    stored["components"][1]["shape"] = []
    with pytest.raises(DamageError, match=r"\[component.vae\] has no dtype or no shape"):
        recipes.decode(msgspec.json.encode(stored), "store")
