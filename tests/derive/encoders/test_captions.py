"""Text models: CLIP, T5 and decoders; their tokens, layers, pooled vectors and templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright import recipes
from shardwright.encoders import load, shape_of
from shardwright.encoders.base import Options, TextEncoder
from shardwright.encoders.contract import TextEncoderContract
from shardwright.errors import InputMissingError, UsageError
from tests.derive.encoders.models import (
    edit_json,
    make_byte_tokenizer,
    make_clip,
    make_clip_tokenizer,
    make_decoder,
    make_t5,
)
from tests.derive.encoders.plain import encoded, plain_tokens, relative_error

CAPTIONS = [
    "a red kite",
    "",
    "Two  CATS,\nasleep on a wall! It's 1999...",
    "Über 東京 🙂 naïve <|endoftext|> x",
    "two cats asleep on warm stone wall " * 20,
]
TEMPLATE = "<|im_start|>user\nDescribe: {caption}<|im_end|>\n<|im_start|>assistant\n"


def component(kind: str, folder: Path, /, **keys: Any) -> recipes.Component:  # noqa: ANN401
    """Make a component as a recipe file does, with the shape that the checkpoint gives."""
    table = {"encoder": kind, "model": str(folder), "dtype": "float16", **keys}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path = folder.parent / f"{folder.name}.toml"
    head = '[images]\nbuckets = ["64x64"]\n[component.said]\n'
    path.write_text(head + "\n".join(lines) + "\n")
    asked = recipes.find(str(path)).recipe.components[0]
    shape = ", ".join(map(str, shape_of(asked, {})))
    path.write_text(f"{head}shape = [{shape}]\n" + "\n".join(lines) + "\n")
    return recipes.find(str(path)).recipe.components[0]


def encoder(kind: str, folder: Path, /, **keys: Any) -> Any:  # noqa: ANN401
    return load("pretrained", component(kind, folder, **keys), Options(), {})


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two text models of CLIP, laid out as in the pipeline of SDXL."""
    root = tmp_path_factory.mktemp("pipelines") / "tiny"
    make_clip(root / "text_encoder", 32)
    make_clip_tokenizer(root / "tokenizer")
    make_clip(root / "text_encoder_2", 48, projected=40)
    make_clip_tokenizer(root / "tokenizer_2", pad="!")
    return root


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("decoders") / "qwen")


# CLIP


def plain_clip(pipeline: Path, number: str, caption: str) -> tuple[Any, list[int]]:
    """Run the classes that the pipelines of diffusers use, as they do."""
    import torch
    from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    kind: Any = CLIPTextModelWithProjection if number else CLIPTextModel
    model = kind.from_pretrained(pipeline / f"text_encoder{number}").eval()
    tokenizer = CLIPTokenizer.from_pretrained(pipeline / f"tokenizer{number}")
    ids = plain_tokens(tokenizer, caption, 77).input_ids
    with torch.no_grad():
        return model(ids, output_hidden_states=True), ids[0].tolist()


@pytest.mark.parametrize("number", ["", "_2"])
@pytest.mark.parametrize("caption", CAPTIONS, ids=["words", "empty", "mixed", "unicode", "long"])
def test_clip_equals_a_plain_run(pipeline: Path, number: str, caption: str) -> None:
    place = {"subfolder": f"text_encoder{number}"}
    expected, ids = plain_clip(pipeline, number, caption)
    hidden = encoder("clip", pipeline, layer=-2, **place)
    assert hidden.prepare(caption).ids.tolist() == ids
    assert relative_error(encoded(hidden, caption), expected.hidden_states[-2][0].numpy()) < 1e-5
    last = encoded(encoder("clip", pipeline, layer=3, **place), caption)
    assert relative_error(last, expected.last_hidden_state[0].numpy()) < 1e-5
    pooled, vector = ("projected", "text_embeds") if number else ("pooled", "pooler_output")
    found = encoded(encoder("clip", pipeline, output=pooled, **place), caption)
    assert relative_error(found, expected[vector][0].numpy()) < 1e-5


