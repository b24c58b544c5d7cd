"""Every shipped recipe from pictures to batches, with small models of the real classes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

import shardwright
from shardwright import derive, pack, recipes, verify
from shardwright.errors import ProvenanceError, UsageError
from shardwright.recipes.file import shipped
from tests.derive.encoders.models import make_small_recipe, make_t5, make_vae
from tests.derive.pictures import gradient, make_images, save, store_records

SIZES = ((96, 64), (64, 96), (64, 64))


def make_recipe(name: str, folder: Path) -> Path:
    """Give a shipped recipe with small models and small buckets."""
    path = make_small_recipe(name, folder)
    buckets = ", ".join(f'"{width}x{height}"' for width, height in SIZES)
    path.write_text(f'{path.read_text()}[images]\nfit = "bucket"\nbuckets = [{buckets}]\n')
    return path


@pytest.mark.filterwarnings("ignore")  # webdataset leaves its files to the garbage collector
@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_goes_from_pictures_to_batches(name: str, tmp_path: Path) -> None:
    recipe, images = make_recipe(name, tmp_path), make_images(tmp_path / "images", 12, SIZES)
    store, shards = tmp_path / "store", tmp_path / "shards"
    done = derive(images, recipe=recipe, derived_dir=store, device="cpu")
    assert (done.derived, done.failed) == (12, 0)
    assert verify(store, read_data=True).findings == []
    assert pack(derived_dir=store, output_dir=shards).written_samples == 12
    assert verify(shards, read_data=True, against=store).findings == []
    components = recipes.find(str(recipe)).recipe.components
    dataset = shardwright.open(shards)
    read = {
        sample["json"]["image_id"]: sample
        for path in sorted(shards.glob("bucket_*/*.tar"))
        for sample in webdataset.WebDataset(str(path), shardshuffle=False).decode()
    }
    assert len(read) == len(dataset) == 12
    for image_id, sample in read.items():
        size = (sample["json"]["width"], sample["json"]["height"])
        for component in components:
            array = np.load(store / component.folder / f"{image_id}.npy")
            assert array.dtype.str == component.dtype
            assert array.shape == component.shape_for(*size)
            assert np.array_equal(sample[component.suffix], array)
            assert np.array_equal(dataset.by_id(image_id)[component.suffix], array)
    for batch in dataset.batches(4):
        assert {c.suffix: len(batch[c.suffix]) for c in components} == dict.fromkeys(
            (c.suffix for c in components), 4
        )
    for component in components:
        if component.source == "caption":
            assert dataset.empty[component.suffix].shape == component.shape_for(0, 0)
    assert dataset.components["vae"].scaling_factor is not None
    assert derive(images, derived_dir=store).derived == 0, "from what the store has recorded"


def test_components_of_one_model_share_its_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import CLIPTextModel

    rows: list[int] = []
    plain = CLIPTextModel.forward

    def counted(self: Any, input_ids: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        rows.append(len(input_ids))
        return plain(self, input_ids, *args, **options)

    recipe, images = make_recipe("sdxl", tmp_path), make_images(tmp_path / "images", 4, SIZES)
    monkeypatch.setattr(CLIPTextModel, "forward", counted)
    store = tmp_path / "store"
    chosen = ["clip_g", "clip_g_pooled"]
    derive(images, recipe=recipe, derived_dir=store, components=chosen, device="cpu")
    assert sum(rows) == 1 + 1 + 4, "once for the trial, the empty caption and each of 4 captions"


def test_an_array_that_is_added_later_is_of_the_same_pass(tmp_path: Path) -> None:
    recipe, images = make_recipe("sdxl", tmp_path), make_images(tmp_path / "images", 4, SIZES)
    one, both = tmp_path / "one", tmp_path / "both"
    for chosen in (["clip_g"], ["clip_g_pooled"]):
        derive(images, recipe=recipe, derived_dir=one, components=chosen, device="cpu")
    chosen = ["clip_g", "clip_g_pooled"]
    derive(images, recipe=recipe, derived_dir=both, components=chosen, device="cpu")
    for path in sorted(both.glob("clip_g*/*.npy")):
        assert path.read_bytes() == (one / path.relative_to(both)).read_bytes()


def test_dtype_and_shape_come_from_the_model(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3, ((64, 64),))
    vae, t5 = make_vae(tmp_path / "vae", channels=4), make_t5(tmp_path / "t5", 96)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "prx"\ncomponents = ["vae", "t5"]\n'
        f'[component.vae]\nmodel = "{vae}"\ndtype = "float32"\n'
        f'[component.t5]\nmodel = "{t5}"\ntokens = 9\n'
    )
    store = tmp_path / "store"
    derive(images, recipe=recipe, derived_dir=store, device="cpu")
    latent, text = (np.load(store / f / "img000.npy") for f in ("vae_latents", "t5_hidden"))
    assert (latent.dtype, latent.shape) == (np.float32, (4, 8, 8))
    assert (text.dtype, text.shape) == (np.float16, (9, 96))
    recipe.write_text(recipe.read_text() + "trim = true\n")
    with pytest.raises(ProvenanceError, match="t5: trim was false, now true"):
        derive(images, recipe=recipe, derived_dir=store, device="cpu")


def test_a_component_that_comes_back_with_another_model_is_refused(tmp_path: Path) -> None:
    images, store = make_images(tmp_path / "images", 3, ((64, 64),)), tmp_path / "store"
    recipe, picture = tmp_path / "mine.toml", '[component.picture]\nencoder = "picture"\n'

    def run(model: Path | None) -> None:
        text = f'[component.t5]\nmodel = "{model}"\n' if model else ""
        names = '"t5", "picture"' if model else '"picture"'
        recipe.write_text(f'extends = "prx"\ncomponents = [{names}]\n{text}{picture}')
        derive(images, recipe=recipe, derived_dir=store, device="cpu")

    one, other = make_t5(tmp_path / "one"), make_t5(tmp_path / "other", full=True)
    run(one)
    run(None)
    said = r"t5: model was one, now other, sha256 was \w{12}, now \w{12}\)"
    with pytest.raises(ProvenanceError, match=said):
        run(other)
    moved = shutil.copytree(one, tmp_path / "moved/one")
    run(moved)  # the same weights
    provenance = (store / ".shardwright/provenance.json").read_text()
    assert str(moved) in provenance, "so that they are not compared again"


def test_a_shape_that_contradicts_the_model_names_file_table_and_key(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 1, ((64, 64),))
    vae = make_vae(tmp_path / "vae", channels=4)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "prx"\ncomponents = ["vae"]\n'
        f'[component.vae]\nmodel = "{vae}"\nshape = [8, "height/8", "width/8"]\n'
    )
    with pytest.raises(UsageError) as caught:
        derive(images, recipe=recipe, derived_dir=tmp_path / "store", device="cpu")
    assert str(caught.value) == (
        f"{recipe}: [component.vae] shape: [8, height/8, width/8], but {vae} gives "
        "[4, height/8, width/8]; leave shape out, or give another model"
    )
    assert not (tmp_path / "store").exists()


def test_the_length_of_t5_is_changed_from_77_to_512(tmp_path: Path) -> None:
    images, store = tmp_path / "images", tmp_path / "store"
    save(images / "a.png", gradient(64, 64))
    (images / "a.txt").write_text("word " * 200)
    recipe = make_recipe("prx", tmp_path)
    chosen: dict[str, Any] = {"components": ["t5"], "device": "cpu"}
    first = derive(images, recipe=recipe, derived_dir=store, **chosen)
    assert first.truncated["t5"].captions == 1
    longer = tmp_path / "longer.toml"
    shape = '[component.t5]\ntokens = 512\nshape = ["tokens", 1024]\n'
    longer.write_text(f'extends = "prx.toml"\n{shape}')
    with pytest.raises(ProvenanceError, match="t5: tokens was 77, now 512"):
        derive(images, recipe=longer, derived_dir=store, **chosen)
    assert np.load(store / "t5_hidden/a.npy").shape == (77, 1024)
    derive(images, recipe=longer, derived_dir=store, recompute=["t5"], **chosen)
    assert np.load(store / "t5_hidden/a.npy").shape == (512, 1024)
    assert len(store_records(store)[0]["t5_attention_mask"]) == 512
