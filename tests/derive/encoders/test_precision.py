"""Precision: what each encoder computes in, by device, and what a store keeps to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright
from shardwright import recipes
from shardwright.cli.main import main
from shardwright.encoders import load
from shardwright.encoders.base import Options
from shardwright.encoders.contract import picture
from shardwright.encoders.devices import precision
from shardwright.errors import ProvenanceError
from shardwright.store import provenance
from tests.derive.encoders.models import make_small_recipe, make_vision
from tests.derive.encoders.plain import encoded
from tests.derive.encoders.test_pretrained import Checkpoints, encoder
from tests.derive.pictures import make_images

OLD = {"dinov3": "float32", "vae": "bfloat16", "t5": "bfloat16"}  # what was the default on a GPU
NEW = {"dinov3": "tf32", "vae": "tf32", "t5": "float32"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch find a GPU; nothing can be computed on it."""
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)


def dtypes(images: Path, derived: Path, **options: Any) -> dict[str, str]:  # noqa: ANN401
    """Give the precision of each component that a run would make."""
    summary = shardwright.derive(images, derived_dir=derived, dry_run=True, **options)
    found = {name: part.settings for name, part in summary.components.items()}
    return {name: settings["dtype"] for name, settings in found.items() if settings}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("name", "dtype"), NEW.items())
def test_each_encoder_of_prx_has_its_precision_on_a_gpu(
    checkpoints: Checkpoints, name: str, dtype: str
) -> None:
    for device in ("auto", "cuda", "cuda:0"):
        assert encoder(name, checkpoints[name], device=device).describe()["dtype"] == dtype
    assert encoder(name, checkpoints[name], device="cpu").describe()["dtype"] == "float32"
    asked = encoder(name, checkpoints[name], device="cuda", dtype="bfloat16")
    assert asked.describe()["dtype"] == "bfloat16"


@pytest.mark.usefixtures("gpu")
def test_clip_is_float32_on_a_gpu_and_a_vector_has_the_precision_of_its_patches(
    tmp_path: Path,
) -> None:
    recipe = recipes.find(str(make_small_recipe("sd3", tmp_path))).recipe
    for name in ("clip_l", "clip_l_pooled", "clip_g"):
        made: Any = load("pretrained", recipe.by_name[name], Options(), {})
        assert made.describe()["dtype"] == "float32"
    folder = make_vision(tmp_path / "dino", "DINOv3ViTModel")
    path = tmp_path / "both.toml"
    path.write_text(
        'extends = "prx"\ncomponents = ["dinov3", "patches"]\n'
        f'[component.dinov3]\nmodel = "{folder}"\nshape = [32]\n'
        f'[component.patches]\nencoder = "dinov3"\nmodel = "{folder}"\noutput = "patches"\n'
        'shape = [196, 32]\ndtype = "float16"\n'
    )
    vector, patches = recipes.find(str(path)).recipe.components
    models: dict[Any, Any] = {}
    one: Any = load("pretrained", vector, Options(), models)
    other: Any = load("pretrained", patches, Options(), models)
    assert one.describe()["dtype"] == other.describe()["dtype"] == "tf32"
    assert one.shares is other.shares
    apart: Any = load("pretrained", patches, Options(dtype="float32"), models)
    assert apart.shares is not one.shares, "another precision is another pass"
    assert apart._shared is one._shared, "of the same weights"


def test_tf32_on_a_cpu_is_float32_and_is_recorded_as_asked(checkpoints: Checkpoints) -> None:
    plain, asked = (encoder("dinov3", checkpoints["dinov3"], dtype=d) for d in (None, "tf32"))
    assert np.array_equal(encoded(plain, picture(64, 48)), encoded(asked, picture(64, 48)))
    assert asked.describe() == {**plain.describe(), "dtype": "tf32"}


@pytest.mark.parametrize(
    ("dtype", "inside"), [("tf32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee")]
)
@pytest.mark.parametrize("before", ["none", "tf32", "ieee"])
def test_tf32_is_on_only_within_a_pass_that_asks_for_it(
    dtype: str, inside: str, before: str
) -> None:
    from torch import backends

    places = (backends.cuda.matmul, backends.cudnn.conv)
    usual = [place.fp32_precision for place in places]
    backends.cuda.matmul.fp32_precision = before
    try:
        found = [place.fp32_precision for place in places]
        with suppress(KeyError), precision(dtype):
            assert [place.fp32_precision for place in places] == [inside, inside]
            raise KeyError
        assert [place.fp32_precision for place in places] == found
    finally:
        backends.cuda.matmul.fp32_precision = usual[0]


