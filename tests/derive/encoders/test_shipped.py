"""The shipped recipes with small models of the real classes, laid out as on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import recipes
from shardwright.encoders import load, shape_of
from shardwright.encoders.base import Options
from shardwright.encoders.contract import picture
from tests.derive.encoders.models import make_small_recipe
from tests.derive.encoders.plain import encoded, relative_error

CAPTION = "two cats asleep on a warm stone wall"
SHAPES = {
    "sdxl": {"vae": 4, "clip_l": (77, 768), "clip_g": (77, 1280), "clip_g_pooled": (1280,)},
    "flux": {"vae": 16, "t5": (512, 4096), "clip_l_pooled": (768,)},
    "sd3": {
        "vae": 16,
        "clip_l": (77, 768),
        "clip_l_pooled": (768,),
        "clip_g": (77, 1280),
        "clip_g_pooled": (1280,),
        "t5": (256, 4096),
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shipped_recipe_needs_no_checkpoint_to_know_its_arrays(name: str) -> None:
    recipe = recipes.find(name).recipe
    sides = (recipes.Side("height", 8), recipes.Side("width", 8))
    expected: dict[str, Any] = {**SHAPES[name], "vae": (SHAPES[name]["vae"], *sides)}
    assert {component.name: component.shape for component in recipe.components} == expected
    vectors = {component.name for component in recipe.components if component.dtype == "<f4"}
    assert vectors == {
        component.name for component in recipe.components if len(component.shape) == 1
    }
    assert recipe.buckets == recipes.SPECIFICATION.buckets


@pytest.mark.parametrize("name", ["prx", *SHAPES])
def test_every_component_of_a_shipped_recipe_is_made_and_nothing_printed(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = recipes.find(str(make_small_recipe(name, tmp_path))).recipe
    capfd.readouterr()
    models: dict[Any, Any] = {}
    for component in recipe.components:
        assert shape_of(component, models) == component.shape
        encoder = load("pretrained", component, Options(), models)
        source = picture(64, 48) if component.source == "image" else CAPTION
        array = encoded(encoder, source)
        assert array.shape == component.shape_for(64, 48)
        assert np.isfinite(array).all()
    assert capfd.readouterr() == ("", "")


def test_the_arrays_of_sdxl_are_what_its_pipeline_makes(tmp_path: Path) -> None:
    made = _arrays("sdxl", tmp_path)
    rows, _, vector, _ = _encode_prompt("StableDiffusionXLPipeline", tmp_path, 2)
    joined = np.concatenate([made["clip_l"], made["clip_g"]], axis=-1)
    assert relative_error(joined, rows[0].numpy()) < 1e-5
    assert relative_error(made["clip_g_pooled"], vector[0].numpy()) < 1e-5


def test_the_arrays_of_flux_are_what_its_pipeline_makes(tmp_path: Path) -> None:
    made = _arrays("flux", tmp_path)
    rows, vector, _ = _encode_prompt("FluxPipeline", tmp_path, 2)
    assert relative_error(made["t5"], rows[0].numpy()) < 1e-5
    assert relative_error(made["clip_l_pooled"], vector[0].numpy()) < 1e-5


def test_the_arrays_of_sd3_are_what_its_pipeline_makes(tmp_path: Path) -> None:
    made = _arrays("sd3", tmp_path)
    rows, _, vector, _ = _encode_prompt("StableDiffusion3Pipeline", tmp_path, 3)
    clip = np.concatenate([made["clip_l"], made["clip_g"]], axis=-1)
    assert relative_error(clip, rows[0, :77, : clip.shape[-1]].numpy()) < 1e-5
    assert relative_error(made["t5"], rows[0, 77:].numpy()) < 1e-5
    joined = np.concatenate([made["clip_l_pooled"], made["clip_g_pooled"]])
    assert relative_error(joined, vector[0].numpy()) < 1e-5


def _arrays(name: str, folder: Path) -> dict[str, Any]:
    recipe = recipes.find(str(make_small_recipe(name, folder))).recipe
    models: dict[Any, Any] = {}
    return {
        component.name: encoded(load("pretrained", component, Options(), models), CAPTION)
        for component in recipe.captions
    }


def _encode_prompt(kind: str, folder: Path, count: int) -> Any:  # noqa: ANN401 - tensors
    """Encode with a pipeline of the text models that lie in the folder; it has nothing else."""
    import diffusers
    import torch
    import transformers

    (root,) = (path for path in folder.iterdir() if path.is_dir())
    parts: dict[str, Any] = {"unet" if "XL" in kind else "transformer": None}
    for number in ("", "_2", "_3")[:count]:
        config = transformers.AutoConfig.from_pretrained(root / f"text_encoder{number}")
        model = getattr(transformers, config.architectures[0])
        parts[f"text_encoder{number}"] = model.from_pretrained(root / f"text_encoder{number}")
        tokenizer: Any = transformers.CLIPTokenizer
        if config.model_type == "t5":
            tokenizer = transformers.AutoTokenizer
        parts[f"tokenizer{number}"] = tokenizer.from_pretrained(root / f"tokenizer{number}")
    pipeline = getattr(diffusers, kind)(vae=None, scheduler=None, **parts)
    prompts = [None] * (count - 1) if "unet" not in parts else []
    guided = {} if kind == "FluxPipeline" else {"do_classifier_free_guidance": False}
    with torch.no_grad():
        return pipeline.encode_prompt(CAPTION, *prompts, **guided)
