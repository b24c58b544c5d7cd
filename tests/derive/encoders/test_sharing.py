"""Components of one model and one input: loaded once, run once, and still what each is alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright import recipes
from shardwright.encoders import load
from shardwright.encoders.base import Options
from shardwright.encoders.contract import picture
from tests.derive.encoders.models import make_small_recipe, make_vision
from tests.derive.encoders.plain import encoded

RECIPE = """
extends = "prx"
components = ["dinov3", "patches"]
[component.dinov3]
model = {model!r}
shape = [32]
[component.patches]
encoder = "dinov3"
model = {model!r}
output = "patches"
shape = [196, 32]
dtype = "float16"
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is loaded and run, by class; a model with a projection runs one without."""
    import transformers

    counts: Counter[str] = Counter()

    def count(name: str, method: str, word: str) -> None:
        kind = getattr(transformers, name)
        real = getattr(kind, method)

        def counted(*args: object, **kwargs: object) -> object:
            counts[f"{word} {name}"] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(kind, method, counted)

    for name in ("DINOv3ViTModel", "CLIPTextModel"):
        count(name, "forward", "run")
    for name in ("DINOv3ViTModel", "CLIPTextModel", "CLIPTextModelWithProjection"):
        count(name, "from_pretrained", "load")
    return counts


def test_a_vector_and_its_patches_come_from_one_pass(tmp_path: Path, calls: Counter[str]) -> None:
    folder = make_vision(tmp_path / "dino", "DINOv3ViTModel")
    path = tmp_path / "both.toml"
    path.write_text(RECIPE.format(model=str(folder)))
    models: dict[Any, Any] = {}
    parts = recipes.find(str(path)).recipe.components
    encoders: list[Any] = [load("pretrained", part, Options(), models) for part in parts]
    vector, patches = encoders
    assert vector.shares is patches.shares
    given = vector.run(vector.send(vector.prepare(picture(64, 48))[None]))
    (one,), (other,) = vector.take(given), patches.take(given)
    assert calls == {"load DINOv3ViTModel": 1, "run DINOv3ViTModel": 1}
    for part, array in zip(parts, (one, other), strict=True):
        assert np.array_equal(
            array, encoded(load("pretrained", part, Options(), {}), picture(64, 48))
        )


def test_of_sd3_each_clip_model_is_loaded_and_run_once(tmp_path: Path, calls: Counter[str]) -> None:
    recipe = recipes.find(str(make_small_recipe("sd3", tmp_path))).recipe
    models: dict[Any, Any] = {}
    encoders: dict[str, Any] = {
        part.name: load("pretrained", part, Options(), models) for part in recipe.captions
    }
    groups: dict[int, list[str]] = {}
    for name, encoder in encoders.items():
        groups.setdefault(id(encoder.shares), []).append(name)
    assert list(groups.values()) == [
        ["clip_l", "clip_l_pooled"],
        ["clip_g", "clip_g_pooled"],
        ["t5"],
    ]
    for names in list(groups.values())[:2]:
        first = encoders[names[0]]
        tokens = first.prepare("a red kite")
        made = first.run(first.send(tokens.ids[None], tokens.mask[None]))
        arrays = [encoders[name].take(made)[0] for name in names]
        for name, array in zip(names, arrays, strict=True):
            assert array.shape == recipe.by_name[name].shape
    assert calls == {"load CLIPTextModelWithProjection": 2, "run CLIPTextModel": 2}


def test_another_input_is_another_pass_of_the_same_model(
    tmp_path: Path, calls: Counter[str]
) -> None:
    path = make_small_recipe("sdxl", tmp_path)
    again = path.read_text().replace('extends = "sdxl"', "")
    words = again[again.index("[component.clip_l]") : again.index("[component.clip_g]")]
    place = 'encoder = "clip"\nsubfolder = "text_encoder"\ndtype = "float16"\n'
    for name, key in (("short", 'field = "short"'), ("cut", "tokens = 9")):
        table = words.replace("clip_l", name) + place + f"{key}\nlayer = -2\n"
        path.write_text(path.read_text() + table)
    recipe = recipes.find(str(path)).recipe
    models: dict[Any, Any] = {}
    encoders: list[Any] = [
        load("pretrained", recipe.by_name[name], Options(), models)
        for name in ("clip_l", "short", "cut")
    ]
    assert len({id(encoder.shares) for encoder in encoders}) == 3
    one, other, cut = (encoded(encoder, "a red kite") for encoder in encoders)
    assert np.array_equal(one, other)
    assert cut.shape == (9, 32)
    assert calls == {"load CLIPTextModel": 1, "run CLIPTextModel": 3}
