"""What each component of a store was made with, so that no folder ever holds two kinds of arrays.

``DERIVED_DIR/.shardwright/provenance.json``; it is written before the first array that it speaks
of. To make a component anew with other settings is a matter of two steps that survive a kill: all
old arrays are removed ("removing"), then new ones are made ("making"). With the same settings each
new array takes the place of the old one ("replacing"). Only then is the entry plain again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from shardwright import files
from shardwright.errors import ProvenanceError
from shardwright.schema import STATE_FOLDER
from shardwright.version import __version__

NAME = "provenance.json"
TOOL = f"shardwright {__version__}"

Settings = dict[str, Any]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the arrays of one component were made."""

    settings: Settings  # the encoder's own description, and the fit
    tool: str
    unknown_arrays: int = 0  # that were there before, made elsewhere
    recompute: Literal["removing", "making", "replacing"] | None = None


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


def write(derived_dir: Path, entries: dict[str, Entry]) -> None:
    """Write all entries."""
    files.make_folder(derived_dir / STATE_FOLDER)
    text = msgspec.json.format(msgspec.json.encode(_Document(entries), order="sorted"), indent=2)
    files.write_whole(derived_dir / STATE_FOLDER / NAME, text + b"\n")


def plain(settings: Settings) -> Settings:
    """Give settings as they will be read back, so that they compare equal to themselves."""
    read_back: Settings = msgspec.json.decode(msgspec.json.encode(settings))
    return read_back


def require_same(name: str, entry: Entry, settings: Settings, derived_dir: Path) -> None:
    """Raise if a component would now be made with other settings than before."""
    keys = sorted(entry.settings.keys() | settings.keys())
    changed = [key for key in keys if entry.settings.get(key) != settings.get(key)]
    if changed:
        listed = "; ".join(
            f"{key} was {_shown(entry.settings.get(key))}, now {_shown(settings.get(key))}"
            for key in changed
        )
        raise ProvenanceError(
            f"{derived_dir}: {name} was made with other settings ({listed}), and nothing was "
            f"written; give --recompute {name} to make all of it anew, or another --derived-dir"
        )


def _shown(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode().strip('"')
