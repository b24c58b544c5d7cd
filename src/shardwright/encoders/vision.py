"""DINOv2, DINOv3 and SigLIP2: the pooled vector of a picture, or a row for each of its patches."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from PIL import Image
from torch import nn

from shardwright.encoders.base import Axes, Prepares, Preprocessing
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.encoders.pretrained import Pretrained
from shardwright.errors import UsageError
from shardwright.recipes import Component

_PREPROCESSING = "preprocessor_config.json"
# The class for each model_type; SigLIP2's checkpoints of one resolution call themselves siglip.
_KINDS = {
    "dinov2": {"dinov2": "Dinov2Model", "dinov2_with_registers": "Dinov2WithRegistersModel"},
    "dinov3": {"dinov3_vit": "DINOv3ViTModel"},
    "siglip2": {"siglip": "SiglipVisionModel", "siglip_vision_model": "SiglipVisionModel"},
}
_NAFLEX = ("siglip2", "siglip2_vision_model")
# What a configuration within another leaves out.
_SIGLIP = {"hidden_size": 768, "image_size": 224, "patch_size": 16}


class VisionEncoder(Prepares, Pretrained):
    """A vision transformer."""

    layout = Layout(("config.json", _PREPROCESSING), "model")
    preparing: Preprocessing
    on_cuda = "tf32"

    def _begin(self) -> None:
        found = read_preprocessing(self._checkpoint)
        # DINOv3's processor rescales to floats before it resizes.
        self.preparing = replace(found, rounded=self.component.encoder != "dinov3")
        self._patches = self.component.settings["output"] == "patches"
        config = self._checkpoint.read("config.json")
        registers = 0 if self.kind == "Dinov2Model" else config.get("num_register_tokens", 0)
        # The rows before those of the patches.
        self._others = 0 if self.kind == "SiglipVisionModel" else 1 + registers

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        assert component.encoder is not None
        kinds = _KINDS[component.encoder]
        if checkpoint.read("config.json").get("model_type") in _NAFLEX:
            what = "is a NaFlex model, which takes pictures of any size: not supported"
            fix = "choose one of a fixed size, for example google/siglip2-base-patch16-224"
            raise UsageError(what, path=checkpoint.asked, fix=fix)
        config = checkpoint.config("model_type", kinds)
        kind = kinds[config["model_type"]]
        if kind == "SiglipVisionModel":
            config = _SIGLIP | config.get("vision_config", config)
        hidden, patch = (checkpoint.count(config, key) for key in ("hidden_size", "patch_size"))
        height, width = read_preprocessing(checkpoint).size
        if kind == "SiglipVisionModel" and (height, width) != (config["image_size"],) * 2:
            what = f"makes {width}x{height} pictures for a model of {config['image_size']}"
            path = checkpoint.folder / _PREPROCESSING
            raise UsageError(what, path=path, fix="download the model again")
        if component.settings["output"] == "pooled":
            return kind, (hidden,)
        return kind, ((height // patch) * (width // patch), hidden)

    def describe(self) -> dict[str, Any]:
        settings = asdict(self.preparing).items()
        preprocessing = {k: v for k, v in settings if v is not None and k != "rounded"}
        output = "patch tokens of last_hidden_state" if self._patches else "pooler_output"
        return self._description(output, preprocessing=preprocessing)

    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> Any:  # noqa: ANN401
        return model(inputs[0])

    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        rows: torch.Tensor = made.last_hidden_state
        pooled: torch.Tensor = made.pooler_output
        return rows[:, self._others :] if self._patches else pooled


def read_preprocessing(checkpoint: Checkpoint) -> Preprocessing:
    """Read how the checkpoint wants its pictures; refuse what is not done here."""
    path = checkpoint.folder / _PREPROCESSING
    config = checkpoint.read(_PREPROCESSING)
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if config.get(step) not in (None, True):
            what = f"has {step}: {config[step]}, which is not supported"
            fix = "give a model whose pictures are resized, rescaled and normalised"
            raise UsageError(what, path=path, fix=fix)
    try:
        size, crop = config["size"], None
        if config.get("do_center_crop"):
            crop = [int(config["crop_size"][side]) for side in ("height", "width")]
        in_proportion = crop is not None and "shortest_edge" in size
        found = Preprocessing(
            height=None if in_proportion else int(size["height"]),
            width=None if in_proportion else int(size["width"]),
            resample=Image.Resampling(config["resample"]).value,
            rescale=float(config["rescale_factor"]),
            mean=_three(config["image_mean"]),
            std=_three(config["image_std"]),
            shortest_edge=int(size["shortest_edge"]) if in_proportion else None,
            crop=crop,
        )
    except KeyError as error:
        raise UsageError(f"has no {error}", path=path) from None
    except (TypeError, ValueError) as error:
        raise UsageError(str(error), path=path) from None
    smallest = found.needs(1, 1)
    if crop is not None and (crop[0] > smallest[1] or crop[1] > smallest[0]):
        raise UsageError("crops more than it leaves", path=path, fix="download the model again")
    return found


def _three(values: list[float]) -> list[float]:
    red, green, blue = map(float, values)
    return [red, green, blue]


load, shape = VisionEncoder.load, VisionEncoder.shape
