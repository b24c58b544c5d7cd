"""Recipe files: what extends what, and what is wrong, by file, table and key."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardwright.buckets import Bucket
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import ANY, SPECIFICATION, Component, Mask, RecipeFile, Side, find
from shardwright.recipes.file import shipped

NAME = "shardwright.toml"
POSE = """
[images]
resolution = 256

[component.pose]
dtype = "float16"
shape = ["any", 133, 3]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, name: str = NAME) -> RecipeFile:
    Path(name).write_text(text)
    return find(name)


def component(text: str, name: str = "new") -> Component:
    """Read one component that is added to the specification's."""
    return read(f'extends = "prx"\n[component.{name}]\n{text}').recipe.by_name[name]


def wrong(text: str) -> str:
    """Give the error for a file, without its name."""
    with pytest.raises(UsageError) as raised:
        read(text)
    assert str(raised.value).startswith(f"{NAME}: ")
    assert raised.value.path == NAME
    return str(raised.value).removeprefix(f"{NAME}: ")


# Which recipe it is


def test_without_a_file_the_specification_is_in_force() -> None:
    found = find()
    assert found.recipe == SPECIFICATION
    assert found.origin is None
    assert found.paths == {
        "images": "data/approved",
        "store": "data/derived",
        "shards": "data/shards",
    }


def test_the_file_of_the_working_folder_is_in_force() -> None:
    Path(NAME).write_text(POSE)
    found = find()
    assert found.origin == NAME
    assert list(found.recipe.by_name) == ["pose"]
    assert find("prx").recipe == SPECIFICATION, "a name on the command line goes first"


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_found_by_its_name(name: str) -> None:
    found = find(name)
    assert found.origin == name
    assert set(found.origins.values()) <= {name, "prx"}, "paths and buckets may be those of prx"
    assert {found.origins[f"component.{c.name}.encoder"] for c in found.recipe.components} == {name}
    assert all(each.is_known for each in found.recipe.components)


def test_a_shipped_name_is_never_a_file_by_accident() -> None:
    Path("prx").write_text(POSE)
    assert find("prx").recipe == SPECIFICATION
    assert list(find("./prx").recipe.by_name) == ["pose"]


@pytest.mark.parametrize("given", ["no.toml", "sdlx", "x" * 300, "a\0b", "", ".", "/dev/null/x"])
def test_a_recipe_that_is_not_there_is_reported_with_those_that_are(given: str) -> None:
    with pytest.raises(InputMissingError, match=r"give a file, or one of prx, .*sdxl"):
        find(given)


# What extends what


def test_a_file_overrides_what_it_extends_key_by_key() -> None:
    found = read('extends = "prx"\n[paths]\nstore = "big"\n[component.t5]\ntokens = 512\n')
    t5 = found.recipe.by_name["t5"]
    assert t5.shape == (512, 1024)
    assert t5.mask == Mask("t5_attention_mask", "t5m.npy", 512)
    assert t5.settings["model"] == "google-t5/t5-large"
    assert found.recipe.components[:2] == SPECIFICATION.components[:2]
    assert found.paths == {**find("prx").paths, "store": "big"}
    assert found.origins["component.t5.tokens"] == NAME
    assert found.origins["component.t5.model"] == "prx"


def test_files_extend_files_relative_to_themselves() -> None:
    Path("team/parts").mkdir(parents=True)
    Path("team/parts/base.toml").write_text('extends = "prx"\n[images]\nfit = "bucket"\n')
    Path("team/ours.toml").write_text('extends = "parts/base.toml"\n[component.t5]\ntokens = 9\n')
    found = read('extends = "team/ours.toml"\n[component.t5]\ntrim = true\n')
    t5 = found.recipe.by_name["t5"]
    assert (found.recipe.fit, t5.tokens, t5.trim) == ("bucket", 9, True)
    assert found.origins["images.fit"] == "team/parts/base.toml"
    assert found.origins["component.t5.tokens"] == "team/ours.toml"


def test_another_encoder_replaces_a_component() -> None:
    found = read(
        'extends = "prx"\n[component.t5]\nencoder = "clip"\nmodel = "openai/clip"\ntokens = 10\n'
    )
    t5 = found.recipe.by_name["t5"]
    assert (t5.folder, t5.suffix, t5.mask, t5.inline, t5.dtype, t5.shape) == (
        *("t5", "t5.npy", None, (), "", ()),
    )
    assert "component.t5.shape" not in found.origins


