"""The keys of a recipe file: what each may hold, and which encoders have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

from shardwright.buckets import is_bucket
from shardwright.recipes.values import ANY, BFLOAT16, JSON_SUFFIX, PICTURES, Side

DTYPES = {
    "float16": "<f2",
    BFLOAT16: BFLOAT16,
    "float32": "<f4",
    "float64": "<f8",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "bool": "|b1",
}
TOKENS = "tokens"  # an axis as long as the key of that name says
FITS = ("original", "bucket")

_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,47}", re.ASCII)
# Without a dot, so that it is never a file of the store; and one spelling on every disk.
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}", re.ASCII)
# Loaders end a key at its first dot, lower-case the rest, and reserve names that begin with "__".
_SUFFIX = re.compile(r"(?!__)[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
_LONGEST_SUFFIX = 48  # so that a key has room for about half of a name
_BARE = re.compile(r"[A-Za-z0-9_-]{1,60}", re.ASCII)
_SIDE = re.compile(r"(height|width)(?:/([1-9][0-9]{0,3}))?", re.ASCII)
_LARGEST = 1 << 31  # of a number in a recipe
_MOST_LEVELS = 16
_LONGEST_FIELD = 100  # characters
_LONGEST_SHOWN = 60  # characters of a value in an error
NAME_WORDS = "lower-case letters, digits, - and _, at most 48 in all"


class Key(NamedTuple):
    """What a key may hold."""

    words: str  # for an error
    allows: Callable[[Any], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value < _LARGEST


def _is_number(value: Any, least: float) -> bool:  # noqa: ANN401 - anything TOML can hold
    return type(value) in (int, float) and least <= value < _LARGEST


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_fields(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_field, value))


def _is_buckets(value: object) -> bool:
    """Whether these are buckets, or a list of them for each resolution."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(each, list) for each in value):
        return all(
            each and all(isinstance(b, str) and is_bucket(b) for b in each) for each in value
        )
    return all(isinstance(each, str) and is_bucket(each) for each in value)


def _is_mask(value: object) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, bool)
    suffix = value.get("suffix", "npy")
    return (
        value.keys() <= {"field", "suffix"}
        and _is_field(value.get("field", "mask"))
        and _is_suffix(suffix)
        and suffix.endswith("npy")
    )


def axis(value: Any, tokens: int = 1) -> int | Side | Literal["any"]:  # noqa: ANN401
    """Read one axis of a shape; anything else is a ValueError."""
    if _is_count(value):
        return int(value)
    if value == ANY:
        return ANY
    if value == TOKENS:
        return tokens
    match = _SIDE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{brief(value)} is not an axis")
    return Side("height" if match[1] == "height" else "width", int(match[2] or 1))


def _is_shape(value: object) -> bool:
    try:
        return isinstance(value, list) and len(list(map(axis, value))) > 0
    except ValueError:
        return False


def _is_suffix(value: object) -> bool:
    """Whether every loader splits a member's name before this suffix."""
    return (
        isinstance(value, str)
        and len(value) <= _LONGEST_SUFFIX
        and _SUFFIX.fullmatch(value) is not None
        and value != JSON_SUFFIX
        and value.rpartition(".")[2] in ("npy", *PICTURES)
    )


def _is_folder(value: object) -> bool:
    return isinstance(value, str) and _FOLDER.fullmatch(value) is not None


def _is_field(value: object) -> bool:
    return _is_text(value) and str(value).isprintable() and len(str(value)) <= _LONGEST_FIELD


