"""What each component of a store was made with, so that no folder ever holds two kinds of arrays.

``DERIVED_DIR/.shardwright/provenance.json``; it is written before the first array that it speaks
of. A component that is recomputed has an entry of its own until its new arrays are put in the place
of the old ones; while that lasts, the entry here says so ("swapping").
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from shardwright.errors import ProvenanceError
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.version import __version__

NAME = "provenance.json"
TOOL = f"shardwright {__version__}"

_MODEL = ("model", "revision", "sha256")  # the settings that name the weights
_GIVEN = "given"  # for encoders of the caller's own, which no flag can name

SRGB = "srgb"  # by the profiles in the image files, the colours were brought to sRGB
# What an absent setting means. The first stores know no colour: profiles were ignored.
_ABSENT = {"colour": "as_stored"}

Settings = dict[str, Any]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the arrays of one component were made."""

    settings: Settings  # the encoder's own description, and the fit
    tool: str
    unknown_arrays: int = 0  # that were there before, made elsewhere
    model: str | None = None  # as the user named it, if it is not the default
    # Being swapped in, or in one of the states in which an earlier version recomputed.
    recompute: Literal["swapping", "removing", "making", "replacing"] | None = None


class _Document(msgspec.Struct):
    components: dict[str, Entry]


def read(derived_dir: Path) -> dict[str, Entry]:
    """Read the entries of a store, by component; none if nobody has written any."""
    path = derived_dir / STATE_FOLDER / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document).components
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ProvenanceError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProvenanceError(
            f"{path}: cannot be read; restore it, or remove it to go on with arrays of unknown "
            "origin"
        ) from None


def readable(derived_dir: Path) -> dict[str, Entry]:
    """Read the entries, or none if they cannot be read: derive and pack say what is wrong."""
    try:
        return read(derived_dir)
    except ProvenanceError:
        return {}


def under_way(derived_dir: Path) -> list[str]:
    """Name the components whose arrays are being replaced, or were when a run was interrupted.

    Until that is done, an array need not be the one of its record.
    """
    return [name for name, entry in readable(derived_dir).items() if entry.recompute]


def write(derived_dir: Path, entries: dict[str, Entry]) -> None:
    """Write all entries."""
    files.make_folder(derived_dir / STATE_FOLDER)
    text = msgspec.json.format(msgspec.json.encode(_Document(entries), order="sorted"), indent=2)
    files.write(derived_dir / STATE_FOLDER / NAME, text + b"\n")


def plain(settings: Settings) -> Settings:
    """Give settings as they will be read back, so that they compare equal to themselves."""
    read_back: Settings = msgspec.json.decode(msgspec.json.encode(settings))
    return read_back


def complete(settings: Settings) -> Settings:
    """Fill in what earlier versions did not write, so that settings can be compared."""
    return _ABSENT | settings


def choices(encoders: object, fit: str | None) -> Settings:
    """Give the settings that are the user's and not the encoder's."""
    chosen = {"encoders": encoders if isinstance(encoders, str) else _GIVEN}
    return chosen if fit is None else chosen | {"fit": fit}


def settings_in(document: object) -> dict[str, Settings]:
    """Give the settings by component that a document holds, for example a manifest's copy of one.

    Empty if it holds none: another tool may have written it.
    """
    try:
        entries = msgspec.convert(document, _Document).components
    except msgspec.ValidationError:
        return {}
    return {name: entry.settings for name, entry in entries.items()}


def differences(
    old: Mapping[str, Settings], new: Mapping[str, Settings]
) -> tuple[dict[str, list[str]], str]:
    """Give the settings that differ, by component, and all of that in words.

    A component that only one side knows is no difference.
    """
    changed = {
        name: keys
        for name, settings in new.items()
        if name in old and (keys := _changed(old[name], settings))
    }
    names: dict[str, list[str]] = {}  # by what differs, as it is mostly the same for several
    for name, keys in changed.items():
        before, now = complete(old[name]), complete(new[name])
        what = (f"{key} was {_shown(before.get(key))}, now {_shown(now.get(key))}" for key in keys)
        names.setdefault(", ".join(what), []).append(name)
    return changed, "; ".join(f"{', '.join(those)}: {what}" for what, those in names.items())


def require_same(
    entries: Mapping[str, Entry], wanted: Mapping[str, Settings], derived_dir: Path
) -> None:
    """Raise if components would now be made with other settings than before; name them all."""
    old = {name: entry.settings for name, entry in entries.items()}
    changed, listed = differences(old, wanted)
    if not changed:
        return
    raise ProvenanceError(
        f"{derived_dir}: was made with other settings, and nothing was written ({listed})\n"
        f"to go on as before, give {flags_before(entries, changed)}; to recompute all of it, "
        f"--recompute {','.join(changed)}; or give another --derived-dir"
    )


def flags(entries: Mapping[str, Entry]) -> list[str]:
    """Spell the flags that a store was made with, as far as they are not the defaults."""
    words: list[str] = []
    for key, default in (("encoders", "pretrained"), ("fit", "original"), ("dtype", None)):
        values = {e.settings[key] for e in entries.values() if key in e.settings}
        if len(values) == 1 and not values & {default, _GIVEN}:
            words += [f"--{key}", str(*values)]
    for name, entry in entries.items():
        if entry.model is not None:
            words += ["--model", f"{name}={entry.model}"]
    return words


def flags_before(entries: Mapping[str, Entry], changed: Mapping[str, list[str]]) -> str:
    """Spell the flags that give changed settings their old values again."""
    words: list[str] = []
    for key in ("encoders", "fit", "dtype"):
        old = {entries[name].settings.get(key) for name, keys in changed.items() if key in keys}
        if len(old) == 1 and not old & {None, _GIVEN}:
            words += [f"--{key}", str(*old)]
            if any(entry.settings.get(key) not in {None, *old} for entry in entries.values()):
                words += ["--components", ",".join(changed)]  # the others were not made with that
    for name, keys in changed.items():
        was = entries[name].settings
        if was.get("encoders") == "pretrained" and not set(_MODEL).isdisjoint(keys):
            model = f"{was['model']}@{was['revision']}" if "revision" in was else was["model"]
            words += ["--model", f"{name}={entries[name].model or model}"]
    return shlex.join(words) if words else "the settings it was made with"


def _changed(old: Settings, new: Settings) -> list[str]:
    old, new = complete(old), complete(new)
    return [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]


def _shown(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode().strip('"')
