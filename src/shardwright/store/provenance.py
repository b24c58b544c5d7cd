"""How each component of a store was made, so that no folder ever holds two kinds of arrays.

``DERIVED_DIR/.shardwright/provenance.json``, written before the first array of a component. A
component that is recomputed or updated has another entry, in its generation, until its new arrays
replace the old ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardwright import regular
from shardwright.errors import ProvenanceError, UsageError, refusal
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import SPECIFICATION, Component
from shardwright.storage import files
from shardwright.storage.steps import Steps
from shardwright.text import brief
from shardwright.version import __version__

NAME = "provenance.json"
TOOL = f"shardwright {__version__}"

_GIVEN = "given"  # for a caller's own encoders, which no flag can name

SRGB = "srgb"  # colours were converted to sRGB, by the profiles in the image files
FAST = "fast"  # JPEG files were decoded at a smaller scale
FRACTIONS = "fractions"  # crops keep fractions of pixels
# What a missing setting means: early versions ignored profiles, and rounded crops to pixels.
# The fit says what an array shows; one that does not follow the picture had none.
_ABSENT = {"colour": "as_stored", "fit": "original", "crop": "pixels", "decode": "exact"}

_CHOSEN = ("encoders", "fit", "decode")  # settings that flags give

Settings = dict[str, Any]
T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the arrays of one component were made."""

    settings: Settings  # the encoder's own description, and the fit
    tool: str
    unknown_arrays: int = 0  # that existed before, made elsewhere
    model: str | None = None  # as the user gave it, if not the default
    component: Component | None = None  # as the recipe had it; absent: as the specification has it
    update: bool = False  # in a generation: only of what changed
    recompute: str | None = None  # how far an earlier version got, which has to finish it

    def __post_init__(self) -> None:
        for key in _CHOSEN:  # a file may say anything, and a choice is one value
            if isinstance(self.settings.get(key), (list, dict)):
                raise ValueError(f"{key} is not one value")


def is_update(entries: Mapping[str, Entry]) -> bool:
    """Whether a generation is of what changed, and not of all arrays."""
    return any(entry.update for entry in entries.values())


def component(name: str, entry: Entry) -> Component | None:
    """Give the component as it was when its arrays were made; None if that is not known."""
    return entry.component or SPECIFICATION.by_name.get(name)


def entry_of(made: Component, settings: Settings, model: str | None) -> Entry:
    """Make the entry of a component whose arrays are made now."""
    usual = SPECIFICATION.by_name.get(made.name) == made
    return Entry(settings, TOOL, model=model, component=None if usual else made)


def joined(entries: Mapping[str, Entry], new: Mapping[str, Entry]) -> dict[str, Entry]:
    """Add entries, without those of other components that had arrays in the same folders."""
    made = (component(name, entry) for name, entry in new.items())
    folders = {each.folder for each in made if each is not None}
    kept = {
        name: entry
        for name, entry in entries.items()
        if (row := component(name, entry)) is None or row.folder not in folders
    }
    return kept | dict(new)


class _Document(msgspec.Struct):
    components: dict[str, Entry]


def read(derived_dir: Path) -> dict[str, Entry]:
    """Read the entries of a store, by component."""
    path = derived_dir / STATE_FOLDER / NAME
    fix = "restore it, or delete it to continue with arrays of unknown origin"
    found = read_document(path, _Document, fix)
    entries = found.components if found else {}
    if left := [name for name, entry in entries.items() if entry.recompute]:
        raise left_before(f"a recompute or update of {' and '.join(left)}", path)
    return entries