@pytest.mark.parametrize("line", ['model = "my/vae"', 'subfolder = "other"'])
def test_another_model_may_have_another_shape(line: str) -> None:
    vae = read(f'extends = "prx"\n[component.vae]\n{line}\n').recipe.by_name["vae"]
    assert (vae.shape, vae.dtype, vae.folder) == ((), "<f2", "vae_latents")
    assert not vae.is_known
    kept = read(f'extends = "prx"\n[component.vae]\n{line}\nshape = [4, "height/8", "width/8"]\n')
    assert kept.recipe.by_name["vae"].shape == (4, Side("height", 8), Side("width", 8))


def test_the_same_model_again_keeps_the_shape() -> None:
    text = 'extends = "prx"\n[component.vae]\nmodel = "black-forest-labs/FLUX.1-dev"\n'
    assert read(text).recipe == SPECIFICATION


def test_buckets_and_resolution_replace_each_other() -> None:
    Path("base.toml").write_text('extends = "prx"\n[images]\nresolution = 512\nstep = 32\n')
    assert find("base.toml").recipe.buckets[0] == Bucket(512, 512)
    listed = read('extends = "base.toml"\n[images]\nbuckets = ["64x64"]\n')
    assert listed.recipe.buckets == (Bucket(64, 64),)


def test_components_chooses_and_orders() -> None:
    found = read('extends = "prx"\ncomponents = ["t5", "dinov3"]\n')
    assert list(found.recipe.by_name) == ["t5", "dinov3"]
    assert found.recipe.suffixes == ("json", "t5h.npy", "t5m.npy", "dinov3.npy")


def test_a_component_that_a_later_file_adds_is_chosen_too() -> None:
    Path("base.toml").write_text('extends = "prx"\ncomponents = ["t5"]\n')
    found = read('extends = "base.toml"\n[component.pose]\ndtype = "float16"\nshape = [3]\n')
    assert list(found.recipe.by_name) == ["t5", "pose"]


@pytest.mark.parametrize(
    "chain", [["a.toml"], ["a.toml", "b.toml"], ["a.toml", "./c.toml", "b.toml"]]
)
def test_a_circle_of_files_is_shown(chain: list[str]) -> None:
    for name, other in zip(chain, [*chain[1:], chain[0]], strict=True):
        Path(name).write_text(f'extends = "{other}"\n')
    circle = " extends ".join([*(str(Path(name)) for name in chain), "a.toml"])
    with pytest.raises(UsageError, match="extends itself") as raised:
        find("a.toml")
    assert raised.value.fix == f"break the circle: {circle}"


def test_a_circle_through_a_link_is_found() -> None:
    Path("a.toml").write_text('extends = "b.toml"\n')
    Path("b.toml").symlink_to("a.toml")
    with pytest.raises(UsageError, match="extends itself"):
        find("a.toml")


def test_a_missing_file_that_another_extends_names_both() -> None:
    Path("a.toml").write_text('extends = "lost.toml"\n')
    with pytest.raises(InputMissingError, match=r"^lost.toml: .*, but a.toml extends it; give a"):
        find("a.toml")


def test_a_long_chain_of_files_is_read() -> None:
    Path("0.toml").write_text(POSE)
    for number in range(1, 300):
        Path(f"{number}.toml").write_text(f'extends = "{number - 1}.toml"\n')
    assert find("299.toml").recipe == find("0.toml").recipe


def test_an_error_names_the_file_that_holds_the_mistake() -> None:
    Path("base.toml").write_text('extends = "prx"\n[component.vae]\nfolder = "t5_hidden"\n')
    with pytest.raises(UsageError, match=r"^base.toml: \[component.t5\] folder: 't5_hidden' is th"):
        find("base.toml")
    Path("base.toml").write_text('extends = "prx"\n[component.vae]\ntokens = 5\n')
    with pytest.raises(UsageError, match=r"^base.toml: \[component.vae\] tokens: encoder"):
        read('extends = "base.toml"\n[component.t5]\ntokens = 5\n')


# What a component becomes


def test_only_the_axes_say_what_follows_the_picture_or_is_free() -> None:
    made = component(
        'encoder = "my.code:Class"\nsource = "caption"\ntokens = 7\ndtype = "int16"\n'
        'shape = ["tokens", "any", 3]\n'
    )
    assert made.shape == (7, ANY, 3)
    assert component('dtype = "bool"\nshape = ["height", "width/16"]\n').shape == (
        *(Side("height", 1), Side("width", 16)),
    )


def test_an_array_of_another_tool_needs_no_encoder() -> None:
    pose = read(POSE).recipe.by_name["pose"]
    assert pose == Component("pose", "pose", "pose.npy", "<f2", (ANY, 133, 3), source="elsewhere")


