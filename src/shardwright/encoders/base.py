"""What an encoder is: the one small interface between the pipeline and every model.

An encoder makes one component. ``prepare`` runs ahead in the decode threads and must be safe to
call from several at once; ``encode`` is called by one thread only. The first ``encode`` loads the
weights: before that, an encoder reads only what ``prepare`` and ``describe`` need, so a run can
compare provenance, or plan, without loading a model.

An encoder that needs much memory may have ``bytes_per_number``: the bytes that ``encode`` takes for
each number of its input. The default batch is then one that fits.

Encoders of one model may share its work: each has ``shares``, an object, and ``encode(*inputs)`` is
``take(forward(*inputs))``. Of encoders with the same ``shares``, one prepares the input and runs
``forward``, and each takes its own array from what the model gave.

Where a device works beside the host, there are ``run(send(*inputs))`` instead of
``forward(*inputs)``: neither waits for the device, only ``take`` does. The next input is sent and
run before ``take`` waits, so the device always has something to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.errors import UsageError
from shardwright.recipes import Component, Side

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|mps", re.ASCII)
DTYPES = ("float32", "tf32", "bfloat16")
EAGER = "eager"  # the way to compute that all models have

Picture = NDArray[np.uint8]  # (height, width, 3), RGB, upright, read-only
Box = tuple[float, float, float, float]  # a part of a picture: left, top, right, bottom
Axes = tuple[int | Side | Literal["any"], ...]  # the shape of a component


@dataclass(frozen=True)
class Tokens:
    """A caption as its encoder reads it, padded or cut to the mask's length."""

    ids: NDArray[np.int64]
    mask: NDArray[np.uint8]
    lost: int | None = None  # tokens that were cut off; None if the encoder does not count them
    cut_at: int | None = None  # characters of the caption before the cut, if it was cut


class _Encoder(Protocol):
    component: Component
    device: str  # where it runs

    def describe(self) -> dict[str, Any]:
        """Give what the arrays depend on: equal descriptions mean equal arrays."""


class ImageEncoder(_Encoder, Protocol):
    """Makes one component from pictures."""

    def prepare(self, picture: Picture) -> NDArray[Any]:
        """Preprocess one picture; those whose prepared arrays have one shape are batched."""

    def encode(self, batch: NDArray[Any], /) -> NDArray[Any]:
        """Turn (N, *prepared shape) into (N, *component shape), in its dtype or a wider one.

        Raises MemoryError when the device has no room for the batch; it is then halved.
        """


class TextEncoder(_Encoder, Protocol):
    """Makes one component from captions."""

    def prepare(self, caption: str) -> Tokens:
        """Tokenize one caption."""

    def encode(self, ids: NDArray[np.int64], mask: NDArray[np.uint8], /) -> NDArray[Any]:
        """Turn N rows of tokens into (N, *component shape), in its dtype or a wider one.

        Raises MemoryError when the device has no room for the batch; it is then halved.
        """


class PictureWriter(_Encoder, Protocol):
    """Writes the picture itself, as a file; not in batches."""

    def write(self, picture: Picture, original: bytes | None) -> bytes:
        """Give the file of a picture.

        ``original`` is the image file, if it holds exactly this picture; it may then be kept.
        """


Encoder = ImageEncoder | TextEncoder


class Preparing(Protocol):
    """What ``prepare`` of a shipped encoder does to a picture, apart from the encoder itself.

    It can be sent to another process, which has no torch. It takes an image of Pillow, whose pixels
    are not copied.
    """

    def __call__(self, image: Image.Image, box: Box | None = None) -> NDArray[Any]:
        """Prepare a picture in RGB, or the part of it within the box."""

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Give the width and height that a picture of this size may be decoded at."""


class Pixels:
    """Gives the pixels themselves."""

    def __call__(self, image: Image.Image, box: Box | None = None) -> Picture:
        """Give the pixels, read-only: several encoders see the same picture."""
        return pixels(image)

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Need all of them."""
        return width, height


