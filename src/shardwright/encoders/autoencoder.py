"""VAE: the mean of the posterior of an AutoencoderKL, unscaled.

The scaling and shift factors are recorded for the trainer and not applied. The mean, not a sample,
so that the same picture gives the same latent.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import ImageEncoder, Options, Picture
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.encoders.devices import Pretrained, find_model, run
from shardwright.recipes import Component

if TYPE_CHECKING:
    import torch
    from torch import nn

_LAYOUT = Layout(("config.json",), "diffusion_pytorch_model")
_FACTOR = 8  # pixels a side of one latent
_BYTES_PER_NUMBER = {"float32": 840, "bfloat16": 420}  # of input, while it is encoded; measured


@dataclass(frozen=True)
class Tiling:
    """When and how a picture is cut up: by its size alone, so that its latent is always the same.

    Every bucket and a full-HD picture are encoded in one pass.
    """

    above: int = 2**21  # pixels
    side: int = 1024
    overlap: int = 256

    def cuts(self, length: int) -> list[tuple[int, int]]:
        """Cut one side into overlapping parts of nearly the same length, between latents."""
        if length <= self.side:
            return [(0, length)]
        last = math.ceil((length - self.side) / (self.side - self.overlap))
        starts = [(length - self.side) * n // last // _FACTOR * _FACTOR for n in range(last + 1)]
        return [(start, start + self.side) for start in starts[:-1]] + [(starts[-1], length)]

    def feather(self, latents: int) -> NDArray[np.float32]:
        """Weigh the latents of a part: less towards its ends, where it has seen least."""
        inward = np.arange(1, latents + 1)
        ramp = np.minimum(np.minimum(inward, inward[::-1]), self.overlap // _FACTOR)
        return ramp.astype(np.float32)


class VaeEncoder(Pretrained):
    """An AutoencoderKL."""

    library, kind = "diffusers", "AutoencoderKL"

    def __init__(
        self,
        component: Component,
        checkpoint: Checkpoint,
        options: Options,
        tiling: Tiling | None = None,
    ) -> None:
        super().__init__(component, checkpoint, options)
        self._tiling = tiling or Tiling()
        self.bytes_per_number = _BYTES_PER_NUMBER[self._dtype]

    def prepare(self, picture: Picture) -> Picture:
        return picture  # as bytes: a quarter of the memory on the way, scaled fast on the device

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        height, width = batch.shape[1:3]
        encode = self._mean if height * width <= self._tiling.above else self._tiled
        model = self._model
        return run(lambda: encode(model, batch))

    def describe(self) -> dict[str, Any]:
        config = self._checkpoint.read("config.json")
        return self._description(
            "posterior mean, unscaled",
            preprocessing="pixels / 127.5 - 1",
            tiling=asdict(self._tiling),
            scaling_factor=config.get("scaling_factor"),
            shift_factor=config.get("shift_factor"),
        )

    @cached_property
    def _model(self) -> nn.Module:
        model = super()._model
        model.decoder = None  # half of the weights, and never used
        return model

    def _mean(self, model: nn.Module, batch: NDArray[np.uint8]) -> torch.Tensor:
        import torch

        # Contiguous: on a CPU, torch normalises pictures that are stored pixel by pixel with errors
        # of a thousandth, and larger pictures with larger errors.
        pixels = torch.from_numpy(batch).to(self.device).permute(0, 3, 1, 2).contiguous()
        scaled = pixels.to(torch.float32).div(127.5).sub(1).to(model.dtype)
        mean: torch.Tensor = model.encode(scaled).latent_dist.mean
        return mean.float()

    def _tiled(self, model: nn.Module, batch: NDArray[np.uint8]) -> torch.Tensor:
        """Encode tile by tile and fade each into its neighbours.

        Diffusers' own tiling leaves a last tile of any size, down to one too small to encode.
        """
        import torch

        count, height, width = batch.shape[:3]
        shape = self.component.shape_for(width, height)
        total = torch.zeros(count, *shape, device=self.device)
        weight = torch.zeros(shape[1:], device=self.device)
        for (top, bottom), (left, right) in product(
            self._tiling.cuts(height), self._tiling.cuts(width)
        ):
            tile = self._mean(model, batch[:, top:bottom, left:right])
            ramps = (self._tiling.feather(latents) for latents in tile.shape[2:])
            feather = torch.from_numpy(np.outer(*ramps)).to(self.device)
            rows = slice(top // _FACTOR, bottom // _FACTOR)
            columns = slice(left // _FACTOR, right // _FACTOR)
            total[:, :, rows, columns] += tile * feather
            weight[rows, columns] += feather
        return total / weight


def load(component: Component, options: Options) -> ImageEncoder:
    """Find the checkpoint, and refuse one that does not make this component."""
    checkpoint = find_model(component, options, ("torch", "diffusers"), _LAYOUT)
    config = checkpoint.config("_class_name", "AutoencoderKL")
    channels, blocks = config.get("latent_channels"), config.get("block_out_channels", ())
    gives, needs = (
        f"({count}, H//{factor}, W//{factor})"
        for count, factor in ((channels, 2 ** (len(blocks) - 1)), (component.shape[0], _FACTOR))
    )
    checkpoint.require_shape(gives, needs)
    return VaeEncoder(component, checkpoint, options)
