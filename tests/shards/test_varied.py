"""Reading components that are not simply stacked: trimmed, free, bfloat16 and pictures."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardwright
from shardwright.errors import DamageError, InputMissingError, UsageError
from shardwright.recipes import Recipe
from shardwright.shards.format import manifest
from shardwright.store.arrays import widened
from tests.shards.packed import assert_same
from tests.shards.packed import packed as packed_to_specification
from tests.shards.varied import SDXL, TOKENS, VARIED, arrays, kept, packed, picture

SAMPLES = 22


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES)


def number_of(image_id: str) -> int:
    return int(image_id.removeprefix("img"))


def padded(numbers: list[int], length: int) -> Any:  # noqa: ANN401
    found = np.zeros((len(numbers), length, 6), np.float16)
    for row, number in zip(found, numbers, strict=True):
        row[: kept(number)] = arrays(number)["t5.npy"]
    return found


def assert_batch(batch: dict[str, Any], length: int | None = None) -> None:
    """Fail unless a batch holds the arrays of its samples, as NumPy arrays or tensors."""
    numbers = [number_of(image_id) for image_id in batch["image_id"]]
    made = [arrays(number) for number in numbers]
    length = length or max(map(kept, numbers))
    assert_same(batch["vae.npy"], np.stack([each["vae.npy"] for each in made]))
    assert_same(batch["t5.npy"], padded(numbers, length))
    ones = np.arange(length) < np.array([[kept(number)] for number in numbers])
    assert_same(batch["t5_mask.npy"], ones.astype(np.uint8))
    assert batch["picture.webp"] == [picture(number) for number in numbers]
    assert isinstance(batch["pose.npy"], list)
    for array, each in zip(batch["pose.npy"], made, strict=True):
        assert_same(array, each["pose.npy"])


def test_a_sample_has_its_own_length_exact_values_and_the_bytes_of_its_picture(
    shards: Path,
) -> None:
    dataset = shardwright.open(shards)
    assert len(dataset) == SAMPLES
    for sample in dataset:
        number = number_of(sample["json"]["image_id"])
        assert sample["picture.webp"] == picture(number)
        for field, array in arrays(number).items():
            assert_same(sample[field], array)
    assert dataset[0]["pooled.npy"].dtype == np.float32


def test_trimmed_text_is_padded_to_the_longest_of_its_batch(shards: Path) -> None:
    batches = list(shardwright.open(shards).batches(4, seed=1))
    for batch in batches:
        assert_batch(batch)
        made = [arrays(number_of(image_id))["pooled.npy"] for image_id in batch["image_id"]]
        assert_same(batch["pooled.npy"], np.stack(made))
    lengths = {batch["t5.npy"].shape[1] for batch in batches}
    assert len(lengths) > 1
    assert batches[0]["t5.npy"].flags.writeable
    assert batches[0]["pose.npy"][0].flags.writeable


@pytest.mark.parametrize("tokens", [15, {"t5.npy": 15}])
def test_trimmed_text_is_padded_to_a_given_length(shards: Path, tokens: Any) -> None:  # noqa: ANN401
    for batch in shardwright.open(shards).batches(4, tokens=tokens):
        assert_batch(batch, 15)


def test_a_length_that_is_too_short_for_a_caption_is_refused_at_once(shards: Path) -> None:
    with pytest.raises(UsageError, match=r"\.t5\.npy has 12 tokens, but tokens is 11; give tok"):
        shardwright.open(shards).batches(4, tokens=11)


def test_a_length_for_a_field_that_is_not_trimmed_is_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"vae\.npy: not a trimmed field; there are t5\.npy"):
        shardwright.open(shards).batches(4, tokens={"vae.npy": 4})
    with pytest.raises(UsageError, match="tokens is 0"):
        shardwright.open(shards).batches(4, tokens=0)
    plain = shardwright.open(packed_to_specification(tmp_path))
    with pytest.raises(UsageError, match="no field is trimmed; leave tokens out"):
        plain.batches(4, tokens=77)


def test_the_state_of_a_batch_is_valid_with_another_length(shards: Path) -> None:
    dataset = shardwright.open(shards)
    first = list(dataset.batches(4, seed=3))
    other = dataset.batches(4, seed=3, tokens=TOKENS)
    other.load_state_dict(json.loads(json.dumps(first[1]["__state__"])))
    rest = list(other)
    assert [b["image_id"] for b in rest] == [b["image_id"] for b in first[2:]]
    assert rest[0]["t5.npy"].shape[1] == TOKENS


def test_text_and_mask_can_be_read_without_each_other(shards: Path) -> None:
    dataset = shardwright.open(shards)
    for field, other in (("t5.npy", "t5_mask.npy"), ("t5_mask.npy", "t5.npy")):
        both = dataset.batches(4)
        for batch, whole in zip(dataset.fields(field, "json").batches(4), both, strict=True):
            assert_same(batch[field], whole[field])
            assert other not in batch


def test_every_bfloat16_becomes_the_float32_that_torch_makes_of_it() -> None:
    torch = pytest.importorskip("torch")
    bits = np.arange(1 << 16).astype(np.uint16)
    theirs = torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widened(bits), theirs)


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize(
    ("workers", "tokens", "method"), [(0, None, None), (2, None, "fork"), (1, 15, "spawn")]
)
def test_torch_gives_the_same_with_bfloat16_as_it_is(
    shards: Path, workers: int, tokens: int | None, method: str | None
) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    batches = shardwright.open(shards).batches(4, seed=2, tokens=tokens)
    found = list(
        DataLoader(
            batches.torch(), batch_size=None, num_workers=workers, multiprocessing_context=method
        )
    )
    assert [b["image_id"] for b in found] == [b["image_id"] for b in batches]
    for batch, plain in zip(found, batches, strict=True):
        assert_batch(batch, tokens)
        assert batch["pooled.npy"].dtype == torch.bfloat16
        assert_same(batch["pooled.npy"].float(), plain["pooled.npy"])
        if workers:
            assert all(tensor.is_shared() for tensor in (*batch["pose.npy"], batch["t5.npy"]))


def test_an_array_of_another_dtype_is_never_read_as_bfloat16(tmp_path: Path) -> None:
    shards = packed(tmp_path, 4)
    found = manifest.load_manifest(shards)
    assert found is not None
    vae, *rest = VARIED.components
    recipe = replace(VARIED, components=(replace(vae, dtype="bfloat16"), *rest))
    manifest.save_manifest(shards, msgspec.structs.replace(found, recipe=recipe))
    dataset = shardwright.open(shards)
    for read in (lambda: dataset[0], lambda: list(dataset.batches(2))):
        with pytest.raises(DamageError, match=r"vae\.npy is bfloat16, but one is float16"):
            read()


def test_components_say_what_they_are_and_how_they_were_made(shards: Path, tmp_path: Path) -> None:
    components = pickle.loads(pickle.dumps(shardwright.open(shards))).components
    assert list(components) == ["vae", "t5", "pooled", "pose", "picture"]
    vae, pose = components["vae"], components["pose"]
    assert (vae.scaling_factor, vae.shift_factor, vae.model) == (0.13, None, "a/vae")
    assert (vae.dtype, vae.shape) == ("float16", (4, "height/8", "width/8"))
    assert (components["pooled"].dtype, components["picture"].dtype) == ("bfloat16", "uint8")
    assert components["t5"].settings == {"model": "a/t5", "dtype": "bfloat16"}
    assert (components["t5"].source, components["t5"].mask) == ("caption", "t5_mask.npy")
    assert (vae.source, vae.mask, pose.source) == ("image", None, "elsewhere")
    assert (pose.suffix, pose.shape, pose.model) == ("pose.npy", ("any", 3), None)
    assert pose.settings == {}


def test_shards_of_the_specification_know_their_components_without_a_recipe(
    tmp_path: Path,
) -> None:
    shards = packed_to_specification(tmp_path)
    components = shardwright.open(shards).components
    assert {name: c.shape for name, c in components.items()} == {
        "dinov3": (1024,),
        "vae": (16, "height/8", "width/8"),
        "t5": (77, 1024),
    }
    (shards / ".shardwright/manifest.json").unlink()
    with pytest.warns(match="has no manifest"):
        dataset = shardwright.open(shards)
    assert dataset.components == {}
    with pytest.raises(InputMissingError, match="has no manifest, so nothing is known of the empt"):
        dataset.empty["t5h.npy"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_empty_caption_comes_with_the_shards(shards: Path, scheme: str) -> None:
    if scheme:
        pytest.importorskip("fsspec")
    dataset = shardwright.open(f"{scheme}{shards}").bucket("64x64")
    made = arrays(-1)
    assert dict(dataset.empty).keys() == {"t5.npy", "t5_mask.npy", "pooled.npy"}
    for suffix, array in dict(dataset.empty).items():
        assert_same(array, made[suffix])
    assert "vae.npy" not in dataset.empty
    assert len(pickle.loads(pickle.dumps(dataset)).empty["pooled.npy"]) == 5
    with pytest.raises(UsageError, match=r"vae\.npy is not made from a caption; there are t5\.npy"):
        dataset.empty["vae.npy"]


def test_shards_without_an_empty_caption_say_how_to_get_it(tmp_path: Path) -> None:
    dataset = shardwright.open(packed_to_specification(tmp_path))
    assert dict(dataset.empty) == {}
    with pytest.raises(InputMissingError) as raised:
        dataset.empty["t5h.npy"]
    assert str(raised.value) == (
        f"{tmp_path}/shards: has no t5h.npy of the empty caption, because its store had none; "
        "run shardwright derive once more, then pack with --append"
    )


def test_a_lost_or_damaged_empty_caption_is_an_error(tmp_path: Path) -> None:
    shards = packed(tmp_path, 2)
    path = shards / ".shardwright/empty/t5.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"!")
    with pytest.raises(DamageError, match=r"empty/t5\.npy: is damaged, or not the one in the man"):
        shardwright.open(shards).empty["t5.npy"]
    path.unlink()
    with pytest.raises(InputMissingError, match=r"empty/t5\.npy: no such file, but the manifest"):
        shardwright.open(shards).empty["t5.npy"]


def test_a_manifest_cannot_name_a_file_elsewhere_as_the_empty_caption(tmp_path: Path) -> None:
    shards = packed(tmp_path, 2)
    found = manifest.load_manifest(shards)
    assert found is not None
    for name in ("../../secret", "vae.npy", "json"):
        manifest.save_manifest(shards, msgspec.structs.replace(found, empty={name: "0" * 16}))
        with pytest.raises(DamageError, match="lists an empty caption of no component"):
            shardwright.open(shards)


def test_a_manifest_with_a_recipe_of_an_earlier_form_is_read(tmp_path: Path) -> None:
    """It had only names, folders, suffixes, dtypes, shapes, inline fields, sources and masks."""
    shards = packed(tmp_path, 2, SDXL)
    found = manifest.load_manifest(shards)
    assert found is not None
    recipe = msgspec.to_builtins(SDXL)
    old = ("name", "folder", "suffix", "dtype", "shape", "inline", "source", "mask")
    parts = [{key: part[key] for key in old} for part in recipe["components"]]
    earlier = msgspec.convert({"components": parts, "buckets": recipe["buckets"]}, Recipe)
    manifest.save_manifest(shards, msgspec.structs.replace(found, recipe=earlier))
    assert shardwright.open(shards).components["clip-l"].shape == (7, 3)
    assert shardwright.verify(shards, read_data=True, workers=1).findings == []


def test_a_manifest_cannot_name_a_folder_elsewhere(tmp_path: Path) -> None:
    shards = packed(tmp_path, 2)
    found = manifest.load_manifest(shards)
    assert found is not None
    first, *rest = VARIED.components
    for bad in ({"folder": "../x"}, {"suffix": "../x.npy"}, {"dtype": "|O"}, {"shape": (1 << 60,)}):
        recipe = replace(VARIED, components=(replace(first, **bad), *rest))
        manifest.save_manifest(shards, msgspec.structs.replace(found, recipe=recipe))
        with pytest.raises(DamageError, match="is not a recipe"):
            shardwright.open(shards)
