"""The keys of a recipe file: what each may hold, and which encoders have it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

from shardwright.buckets import is_bucket
from shardwright.recipes.values import ANY, DTYPES, JSON_SUFFIX, PICTURES, Side

TOKENS = "tokens"  # an axis as long as the key of that name says
FITS = ("original", "bucket")
DECODES = ("exact", "fast")
IDS = ("name", "path", "captions")

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
    about: str  # for people who write a file
    example: str  # as TOML


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value < _LARGEST


def _is_number(value: Any, least: float) -> bool:  # noqa: ANN401 - anything TOML can hold
    return type(value) in (int, float) and least <= value < _LARGEST


def _is_list(value: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def _is_buckets(value: Any) -> bool:  # noqa: ANN401 - anything TOML can hold
    """Whether these are buckets, or a list of them for each resolution."""
    levels = value if value and _is_list(value, lambda v: isinstance(v, list)) else [value]
    return all(bool(level) and _is_list(level, _is_bucket) for level in levels)


def _is_bucket(value: object) -> bool:
    return isinstance(value, str) and is_bucket(value)


def _is_mask(value: object) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, bool)
    named = {"field": "mask", "suffix": "npy", **value}
    suffix = named["suffix"]
    is_npy = _is_suffix(suffix) and suffix.endswith("npy")
    return len(named) == 2 and _is_field(named["field"]) and is_npy


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
    return _NAME.fullmatch(value) is not None and value != "none"  # which --recompute takes


def _one_of(words: Collection[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


_PIXELS = "a number of pixels"

TOP = {
    "extends": Key(
        *("the name of a shipped recipe, or a file", _is_text),
        *("the recipe to start from: a shipped one, or a file", '"prx"'),
    ),
    "components": Key(
        *("a list of names", lambda v: bool(v) and _is_list(v, _is_text)),
        *("which components, and in which order; all of them if left out", '["vae", "t5"]'),
    ),
}
PATHS = {
    "images": Key("a path", _is_text, "the folder of images and captions", '"data/approved"'),
    "store": Key("a path", _is_text, "the folder of records and arrays", '"data/derived"'),
    "shards": Key("a path", _is_text, "the folder of shards", '"data/shards"'),
    "captions": Key("a path", _is_text, "a file of captions, as --captions", '"captions.jsonl"'),
}
DEFAULT_PATHS = {n: key.example.strip('"') for n, key in PATHS.items() if n != "captions"}
IMAGES = {
    "fit": Key(
        *(_one_of(FITS), lambda v: v in FITS),
        *('"original": pictures keep their size; "bucket": resized and cropped to it', '"bucket"'),
    ),
    "buckets": Key(
        *('a list like ["1024x1024", "832x1216"]', _is_buckets),
        *("the picture sizes that a trainer batches by", '["1024x1024", "832x1216"]'),
    ),
    "resolution": Key(
        f"a number of pixels, or a list of at most {_MOST_LEVELS}",
        lambda v: (
            0 < len(v) <= _MOST_LEVELS and all(map(_is_count, v))
            if isinstance(v, list)
            else _is_count(v)
        ),
        *("instead of buckets: make them, of about this side squared", "512"),
    ),
    "step": Key(_PIXELS, _is_count, "with resolution: sides are multiples of it", "64"),
    "max_aspect": Key(
        *("a number of at least 1", lambda v: _is_number(v, 1)),
        *("with resolution: the longer side divided by the shorter is at most this", "2.0"),
    ),
    "max_upscale": Key(
        *("a number of at least 1", lambda v: _is_number(v, 1)),
        *("leave out pictures that would be enlarged more than this to fill their bucket", "1.5"),
    ),
    "max_crop": Key(
        *("a share from 0 to 1", lambda v: _is_number(v, 0) and v <= 1),
        *("leave out pictures of which a larger share would be cut off by their bucket", "0.3"),
    ),
    "min_side": Key(_PIXELS, _is_count, "leave out pictures with a shorter side below it", "256"),
    "max_tokens_lost": Key(
        *("a number of tokens, or 0", lambda v: type(v) is int and 0 <= v < _LARGEST),
        *("leave out pictures with a caption of which more tokens would be cut off", "20"),
    ),
    "decode": Key(
        *(_one_of(DECODES), lambda v: v in DECODES),
        *('"fast": JPEG files are decoded at a smaller scale, where that is enough', '"fast"'),
    ),
    "ids": Key(
        *(_one_of(IDS), lambda v: v in IDS),
        *("where ids come from: the file name, its path, or image_id in --captions", '"path"'),
    ),
}
SHARE = Key(
    *('a share, for example "5%"', lambda v: _is_text(v) or isinstance(v, float)),
    *("a part to hold out, of any name, and its share; the rest is train", '"5%"'),
)
SPLIT = {
    "val": SHARE,
    "by": Key("a column", _is_text, "samples with one value there stay together", '"scene"'),
}
RAY = {
    "gpus_per_worker": Key(
        "a number above 0: up to 1, or an integer",
        lambda v: type(v) in (int, float) and 0 < v < _LARGEST and (v <= 1 or v == int(v)),
        *("with --engine ray: GPUs, or a part of one, that each worker gets", "0.5"),
    ),
}
# Besides those of the components.
TABLES = {"paths": PATHS, "images": IMAGES, "split": SPLIT, "ray": RAY}
OF_RESOLUTION = {"step": 64, "max_aspect": 2.0}  # with their defaults
COMPONENT = {
    "encoder": Key(
        *('a shipped encoder, or "package.module:Class"', _is_text),
        *("what makes it; without one, the arrays are made by another tool", '"t5"'),
    ),
    "model": Key("a hub id or a folder", _is_text, "a hub id or a folder", '"google-t5/t5-large"'),
    "subfolder": Key("a folder of the model", _is_text, "of the model", '"text_encoder_2"'),
    "output": Key(
        *("a text", _is_text),
        *('which output of the model: "pooled", "patches", "hidden" or "projected"', '"patches"'),
    ),
    "layer": Key(
        *("a number, for example -2", lambda v: type(v) is int and abs(v) < _LARGEST),
        *("the layer whose hidden states are taken; -1 is the last", "-2"),
    ),
    "field": Key("a record field", _is_field, "the record field it reads", '"caption_short"'),
    "tokens": Key(
        *("a number of tokens", _is_count),
        *("captions are padded or cut to this length", "512"),
    ),
    "template": Key(
        *('a text with one "{caption}"', lambda v: _is_text(v) and v.count("{caption}") == 1),
        *("what the model reads, with the caption in it", '"Describe: {caption}"'),
    ),
    "attention_mask": Key(
        *("true or false", lambda v: isinstance(v, bool)),
        *("whether the model sees only the tokens of the caption", "true"),
    ),
    "mask": Key(
        *('true, false or { field = "...", suffix = "..." }', _is_mask),
        "whether a mask of the tokens goes into the record and the shards",
        '{ field = "t5_attention_mask", suffix = "t5m.npy" }',
    ),
    "trim": Key(
        *("true or false", lambda v: isinstance(v, bool)),
        *("store only the tokens that the mask keeps", "true"),
    ),
    "fit": Key(
        *(_one_of(FITS), lambda v: v in FITS),
        *('"original": it sees the complete picture; "bucket": what latents show', '"original"'),
    ),
    "format": Key(
        *(f"one of {', '.join(PICTURES)}", lambda v: v in PICTURES),
        *("of a picture: jpg, png or webp", '"webp"'),
    ),
    "quality": Key(
        *("a number from 1 to 100", lambda v: _is_count(v) and v <= 100),
        *("of a jpg or webp picture, from 1 to 100", "90"),
    ),
    "tile_above": Key(
        *(_PIXELS, _is_count),
        *("pictures with more pixels, width times height, are encoded in tiles", "4194304"),
    ),
    "source": Key(
        *('"image" or "caption"', lambda v: v in ("image", "caption")),
        *("what an encoder of your own reads", '"caption"'),
    ),
    "options": Key(
        "a table of texts, numbers, switches, lists and tables",
        lambda v: isinstance(v, dict) and _is_plain(v),
        *("for an encoder of your own", "{ scale = 2 }"),
    ),
    "dtype": Key(
        *(f"one of {', '.join(DTYPES)}", lambda v: isinstance(v, str) and v in DTYPES),
        *("of the stored arrays", '"bfloat16"'),
    ),
    "shape": Key(
        *('a list of lengths, "height/N", "width/N", "tokens" or "any"', _is_shape),
        *("of each array; a shipped encoder knows it from its model", '["any", 133, 3]'),
    ),
    "folder": Key(
        *("letters, digits, - and _, at most 100 in all", _is_folder),
        *("the folder of its files in the store", '"t5_hidden"'),
    ),
    "suffix": Key(
        "lower-case letters, digits, - and _, then .npy, .jpg, .png or .webp, at most "
        f"{_LONGEST_SUFFIX} in all",
        _is_suffix,
        *("the end of its name in a shard", '"t5h.npy"'),
    ),
    "inline": Key(
        *("a list of record fields", lambda v: _is_list(v, _is_field)),
        *("where the records of a Stage 1 file may hold it", '["t5_hidden"]'),
    ),
}


class Kind(NamedTuple):
    """An encoder that is part of Shardwright."""

    module: str  # below shardwright.encoders
    source: Literal["image", "caption"]
    keys: tuple[str, ...]  # besides those that every component may have
    defaults: dict[str, Any]
    outputs: tuple[str, ...] = ()  # what ``output`` may be


_CHECKPOINT = ("model", "subfolder")
_TEXT = (*_CHECKPOINT, "field", "tokens", "attention_mask", "mask", "trim")
_VISION = Kind(
    "vision", "image", (*_CHECKPOINT, "output", "fit"), {"output": "pooled"}, ("pooled", "patches")
)
_LONG = {"tokens": 512, "mask": True, "attention_mask": True}
ENCODERS = {
    "autoencoder": Kind("autoencoder", "image", (*_CHECKPOINT, "tile_above"), {}),
    "dinov2": _VISION,
    "dinov3": _VISION,
    "siglip2": _VISION,
    "t5": Kind("text", "caption", _TEXT, _LONG),
    "clip": Kind(
        *("text", "caption", (*_TEXT, "output", "layer")),
        {"tokens": 77, "mask": False, "attention_mask": False, "output": "hidden", "layer": -1},
        ("hidden", "pooled", "projected"),
    ),
    "text": Kind("text", "caption", (*_TEXT, "layer", "template"), {**_LONG, "layer": -1}),
    "picture": Kind("picture", "image", ("format", "quality"), {"format": "jpg", "quality": 95}),
}
_EVERY = ("dtype", "shape", "folder", "suffix", "inline")
# Of a user's own encoder.
_OWN = ("model", "field", "tokens", "mask", "trim", "source", "fit", "options")


def keys_of(encoder: str | None) -> tuple[str, ...]:
    """Name the keys that a component with this encoder may have, in the order to write them."""
    if encoder is None:
        return _EVERY
    if encoder == "picture":
        return ("encoder", *ENCODERS[encoder].keys, "folder", "suffix")
    return ("encoder", *(ENCODERS[encoder].keys if encoder in ENCODERS else _OWN), *_EVERY)


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
