"""Whether a member holds what was recomputed: to the bit, or within the rounding of a model.

What has no model is compared to the bit: sketches, masks, integers. An array of a model may differ,
because a model rounds differently in another batch, on another device, or with another number of
threads. It is equal if no number differs by more than ``STEPS`` roundings of the recorded ``dtype``
(float32, tf32 or bfloat16) and one of the stored dtype, each of the largest number in the array. On
a CPU in float32, an autoencoder of random weights gave up to 33 with other batches and threads.

A picture is equal if its bytes are, or if no pixel differs by more than two of 256 levels: another
version of a library may compress it in another way.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image

from shardwright.recipes import BFLOAT16, Component
from shardwright.shards.format import decode
from shardwright.shards.format.decode import BadMemberError
from shardwright.store import content
from shardwright.store.arrays import Array, pieces, values
from shardwright.store.npy import BadArrayError
from shardwright.store.provenance import Settings

STEPS = 64  # roundings that may add up in a model
_STEP = {"float32": 2.0**-23, "tf32": 2.0**-10, "bfloat16": 2.0**-8}  # one of them, of 1
_LEVELS = 2  # of 256, in a picture
_FORMATS = ("JPEG", "PNG", "WEBP")


def difference(
    component: Component, member: bytes, made: Array | bytes, settings: Settings
) -> str | None:
    """Say in what a member differs from what was recomputed; None if it is equal."""
    if member == b"".join(pieces(made)):
        return None
    if isinstance(made, bytes):
        return _of_pictures(component, member, made)
    try:
        stored = decode.array(memoryview(member))
    except BadMemberError as error:
        return f"is no array ({error})"
    if (stored.dtype, stored.shape) != (made.dtype, made.shape):
        return f"is {stored.dtype} {stored.shape}, not {made.dtype} {made.shape}"
    there, now = (values(each, component).astype(np.float64) for each in (stored, made))
    largest = float(np.abs(there - now).max())
    exact = settings.get("encoders") == "sketch" or not component.is_float
    if exact:  # of equal numbers, other bits are a difference too: those of 0 and -0
        return f"differs by up to {largest:.3g}"
    dtype = str(settings.get("dtype"))
    dtype = dtype if dtype in _STEP else "float32"  # an encoder of the user's may not say it
    allowed = _allowed(component, float(np.abs(now).max()), dtype)
    if largest <= allowed:
        return None
    return f"differs by up to {largest:.3g}, {largest / allowed:.3g} times the rounding of {dtype}"


def _allowed(component: Component, largest: float, dtype: str) -> float:
    """Give the difference that rounding can make in an array, by its largest number."""
    kind = np.finfo(np.float32 if component.dtype == BFLOAT16 else component.dtype)
    step = 2.0**-7 if component.dtype == BFLOAT16 else float(kind.eps)
    # Below the smallest normal number, numbers are stored with fewer bits.
    return STEPS * _STEP[dtype] * largest + step * max(largest, float(kind.smallest_normal))


def _of_pictures(component: Component, member: bytes, made: bytes) -> str | None:
    try:
        # The size in the head limits what is decoded: it must be that of our own picture.
        sizes = [_shape(component, each) for each in (member, made)]
        if sizes[0] != sizes[1]:
            height, width, _ = sizes[0]
            return f"is {width}x{height}, not {sizes[1][1]}x{sizes[1][0]}"
        there, now = _pixels(member), _pixels(made)
    except BadArrayError as error:
        return f"is no picture of the recipe ({error.reason.replace('_', ' ')})"
    except Exception as error:  # decoders may raise anything
        return f"cannot be decoded ({error})"
    largest = int(np.abs(there - now).max())
    return f"differs by up to {largest} of 256 levels" if largest > _LEVELS else None


def _shape(component: Component, data: bytes) -> tuple[int, ...]:
    return content.check_part(lambda count, at: data[at : at + count], len(data), component)[1]


def _pixels(data: bytes) -> Array:
    with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        warnings.simplefilter("ignore")  # of metadata
        return np.asarray(image.convert("RGB")).astype(np.int16)