def _is_plain(value: object, depth: int = 8) -> bool:
    """Whether JSON holds it unchanged: no dates, no NaN, and no abyss of tables."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(each, depth - 1) for each in inner)
    if isinstance(value, bool | str):
        return True
    return isinstance(value, int | float) and abs(value) < 1 << 53  # NaN is not less either


def is_name(value: str) -> bool:
    """Whether a component may have this name."""
    return _NAME.fullmatch(value) is not None


_SHAPE = 'a list of lengths, "height/N", "width/N", "tokens" or "any"'
_PIXELS = Key("a number of pixels", _is_count)
_SWITCH = Key("true or false", lambda v: isinstance(v, bool))

TOP = {
    "extends": Key("the name of a shipped recipe, or a file", _is_text),
    "components": Key("a list of names", lambda v: bool(v) and _is_texts(v)),
}
DEFAULT_PATHS = {"images": "data/approved", "store": "data/derived", "shards": "data/shards"}
PATHS = {name: Key("a path", _is_text) for name in DEFAULT_PATHS}
OF_RESOLUTION = {"step": 64, "max_aspect": 2.0}  # with their defaults
IMAGES = {
    "fit": Key(" or ".join(f'"{fit}"' for fit in FITS), lambda v: v in FITS),
    "buckets": Key('a list like ["1024x1024", "832x1216"]', _is_buckets),
    "resolution": Key(
        f"a number of pixels, or a list of at most {_MOST_LEVELS}",
        lambda v: (
            0 < len(v) <= _MOST_LEVELS and all(map(_is_count, v))
            if isinstance(v, list)
            else _is_count(v)
        ),
    ),
    "step": _PIXELS,
    "max_aspect": Key("a number of at least 1", lambda v: _is_number(v, 1)),
    "max_upscale": Key("a number of at least 1", lambda v: _is_number(v, 1)),
    "max_crop": Key("a share from 0 to 1", lambda v: _is_number(v, 0) and v <= 1),
    "min_side": _PIXELS,
}
COMPONENT = {
    "encoder": Key('a shipped encoder, an entry point, or "package.module:Class"', _is_text),
    "dtype": Key(f"one of {', '.join(DTYPES)}", lambda v: isinstance(v, str) and v in DTYPES),
    "shape": Key(_SHAPE, _is_shape),
    "folder": Key("letters, digits, - and _, at most 100 in all", _is_folder),
    "suffix": Key(
        "lower-case letters, digits, - and _, then .npy, .jpg, .png or .webp, at most "
        f"{_LONGEST_SUFFIX} in all",
        _is_suffix,
    ),
    "inline": Key("a list of record fields", _is_fields),
    "field": Key("a record field", _is_field),
    "mask": Key('true, false or { field = "...", suffix = "..." }', _is_mask),
    "tokens": Key("a number of tokens", _is_count),
    "trim": _SWITCH,
    "model": Key("a hub id or a folder", _is_text),
    "subfolder": Key("a folder of the model", _is_text),
    "output": Key("a text", _is_text),
    "layer": Key("a number, for example -2", lambda v: type(v) is int and abs(v) < _LARGEST),
    "template": Key('a text with "{caption}"', lambda v: _is_text(v) and v.count("{caption}") == 1),
    "attention_mask": _SWITCH,
    "format": Key(f"one of {', '.join(PICTURES)}", lambda v: v in PICTURES),
    "quality": Key("a number from 1 to 100", lambda v: _is_count(v) and v <= 100),
    "source": Key('"image" or "caption"', lambda v: v in ("image", "caption")),
    "options": Key(
        "a table of texts, numbers, switches, lists and tables",
        lambda v: isinstance(v, dict) and _is_plain(v),
    ),
}
TABLES = {"paths": PATHS, "images": IMAGES}  # besides those of the components


class Kind(NamedTuple):
    """An encoder that is part of Shardwright."""

    module: str  # below shardwright.encoders
    source: Literal["image", "caption"]
    keys: tuple[str, ...]  # besides those that every component may have
    defaults: dict[str, Any]
    outputs: tuple[str, ...] = ()  # what ``output`` may be


_CHECKPOINT = ("model", "subfolder")
_TEXT = (*_CHECKPOINT, "field", "tokens", "mask", "trim", "attention_mask")
_VISION = Kind(
    "vision", "image", (*_CHECKPOINT, "output"), {"output": "pooled"}, ("pooled", "patches")
)
_LONG = {"tokens": 512, "mask": True, "attention_mask": True}
ENCODERS = {
    "autoencoder": Kind("autoencoder", "image", _CHECKPOINT, {}),
    "dinov2": _VISION,
    "dinov3": _VISION,
    "siglip2": _VISION,
    "t5": Kind("t5", "caption", _TEXT, _LONG),
    "clip": Kind(
        *("clip", "caption", (*_TEXT, "output", "layer")),
        {"tokens": 77, "mask": False, "attention_mask": False, "output": "hidden", "layer": -1},
        ("hidden", "pooled", "projected"),
    ),
    "text": Kind("text", "caption", (*_TEXT, "layer", "template"), {**_LONG, "layer": -1}),
    "picture": Kind("picture", "image", ("format", "quality"), {"format": "jpg", "quality": 95}),
}
_EVERY = ("encoder", "dtype", "shape", "folder", "suffix", "inline")
_OWN = ("source", "options", "model", "field", "tokens", "mask", "trim")  # of a user's own encoder


def keys_of(encoder: str | None) -> tuple[str, ...]:
    """Name the keys that a component with this encoder may have."""
    if encoder is None:
        return _EVERY
    if encoder == "picture":
        return ("encoder", "folder", "suffix", *ENCODERS[encoder].keys)
    return (*_EVERY, *(ENCODERS[encoder].keys if encoder in ENCODERS else _OWN))


def nearest(given: str, known: Collection[str]) -> str:
    """Say which known name was probably meant, or name them all."""
    import difflib  # here, because most runs have no error

    close = difflib.get_close_matches(given, known, 1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def brief(value: object) -> str:
    """Show a value in an error, however long or deep it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, an abyss of lists
        text = f"this {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def spelt(key: str) -> str:
    """Show a key in an error as TOML may have it."""
    return key if _BARE.fullmatch(key) else brief(key)
