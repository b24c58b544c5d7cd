"""``shardwright demo``: the flow on made-up data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests import commands
from tests.shapes import colours, said
from tests.tars import all_ids, listing, shards


def test_the_demo_works_in_an_empty_folder_and_again_in_its_own(tmp_path: Path) -> None:
    done = commands.run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["shardwright-demo"]
    output = tmp_path / "shardwright-demo" / "shards"
    found = all_ids(output)
    assert len(found) == len(set(found)) == 24
    assert len({path.parent for path in shards(output)}) == 5
    assert "2. built 24 samples into 8 shards (16.1 MB) in shardwright-demo/shards" in done.stdout
    assert "3. shardwright-demo/shards: OK: no damage\n  8 shards" in done.stdout
    assert "recomputed 16 of 24 samples from images: all equal" in done.stdout
    assert "4. read back all 24 samples" in done.stdout
    assert "5. wrote a page with what is in it: shardwright-demo/report.html\n" in done.stdout
    assert "\nshardwright-demo/derived: OK: no damage" in done.stdout
    assert "\nshardwright-demo/packed: OK: no damage\n  8 shards" in done.stdout
    assert "the same tars as build made, byte for byte" in done.stdout
    page = (tmp_path / "shardwright-demo" / "report.html").read_text()
    assert page.count("<img ") == 24
    assert "1 caption is cut off: longer than t5 reads" in page
    assert "  pip install '.[encode]'  " in done.stdout
    assert "shardwright[" not in done.stdout  # which is on no index
    for path in shards(output):
        assert path.name in done.stdout
        assert f"{path.stat().st_size:,}" in done.stdout
    before = {path: path.read_bytes() for path in shards(output)}
    again = commands.run("demo", "--json", cwd=tmp_path)
    assert again.returncode == 0
    built, store, packed = json.loads(again.stdout)["verified"]
    assert (built["recomputed"], built["read_data"]) == (16, True)
    assert (store["checked"], store["read_data"]) == ({"records": 24, "arrays": 72}, True)
    assert (packed["checked"], packed["read_data"]) == ({"shards": 8, "samples": 24}, True)
    assert {path: path.read_bytes() for path in shards(output)} == before
    derived = output.parent / "derived"
    lines = (derived / "approved_image_dataset.jsonl").read_text().splitlines()
    for record in map(json.loads, lines[:4]):
        latent = np.load(derived / "vae_latents" / f"{record['image_id']}.npy")
        assert latent.shape == (16, record["height"] // 8, record["width"] // 8)
        assert record["aspect_bucket"] == f"{record['width']}x{record['height']}"


def test_captions_of_the_demo_name_the_colours_that_are_painted(demonstrated: Path) -> None:
    for path in sorted((demonstrated / "images").glob("*.jpg")):
        with Image.open(path) as image:
            small = np.asarray(image.resize((64, 64)))
        assert colours(small) == said(path.with_suffix(".txt").read_text()), path.name


def test_the_demo_paints_as_many_pictures_as_asked_for_also_where_there_were_more(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text('extends = "prx"\n[images]\nresolution = 128\n')
    for count in (4, 3):
        options = ("--pictures", str(count), "--recipe", recipe)
        done = commands.run("demo", tmp_path / "demo", *options)
        assert done.returncode == 0, done.stderr
        assert f"1. painted {count} pictures" in done.stdout
        assert len(list((tmp_path / "demo/images").glob("*.jpg"))) == count
        assert len(all_ids(tmp_path / "demo/shards")) == count
        assert "the same tars as build made, byte for byte" in done.stdout


def test_a_demo_without_pictures_is_refused(tmp_path: Path) -> None:
    done = commands.run("demo", "--pictures", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: pictures is 0; give 1 or more\n"
    assert listing(tmp_path) == []


def test_the_demo_refuses_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    done = commands.run("demo", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "is not empty; give a new folder" in done.stderr
    assert listing(tmp_path) == ["precious"]


def test_the_demo_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = commands.run("demo", tmp_path / "file")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/file: is not a folder; give another to write to\n"
    assert (tmp_path / "file").read_text() == "mine"