def test_a_picture_has_the_shape_of_a_picture() -> None:
    made = component('encoder = "picture"\nformat = "webp"\n')
    assert (made.suffix, made.dtype, made.is_array) == ("new.webp", "|u1", False)
    assert made.shape_for(20, 10) == (10, 20, 3)
    assert made.settings == {"format": "webp", "quality": 95}


def test_defaults_of_an_encoder_are_filled_in() -> None:
    made = component('encoder = "t5"\nmodel = "google/t5-v1_1-xxl"\n')
    assert made.mask == Mask("new_mask", "new_mask.npy", 512)
    assert made.settings == {"model": "google/t5-v1_1-xxl", "tokens": 512, "attention_mask": True}
    assert not made.is_known


def test_the_vector_of_a_caption_has_no_mask_and_no_layer() -> None:
    made = component('encoder = "clip"\nmodel = "m"\noutput = "pooled"\nmask = true\nlayer = -2\n')
    assert made.mask is None
    assert "layer" not in made.settings


def test_options_reach_an_encoder_of_ones_own() -> None:
    made = component(
        'encoder = "my.code:Class"\ndtype = "uint8"\nshape = [3]\n'
        'options = { scale = 2, names = ["a", "b"], deep = { on = true } }\n'
    )
    options = {"scale": 2, "names": ["a", "b"], "deep": {"on": True}}
    assert made.settings == {"options": options}
    assert made.source == "image"


def test_without_buckets_those_of_the_specification_count() -> None:
    found = read('[component.t5]\nencoder = "t5"\nmodel = "google-t5/t5-small"\n')
    assert found.recipe.buckets == SPECIFICATION.buckets
    assert found.origins["images.buckets"] == "prx"


def test_several_resolutions_stand_side_by_side() -> None:
    recipe = read('extends = "prx"\n[images]\nresolution = [1024, 512]\nmax_aspect = 1\n').recipe
    assert recipe.buckets == (Bucket(512, 512), Bucket(1024, 1024))
    assert recipe.levels == (1, 1)
    listed = '[["1024x1024"], ["512x512", "448x576"]]'
    recipe = read(f'extends = "prx"\n[images]\nbuckets = {listed}\n').recipe
    assert recipe.levels == (2, 1)
    assert recipe.buckets[2] == Bucket(1024, 1024)


# What is wrong

