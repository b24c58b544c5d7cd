"""What the components of a store see of pictures, and that the store goes on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright import derive
from shardwright.deriving.views import View, look
from shardwright.encoders.base import Options
from shardwright.encoders.sketch import load
from shardwright.errors import ProvenanceError, UsageError
from shardwright.recipes import SPECIFICATION
from shardwright.store.provenance import FAST
from tests.commands import run
from tests.derive.pictures import array_path, gradient, store_records
from tests.derive.test_derive import provenance

DINO, VAE, _ = SPECIFICATION.components
STORE = Path("store")
FITTED = View(fit="bucket", buckets=SPECIFICATION.buckets)
TABLES = 'extends = "prx"\n[images]\nfit = "bucket"\n'


@pytest.fixture(autouse=True)
def _work_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    add("a", 200, 100)


def add(name: str, width: int, height: int, suffix: str = "png") -> None:
    Image.fromarray(gradient(width, height)).save(f"images/{name}.{suffix}")
    Path(f"images/{name}.txt").write_text("a gradient")


def sketch(text: str = "", **options: Any) -> shardwright.DeriveSummary:  # noqa: ANN401 - of derive
    given = {"images": "images", "derived_dir": "store", "encoders": "sketch"}
    if text:
        Path("recipe.toml").write_text(text)
        given["recipe"] = "recipe.toml"
    return derive(**{**given, **options})


def settings(name: str) -> dict[str, Any]:
    found: dict[str, Any] = provenance(STORE)[name]["settings"]
    return found


def forget(*keys: str) -> None:
    """Make the provenance of an earlier version, which did not have these settings."""
    path = STORE / ".shardwright/provenance.json"
    document = json.loads(path.read_text())
    for entry in document["components"].values():
        for key in keys:
            entry["settings"].pop(key, None)
    path.write_text(json.dumps(document))


def sees(component: str, image: str, view: View) -> bool:
    """Whether an array is the sketch of what a view shows."""
    path = next(Path("images").glob(f"{image}.[jp][pn]g"))
    encoder: Any = load(SPECIFICATION.by_name[component], Options(), {})
    expected = encoder.prepare(look(str(path), [view]).made[0])
    found = np.load(array_path(STORE, component, image))
    return bool((found == expected.astype(found.dtype)).all())


def test_a_vector_shows_what_the_latent_shows() -> None:
    sketch(fit="bucket")
    assert sees("vae", "a", FITTED)
    assert sees("dinov3", "a", FITTED)
    assert not sees("dinov3", "a", View())
    assert (settings("dinov3")["fit"], settings("dinov3")["crop"]) == ("bucket", "fractions")


def test_a_vector_shows_the_complete_picture_if_its_recipe_says_so() -> None:
    sketch(TABLES + '[component.dinov3]\nfit = "original"\n')
    assert sees("vae", "a", FITTED)
    assert sees("dinov3", "a", View())
    assert not settings("dinov3").keys() & {"fit", "crop", "buckets"}


def test_with_the_original_fit_nothing_is_recorded_for_a_vector() -> None:
    sketch()
    assert sees("dinov3", "a", View())
    assert settings("dinov3").keys() == {"colour", "encoder", "encoders", "model", "version"}


def test_a_vector_of_an_earlier_version_shows_complete_pictures_until_it_is_recomputed() -> None:
    sketch(TABLES + '[component.dinov3]\nfit = "original"\n')
    add("b", 200, 100)
    sketch(TABLES)  # says nothing of it
    sketch(TABLES + '[component.dinov3]\nfit = "original"\n')
    assert sees("dinov3", "b", View())
    with pytest.raises(ProvenanceError, match=r"\(dinov3: fit was original, now bucket\)"):
        sketch(TABLES + '[component.dinov3]\nfit = "bucket"\n')
    sketch(recompute=["dinov3"], fit="bucket", recipe="prx")
    assert all(sees("dinov3", image, FITTED) for image in "ab")
    with pytest.raises(ProvenanceError, match=r"\(dinov3: fit was bucket, now original\)"):
        sketch(TABLES + '[component.dinov3]\nfit = "original"\n')


def test_a_store_with_crops_of_complete_pixels_is_refused_until_it_is_recomputed() -> None:
    sketch(TABLES + '[component.dinov3]\nfit = "original"\n')
    forget("crop")
    add("b", 300, 100)
    for components in (("dinov3", "vae", "t5"), "dinov3"):
        with pytest.raises(ProvenanceError, match="vae: crop was pixels, now fractions"):
            sketch(components=components)
    sketch(recompute=["dinov3", "vae"], recipe="prx", fit="bucket")
    assert sees("vae", "b", FITTED)
    assert sees("dinov3", "b", FITTED)


def test_new_buckets_do_not_concern_a_vector_of_complete_pictures() -> None:
    other = '[images]\nfit = "bucket"\nbuckets = ["64x64", "{}"]\n'
    tables = 'extends = "prx"\n' + other + '[component.dinov3]\nfit = "original"\n'
    sketch(tables.format("96x64"))
    with pytest.raises(ProvenanceError, match="--recompute vae;"):
        sketch(tables.format("128x64"))
    assert sketch(tables.format("128x64"), recompute=["vae"]).swapped == ["vae"]


def test_a_component_cannot_be_fitted_where_pictures_are_not() -> None:
    text = 'extends = "prx"\n[component.dinov3]\nfit = "bucket"\n'
    with pytest.raises(UsageError) as refused:
        sketch(text)
    assert str(refused.value) == (
        "recipe.toml: [component.dinov3] fit: nothing is fitted to a bucket with [images] fit = "
        '"original"; add fit = "bucket" to [images], or leave it out'
    )
    assert sketch(text, fit="bucket").derived == 1


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ('[component.vae]\nfit = "original"', 'encoder "autoencoder" has no such key'),
        ('[component.t5]\nfit = "original"', 'encoder "t5" has no such key'),
        ('[component.dinov3]\nfit = "crop"', "'crop' is not valid"),
        (
            '[component.x]\nencoder = "m:C"\ndtype = "float32"\nshape = ["height/8", "width/8"]\n'
            'fit = "original"',
            "is only for arrays of pictures whose shape does not follow the picture",
        ),
        (
            '[component.x]\nencoder = "m:C"\ndtype = "float32"\nshape = [4]\nsource = "caption"\n'
            'fit = "original"',
            "is only for arrays of pictures whose shape does not follow the picture",
        ),
    ],
)
def test_a_fit_has_its_place(table: str, what: str) -> None:
    with pytest.raises(UsageError, match=rf"\] fit: {what}"):
        sketch(TABLES + table)


def test_fast_decoding_is_recorded_and_is_not_mixed_with_exact() -> None:
    add("b", 2400, 2100, "jpg")
    sketch(TABLES + 'decode = "fast"\n')
    assert [settings(name).get("decode") for name in ("dinov3", "vae", "t5")] == [FAST, FAST, None]
    fast = View(**{**vars(FITTED), "decode": FAST})
    assert sees("vae", "b", fast)
    assert sees("dinov3", "b", fast)
    assert not sees("vae", "b", FITTED)
    record = store_records(STORE)[1]
    assert (record["width"], record["height"]) == (2400, 2100), "of the complete picture"
    assert record["crop"] == [150, 0, 2250, 2100]
    add("c", 2400, 2100, "jpg")
    assert sketch().derived == 1  # as it was made
    assert sees("vae", "c", fast)
    with pytest.raises(ProvenanceError) as refused:
        sketch(decode="exact")
    assert str(refused.value) == (
        "store: was made with other settings, and nothing was written (dinov3, vae: decode was "
        "fast, now exact); to go on as before, give --decode fast; to recompute all of it, "
        "--recompute dinov3,vae; or give another --derived-dir"
    )
    for again in ("dinov3", "vae"):  # the advice names what is asked for as well
        with pytest.raises(ProvenanceError, match=r"--recompute (dinov3,vae|vae,dinov3);"):
            sketch(decode="exact", recompute=[again])
    sketch(decode="exact", recompute=["dinov3", "vae"])
    assert sees("vae", "b", FITTED)
    assert "decode" not in settings("vae")
    with pytest.raises(ProvenanceError, match=r"decode was exact, now fast.*give --decode exact;"):
        sketch(decode="fast")


def test_a_store_made_fast_is_not_exact_for_one_component() -> None:
    sketch(decode="fast", components=["vae", "t5"])
    with pytest.raises(ProvenanceError, match="vae: decode was fast, now exact"):
        sketch(decode="exact", components=["dinov3"])


def test_decode_is_a_flag_too() -> None:
    given = ("derive", "images", "--derived-dir", "store", "--encoders", "sketch", "--decode")
    done = run(*given, "no")
    what = "error: --decode no: unknown; choose from exact, fast\n"
    assert (done.returncode, done.stderr) == (2, what)
    done = run(*given, "fast")
    assert done.returncode == 0, done.stderr
    assert settings("vae")["decode"] == FAST
    assert json.loads((STORE / ".shardwright/recipe.json").read_text())["decode"] == FAST
