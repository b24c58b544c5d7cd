"""What a plain script does with the classes of transformers and diffusers, one source at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.encoders.base import Picture


def plain_autoencoder(folder: Path, kind: str, source: Picture) -> NDArray[Any]:
    import diffusers
    import torch

    model = getattr(diffusers, kind).from_pretrained(folder, low_cpu_mem_usage=False).eval()
    pixels = torch.tensor(source).permute(2, 0, 1)[None].float() / 255 * 2 - 1
    video = kind in ("AutoencoderKLQwenImage", "AutoencoderKLWan")
    with torch.no_grad():
        made = model.encode(pixels[:, :, None] if video else pixels)
    if "latent_dist" in made:
        latent = made.latent_dist.mode()
    else:
        latent = made.latent if "latent" in made else made.latents
    return np.asarray(latent[0, :, 0] if video else latent[0])


def plain_vision(folder: Path, kind: str, source: Picture) -> Any:  # noqa: ANN401 - the output
    """Run the slow processor of transformers, where there is one, and the model."""
    import torch
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder).eval()
    processor: Any = {
        "Dinov2Model": transformers.BitImageProcessorPil,
        "Dinov2WithRegistersModel": transformers.BitImageProcessorPil,
        "SiglipVisionModel": transformers.SiglipImageProcessorPil,
    }[kind].from_pretrained(folder)
    pixels = processor(Image.fromarray(source), return_tensors="pt").pixel_values
    with torch.no_grad():
        return pixels[0].numpy(), model(pixels)


def plain_tokens(tokenizer: Any, caption: str, length: int) -> Any:  # noqa: ANN401
    return tokenizer(
        caption, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )


def encoded(encoder: Any, source: Any) -> NDArray[Any]:  # noqa: ANN401 - picture or caption
    """Encode one picture or caption alone."""
    prepared: Any = encoder.prepare(source)
    inputs = (prepared,) if isinstance(prepared, np.ndarray) else (prepared.ids, prepared.mask)
    made: Any = encoder
    (array,) = made.encode(*(np.stack([one]) for one in inputs))  # a batch, as at work
    return np.asarray(array)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Give the largest difference, relative to the largest value."""
    assert found.shape == expected.shape
    assert np.abs(expected).max() > 0.01, "nothing to compare"
    return float(np.abs(found - expected).max() / np.abs(expected).max())
