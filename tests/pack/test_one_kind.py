"""Shards of two kinds never mix in one folder: arrays made with other settings are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright import PackSummary, ProvenanceError, pack, verify
from shardwright.encoders.sketch import BlockTransform
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests.derive.fakes import VAE, given
from tests.derive.pictures import gradient, make_images, save, sketch
from tests.faults import Killed, KillingDisk, contents
from tests.stores import Store, make_store, record
from tests.tars import all_ids

SMALL = ((24, 16), (16, 24), (16, 16))
ONE, OTHER = "24x16", "32x16"


class Model(BlockTransform):
    """Latents of a model that has a name and a checksum."""

    def __init__(self, sha256: str) -> None:
        super().__init__(VAE)
        self.sha256 = sha256

    def describe(self) -> dict[str, Any]:
        return {"model": "some/vae", "sha256": self.sha256}


def another_model(images: Path, derived: Path) -> None:
    sketch(images, derived, encoders=given(vae=Model("beef")), recompute=["vae"])


def another_fit(images: Path, derived: Path) -> None:
    sketch(images, derived, encoders=given(vae=Model("cafe")), fit="bucket", recompute=["vae"])


def sketches(images: Path, derived: Path) -> None:
    sketch(images, derived, recompute=["dinov3", "vae", "t5"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (another_model, "vae: sha256 was cafe, now beef"),
        (another_fit, "vae: fit was original, now bucket"),
        (sketches, "dinov3, t5: encoders was given, now sketch"),
    ],
    ids=["another model", "another fit", "other encoders"],
)
@pytest.mark.parametrize("way", ["append", "sync"])
def test_arrays_made_with_other_settings_are_not_added_and_nothing_is_written(
    way: str, change: Callable[[Path, Path], None], told: str, tmp_path: Path, output: Path
) -> None:
    images, derived = make_images(tmp_path / "images", 3, SMALL), tmp_path / "derived"
    sketch(images, derived, encoders=given(vae=Model("cafe")))
    pack(derived_dir=derived, output_dir=output, workers=1)
    save(images / "new.png", gradient(24, 16))
    (images / "new.txt").write_text("a new one")
    change(images, derived)
    before = contents(output)
    options: dict[str, Any] = {
        "derived_dir": derived,
        "output_dir": output,
        "workers": 1,
        way: True,
    }
    with pytest.raises(ProvenanceError) as raised:
        pack(**options)
    assert told in str(raised.value)
    assert "nothing was written" in str(raised.value)
    assert "--overwrite" in str(raised.value)
    dry = pack(**options, dry_run=True)
    assert dry.obstacle == str(raised.value)
    assert contents(output) == before
    pack(derived_dir=derived, output_dir=output, workers=1, overwrite=True)
    assert len(all_ids(output)) == 4
    assert not verify(output, against=derived, workers=1).damaged


# The same, with a store that says of itself what a test wants


def tell(store: Store, **settings: dict[str, Any]) -> None:
    """Have a store say what its components were made with."""
    entries = {name: {"settings": entry, "tool": "test"} for name, entry in settings.items()}
    (store.root / ".shardwright").mkdir(exist_ok=True)
    path = store.root / ".shardwright/provenance.json"
    path.write_text(json.dumps({"components": entries}))


def grow(store: Store, *ids: str, bucket: str = ONE) -> Store:
    more = [record(image_id, bucket) for image_id in ids]
    return make_store(store.root, [*store.records, *more], latent=latent)


def latent(fields: dict[str, Any]) -> tuple[int, ...]:
    return (16, fields["height"] // 8, fields["width"] // 8)


def packed(store: Store, output: Path, **options: Any) -> PackSummary:  # noqa: ANN401
    return pack(derived_dir=store.root, output_dir=output, workers=1, **options)


@pytest.fixture
def small(tmp_path: Path) -> Store:
    return make_store(tmp_path / "derived", [record("a", ONE), record("b", OTHER)], latent=latent)


@pytest.mark.parametrize("unknown", ["before", "now", "for one component"])
def test_what_nobody_knows_is_no_contradiction(unknown: str, small: Store, output: Path) -> None:
    if unknown != "before":
        tell(small, vae={"model": "a"})
    packed(small, output)
    if unknown == "before":
        tell(small, vae={"model": "b"})
    elif unknown == "for one component":
        tell(small, dinov3={"model": "b"})
    else:
        (small.root / ".shardwright/provenance.json").unlink()
    packed(grow(small, "c"), output, append=True)
    assert sorted(all_ids(output)) == ["a", "b", "c"]
    assert verify(output, workers=1).findings == []


@pytest.mark.parametrize("damaged", [b"\xff", b"{", b'{"vae": "b"}'])
def test_what_cannot_be_read_is_refused(damaged: bytes, small: Store, output: Path) -> None:
    tell(small, vae={"model": "a"})
    packed(small, output)
    before = contents(output)
    (small.root / ".shardwright/provenance.json").write_bytes(damaged)
    with pytest.raises(ProvenanceError, match=r"provenance\.json: cannot be read; restore it, or"):
        packed(grow(small, "c"), output, append=True)
    assert contents(output) == before


def test_a_resumed_append_refuses_other_settings_too(small: Store, output: Path) -> None:
    tell(small, vae={"model": "a"})
    packed(small, output)
    grown = grow(small, "c")
    with using(KillingDisk(12)), pytest.raises(Killed):
        packed(grown, output, append=True)
    tell(small, vae={"model": "b"})
    with pytest.raises(ProvenanceError, match="vae: model was a, now b"):
        packed(grown, output, resume=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_packing_another_bucket_into_the_folder_refuses_other_settings_too(
    overwrite: bool, small: Store, output: Path
) -> None:
    tell(small, vae={"model": "a"})
    packed(small, output, bucket=[ONE])
    tell(small, vae={"model": "b"})
    before = contents(output)
    with pytest.raises(ProvenanceError, match="vae: model was a, now b"):
        packed(small, output, bucket=[OTHER], overwrite=overwrite)
    assert contents(output) == before


def test_existing_shards_are_still_the_first_thing_told(small: Store, output: Path) -> None:
    tell(small, vae={"model": "a"})
    packed(small, output)
    tell(small, vae={"model": "b"})
    with pytest.raises(FileExistsError):
        packed(small, output)


def test_runs_whose_shards_are_gone_do_not_count(small: Store, output: Path) -> None:
    tell(small, vae={"model": "a"})
    packed(small, output, bucket=[ONE])
    tell(small, vae={"model": "b"})
    packed(small, output, bucket=[ONE], overwrite=True)
    packed(grow(small, "c"), output, append=True)
    assert verify(output, workers=1).findings == []


def test_verify_reports_runs_that_disagree(small: Store, output: Path) -> None:
    tell(small, vae={"model": "a", "dtype": "float16"})
    packed(small, output)
    packed(grow(small, "c"), output, append=True)
    made = manifest.load_manifest(output)
    assert made is not None
    made.runs[1].provenance["components"]["vae"]["settings"]["model"] = "b"
    manifest.save_manifest(output, made)
    report = verify(output, workers=1)
    (finding,) = report.findings
    assert report.damaged
    assert (finding.kind, finding.file) == ("mixed_components", ".shardwright/manifest.json")
    assert finding.what == (
        "run 2 (1 shard, for example bucket_24x16/shard-000001.tar) packed other arrays than run 1 "
        "(2 shards, for example bucket_24x16/shard-000000.tar): vae: model was a, now b"
    )
    assert finding.fix == "pack all buckets again with --overwrite"
