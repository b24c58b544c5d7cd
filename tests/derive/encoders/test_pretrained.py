"""The pretrained encoders with the real classes of transformers and diffusers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardwright.deriving import images
from shardwright.deriving.batches import Pass
from shardwright.deriving.machine import rooms
from shardwright.encoders import load
from shardwright.encoders.autoencoder import Autoencoder, Tiling
from shardwright.encoders.base import ImageEncoder, Options, Picture, TextEncoder, pixels
from shardwright.encoders.contract import ImageEncoderContract, TextEncoderContract, picture
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import SPECIFICATION
from tests.derive.encoders.models import (
    DINO_PREPROCESSING,
    edit_json,
    make_dino,
    make_t5,
    make_vae,
    with_model,
)

COMPONENT = {component.name: component for component in SPECIFICATION.components}

Checkpoints = dict[str, Path]


def encoder(name: str, folder: Path | str, **options: Any) -> Any:  # noqa: ANN401 - of either kind
    return load("pretrained", with_model(COMPONENT[name], folder), Options(**options), {})


def one(encoder: ImageEncoder, source: Picture) -> NDArray[Any]:
    (array,) = encoder.encode(np.stack([encoder.prepare(source)]))  # a batch, as at work
    return np.asarray(array)


def close(found: NDArray[Any], expected: NDArray[Any], of_largest: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert np.abs(expected).max() > 0.01, "nothing to compare"
    np.testing.assert_allclose(found, expected, rtol=0, atol=of_largest * np.abs(expected).max())


# What a plain script would do, one source at a time.


def plain_dino(folder: Path, source: Picture, dtype: str = "float32") -> NDArray[Any]:
    import torch
    from transformers import DINOv3ViTModel

    model = DINOv3ViTModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    pixels = torch.tensor(source).permute(2, 0, 1)[None].float() / 255
    pixels = torch.nn.functional.interpolate(
        pixels, size=(224, 224), mode="bilinear", antialias=True, align_corners=False
    )
    mean = torch.tensor(DINO_PREPROCESSING["image_mean"])[:, None, None]
    std = torch.tensor(DINO_PREPROCESSING["image_std"])[:, None, None]
    with torch.no_grad():
        output = model(pixel_values=(pixels - mean) / std)
    return np.asarray(output.pooler_output[0].float())


def plain_vae(folder: Path, source: Picture, dtype: str = "float32") -> NDArray[Any]:
    import torch
    from diffusers import AutoencoderKL

    model = AutoencoderKL.from_pretrained(folder, low_cpu_mem_usage=False)
    model = model.to(getattr(torch, dtype)).eval()
    pixels = torch.tensor(source).permute(2, 0, 1)[None].float() / 255 * 2 - 1
    with torch.no_grad():
        posterior = model.encode(pixels.to(model.dtype)).latent_dist
    return np.asarray(posterior.mode()[0].float())


def plain_t5(folder: Path, caption: str, dtype: str = "float32") -> tuple[NDArray[Any], list[int]]:
    import torch
    from transformers import AutoTokenizer, T5EncoderModel

    model = T5EncoderModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(
        caption, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        output = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask)
    return output.last_hidden_state[0].float().numpy(), tokens.attention_mask[0].tolist()


class TestDinoContract(ImageEncoderContract):
    @pytest.fixture(autouse=True)
    def _find(self, checkpoints: Checkpoints) -> None:
        self.folder = checkpoints["dinov3"]

    def load(self) -> ImageEncoder:
        made: ImageEncoder = encoder("dinov3", self.folder)
        return made


class TestVaeContract(ImageEncoderContract):
    @pytest.fixture(autouse=True)
    def _find(self, checkpoints: Checkpoints) -> None:
        self.folder = checkpoints["vae"]

    def load(self) -> ImageEncoder:
        made: ImageEncoder = encoder("vae", self.folder)
        return made


class TestTiledVaeContract(TestVaeContract):
    def load(self) -> ImageEncoder:
        return tiled(encoder("vae", self.folder), Tiling(above=40 * 40, side=32, overlap=16))


class TestT5Contract(TextEncoderContract):
    @pytest.fixture(autouse=True)
    def _find(self, checkpoints: Checkpoints) -> None:
        self.folder = checkpoints["t5"]

    def load(self) -> TextEncoder:
        made: TextEncoder = encoder("t5", self.folder)
        return made


# Equal to a plain, unbatched run


@pytest.mark.parametrize("size", [(224, 224), (301, 200), (37, 41), (1500, 16), (8, 8)])
def test_dino_equals_a_plain_run(checkpoints: Checkpoints, size: tuple[int, int]) -> None:
    source = picture(*size)
    array = one(encoder("dinov3", checkpoints["dinov3"]), source)
    assert array.dtype == np.float32
    close(array, plain_dino(checkpoints["dinov3"], source))


@pytest.mark.parametrize("size", [(64, 64), (96, 40), (71, 55), (8, 8), (9, 130)])
def test_vae_equals_a_plain_run(checkpoints: Checkpoints, size: tuple[int, int]) -> None:
    source = picture(*size)
    array = one(encoder("vae", checkpoints["vae"]), source)
    assert array.shape == (16, size[1] // 8, size[0] // 8)
    close(array, plain_vae(checkpoints["vae"], source))


def test_vae_with_a_quantizing_convolution_equals_a_plain_run(tmp_path: Path) -> None:
    folder = make_vae(tmp_path / "quantized", quantized=True)
    close(one(encoder("vae", folder), picture(64, 48)), plain_vae(folder, picture(64, 48)))


@pytest.mark.parametrize(
    "caption",
    [
        "a red kite",
        "moon",
        "Two cats,  asleep\non a wall.",
        "<extra_id_0> </s> x",
        "kite " * 76,
        "é" * 200,
    ],
    ids=["words", "word", "unknown", "special", "full", "cut"],
)
def test_t5_and_its_mask_equal_a_plain_run(checkpoints: Checkpoints, caption: str) -> None:
    t5: TextEncoder = encoder("t5", checkpoints["t5"])
    tokens = t5.prepare(caption)
    (array,) = t5.encode(tokens.ids[None], tokens.mask[None])
    expected, mask = plain_t5(checkpoints["t5"], caption)
    assert tokens.mask.tolist() == mask
    close(array, expected)


@pytest.mark.parametrize("caption", ["a red kite", "two cats asleep " * 40, "Über 東京 🙂 " * 60])
def test_tokens_lost_and_the_cut_are_those_of_the_untruncated_caption(
    checkpoints: Checkpoints, caption: str
) -> None:
    from transformers import AutoTokenizer

    t5 = encoder("t5", checkpoints["t5"])
    tokens = t5.prepare(caption)
    full = AutoTokenizer.from_pretrained(checkpoints["t5"])(caption).input_ids
    assert tokens.lost == len(full) - int(tokens.mask.sum())
    if not tokens.lost:
        assert tokens.cut_at is None
    else:
        again = t5.prepare(caption[: tokens.cut_at])
        assert (again.lost, again.ids.tolist()) == (0, tokens.ids.tolist())


def test_the_encoder_of_a_full_t5_equals_a_plain_run(tmp_path: Path) -> None:
    folder = make_t5(tmp_path / "full", full=True)
    t5: TextEncoder = encoder("t5", folder)
    tokens = t5.prepare("two cats")
    (array,) = t5.encode(tokens.ids[None], tokens.mask[None])
    close(array, plain_t5(folder, "two cats")[0])


def test_the_vae_knows_how_much_memory_a_picture_takes(checkpoints: Checkpoints) -> None:
    vae = encoder("vae", checkpoints["vae"])
    megapixel = vae.prepare(picture(1024, 1024)).size * vae.bytes_per_number
    assert 2.5e9 < megapixel < 2.8e9  # as measured with the default model, for each after the first
    through = Pass({COMPONENT["vae"]: vae})
    assert rooms([through])[through] > 0


@pytest.mark.parametrize(("name", "plain"), [("dinov3", plain_dino), ("vae", plain_vae)])
def test_bfloat16_equals_a_plain_run_in_bfloat16(
    checkpoints: Checkpoints, name: str, plain: Callable[[Path, Picture, str], NDArray[Any]]
) -> None:
    made = encoder(name, checkpoints[name], dtype="bfloat16")
    array = one(made, picture(64, 48))
    assert made.describe()["dtype"] == "bfloat16"
    assert array.dtype == np.float32
    close(array, plain(checkpoints[name], picture(64, 48), "bfloat16"), 0.02)
    assert not np.array_equal(array, one(encoder(name, checkpoints[name]), picture(64, 48)))


def _grey(image: Image.Image) -> Image.Image:
    return image.convert("L")


def _palette(image: Image.Image) -> Image.Image:
    return image.quantize(64)


def _cmyk(image: Image.Image) -> Image.Image:
    return image.convert("CMYK")


def _alpha(image: Image.Image) -> Image.Image:
    made = image.convert("RGBA")
    made.putalpha(Image.linear_gradient("L").resize(image.size))
    return made


@pytest.mark.parametrize(
    ("change", "ending"),
    [(_grey, "png"), (_palette, "png"), (_cmyk, "tif"), (_alpha, "png")],
    ids=["grey", "palette", "cmyk", "alpha"],
)
@pytest.mark.parametrize(("name", "plain"), [("dinov3", plain_dino), ("vae", plain_vae)])
def test_pictures_of_every_mode_equal_a_plain_run(
    checkpoints: Checkpoints,
    tmp_path: Path,
    change: Callable[[Image.Image], Image.Image],
    ending: str,
    name: str,
    plain: Callable[[Path, Picture], NDArray[Any]],
) -> None:
    path = tmp_path / f"x.{ending}"
    change(Image.fromarray(picture(75, 50))).save(path)
    with Image.open(path) as image:
        rgba = (
            image.convert("RGB").convert("RGBA") if image.mode == "CMYK" else image.convert("RGBA")
        )
    on_white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    on_white.alpha_composite(rgba)
    expected = plain(checkpoints[name], np.array(on_white.convert("RGB")))
    close(
        one(
            encoder(name, checkpoints[name]),
            pixels(images.read(str(path)).image),
        ),
        expected,
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_lying_on_its_side_is_encoded_upright(
    checkpoints: Checkpoints, tmp_path: Path, orientation: int
) -> None:
    upright = Image.fromarray(picture(72, 48))
    lay: dict[int, Image.Transpose] = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    lying = upright.transpose(lay[orientation]) if orientation in lay else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    lying.save(tmp_path / "x.png", exif=exif)
    array = one(
        encoder("vae", checkpoints["vae"]),
        pixels(images.read(str(tmp_path / "x.png")).image),
    )
    assert array.shape == (16, 6, 9)
    close(array, plain_vae(checkpoints["vae"], np.array(upright)))


# Tiles


def tiled(made: Autoencoder, tiling: Tiling) -> Autoencoder:
    made.tiling = tiling
    return made


def test_a_tile_is_the_latent_of_that_part_alone_where_no_other_reaches(
    checkpoints: Checkpoints,
) -> None:
    source = picture(150, 93)
    vae = tiled(encoder("vae", checkpoints["vae"]), Tiling(above=1, side=64, overlap=16))
    array = one(vae, source)
    assert array.shape == (16, 11, 18)
    # Rows 0-64 and 24-93; columns 0-64, 40-104 and 80-150: what only one tile covers is its own.
    close(array[:, :3, :5], plain_vae(checkpoints["vae"], source[:64, :64])[:, :3, :5])
    corner = plain_vae(checkpoints["vae"], source[24:93, 80:150])
    close(array[:, 8:, 13:], corner[:, 5:, 3:])


def test_tiles_fade_into_one_another_between_their_values(checkpoints: Checkpoints) -> None:
    source = picture(112, 64)
    vae = tiled(encoder("vae", checkpoints["vae"]), Tiling(above=1, side=64, overlap=16))
    array = one(vae, source)
    left = plain_vae(checkpoints["vae"], source[:, :64])[:, :, 6:]
    right = plain_vae(checkpoints["vae"], source[:, 48:])[:, :, :2]
    close(array[:, :, 6], (2 * left[:, :, 0] + right[:, :, 0]) / 3)
    close(array[:, :, 7], (left[:, :, 1] + 2 * right[:, :, 1]) / 3)


def test_a_picture_too_large_for_one_pass_is_tiled_and_a_full_hd_one_is_not(
    tmp_path: Path,
) -> None:
    # Attention would take most of the time.
    folder = make_vae(tmp_path / "vae", attention=False, width=4)
    vae: Autoencoder = encoder("vae", folder)
    sizes: list[tuple[int, ...]] = []
    vae._model.encoder.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[2:]))
    large = np.tile(picture(260, 100), (9, 10, 1))
    array = one(vae, large)
    assert array.shape == (16, 112, 325)
    assert np.isfinite(array).all()
    # The second of four tiles begins at 520.
    first = plain_vae(folder, large[:, :1024])
    close(array[:, :, :65], first[:, :, :65])
    assert np.abs(array[:, :, 65:128] - first[:, :, 65:]).max() > 0.01
    one(vae, np.tile(picture(192, 108), (10, 10, 1)))
    assert sizes == [*[(900, 1024)] * 4, (1080, 1920)]
    assert vae.describe()["tiling"] == {"above": 2_097_152, "side": 1024, "overlap": 256}


# What is said of the arrays


def test_descriptions_name_model_dtype_preprocessing_scale_and_shift(
    checkpoints: Checkpoints,
) -> None:
    said = {name: encoder(name, folder).describe() for name, folder in checkpoints.items()}
    hashes = {name: description.pop("sha256") for name, description in said.items()}
    assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in hashes.values())
    assert len(set(hashes.values())) == 3
    assert said["dinov3"] == {
        "encoder": "DINOv3ViTModel",
        "model": "tiny-dino",
        "dtype": "float32",
        "output": "pooler_output",
        "preprocessing": {
            "height": 224,
            "width": 224,
            "resample": 2,
            "rescale": 1 / 255,
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        },
    }
    assert said["vae"] == {
        "encoder": "AutoencoderKL",
        "model": "tiny-vae",
        "dtype": "float32",
        "output": "posterior mean, unscaled",
        "preprocessing": "pixels / 127.5 - 1",
        "tiling": {"above": 2_097_152, "side": 1024, "overlap": 256},
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
    }
    assert said["t5"] == {
        "encoder": "T5EncoderModel",
        "model": "tiny-t5",
        "dtype": "float32",
        "output": "last_hidden_state",
        "tokens": 77,
    }


def test_preprocessing_is_the_checkpoint_s_own(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints["dinov3"], tmp_path / "dino")
    edit_json(
        folder / "preprocessor_config.json",
        size={"height": 64, "width": 48},
        resample=3,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.25, 0.125],
    )
    dino: ImageEncoder = encoder("dinov3", folder)
    white = dino.prepare(np.full((10, 10, 3), 255, np.uint8))
    assert white.shape == (3, 64, 48)
    np.testing.assert_allclose(white[:, 0, 0], [1, 2, 4], rtol=1e-6)
    assert dino.describe()["preprocessing"]["resample"] == 3


# Checkpoints that cannot be used


def _refused(name: str, folder: Path, *words: str, kind: type[Exception] = UsageError) -> None:
    with pytest.raises(kind) as caught:
        encoder(name, folder)
    for word in (str(folder), *words):
        assert word in str(caught.value)


def test_a_checkpoint_of_the_wrong_width_is_refused(tmp_path: Path) -> None:
    _refused("dinov3", make_dino(tmp_path / "a", width=768), "[768]", "[1024]")
    _refused("vae", make_vae(tmp_path / "b", channels=4), "[4, height/8,", "[16, height/8,")
    _refused("vae", make_vae(tmp_path / "c", blocks=3), "[16, height/4,", "[16, height/8,")
    _refused("t5", make_t5(tmp_path / "d", width=512), "[77, 512]", "[77, 1024]")


def test_a_checkpoint_of_another_kind_is_refused(checkpoints: Checkpoints) -> None:
    _refused("dinov3", checkpoints["t5"], "t5", "dinov3_vit is needed")
    _refused("vae", checkpoints["dinov3"], "AutoencoderKL or AutoencoderDC or")
    _refused("t5", checkpoints["dinov3"], "dinov3_vit", "t5 or umt5 is needed")


def test_preprocessing_that_is_not_a_dinov3_s_is_refused(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoints["dinov3"], tmp_path / "dino")
    config = folder / "preprocessor_config.json"
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"do_center_crop": True}, ["preprocessor_config.json"]),
        ({"do_center_crop": True, "crop_size": {"height": 256, "width": 9}}, ["crops more"]),
        ({"do_resize": False}, ["do_resize: False"]),
        ({"size": {"shortest_edge": 256}}, ["no 'height'"]),
        ({"resample": 9}, ["preprocessor_config.json", "9"]),
        ({"image_mean": [0.5]}, ["preprocessor_config.json"]),
    ]
    for changes, words in cases:
        config.write_text(json.dumps(DINO_PREPROCESSING | changes))
        _refused("dinov3", folder, *words)
    config.unlink()
    _refused("dinov3", folder, "no preprocessor_config.json", kind=InputMissingError)


def test_a_tokenizer_that_is_missing_damaged_or_of_another_model_is_refused(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoints["t5"], tmp_path / "t5")
    edit_json(folder / "config.json", vocab_size=50)
    _refused("t5", folder, "use the tokenizer of this model")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="is not a tokenizer"):
        encoder("t5", folder)
    (folder / "tokenizer.json").unlink()
    _refused("t5", folder, "has no tokenizer.json", kind=InputMissingError)


def test_weights_that_are_missing_damaged_or_partial_are_never_made_up(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(checkpoints["t5"], tmp_path / "t5")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["encoder.final_layer_norm.weight"]
    save_file(tensors, weights, {"format": "pt"})
    t5: TextEncoder = encoder("t5", folder)
    tokens = t5.prepare("moon")
    with pytest.raises(UsageError, match=r"1 weight missing for T5EncoderModel.*final_layer_norm"):
        t5.encode(tokens.ids[None], tokens.mask[None])
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(UsageError, match="cannot be loaded as T5EncoderModel"):
        t5.encode(tokens.ids[None], tokens.mask[None])
    weights.unlink()
    with pytest.raises(InputMissingError, match=r"has no model\.safetensors"):
        t5.encode(tokens.ids[None], tokens.mask[None])


def test_a_value_that_float16_cannot_hold_is_given_as_it_is(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(checkpoints["t5"], tmp_path / "t5")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["encoder.final_layer_norm.weight"] *= 1e6
    save_file(tensors, weights, {"format": "pt"})
    t5: TextEncoder = encoder("t5", folder)
    tokens = t5.prepare("moon")
    array = t5.encode(tokens.ids[None], tokens.mask[None])
    assert array.dtype == np.float32
    assert np.isfinite(array).all()
    assert np.abs(array).max() > np.finfo(np.float16).max


# Device and dtype


def test_a_device_that_is_not_there_is_refused(checkpoints: Checkpoints) -> None:
    with pytest.raises(UsageError, match=r"--device cuda:99: torch .* finds no such device.*cpu"):
        encoder("vae", checkpoints["vae"], device="cuda:99")
    with pytest.raises(UsageError, match="choose from auto, cpu, cpu:N, cuda, cuda:N and mps"):
        encoder("vae", checkpoints["vae"], device="gpu")


def test_float16_is_refused(checkpoints: Checkpoints) -> None:
    with pytest.raises(UsageError, match="--dtype float16: overflows"):
        encoder("t5", checkpoints["t5"], dtype="float16")
    with pytest.raises(UsageError, match="choose from float32, tf32 and bfloat16"):
        encoder("t5", checkpoints["t5"], dtype="int8")


def test_a_batch_too_large_for_the_memory_is_a_memory_error(checkpoints: Checkpoints) -> None:
    vae: Autoencoder = encoder("vae", checkpoints["vae"], device="cpu")
    small = picture(64, 64)[None]
    # The same bytes over and over: more than any address space as floats, but nothing as they are.
    huge = np.lib.stride_tricks.as_strided(small, (10**12, 64, 64, 3), (0, *small.strides[1:]))
    with pytest.raises(MemoryError):
        vae.encode(huge)
    assert np.array_equal(vae.encode(small), encoder("vae", checkpoints["vae"]).encode(small))


# Manners


@pytest.fixture
def loud() -> Iterator[None]:
    """The libraries as they are by default."""
    import diffusers.utils.logging
    import transformers.utils.logging

    yield
    for logging in (diffusers.utils.logging, transformers.utils.logging):
        assert logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.WARNING


@pytest.mark.usefixtures("loud")
def test_loading_and_encoding_print_nothing(
    tmp_path: Path, checkpoints: Checkpoints, capfd: pytest.CaptureFixture[str]
) -> None:
    full = make_t5(tmp_path / "full", full=True)  # whose decoder the encoder does not expect
    capfd.readouterr()
    one(encoder("dinov3", checkpoints["dinov3"]), picture(64, 64))
    one(encoder("vae", checkpoints["vae"]), picture(64, 64))
    t5: TextEncoder = encoder("t5", full)
    tokens = t5.prepare("moon")
    t5.encode(tokens.ids[None], tokens.mask[None])
    assert capfd.readouterr() == ("", "")
