"""A recipe that contradicts its model: the error names the file, the table and the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright import derive
from shardwright.errors import UsageError
from tests.derive.encoders.models import make_clip, make_clip_tokenizer, make_decoder
from tests.derive.pictures import make_images


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture, and a CLIP and a decoder that give rows of 32."""
    folder = tmp_path_factory.mktemp("contradictions")
    make_images(folder / "images", 1, ((64, 64),))
    make_clip_tokenizer(make_clip(folder / "clip"))
    make_decoder(folder / "text")
    return folder


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("clip", {"shape": ["tokens", 48]}, "shape: [77, 48], but {} gives [77, 32]; leave shape out"),
    ("clip", {"dtype": "int32"}, "dtype: int32, but {} gives floats; choose from float16, "),
    ("clip", {"layer": -5}, "layer: -5, but {} has 3 layers; give a number from -4 to -1"),
    ("clip", {"tokens": 78}, "tokens: 78, but {} takes at most 77; give 77 or less"),
    ("clip", {"output": "projected"}, "output: projected, but {} is a CLIPTextModel; use pooled"),
    (
        "text",
        {"tokens": 5, "template": "of {caption}!!!"},
        "template: 'of {{caption}}!!!', but {} makes more than 5 tokens of it, without a caption; "
        "give more tokens, or a shorter template",
    ),
]


@pytest.mark.parametrize("stated", [True, False], ids=["with a shape", "without"])
@pytest.mark.parametrize(("kind", "keys", "why"), CASES, ids=[next(iter(c[1])) for c in CASES])
def test_file_table_and_key_are_named(
    root: Path, tmp_path: Path, kind: str, keys: dict[str, Any], why: str, stated: bool
) -> None:
    model = str(root / kind)
    table = {"encoder": kind, "model": model, **keys}
    if stated and "shape" not in keys:
        table["shape"] = [32] if "output" in keys else ["tokens", 32]
    recipe = tmp_path / "mine.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    recipe.write_text("\n".join(['[images]\nbuckets = ["64x64"]\n[component.said]', *lines]))
    with pytest.raises(UsageError) as caught:
        derive(root / "images", recipe=recipe, derived_dir=tmp_path / "store", device="cpu")
    assert str(caught.value).startswith(f"{recipe}: [component.said] {why.format(model)}")
    assert not (tmp_path / "store").exists()


def test_an_encoder_of_the_user_s_own_that_is_not_there_is_named_with_its_file(
    root: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[component.c]\nencoder = "nowhere:Mine"\ndtype = "uint8"\nshape = [3]\n')
    with pytest.raises(UsageError) as caught:
        derive(root / "images", recipe=recipe, derived_dir=tmp_path / "store")
    assert str(caught.value).startswith(
        f"{recipe}: [component.c] encoder: 'nowhere:Mine': there is no module nowhere; install"
    )
