"""Stores that an earlier version left in the middle of a change are refused by name, and stay.

The archives were made by killing ``derive --recompute`` of an early version between two disk calls.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright import pack, status, verify
from shardwright.errors import UsageError
from tests.derive.pictures import sketch
from tests.faults import contents

ARCHIVES = Path(__file__).parent / "interrupted"
COMMANDS: dict[str, Callable[[Path], object]] = {
    "derive": lambda derived: sketch(Path("images"), derived),
    "derive --recompute": lambda derived: sketch(Path("images"), derived, recompute=["vae"]),
    "pack": lambda derived: pack(derived_dir=derived, output_dir="shards", workers=1),
    "verify": lambda derived: verify(derived, workers=1),
    "status": lambda derived: status(derived_dir=derived, workers=1),
}


def require_refused(derived: Path, what: str) -> None:
    before = contents(derived)
    for command in COMMANDS.values():
        with pytest.raises(UsageError) as error:
            command(derived)
        assert f"{what}, by an earlier version of Shardwright, is not finished" in str(error.value)
        assert "finish it with that version" in str(error.value)
        assert contents(derived) == before


@pytest.mark.parametrize(
    ("state", "names"), [("removing", "vae"), ("making", "vae"), ("replacing", "t5 and vae")]
)
def test_a_recompute_that_an_earlier_version_left_is_refused(
    state: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tarfile.open(ARCHIVES / f"{state}.tar.xz") as archive:
        archive.extractall(filter="data")
    require_refused(Path("derived"), f"a recompute or update of {names}")


def test_a_list_of_renamed_images_that_an_earlier_version_left_is_refused(
    images: Path, derived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images.parent)
    (derived / ".shardwright/rearrange.json").write_text('[{"removed": ["img000"]}]')
    require_refused(derived, "renaming or removing images")
