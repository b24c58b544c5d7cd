"""DINOv3: the pooled output of the vision transformer, one vector a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.encoders.base import ImageEncoder, Options, Picture
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.encoders.devices import Pretrained, find_model, run
from shardwright.errors import UsageError
from shardwright.recipes import Component

_PREPROCESSING = "preprocessor_config.json"
_LAYOUT = Layout(("config.json", _PREPROCESSING), "model")


@dataclass(frozen=True)
class Preprocessing:
    """How the checkpoint wants its pictures: resized without a crop, rescaled and normalised."""

    height: int
    width: int
    resample: int  # numbered as Pillow does
    rescale: float
    mean: list[float]
    std: list[float]

    def apply(self, picture: Picture) -> NDArray[np.float32]:
        """Give the pixel values, (3, height, width).

        In floats, like the reference: resizing 8-bit pixels would round them.
        """
        size, resample = (self.width, self.height), Image.Resampling(self.resample)
        planes = [
            Image.fromarray(picture[..., channel].astype(np.float32)).resize(size, resample)
            for channel in range(3)
        ]
        pixels = np.stack([np.asarray(plane) for plane in planes]) * np.float32(self.rescale)
        mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (self.mean, self.std))
        return (pixels - mean) / std


class DinoEncoder(Pretrained):
    """A DINOv3 vision transformer."""

    library, kind = "transformers", "DINOv3ViTModel"

    def __init__(self, component: Component, checkpoint: Checkpoint, options: Options) -> None:
        super().__init__(component, checkpoint, options)
        self._preprocessing = read_preprocessing(checkpoint)

    def prepare(self, picture: Picture) -> NDArray[np.float32]:
        return self._preprocessing.apply(picture)

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        import torch

        model = self._model
        return run(lambda: model(torch.from_numpy(batch).to(self.device)).pooler_output)

    def describe(self) -> dict[str, Any]:
        return self._description("pooler_output", preprocessing=asdict(self._preprocessing))


def load(component: Component, options: Options) -> ImageEncoder:
    """Find the checkpoint, and refuse one that does not make this component."""
    checkpoint = find_model(component, options, ("torch", "transformers"), _LAYOUT)
    config = checkpoint.config("model_type", "dinov3_vit")
    checkpoint.require_shape((config.get("hidden_size"),), component.shape)
    return DinoEncoder(component, checkpoint, options)


def read_preprocessing(checkpoint: Checkpoint) -> Preprocessing:
    """Read how the checkpoint wants its pictures; refuse what is not done here."""
    path = checkpoint.folder / _PREPROCESSING
    config = checkpoint.read(_PREPROCESSING)
    try:
        found = Preprocessing(
            height=int(config["size"]["height"]),
            width=int(config["size"]["width"]),
            resample=Image.Resampling(config["resample"]).value,
            rescale=float(config["rescale_factor"]),
            mean=_three(config["image_mean"]),
            std=_three(config["image_std"]),
        )
    except KeyError as error:
        raise UsageError(f"has no {error}", path=path) from None
    except (TypeError, ValueError) as error:
        raise UsageError(str(error), path=path) from None
    steps = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_center_crop": False}
    for step, done in steps.items():
        if config.get(step) not in (None, done):
            what = f"has {step}: {config[step]}, which is not supported"
            fix = "DINOv3 needs pictures that are resized, rescaled and normalised, not cropped"
            raise UsageError(what, path=path, fix=fix)
    return found


def _three(values: list[float]) -> list[float]:
    red, green, blue = map(float, values)
    return [red, green, blue]