def test_a_model_runs_with_the_precision_of_its_pass(checkpoints: Checkpoints) -> None:
    from torch import backends

    for dtype, expected in (("tf32", "tf32"), ("float32", "ieee")):
        made = encoder("dinov3", checkpoints["dinov3"], dtype=dtype)
        seen: list[str] = []
        made._model.register_forward_pre_hook(
            lambda *_, seen=seen: seen.append(backends.cudnn.conv.fp32_precision)
        )
        encoded(made, picture(64, 48))
        assert seen == [expected]


@pytest.fixture
def store(checkpoints: Checkpoints, tmp_path: Path) -> tuple[Path, Path]:
    """Make a store with what were the defaults on a GPU, and add an image."""
    images, derived = make_images(tmp_path / "images", 1), tmp_path / "derived"
    models = {name: str(folder) for name, folder in checkpoints.items()}
    shardwright.derive(images, derived_dir=derived, model=models, dtype=OLD, device="cpu")
    make_images(images, 2)
    return images, derived


@pytest.mark.usefixtures("gpu")
def test_a_store_keeps_the_precision_it_was_made_with_until_it_is_recomputed(
    store: tuple[Path, Path], checkpoints: Checkpoints
) -> None:
    models = {name: str(folder) for name, folder in checkpoints.items()}
    images, derived = store
    assert dtypes(images, derived, model=models) == OLD
    assert dtypes(images, derived, model=models, device="cpu") == OLD
    for name in OLD:
        expected = {**OLD, name: NEW[name]}
        assert dtypes(images, derived, model=models, recompute=[name]) == expected
    again = {**NEW, "t5": "bfloat16"}
    asked = dtypes(images, derived, model=models, recompute=list(OLD), dtype={"t5": "bfloat16"})
    assert asked == again


def test_another_precision_than_before_is_refused_and_both_are_listed(
    store: tuple[Path, Path],
) -> None:
    images, derived = store
    with pytest.raises(ProvenanceError, match=r"\(t5: dtype was bfloat16, now float32\)"):
        shardwright.derive(images, derived_dir=derived, dtype={"t5": "float32"}, components=["t5"])


def test_an_unfinished_recompute_goes_on_with_its_own_precision(
    store: tuple[Path, Path], checkpoints: Checkpoints
) -> None:
    images, derived = store
    models = {"t5": str(checkpoints["t5"])}
    options: dict[str, Any] = {"components": ["t5"], "recompute": ["t5"], "model": models}
    (images / "img000.txt").write_bytes(b"\xff")
    summary = shardwright.derive(images, derived_dir=derived, dtype="tf32", **options)
    assert summary.unfinished == ["t5"]
    assert dtypes(images, derived, **options) == {"t5": "tf32"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dtype", "float32", "--dtype", "t5=tf32"], "--dtype float32: not clear for which"),
        (["--dtype", "float32", "--dtype", "tf32"], "--dtype float32: not clear for which"),
        (["--dtype", "t5=tf32", "--dtype", "t5=float32"], "--dtype t5=float32: not clear for"),
        (["--dtype", "t5="], "--dtype t5=: not clear for which component"),
        (["--dtype", "t6=tf32"], "--dtype t6: no such component; choose from dinov3, vae, t5"),
        (["--dtype", "t5=float16"], "--dtype float16: overflows"),
    ],
)
def test_a_precision_that_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    images = make_images(tmp_path / "images", 1)
    assert main(["derive", str(images), "--derived-dir", str(tmp_path / "derived"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_flag_takes_one_precision_for_all_or_one_for_each(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    images = make_images(tmp_path / "images", 1)
    for number, (flags, expected) in enumerate(
        [
            (["tf32"], {"vae": "tf32", "t5": "tf32"}),
            (["t5=bfloat16"], {"vae": "float32", "t5": "bfloat16"}),
            (["t5=bfloat16", "vae=tf32"], {"vae": "tf32", "t5": "bfloat16"}),
        ]
    ):
        derived = str(tmp_path / f"derived{number}")
        flags = [word for each in flags for word in ("--dtype", each)]
        flags += [f"--model={name}={checkpoints[name]}" for name in ("vae", "t5")]
        command = ["derive", str(images), "--derived-dir", derived, "--components", "vae,t5"]
        assert main([*command, *flags]) == 0
        entries = provenance.read(Path(derived))
        assert {name: entry.settings["dtype"] for name, entry in entries.items()} == expected