@dataclass(frozen=True)
class Preprocessing:
    """As the processors of transformers do it: resize, perhaps crop, rescale and normalise."""

    height: int | None  # to exactly this size,
    width: int | None
    resample: int  # numbered as Pillow does
    rescale: float
    mean: list[float]
    std: list[float]
    shortest_edge: int | None = None  # or in proportion, until the shorter side has this length
    crop: list[int] | None = None  # height and width of the centre that is kept
    rounded: bool = True  # whether resized pixels have 8 bits

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the pixel values."""
        height, width = self.crop or (self.height, self.width)
        assert height is not None
        assert width is not None
        return height, width

    def __call__(self, image: Image.Image, box: Box | None = None) -> NDArray[np.float32]:
        """Give the pixel values, (3, height, width), of an image or of the part within the box."""
        left, top, right, bottom = box or (0, 0, *image.size)
        resample, size = Image.Resampling(self.resample), self.needs(right - left, bottom - top)
        if self.rounded:
            pixels = np.asarray(image.resize(size, resample, box)).transpose(2, 0, 1)
        else:
            planes = (plane.convert("F").resize(size, resample, box) for plane in image.split())
            pixels = np.stack(list(map(np.asarray, planes)))
        if self.crop is not None:
            height, width = self.crop
            top, left = (size[1] - height) // 2, (size[0] - width) // 2
            pixels = pixels[:, top : top + height, left : left + width]
        mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (self.mean, self.std))
        values: NDArray[np.float32] = (pixels * np.float32(self.rescale) - mean) / std
        return values

    def needs(self, width: float, height: float) -> tuple[int, int]:
        """Need as many pixels as they are resized to."""
        if self.shortest_edge is None:
            assert self.height is not None
            assert self.width is not None
            return self.width, self.height
        shorter = min(height, width)
        return int(self.shortest_edge * width / shorter), int(self.shortest_edge * height / shorter)


class Prepares:
    """An encoder whose ``prepare`` is a value."""

    preparing: Preparing

    def prepare(self, picture: Picture) -> NDArray[Any]:
        return self.preparing(Image.fromarray(picture))


def preparing(encoder: object) -> Preparing | None:
    """Give what ``prepare`` of an encoder does as a value; None if it is the user's own method."""
    method: Any = getattr(encoder, "prepare", None)
    if isinstance(encoder, Prepares) and getattr(method, "__func__", None) is Prepares.prepare:
        return encoder.preparing
    return None


def pixels(image: Image.Image) -> Picture:
    """Give the pixels of an image, read-only."""
    found = np.asarray(image)
    found.setflags(write=False)
    return found


class RecipeError(UsageError):
    """A key of a component asks for what its encoder does not do.

    ``fault`` is the component's name, the key, what is wrong and the fix: whoever knows the recipe
    file raises an error that names it too.
    """

    def __init__(self, component: Component, key: str, what: str, fix: str) -> None:
        super().__init__(f"[component.{component.name}] {key}: {what}", fix=fix)
        self.fault = (component.name, key, what, fix)


def device_names(text: str) -> tuple[str, ...]:
    """Read ``--device``: one device, several with commas, or ``cpu:N`` for N processes."""
    words = [word.strip() for word in text.split(",")]
    names: list[str] = []
    for word in words:
        kind, _, number = word.partition(":")
        if kind == "cpu" and number.isascii() and number.isdigit() and int(number):
            names += ["cpu"] * int(number)
        else:
            names.append(Options(word).device)
    kinds = {name.partition(":")[0] for name in names}
    twice = len(set(words)) < len(words) or (len(words) > 1 and not kinds <= {"cuda"})
    if twice or (len(names) > 1 and "cuda" in names):
        what = f"--device {text}: not several different devices of one kind"
        raise UsageError(what, fix="give for example cuda:0,cuda:2, or cpu:4 for 4 processes")
    return tuple(names)


def every_gpu() -> tuple[str, ...]:
    """Name all GPUs that CUDA finds."""
    import torch  # here, because it takes seconds, and not everyone has it

    return tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))


@dataclass(frozen=True)
class Options:
    """How the user wants the encoders loaded."""

    device: str = "auto"
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse unknown devices and dtypes; float16 too: many models overflow in it."""
        if not _DEVICE.fullmatch(self.device):
            what = f"--device {self.device}: unknown"
            raise UsageError(what, fix="choose from auto, cpu, cpu:N, cuda, cuda:N and mps")
        if self.dtype is not None and self.dtype not in DTYPES:
            why = "overflows in these models" if self.dtype == "float16" else "not supported"
            fix = "choose from float32, tf32 and bfloat16"
            raise UsageError(f"--dtype {self.dtype}: {why}", fix=fix)
