"""The half of an autoencoder that decodes: every class, and how looking uses it."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardwright import derive
from shardwright.encoders import shape_of
from shardwright.encoders.autoencoder import Decoder, Tiling
from shardwright.encoders.base import Options
from shardwright.errors import InputMissingError, MissingExtraError, ShardwrightError, UsageError
from shardwright.looking import open_source
from shardwright.looking.latents import choose
from shardwright.looking.pictures import Previews
from shardwright.progress import Progress
from shardwright.recipes import SPECIFICATION, Component
from tests.derive.encoders.models import AUTOENCODERS, make_autoencoder, make_vae, with_model
from tests.derive.pictures import gradient, save

VAE = SPECIFICATION.by_name["vae"]
FLUX = {"encoder": "AutoencoderKL", "scaling_factor": 0.3611, "shift_factor": 0.1159}


def component(folder: Path) -> Component:
    asked = with_model(VAE, folder)
    return dataclasses.replace(asked, shape=shape_of(asked, {}))


def decoder(folder: Path) -> Decoder:
    return Decoder.load(component(folder), Options(), {})


def noise(of: Component, width: int, height: int) -> NDArray[np.float16]:
    return np.random.default_rng(1).normal(size=of.shape_for(width, height)).astype(np.float16)


def plain_decode(folder: Path, kind: str, latent: NDArray[Any]) -> NDArray[Any]:
    """Decode as a plain script does with the class of diffusers; give pixels, not rounded."""
    import diffusers
    import torch

    model = getattr(diffusers, kind).from_pretrained(folder, low_cpu_mem_usage=False).eval()
    batch = torch.from_numpy(latent.astype(np.float32))[None]
    video = kind in ("AutoencoderKLQwenImage", "AutoencoderKLWan")
    with torch.no_grad():
        made = model.decode(batch[:, :, None] if video else batch).sample[0]
    pixels = np.asarray(made[:, 0] if video else made).transpose(1, 2, 0)
    found: NDArray[Any] = ((pixels + 1) * 127.5).clip(0, 255)
    assert found.std() > 1, "nothing to compare"
    return found


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_every_class_decodes_as_a_plain_run(tmp_path: Path, kind: str) -> None:
    folder = make_autoencoder(tmp_path / kind, kind)
    made = decoder(folder)
    latent = noise(made.component, 128, 64)
    shown = made.decode(latent)
    assert shown.shape == (64, 128, 3)
    assert shown.dtype == np.uint8
    assert np.abs(shown - plain_decode(folder, kind, latent)).max() <= 0.51


def test_only_the_half_that_decodes_is_kept(tmp_path: Path) -> None:
    model: Any = decoder(make_vae(tmp_path / "vae"))._model
    assert not list(model.encoder.parameters())
    assert list(model.decoder.parameters())


def test_a_large_latent_is_decoded_in_tiles_that_fade_into_each_other(tmp_path: Path) -> None:
    folder = make_vae(tmp_path / "vae", attention=False)
    made = decoder(folder)
    latent = noise(made.component, 160, 64)
    made.tiling = Tiling(above=1, side=96, overlap=32)
    shown = made.decode(latent)
    first, second = latent[..., :12], latent[..., 8:]
    for alone, at in ((first, slice(0, 64)), (second, slice(96, 160))):
        expected = plain_decode(folder, "AutoencoderKL", alone)
        part = expected[:, :64] if alone is first else expected[:, -64:]
        assert np.abs(shown[:, at] - part).max() <= 0.51


def test_looking_shows_what_the_model_decodes_and_says_if_it_is_another_one(tmp_path: Path) -> None:
    folder = make_vae(tmp_path / "tiny")
    of = with_model(VAE, folder)
    preview = choose(of, FLUX, list, decode=True)
    assert preview is not None
    assert preview.label == "decoded by tiny"
    latent = noise(of, 32, 48)
    expected = plain_decode(folder, "AutoencoderKL", latent)
    shown = preview.picture(latent)
    assert np.abs(shown - expected).max() <= 0.51
    latent[3, 1, 2] = np.nan
    assert (preview.picture(latent)[8:16, 16:24] == (255, 0, 128)).all()
    other = choose(of, FLUX | {"model": "tiny", "sha256": "0" * 64}, list, decode=True)
    assert other is not None
    assert other.label == "decoded by tiny, which is not the one that made them"


def test_a_latent_that_the_memory_has_no_room_for_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError("no room")

    of = with_model(VAE, make_vae(tmp_path / "tiny"))
    preview = choose(of, FLUX, list, decode=True)
    assert preview is not None
    monkeypatch.setattr(Decoder, "decode", full)
    with pytest.raises(ShardwrightError) as caught:
        preview.picture(noise(of, 32, 48))
    what = "no memory to decode a latent of (16, 6, 4); leave --decode out"
    assert str(caught.value) == what


@pytest.mark.parametrize(
    "hostile",
    [
        {"tile_above": "many"},
        {"subfolder": "../../elsewhere"},
        {"subfolder": ["a"]},
    ],
)
def test_other_settings_of_a_recipe_do_not_matter(tmp_path: Path, hostile: dict[str, Any]) -> None:
    of = with_model(VAE, make_vae(tmp_path / "tiny"), **hostile)
    preview = choose(of, {"revision": 3, "model": ["x"]}, list, decode=True)
    assert preview is not None
    assert preview.picture(noise(of, 32, 48)).shape == (48, 32, 3)


def test_damaged_weights_are_found_before_the_first_latent(tmp_path: Path) -> None:
    folder = make_vae(tmp_path / "tiny")
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UsageError, match=r"tiny: cannot be loaded as AutoencoderKL"):
        choose(with_model(VAE, folder), {}, list, decode=True)


def test_a_model_that_is_not_at_hand_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputMissingError) as caught:
        choose(with_model(VAE, "/no/such/folder"), {}, list, decode=True)
    assert str(caught.value) == "/no/such/folder: no such folder; leave --decode out"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputMissingError) as offline:
        choose(with_model(VAE, "nobody/no-such-model"), {}, list, decode=True)
    assert str(offline.value) == (
        "nobody/no-such-model: no such folder here, not in the hub's cache, and HF_HUB_OFFLINE is "
        "set; unset it to download the model, or leave --decode out"
    )
    with pytest.raises(UsageError) as unnamed:
        choose(dataclasses.replace(VAE, settings={}), {}, list, decode=True)
    assert str(unnamed.value) == ("--decode: the recipe names no model for vae; leave --decode out")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(MissingExtraError) as caught:
        choose(VAE, {}, list, decode=True)
    assert str(caught.value) == (
        "--decode needs diffusers (import of diffusers halted; None in sys.modules); run pip "
        "install '.[encode]' in the checkout of shardwright, or leave --decode out"
    )


def test_look_shows_latents_as_their_own_model_decodes_them(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    for number in range(2):
        save(tmp_path / "images" / f"{number}.png", gradient(64, 64, seed=number))
        (tmp_path / "images" / f"{number}.txt").write_text("a gradient")
    recipe = tmp_path / "latents.toml"
    recipe.write_text(
        '[images]\nfit = "bucket"\nbuckets = ["64x64"]\n'
        f'[component.vae]\nencoder = "autoencoder"\nmodel = "{checkpoints["vae"]}"\n'
    )
    derive(tmp_path / "images", recipe=recipe, derived_dir=tmp_path / "store")
    source = open_source("path", tmp_path / "store", None, Progress())
    shown = Previews(source, None, decode=True)
    (shows,) = shown.latents
    assert shown.label(shows) == "decoded by tiny-vae"
    latent = np.load(tmp_path / "store" / shows.folder / "1.npy").astype(np.float32)
    wanted = plain_decode(checkpoints["vae"], "AutoencoderKL", latent)
    made = shown.latent(1, shows.name)
    assert made is not None
    found = np.asarray(Image.open(io.BytesIO(made))).astype(int)
    assert np.abs(found - wanted).max() <= 1
