"""Stores that an earlier version left in the middle of a recompute are finished by this one.

The archives were made by killing ``derive --recompute`` between two disk calls, in each of the
states that ``provenance.json`` can be left in: see FORMAT.md.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from shardwright import pack, verify
from shardwright.errors import ProvenanceError
from tests.derive.pictures import sketch, store_records
from tests.derive.test_derive import arrays, provenance

ARCHIVES = Path(__file__).parent / "interrupted"
RECOMPUTED: dict[str, list[str]] = {
    "removing": ["vae"],
    "making": ["vae"],
    "replacing": ["vae", "t5"],
}


@pytest.mark.parametrize("state", RECOMPUTED)
@pytest.mark.parametrize("flag", ["same command", "plain derive"])
def test_a_recompute_that_an_earlier_version_left_is_finished(
    state: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tarfile.open(ARCHIVES / f"{state}.tar.xz") as archive:
        archive.extractall(filter="data")
    images, derived = Path("images"), Path("derived")
    left = {name: entry.get("recompute") for name, entry in provenance(derived).items()}
    assert {left[name] for name in RECOMPUTED[state]} == {state}
    with pytest.raises(ProvenanceError, match="is not finished"):
        pack(derived_dir=derived, output_dir="shards")
    options: dict[str, Any] = {}
    if flag == "same command":
        options["recompute"] = RECOMPUTED[state]
    assert sketch(images, derived, **options).failed == 0
    sketch(images, Path("fresh"))
    assert arrays(derived) == arrays(Path("fresh"))
    assert store_records(derived) == store_records(Path("fresh"))
    assert not any(entry.get("recompute") for entry in provenance(derived).values())
    assert verify(derived, read_data=True).findings == []
