"""The autoencoders of diffusers: every class, every number of channels, every factor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from shardwright.encoders import load, shape_of
from shardwright.encoders.autoencoder import Autoencoder, Tiling
from shardwright.encoders.base import ImageEncoder, Options, RecipeError
from shardwright.encoders.contract import ImageEncoderContract, picture
from shardwright.errors import UsageError
from shardwright.recipes import SPECIFICATION, Component, Side
from tests.derive.encoders.models import (
    AUTOENCODERS,
    edit_json,
    make_autoencoder,
    make_vae,
    with_model,
)
from tests.derive.encoders.plain import encoded, plain_autoencoder, relative_error

VAE = SPECIFICATION.by_name["vae"]
# Channels and the pixels a side of one latent.
EXPECTED = {
    "AutoencoderDC": (32, 32),
    "AutoencoderTiny": (4, 8),
    "AsymmetricAutoencoderKL": (4, 8),
    "AutoencoderKLFlux2": (32, 8),
    "AutoencoderKLHunyuanImage": (64, 32),
    "AutoencoderKLKVAE": (16, 8),
    "AutoencoderKLQwenImage": (16, 8),
    "AutoencoderKLWan": (48, 16),
}


def component(folder: Path) -> Component:
    """The component that a checkpoint makes, by its own configuration."""
    asked = with_model(VAE, folder)
    return dataclasses.replace(asked, shape=shape_of(asked, {}))


def encoder(folder: Path) -> Autoencoder:
    made = load("pretrained", component(folder), Options(), {})
    assert isinstance(made, Autoencoder)
    return made


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("autoencoders")
    return {kind: make_autoencoder(root / kind, kind) for kind in AUTOENCODERS}


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_every_class_equals_a_plain_run(folders: dict[str, Path], kind: str) -> None:
    channels, factor = EXPECTED[kind]
    source = picture(128, 96)
    made = encoder(folders[kind])
    assert made.component.shape == (channels, Side("height", factor), Side("width", factor))
    array = encoded(made, source)
    assert array.shape == (channels, 96 // factor, 128 // factor)
    assert relative_error(array, plain_autoencoder(folders[kind], kind, source)) < 1e-5
    assert made.describe()["encoder"] == kind


@pytest.mark.parametrize(("channels", "blocks"), [(2, 4), (4, 5), (128, 6)])
def test_any_autoencoder_kl_equals_a_plain_run(tmp_path: Path, channels: int, blocks: int) -> None:
    folder = make_vae(tmp_path / "vae", channels=channels, blocks=blocks)
    array = encoded(encoder(folder), picture(64, 96))
    factor = 2 ** (blocks - 1)
    assert array.shape == (channels, 96 // factor, 64 // factor)
    expected = plain_autoencoder(folder, "AutoencoderKL", picture(64, 96))
    assert relative_error(array, expected) < 1e-5


@pytest.mark.parametrize("kind", ["AutoencoderDC", "AutoencoderKLQwenImage", "AutoencoderKLWan"])
def test_tiles_are_those_of_the_class_s_own_factor(folders: dict[str, Path], kind: str) -> None:
    made = encoder(folders[kind])
    made.tiling = Tiling(above=1, side=96, overlap=32)
    source = picture(160, 64)
    array = encoded(made, source)
    factor = EXPECTED[kind][1]
    first = plain_autoencoder(folders[kind], kind, source[:, :96])
    alone = 64 // factor  # columns; the second tile begins there
    assert relative_error(array[..., :alone], first[..., :alone]) < 1e-5
    assert array.shape == made.component.shape_for(160, 64)


class TestDeepCompressionContract(ImageEncoderContract):
    sizes = ((96, 32), (32, 32))  # the pipeline cuts sides to multiples of the factor

    @pytest.fixture(autouse=True)
    def _find(self, folders: dict[str, Path]) -> None:
        self.folder = folders["AutoencoderDC"]

    def load(self) -> ImageEncoder:
        return encoder(self.folder)

    def sources(self) -> list[np.ndarray]:
        return [picture(32, 64, seed) for seed in range(3)]


class TestQwenImageContract(TestDeepCompressionContract):
    @pytest.fixture(autouse=True)
    def _find(self, folders: dict[str, Path]) -> None:
        self.folder = folders["AutoencoderKLQwenImage"]


def test_descriptions_have_the_scale_of_each_channel_where_there_is_one(
    folders: dict[str, Path],
) -> None:
    wan = encoder(folders["AutoencoderKLWan"]).describe()
    assert (wan["latents_mean"], wan["latents_std"]) == ([0.5] * 48, [2.0] * 48)
    assert wan["output"] == "posterior mean, unscaled"
    compressed = encoder(folders["AutoencoderDC"]).describe()
    assert compressed["scaling_factor"] == 0.41407
    assert compressed["output"] == "latent, unscaled"
    assert "latents_mean" not in compressed


def test_wider_first_layers_are_given_more_memory(tmp_path: Path) -> None:
    folder = make_vae(tmp_path / "vae")
    usual = encoder(folder).bytes_per_number
    edit_json(folder / "config.json", block_out_channels=[200, 200, 200, 200])
    assert encoder(folder).bytes_per_number == 2 * usual


def test_a_contradiction_names_both_shapes(folders: dict[str, Path]) -> None:
    both = r"shape: \[16, height/8, width/8\], but .*DC gives \[32, height/32, width/32\]; leave"
    with pytest.raises(RecipeError, match=both):
        load("pretrained", with_model(VAE, folders["AutoencoderDC"]), Options(), {})
    integers = dataclasses.replace(with_model(VAE, folders["AutoencoderKLQwenImage"]), dtype="|u1")
    with pytest.raises(RecipeError, match=r"dtype: uint8, but .*QwenImage gives floats; choose"):
        load("pretrained", integers, Options(), {})


def test_classes_that_are_not_image_autoencoders_are_refused(tmp_path: Path) -> None:
    folder = make_vae(tmp_path / "vae")
    edit_json(folder / "config.json", _class_name="AutoencoderOobleck")
    with pytest.raises(UsageError, match=r"AutoencoderOobleck model.*AutoencoderKLWan is needed"):
        shape_of(with_model(VAE, folder), {})
    edit_json(folder / "config.json", _class_name="AutoencoderKL", in_channels=4)
    with pytest.raises(UsageError, match="takes pictures of 4 channels, and a picture has 3"):
        shape_of(with_model(VAE, folder), {})
    config = json.loads((folder / "config.json").read_text())
    for key in ("latent_channels", "block_out_channels"):
        kept = {k: v for k, v in config.items() if k != key} | {"in_channels": 3}
        (folder / "config.json").write_text(json.dumps(kept))
        with pytest.raises(UsageError, match=rf"config\.json: has no {key}"):
            shape_of(with_model(VAE, folder), {})
