"""DINOv2, DINOv3 and SigLIP2: vectors and patch tokens, and how pictures are prepared for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright.encoders import load, shape_of
from shardwright.encoders.base import ImageEncoder, Options
from shardwright.encoders.contract import ImageEncoderContract, picture
from shardwright.errors import UsageError
from shardwright.recipes import Component
from tests.derive.encoders.models import DINOV2_PREPROCESSING, edit_json, make_vision
from tests.derive.encoders.plain import encoded, plain_vision, relative_error

# Encoder of the recipe, class of the checkpoint, class that is loaded, patches, other tokens.
CASES = {
    "dinov2": ("dinov2", "Dinov2Model", "Dinov2Model", 256, 1),
    "registers": ("dinov2", "Dinov2WithRegistersModel", "Dinov2WithRegistersModel", 256, 5),
    "siglip2": ("siglip2", "SiglipModel", "SiglipVisionModel", 16, 0),
}


def component(kind: str, folder: Path, output: str = "pooled") -> Component:
    settings = {"model": str(folder), "output": output}
    asked = Component("seen", "seen", "seen.npy", "<f4", (), encoder=kind, settings=settings)
    return Component(
        "seen", "seen", "seen.npy", "<f4", shape_of(asked, {}), encoder=kind, settings=settings
    )


def encoder(kind: str, folder: Path, output: str = "pooled") -> Any:  # noqa: ANN401 - any kind
    return load("pretrained", component(kind, folder, output), Options(), {})


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vision")
    made = {name: make_vision(root / name, case[1]) for name, case in CASES.items()}
    return made | {"dinov3": make_vision(root / "dinov3", "DINOv3ViTModel")}


@pytest.mark.parametrize("size", [(300, 200), (224, 224), (40, 513)])
@pytest.mark.parametrize("name", CASES)
def test_vectors_and_patches_equal_a_plain_run(
    folders: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    kind, _, used, patches, others = CASES[name]
    source = picture(*size)
    pixels, expected = plain_vision(folders[name], used, source)
    made = encoder(kind, folders[name])
    np.testing.assert_allclose(made.prepare(source), pixels, atol=1e-5)
    assert relative_error(encoded(made, source), expected.pooler_output[0].numpy()) < 1e-5
    rows = encoded(encoder(kind, folders[name], "patches"), source)
    assert rows.shape == (patches, 32)
    assert relative_error(rows, expected.last_hidden_state[0, others:].numpy()) < 1e-5
    assert made.describe()["encoder"] == used


def test_patches_of_dinov3_are_without_the_registers(folders: dict[str, Path]) -> None:
    import torch
    from transformers import DINOv3ViTModel

    made = encoder("dinov3", folders["dinov3"], "patches")
    pixels = torch.from_numpy(made.prepare(picture(64, 48)))
    model = DINOv3ViTModel.from_pretrained(folders["dinov3"]).eval()
    with torch.no_grad():
        expected = model(pixels[None]).last_hidden_state[0, 5:].numpy()
    rows = encoded(made, picture(64, 48))
    assert rows.shape == made.component.shape == (196, 32)
    assert relative_error(rows, expected) < 1e-5
    assert made.describe()["output"] == "patch tokens of last_hidden_state"


class TestSiglipPatchesContract(ImageEncoderContract):
    @pytest.fixture(autouse=True)
    def _find(self, folders: dict[str, Path]) -> None:
        self.folder = folders["siglip2"]

    def load(self) -> ImageEncoder:
        made: ImageEncoder = encoder("siglip2", self.folder, "patches")
        return made


class TestDinov2Contract(TestSiglipPatchesContract):
    @pytest.fixture(autouse=True)
    def _find(self, folders: dict[str, Path]) -> None:
        self.folder = folders["registers"]

    def load(self) -> ImageEncoder:
        made: ImageEncoder = encoder("dinov2", self.folder)
        return made


def test_a_description_has_the_crop_only_where_there_is_one(folders: dict[str, Path]) -> None:
    said = encoder("dinov2", folders["dinov2"]).describe()["preprocessing"]
    assert (said["shortest_edge"], said["crop"], "height" in said) == (256, [224, 224], False)
    said = encoder("siglip2", folders["siglip2"]).describe()["preprocessing"]
    assert said.keys() == {"height", "width", "resample", "rescale", "mean", "std"}


def test_a_siglip_configuration_may_leave_out_the_usual_values(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        (folders["siglip2"] / "preprocessor_config.json").read_text()
    )
    edit_json(tmp_path / "preprocessor_config.json", size={"height": 224, "width": 224})
    config = {"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert component("siglip2", tmp_path).shape == (768,)
    assert component("siglip2", tmp_path, "patches").shape == (196, 768)


def test_models_of_another_kind_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dinov3_vit model; dinov2 or dinov2_with_registers is"):
        encoder("dinov2", folders["dinov3"])
    (tmp_path / "config.json").write_text('{"model_type": "siglip2"}')
    with pytest.raises(UsageError, match="NaFlex model, which takes pictures of any size"):
        encoder("siglip2", tmp_path)


def test_preprocessing_that_does_not_fit_the_model_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((folders["siglip2"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "preprocessor_config.json"
    sized = {"size": {"height": 99, "width": 99}, "do_center_crop": False}
    path.write_text(json.dumps(DINOV2_PREPROCESSING | sized))
    with pytest.raises(UsageError, match="makes 99x99 pictures for a model of 64"):
        encoder("siglip2", tmp_path)
    path.write_text(json.dumps(DINOV2_PREPROCESSING | {"size": {"shortest_edge": 200}}))
    with pytest.raises(UsageError, match="crops more than it leaves"):
        encoder("siglip2", tmp_path)