def read_document(path: Path, kind: type[T], fix: str) -> T | None:
    """Read a file of JSON that is beside the records; None if there is none."""
    try:
        return msgspec.json.decode(regular.read(path), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        known = refusal(path, error).fix
        raise ProvenanceError(str(error.strerror), path=path, fix=known) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProvenanceError("cannot be read", path=path, fix=fix) from None


def write_document(path: Path, data: bytes, steps: Steps | None = None) -> None:
    """Write such a file: now, or as one of several steps."""
    files.make_folder(path.parent)
    (steps.write if steps else files.write)(path, msgspec.json.format(data, indent=2) + b"\n")


def left_before(what: str, path: Path) -> UsageError:
    """Make the error of what an earlier version has begun, and only that version can finish."""
    what += ", by an earlier version of Shardwright, is not finished"
    return UsageError(what, path=path, fix="finish it with that version and run this again")


def readable(derived_dir: Path) -> dict[str, Entry]:
    """Read the entries, or give none if they cannot be read; derive and pack report that."""
    try:
        return read(derived_dir)
    except ProvenanceError:
        return {}


def write(derived_dir: Path, entries: dict[str, Entry], steps: Steps | None = None) -> None:
    """Write all entries: now, or as one of several steps."""
    data = msgspec.json.encode(_Document(entries), order="sorted")
    write_document(derived_dir / STATE_FOLDER / NAME, data, steps)


def plain(settings: Settings) -> Settings:
    """Give settings as JSON gives them back, so that they compare equal."""
    return msgspec.json.decode(msgspec.json.encode(settings), type=Settings)


def complete(settings: Settings) -> Settings:
    """Add what earlier versions did not write, so that settings can be compared."""
    return _ABSENT | settings


def set_of(encoders: object) -> str:
    """Name a set of encoders in settings."""
    return encoders if isinstance(encoders, str) else _GIVEN


def entries_in(document: object) -> dict[str, Entry]:
    """Read the entries by component from a document, for example a manifest's copy.

    Empty if there are none: another tool may have written it.
    """
    try:
        return msgspec.convert(document, _Document).components
    except msgspec.ValidationError:
        return {}


def settings_in(document: object) -> dict[str, Settings]:
    """Read the settings by component from such a document."""
    return {name: entry.settings for name, entry in entries_in(document).items()}


def differences(
    old: Mapping[str, Settings], new: Mapping[str, Settings]
) -> tuple[dict[str, list[str]], str]:
    """Give the settings that differ, by component, and a text that lists them.

    Only components that both sides have are compared.
    """
    changed: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}  # by what differs, which is often the same for several
    for name in (name for name in new if name in old):
        before, now = complete(old[name]), complete(new[name])
        keys = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
        if "fit" in keys and "crop" in keys:
            keys.remove("crop")  # which follows from it
        if keys:
            changed[name] = keys
            what = (f"{k} was {_shown(before.get(k))}, now {_shown(now.get(k))}" for k in keys)
            names.setdefault(", ".join(what), []).append(name)
    return changed, "; ".join(f"{', '.join(those)}: {what}" for what, those in names.items())


def require_same(
    entries: Mapping[str, Entry],
    wanted: Mapping[str, Settings],
    derived_dir: Path,
    recompute: Iterable[str] = (),
) -> None:
    """Raise if components would be made with other settings than before; name them all.

    Those that are recomputed anyway are named in the advice.
    """
    old = {name: entry.settings for name, entry in entries.items()}
    changed, listed = differences(old, wanted)
    if changed:
        raise ProvenanceError(
            f"was made with other settings, and nothing was written ({listed})",
            path=derived_dir,
            fix=f"to go on as before, give {flags_before(entries, changed)}; to recompute all of "
            f"it, --recompute {','.join([*recompute, *changed])}; or give another --derived-dir",
        )


def flags_before(entries: Mapping[str, Entry], changed: Mapping[str, list[str]]) -> str:
    """Give the flags that restore old choices and revisions; old models and dtypes are listed."""
    words: list[str] = []
    for key in _CHOSEN:
        were = [entries[name].settings for name, keys in changed.items() if key in keys]
        old = {(complete(was) if key == "decode" else was).get(key) for was in were}
        if len(old) == 1 and not old & {None, _GIVEN}:
            words += [f"--{key}", str(*old)]
            if any(entry.settings.get(key) not in {None, *old} for entry in entries.values()):
                words += ["--components", ",".join(changed)]  # the others were not made with that
    for name, keys in changed.items():
        was = entries[name].settings
        # Of the hub, which may have a newer one: the user has not named it.
        if "revision" in keys and {"model", "revision"} <= was.keys():
            words += ["--model", f"{name}={was['model']}@{was['revision']}"]
    return shlex.join(words) if words else "the settings it was made with"


def _shown(value: object) -> str:
    return "none" if value is None else brief(msgspec.json.encode(value).decode().strip('"'))