def test_shapes_of_clip_are_those_of_its_configuration(pipeline: Path) -> None:
    second = {"subfolder": "text_encoder_2"}
    assert component("clip", pipeline, **second, tokens=20).shape == (20, 48)
    assert component("clip", pipeline, **second, output="pooled").shape == (48,)
    assert component("clip", pipeline, **second, output="projected").shape == (40,)


def test_a_model_with_a_projection_has_the_unprojected_vector_too(pipeline: Path) -> None:
    import torch
    from transformers import CLIPTextModelWithProjection

    folder = pipeline / "text_encoder_2"
    pooled = encoded(encoder("clip", folder, output="pooled"), "a red kite")
    model = CLIPTextModelWithProjection.from_pretrained(folder)
    with torch.no_grad():
        projected = model.text_projection(torch.from_numpy(pooled)).numpy()
    expected, _ = plain_clip(pipeline, "_2", "a red kite")
    assert relative_error(projected, expected.text_embeds[0].numpy()) < 1e-5


def test_weights_with_the_names_of_the_hub_s_checkpoints_are_loaded(
    pipeline: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(pipeline, tmp_path / "old") / "text_encoder"
    weights = folder / "model.safetensors"
    tensors = {
        "text_model." + name.removeprefix("text_model."): value
        for name, value in load_file(weights).items()
    }
    save_file(tensors, weights, {"format": "pt"})
    old = encoded(encoder("clip", folder), "moon")
    new = encoded(encoder("clip", pipeline, subfolder="text_encoder"), "moon")
    assert np.array_equal(old, new)


def test_padding_and_mask_follow_the_tokenizer(pipeline: Path) -> None:
    for number, pad in (("", 609), ("_2", 0)):
        tokens = encoder("clip", pipeline, subfolder=f"text_encoder{number}").prepare("moon")
        assert tokens.ids[:4].tolist()[-1] == pad
        assert tokens.mask.tolist() == [1, 1, 1] + [0] * 74


def test_a_tokenizer_json_is_used_where_there_is_one(pipeline: Path, tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    folder = shutil.copytree(pipeline, tmp_path / "both")
    CLIPTokenizer.from_pretrained(folder / "tokenizer").save_pretrained(folder / "text_encoder")
    assert (folder / "text_encoder" / "tokenizer.json").is_file()
    shutil.rmtree(folder / "tokenizer")
    one, other = (encoder("clip", at, subfolder="text_encoder") for at in (pipeline, folder))
    for caption in CAPTIONS:
        assert one.prepare(caption).ids.tolist() == other.prepare(caption).ids.tolist()


def test_the_tokenizer_is_part_of_what_is_described(pipeline: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pipeline, tmp_path / "tiny")
    place = {"subfolder": "text_encoder_2", "output": "projected"}
    before = encoder("clip", pipeline, **place).describe()
    assert encoder("clip", folder, **place).describe() == before
    edit_json(folder / "tokenizer_2" / "tokenizer_config.json", pad_token="<|endoftext|>")
    assert encoder("clip", folder, **place).describe()["sha256"] != before["sha256"]
    del before["sha256"]
    assert before == {
        "encoder": "CLIPTextModelWithProjection",
        "model": "tiny",
        "dtype": "float32",
        "output": "text_embeds",
        "tokens": 77,
        "attention_mask": False,
    }


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tokens": 78}, r"^\[component.said\] tokens: 78, but .*tiny takes at most 77; give 77"),
        ({"layer": -5}, "layer: -5, but .*tiny has 3 layers; give a number from -4 to -1"),
        ({"layer": 4}, "layer: 4, but .*tiny has 3 layers"),
        ({"output": "projected"}, "output: projected, but .*tiny is a CLIPTextModel; use pooled"),
        ({"subfolder": "nowhere"}, "tiny: has no config.json"),
    ],
)
def test_what_clip_does_not_have_is_refused(pipeline: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises((UsageError, InputMissingError), match=why):
        encoder("clip", pipeline, **({"subfolder": "text_encoder"} | keys))


def test_a_model_of_another_kind_is_refused(checkpoints: dict[str, Path], qwen: Path) -> None:
    with pytest.raises(UsageError, match="is a t5 model; clip_text_model or clip is needed"):
        encoder("clip", checkpoints["t5"])
    with pytest.raises(UsageError, match="is a qwen2 model; t5 or umt5 is needed"):
        encoder("t5", qwen)
    with pytest.raises(UsageError, match=r'has an encoder of its own; use encoder = "t5"'):
        encoder("text", checkpoints["t5"])


class TestClipContract(TextEncoderContract):
    @pytest.fixture(autouse=True)
    def _find(self, pipeline: Path) -> None:
        self.folder = pipeline

    def load(self) -> TextEncoder:
        made: TextEncoder = encoder("clip", self.folder, subfolder="text_encoder", layer=-2)
        return made


class TestProjectedClipContract(TestClipContract):
    def load(self) -> TextEncoder:
        keys = {"subfolder": "text_encoder_2", "output": "projected"}
        made: TextEncoder = encoder("clip", self.folder, **keys)
        return made


# T5


@pytest.mark.parametrize("masked", [True, False])
def test_t5_of_any_length_equals_a_plain_run_with_and_without_the_mask(
    tmp_path: Path, masked: bool
) -> None:
    import torch
    from transformers import AutoTokenizer, T5EncoderModel

    folder = make_t5(tmp_path / "text_encoder_2", 64, tokenizer=tmp_path / "tokenizer_2")
    made = encoder("t5", folder, tokens=200, attention_mask=masked)
    tokens = plain_tokens(AutoTokenizer.from_pretrained(tmp_path / "tokenizer_2"), "a kite", 200)
    mask = tokens.attention_mask if masked else None
    with torch.no_grad():
        model = T5EncoderModel.from_pretrained(folder).eval()
        expected = model(tokens.input_ids, attention_mask=mask).last_hidden_state[0].numpy()
    array = encoded(made, "a kite")
    assert array.shape == (200, 64)
    assert relative_error(array, expected) < 1e-5
    assert made.prepare("a kite").mask.sum() == tokens.attention_mask.sum()
    assert made.describe().get("attention_mask", True) is masked


def test_umt5_equals_a_plain_run(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer, UMT5Config, UMT5EncoderModel

    folder = make_t5(tmp_path / "umt5", 64)
    config = UMT5Config(vocab_size=512, d_model=64, d_ff=64, d_kv=16, num_heads=2, num_layers=1)
    UMT5EncoderModel(config).save_pretrained(folder)
    tokens = plain_tokens(AutoTokenizer.from_pretrained(folder), "a red kite", 30)
    with torch.no_grad():
        expected = UMT5EncoderModel.from_pretrained(folder).eval()(**tokens).last_hidden_state[0]
    array = encoded(encoder("t5", folder, tokens=30), "a red kite")
    assert relative_error(array, expected.numpy()) < 1e-5


# Decoders


def plain_decoder(folder: Path, text: str, length: int) -> tuple[Any, list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = plain_tokens(AutoTokenizer.from_pretrained(folder), text, length)
    with torch.no_grad():
        made = model(
            tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True
        )
    return made.hidden_states, tokens.input_ids[0].tolist()


def kept(array: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    return array[: int(mask.sum())]


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", "Llama", "Gemma2"])
def test_decoders_equal_a_plain_run(tmp_path: Path, kind: str) -> None:
    folder = make_decoder(tmp_path / kind, kind)
    for caption in ("a red kite", "Über 東京 🙂 " * 30):
        for layer in (-1, -2, 0):
            made = encoder("text", folder, tokens=150, layer=layer, template=TEMPLATE)
            states, ids = plain_decoder(folder, TEMPLATE.replace("{caption}", caption), 150)
            tokens = made.prepare(caption)
            assert tokens.ids.tolist() == ids
            found = kept(encoded(made, caption), tokens.mask)
            assert relative_error(found, kept(states[layer][0].numpy(), tokens.mask)) < 1e-5


def test_the_text_part_of_a_larger_model_equals_a_plain_run(tmp_path: Path) -> None:
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    folder = tmp_path / "gemma"
    size = make_byte_tokenizer(folder)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    text = {**small, "vocab_size": size, "num_hidden_layers": 3, "num_key_value_heads": 2}
    vision = {**small, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(
        text_config={**text, "head_dim": 8}, vision_config=vision, image_token_index=size - 1
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    made = encoder("text", folder, tokens=20, layer=-2)
    tokens = made.prepare("a red kite")
    ids, mask = (torch.from_numpy(part[None]).long() for part in (tokens.ids, tokens.mask))
    with torch.no_grad():
        states = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    found = kept(encoded(made, "a red kite"), tokens.mask)
    assert relative_error(found, kept(states[-2][0].numpy(), tokens.mask)) < 1e-5


def test_a_layer_has_one_name_however_it_is_counted(qwen: Path) -> None:
    said = [encoder("text", qwen, layer=layer).describe()["output"] for layer in (2, -2, 3, -1)]
    assert said == ["hidden_states[-2]"] * 2 + ["last_hidden_state"] * 2


def test_an_empty_caption_without_any_token_has_one_row(qwen: Path) -> None:
    made = encoder("text", qwen, tokens=9)
    tokens = made.prepare("")
    assert tokens.mask.tolist() == [1] + [0] * 8
    assert tokens.lost == 0
    assert np.isfinite(encoded(made, "")).all()


def test_a_cut_is_counted_in_the_caption_and_not_in_the_template(qwen: Path) -> None:
    made = encoder("text", qwen, tokens=40, template=TEMPLATE)
    inside = made.prepare("a kite")
    assert (inside.lost, inside.cut_at) == (0, None), "only the template's end is cut"
    caption = "0123456789" * 5
    before = 1 + len("user\nDescribe: ")  # a token each; the first is special
    tokens = made.prepare(caption)
    assert (tokens.lost, tokens.cut_at) == (before + 50 - 40, 40 - before)
    assert made.describe()["template"] == TEMPLATE


def test_a_character_that_is_cut_in_two_is_not_kept(qwen: Path) -> None:
    tokens = encoder("text", qwen, tokens=6).prepare("ab🙂🙂")
    assert (tokens.lost, tokens.cut_at) == (4, 3)
    tokens = encoder("text", qwen, tokens=5).prepare("ab🙂🙂")
    assert (tokens.lost, tokens.cut_at) == (5, 2)


def test_a_template_that_leaves_no_room_is_refused(qwen: Path) -> None:
    with pytest.raises(UsageError, match=r"template: .*, but .*qwen makes more than 20 tokens"):
        encoder("text", qwen, tokens=20, template=TEMPLATE)


def test_code_that_comes_with_a_model_is_never_run(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    folder = shutil.copytree(qwen, tmp_path / "model")
    for name in ("configuration_mine.py", "modeling_mine.py"):
        (folder / name).write_text(f"open({str(trace)!r}, 'w')\n")
    code = {"AutoConfig": "configuration_mine.Config", "AutoModel": "modeling_mine.Model"}
    edit_json(folder / "config.json", auto_map=code)
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked"))
    assert encoded(encoder("text", folder), "moon").any()  # by the class of transformers
    edit_json(folder / "config.json", model_type="mine")
    why = r"model: cannot be loaded as AutoModel \(.*custom code.*; choose a model without code"
    with pytest.raises(UsageError, match=why):
        encoded(encoder("text", folder), "moon")
    assert not trace.exists()


class TestDecoderContract(TextEncoderContract):
    @pytest.fixture(autouse=True)
    def _find(self, qwen: Path) -> None:
        self.folder = qwen

    def load(self) -> TextEncoder:
        made: TextEncoder = encoder("text", self.folder, tokens=90, layer=-2, template=TEMPLATE)
        return made
