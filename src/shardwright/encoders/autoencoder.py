"""Image autoencoders: the mean of the posterior, or the latent of one that has none, unscaled.

The scale and shift are recorded for the trainer and not applied. The mean, not a sample, so that
the same picture gives the same latent. To look at latents, there is the other half: the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shardwright.encoders.base import Axes, Options, Picture, Pixels, Prepares
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.encoders.pretrained import Pretrained
from shardwright.errors import UsageError
from shardwright.recipes import Component, Side

# While a picture is encoded, for each number of it: measured with Flux's, which begins with 128
# channels. Others are taken to need as much, or more by their own first channels.
_BYTES_PER_NUMBER = {"float32": 840, "tf32": 840, "bfloat16": 420}
_MEASURED_CHANNELS = 128
_NORMALIZATION = ("scaling_factor", "shift_factor")  # of all channels; they may be null
_CHANNELS_LAST = "channels_last"
_BY_CHANNEL = ("latents_mean", "latents_std")


@dataclass(frozen=True)
class _Kind:
    """How the configuration of a class of diffusers names what is needed here."""

    channels: str = "latent_channels"
    blocks: str = "block_out_channels"  # each but the last halves the sides
    width: str | None = None  # of the first block, if the blocks do not say it
    video: bool = False  # a picture is a video of one frame


_CAUSAL = _Kind("z_dim", "dim_mult", "base_dim", video=True)
_KINDS = {
    "AutoencoderKL": _Kind(),
    "AutoencoderDC": _Kind(blocks="encoder_block_out_channels"),
    "AutoencoderTiny": _Kind(blocks="encoder_block_out_channels"),
    "AsymmetricAutoencoderKL": _Kind(blocks="down_block_out_channels"),
    "AutoencoderKLFlux2": _Kind(),
    "AutoencoderKLHunyuanImage": _Kind(),
    "AutoencoderKLKVAE": _Kind("z_channels", "ch_mult", "channels"),
    "AutoencoderKLQwenImage": _CAUSAL,
    "AutoencoderKLWan": _CAUSAL,
}


@dataclass(frozen=True)
class Tiling:
    """When and how a picture is cut up: by its size alone, so that its latent is always the same.

    Every bucket near one megapixel and a full-HD picture are encoded in one pass.
    """

    above: int = 2**21  # pixels
    side: int = 1024
    overlap: int = 256

    def cuts(self, length: int, factor: int) -> list[tuple[int, int]]:
        """Cut one side into overlapping parts of nearly the same length, between latents."""
        if length <= self.side:
            return [(0, length)]
        last = math.ceil((length - self.side) / (self.side - self.overlap))
        starts = [(length - self.side) * n // last // factor * factor for n in range(last + 1)]
        return [(start, start + self.side) for start in starts[:-1]] + [(starts[-1], length)]

    def feather(self, latents: int, factor: int) -> NDArray[np.float32]:
        """Weigh the latents of a part: less towards its ends, where it has seen least."""
        inward = np.arange(1, latents + 1)
        ramp = np.minimum(np.minimum(inward, inward[::-1]), self.overlap // factor)
        return ramp.astype(np.float32)


class _Half(Pretrained):
    """Half of an autoencoder of diffusers."""

    library = "diffusers"
    on_cuda = "tf32"
    layout = Layout(("config.json",), "diffusion_pytorch_model")
    tiling = Tiling()

    def _begin(self) -> None:
        self._config = self._checkpoint.read("config.json")
        self._factor = _factor(self._checkpoint, self._config)

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        config = checkpoint.config("_class_name", _KINDS)
        kind, factor = config["_class_name"], _factor(checkpoint, config)
        inputs = config.get("in_channels", config.get("input_channels", 3))
        inputs //= _patch(config) ** 2
        if inputs != 3:
            what = f"takes pictures of {inputs} channels, and a picture has 3"
            raise UsageError(what, path=checkpoint.asked, fix="choose a model for RGB pictures")
        channels = checkpoint.count(config, _KINDS[kind].channels)
        return kind, (channels, Side("height", factor), Side("width", factor))

    def _choose(self, made: torch.Tensor) -> torch.Tensor:
        return made

    def _tiled(
        self,
        size: tuple[int, int],
        shape: tuple[int, ...],
        cell: int,
        make: Callable[[slice, slice], torch.Tensor],
    ) -> torch.Tensor:
        """Make an array of this shape tile by tile, and fade each tile into its neighbours.

        ``make`` gives a tile for rows and columns of a picture of ``size``; each of its numbers is
        for so many pixels a side as a ``cell`` has. Diffusers' own tiling leaves a last tile of any
        size, down to one too small to encode.
        """
        total = torch.zeros(shape, device=self.device)
        weight = torch.zeros(shape[2:], device=self.device)
        for sides in product(*(self.tiling.cuts(length, self._factor) for length in size)):
            tile = make(*(slice(*side) for side in sides))
            ramps = (self.tiling.feather(length, cell) for length in tile.shape[2:])
            feather = torch.from_numpy(np.outer(*ramps)).to(self.device)
            rows, columns = (slice(start // cell, end // cell) for start, end in sides)
            total[:, :, rows, columns] += tile * feather
            weight[rows, columns] += feather
        return total / weight


class Autoencoder(Prepares, _Half):
    """The half that encodes."""

    preparing = Pixels()  # bytes: a quarter of the memory on the way, scaled fast on the device
    compiled = "_latent"  # tiles have one size, pictures have many

    def _begin(self) -> None:
        super()._begin()
        if above := self.component.settings.get("tile_above"):
            self.tiling = replace(self.tiling, above=above)
        known = _KINDS[self.kind]
        first = self._config[known.width] if known.width else self._config[known.blocks][0]
        more = max(1, math.ceil(first / _MEASURED_CHANNELS))
        self.bytes_per_number = _BYTES_PER_NUMBER[self.dtype] * more

    def describe(self) -> dict[str, Any]:
        config = self._config
        keys = [*_NORMALIZATION, *(key for key in _BY_CHANNEL if config.get(key))]
        return self._description(
            "posterior mean, unscaled" if "KL" in self.kind else "latent, unscaled",
            preprocessing="pixels / 127.5 - 1",
            tiling=asdict(self.tiling),
            **{key: config.get(key) for key in keys},
        )

    @staticmethod
    def _strip(module: nn.Module) -> None:
        module.decoder = nn.Identity()  # half of the weights

    def _input(self) -> tuple[object, ...]:
        return (self.component.settings.get("tile_above"),)

    def ways(self) -> list[str]:
        last = self.device.startswith("cuda") and not _KINDS[self.kind].video
        return [_CHANNELS_LAST] * last + super().ways()

    def use(self, way: str) -> None:
        super().use(way)
        self._model.to(memory_format=self._format)

    @property
    def _format(self) -> torch.memory_format:
        return torch.channels_last if self.way == _CHANNELS_LAST else torch.contiguous_format

    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        (batch,) = inputs
        count, height, width = batch.shape[:3]
        if height * width <= self.tiling.above:
            return self._latent(model, batch)
        shape = (count, *self.component.shape_for(width, height))
        return self._tiled(
            (height, width), shape, self._factor, lambda y, x: self._latent(model, batch[:, y, x])
        )

    def _latent(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        # Contiguous: on a CPU, torch normalises pictures that are stored pixel by pixel with errors
        # of a thousandth, and larger pictures with larger errors.
        pixels = batch.permute(0, 3, 1, 2).contiguous(memory_format=self._format)
        scaled = pixels.to(torch.float32).div(127.5).sub(1).to(model.dtype)
        video = _KINDS[self.kind].video
        made = model.encode(scaled.unsqueeze(2) if video else scaled, return_dict=False)[0]
        latent: torch.Tensor = made if isinstance(made, torch.Tensor) else made.mode()
        return (latent.squeeze(2) if video else latent).float()


class Decoder(_Half):
    """The half that turns a latent, unscaled, back into a picture."""

    @classmethod
    def load(cls, component: Component, options: Options, models: dict[Any, Any]) -> Self:
        """Load all of it at once: what is wrong with a model is found before the first latent."""
        made = super().load(component, options, models)
        made._shared.turns.bring(made._shared)
        return made

    @property
    def identity(self) -> dict[str, str]:
        """Name the exact weights, as in a description."""
        return self._checkpoint.identity

    def decode(self, latent: NDArray[Any]) -> Picture:
        """Give the pixels of one latent."""
        (made,) = self.encode(latent[None].astype(np.float32))
        pixels: Picture = np.nan_to_num(made).round().clip(0, 255).astype(np.uint8)
        return pixels

    @staticmethod
    def _strip(module: nn.Module) -> None:
        module.encoder = nn.Identity()

    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        (latents,), factor = inputs, self._factor
        height, width = (side * factor for side in latents.shape[2:])
        if height * width <= self.tiling.above:
            return self._pixels(model, latents).permute(0, 2, 3, 1)

        def make(rows: slice, columns: slice) -> torch.Tensor:
            parts = (slice(part.start // factor, part.stop // factor) for part in (rows, columns))
            return self._pixels(model, latents[:, :, *parts])

        shape = (len(latents), 3, height, width)
        return self._tiled((height, width), shape, 1, make).permute(0, 2, 3, 1)

    def _pixels(self, model: nn.Module, latents: torch.Tensor) -> torch.Tensor:
        video = _KINDS[self.kind].video
        scaled = latents.to(model.dtype)
        made = model.decode(scaled.unsqueeze(2) if video else scaled, return_dict=False)[0]
        pixels: torch.Tensor = made.squeeze(2) if video else made
        return pixels.float().add(1).mul(127.5)


def _factor(checkpoint: Checkpoint, config: dict[str, Any]) -> int:
    """Count the pixels a side of one latent."""
    kind = _KINDS[config["_class_name"]]
    blocks = config.get(kind.blocks)
    if not isinstance(blocks, list) or not blocks:
        path = checkpoint.folder / "config.json"
        raise UsageError(f"has no {kind.blocks}", path=path, fix="download the model again")
    halved = 1 << len(blocks) - 1
    limit: int = config.get("spatial_compression_ratio", halved)
    return min(halved, limit) * _patch(config)


def _patch(config: dict[str, Any]) -> int:
    """Count the pixels a side that are joined before the first block; Flux.2's come after all."""
    return int(config.get("patch_size") or 1) if _KINDS[config["_class_name"]].video else 1


load, shape = Autoencoder.load, Autoencoder.shape