VAE = 'extends = "prx"\n[component.vae]\n'
NEW = 'extends = "prx"\n[component.new]\n'
ARRAY = f'{NEW}dtype = "float16"\nshape = [3]\n'
T5 = f'{NEW}encoder = "t5"\nmodel = "m"\n'
OWN = f'{NEW}encoder = "my.code:Class"\nsource = "caption"\ndtype = "float16"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extend = 'prx'", "extend: no such key; did you mean extends?"),
        ("[image]", "image: no such key; did you mean images?"),
        ("images = 3", "images: 3 is not valid; give a table"),
        ("extends = 3", "extends: 3 is not valid; give the name of a shipped recipe, or a file"),
        ("[component]\nvae = 3", "[component.vae]: is not a component; write [component.NAME]"),
        ("[[component.vae]]", "[component.vae]: is not a component; write [component.NAME]"),
        ("[component.Vae]", "[component.Vae]: is not a component; write [component.NAME]"),
        ('[component."../x"]', "[component.'../x']: is not a component; write"),
        ('[component."ünï"]', "[component.'ünï']: is not a component; write"),
        ('[component."a\\u0000b"]', "[component.'a\\x00b']: is not a component; write"),
        ('"a\\nb" = 1', "'a\\nb': no such key; choose from extends, components,"),
        ("[paths]\nstores = 'x'", "[paths] stores: no such key; did you mean store?"),
        ("[paths]\nstore = 'a\\u0000'".replace("'", '"'), "[paths] store: 'a\\x00' is not valid;"),
        ("[images]\nfit = 'crop'", "[images] fit: 'crop' is not valid; give \"original\" or"),
        ("[images]\nbuckets = ['1024']", "[images] buckets: ['1024'] is not valid; give a list"),
        ("[images]\nbuckets = []", "[images] buckets: [] is not valid; give a list like"),
        ("[images]\nbuckets = ['8x8', '8x8']\n[component.a]\ndtype='bool'\nshape=[1]",
         "[images] buckets: 8x8 is listed 2 times; list it once"),
        ("[images]\nmax_crop = 1.5", "[images] max_crop: 1.5 is not valid; give a share from 0"),
        ("[images]\nmax_tokens_lost = -1", "[images] max_tokens_lost: -1 is not valid; give a"),
        ("[images]\nmax_tokens_lost = true", "[images] max_tokens_lost: True is not valid; give a"),
        ("[images]\nmax_crop = nan", "[images] max_crop: nan is not valid; give a share from 0"),
        ("[images]\nmin_side = true", "[images] min_side: True is not valid; give a number of"),
        ("[images]\nstep = 8", "[images] step: has no meaning without resolution; add resolution"),
        ("[images]\nresolution = 512\nbuckets = ['8x8']",
         "[images] buckets: there is a resolution too; leave out one of them"),
        ("[images]\nresolution = 64\nstep = 128",
         "[images] step: 128 is more than the resolution 64; give another step"),
        ("[images]\nresolution = 1000000\nstep = 1", "[images] step: 1 gives 1,414,213 widths,"),
        (POSE.replace("256", "990000\nstep = 10000"),
         "[images] buckets: 980000x1000000 is not a bucket; give WIDTHxHEIGHT"),
        (f"[images]\nresolution = {10**30}", "[images] resolution: 10000000000000000000000000000"),
        (f"[images]\nresolution = {[512] * 17}", "[images] resolution: [512, 512, 512, 512, 512,"),
        ("", "components: there are none; write [component.NAME]"),
        ("components = ['x']", "components: there is no table [component.x]; write it"),
        ("components = []", "components: [] is not valid; give a list of names"),
        ('extends = "prx"\ncomponents = ["vea"]',
         "components: there is no table [component.vea]; did you mean vae?"),
        ('extends = "prx"\ncomponents = ["vae", "vae"]',
         "components: 'vae' is listed 2 times; list it once"),
        ("components = ['t5']\n" + VAE, "[component.vae]: is not listed in components; add it"),
        (VAE + "modle = 'x'", "[component.vae] modle: no such key; did you mean model?"),
        (VAE + "tokens = 5", '[component.vae] tokens: encoder "autoencoder" has no such key;'),
        (ARRAY + "model = 'x'", "[component.new] model: a component without encoder has no"),
        (NEW + "dtype = 'float16'", "[component.new] shape: is missing; give a list of lengths"),
        (NEW + "shape = [3]", "[component.new] dtype: is missing; give one of float16, bfloat16,"),
        (NEW + "encoder = 't5'", "[component.new] model: is missing; give a hub id or a folder"),
        (NEW + "encoder = 'picture'\ndtype = 'uint8'",
         '[component.new] dtype: encoder "picture" has no such key;'),
        (NEW + "encoder = 'picture'\nsuffix = 'a.png'",
         "[component.new] suffix: 'a.png' is not valid; end it with .jpg"),
        (NEW + "encoder = 'dinov3'\nmodel = 'm'\noutput = 'patch'",
         "[component.new] output: 'patch' is not an output of this encoder; did you mean patches?"),
        (NEW + "dtype = '<f2'", "[component.new] dtype: '<f2' is not valid; give one of float16,"),
        (NEW + "shape = []", "[component.new] shape: [] is not valid; give a list of lengths"),
        (NEW + "shape = [0]", "[component.new] shape: [0] is not valid; give a list of lengths"),
        (NEW + "shape = [-1]", "[component.new] shape: [-1] is not valid; give a list of lengths"),
        (NEW + f"shape = [{10**12}]", "[component.new] shape: [1000000000000] is not valid; give"),
        (NEW + 'shape = ["height/0"]', "[component.new] shape: ['height/0'] is not valid; give"),
        (NEW + 'shape = ["depth/8"]', "[component.new] shape: ['depth/8'] is not valid; give"),
        (NEW + "dtype = 'float16'\nshape = [65536, 65536]",
         "[component.new] shape: an array is larger than a tar member can be; give less than"),
        (NEW + f"dtype = 'float16'\nshape = {[1] * 33}",
         "[component.new] shape: has 33 axes; give at most 32"),
        (NEW + 'dtype = "float16"\nshape = ["tokens", 3]',
         '[component.new] shape: there is no key "tokens" here; give a number instead'),
        (OWN + 'shape = ["height/8"]',
         "[component.new] shape: follows the picture, but a caption has no sides; give numbers"),
        (OWN + "shape = [7]\nmask = true",
         "[component.new] tokens: is missing; give the length of the mask"),
        (OWN + "shape = [7]\ntrim = true",
         "[component.new] trim: needs a mask; add mask = true, or leave trim out"),
        (OWN + 'shape = ["any"]\ntokens = 7\nmask = true\ntrim = true',
         "[component.new] shape: does not begin with the 7 tokens of the mask, as trim needs;"),
        (OWN + "shape = [7]\noptions = { at = 2020-01-01 }", "[component.new] options: {'at': "),
        (OWN + "shape = [7]\noptions = { at = nan }", "[component.new] options: {'at': nan} is"),
        (T5 + "template = '{caption}'", '[component.new] template: encoder "t5" has no such key;'),
        (NEW + "encoder = 'text'\nmodel = 'm'\ntemplate = 'x'",
         "[component.new] template: 'x' is not valid; give a text with one \"{caption}\""),
        (T5 + "mask = { suffix = 'm.jpg' }", "[component.new] mask: {'suffix': 'm.jpg'} is not"),
        (T5 + "mask = { name = 'm' }", "[component.new] mask: {'name': 'm'} is not valid;"),
        (T5 + "mask = { field = 'caption' }",
         "[component.new] mask: 'caption' has another meaning in a record; choose another name"),
        (T5 + "mask = { field = 'T5_attention_mask' }",
         "[component.new] mask: 'T5_attention_mask' is that of [component.t5] too; give each its"),
        (T5 + "mask = { suffix = 't5m.npy' }",
         "[component.new] mask: 't5m.npy' is that of [component.t5] too; give each its own"),
        (T5 + "field = 'width'", "[component.new] field: 'width' has another meaning in a record;"),
        (T5 + "field = 't5_attention_mask'",
         "[component.new] field: 't5_attention_mask' has another meaning in a record; choose"),
        (ARRAY + "inline = ['vae_latent']",
         "[component.new] inline: 'vae_latent' is that of [component.vae] too; give each its own"),
        (ARRAY + "inline = ['crop']", "[component.new] inline: 'crop' has another meaning in a"),
        (ARRAY + "folder = 'VAE_latents'",
         "[component.new] folder: 'VAE_latents' is that of [component.vae] too; give each its own"),
        (ARRAY + "suffix = 'vae.npy'",
         "[component.new] suffix: 'vae.npy' is that of [component.vae] too; give each its own"),
        *(
            (ARRAY + f"suffix = '{suffix}'", f"[component.new] suffix: '{suffix}' is not valid;")
            for suffix in (
                *("json", "a.json", "Vae.npy", "a/b.npy", ".npy", "a..npy", "__key__.npy", "npz"),
                *("a b.npy", "é.npy", "x" * 50 + ".npy", "a.npy.", ""),
            )
        ),
        *(
            (ARRAY + f"folder = '{folder}'", f"[component.new] folder: '{folder}' is not valid;")
            for folder in ("..", ".", "a/b", "/tmp", ".shardwright", "é", "a b", "a.b", "", "-a")
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_table_and_key(text: str, message: str) -> None:
    assert wrong(text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[images]\nfit = \n", "is not TOML (Invalid value (at line 2, column 7)); correct it"),
        ("a = 1\na = 2\n", "is not TOML (Cannot overwrite a value (at line 2, column 6)); correct"),
        ("a = " + "[" * 100_000, "is nested too deeply; correct it"),
        (f"a = {'9' * 5000}", "is not TOML (Exceeds the limit"),
        (f"a = 0x{'f' * 10_000}", "a: no such key; choose from"),
        (f"[images]\nmin_side = 0x{'f' * 10_000}", "[images] min_side: this int is not valid;"),
        (f"{'k' * 10_000} = 1", "'kkkkkkkk"),
        (".".join("a" * 30_000) + " = 1", "is too large for a recipe; give a recipe file"),
        ("# \n" * 100_000, "is too large for a recipe; give a recipe file"),
        (OWN + "shape = [7]\noptions." + ".".join("a" * 900) + " = 1", "[component.new] options: "),
    ],
    ids=lambda value: value[:20],
)
def test_a_hostile_file_is_refused_soon_and_briefly(text: str, message: str) -> None:
    start = time.monotonic()
    error = wrong(text)
    assert error.startswith(message)
    assert len(error) < 300
    assert time.monotonic() - start < 2


def test_a_huge_file_is_not_read() -> None:
    with open(NAME, "wb") as file:
        file.truncate(50 << 20)
    with pytest.raises(UsageError, match="is too large for a recipe"):
        find()


def test_bytes_that_are_not_text_are_reported() -> None:
    Path(NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"^shardwright.toml: is not UTF-8 text; save it as UTF-8"):
        find()
