"""What ``verify`` says of folders: a part of a packing, one below another, a link, no manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwright import Finding, pack, verify
from shardwright.shards.format import manifest
from tests.stores import Store


def findings(path: Path, **options: Any) -> list[Finding]:  # noqa: ANN401
    """Verify; the small latents of our stores are not what these tests are about."""
    return [f for f in verify(path, workers=1, **options).findings if f.kind != "vae_wrong_size"]


def test_verify_against_notes_what_was_left_out(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, limit=1, workers=1)
    (note,) = findings(output, against=store.root)
    assert (note.kind, note.damage) == ("left_out", False)
    count = len(store.records) - 1
    assert note.what.startswith(f"has {count} records without a sample in the shards")


def test_a_lost_manifest_is_damage(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    (output / ".shardwright" / manifest.MANIFEST_NAME).unlink()
    report = verify(output, workers=1)
    assert [finding.kind for finding in report.findings] == ["manifest_missing"]
    assert report.damaged


def test_packings_below_a_folder_are_verified_on_their_own(store: Store, output: Path) -> None:
    pack(derived_dir=store.root, output_dir=output, workers=1)
    pack(derived_dir=store.root, output_dir=output / "validation", limit=1, workers=1)
    assert findings(output) == []
    assert findings(output / "validation") == []


def test_a_bucket_on_another_disk_is_followed(store: Store, output: Path, tmp_path: Path) -> None:
    name = f"bucket_{store.records[0]['aspect_bucket']}"
    (tmp_path / "elsewhere").mkdir()
    output.mkdir(parents=True)
    (output / name).symlink_to(tmp_path / "elsewhere")
    pack(derived_dir=store.root, output_dir=output, workers=1)
    assert findings(output, read_data=True) == []
